"""JSON lines, plain or compressed: strict, in whole blocks, with every bad line accounted for.

    block ─ audit_lines ─ no flag ─┬─ texts: unescape ──────────────────────> columns      (the fast way)
                        │          └─ "" in their place: msgspec decode_lines ───┘
                        └ a flag, or either failed ─ line by line: msgspec ──> columns, bad (the slow way)

The parser alone is not strict enough: it takes the last of two equal keys, and passes over invalid UTF-8 in
fields nobody asked for. The audit finds both in one compiled pass. NaN, lone surrogates and control
characters are refused by the parser itself.

Texts are nearly all of a block, and as Python strings they would be decoded and encoded again: so read, 138
MB took 0.66 CPU seconds, and 0.33 with the texts taken out. A line is JSON with "" in place of a string if
and only if it is with the string, where that one has no fault of its own: the parser still judges every line.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from zlib_ng import zlib_ng

from tokmill.errors import InputError
from tokmill.kernels import jsonlines
from tokmill.schema import large_strings
from tokmill.storage.blocks import JSON, Block, Oversize, packed, read_blocks
from tokmill.storage.disk import Written, ZstdCompressor, frame_options, open_commit
from tokmill.storage.location import AnyPath
from tokmill.storage.records import (
    WHOLE,
    BadRecord,
    Batch,
    Kind,
    Peek,
    Span,
    Wanted,
    as_name,
    as_object,
    explain_error,
    find_fault,
    id_of_line,
    join_list,
    no_rows,
    string_table,
    too_large,
)

JSONL = (*packed(".jsonl", ".ndjson"), *JSON)

WRITTEN = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".json.gz", ".json.zst")

_PEEKED_BYTES, _PEEKED_BLOCKS = 1 << 20, 64
_BATCH_ROWS = 4096
TYPES: dict[Kind, Any] = {
    Kind.TEXT: str,
    Kind.LINES: str | list[str],
    Kind.TERMS: str | int | float | bool | list[str],
    Kind.SCALAR: str | int | float | bool,
    Kind.JSON: msgspec.Raw,
    Kind.NAME: msgspec.Raw,
    Kind.OBJECT: msgspec.Raw,
}

_TEXTS = (Kind.TEXT, Kind.LINES)

_OPEN, _CLOSE, _CR = b"{}\r"


def read_jsonl(
    path: AnyPath, wanted: list[Wanted], *, max_record_bytes: int, span: Span = WHOLE
) -> Iterator[Batch]:
    try:
        decoders = _decoders(tuple(wanted))
    except ValueError as error:
        raise InputError(
            f"a wanted field has a name that no JSON key can be matched with ({error})",
            where=str(path),
            next="rename the field in the data",
        ) from error
    for block in read_blocks(path, max_record_bytes=max_record_bytes, start=span.start, end=span.end):
        if isinstance(block, Oversize):
            yield no_rows(wanted, [too_large(*block, max_record_bytes)])
        else:
            yield _read_block(block, decoders, wanted, max_record_bytes)


def peek_jsonl(path: AnyPath, *, max_record_bytes: int) -> Peek:
    """All keys of the first records that are objects: a field may be missing from the very first one.

    Given up after some blocks without a key: 100 million lines of `{}` are 290 kB of gzip."""
    keys: dict[str, None] = {}
    blocks = read_blocks(path, max_record_bytes=max_record_bytes, block_bytes=_PEEKED_BYTES)
    for number, block in enumerate(blocks):
        if number == _PEEKED_BLOCKS:
            return Peek([], False)
        if isinstance(block, Oversize):
            continue
        for line in block.data.split(b"\n"):
            with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                keys.update(dict.fromkeys(msgspec.json.decode(line, type=dict[str, msgspec.Raw])))
        if keys:
            return Peek(list(keys), next(blocks, None) is None)
    return Peek([], True)


_LICENSE = "license_tag"


def write_jsonl(path: Path, table: Any) -> Written:
    return write_jsonl_tables(path, [table])


def write_jsonl_tables(path: Path, tables: Iterable[Any]) -> Written:
    """One object per row, keys in column order; compressed by suffix. Nulls are left out, but for a licence:
    that a document has none is said of each."""
    encoder = msgspec.json.Encoder()
    compress, finish = _compressor(path.suffix)
    with open_commit(path) as file:
        for batch in (batch for table in tables for batch in table.to_batches(max_chunksize=_BATCH_ROWS)):
            rows = [
                {k: v for k, v in row.items() if v is not None or k == _LICENSE} for row in batch.to_pylist()
            ]
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


class _Slot(NamedTuple):
    """One key of one column: which decoder hands it out, and under which name."""

    column: int
    place: int  # among the keys of the column; 0 is the first
    key: str
    decoder: int

    @property
    def name(self) -> str:
        return f"f{self.column}_{self.place}"


def _slots(wanted: Sequence[Wanted]) -> list[list[_Slot]]:
    """Per column one for each key. A decoder hands out a key once,
    so each further column of a key needs another."""
    seen: Counter[str] = Counter()
    slots = []
    for column, want in enumerate(wanted):
        slots.append([_Slot(column, place, key, seen[key]) for place, key in enumerate(want.keys)])
        seen.update(want.keys)
    return slots


@functools.lru_cache(maxsize=64)
def _decoders(wanted: tuple[Wanted, ...]) -> list[Any]:
    """One for most sources."""
    slots = [slot for own in _slots(wanted) for slot in own]
    return [
        _decoder([slot for slot in slots if slot.decoder == number], wanted)
        for number in range(max((slot.decoder for slot in slots), default=0) + 1)
    ]


def _decoder(slots: list[_Slot], wanted: Sequence[Wanted]) -> Any:
    fields: list[Any] = []
    for slot in slots:
        want = wanted[slot.column]
        # what only some records are asked for may be anything in the others
        kind = msgspec.Raw if slot.place else TYPES[want.kind]
        if want.required and not want.others:
            fields.append((slot.name, kind))
        else:
            fields.append((slot.name, kind if kind is msgspec.Raw else kind | None, None))
    fields.sort(key=lambda field: len(field))  # required ones first; they are read back by name
    record = msgspec.defstruct("Record", fields, rename={slot.name: slot.key for slot in slots}, gc=False)
    return msgspec.json.Decoder(record)


def _read_block(block: Block, decoders: list[Any], wanted: list[Wanted], max_record_bytes: int) -> Batch:
    texts = _text_keys(wanted)
    audit = jsonlines.audit_lines(
        np.frombuffer(block.data, np.uint8), [key for keys in texts for key in keys]
    )
    longest = int((audit.ends - audit.starts).max(initial=0))
    if not audit.flags.any() and longest <= max_record_bytes and _look_like_objects(block.data, audit):
        table = _read_whole(block.data, wanted, texts, audit)
        if table is not None:
            return Batch(table, [], audit.starts + block.offset)
    # one of the lines is bad: find out which, line by line
    several = [
        (want, own)
        for want, own in zip(wanted, _slots(wanted), strict=True)
        if want.others and want.kind is not Kind.NAME
    ]
    records: list[list[Any]] = [[] for _ in decoders]
    bad, good = [], []
    for start, end, flags in zip(
        audit.starts.tolist(), audit.ends.tolist(), audit.flags.tolist(), strict=True
    ):
        line = block.data[start:end]
        fault = find_fault(line, flags, max_record_bytes)
        if fault is None:
            try:
                decoded = [decoder.decode(line) for decoder in decoders]
                fault = _fault_of_others(line, decoded, several)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                fault = explain_error(line, error)
        if fault is None:
            good.append(block.offset + start)
            for turn, record in zip(records, decoded, strict=True):
                turn.append(record)
        else:
            bad.append(
                BadRecord(block.offset + start, *fault, id=id_of_line(line[:max_record_bytes], wanted))
            )
    return Batch(_columns(records, wanted, wanted, {}), bad, np.array(good, np.int64))


def _fault_of_others(
    line: bytes, decoded: list[Any], several: list[tuple[Wanted, list[_Slot]]]
) -> tuple[str, str] | None:
    """What is wrong with a record where a column with several keys is concerned."""
    for want, slots in several:
        first, *others = (getattr(decoded[slot.decoder], slot.name) for slot in slots)
        try:
            value = _first_given(want, first, others)
        except msgspec.ValidationError as error:
            return "wrong_type", str(error)
        if want.required and value is None:
            present = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
            lacks = f"`$.{want.key}` is null" if want.key in present else f"no field `{want.key}`"
            return "missing_field", lacks
    return None


def _first_given(want: Wanted, first: Any, others: Iterable[Any]) -> Any:
    """The value of the first key that has one."""
    for key, raw in zip(want.others, others, strict=True):
        if first is not None:
            break
        if raw is not None:
            try:
                first = msgspec.json.decode(raw, type=TYPES[want.kind] | None)
            except msgspec.ValidationError as error:
                raise msgspec.ValidationError(f"{error} - at `$.{key}`") from error
    return first


def _text_keys(wanted: list[Wanted]) -> list[tuple[str, ...]]:
    """Keys of strings that every record must have, and that nobody wants as anything else."""
    texts = {want.keys for want in wanted if want.kind in _TEXTS and want.required}
    others = [want.keys for want in wanted if want.kind not in _TEXTS or not want.required]
    shared = Counter(key for keys in [*texts, *others] for key in keys)
    found = dict.fromkeys(want.keys for want in wanted if want.keys in texts)
    return [keys for keys in found if all(shared[key] == 1 for key in keys)]


def _read_whole(
    data: bytes, wanted: list[Wanted], keys: list[tuple[str, ...]], audit: jsonlines.LineAudit
) -> Any | None:
    """None if a line is bad."""
    if not len(audit.starts):
        return string_table(wanted, [[] for _ in wanted])
    texts: dict[str, Any] = {}
    spans, place = [], 0
    for own in keys:
        span = audit.strings[:, place]
        if len(own) > 2 and (audit.strings[:, place : place + 2, 0] < 0).all(axis=1).any():
            return (
                None  # a third key counts only where the second has no value at all, which is not seen here
            )
        for other in range(place + 1, place + len(own)):
            span = np.where(span < 0, audit.strings[:, other], span)
        if (span < 0).any():
            return None
        found = jsonlines.unescape(np.frombuffer(data, np.uint8), *span.T)
        if found is None:
            return None
        texts |= {want.name: large_strings(*found) for want in wanted if want.keys == own}
        spans.append(span)
        place += len(own)
    rest = _without(data, np.concatenate([np.empty((0, 2), np.int64), *spans]))
    asked = tuple(narrowed for want in wanted if (narrowed := _narrowed(want, rest)))
    try:
        records = [decoder.decode_lines(rest) for decoder in _decoders(asked)]
        if len(records[0]) == len(audit.starts):
            return _columns(records, wanted, asked, texts)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    return None


def _narrowed(want: Wanted, data: bytes) -> Wanted | None:
    """Asking only for keys that occur at all; none of these lines has a key with a backslash."""
    if want.required and not want.others:
        return want
    keys = [key for key in want.keys if b'"%b"' % key.encode() in data]
    return want._replace(key=keys[0], others=tuple(keys[1:])) if keys else None


def _without(data: bytes, spans: NDArray[np.int64]) -> bytes:
    spans = spans[np.argsort(spans[:, 0])]
    places = zip([0, *spans[:, 1].tolist()], [*spans[:, 0].tolist(), len(data)], strict=True)
    return b"".join([data[start:end] for start, end in places])


def _look_like_objects(data: bytes, audit: jsonlines.LineAudit) -> bool:
    """Every line goes from { to }.

    `decode_lines` also takes two objects in one line, and one over two lines; a file with both could have as
    many objects as lines. No value has "}", newline, "{" inside it, so here each line holds at least one
    object, and as many objects as lines means one in each.
    """
    block = np.frombuffer(data, np.uint8)
    last = block[audit.ends - 1]
    last = np.where(last == _CR, block[audit.ends - 2], last)
    return bool((block[audit.starts] == _OPEN).all() and (last == _CLOSE).all())


def _columns(
    records: list[list[Any]], wanted: Sequence[Wanted], asked: Sequence[Wanted], texts: Mapping[str, Any]
) -> Any:
    """A column for all that is wanted: what was not asked for is null."""
    given: dict[str, Any] = dict(texts)
    for want, slots in zip(asked, _slots(asked), strict=True):
        if want.name in texts:
            continue
        values, *others = (list(map(attrgetter(slot.name), records[slot.decoder])) for slot in slots)
        if want.kind is Kind.NAME:
            given[want.name] = [
                next((name for name in map(_as_name, row) if name is not None), None)
                for row in zip(values, *others, strict=True)
            ]
            continue
        if others and None in values:
            values = [_first_given(want, *row) for row in zip(values, zip(*others, strict=True), strict=True)]
        if want.kind in (Kind.LINES, Kind.TERMS) and list in set(map(type, values)):
            values = [join_list(value, want.kind) for value in values]
        if want.kind in (Kind.SCALAR, Kind.TERMS) and not {str, type(None)}.issuperset(map(type, values)):
            values = [as_string(value) for value in values]
        elif want.kind in (Kind.JSON, Kind.OBJECT):
            values = [None if value is None else _as_json(value) for value in values]
        if want.kind is Kind.OBJECT:
            values = [None if value is None else as_object(value, want.key) for value in values]
        given[want.name] = values
    nothing = pa.nulls(len(records[0]), pa.large_string())
    return string_table(wanted, [given.get(want.name, nothing) for want in wanted])


def as_string(value: str | int | float | bool | None) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return json.dumps(value)


def _as_name(value: msgspec.Raw | None) -> str | None:
    return None if value is None else as_name(_as_json(value))


def _as_json(value: msgspec.Raw) -> str | None:
    text = str(bytes(value), "utf-8")
    return None if text == "null" else text
