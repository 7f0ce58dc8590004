"""Who of near duplicates would stay with a higher threshold: the members of every cluster, compared again.

clusters.parquet ─ whole clusters, some at a time ─ texts in keep order ─ find_near_duplicates ─> who stays

What is kept of a pair is not enough to tell: of each document that went only the survivor most like it is
known, which another threshold may not keep, and some similarities are estimates. Who is alike at the new
threshold was so at the old one, and is in one cluster with it, so that nobody else is read. A pair that no
band of the run brought together is not seen here either.

Below the threshold of the run nothing is known: pairs that are less alike were not written down.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec.structs import replace
from numpy.typing import NDArray

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.upstream import Shard, list_shards
from tokmill.audit.bounds import NEAR_THRESHOLD, Mover, Sides
from tokmill.audit.clusters import read_clusters
from tokmill.audit.opened import Found
from tokmill.audit.texts import Place, load_texts
from tokmill.duplicates.near import NearOptions, choose_bands, find_near_duplicates
from tokmill.errors import InputError
from tokmill.schema import CLUSTERS
from tokmill.stages.dedup.earlier import NEAR_REASON
from tokmill.stages.dedup.method import DedupOptions, keep_of, load_ranks, rank_inputs
from tokmill.stages.dedup.near import METHOD
from tokmill.storage.tables import load_table

_AT_ONCE = 20_000  # members: some 60 MB of text


def move_threshold(found: Found, threshold: float) -> Iterator[Sides]:
    """Of every shard of the run."""
    dedup, near = _deduplicated(found)
    if not 0 < threshold <= 1:
        raise InputError(
            f"{NEAR_THRESHOLD} is a similarity, and {threshold:g} is none",
            where="--set",
            next=f"ask for {near.threshold} to 1",
        )
    if threshold < float(near.threshold):
        raise InputError(
            f"{NEAR_THRESHOLD} was {near.threshold}: which documents are less alike than that is not known",
            where="--set",
            next=f"ask for {near.threshold} to 1; for less, run once with "
            f"`dedup: {{near: {{threshold: {threshold:g}, policy: report}}}}`, which drops nothing",
        )
    asked = replace(near, threshold=Decimal(str(threshold)))
    if _leaves_bands_open(found, near):
        bands, rows = choose_bands(threshold)
        asked = replace(asked, bands=bands, rows=rows)
    shards = list_shards(found.artifacts)
    movers: dict[str, list[tuple[int, Mover]]] = {shard.name: [] for shard in shards}
    for members in _read_whole(dedup):
        for place, mover in _compare(found.artifacts, shards, members, asked):
            movers[place.shard].append((place.row, mover))
    for shard in shards:
        verdicts = load_table(dedup.directory / f"verdicts-{shard.number:05d}.parquet", ["kept"])
        is_kept = np.asarray(verdicts.column("kept"))
        stays = is_kept.copy()
        for row, mover in movers[shard.name]:
            stays[row] = mover.becomes == "kept"
        chars = np.asarray(load_table(Path(shard.marks.path), ["chars"]).column("chars"))
        yield Sides(is_kept, stays, chars, [mover for _, mover in movers[shard.name]])


def _deduplicated(found: Found) -> tuple[Artifact, NearOptions]:
    dedup = found.artifacts.get("dedup")
    if dedup is None and "dedup" in (*found.missing, *found.set_aside):
        raise InputError(
            "this run is not deduplicated yet", where=str(found.directory), next="run the recipe: it resumes"
        )
    near = METHOD.asked_in(dedup.manifest) if dedup is not None else None
    if dedup is None or near is None:
        raise InputError(
            "this run did not look for near duplicates",
            where=str(found.directory),
            next="set `dedup: {near: {}}`",
        )
    gone = dedup.manifest.counts["dropped"].get(NEAR_REASON, 0)
    if gone:
        raise InputError(
            f"{gone:,} documents went because earlier corpora have similar ones; what becomes of others when "
            "they come back is not written down",
            where=str(found.directory),
            next="run the recipe with the other `near.threshold`, into another directory",
        )
    return dedup, near


def _leaves_bands_open(found: Found, near: NearOptions) -> bool:
    """A run that is not finished does not say what its recipe was: those that would have been chosen were."""
    if found.root is None:
        return (near.bands, near.rows) == choose_bands(float(near.threshold))
    return found.root.config["dedup"]["near"]["bands"] is None


def _read_whole(dedup: Artifact) -> Iterator[Any]:
    """Clusters, each whole; their table is in order of them."""
    held = CLUSTERS.empty_table()
    for batch in read_clusters(dedup, CLUSTERS.names):
        held = pa.concat_tables([held, pa.Table.from_batches([batch])])
        numbers = np.asarray(held.column("cluster"))
        whole = int(np.searchsorted(numbers, numbers[-1])) if len(numbers) else 0
        if whole >= _AT_ONCE:
            yield held.slice(0, whole)
            held = held.slice(whole)
    if held.num_rows:
        yield held


def _compare(
    artifacts: Mapping[str, Artifact], shards: list[Shard], members: Any, near: NearOptions
) -> Iterator[tuple[Place, Mover]]:
    """Who changes sides, with its place."""
    options = artifacts["dedup"].manifest.options(DedupOptions)
    numbers = {shard.name: shard.number for shard in shards}
    number = np.array([numbers[name] for name in members.column("shard").to_pylist()], np.int64)
    row = np.asarray(members.column("row")).astype(np.int64)
    order = np.lexsort((row, number, _ranks(artifacts, options, shards, number, row)))
    members, number = members.take(pa.array(order)), number[order]
    places = [Place(shards[at].name, r) for at, r in zip(number.tolist(), row[order].tolist(), strict=True)]
    texts = load_texts(artifacts, places, None)
    then = find_near_duplicates(
        pa.array([texts[place].text for place in places], pa.large_string()),
        near,
        groups=np.asarray(members.column("cluster")),
        is_safe=np.array([shards[at].source in options.reference for at in number.tolist()], np.bool_),
    )
    is_kept = np.asarray(members.column("kept"))
    stays, threshold = then.survivor < 0, float(near.threshold)
    for at in np.flatnonzero(is_kept != stays).tolist():
        place, text = places[at], texts[places[at]]
        becomes = "kept" if stays[at] else "dropped"
        value = members.column("similarity")[at].as_py() if stays[at] else float(then.similarity[at])
        own = (value, threshold, text.chars, abs(value - threshold) / threshold)
        yield place, Mover(shards[number[at]].source, text.doc_id, becomes, METHOD.reason, *own)


def _ranks(
    artifacts: Mapping[str, Artifact],
    options: DedupOptions,
    shards: list[Shard],
    number: NDArray[np.int64],
    row: NDArray[np.int64],
) -> NDArray[np.int64]:
    ranks = np.zeros(len(row), np.int64)
    for at in np.unique(number).tolist():
        inputs = [*shards[at].inputs(), *rank_inputs(options, shards[at], artifacts)]
        mine = number == at
        ranks[mine] = load_ranks(inputs, keep_of(options, shards[at], artifacts))[row[mine]]
    return ranks
