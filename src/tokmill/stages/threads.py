"""Ingest of a Stack Exchange dump: posts by the thread they belong to, then every thread as a document.

    file ─ rows ─ HTML as text ─> posts-<file>-<partition>-<part>.parquet     question id modulo partitions
    posts of one partition, all files ─ join ─ cut ─> documents-<partition>-<part>.parquet
                                          └ posts of no thread ─> ledger-<partition>.parquet

An answer may stand anywhere before or after its question, and neither a file nor a site need fit in memory: the
first phase holds a few megabytes per partition, the second one partition. The posts are scaffolding, gone when
the step is finished; the manifest speaks of the second phase alone.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import msgspec

from tokmill.errors import InputError
from tokmill.manifest import FileEntry, Json, Receipt
from tokmill.sources.reading import Batch, Reading, to_documents
from tokmill.sources.sevenzip import open_posts
from tokmill.sources.stackexchange import read_posts
from tokmill.sources.threads import BAD, Options, Post, join_threads, partition_of, post_table
from tokmill.stages.step import Made, Step, write_shard_table
from tokmill.storage.location import InputFile
from tokmill.storage.parquet import load_table
from tokmill.task import Input, Task, table_input

# Posts that wait to be written: 1 MB and more for a file of 128 partitions, 32 MB for those of a small site.
_BUFFER_BYTES, _BUFFER_BYTES_PER_PARTITION = 32 << 20, 1 << 20
_ROW_BYTES = 256  # what a post weighs besides its text


def gather_posts(step: Step) -> Generator[list[Task], list[Receipt], list[Task]]:
    """The first phase; what it returns are the tasks of the second, one per partition."""
    files: list[InputFile] = step.extra["files"]
    gathered = yield [posts_task(step, number, file) for number, file in enumerate(files)]
    partitions = _options(step.config["reading"]).partitions
    return [threads_task(step, partition, files, gathered) for partition in range(partitions)]


def posts_task(step: Step, number: int, file: InputFile) -> Task:
    """What decides which threads are kept is not part of it: the posts are the same."""
    options = _options(step.config["reading"])
    return Task(
        function="posts",
        key=f"posts-{number:05d}",
        config={
            "partitions": options.partitions,
            "max_expansion": options.max_expansion,
            "max_record_bytes": step.config["reading"]["max_record_bytes"],
            "on_bad_record": step.config["on_bad_record"],
        },
        inputs=[Input("file", str(file.path), step.files[file.name])],
        directory=str(step.directory),
    )


def perform_posts(task: Task) -> Made:
    partitions = task.config["partitions"]
    limit = max(_BUFFER_BYTES, partitions * _BUFFER_BYTES_PER_PARTITION)
    waiting: list[list[Post]] = [[] for _ in range(partitions)]
    weights = [0] * partitions
    parts = [0] * partitions
    files: list[FileEntry] = []
    held = 0

    def flush(partition: int) -> None:
        nonlocal held
        path = f"{task.key}-{partition:03d}-{parts[partition]:05d}.parquet"
        files.append(write_shard_table(task.directory, path, "posts", post_table(waiting[partition])))
        parts[partition] += 1
        held -= weights[partition]
        waiting[partition], weights[partition] = [], 0

    source = Path(task.inputs[0].path)
    with open_posts(source, Path(task.directory), task.config["max_expansion"]) as xml:
        for post in read_posts(xml, task.config["max_record_bytes"], str(source)):
            if post.kind == BAD and task.config["on_bad_record"] == "fail":
                raise InputError(
                    f"record at offset {post.offset:,}: {post.reason} ({post.detail})",
                    where=str(source),
                    next="repair the record, or set `on_bad_record: quarantine` for this source",
                )
            partition = partition_of(post, partitions)
            waiting[partition].append(post)
            weight = len(post.text) + _ROW_BYTES
            weights[partition] += weight
            held += weight
            if held > limit:
                flush(max(range(partitions), key=weights.__getitem__))
    for partition in range(partitions):
        if waiting[partition]:
            flush(partition)
    return Made(files, {})


def threads_task(step: Step, partition: int, files: list[InputFile], gathered: list[Receipt]) -> Task:
    """`gathered`: the receipts of the files' posts tasks, in their order."""
    mine = [
        (number, entry)
        for number, receipt in enumerate(gathered)
        for entry in receipt.files
        if entry.path.startswith(f"{receipt.key}-{partition:03d}-")
    ]
    follower: Json | None = step.extra["follower"]
    sample: Json | None = step.config.get("sample")
    return Task(
        function="ingest",
        key=f"{partition:05d}",
        config={
            "reading": step.config["reading"],
            "shard_bytes": step.config["shard_bytes"],
            "on_bad_record": step.config["on_bad_record"],
            "file": "",
            "sample": sample if sample and sample["method"] == "hash" else None,
            "room": None,
            "files": [file.name for file in files],
            "owners": [number for number, _ in mine],
        },
        inputs=[table_input("posts", step.directory, entry) for _, entry in mine],
        directory=str(step.directory),
        followers=[follower] if follower is not None else [],
    )


def read_threads(task: Task) -> Iterator[Batch]:
    """Documents of a partition in order of their questions, with the posts that are in no thread."""
    reading = msgspec.convert(task.config["reading"], Reading)
    options = _options(task.config["reading"])
    names = task.config["files"]
    tables = [load_table(path) for path in task.paths("posts")]
    sites = [options.sites[name] for name in names]
    for threads in join_threads(tables, task.config["owners"], sites, options):
        bad = [record._replace(file=names[file]) for file, record in threads.bad]
        dropped = [record._replace(file=names[file]) for file, record in threads.dropped]
        yield Batch(to_documents(threads.records, reading), bad, dropped)


def _options(reading: Json) -> Options:
    return msgspec.convert(reading["options"], Options)
