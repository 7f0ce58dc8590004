"""Ingest of a Stack Exchange dump: posts by the thread they belong to, then every thread as a document.

    file ─ rows ─ HTML as text ─> posts-<file>-<partition>-<part>.parquet     question id modulo partitions
    posts of one partition, all files ─ join ─ cut ─> documents-<partition>-<part>.parquet
                                          └ posts of no thread ─> ledger-<partition>.parquet

An answer may stand anywhere before or after its question, and neither a file nor a site need fit in memory:
the first phase holds a few megabytes per partition, the second one partition. The posts are scaffolding, gone
when the step is finished; the manifest speaks of the second phase alone.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from tokmill.artifacts.manifest import FileEntry, Receipt
from tokmill.artifacts.step import Input, Made, Task, TaskOptions, table_input
from tokmill.artifacts.upstream import write_shard_table
from tokmill.sources.posts import BAD, partitions_of, read_posts
from tokmill.sources.reading import Batch, Reading, to_documents
from tokmill.sources.stackexchange import Options, join_threads, open_posts
from tokmill.stages.ingest.options import IngestStep, ReadOptions, reading_task
from tokmill.stages.ingest.shards import refused
from tokmill.storage.location import InputFile
from tokmill.storage.records import BadRecord
from tokmill.storage.tables import load_table

# Posts that wait to be written: 1 MB for each file of 128 partitions, 32 MB for those of a small site.
_BUFFER_BYTES, _BUFFER_BYTES_PER_PARTITION = 32 << 20, 1 << 20


class PostOptions(TaskOptions, frozen=True):
    partitions: int
    max_expansion: int
    max_record_bytes: int
    on_bad_record: Literal["quarantine", "fail"]


def gather_posts(
    step: IngestStep, files: list[InputFile]
) -> Generator[list[Task], list[Receipt], list[Task[ReadOptions]]]:
    """The first phase; what it returns are the tasks of the second, one per partition."""
    options = thread_options(step.options.reading)
    # what decides which threads are kept is not part of it: the posts are the same
    asked = PostOptions(
        partitions=options.partitions,
        max_expansion=options.max_expansion,
        max_record_bytes=step.options.reading.max_record_bytes,
        on_bad_record=step.options.on_bad_record,
    )
    gathered = yield [
        Task(
            function="posts",
            key=f"posts-{number:05d}",
            options=asked,
            inputs=[Input("file", str(file.path), step.files[file.name])],
            directory=str(step.directory),
        )
        for number, file in enumerate(files)
    ]
    return [_threads_task(step, partition, files, gathered) for partition in range(options.partitions)]


def perform_posts(task: Task[PostOptions]) -> Made:
    options = task.options
    limit = max(_BUFFER_BYTES, options.partitions * _BUFFER_BYTES_PER_PARTITION)
    waiting: list[Any] = []
    files: list[FileEntry] = []
    held = part = 0
    source = Path(task.inputs[0].path)
    with open_posts(source, Path(task.directory), options.max_expansion) as xml:
        for posts in read_posts(xml, options.max_record_bytes, str(source)):
            if options.on_bad_record == "fail":
                _refuse_bad(posts, source)
            waiting.append(posts)
            held += posts.nbytes
            if held > limit:
                files += _write_posts(task, waiting, part)
                held, part = 0, part + 1
    files += _write_posts(task, waiting, part)
    return Made(files, {})


def _write_posts(task: Task[PostOptions], waiting: list[Any], part: int) -> list[FileEntry]:
    """What waits, one file per partition that has a post. The list is emptied:
    two copies are enough to hold."""
    if not waiting:
        return []
    posts = pa.concat_tables(waiting).combine_chunks()
    waiting.clear()
    partition = partitions_of(posts, task.options.partitions)
    order = np.argsort(partition, kind="stable")
    if task.options.partitions > 1:
        posts = posts.take(pa.array(order))
    numbers, starts = np.unique(partition[order], return_index=True)
    ends = [*starts[1:].tolist(), posts.num_rows]
    return [
        write_shard_table(
            task.directory,
            f"{task.key}-{number:03d}-{part:05d}.parquet",
            "posts",
            posts.slice(start, end - start),
        )
        for number, start, end in zip(numbers.tolist(), starts.tolist(), ends, strict=True)
    ]


def _refuse_bad(posts: Any, source: Path) -> None:
    bad = np.flatnonzero(np.asarray(posts.column("kind")) == BAD)
    if len(bad):
        (record,) = posts.select(["offset", "reason", "detail"]).slice(int(bad[0]), 1).to_pylist()
        raise refused(str(source), BadRecord(**record))


def _threads_task(
    step: IngestStep, partition: int, files: list[InputFile], gathered: list[Receipt]
) -> Task[ReadOptions]:
    """`gathered`: the receipts of the files' posts tasks, in their order."""
    mine = [
        (number, entry)
        for number, receipt in enumerate(gathered)
        for entry in receipt.files
        if entry.path.startswith(f"{receipt.key}-{partition:03d}-")
    ]
    return reading_task(
        step,
        partition,
        [table_input("posts", step.directory, entry) for _, entry in mine],
        file="",
        files=tuple(file.name for file in files),
        owners=tuple(number for number, _ in mine),
    )


def read_threads(task: Task[ReadOptions]) -> Iterator[Batch]:
    """Documents of a partition in order of their questions, with the posts that are in no thread."""
    reading = task.options.reading
    options = thread_options(reading)
    tables = [load_table(path) for path in task.paths("posts")]
    files = [options.dump_file(name) for name in task.options.files or ()]
    for taken in join_threads(tables, list(task.options.owners or ()), files, options):
        yield Batch(to_documents(taken.records, reading), taken.bad, taken.dropped)


def thread_options(reading: Reading) -> Options:
    return msgspec.convert(reading.options, Options)
