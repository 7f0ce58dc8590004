"""What the tokens step counted, document by document: from small columns, a shard at a time.

lengths-<shard>  (tokens, text_bytes, language, license)  ─> sums by split, domain and source
the rows of a build, turn by turn ────────────────────────> the first half of the training documents, and the last
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.artifact import Artifact
from tokmill.audit.built import BuiltSplit, load_scheduled
from tokmill.manifest import Json
from tokmill.stages.step import tally
from tokmill.stages.tokenized import SplitShard, shards_of_split
from tokmill.storage.parquet import load_table

TRAIN = "train"


class Part(NamedTuple):
    """Documents of one source in one split."""

    split: str
    domain: str
    source: str
    docs: int
    tokens: int
    text_bytes: int
    languages: Json  # name -> {docs, tokens}
    licenses: Json


class Lengths(NamedTuple):
    parts: list[Part]

    def tokens_by(self, key: str, split: str | None = None) -> dict[str, int]:
        """Of each domain, source or split, in the order of the recipe."""
        return self._sums(key, "tokens", split)

    def docs_by(self, key: str, split: str | None = None) -> dict[str, int]:
        return self._sums(key, "docs", split)

    def _sums(self, key: str, amount: str, split: str | None) -> dict[str, int]:
        sums: dict[str, int] = {}
        for part in self.parts:
            if split in (None, part.split):
                name = getattr(part, key)
                sums[name] = sums.get(name, 0) + getattr(part, amount)
        return sums


def tally_lengths(artifacts: Mapping[str, Artifact]) -> Lengths:
    parts: dict[tuple[str, str, str], Part] = {}
    for split in artifacts["tokens"].manifest.facts["splits"]:
        for shard in shards_of_split(artifacts, split):
            table = load_table(Path(shard.lengths.path))
            lengths, sizes = (np.asarray(table.column(name)) for name in ("tokens", "text_bytes"))
            key = split, shard.domain, shard.source
            before = parts.get(key, Part(*key, 0, 0, 0, {}, {}))
            named = [
                _added(sums, tally(table.column(name).combine_chunks(), tokens=lengths))
                for name, sums in (("language", before.languages), ("license", before.licenses))
            ]
            parts[key] = Part(
                *key,
                before.docs + len(lengths),
                before.tokens + int(lengths.sum()),
                before.text_bytes + int(sizes.sum()),
                *named,
            )
    return Lengths(list(parts.values()))


def _added(sums: Json, more: Json) -> Json:
    whole = {name: dict(total) for name, total in sums.items()}
    for name, total in more.items():
        mine = whole.setdefault(name, {"docs": 0, "tokens": 0})
        for amount in ("docs", "tokens"):
            mine[amount] += total[amount]
    return dict(sorted(whole.items()))


# --- first and last half ---


class Longest(NamedTuple):
    """The longest of the documents that are built."""

    tokens: int
    doc_id: str
    source: str
    of_tokens: int  # built in all, repeats counted again


class Half(NamedTuple):
    """Sums over the documents of one half, in turn, from which means, shares and their errors follow."""

    docs: int
    tokens: int
    squares: float  # of tokens
    text_bytes: int
    by_source: dict[str, tuple[int, float]]  # tokens, and their squares
    bytes_squares: float
    cross: float  # tokens * bytes

    @property
    def mean_length(self) -> tuple[float, float]:
        """Tokens a document, and the variance of that mean."""
        mean = self.tokens / self.docs
        return mean, max(self.squares / self.docs - mean * mean, 0.0) / self.docs

    @property
    def bytes_per_token(self) -> tuple[float, float]:
        rate = self.text_bytes / self.tokens
        spread = self.bytes_squares - 2 * rate * self.cross + rate * rate * self.squares
        return rate, max(spread, 0.0) / self.tokens**2

    def share(self, source: str) -> tuple[float, float]:
        """Of the source in the tokens."""
        tokens, squares = self.by_source[source]
        part = tokens / self.tokens
        spread = squares * (1 - 2 * part) + part * part * self.squares
        return part, max(spread, 0.0) / self.tokens**2


class Turns(NamedTuple):
    """The training documents in the order in which they are built: 28 bytes a turn."""

    shards: list[SplitShard]
    lengths: NDArray[np.int64]
    sizes: NDArray[np.int64]
    shard: NDArray[np.int32]  # place in `shards`
    sequence: NDArray[np.int64]

    def longest(self) -> Longest:
        at = int(np.argmax(self.lengths))
        shard = self.shards[int(self.shard[at])]
        names = load_table(Path(shard.lengths.path), ["doc_id"]).column("doc_id")
        doc_id = str(names[int(self.sequence[at])].as_py())
        return Longest(int(self.lengths[at]), doc_id, shard.source, int(self.lengths.sum()))

    def halves(self) -> tuple[Half, Half]:
        """Parted where half of the tokens are."""
        ends = np.cumsum(self.lengths)
        middle = int(np.searchsorted(ends, ends[-1] // 2, side="left")) + 1
        middle = min(max(middle, 1), len(self.lengths) - 1)
        names = list(dict.fromkeys(shard.source for shard in self.shards))
        numbers = np.array([names.index(shard.source) for shard in self.shards], np.int32)
        sources = numbers[self.shard]
        first, last = (
            _half(self.lengths[part], self.sizes[part], sources[part], names)
            for part in (slice(middle), slice(middle, None))
        )
        return first, last


def load_turns(artifacts: Mapping[str, Artifact], built: BuiltSplit | None = None) -> Turns:
    """As the build has them, in the order of its turns: what no row holds is not there, and of a document that was cut
    the part that is. Without a build, whole documents in the order of the mixture, or of the corpus."""
    built = built or load_scheduled(artifacts, TRAIN)
    shards = built.turns.shards
    lengths, sizes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    places, sequences = [np.empty(0, np.int32)], [np.empty(0, np.int64)]
    for place, shard in enumerate(shards):
        table = load_table(Path(shard.lengths.path), ["tokens", "text_bytes"])
        lengths.append(np.asarray(table.column("tokens")))
        sizes.append(np.asarray(table.column("text_bytes")))
        places.append(np.full(table.num_rows, place, np.int32))
        sequences.append(np.arange(table.num_rows))
    columns: list[Any] = [np.concatenate(column) for column in (lengths, sizes, places, sequences)]
    whole, text_bytes, *where = columns
    is_in = built.written > 0
    turn, written = built.position[is_in], built.written[is_in]
    own = np.maximum(text_bytes[turn] * written // np.maximum(whole[turn], 1), 0)
    return Turns(shards, written, own, *(column[turn] for column in where))


def _half(lengths: Any, sizes: Any, sources: Any, names: list[str]) -> Half:
    def squared(a: Any, b: Any) -> float:
        return float(
            (a.astype(np.float64) * b).sum()
        )  # whole numbers would overflow at ten million documents

    return Half(
        len(lengths),
        int(lengths.sum()),
        squared(lengths, lengths),
        int(sizes.sum()),
        dict(_by_source(lengths, sources, names)),
        squared(sizes, sizes),
        squared(lengths, sizes),
    )


def _by_source(lengths: Any, sources: Any, names: list[str]) -> Iterator[tuple[str, tuple[int, float]]]:
    for number, name in enumerate(names):
        mine = lengths[sources == number]
        yield name, (int(mine.sum()), float((mine.astype(np.float64) * mine).sum()))
