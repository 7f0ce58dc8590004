"""Ingest: records of a source become document shards, as received, once.

    chunk of a file ─ read ─ documents ─ cut at shards.megabytes of text ─> documents-<chunk>-<part>.parquet
                        └ records that cannot be used ────────────────────> ledger-<chunk>.parquet

Cleaning follows in the same pass: while the shard is still in memory its clean task is performed too, and the
clean step later finds the receipt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tokmill.artifact import Artifact
from tokmill.errors import InputChanged, InputError, TooManyBadRecords
from tokmill.manifest import FileEntry, Json, Receipt, sum_counts, write_receipt
from tokmill.schema import ledger_table, string_column
from tokmill.sources.readers import Chunk, cut_chunks, read_documents
from tokmill.sources.reading import Dropped, Reading
from tokmill.stages import clean
from tokmill.stages.step import Conduct, Made, Outcome, Step, write_shard_table
from tokmill.storage.digest import join_sequences, row_sequence
from tokmill.storage.location import InputFile
from tokmill.storage.parquet import load_table
from tokmill.storage.records import BadRecord, Span
from tokmill.task import Input, Task, table_input

# A file that cannot be cut (gzip, zstd) and is larger than this is not cleaned in the same pass: its shards
# come from one worker, and cleaning them apart puts the others to work. Compressed text is 3 to 5 times larger.
_FUSE_BELOW_BYTES = 16 << 20


def conduct(step: Step, upstream: Mapping[str, Artifact]) -> Conduct:
    files: list[InputFile] = step.extra["files"]
    follower: Json | None = step.extra["follower"]
    reading = msgspec.convert(step.config["reading"], Reading)
    chunks = cut_chunks(files, reading, step.config["shard_bytes"])
    tasks = [_task(step, number, chunk, follower) for number, chunk in enumerate(chunks)]
    receipts = yield tasks
    _check_unchanged(files)
    counts = sum_counts(receipts)
    _check_ceiling(step, counts, receipts)
    documents = [entry for receipt in receipts for entry in receipt.files if entry.table == "documents"]
    corpus = join_sequences((entry.sequence or "", entry.rows) for entry in documents)
    return Outcome(receipts, counts, {"corpus_digest": corpus})


def perform_ingest(task: Task) -> Made:
    reading = msgspec.convert(task.config["reading"], Reading)
    source_file = task.inputs[0]
    bad: list[BadRecord] = []
    dropped: list[Dropped] = []
    files: list[FileEntry] = []
    counts: Json = {"in": 0, "kept": 0, "dropped": {}, "quarantined": {}, "text_bytes": 0, "absent": {}}

    def documents() -> Iterator[Any]:
        span = Span(*task.config["span"])
        for batch in read_documents(Path(source_file.path), task.config["file"], span, reading):
            if batch.bad and task.config["on_bad_record"] == "fail":
                raise _refused(source_file.path, batch.bad[0])
            bad.extend(batch.bad)
            dropped.extend(batch.dropped)
            yield batch.documents

    for part, table in enumerate(_cut(documents(), task.config["shard_bytes"])):
        key = f"{task.key}-{part:03d}"
        entry = write_shard_table(task.directory, f"documents-{key}.parquet", "documents", table)
        entry = msgspec.structs.replace(entry, sequence=row_sequence(table))
        files.append(entry)
        counts["kept"] += table.num_rows
        counts["text_bytes"] += _text_bytes(table)
        for column in ("license_tag", "created_at"):
            counts["absent"][column] = counts["absent"].get(column, 0) + table.column(column).null_count
        for follower in task.followers:
            _clean_now(task, follower, key, entry, table)
    if bad or dropped:
        ledger = _ledger(bad, dropped, reading.source, task.config["file"])
        files.append(write_shard_table(task.directory, f"ledger-{task.key}.parquet", "ledger", ledger))
        counts["quarantined"] = dict(Counter(record.reason for record in bad))
        counts["dropped"] = dict(Counter(record.reason for record in dropped))
    counts["in"] = counts["kept"] + len(bad) + len(dropped)
    return Made(files, counts)


def _task(step: Step, number: int, chunk: Chunk, follower: Json | None) -> Task:
    fuse = follower is not None and (chunk.file.bytes <= _FUSE_BELOW_BYTES or chunk.span != Span())
    return Task(
        function="ingest",
        key=f"{number:05d}",
        config={
            "reading": step.config["reading"],
            "shard_bytes": step.config["shard_bytes"],
            "on_bad_record": step.config["on_bad_record"],
            "file": chunk.file.name,
            "span": list(chunk.span),
        },
        inputs=[Input("file", str(chunk.file.path), step.files[chunk.file.name])],
        directory=str(step.directory),
        followers=[follower] if fuse and follower is not None else [],
    )


def _cut(tables: Iterator[Any], shard_bytes: int) -> Iterator[Any]:
    """Tables of at least `shard_bytes` of text, cut at the row that reaches it; the last may be smaller."""
    gathered: list[Any] = []
    size = 0
    for table in tables:
        while table.num_rows:
            offsets = string_column(table.column("text")).offsets
            room = offsets[0] + (shard_bytes - size)
            rows = int(np.searchsorted(offsets[1:], room)) + 1  # the row that reaches the limit is the last
            head, table = table.slice(0, rows), table.slice(rows)
            gathered.append(head)
            size += int(offsets[min(rows, len(offsets) - 1)] - offsets[0])
            if size >= shard_bytes:
                yield _join(gathered)
                gathered, size = [], 0
    if gathered:
        yield _join(gathered)


def _join(tables: list[Any]) -> Any:
    return pa.concat_tables(tables).combine_chunks()


def _clean_now(task: Task, follower: Json, key: str, entry: FileEntry, table: Any) -> None:
    """The clean task of this shard, exactly as the clean step would make it, on the table in memory."""
    source = table_input("documents", Path(task.directory), entry)
    clean_task = clean.shard_task(follower["config"], follower["directory"], key, source)
    made = clean.clean_table(clean_task, table)
    write_receipt(Path(follower["directory"]), clean_task.receipt(*made))


def _text_bytes(table: Any) -> int:
    offsets = string_column(table.column("text")).offsets
    return int(offsets[-1] - offsets[0])


def _ledger(bad: list[BadRecord], dropped: list[Dropped], source: str, file: str) -> Any:
    common = {"source": source, "stage": "ingest", "file": file}
    quarantined = ledger_table(
        {
            **common,
            "verdict": "quarantine",
            "reason": [record.reason for record in bad],
            "offset": [record.offset for record in bad],
            "detail": [record.detail for record in bad],
        },
        len(bad),
    )
    left_out = ledger_table(
        {
            **common,
            "verdict": "drop",
            "doc_id": [record.id for record in dropped],
            "reason": [record.reason for record in dropped],
            "value": [record.value for record in dropped],
            "threshold": [record.threshold for record in dropped],
            "offset": [record.offset for record in dropped],
        },
        len(dropped),
    )
    return pa.concat_tables([quarantined, left_out]).combine_chunks()


def _refused(path: str, record: BadRecord) -> InputError:
    return InputError(
        f"record at offset {record.offset:,}: {record.reason} ({record.detail})",
        where=path,
        next="repair the record, or set `on_bad_record: quarantine` for this source",
    )


def _check_unchanged(files: list[InputFile]) -> None:
    for file in files:
        stat = file.path.stat() if file.path.exists() else None
        if stat is None or (stat.st_size, stat.st_mtime_ns) != (file.bytes, file.modified_ns):
            raise InputChanged(
                "the file changed while it was being read",
                where=str(file.path),
                next="run again when nothing writes to the input any more",
            )


def _check_ceiling(step: Step, counts: Json, receipts: list[Receipt]) -> None:
    quarantined = sum(counts["quarantined"].values())
    if quarantined * 10**9 > counts["in"] * int(step.extra["max_bad_fraction"] * 10**9):
        by_reason = ", ".join(
            f"{reason}: {count:,}" for reason, count in sorted(counts["quarantined"].items())
        )
        raise TooManyBadRecords(
            f"{quarantined:,} of {counts['in']:,} records cannot be used ({by_reason}); "
            f"the ceiling is {step.extra['max_bad_fraction']:%}\n{_examples(step, receipts)}",
            where=f"source {step.config['reading']['source']}",
            next="repair the input, or raise `max_bad_fraction` of this source if losing them is right",
        )
    if not counts["in"]:
        raise InputError(
            "the files hold no record at all",
            where=f"source {step.config['reading']['source']}",
            next="check that they are the files you meant",
        )


def _examples(step: Step, receipts: list[Receipt]) -> str:
    ledgers = [entry for receipt in receipts for entry in receipt.files if entry.table == "ledger"]
    rows = load_table(step.directory / ledgers[0].path).slice(0, 3).to_pylist() if ledgers else []
    return "\n".join(
        f"  {row['file']} at {row['offset']:,}: {row['reason']} ({row['detail']})" for row in rows
    )
