"""How often each document was had by a state of the loader: the table that the rest of a run is made with.

    builds, state ─ audit/seen ─> times of each row ─ places ─> passes of each document ─┐
    seen.parquet of a run that was itself the rest of another ───────────────────────────┴─> seen.parquet

Two documents of a source with one id count as one, that was had as often as the one that was had more. A
history that another one was made of is in it already, and is not added again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifacts.history import (
    HISTORY_FILE,
    BuildRead,
    Continues,
    added,
    load_continues,
    load_history,
    meaning_of,
    outer_histories,
)
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.runs import load_finished
from tokmill.audit.exposure import count_passes
from tokmill.audit.places import Turns
from tokmill.audit.seen import ReadUntil, places_file, turns_of
from tokmill.audit.trace import BuildSplit
from tokmill.errors import InputError, TokenizerMismatch
from tokmill.schema import SEEN
from tokmill.storage.digests import id_hashes, table_sha256
from tokmill.storage.tables import load_table

_MOST = np.iinfo(np.uint16).max


def history_of(reads: Sequence[ReadUntil], state: Mapping[str, Any]) -> tuple[Any, Continues]:
    """The table, and what it is of: all that these loaders have read. `state` is what tells it."""
    opened = [split for read in reads for split in read.opened]
    times = [counted for read in reads for counted in read.times]
    own = [_seen_in(turns_of(split), split, counted) for split, counted in zip(opened, times, strict=True)]
    earlier = _earlier_histories(opened)
    table = added([*own, *(load_history(run / HISTORY_FILE, one.history) for run, one in earlier.items())])
    before = dict.fromkeys(one for found in earlier.values() for one in found.counted)
    return table, Continues(
        history=table_sha256(table),
        builds=tuple(map(_build_read, opened)),
        state=dict(state),
        tokenizer=_tokenizer_of(opened),
        tokens=int(np.asarray(table.column("tokens")).sum()),
        passes=int(np.asarray(table.column("passes")).sum()),
        before=tuple(before) or msgspec.UNSET,
        train=_training_of(opened) or msgspec.UNSET,
    )


def _earlier_histories(opened: Sequence[BuildSplit]) -> dict[Path, Continues]:
    """Of runs that were rests themselves: those that are in no other, whose parts nobody counts twice."""
    runs = sorted({split.run.directory for split in opened if split.run is not None})
    known = {found.history: run for run in runs if (found := load_continues(run)) is not None}
    histories = outer_histories(found for run in runs if (found := load_continues(run)) is not None)
    outer = {known[found.history]: found for found in histories}
    for (first, one), (second, other) in itertools.combinations(outer.items(), 2):
        shared = {build.identity for build in one.counted}
        for build in other.counted:
            if build.identity in shared:
                raise InputError(
                    f"its history and that of {first} both count what was seen of {build.build}, and neither "
                    "was made of the other",
                    where=str(second),
                    next="go on from one of them",
                )
    return outer


def _training_of(opened: Sequence[BuildSplit]) -> Json | None:
    """How the tokenizer was trained, where a run or the one that it continues says it."""
    for run in dict.fromkeys(split.run.directory for split in opened if split.run is not None):
        before = load_continues(run)
        told: Json | None = before.train or None if before is not None else None
        told = told or (load_finished(run).config.get("tokenizer") or {}).get("train")
        if told is not None:
            return told
    return None


def _seen_in(turns: Turns, split: BuildSplit, times: NDArray[np.uint16]) -> Any:
    passes = count_passes(turns, places_file(split), times)
    parts, first = [SEEN.empty_table()], 0
    for shard in turns.shards:
        stop = first + shard.lengths.rows
        at = np.flatnonzero(passes.tokens[first:stop])
        if len(at):
            ids = load_table(Path(shard.lengths.path), ["doc_id"]).column("doc_id")
            columns = [
                pa.array([shard.source] * len(at), pa.string()),
                id_hashes(ids)[at],
                np.minimum(passes.whole[first:stop][at], _MOST).astype(np.uint16),
                passes.is_partly[first:stop][at],
                passes.tokens[first:stop][at],
            ]
            parts.append(pa.table(columns, schema=SEEN))
        first = stop
    whole = pa.concat_tables(parts)
    most = whole.group_by(["source", "id"]).aggregate(
        [("passes", "max"), ("partly", "max"), ("tokens", "sum")]
    )
    return pa.table([most.column(at) for at in range(len(SEEN))], schema=SEEN)


def _build_read(split: BuildSplit) -> BuildRead:
    assert split.run is not None, "it was asked for its turns"
    before, manifest = load_continues(split.run.directory), split.build.manifest
    return BuildRead(
        build=split.name,
        split=split.split,
        experiment_id=manifest.experiment_id,
        identity=manifest.identity,
        history=before.history if before is not None else None,
    )


def _tokenizer_of(opened: list[BuildSplit]) -> dict[str, Any]:
    meanings = list(_meanings(opened))
    for split, meaning in zip(opened, meanings, strict=True):
        if meaning != meanings[0]:
            raise TokenizerMismatch(
                f"has another tokenizer than {opened[0].build.directory}",
                where=str(split.build.directory),
                next="give the builds that one model was trained on",
            )
    return meanings[0]


def _meanings(opened: list[BuildSplit]) -> Iterator[dict[str, Any]]:
    for split in opened:
        yield meaning_of(split.build.manifest.facts["tokenizer"])
