"""JSON lines, plain or compressed: strict, in whole blocks, with every bad line accounted for.

    block ─ audit_lines ─ no flag ─┬─ texts: unescape ──────────────────────> columns      (the fast way)
                        │          └─ "" in their place: msgspec decode_lines ───┘
                        └ a flag, or either failed ─ line by line: msgspec ──> columns, bad (the slow way)

The parser alone is not strict enough: it takes the last of two equal keys, and passes over invalid UTF-8 in
fields nobody asked for. The audit finds both in one compiled pass. NaN, lone surrogates and control
characters are refused by the parser itself.

Texts are nearly all of a block, and as Python strings they would be decoded and encoded again: so read, 138 MB took 0.66
CPU seconds, and 0.33 with the texts taken out. A line is JSON with "" in place of a string if and only if it is with the
string, where that one has no fault of its own: the parser still judges every line.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from zlib_ng import zlib_ng

from tokmill.errors import InputError
from tokmill.kernels import jsonlines, jsonstrings
from tokmill.schema import large_strings
from tokmill.storage.badlines import explain_error, find_fault, too_large
from tokmill.storage.commit import Written, open_commit
from tokmill.storage.location import AnyPath
from tokmill.storage.records import WHOLE, BadRecord, Batch, Kind, Span, Wanted, string_table
from tokmill.storage.streams import Block, Oversize, read_blocks
from tokmill.storage.zstd import ZstdCompressor, frame_options

# .json.gz and .json.zst hold lines wherever the hub has them (C4, codeparrot-clean); a .json is one value as often
SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".json.gz", ".json.zst")

_PEEKED_BYTES = 1 << 20
_BATCH_ROWS = 4096

_TYPES: dict[Kind, Any] = {Kind.TEXT: str, Kind.SCALAR: str | int | float | bool, Kind.JSON: msgspec.Raw}
_OPEN, _CLOSE, _CR = b"{}\r"


def read_batches(
    path: AnyPath, wanted: list[Wanted], *, max_record_bytes: int, span: Span = WHOLE
) -> Iterator[Batch]:
    try:
        decoders = _decoders(wanted)
    except ValueError as error:
        raise InputError(
            f"a wanted field has a name that no JSON key can be matched with ({error})",
            where=str(path),
            next="rename the field in the data",
        ) from error
    for block in read_blocks(path, max_record_bytes=max_record_bytes, start=span.start, end=span.end):
        if isinstance(block, Oversize):
            yield Batch(string_table(wanted, [[] for _ in wanted]), [too_large(*block, max_record_bytes)])
        else:
            yield _read_block(block, decoders, wanted, max_record_bytes)


def peek_keys(path: AnyPath, *, max_record_bytes: int) -> list[str]:
    """All keys of the first records that are objects: a field may be missing from the very first one."""
    for block in read_blocks(path, max_record_bytes=max_record_bytes, block_bytes=_PEEKED_BYTES):
        if isinstance(block, Oversize):
            continue
        keys: dict[str, None] = {}
        for line in block.data.split(b"\n"):
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                keys.update(dict.fromkeys(msgspec.json.decode(line, type=dict[str, msgspec.Raw])))
        if keys:
            return list(keys)
    return []


def write_jsonl(path: Path, table: Any) -> Written:
    return write_jsonl_tables(path, [table])


def write_jsonl_tables(path: Path, tables: Iterable[Any]) -> Written:
    """One object per row, keys in column order, nulls left out; compressed by suffix."""
    encoder = msgspec.json.Encoder()
    compress, finish = _compressor(path.suffix)
    with open_commit(path) as file:
        for batch in (batch for table in tables for batch in table.to_batches(max_chunksize=_BATCH_ROWS)):
            rows = [{k: v for k, v in row.items() if v is not None} for row in batch.to_pylist()]
            for row in rows:
                if "meta" in row:  # a JSON object that Arrow carries as a string
                    row["meta"] = msgspec.Raw(row["meta"].encode())
            file.write(compress(encoder.encode_lines(rows)))
        file.write(finish())
    return file.written


def _compressor(suffix: str) -> tuple[Callable[[bytes], bytes], Callable[[], bytes]]:
    if suffix == ".zst":
        zstd = ZstdCompressor(options=frame_options())
        return zstd.compress, zstd.flush
    if suffix == ".gz":
        gzip = zlib_ng.compressobj(6, zlib_ng.DEFLATED, 31)  # 31: a gzip header and trailer
        return gzip.compress, gzip.flush
    return bytes, bytes


def _decoders(wanted: list[Wanted]) -> list[Any]:
    """One for most sources. A decoder hands out a key once, so each further column of a key needs another."""
    turns = _turns(wanted)
    return [
        _decoder([(index, want) for index, want in enumerate(wanted) if turns[index] == turn])
        for turn in range(max(turns) + 1)
    ]


def _turns(wanted: list[Wanted]) -> list[int]:
    """For each column, how many columns before it have the same key."""
    keys = [want.key for want in wanted]
    return [keys[:index].count(key) for index, key in enumerate(keys)]


def _decoder(wanted: list[tuple[int, Wanted]]) -> Any:
    fields: list[Any] = []
    for index, want in wanted:
        kind = _TYPES[want.kind]
        if want.required:
            fields.append((f"f{index}", kind))
        elif want.kind is Kind.JSON:
            fields.append((f"f{index}", kind, msgspec.Raw(b"null")))
        else:
            fields.append((f"f{index}", kind | None, None))
    fields.sort(key=lambda field: len(field))  # required ones first; they are read back by name
    rename = {f"f{index}": want.key for index, want in wanted}
    record = msgspec.defstruct("Record", fields, rename=rename, gc=False)
    return msgspec.json.Decoder(record)


def _read_block(block: Block, decoders: list[Any], wanted: list[Wanted], max_record_bytes: int) -> Batch:
    texts = _text_keys(wanted)
    audit = jsonlines.audit_lines(np.frombuffer(block.data, np.uint8), texts)
    longest = int((audit.ends - audit.starts).max(initial=0))
    if not audit.flags.any() and longest <= max_record_bytes and _look_like_objects(block.data, audit):
        table = _read_whole(block.data, decoders, wanted, texts, audit)
        if table is not None:
            return Batch(table, [])
    # one of the lines is bad: find out which, line by line
    records: list[list[Any]] = [[] for _ in decoders]
    bad = []
    for start, end, flags in zip(
        audit.starts.tolist(), audit.ends.tolist(), audit.flags.tolist(), strict=True
    ):
        line = block.data[start:end]
        fault = find_fault(line, flags, max_record_bytes)
        if fault is None:
            try:
                decoded = [decoder.decode(line) for decoder in decoders]
                for turn, record in zip(records, decoded, strict=True):
                    turn.append(record)
                continue
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                fault = explain_error(line, error)
        bad.append(BadRecord(block.offset + start, *fault))
    return Batch(_columns(records, wanted, {}), bad)


def _text_keys(wanted: list[Wanted]) -> list[str]:
    """Of strings that every record must have, and that nobody wants as anything else."""
    others = {want.key for want in wanted if want.kind is not Kind.TEXT or not want.required}
    return list(dict.fromkeys(want.key for want in wanted if want.key not in others))


def _read_whole(
    data: bytes, decoders: list[Any], wanted: list[Wanted], keys: list[str], audit: jsonlines.LineAudit
) -> Any | None:
    """None if a line is bad."""
    if (audit.strings < 0).any():
        return None
    texts: dict[str, Any] = {}
    for place, key in enumerate(keys):
        found = jsonstrings.unescape(np.frombuffer(data, np.uint8), *audit.strings[:, place].T)
        if found is None:
            return None
        texts[key] = large_strings(*found)
    rest = _without(data, audit.strings.reshape(-1, 2))
    try:
        records = [decoder.decode_lines(rest) for decoder in decoders]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return _columns(records, wanted, texts) if len(records[0]) == len(audit.starts) else None


def _without(data: bytes, spans: NDArray[np.int64]) -> bytes:
    spans = spans[np.argsort(spans[:, 0])]
    places = zip([0, *spans[:, 1].tolist()], [*spans[:, 0].tolist(), len(data)], strict=True)
    return b"".join([data[start:end] for start, end in places])


def _look_like_objects(data: bytes, audit: jsonlines.LineAudit) -> bool:
    """Every line goes from { to }.

    `decode_lines` also takes two objects in one line, and one over two lines; a file with both could have as many
    objects as lines. No value has "}", newline, "{" inside it, so here each line holds at least one object, and
    as many objects as lines means one in each.
    """
    block = np.frombuffer(data, np.uint8)
    last = block[audit.ends - 1]
    last = np.where(last == _CR, block[audit.ends - 2], last)
    return bool((block[audit.starts] == _OPEN).all() and (last == _CLOSE).all())


def _columns(records: list[list[Any]], wanted: list[Wanted], texts: Mapping[str, Any]) -> Any:
    columns: list[Any] = []
    for index, (want, turn) in enumerate(zip(wanted, _turns(wanted), strict=True)):
        if want.key in texts:
            columns.append(texts[want.key])
            continue
        values = list(map(attrgetter(f"f{index}"), records[turn]))
        if want.kind is Kind.SCALAR and not {str, type(None)}.issuperset(map(type, values)):
            values = [_as_string(value) for value in values]
        elif want.kind is Kind.JSON:
            values = [_as_json(value) for value in values]
        columns.append(values)
    return string_table(wanted, columns)


def _as_string(value: str | int | float | bool | None) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)


def _as_json(value: msgspec.Raw) -> str | None:
    text = str(bytes(value), "utf-8")
    return None if text == "null" else text


__all__ = ["SUFFIXES", "peek_keys", "read_batches", "write_jsonl"]
