"""Arrow streams in a directory that `datasets.load_from_disk` opens, as `Dataset.save_to_disk` lays it out.

    data-00000-of-00002.arrow …    an Arrow stream: input_ids  list<int32>   rows_per_shard rows or documents
                                                    doc_id     string        where sequences are documents
    dataset_info.json              the columns, as `datasets` calls them
    state.json                     the streams in order, and a fingerprint
    meta.json                      format, n_seqs, n_tokens, seq_len, parts (file, rows, tokens,
                                   content_sha256), and where they come from

.arrow    bytes  what (Arrow's IPC format)
                 the schema, a message
                 a record batch, a message: offsets int32, ids int32, and of doc_id offsets and UTF-8
          8      ff ff ff ff 00 00 00 00: the end

A stream has one batch, or several where a shard has more than 268 million tokens; buffers are not compressed,
so a reader maps them. There is always one stream, if only of a schema: `datasets` opens no directory without.

How Arrow spells a message may change with its version, so a shard is known by its content, as one of
`parquet` is. `_fingerprint`, which `datasets` draws at random and names its caches by, is a digest of these.
`meta.json` is written last and goes first; shards that an earlier build left behind are removed before that.
"""

from __future__ import annotations

import errno
import hashlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tokmill.artifacts.manifest import FileEntry, file_entry
from tokmill.errors import CorruptFile
from tokmill.formats import Format, Parts, Tokens
from tokmill.formats.description import (
    META_NAME,
    Count,
    FilePart,
    SplitFacts,
    check_parts,
    corrupt,
    described_as,
    load_meta,
    meta_entry,
    remove_stale,
    write_meta,
)
from tokmill.formats.ids import Sequences, check_vocabulary, cut_sequences, joined, regroup, sequence_lengths
from tokmill.formats.parquet import add_content
from tokmill.formats.stores import Part, PartStore
from tokmill.storage.disk import commit_bytes, load_bytes, open_commit, remove_file, unreadable

if TYPE_CHECKING:
    import pyarrow as pa

INFO_NAME, STATE_NAME = "dataset_info.json", "state.json"

_MAX_BATCH_TOKENS = 1 << 28  # so that it can be made in memory and its offsets fit 32 bits
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


class Shard(msgspec.Struct):
    file: str
    rows: Count
    tokens: Count
    content_sha256: str


class _Facts(SplitFacts):
    parts: list[Shard]


def _shard_name(number: int, count: int) -> str:
    return f"data-{number:05d}-of-{count:05d}.arrow"


def _cut(tokens: Tokens) -> list[tuple[int, int]] | None:
    """None where a shard is more than one batch: those after it may begin in the middle of one."""
    lengths = sequence_lengths(tokens.rows, tokens.seq_len, tokens.lengths())
    shards = list(cut_sequences(lengths, max_sequences=tokens.rows_per_shard, max_tokens=sys.maxsize))
    return shards if all(count <= _MAX_BATCH_TOKENS for _, count in shards) else None


