"""Tokens: the kept texts of a shard, encoded once, EOS after each document.

    texts ─ encode ─ append EOS ─> <split>/<domain>/tokens-<shard>.{bin,idx}   ids, one sequence per document
                                   <split>/<domain>/lengths-<shard>.parquet    row, doc_id, tokens

Ids take the smallest dtype that holds the vocabulary; builds widen them where asked.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tokmill.artifact import Artifact
from tokmill.formats.megatron import write_megatron
from tokmill.manifest import FileEntry, Json, add_counts, file_entry, sum_counts
from tokmill.schema import LENGTHS, one_piece, string_column
from tokmill.stages.split import TRAIN, VALID
from tokmill.stages.step import Conduct, Made, Outcome, Step, tally, write_shard_table
from tokmill.stages.texts import labelled_shards, load_texts
from tokmill.task import Input, Task
from tokmill.tokenizers.load import load_tokenizer
from tokmill.tokenizers.protocol import Encoded, Tokenizer

# Texts are handed to the tokenizer a few megabytes at a time: Python strings and lists of ids exist only so long.
_BATCH_BYTES = 4 << 20


def conduct(step: Step, upstream: Mapping[str, Artifact]) -> Conduct:
    tokenizer = upstream["tokenizer"]
    facts = tokenizer.manifest.facts
    (file,) = tokenizer.manifest.files
    pinned = Input("tokenizer", str(tokenizer.path(file)), file.content_sha256)
    tasks = [
        Task(
            function="tokens",
            key=f"{shard.number:05d}",
            config={
                "source": shard.source,
                "domain": shard.domain,
                "eos_id": facts["eos_id"],
                "encoding": facts["encoding"],
                "dtype": "uint16" if facts["vocab_size"] <= 1 << 16 else "int32",
            },
            inputs=[pinned, *inputs],
            directory=str(step.directory),
        )
        for shard, inputs in labelled_shards(dict(upstream))
    ]
    receipts = yield tasks
    return Outcome(receipts, sum_counts(receipts), {"tokenizer": facts, "splits": [TRAIN, VALID]})


def perform_tokens(task: Task) -> Made:
    pinned = task.inputs[0]
    tokenizer = _cached_tokenizer(pinned.path, pinned.content_sha256, task.config["encoding"])
    files: list[FileEntry] = []
    counts: Json = {
        "in": 0,
        "kept": 0,
        "dropped": {},
        "quarantined": {},
        "tokens": {},
        "licenses": {task.config["source"]: {}},
        "languages": {},
    }
    for split in (TRAIN, VALID):
        table = load_texts(task.inputs, valid=split == VALID)
        counts["in"] += table.num_rows
        if table.num_rows:
            written, lengths = _write(task, split, table, tokenizer)
            files += written
            chars = np.asarray(table.column("chars"))
            sums = {
                name: tally(one_piece(table.column(name)), chars=chars, tokens=lengths)
                for name in ("license", "language")
            }
            totals = counts["licenses"][task.config["source"]]
            counts["licenses"][task.config["source"]] = add_counts(totals, sums["license"])
            counts["languages"] = add_counts(counts["languages"], sums["language"])
            counts["kept"] += table.num_rows
            counts["tokens"][split] = files[-3].bytes // np.dtype(task.config["dtype"]).itemsize
    return Made(files, counts)


def _write(task: Task, split: str, table: Any, tokenizer: Tokenizer) -> tuple[list[FileEntry], Any]:
    encoded = [_with_eos(batch, task.config["eos_id"]) for batch in _encode(table.column("text"), tokenizer)]
    lengths = np.concatenate([batch.lengths for batch in encoded])
    name = f"tokens-{task.key}"
    stem = f"{split}/{task.config['domain']}/{name}"
    written = write_megatron(
        Path(task.directory) / stem, (batch.ids for batch in encoded), lengths, dtype=task.config["dtype"]
    )
    documents = pa.table(
        [
            table.column("row").cast(pa.uint32()),
            table.column("doc_id"),
            lengths,
            table.column("language"),
            table.column("license"),
        ],
        schema=LENGTHS,
    )
    files = [
        file_entry(f"{stem}.bin", "tokens", written[f"{name}.bin"], rows=table.num_rows),
        file_entry(f"{stem}.idx", "sequences", written[f"{name}.idx"], rows=table.num_rows),
        write_shard_table(
            task.directory, f"{stem.replace('/tokens-', '/lengths-')}.parquet", "lengths", documents
        ),
    ]
    return files, lengths


def _encode(texts: Any, tokenizer: Tokenizer) -> Iterator[Encoded]:
    offsets = string_column(texts).offsets
    start = 0
    while start < len(texts):
        end = max(int(np.searchsorted(offsets, offsets[start] + _BATCH_BYTES, side="right")) - 1, start + 1)
        yield tokenizer.encode(texts.slice(start, end - start).to_pylist())
        start = end


def _with_eos(batch: Encoded, eos_id: int) -> Encoded:
    lengths = batch.lengths + 1
    ids = np.empty(len(batch.ids) + len(lengths), np.int32)
    ends = np.cumsum(lengths) - 1
    is_text = np.ones(len(ids), np.bool_)
    is_text[ends] = False
    ids[is_text], ids[ends] = batch.ids, eos_id
    return Encoded(ids, lengths)


@functools.lru_cache(maxsize=1)
def _cached_tokenizer(path: str, sha256: str, encoding: str | None) -> Tokenizer:
    """One load per worker process."""
    return load_tokenizer(Path(path), sha256=sha256, encoding=encoding)
