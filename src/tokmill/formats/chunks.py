"""Sequences in files of some megabytes, each with a table of where its sequences lie: `mds`, `litdata`.

    <chunk> …     a table of offsets, and the sequences; as many as fit into 64 MB, or one that does not
    index.json    what the trainer's own reader asks for: the chunks and their form
    meta.json     format, n_seqs, n_tokens, seq_len, dtype, parts (file, bytes, rows, tokens, sha256),
                  and where they come from

A chunk is known by its sha256 and decoded as a whole. `meta.json` is written last and goes first; chunks that
an earlier, longer build left behind are removed before that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import FileEntry, file_entry
from tokmill.errors import CorruptFile, InputError
from tokmill.formats import Format, Tokens
from tokmill.formats.ids import (
    META_NAME,
    Count,
    Part,
    PartStore,
    Sequences,
    SplitFacts,
    cast_ids,
    check_parts,
    check_vocabulary,
    corrupt,
    described_as,
    joined,
    load_meta,
    meta_entry,
    remove_stale,
    write_meta,
)
from tokmill.storage.disk import commit_bytes, load_bytes, remove_file

INDEX_NAME = "index.json"

_MAX_BYTES = (1 << 32) - 1  # offsets are uint32


class Chunk(msgspec.Struct):
    file: str
    bytes: Count
    rows: Count
    tokens: Count
    sha256: str


@dataclass(frozen=True)
class Layout:
    name: str
    chunk: Callable[[int], str]  # the file's name
    costs: Callable[[NDArray[np.int64]], NDArray[np.int64]]  # bytes that sequences of these lengths take
    max_cost: int  # of a chunk
    encode: Callable[[Sequences], bytes]
    decode: Callable[[bytes], Sequences]  # ValueError, IndexError: it is none
    index: Callable[[Sequence[Chunk]], dict[str, Any]]


def chunk_format(layout: Layout) -> Format:
    return Format(
        name=layout.name,
        recognizes=described_as(layout.name),
        open_store=lambda directory, split: _Chunks(directory, layout).store(),
        check=lambda directory: _Chunks(directory, layout).check(),
        write=lambda directory, tokens: _write(directory, tokens, layout),
    )


class _Facts(SplitFacts):
    parts: list[Chunk]


def _write(directory: Path, tokens: Tokens, layout: Layout) -> list[FileEntry]:
    remove_file(directory / META_NAME)
    parts: list[Chunk] = []
    entries: list[FileEntry] = []
    for group in _groups(tokens.read_sequences(), layout, str(directory)):
        name = layout.chunk(len(parts))
        data = layout.encode(group)
        if len(data) > _MAX_BYTES:
            raise InputError(
                f"a document has {len(group.ids):,} tokens, and a file of {layout.name} ends at 4 GiB",
                where=str(directory / name),
                next="split the document, or set a maximum document size in filters",
            )
        written = commit_bytes(directory / name, data)
        parts.append(Chunk(name, written.bytes, len(group.lengths), len(group.ids), written.sha256))
        entries.append(file_entry(name, "shard", written, rows=0))
    first = Path(layout.chunk(0))
    remove_stale(directory, f"*{first.suffix}", [part.file for part in parts])
    index = commit_bytes(directory / INDEX_NAME, _spelled(layout.index(parts)))
    whole = {
        **tokens.describe(),
        "format": layout.name,
        "n_seqs": tokens.rows,
        "n_tokens": sum(part.tokens for part in parts),
        "seq_len": tokens.seq_len or None,
        "dtype": "int32",
        "parts": parts,
    }
    meta = meta_entry(directory, write_meta(directory / META_NAME, whole))
    return [*entries, file_entry(INDEX_NAME, "meta", index, rows=1), meta]


def _spelled(index: dict[str, Any]) -> bytes:
    """As json.dump does it, which both projects write theirs with."""
    return json.dumps(index, sort_keys=True).encode()


def _groups(batches: Iterable[Sequences], layout: Layout, where: str) -> Iterator[Sequences]:
    """As many as fit into a chunk. A larger one is a chunk of its own."""
    waiting: list[Sequences] = []
    used = 0
    for batch in batches:
        ids = cast_ids(batch.ids, "int32", where=where)
        ends = np.cumsum(batch.lengths, dtype=np.int64)
        costs = np.cumsum(layout.costs(np.asarray(batch.lengths, np.int64)))
        start = begin = before = 0
        while start < len(ends):
            stop = int(np.searchsorted(costs, before + layout.max_cost - used, "right"))
            if stop <= start and not waiting:
                stop = start + 1
            if stop > start:
                end = int(ends[stop - 1])
                waiting.append(Sequences(ids[begin:end], batch.lengths[start:stop]))
                used += int(costs[stop - 1]) - before
                start, begin, before = stop, end, int(costs[stop - 1])
            if start < len(ends):
                yield joined(waiting)
                waiting, used = [], 0
    if waiting:
        yield joined(waiting)


class _Chunks:
    """A directory whose description, index and sizes agree; sequences are not read yet."""

    def __init__(self, directory: Path, layout: Layout) -> None:
        self._directory, self._layout = directory, layout
        path = self._directory / META_NAME
        self.meta, self.facts = load_meta(self._directory, layout.name, f"chunks of {layout.name}", _Facts)
        facts = self.facts
        facts.check(layout.name, path)
        check_parts(facts, facts.parts, path)
        for part in facts.parts:
            self._check_size(self._directory / part.file, part.bytes)
        index = self._directory / INDEX_NAME
        expected = _spelled(layout.index(facts.parts))
        self._check_size(index, len(expected))
        if load_bytes(index) != expected:
            raise corrupt(f"does not describe the parts of {META_NAME}", index)

    def store(self) -> PartStore:
        facts = self.facts
        return PartStore(
            facts.format,
            self.meta,
            [Part(self._directory / part.file, part.rows, part.tokens, part.sha256) for part in facts.parts],
            self.load,
            is_mapped=False,
            seq_len=facts.seq_len,
        )

    def load(self, number: int) -> Sequences:
        part = self.facts.parts[number]
        path = self._directory / part.file
        data = load_bytes(path)
        if hashlib.sha256(data).hexdigest() != part.sha256:
            raise corrupt(f"holds other bytes than {META_NAME} describes", path)
        try:
            sequences = self._layout.decode(data)
            is_so = self._layout.encode(sequences) == data
        except (ValueError, IndexError) as error:
            raise corrupt(f"cannot be read as a file of {self._layout.name} ({error})", path) from error
        lengths = sequences.lengths
        is_so = is_so and (len(lengths), int(lengths.sum())) == (part.rows, part.tokens)
        is_so = is_so and len(sequences.ids) == part.tokens
        if not is_so or (self.facts.seq_len and (lengths != self.facts.seq_len).any()):
            raise corrupt(f"holds other sequences than {META_NAME} describes", path)
        return sequences

    def check(self) -> None:
        for number, part in enumerate(self.facts.parts):
            check_vocabulary(self.load(number).ids, self.meta, self._directory / part.file)

    def _check_size(self, path: Path, expected: int) -> None:
        if not path.is_file():
            raise CorruptFile(
                f"no such file, and {META_NAME} tells of it", where=str(path), next="copy the directory again"
            )
        size = path.stat().st_size
        if size != expected:
            raise corrupt(f"{size:,} bytes, but {META_NAME} describes {expected:,}", path)


def offsets_of(data: bytes) -> NDArray[np.int64]:
    """The table that a chunk begins with: how many, and where each lies, and where the last ends."""
    count = int(np.frombuffer(data, "<u4", 1)[0])
    offsets = np.frombuffer(data, "<u4", count + 1, 4).astype(np.int64)
    if (np.diff(offsets) < 0).any():
        raise ValueError("its offsets go backwards")
    return offsets


def table_of(sizes: NDArray[np.int64], before: int) -> bytes:
    """`before`: bytes between the table and the first sequence."""
    count = len(sizes)
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes))) + 4 + 4 * (count + 1) + before
    return np.array([count], "<u4").tobytes() + (offsets & _MAX_BYTES).astype("<u4").tobytes()
