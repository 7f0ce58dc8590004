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
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import FileEntry, Json, file_entry, fingerprint_of
from tokmill.artifacts.step import Task
from tokmill.formats.megatron import write_megatron
from tokmill.formats.memmap import write_memmap
from tokmill.formats.npy import write_npy
from tokmill.formats.parquet import load_meta, write_parquet
from tokmill.formats.places import PLACES, write_places
from tokmill.formats.row_index import NamedSpans, write_named_rows
from tokmill.formats.sequences import Sequences
from tokmill.formats.token_cache import EncodeFacts, write_token_cache
from tokmill.packing.compare import gather_rows, gather_sequences
from tokmill.stages.build.blocks import Blocks, read_meetings
from tokmill.storage.commit import Written
from tokmill.storage.reading import load_bytes
from tokmill.storage.streams import plain_sha256

META, INDEX = "meta.json", "index.jsonl.zst"


class Request(NamedTuple):
    """What is written, and the counts that belong into its description."""

    task: Task
    blocks: Blocks
    counts: Json

    @property
    def split(self) -> str:
        return str(self.task.config["split"])

    @property
    def directory(self) -> Path:
        return Path(self.task.directory) / self.split

    @property
    def seq_len(self) -> int:
        """0: every row is as long as its document."""
        return int(self.task.config["pack"].get("length", 0))

    @property
    def rows(self) -> int:
        return int(self.counts["rows"])


def write_build(request: Request) -> list[FileEntry]:
    written = _WRITERS[request.task.config["format"]](request)
    entries = [_entry(request, name, found) for name, found in written.items()]
    index = write_named_rows(request.directory / INDEX, _named_spans(request.blocks))
    content = plain_sha256(request.directory / INDEX)
    path = f"{request.split}/{INDEX}"
    entries.append(file_entry(path, "index", index, rows=request.rows, content_sha256=content))
    if request.seq_len:
        entries.append(_places(request))
    return entries


def _named_spans(blocks: Blocks) -> Iterator[NamedSpans]:
    for block in blocks:
        for first, stop in block.batches():
            yield NamedSpans(block.spans(first, stop), block.documents.doc_ids, block.documents.sources)


def _places(request: Request) -> FileEntry:
    meetings = sum(
        len(block.plan.spans(first, stop).row) for block in request.blocks for first, stop in block.batches()
    )
    written = write_places(request.directory / PLACES, meetings, read_meetings(request.blocks))
    return file_entry(f"{request.split}/{PLACES}", "places", written, rows=meetings)


def _memmap(request: Request) -> dict[str, Written]:
    return write_memmap(
        request.directory,
        _rows(request),
        seq_len=request.seq_len,
        dtype=request.task.config["dtype"],
        meta=_meta(request),
    )


def _npy(request: Request) -> dict[str, Written]:
    return write_npy(
        request.directory,
        _rows(request),
        n_seqs=request.rows,
        seq_len=request.seq_len,
        rows_per_shard=request.task.config["rows_per_shard"],
        meta=_meta(request),
    )


def _parquet(request: Request) -> dict[str, Written]:
    meta = {**_meta(request), "seq_len": request.seq_len or None}
    batches = _equal_sequences(request) if request.seq_len else _sequences(request)
    return write_parquet(
        request.directory, batches, rows_per_shard=request.task.config["rows_per_shard"], meta=meta
    )


def _megatron(request: Request) -> dict[str, Written]:
    chunks = (batch.ids for batch in _sequences(request))
    return write_megatron(
        request.directory / "tokens", chunks, _Lengths(request.blocks), dtype=request.task.config["dtype"]
    )


class _Lengths:
    """Tokens of all documents, a block at a time, as often as they are asked for."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        return (block.documents.lengths for block in self._blocks)


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
    lent: NDArray[np.integer] | None = None
    for block in request.blocks:
        for first, stop in block.batches():
            into = lent if lent is not None and len(lent) >= stop - first else None
            rows = gather_rows(
                block.plan, block.documents.store, first, stop, pad_id=_pad_id(request), into=into
            )
            lent = rows if into is None else lent
            yield rows


def _equal_sequences(request: Request) -> Iterator[Sequences]:
    for block in request.blocks:
        for first, stop in block.batches():
            rows = gather_rows(block.plan, block.documents.store, first, stop, pad_id=_pad_id(request))
            yield Sequences(rows.reshape(-1), np.full(stop - first, request.seq_len))


def _sequences(request: Request) -> Iterator[Sequences]:
    for block in request.blocks:
        documents = block.documents
        for first, stop in block.batches():
            ids = gather_sequences(block.plan, documents.store, first, stop)
            names = documents.doc_ids.slice(first, stop - first).to_pylist()
            yield Sequences(ids, documents.lengths[first:stop], names)


def _pad_id(request: Request) -> int:
    return int(request.task.config["tokenizer"]["eos_id"])


def _meta(request: Request) -> Json:
    facts = request.task.config["tokenizer"]
    return {
        "layout": request.task.config["pack"]["layout"],
        "tokenizer_path": f"../../../tokenizer/{facts['file']}",
        "tokenizer_sha256": facts["sha256"],
        "eos_id": facts["eos_id"],
        "pad_id": _pad_id(request) if request.counts["tokens"]["padding"] else None,
        "vocab_size": facts["vocab_size"],
        "padded_vocab_size": facts.get("padded_vocab_size") or facts["vocab_size"],
        "split": request.split,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "counts": {"documents": request.counts["kept"], **request.counts["tokens"]},
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
    path, content, rows = request.directory / name, "", request.rows
    table = _TABLES.get(name)
    if name == META:  # when it was written is not what it says
        described = json.loads(load_bytes(path))
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
