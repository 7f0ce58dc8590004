"""Which documents two runs have, and why the one has what the other has not: source by source, on hashes alone.

    per document    hash of the id · hash of the cleaned text · fate (kept in a split, or the step and reason)
    matched         1. id and text equal    2. id equal, text another    3. no document of that id on the other side

Ids need not be unique: equal documents are matched one to one, in order. 30 bytes per document of one source are held
at a time, twice: once for each run.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.audit.opened import ShardTables, load_of
from tokmill.audit.places import RunPlaces
from tokmill.forgotten_rows import Forgotten
from tokmill.formats.places import map_ids
from tokmill.kernels.sha256 import sha256_prefixes
from tokmill.manifest import Json
from tokmill.schema import NO_SPLIT, string_column
from tokmill.storage.parquet import load_table

KEPT = "kept"
FORGOTTEN, GONE, NEW, NO_SOURCE = "forgotten", "not in the source", "new in the source", "no such source"

_EXAMPLES = 5  # of each reason

Numbers = NDArray[np.int64]


class Fates:
    """What can become of a document, by number; those that start with "kept" are in."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        if name not in self._numbers:
            self._numbers[name] = len(self.names)
            self.names.append(name)
        return self._numbers[name]

    def is_kept(self, numbers: NDArray[np.int32]) -> NDArray[np.bool_]:
        kept: NDArray[np.bool_] = np.array([name.startswith(KEPT) for name in self.names] or [False])[numbers]
        return kept


class Side(NamedTuple):
    """The documents of one source of one run."""

    ids: NDArray[np.uint64]
    texts: NDArray[np.uint64]  # (documents, 2)
    fates: NDArray[np.int32]
    shards: NDArray[np.int32]
    rows: NDArray[np.int32]


class DocumentDiff(NamedTuple):
    same: int  # in both, with the same text in the same split
    moved: Json  # "train → valid": how many
    changed: int  # in both, with another text
    came: Json  # by what they were before: how many
    went: Json  # by what they are now
    examples: tuple[Json, ...]

    @property
    def is_equal(self) -> bool:
        return not (self.moved or self.changed or self.came or self.went)

    def as_json(self) -> Json:
        return {**self._asdict(), "examples": list(self.examples)}


def diff_documents(a: RunPlaces, b: RunPlaces) -> DocumentDiff:
    fates, tally = Fates(), _Tally()
    sources = dict.fromkeys([*_sources(a), *_sources(b)])
    for source in sources:
        before, after = _side(a, source, fates), _side(b, source, fates)
        _compare(a, b, source, before, after, fates, tally)
    return DocumentDiff(
        tally.same,
        dict(sorted(tally.moved.items())),
        tally.changed,
        dict(sorted(tally.came.items())),
        dict(sorted(tally.went.items())),
        tuple(tally.examples),
    )


def _sources(run: RunPlaces) -> list[str]:
    return [name.removeprefix("ingest/") for name in run.of_kind("ingest")]


class _Tally:
    def __init__(self) -> None:
        self.same = self.changed = 0
        self.moved: Counter[str] = Counter()
        self.came: Counter[str] = Counter()
        self.went: Counter[str] = Counter()
        self.examples: list[Json] = []
        self._shown: Counter[tuple[str, str]] = Counter()

    def show(self, run: RunPlaces, source: str, what: str, why: str, side: Side, chosen: Numbers) -> None:
        """Some of `chosen`, by their ids."""
        room = _EXAMPLES - self._shown[what, why]
        for at in chosen[:room].tolist():
            shard = run.shards[int(side.shards[at])]
            path = run.artifacts[f"ingest/{source}"].path(shard.documents)
            doc_id = load_table(path, ["doc_id"]).column("doc_id")[int(side.rows[at])].as_py()
            self.examples.append({"what": what, "why": why, "source": source, "doc_id": doc_id})
            self._shown[what, why] += 1


