"""Which documents are in a stage of a mixture, and how often each was had by its end.

had-train.parquet     had: how often, of every document that can be trained on; shards in the order of their
                      numbers, in each the documents as they lie

stage 1 ─> had ─ stage 2 ─> had ─ stage 3 …      each counts on from the one before it
 level of a document    had, or NEVER where it is too short, too long, or scores too little for the stage
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import FileEntry
from tokmill.artifacts.step import Input, Task, table_input
from tokmill.schema import one_piece
from tokmill.stages.build.scored import column_inputs, values_of
from tokmill.stages.external.appended import open_table, read_tables
from tokmill.storage.tables import load_table

NEVER = 255  # the level of a document that has no turn, however many passes there are

HAD = "had"  # the table, and the role of the one before
LEFT_OUT_BY_STAGE, HAD_BEFORE = "left_out_by_stage", "had_before"
_HAD = pa.schema([pa.field("had", pa.uint8(), nullable=False)])

Levels = dict[int, NDArray[np.uint8]]  # by the number of a shard


class WhereOptions(msgspec.Struct, frozen=True):
    column: str
    min: float | None
    max: float | None


class StageOptions(msgspec.Struct, frozen=True):
    """`stages` of a mixture: one of them."""

    name: str
    after: str | None  # the stage before it
    min_tokens: int | None
    max_tokens: int | None
    where: tuple[WhereOptions, ...]


def stage_inputs(
    upstream: Mapping[str, Artifact], split: str, numbers: Sequence[int], stage: StageOptions
) -> list[Input]:
    """The scores that the stage asks for, and what was had before it."""
    inputs = []
    for column in dict.fromkeys(bound.column for bound in stage.where):
        inputs += column_inputs(upstream, numbers, column, role=_role(column))
    if stage.after is not None:
        before = upstream[f"stage/{stage.after}"]
        (entry,) = (one for one in before.manifest.entries(HAD) if one.path == _path(split))
        inputs.append(table_input(HAD, before.directory, entry))
    return inputs


def load_had(path: Path | None, sizes: Mapping[int, int]) -> Levels:
    """Of shards with so many documents each; without a table none was had."""
    if path is None:
        return {number: np.zeros(rows, np.uint8) for number, rows in sizes.items()}
    column = np.concatenate(
        [
            np.empty(0, np.uint8),
            *(np.asarray(one_piece(t.column(HAD))) for t in read_tables(path, _HAD.names)),
        ]
    )
    ends = np.cumsum(list(sizes.values()))
    assert len(column) == (ends[-1] if len(ends) else 0), f"{path} is of other documents"
    return dict(zip(sizes, np.split(column, ends[:-1]), strict=True))


def write_had(task: Task[Any], had: Levels) -> FileEntry:
    with open_table(task, _path(task.key), HAD, _HAD, by=HAD) as table:
        for column in had.values():
            table.append(pa.table([pa.array(column)], schema=_HAD))
    return table.entry


def levels_of(had: Levels, stage: StageOptions, lengths: Sequence[Path], scores: Scores) -> Levels:
    """`lengths` in the order of the shards."""
    found: Levels = {}
    for (number, own), path in zip(had.items(), lengths, strict=True):
        is_in = is_in_stage(stage, path, [columns[len(found)] for columns in scores])
        found[number] = np.where(is_in, own, np.uint8(NEVER))
    return found


Scores = Sequence[Sequence[Path]]  # of each bound, the tables of the shards


def score_tables(inputs: Sequence[Input], stage: StageOptions) -> Scores:
    by_role: dict[str, list[Path]] = {}
    for item in inputs:
        by_role.setdefault(item.role, []).append(Path(item.path))
    return [by_role[_role(bound.column)] for bound in stage.where]


def is_in_stage(stage: StageOptions, lengths: Path, scores: Sequence[Path]) -> NDArray[np.bool_]:
    """Of each document of a token file; `scores` has a table for each bound."""
    table = load_table(lengths, ["row", "tokens"])
    tokens = np.asarray(table.column("tokens"))
    is_in = np.ones(len(tokens), np.bool_)
    for number, low, high in _bounds(stage, tokens, np.asarray(table.column("row")), scores):
        if low is not None:
            is_in &= number >= low
        if high is not None:
            is_in &= number <= high
    return is_in


def _bounds(
    stage: StageOptions, tokens: Any, rows: Any, scores: Sequence[Path]
) -> Iterator[tuple[Any, float | None, float | None]]:
    yield tokens, stage.min_tokens, stage.max_tokens
    for bound, path in zip(stage.where, scores, strict=True):
        yield values_of(path, bound.column)[rows], bound.min, bound.max


def _role(column: str) -> str:
    return f"where {column}"


def _path(split: str) -> str:
    return f"had-{split}.parquet"
