"""One token stream, many writers: a plan and a store of ids as the files of a format.

    memmap       input_ids.mmap  meta.json                 rows of equal length
    npy          shard_00000.npy …  meta.json              likewise
    parquet      shard_00000.parquet …  meta.json          rows, or documents
    megatron     tokens.bin  tokens.idx                    documents
    token_cache  ENCODE.meta.json  token_cache/…           documents

Each has index.jsonl.zst beside it: which document every column of every row, or every sequence, comes from. Rows have
places.npy too, the other way round; sequences are the documents themselves, in their order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.formats.megatron import write_megatron
from tokmill.formats.memmap import write_memmap
from tokmill.formats.npy import write_npy
from tokmill.formats.parquet import load_meta, write_parquet
from tokmill.formats.places import PLACES, write_places
from tokmill.formats.row_index import write_row_index
from tokmill.formats.sequences import Sequences
from tokmill.formats.token_cache import EncodeFacts, write_token_cache
from tokmill.manifest import FileEntry, Json, file_entry, fingerprint_of
from tokmill.pack.gather import Store, gather_rows, gather_sequences, row_batches
from tokmill.pack.plan import Plan
from tokmill.storage.commit import Written
from tokmill.storage.streams import plain_sha256
from tokmill.task import Task

META, INDEX = "meta.json", "index.jsonl.zst"


class Request(NamedTuple):
    """What is written: `tokens` are the counts that belong into a description."""

    task: Task
    plan: Plan
    store: Store
    doc_ids: Any
    sources: Any
    tokens: Json

    @property
    def split(self) -> str:
        return str(self.task.config["split"])

    @property
    def directory(self) -> Path:
        return Path(self.task.directory) / self.split


def write_build(request: Request) -> list[FileEntry]:
    written = _WRITERS[request.task.config["format"]](request)
    spans = (request.plan.spans(first, stop) for first, stop in row_batches(request.plan))
    index = write_row_index(request.directory / INDEX, spans, request.doc_ids, request.sources)
    entries = [_entry(request, name, found) for name, found in written.items()]
    content = plain_sha256(request.directory / INDEX)
    rows = request.plan.n_rows
    return [
        *entries,
        file_entry(f"{request.split}/{INDEX}", "index", index, rows=rows, content_sha256=content),
        *_places(request),
    ]


def _places(request: Request) -> list[FileEntry]:
    if not request.plan.seq_len:
        return []
    spans = (request.plan.spans(first, stop) for first, stop in row_batches(request.plan))
    written, meetings = write_places(request.directory / PLACES, spans)
    return [file_entry(f"{request.split}/{PLACES}", "places", written, rows=meetings)]


def _memmap(request: Request) -> dict[str, Written]:
    return write_memmap(
        request.directory,
        _rows(request),
        seq_len=request.plan.seq_len,
        dtype=request.task.config["dtype"],
        meta=_meta(request),
    )


def _npy(request: Request) -> dict[str, Written]:
    return write_npy(
        request.directory,
        _rows(request),
        n_seqs=request.plan.n_rows,
        seq_len=request.plan.seq_len,
        rows_per_shard=request.task.config["rows_per_shard"],
        meta=_meta(request),
    )


def _parquet(request: Request) -> dict[str, Written]:
    meta = {**_meta(request), "seq_len": request.plan.seq_len or None}
    batches = _sequences(request) if not request.plan.seq_len else _equal_sequences(request)
    return write_parquet(
        request.directory, batches, rows_per_shard=request.task.config["rows_per_shard"], meta=meta
    )


def _megatron(request: Request) -> dict[str, Written]:
    lengths = np.zeros(request.plan.n_rows, np.int64)
    for first, stop in row_batches(request.plan):
        spans = request.plan.spans(first, stop)
        lengths[spans.row] = spans.end - spans.start
    chunks = (batch.ids for batch in _sequences(request))
    return write_megatron(request.directory / "tokens", chunks, lengths, dtype=request.task.config["dtype"])


def _token_cache(request: Request) -> dict[str, Written]:
    facts = request.task.config["tokenizer"]
    encode_facts = EncodeFacts(
        model=facts["file"],
        model_sha256=facts["sha256"],
        vocab_size=facts["vocab_size"],
        experiment_id=request.task.config["experiment_id"],
        char_coverage=facts.get("character_coverage"),
        byte_fallback=facts.get("byte_fallback"),
        normalization=facts.get("normalization") or {},
        eos_id=facts["eos_id"],
    )
    return write_token_cache(request.directory, _sequences(request), encode_facts)


_WRITERS: dict[str, Callable[[Request], dict[str, Written]]] = {
    "memmap": _memmap,
    "npy": _npy,
    "parquet": _parquet,
    "megatron": _megatron,
    "token_cache": _token_cache,
}


def _rows(request: Request) -> Iterator[NDArray[np.integer]]:
    """Batches of rows in one array that is used again: a writer is done with one before it asks for the next."""
    plan, lent = request.plan, None
    for first, stop in row_batches(plan):
        rows = gather_rows(plan, request.store, first, stop, pad_id=_pad_id(request), into=lent)
        lent = rows if lent is None else lent
        yield rows


def _equal_sequences(request: Request) -> Iterator[Sequences]:
    for first, stop in row_batches(request.plan):
        rows = gather_rows(request.plan, request.store, first, stop, pad_id=_pad_id(request))
        yield Sequences(rows.reshape(-1), np.full(stop - first, request.plan.seq_len))


def _sequences(request: Request) -> Iterator[Sequences]:
    for first, stop in row_batches(request.plan):
        spans = request.plan.spans(first, stop)
        lengths = np.zeros(stop - first, np.int64)
        lengths[spans.row - first] = spans.end - spans.start
        names = request.doc_ids.slice(first, stop - first).to_pylist()
        yield Sequences(gather_sequences(request.plan, request.store, first, stop), lengths, names)


def _pad_id(request: Request) -> int:
    return int(request.task.config["tokenizer"]["eos_id"])


def _meta(request: Request) -> Json:
    facts = request.task.config["tokenizer"]
    return {
        "layout": request.plan.layout,
        "tokenizer_path": f"../../../tokenizer/{facts['file']}",
        "tokenizer_sha256": facts["sha256"],
        "eos_id": facts["eos_id"],
        "pad_id": _pad_id(request) if request.plan.padding else None,
        "vocab_size": facts["vocab_size"],
        "padded_vocab_size": facts.get("padded_vocab_size") or facts["vocab_size"],
        "split": request.split,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "counts": {"documents": request.plan.documents, **request.tokens},
    }


_TABLES = {
    "input_ids.mmap": "rows",
    "tokens.bin": "tokens",
    "tokens.idx": "sequences",
    META: "meta",
    "ENCODE.meta.json": "meta",
}


def _entry(request: Request, name: str, written: Written) -> FileEntry:
    """Whole files know how many rows they have; of shards and parts, their description does."""
    path, content, rows = request.directory / name, "", request.plan.n_rows
    table = _TABLES.get(name)
    if name == META:  # when it was written is not what it says
        described = json.loads(path.read_bytes())
        del described["created_at"]
        content = fingerprint_of(described)
    if table == "meta":
        rows = 1
    elif table is None:
        table, rows = "shard", 0
    if name.endswith(".parquet"):
        (shard,) = [shard for shard in load_meta(request.directory).shards if shard.file == name]
        rows, content = shard.rows, shard.content_sha256
    return file_entry(f"{request.split}/{name}", table, written, rows=rows, content_sha256=content)