def _compare(
    a: RunPlaces, b: RunPlaces, source: str, before: Side, after: Side, fates: Fates, tally: _Tally
) -> None:
    keys = [np.column_stack([side.ids, side.texts]) for side in (before, after)]
    at_a, at_b, rest_a, rest_b = match_equal_rows(*keys)
    _judge(a, b, source, before, after, fates, tally, at_a, at_b, is_same_text=True)
    ids = [before.ids[rest_a][:, None], after.ids[rest_b][:, None]]
    again_a, again_b, alone_a, alone_b = match_equal_rows(*ids)
    _judge(a, b, source, before, after, fates, tally, rest_a[again_a], rest_b[again_b], is_same_text=False)
    for run, other, side, alone, counts, what, absent in (
        (a, b, before, rest_a[alone_a], tally.went, "went", GONE),
        (b, a, after, rest_b[alone_b], tally.came, "came", NEW),
    ):
        alone = alone[fates.is_kept(side.fates[alone])]
        if source not in _sources(other):
            absent = NO_SOURCE
        is_forgotten = Forgotten.of_source(other.forgotten, source).holds(side.ids[alone])
        for why, chosen in ((FORGOTTEN, alone[is_forgotten]), (absent, alone[~is_forgotten])):
            if len(chosen):
                counts[why] += len(chosen)
                tally.show(run, source, what, why, side, chosen)


def _judge(
    a: RunPlaces,
    b: RunPlaces,
    source: str,
    before: Side,
    after: Side,
    fates: Fates,
    tally: _Tally,
    at_a: Numbers,
    at_b: Numbers,
    *,
    is_same_text: bool,
) -> None:
    """Documents that are on both sides: what each is here and there."""
    was, now = before.fates[at_a], after.fates[at_b]
    pairs, counts = np.unique(np.stack([was, now], axis=1), axis=0, return_counts=True)
    for (old, new), count in zip(pairs.tolist(), counts.tolist(), strict=True):
        chosen = np.flatnonzero((was == old) & (now == new))
        names = fates.names[old], fates.names[new]
        is_in = [name.startswith(KEPT) for name in names]
        if all(is_in):
            if not is_same_text:
                tally.changed += count
                tally.show(b, source, "changed", "another text", after, at_b[chosen])
            elif old == new:
                tally.same += count
            else:
                sides = " → ".join(name.removeprefix(f"{KEPT}, ") for name in names)
                tally.moved[sides] += count
                tally.show(b, source, "moved", sides, after, at_b[chosen])
        elif is_in[0]:
            tally.went[names[1]] += count
            tally.show(a, source, "went", names[1], before, at_a[chosen])
        elif is_in[1]:
            tally.came[names[0]] += count
            tally.show(b, source, "came", names[0], after, at_b[chosen])


def match_equal_rows(
    a: NDArray[np.uint64], b: NDArray[np.uint64]
) -> tuple[Numbers, Numbers, Numbers, Numbers]:
    """Rows of `a` and `b` that are equal, one to one and in order; then those of each that found none."""
    whole = np.concatenate([a, b])
    side = np.repeat(np.array([0, 1], np.int8), [len(a), len(b)])
    order = np.lexsort((side, *whole.T[::-1]))  # stable: equal rows of a side stay in order
    ordered, sides = whole[order], side[order]
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    group = np.cumsum(fresh) - 1
    groups = int(group[-1]) + 1 if len(group) else 0
    counts = [np.bincount(group[sides == number], minlength=groups) for number in (0, 1)]
    starts = np.flatnonzero(fresh)
    # within a group those of `a` come first
    rank = np.arange(len(order)) - starts[group] - np.where(sides == 1, counts[0][group], 0)
    found = rank < np.where(sides == 0, counts[1][group], counts[0][group])
    in_a, in_b = sides == 0, sides == 1
    return (
        order[found & in_a],
        order[found & in_b] - len(a),
        np.sort(order[~found & in_a]),
        np.sort(order[~found & in_b]) - len(a),
    )


