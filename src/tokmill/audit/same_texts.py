"""Documents of one source that two runs both have, and whether their texts are the same to the byte.

    shards whose documents have one content ─ row for row ─ what edits made of them, here and there ─> same?
                                              nothing is read where the edits have one content too
    all other shards ─ ids that both have ─ hash of the text ─> 1. id and text equal    2. id equal
                                                                3. no document of that id on the other side

A text is as the run left it: with the edits of cleaning, without the lines and passages that deduplication
took out. The hash that deduplication compares by is none of a text: case and spacing are not in it.

Where a run has not cleaned the source its texts are not known: then documents are compared by id alone.
Texts of one shard are held at a time. Two runs of 40,000 documents of 2 kB take 0.5 s if all texts have to be
read, and 0.06 s if the runs were made of the same files.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.artifacts.step import Input
from tokmill.audit.places import RunPlaces
from tokmill.kernels.hashing import mix_column
from tokmill.schema import string_column
from tokmill.stages.dedup.method import load_texts
from tokmill.storage.tables import load_table

Numbers = NDArray[np.int64]


class Side(NamedTuple):
    """The documents of one source of one run, shard after shard."""

    ids: NDArray[np.uint64]  # hashes
    outcomes: NDArray[np.int32]
    shards: NDArray[np.int32]
    rows: NDArray[np.int32]


class Matches(NamedTuple):
    """Numbers of documents in the source: pairs that are one, and those that found none."""

    at_a: Numbers
    at_b: Numbers
    is_same_text: NDArray[np.bool_]
    alone_a: Numbers
    alone_b: Numbers


def has_texts(run: RunPlaces, source: str) -> bool:
    """Is it known what became of the texts of the source?"""
    return f"clean/{source}" in run.artifacts


def match_documents(runs: Sequence[RunPlaces], sides: Sequence[Side], source: str) -> Matches:
    is_known = all(has_texts(run, source) for run in runs)
    pairs = np.array(_shards_of_one_content(runs, source), np.int32).reshape(-1, 2)
    starts = [np.searchsorted(side.shards, own) for side, own in zip(sides, pairs.T, strict=True)]
    at: list[list[Numbers]] = [[], []]
    is_same = []
    for both, firsts in zip(pairs.tolist(), np.stack(starts, axis=1).tolist(), strict=True):
        rows = runs[0].shards[both[0]].documents.rows
        for own, first in zip(at, firsts, strict=True):
            own.append(first + np.arange(rows))
        inputs = [run.text_inputs(run.shards[number]) for run, number in zip(runs, both, strict=True)]
        is_same.append(_is_same_text(inputs, rows) if is_known else np.ones(rows, np.bool_))
    left = [np.flatnonzero(~np.isin(side.shards, own)) for side, own in zip(sides, pairs.T, strict=True)]
    ids = [side.ids[own] for side, own in zip(sides, left, strict=True)]
    keys = [own[:, None] for own in ids]
    if is_known:
        hashes = [
            _text_hashes(run, side, own, np.isin(mine, others))
            for run, side, own, mine, others in zip(runs, sides, left, ids, ids[::-1], strict=True)
        ]
        keys = [np.column_stack(columns) for columns in zip(ids, hashes, strict=True)]
    first_a, first_b, rest_a, rest_b = match_equal_rows(*keys)
    then_a, then_b, alone_a, alone_b = match_equal_rows(ids[0][rest_a][:, None], ids[1][rest_b][:, None])
    at[0] += [left[0][first_a], left[0][rest_a[then_a]]]
    at[1] += [left[1][first_b], left[1][rest_b[then_b]]]
    is_same += [np.ones(len(first_a), np.bool_), np.zeros(len(then_a), np.bool_)]
    at_a, at_b = (np.concatenate(own) for own in at)
    return Matches(
        at_a,
        at_b,
        np.concatenate(is_same),
        left[0][rest_a[alone_a]],
        left[1][rest_b[alone_b]],
    )


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


def _shards_of_one_content(runs: Sequence[RunPlaces], source: str) -> list[tuple[int, int]]:
    """By their places among the shards of each run, in order."""
    waiting: dict[str, list[int]] = {}
    for number, shard in enumerate(runs[1].shards):
        if shard.source == source:
            waiting.setdefault(shard.documents.content_sha256, []).append(number)
    found = []
    for number, shard in enumerate(runs[0].shards):
        if shard.source == source and waiting.get(shard.documents.content_sha256):
            found.append((number, waiting[shard.documents.content_sha256].pop(0)))
    return found


# --- texts ---


def _is_same_text(inputs: Sequence[list[Input]], rows: int) -> NDArray[np.bool_]:
    """Of documents that were received as the same: what was made of each, here and there."""
    is_same = np.ones(rows, np.bool_)
    layers = [[item for item in own if item.role != "documents"] for own in inputs]
    before, after = ([(item.role, item.content_sha256) for item in own] for own in layers)
    if before == after:
        return is_same
    edited = [
        np.asarray(load_table(Path(item.path), ["row"]).column("row")) for own in layers for item in own
    ]
    chosen = np.unique(np.concatenate(edited)).astype(np.int64)
    if len(chosen):
        is_same[chosen] = np.asarray(pc.equal(*(load_texts(own, chosen) for own in inputs)))
    return is_same


def _text_hashes(
    run: RunPlaces, side: Side, chosen: Numbers, is_wanted: NDArray[np.bool_]
) -> NDArray[np.uint64]:
    """Of the bytes of the chosen documents; zeros where they are not wanted."""
    found = np.zeros((len(chosen), 2), np.uint64)
    wanted = np.flatnonzero(is_wanted)
    if not len(wanted):
        return found
    shards, firsts = np.unique(side.shards[chosen[wanted]], return_index=True)
    for number, at in zip(shards.tolist(), np.split(wanted, firsts[1:]), strict=True):
        texts = load_texts(run.text_inputs(run.shards[number]), side.rows[chosen[at]].astype(np.int64))
        own = np.zeros((len(at), 2), np.uint64)
        mix_column(*string_column(texts), own)
        found[at] = own
    return found
