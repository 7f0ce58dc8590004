"""What was drawn of each source of a run in miniature, and all that there is of it.

documents   of what was drawn, scaled by the documents read: those that limits and samples by hash let in
tokens      scaled by the bytes of text read: a few long documents hold most of them
duplicates  found in a share f of the documents are those pairs of which both ends were drawn, f² of all;
            of larger clusters more, by how many triples there are to a pair
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import Json, add_counts
from tokmill.pipeline.estimation.miniature import Miniature
from tokmill.recipe import Recipe
from tokmill.schema import string_column
from tokmill.stages.ingest.stage import FIXED_SAMPLES, NOT_SAMPLED
from tokmill.stages.tokens.stage import shards_of_split
from tokmill.storage.tables import load_table


class DrawnSource(NamedTuple):
    """Of a source, drawn and all there are: documents, and bytes of text."""

    docs: int
    bytes: int
    all_docs: float
    all_bytes: float
    spread: float  # deviation of `all_docs`, of it
    sizes: Any  # bytes of text of each document that was drawn
    tokens: dict[str, Any]  # by split: tokens of each; 0 where it is not of the split

    @property
    def by_docs(self) -> float:
        return self.all_docs / max(self.docs, 1)

    @property
    def by_bytes(self) -> float:
        return self.all_bytes / max(self.bytes, 1)


class Came(NamedTuple):
    """Of those drawn of a source, the documents that came to the split, and those that it dropped."""

    docs: int = 0
    dropped: Mapping[str, int] = MappingProxyType({})  # by reason


class DrawnRun:
    """A run in miniature, source by source."""

    def __init__(self, recipe: Recipe, miniature: Miniature, artifacts: Mapping[str, Artifact]) -> None:
        self.recipe, self.miniature, self.artifacts = recipe, miniature, artifacts
        self.share = float(miniature.share)
        self.splits = artifacts["tokens"].manifest.facts["splits"] if "tokens" in artifacts else []
        self.sources = {name: self._source(name) for name in miniature.sources}

    def _source(self, name: str) -> DrawnSource:
        ingest = self.artifacts[f"ingest/{name}"]
        counts = ingest.manifest.counts
        read: Json = {}
        for receipt in ingest.manifest.receipts():
            read = add_counts(read, receipt.facts.get("read", {}))
        found = [np.zeros(0, np.int64)]
        for entry in ingest.manifest.entries("documents"):
            offsets = string_column(load_table(ingest.path(entry), ["text"]).column("text")).offsets
            found.append(np.diff(offsets))
        sizes = np.concatenate(found)
        scale = 1 / float(self.miniature.sources[name].read)
        all_docs, all_bytes, spread = read.get("docs", 0) * scale, read.get("bytes", 0) * scale, 0.0
        (source,) = (source for source in self.recipe.sources if source.name == name)
        sample = source.sample
        if sample is not None and sample.method in FIXED_SAMPLES:
            bounds = [sample.k, source.limit and source.limit.docs]
            all_docs = min(all_docs, *(bound for bound in bounds if bound is not None))
            room = ingest.manifest.facts.get("room")
            fitting = (len(sizes) + 1) / self.share  # of what is drawn, a document more does not fit
            if room is not None and not any(room.values()) and fitting < all_docs:
                all_docs, spread = fitting, 1.0
                if len(sizes):
                    spread = sizes.std() / max(sizes.mean(), 1) / math.sqrt(len(sizes))
            all_bytes = counts["text_bytes"] * all_docs / max(counts["kept"], 1)
        elif sample is not None and sample.fraction is not None and all_docs:
            # in what is not read it takes more of some files than of others
            spread = math.sqrt((scale - 1) * float(1 - sample.fraction) / all_docs)
        return DrawnSource(
            docs=counts["kept"],
            bytes=counts["text_bytes"],
            all_docs=all_docs,
            all_bytes=all_bytes,
            spread=spread,
            sizes=sizes,
            tokens={split: self._tokens(name, split) for split in self.splits},
        )

    def _tokens(self, name: str, split: str) -> Any:
        """Of each document of the source that was drawn, in order."""
        counts = {
            number: entry.rows for number, (source, entry) in enumerate(self._shards()) if source == name
        }
        found = {number: np.zeros(rows, np.int64) for number, rows in counts.items()}
        for shard in shards_of_split(self.artifacts, split):
            if shard.source == name:
                table = load_table(Path(shard.lengths.path), ["row", "tokens"])
                found[shard.number][np.asarray(table.column("row"))] = np.asarray(table.column("tokens"))
        return np.concatenate([np.zeros(0, np.int64), *found.values()])

    def _shards(self) -> Iterator[tuple[str, Any]]:
        for name, artifact in self.artifacts.items():
            if name.startswith("ingest/"):
                for entry in artifact.manifest.entries("documents"):
                    yield name.removeprefix("ingest/"), entry

    def left_out(self, name: str) -> dict[str, float]:
        """By reason: records of the source that become no document; all that are read are looked at."""
        counts = self.artifacts[f"ingest/{name}"].manifest.counts
        read = float(self.miniature.sources[name].read)
        return {
            reason: count / read
            for verdict in ("dropped", "quarantined")
            for reason, count in counts[verdict].items()
            if reason != NOT_SAMPLED
        }

    def came_to_split(self) -> dict[str, Came]:
        found: dict[str, Came] = {}
        names = [name for name, _ in self._shards()]
        for receipt in self.artifacts["split"].manifest.receipts():
            name, counts = names[int(receipt.key)], receipt.counts
            docs, dropped = found.get(name, Came())
            found[name] = Came(docs + counts["in"], add_counts(dict(dropped), counts["dropped"]))
        return found

    def copies(self) -> dict[str, dict[str, tuple[float, float]]]:
        """By source and reason: documents that go for another one, of all there are; and their deviation."""
        found: dict[str, dict[str, tuple[float, float]]] = {}
        dedup = self.artifacts.get("dedup")
        if dedup is None:
            return found
        seen: dict[tuple[str, int], int] = {}
        pairs: dict[tuple[str, str], list[int]] = {}
        for entry in dedup.manifest.entries("ledger"):
            wanted = ["verdict", "source", "reason", "match_shard", "match_row"]
            table = load_table(dedup.path(entry), wanted)
            for row in table.filter(pc.equal(table.column("verdict"), "drop")).to_pylist():
                survivor = row["match_shard"], row["match_row"]
                own = pairs.setdefault((row["source"], row["reason"]), [0, 0, 0, 0])
                if survivor[0] is None:
                    own[3] += 1
                    continue
                earlier = seen[survivor] = seen.get(survivor, 0) + 1
                own[0] += 1
                own[1] += earlier
                own[2] += earlier * (earlier - 1) // 2
        for (source, reason), (copies, twos, threes, alone) in pairs.items():
            by_docs = self.sources[source].by_docs if source in self.sources else 1 / self.share
            of_others = copies * _copies_in_all(self.share, twos, threes)
            error = math.hypot(of_others / math.sqrt(max(copies, 1)), by_docs * math.sqrt(alone))
            found.setdefault(source, {})[reason] = of_others + alone * by_docs, error * (self.share < 1)
        return found


def _copies_in_all(share: float, pairs: int, triples: int) -> float:
    """How many times as many copies all documents have as the share has.

    Sizes of clusters are taken to be geometric: of a pair all of which both ends were drawn are seen, share²,
    of a triple share³. So triples to a pair tell the mean size less one, g; a cluster of which n were drawn
    has n - 1 copies, or none where n is 0.
    """
    if share >= 1 or not pairs:
        return 1.0
    g = triples / (share * pairs)
    if g < 1e-6:
        return share**-2
    q = g / (1 + g)
    seen = share / (1 - q) - 1 + (1 - q) * (1 - share) / (1 - q * (1 - share))
    return g / seen