# --- reading ---


def _side(run: RunPlaces, source: str, fates: Fates) -> Side:
    parts: list[Side] = []
    for at, shard in enumerate(run.shards):
        if shard.source == source:
            size = shard.documents.rows
            parts.append(
                Side(
                    _id_hashes(run, shard),
                    _text_hashes(run, shard),
                    _fates(run, shard, fates),
                    np.full(size, at, np.int32),
                    np.arange(size, dtype=np.int32),
                )
            )
    if not parts:
        none = np.empty(0, np.int32)
        return Side(np.empty(0, np.uint64), np.empty((0, 2), np.uint64), none, none, none)
    return Side(
        np.concatenate([part.ids for part in parts]),
        np.concatenate([part.texts for part in parts]),
        np.concatenate([part.fates for part in parts]),
        np.concatenate([part.shards for part in parts]),
        np.concatenate([part.rows for part in parts]),
    )


def _id_hashes(run: RunPlaces, shard: ShardTables) -> NDArray[np.uint64]:
    artifact = run.artifacts[f"ingest/{shard.source}"]
    for entry in artifact.manifest.entries("ids"):
        if entry.path == f"ids-{shard.key}.npy":
            hashes, rows = map_ids(artifact.path(entry), entry.rows)
            found = np.empty(entry.rows, np.uint64)
            found[rows] = hashes
            return found
    column = string_column(load_table(artifact.path(shard.documents), ["doc_id"]).column("doc_id"))
    return sha256_prefixes(column.data, column.offsets)


def _text_hashes(run: RunPlaces, shard: ShardTables) -> NDArray[np.uint64]:
    """As deduplication compares texts; none where the run was not cleaned."""
    marks = _table(run, f"clean/{shard.source}", f"marks-{shard.key}.parquet", ["exact_high", "exact_low"])
    if marks is None:
        return np.zeros((shard.documents.rows, 2), np.uint64)
    return np.stack([np.asarray(column) for column in marks.columns], axis=1)


def _fates(run: RunPlaces, shard: ShardTables, fates: Fates) -> NDArray[np.int32]:
    """By the last step that spoke: kept in a split, or why not."""
    found = np.full(shard.documents.rows, fates.number(KEPT), np.int32)
    ledger = _table(run, f"clean/{shard.source}", f"ledger-{shard.key}.parquet", ["row", "verdict", "reason"])
    if ledger is not None:
        _lay(found, ledger.filter(pc.not_equal(ledger.column("verdict"), "edit")), "clean", fates)
    for step in ("dedup", "split"):
        path = f"ledger-{shard.number:05d}.parquet"
        ledger = _table(run, step, path, ["row", "verdict", "reason"])
        if ledger is not None:
            _lay(found, ledger.filter(pc.not_equal(ledger.column("verdict"), "edit")), step, fates)
    labels = _table(run, "split", f"labels-{shard.number:05d}.parquet", ["split"])
    if labels is not None:
        numbers = np.asarray(labels.column("split"))
        for number, split in enumerate(run.artifacts["split"].manifest.facts["splits"]):
            found[numbers == number] = fates.number(f"{KEPT}, {split}")
        assert not ((numbers == NO_SPLIT) & fates.is_kept(found)).any(), "a document of no split has a reason"
    return found


def _lay(found: NDArray[np.int32], ledger: Any, step: str, fates: Fates) -> None:
    coded = ledger.column("reason").combine_chunks().dictionary_encode()
    numbers = [fates.number(f"{step}: {reason}") for reason in coded.dictionary.to_pylist()]
    if numbers:
        found[np.asarray(ledger.column("row"))] = np.array(numbers, np.int32)[np.asarray(coded.indices)]


def _table(run: RunPlaces, step: str, path: str, columns: list[str]) -> Any | None:
    artifact = run.artifacts.get(step)
    return load_of(artifact, path, columns) if artifact is not None else None
