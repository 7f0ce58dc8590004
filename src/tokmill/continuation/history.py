"""How often each document was had by a state of the loader: the table that the rest of a run is made with.

    builds, state ─ audit/seen ─> times of each row ─ places ─> passes of each document ─┐
    seen.parquet of a run that was itself the rest of another ───────────────────────────┴─> seen.parquet

Two documents of a source with one id count as one, that was had as often as the one that was had more.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifacts.history import (
    HISTORY_FILE,
    BuildRead,
    Continues,
    added,
    load_continues,
    meaning_of,
)
from tokmill.audit.exposure import count_passes
from tokmill.audit.places import Turns
from tokmill.audit.seen import ReadUntil, places_file, turns_of
from tokmill.audit.trace import BuildSplit
from tokmill.errors import TokenizerMismatch
from tokmill.schema import SEEN
from tokmill.storage.tables import id_hashes, load_table, table_sha256

_MOST = np.iinfo(np.uint16).max


def history_of(read: ReadUntil) -> tuple[Any, Continues]:
    """The table, and what it is of."""
    own = [
        _seen_in(turns_of(split), split, times) for split, times in zip(read.opened, read.times, strict=True)
    ]
    runs = {split.run.directory for split in read.opened if split.run is not None}
    earlier = {found.history: run for run in sorted(runs) if (found := load_continues(run)) is not None}
    before = [load_table(run / HISTORY_FILE) for run in earlier.values()]
    table = added([*own, *before])
    return table, Continues(
        history=table_sha256(table),
        builds=tuple(map(_build_read, read.opened)),
        state=read.loader.state_dict(),
        tokenizer=_tokenizer_of(read.opened),
        tokens=int(np.asarray(table.column("tokens")).sum()),
        passes=int(np.asarray(table.column("passes")).sum()),
    )


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
