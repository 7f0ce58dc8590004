"""The build of a split as one task, or as many: how much it holds decides, never the workers.

    small    build <split> ─ plan, gather, write ─> all files
    large    build.plan ─> plan-<split>-*.bin                      once, on lengths alone
               ├─ build.files ─> all files of the format, where they are one array: nothing waits for it
               ├─ build.files ─> files of the format, stretch by stretch, where it has several
               ├─ build.places ─> places.npy
               └─ build.index ─> <split>.index-*.part              frames of a stretch of rows
                   └─ build.join ─> index.jsonl.zst, and what describes those files

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

from tokmill.artifacts.directory import usable_receipts
from tokmill.artifacts.manifest import FileEntry, Json, Receipt
from tokmill.artifacts.step import Made, Step, Task, Unawaited, tables_of
from tokmill.formats import index as row_index
from tokmill.formats.description import FilePart
from tokmill.stages.build.beside import INDEX_PART, join_index, write_index, write_index_part, write_places_of
from tokmill.stages.build.blocks import Blocks
from tokmill.stages.build.counts import Counting
from tokmill.stages.build.documents import open_chunks
from tokmill.stages.build.options import BuildOptions, SplitBuildOptions
from tokmill.stages.build.planned import PLAN, BlockFacts, PlannedBlocks, PlannedOptions, facts_of, write_plan
from tokmill.stages.build.tokens import SplitTokens
from tokmill.stages.build.writing import cut_format, describe_parts, write_format, write_parts

# A task of fewer tokens takes less than a third of a second, and what it costs to cut it a tenth: two more
# rounds of tasks, and files that are synced. A document costs as much as some 64 tokens: its name in the
# index.
_ONE_TASK_WEIGHT = 32_000_000
_DOCUMENT_TOKENS = 64

# A stretch of the index is whole frames; this many tokens take 15 ms, and 0.13 s as int32 in shards.
_STRETCH_TOKENS = 8_000_000

_LAST = {"index": 3, "places": 4}


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
        planned = [_Planned(step, *own) for own in zip(large, receipts[len(small) :], strict=True)]
        # an array takes as long as the disk, and no index waits for it
        arrays = [one.array() for one in planned if not one.is_in_parts]
        written = yield from _side_by_side([one.written() for one in planned], arrays)
        joined = yield [one.joined(own) for one, own in zip(planned, written, strict=True)]
        alone = iter(joined[: len(arrays)])
        for one, own, last in zip(planned, written, joined[len(arrays) :], strict=True):
            first = own if one.is_in_parts else [next(alone), *own]
            done[one.whole.fingerprint] = one.receipt([*first, last])
    return [done[whole.task.fingerprint] for whole in wholes]


def _side_by_side(
    asked: Sequence[list[Task]], unawaited: Sequence[Task]
) -> Generator[list[Task], list[Receipt], list[list[Receipt]]]:
    """The receipts of several lists of tasks that are done together."""
    receipts = iter((yield Unawaited(unawaited, [task for tasks in asked for task in tasks])))
    return [list(itertools.islice(receipts, len(tasks))) for tasks in asked]


def _plan_task(whole: Task[SplitBuildOptions]) -> Task:
    return replace(whole, function="build.plan", key=f"{whole.key}.plan")


class _Planned:
    """A split whose rows are laid out: the tasks that write it."""

    def __init__(self, step: Step[BuildOptions], whole: Task[SplitBuildOptions], plan: Receipt) -> None:
        self.whole, self._step, self._plan = whole, step, plan
        self._rows, self._files = plan.counts["rows"], plan.facts["files"]
        self._options = PlannedOptions(
            **asdict(whole.options),
            counts=plan.counts,
            blocks=msgspec.convert(plan.facts["blocks"], tuple[BlockFacts, ...]),
            is_in_parts=self._files is not None,
        )

    @property
    def is_in_parts(self) -> bool:
        return self._files is not None

    def array(self) -> Task:
        """All files, where they are not in parts."""
        return self._task("build.files", "files", stop_row=self._rows)

    def written(self) -> list[Task]:
        """What is joined later, and the places; the longest first."""
        found = [
            self._task("build.files", f"files-{number:05d}", first_row=first, stop_row=stop, first_file=file)
            for number, (first, stop, file) in enumerate(
                _file_stretches(self._files) if self.is_in_parts else ()
            )
        ]
        if self._options.pack.length:
            found.append(self._task("build.places", "places", stop_row=self._rows))
        return found + [
            self._task("build.index", f"index-{number:05d}", first_row=first, stop_row=stop)
            for number, (first, stop) in enumerate(_frame_stretches(self._rows, self._plan.counts))
        ]

    def joined(self, written: Sequence[Receipt]) -> Task:
        parts = [one for receipt in written for one in receipt.facts.get("parts", ())]
        files = msgspec.convert(parts, tuple[FilePart, ...])
        task = self._task("build.join", "join", stop_row=self._rows, parts=files)
        return replace(task, inputs=[*task.inputs, *tables_of(self._step, written, INDEX_PART)])

    def receipt(self, receipts: Sequence[Receipt]) -> Receipt:
        """As one task lists its files: those of the format, what describes them, the index, the places."""
        files = [entry for receipt in receipts for entry in receipt.files if entry.table != INDEX_PART]
        order = {"shard": 0, "loss": 1, "index": 3, "places": 4} if self._files is not None else _LAST
        files.sort(key=lambda entry: order.get(entry.table, 2))
        return self.whole.receipt(files, self._plan.counts, None)

    def _task(self, function: str, key: str, **own: Any) -> Task:
        return replace(
            self.whole,
            function=function,
            key=f"{self.whole.key}.{key}",
            options=replace(self._options, **own),
            inputs=[*self.whole.inputs, *tables_of(self._step, [self._plan], PLAN)],
        )


def _file_stretches(files: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, int]]:
    """First row, the row after the last, and number of the first file, of whole files; of no file, one."""
    first = row = tokens = first_file = 0
    for number, (own_rows, own_tokens) in enumerate(files or [(0, 0)]):
        row, tokens = row + own_rows, tokens + own_tokens
        if tokens >= _STRETCH_TOKENS or number >= len(files) - 1:
            yield first, row, first_file
            first, tokens, first_file = row, 0, number + 1


def _frame_stretches(rows: int, counts: Json) -> Iterator[tuple[int, int]]:
    """Of the index: whole frames, of about as many tokens."""
    weight = weight_of(counts["tokens"]["written"], counts["kept"])
    stretches = max(weight // _STRETCH_TOKENS, 1)
    frames = -(-rows // row_index.FRAME_ROWS)
    step = max(-(-frames // stretches), 1) * row_index.FRAME_ROWS
    yield from ((first, min(first + step, rows)) for first in range(0, max(rows, 1), step))


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
    files.append(write_index(directory, tokens))
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
    return Made([write_index_part(Path(task.directory), f"{task.key}.part", _tokens(task))], {})


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
