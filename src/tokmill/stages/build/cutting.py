"""The build of a split as one task, or as many: which tokens it is made of decides, never the workers.

    small    build <split> ─ plan, gather, write ─> all files
    large    build.plan ─> plan-<split>-*.bin                         once, on lengths alone
               ├─ build.files ─> files of the format, stretch by stretch where it has several
               ├─ build.index ─> index-<split>-*.part                 frames of a stretch of rows
               ├─ build.places ─> places.npy
               └─────── build.join ─> index.jsonl.zst, and what describes the files

Every file is written whole, under its final name, by one task; a task that was killed writes its own again.
What the manifest tells is the receipt of the one task: how a split was cut shows nowhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import asdict, replace

from tokmill.artifacts.manifest import FileEntry, Json, Receipt, file_entry
from tokmill.artifacts.step import Made, Step, Task, tables_of, usable_receipts
from tokmill.formats import index as row_index
from tokmill.formats.ids import FilePart
from tokmill.formats.index import INDEX
from tokmill.stages.build.beside import index_entry, join_index, write_index, write_places_of
from tokmill.stages.build.blocks import Blocks
from tokmill.stages.build.counts import Counting
from tokmill.stages.build.documents import open_chunks
from tokmill.stages.build.options import BuildOptions, SplitBuildOptions
from tokmill.stages.build.planned import (
    PLAN,
    BlockFacts,
    PlannedBlocks,
    PlannedOptions,
    facts_of,
    write_plan,
)
from tokmill.stages.build.tokens import SplitTokens
from tokmill.stages.build.writing import cut_format, describe_parts, write_format, write_parts

# A task of fewer tokens takes less than a third of a second, and what it costs to cut it a tenth: two more
# rounds of tasks, and files that are synced. A document costs as much as some 64 tokens: its name in the
# index.
_ONE_TASK_WEIGHT = 32_000_000
_DOCUMENT_TOKENS = 64

INDEX_PART = "index part"

# A stretch of the index is whole frames; this many tokens take a tenth of a second.
_STRETCH_TOKENS = 32_000_000


class Whole(NamedTuple):
    """The build of a split as one task, and how much it is, in tokens."""

    task: Task[SplitBuildOptions]
    weight: int


def weight_of(tokens: int, documents: int) -> int:
    return tokens + _DOCUMENT_TOKENS * documents


def perform_splits(
    step: Step[BuildOptions], wholes: Sequence[Whole]
) -> Generator[list[Task], list[Receipt], list[Receipt]]:
    """The receipts of these tasks, each done as one or as many."""
    heavy = [whole.task for whole in wholes if whole.weight > _ONE_TASK_WEIGHT]
    # what an earlier run wrote in many tasks, its manifest tells as one
    done = usable_receipts(step.directory, [task.fingerprint for task in heavy])
    large = [task for task in heavy if task.fingerprint not in done]
    small = [whole.task for whole in wholes if whole.task not in heavy]
    receipts = yield [*small, *(_plan_task(task) for task in large)]
    done |= {receipt.fingerprint: receipt for receipt in receipts[: len(small)]}
    if large:
        plans = receipts[len(small) :]
        cut = [_cut_tasks(step, task, plan) for task, plan in zip(large, plans, strict=True)]
        written = iter((yield [task for tasks in cut for task in tasks]))
        parts = [list(itertools.islice(written, len(tasks))) for tasks in cut]
        made = list(zip(large, plans, parts, strict=True))
        joins = yield [_join_task(step, *own) for own in made]
        for (task, plan, own), last in zip(made, joins, strict=True):
            done[task.fingerprint] = task.receipt(_in_order([*own, last]), plan.counts, None)
    return [done[whole.task.fingerprint] for whole in wholes]


def _plan_task(whole: Task[SplitBuildOptions]) -> Task:
    return replace(whole, function="build.plan", key=f"{whole.key}.plan")


def _cut_tasks(step: Step[BuildOptions], whole: Task[SplitBuildOptions], plan: Receipt) -> list[Task]:
    """What is written by the plan, each by itself."""
    rows, facts = plan.counts["rows"], plan.facts
    asked = _planned(whole, plan)
    inputs = [*whole.inputs, *tables_of(step, [plan], PLAN)]

    def task(function: str, key: str, **own: Any) -> Task:
        name = f"{whole.key}.{key}"
        return replace(whole, function=function, key=name, options=replace(asked, **own), inputs=inputs)

    tasks = [
        task("build.files", f"files-{number:05d}", first_row=first, stop_row=stop, first_file=file)
        for number, (first, stop, file) in enumerate(_file_stretches(rows, facts["files"]))
    ]
    tasks += [
        task("build.index", f"index-{number:05d}", first_row=first, stop_row=stop)
        for number, (first, stop) in enumerate(_frame_stretches(rows, plan.counts))
    ]
    if asked.pack.length:
        tasks.append(task("build.places", "places", stop_row=rows))
    return tasks


def _planned(whole: Task[SplitBuildOptions], plan: Receipt) -> PlannedOptions:
    blocks = msgspec.convert(plan.facts["blocks"], tuple[BlockFacts, ...])
    return PlannedOptions(
        **asdict(whole.options),
        counts=plan.counts,
        blocks=blocks,
        is_in_parts=plan.facts["files"] is not None,
    )


def _file_stretches(rows: int, files: list[tuple[int, int]] | None) -> Iterator[tuple[int, int, int]]:
    """First row, the row after the last, and number of the first file, of whole files."""
    if not files:
        yield 0, rows, 0
        return
    first = row = tokens = first_file = 0
    for number, (own_rows, own_tokens) in enumerate(files):
        row, tokens = row + own_rows, tokens + own_tokens
        if tokens >= _STRETCH_TOKENS or number == len(files) - 1:
            yield first, row, first_file
            first, tokens, first_file = row, 0, number + 1


def _frame_stretches(rows: int, counts: Json) -> Iterator[tuple[int, int]]:
    """Of the index: whole frames, of about as many tokens."""
    weight = weight_of(counts["tokens"]["written"], counts["kept"])
    stretches = max(weight // _STRETCH_TOKENS, 1)
    frames = -(-rows // row_index.FRAME_ROWS)
    step = max(-(-frames // stretches), 1) * row_index.FRAME_ROWS
    yield from ((first, min(first + step, rows)) for first in range(0, max(rows, 1), step))


def _join_task(
    step: Step[BuildOptions], whole: Task[SplitBuildOptions], plan: Receipt, written: Sequence[Receipt]
) -> Task:
    parts = [one for receipt in written for one in receipt.facts.get("parts", ())]
    options = replace(
        _planned(whole, plan),
        stop_row=plan.counts["rows"],
        parts=msgspec.convert(parts, tuple[FilePart, ...]),
    )
    inputs = [*whole.inputs, *tables_of(step, [plan], PLAN), *tables_of(step, written, INDEX_PART)]
    return replace(whole, function="build.join", key=f"{whole.key}.join", options=options, inputs=inputs)


def _in_order(receipts: Sequence[Receipt]) -> list[FileEntry]:
    """As one task lists them: the files of the format, those that describe them, the index, the places."""
    files = [entry for receipt in receipts for entry in receipt.files if entry.table != INDEX_PART]
    order = {"shard": 0, "loss": 1, "index": 3, "places": 4}
    return sorted(files, key=lambda entry: order.get(entry.table, 2))


# --- what a task does ---


def perform_build(task: Task[SplitBuildOptions]) -> Made:
    """All of a split."""
    options = task.options
    blocks = Blocks(options, open_chunks(task))
    counting = Counting(options, blocks.domain_names)
    meetings = sum(counting.add(block) for block in blocks)
    counting.check()
    directory = Path(task.directory) / options.split
    tokens = SplitTokens(options, blocks, counting.counts)
    files = write_format(directory, tokens)
    files.append(index_entry(INDEX, write_index(directory / INDEX, tokens), tokens.rows))
    if tokens.seq_len:
        files.append(write_places_of(directory, blocks, meetings))
    return Made(_below(options.split, files), counting.counts)


def perform_plan(task: Task[SplitBuildOptions]) -> Made:
    """How its rows are laid out: nothing that a trainer reads, and all that the tasks after it ask for."""
    blocks = Blocks(task.options, open_chunks(task))
    counting = Counting(task.options, blocks.domain_names)
    files, facts = [], []
    for number, block in enumerate(blocks):
        meetings = counting.add(block)
        files.append(write_plan(task, number, block, meetings))
        facts.append(msgspec.to_builtins(facts_of(block, meetings)))
    counting.check()
    cut = cut_format(SplitTokens(task.options, blocks, counting.counts))
    return Made(files, counting.counts, {"blocks": facts, "files": cut})


def perform_files(task: Task[PlannedOptions]) -> Made:
    """Of some rows, or of all, the files that a trainer reads."""
    options, directory = task.options, Path(task.directory) / task.options.split
    tokens = _tokens(task)
    if not options.is_in_parts:
        return Made(_below(options.split, write_format(directory, tokens)), {})
    written = write_parts(directory, tokens, options.first_file)
    files = _below(options.split, [part.entry for part in written])
    return Made(files, {}, {"parts": msgspec.to_builtins(written)})


def perform_index(task: Task[PlannedOptions]) -> Made:
    tokens, name = _tokens(task), f"{task.key}.part"
    written = write_index(Path(task.directory) / name, tokens)
    return Made([file_entry(name, INDEX_PART, written.file, rows=tokens.rows)], {})


def perform_places(task: Task[PlannedOptions]) -> Made:
    blocks, split = PlannedBlocks(task), task.options.split
    meetings = sum(block.meetings for block in task.options.blocks)
    return Made(_below(split, [write_places_of(Path(task.directory) / split, blocks, meetings)]), {})


def perform_join(task: Task[PlannedOptions]) -> Made:
    """What speaks of all: the index of rows, and the description of files that were written apart."""
    options, directory = task.options, Path(task.directory) / task.options.split
    files = []
    if options.is_in_parts:
        files = describe_parts(directory, _tokens(task), options.parts)
    files.append(join_index(directory, task.paths(INDEX_PART), options.counts["rows"]))
    return Made(_below(options.split, files), {})


def _tokens(task: Task[PlannedOptions]) -> SplitTokens:
    options = task.options
    return SplitTokens(options, PlannedBlocks(task), options.counts, options.first_row, options.stop_row)


def _below(split: str, entries: Sequence[FileEntry]) -> list[FileEntry]:
    """Paths that are relative to the build."""
    return [replace(entry, path=f"{split}/{entry.path}") for entry in entries]