def _write(directory: Path, tokens: Tokens, first_shard: int) -> list[FilePart]:
    remove_file(directory / META_NAME)
    rows_per_shard = tokens.rows_per_shard
    count = max(-(-tokens.split_rows // rows_per_shard), 1)
    batches = regroup(
        tokens.read_sequences(),
        max_sequences=rows_per_shard,
        max_tokens=_MAX_BATCH_TOKENS,
        where=str(directory),
    )
    pieces = _cut_at(batches, rows_per_shard)
    first = next(pieces, None)
    schema, parts = _schema(has_names=not tokens.seq_len), []
    for number in range(first_shard, first_shard + max(-(-tokens.rows // rows_per_shard), 1)):
        shard = Shard(_shard_name(number, count), 0, 0, "")
        digest = hashlib.sha256()
        with open_commit(directory / shard.file) as file:
            file.write(schema.serialize())
            while first is not None and shard.rows < rows_per_shard:
                file.write(_batch(first, schema).serialize())
                add_content(digest, first)
                shard.rows += len(first.lengths)
                shard.tokens += len(first.ids)
                first = next(pieces, None)
            file.write(_END_OF_STREAM)
        content = digest.hexdigest()
        entry = file_entry(shard.file, "shard", file.written, rows=shard.rows, content_sha256=content)
        parts.append(FilePart(entry, shard.rows, shard.tokens))
    assert first is None, f"{directory}: more sequences came than were counted"
    return parts


def _describe(directory: Path, tokens: Tokens, written: Sequence[FilePart]) -> list[FileEntry]:
    entries = [part.entry for part in written]
    shards = [Shard(one.entry.path, one.rows, one.tokens, one.entry.content_sha256) for one in written]
    remove_stale(directory, "data-*.arrow", [shard.file for shard in shards])
    for name, described in _beside(shards, tokens.split, has_names=not tokens.seq_len).items():
        entries.append(file_entry(name, "meta", commit_bytes(directory / name, described), rows=1))
    whole = {
        **tokens.describe(),
        "format": "arrow",
        "n_seqs": sum(shard.rows for shard in shards),
        "n_tokens": sum(shard.tokens for shard in shards),
        "seq_len": tokens.seq_len or None,
        "dtype": "int32",
        "parts": shards,
    }
    return [*entries, meta_entry(directory, write_meta(directory / META_NAME, whole))]


_PARTS = Parts(_cut, _write, _describe)


def _cut_at(batches: Iterator[Sequences], rows_per_shard: int) -> Iterator[Sequences]:
    """No batch goes over the end of a shard. One of fewer rows than a shard has is the rare case:
    then all that follow lie across."""
    used = 0
    for batch in batches:
        ends = np.cumsum(batch.lengths, dtype=np.int64)
        start = begin = 0
        while start < len(ends):
            stop = min(len(ends), start + rows_per_shard - used)
            end = int(ends[stop - 1])
            names = None if batch.doc_ids is None else batch.doc_ids[start:stop]
            yield Sequences(batch.ids[begin:end], batch.lengths[start:stop], names)
            used = (used + stop - start) % rows_per_shard
            start, begin = stop, end


def _schema(has_names: bool) -> pa.Schema:
    import pyarrow as pa

    fields = [pa.field("input_ids", pa.list_(pa.int32()))]
    return pa.schema([*fields, pa.field("doc_id", pa.string())] if has_names else fields)


def _batch(rows: Sequences, schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    offsets = np.zeros(len(rows.lengths) + 1, np.int32)
    np.cumsum(rows.lengths, out=offsets[1:])
    columns: list[Any] = [pa.ListArray.from_arrays(offsets, pa.array(rows.ids, pa.int32()))]
    if rows.doc_ids is not None:
        columns.append(pa.array(rows.doc_ids, pa.string()))
    return pa.record_batch(columns, schema=schema)


def _beside(shards: list[Shard], split: str, has_names: bool) -> dict[str, bytes]:
    """What `load_from_disk` asks for. A list is a `Sequence` here, as it was called before datasets 4:
    later versions know both words, earlier ones do not know `List`."""
    number = {"dtype": "int32", "_type": "Value"}
    features: dict[str, Any] = {"input_ids": {"feature": number, "_type": "Sequence"}}
    if has_names:
        features["doc_id"] = {"dtype": "string", "_type": "Value"}
    digest = hashlib.sha256(json.dumps([split, *(shard.content_sha256 for shard in shards)]).encode())
    info = {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}
    state: dict[str, Any] = {
        "_data_files": [{"filename": shard.file} for shard in shards],
        "_fingerprint": digest.hexdigest()[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": split,
    }
    return {INFO_NAME: json.dumps(info, indent=2).encode(), STATE_NAME: json.dumps(state, indent=2).encode()}


class _Streams:
    """A directory whose description, files beside it and streams agree; ids are mapped, not read. Objects
    are decoded whole, each when a row of it is asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        path = self._directory / META_NAME
        self.meta, self.facts = load_meta(self._directory, "arrow", "Arrow streams", _Facts)
        facts = self.facts
        facts.check("arrow", path)
        check_parts(facts, facts.parts, path)
        self._is_mapped = isinstance(directory, Path)
        self.shards = [self._map(shard) for shard in facts.parts] if self._is_mapped else []
        self._check_beside()

    def store(self) -> PartStore:
        if not self._is_mapped:
            parts = [
                Part(self._directory / shard.file, shard.rows, shard.tokens, shard.content_sha256)
                for shard in self.facts.parts
            ]
            length = self.facts.seq_len
            return PartStore("arrow", self.meta, parts, self._decode, is_mapped=False, seq_len=length)
        batches = [
            (Part(self._directory / shard.file, len(batch.lengths), len(batch.ids), ""), batch)
            for shard, batches in zip(self.facts.parts, self.shards, strict=True)
            for batch in batches
        ]
        return _MappedStore(self, [part for part, _ in batches], [batch for _, batch in batches])

    def files(self) -> Iterator[Path]:
        return (self._directory / shard.file for shard in self.facts.parts)

    def check(self) -> None:
        for shard, batches in zip(self.facts.parts, self.shards, strict=True):
            for batch in self._proven(shard, batches):
                check_vocabulary(batch.ids, self.meta, self._directory / shard.file)

    def _decode(self, number: int) -> Sequences:
        shard = self.facts.parts[number]
        batches = list(self._proven(shard, self._map(shard)))
        return joined(batches) if batches else Sequences(np.empty(0, np.int32), np.empty(0, np.int64))

    def _proven(self, shard: Shard, batches: list[Sequences]) -> Iterator[Sequences]:
        """With the names of their documents as they are written."""
        digest = hashlib.sha256()
        for batch in batches:
            names: Any = batch.doc_ids  # of a map they are found one by one
            read = batch if names is None else batch._replace(doc_ids=names.to_pylist())
            add_content(digest, read)
            yield read
        if digest.hexdigest() != shard.content_sha256:
            raise corrupt(f"holds other sequences than {META_NAME} describes", self._directory / shard.file)

    def _map(self, shard: Shard) -> list[Sequences]:
        path = self._directory / shard.file
        batches = _map_batches(path)
        sums = sum(len(batch.lengths) for batch in batches), sum(len(batch.ids) for batch in batches)
        length, is_so = self.facts.seq_len, sums == (shard.rows, shard.tokens)
        if not is_so or (length and any((batch.lengths != length).any() for batch in batches)):
            raise corrupt(f"holds other sequences than {META_NAME} describes", path)
        return batches

    def _check_beside(self) -> None:
        """Both are what is written for these shards: `datasets` would read others, or none."""
        split, has_names = str(self.meta.get("split")), self.facts.seq_len is None
        expected = _beside(self.facts.parts, split, has_names)
        for name, described in expected.items():
            path = self._directory / name
            if not path.is_file():
                raise CorruptFile(
                    "no such file, and datasets opens none without it",
                    where=str(path),
                    next="copy the directory again",
                )
            if load_bytes(path) != described:
                raise corrupt(f"does not describe the parts of {META_NAME}", path)


class _MappedStore(PartStore):
    """A part is a batch. All are mapped, and known by what they hold, not by the bytes of their files."""

    def __init__(self, streams: _Streams, parts: list[Part], batches: list[Sequences]) -> None:
        self._streams = streams
        super().__init__(
            "arrow",
            streams.meta,
            parts,
            batches.__getitem__,
            is_mapped=True,
            seq_len=streams.facts.seq_len,
        )

    def files(self) -> Iterator[tuple[Path, int]]:
        return ((path, path.stat().st_size) for path in self._streams.files())

    def digests(self) -> list[tuple[Path, str]]:
        return []

    def content(self) -> list[str]:
        return [shard.content_sha256 for shard in self._streams.facts.parts]


def _map_batches(path: Path) -> list[Sequences]:
    """Arrow follows the offsets that a file has anywhere: they are looked at before they are used."""
    import pyarrow as pa

    try:
        # Arrow maps files of this machine; of an object it is handed the bytes
        with (
            pa.memory_map(str(path)) if isinstance(path, Path) else pa.BufferReader(load_bytes(path))
        ) as source:
            source.seek(max(source.size() - len(_END_OF_STREAM), 0))
            if source.read() != _END_OF_STREAM:  # Arrow takes the end of the file for that of the stream
                raise pa.ArrowInvalid("the stream has no end marker: the file is truncated")
            source.seek(0)
            return [_sequences(batch) for batch in pa.ipc.open_stream(source)]
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.ENOENT):
            raise unreadable(error, path) from error
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise corrupt(f"cannot be read as an Arrow stream ({first_line})", path) from error


def _sequences(batch: pa.RecordBatch) -> Sequences:
    import pyarrow as pa

    has_names = "doc_id" in batch.schema.names
    if not batch.schema.equals(_schema(has_names)):
        raise pa.ArrowInvalid(f"its columns are {', '.join(map(str, batch.schema))}")
    lists = batch.column("input_ids")
    lists.validate(full=True)
    if lists.null_count or lists.values.null_count:
        raise pa.ArrowInvalid("a sequence or an id is null")
    names: Any = None
    if has_names:
        names = batch.column("doc_id")
        names.validate(full=True)
        if names.null_count:
            raise pa.ArrowInvalid("a doc_id is null")
    return Sequences(np.asarray(lists.flatten()), np.diff(np.asarray(lists.offsets)).astype(np.int64), names)


ARROW = Format(
    name="arrow",
    recognizes=described_as("arrow"),
    open_store=lambda directory, split: _Streams(directory).store(),
    check=lambda directory: _Streams(directory).check(),
    write=_PARTS.write_all,
    parts=_PARTS,
    is_sharded=True,
    hub_files="*.arrow",
    needs=("pyarrow",),
)
