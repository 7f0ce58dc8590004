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
from tokmill.errors import InputError
from tokmill.formats import Format, Parts, Tokens
from tokmill.formats.description import (
    META_NAME,
    Count,
    FilePart,
    SplitFacts,
    check_parts,
    check_size,
    corrupt,
    described_as,
    load_meta,
    meta_entry,
    remove_stale,
    write_meta,
)
from tokmill.formats.ids import Sequences, cast_ids, check_vocabulary, joined, sequence_lengths
from tokmill.formats.stores import Part, PartStore
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
    parts = Parts(
        cut=lambda tokens: _cut(tokens, layout),
        write=lambda directory, tokens, first: _write(directory, tokens, first, layout),
        describe=lambda directory, tokens, written: _describe(directory, tokens, written, layout),
    )
    return Format(
        name=layout.name,
        recognizes=described_as(layout.name),
        open_store=lambda directory, split: _Chunks(directory, layout).store(),
        check=lambda directory: _Chunks(directory, layout).check(),
        write=parts.write_all,
        parts=parts,
    )


class _Facts(SplitFacts):
    parts: list[Chunk]


def _cut(tokens: Tokens, layout: Layout) -> Iterator[tuple[int, int]]:
    """As `_groups` does it."""
    rows = used = count = 0
    for lengths in sequence_lengths(tokens.rows, tokens.seq_len, tokens.lengths()):
        ends, costs = np.cumsum(lengths, dtype=np.int64), np.cumsum(layout.costs(lengths))
        start = begin = before = 0
        while start < len(ends):
            stop = int(np.searchsorted(costs, before + layout.max_cost - used, "right"))
            if stop <= start and not rows:
                stop = start + 1
            if stop > start:
                rows, count = rows + stop - start, count + int(ends[stop - 1]) - begin
                used += int(costs[stop - 1]) - before
                start, begin, before = stop, int(ends[stop - 1]), int(costs[stop - 1])
            if start < len(ends):
                yield rows, count
                rows = used = count = 0
    if rows:
        yield rows, count


def _write(directory: Path, tokens: Tokens, first: int, layout: Layout) -> list[FilePart]:
    remove_file(directory / META_NAME)
    parts = []
    for number, group in enumerate(_groups(tokens.read_sequences(), layout, str(directory)), first):
        name = layout.chunk(number)
        data = layout.encode(group)
        if len(data) > _MAX_BYTES:
            raise InputError(
                f"a document has {len(group.ids):,} tokens, and a file of {layout.name} ends at 4 GiB",
                where=str(directory / name),
                next="split the document, or set a maximum document size in filters",
            )
        entry = file_entry(name, "shard", commit_bytes(directory / name, data), rows=0)
        parts.append(FilePart(entry, len(group.lengths), len(group.ids)))
    return parts


def _describe(
    directory: Path, tokens: Tokens, written: Sequence[FilePart], layout: Layout
) -> list[FileEntry]:
    entries = [part.entry for part in written]
    parts = [
        Chunk(one.entry.path, one.entry.bytes, one.rows, one.tokens, one.entry.sha256) for one in written
    ]
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
            check_size(self._directory / part.file, part.bytes)
        index = self._directory / INDEX_NAME
        expected = _spelled(layout.index(facts.parts))
        check_size(index, len(expected))
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
