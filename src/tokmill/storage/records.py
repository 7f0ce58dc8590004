"""Records of files: bytes are cut into blocks of whole lines, and columns of strings are made of them.

    file ─ decompress ─ read_exactly(4 MiB) ─ cut at the last "\\n" ─> Block(offset, bytes)
                                                  └ a line over max_record_bytes: skipped, reported

Lines end at "\\n" and nowhere else (`str.splitlines` would also split at U+2028). A compressed stream that
ends before its own end marker is an error that names the file, never a shorter file. A block is cut from the
decompressed stream at fixed positions, so blocks do not depend on how a library chunks its output.

A codec is asked for `Wanted` columns and yields `Batch`es in file order:

    read_batches(path, wanted, ...) -> Batch(table, bad, offsets), Batch(table, bad, offsets), …

`table` has one large_string column per wanted name. A record that cannot be used is not in `table`; it is in
`bad` with where it lies and why, so that rows + bad = records, always. `offsets` says where each row lies.

JSON values, and what a record makes of them: why a line is none, what becomes `meta`, what becomes a name.

A fault is what the audit saw or what the parser meant, in the words of the ledger.
`meta` must be an object, however its file spells it:

    {"k": 1}          as it is
    "{\"k\": 1}"      a string that spells an object, as Parquet files have it: the object
    [1, 2], "web"     {"meta": [1, 2]}, {"meta": "web"}: under the key that it had

An object takes one line, and a line of JSON with it is one that the mill reads back.
"""

from __future__ import annotations

import bz2
import hashlib
import json
import lzma
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from zlib_ng import gzip_ng, zlib_ng

from tokmill.errors import CorruptFile, InputError
from tokmill.kernels import jsonarray, jsonlines
from tokmill.storage.disk import (
    DecompressionParameter,
    ZstdDecompressor,
    ZstdError,
    is_fault_of_reading,
    unreadable,
)
from tokmill.storage.location import AnyPath, open_binary

BLOCK_BYTES = 4 << 20
_COMPRESSED_BYTES = 1 << 20
UTF8_BOM = b"\xef\xbb\xbf"
PACKED = (".gz", ".zst", ".bz2", ".xz", ".lz4")


def packed(*suffixes: str) -> tuple[str, ...]:
    """Each as it is, and with every compression."""
    return tuple(suffix + end for suffix in suffixes for end in ("", *PACKED))


# What may be one array instead of lines; an array is never read from its middle.
JSON = packed(".json")
_SNIFFED_BYTES = 4096
_MAX_SPACE = 1 << 20


class Stream(Protocol):
    def read(self, size: int = -1, /) -> bytes | None: ...


class Block(NamedTuple):
    """Whole lines, the last possibly without its newline; `offset` counts decompressed bytes."""

    offset: int
    data: bytes


class Oversize(NamedTuple):
    """A line longer than the reader accepts; its bytes were skipped, not kept."""

    offset: int
    bytes: int


class Bz2Error(Exception): ...


# A frame may say that it needs this much to be decompressed: `zstd --long=31` is 2 GiB, `xz -9` 65 MiB.
# A reader has that memory for as long as it reads the frame, and only as far as there is text for it.
_WINDOW_LOG, _XZ_BYTES = 31, 2 << 30
_TOO_LARGE = re.compile("too much memory|not enough memory|Memory usage limit")


def _zstd() -> Any:
    return ZstdDecompressor(options={DecompressionParameter.window_log_max: _WINDOW_LOG})


def _xz() -> Any:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_BYTES)


class FrameStream:
    """One compressed frame after another: of zstd or xz, or the streams of a bzip2 multistream dump.

    Not bz2.BZ2File: it takes whatever is not a stream after the first one for padding, so a dump with one
    damaged stream would just end there. Not ZstdFile: its reads of 128 KiB made it a fifth slower than this.
    """

    def __init__(self, raw: Stream, new_frame: Callable[[], Any]) -> None:
        self._raw, self._new_frame, self._frame = raw, new_frame, new_frame()

    def read(self, size: int = -1, /) -> bytes:
        while True:
            fresh = b""
            if self._frame.eof:
                fresh = self._frame.unused_data or self._raw.read(_COMPRESSED_BYTES) or b""
                if not fresh:
                    return b""
                self._frame = self._new_frame()
            elif self._frame.needs_input:
                fresh = self._raw.read(_COMPRESSED_BYTES) or b""
                if not fresh:
                    raise EOFError
            try:
                data: bytes = self._frame.decompress(fresh, size)
            except OSError as error:  # what bz2 raises for damage
                raise Bz2Error(str(error)) from error
            if data:
                return data


_DAMAGE: tuple[Any, ...] = (
    ZstdError,
    Bz2Error,
    gzip_ng.BadGzipFile,
    zlib_ng.error,
    zlib.error,
    lzma.LZMAError,
    pa.ArrowException,
)


@contextmanager
def open_stream(path: AnyPath) -> Iterator[Stream]:
    """Decompressed by suffix; anything else is read as it is."""
    with open_binary(path) as raw:
        if path.suffix == ".gz":
            if not path.stat().st_size:
                raise _truncated(path)  # what zstd says of an empty file; gzip would read it as no data
            with gzip_ng.GzipNGFile(fileobj=raw, mode="rb") as stream:
                yield stream
        elif path.suffix == ".zst":
            yield FrameStream(raw, _zstd)
        elif path.suffix == ".bz2":
            yield FrameStream(raw, bz2.BZ2Decompressor)
        elif path.suffix == ".xz":
            yield FrameStream(raw, _xz)
        elif path.suffix == ".lz4":
            if not path.stat().st_size:
                raise _truncated(path)
            with pa.CompressedInputStream(pa.PythonFile(raw, "r"), "lz4") as stream:
                yield stream
        else:
            yield raw


class Ahead:
    """A stream of which the beginning is read already."""

    def __init__(self, head: bytes, stream: Stream) -> None:
        self._head, self._stream = head, stream

    def read(self, size: int = -1, /) -> bytes | None:
        if self._head:
            head, self._head = self._head[:size], self._head[size:]
            return head
        return self._stream.read(size)


class ArrayStream:
    """The elements of one JSON array as lines, each where it lies in the file."""

    def __init__(self, head: bytes, stream: Stream, path: AnyPath) -> None:
        opening = head.index(b"[") + 1
        mark = UTF8_BOM if head.startswith(UTF8_BOM) else b""
        self._raw, self._path, self._lines = Ahead(head[opening:], stream), path, jsonarray.ArrayLines()
        self._before = mark + b"\n" * (opening - len(mark))

    def read(self, size: int = -1, /) -> bytes:
        if self._before:
            before, self._before = self._before[:size], self._before[size:]
            return before
        piece = self._raw.read(size)
        spelled = self._lines.spell(piece) if piece else b""
        if self._lines.awaits == jsonarray.MORE:
            raise CorruptFile(
                "there is more after the end of its JSON array",
                where=str(self._path),
                next="make one array of it, or one object on each line",
            )
        if not piece and self._lines.awaits != jsonarray.CLOSED:
            raise CorruptFile(
                "its JSON array does not end: the file is truncated, or one element is no JSON",
                where=str(self._path),
                next="copy or download it again, or repair it",
            )
        return spelled


def open_records(stream: Stream, path: AnyPath) -> Stream:
    """Of a file of JSON: its lines, also where they are the elements of one array."""
    head = b""
    while True:
        fresh = read_exactly(stream, _SNIFFED_BYTES, path)
        head += fresh
        first = head.removeprefix(UTF8_BOM).lstrip(b" \t\r\n")[:1]
        if first == b"[":
            return ArrayStream(head, stream, path)
        if first or not fresh or len(head) > _MAX_SPACE:
            return Ahead(head, stream)


def is_array(path: AnyPath) -> bool:
    with open_stream(path) as stream:
        return isinstance(open_records(stream, path), ArrayStream)


def read_exactly(stream: Stream, size: int, path: AnyPath) -> bytes:
    """`size` bytes, fewer only at the end of the file."""
    pieces: list[bytes] = []
    missing = size
    try:
        while missing:
            piece = stream.read(missing)
            if not piece:
                break
            pieces.append(piece)
            missing -= len(piece)
    except EOFError as error:
        raise _truncated(path) from error
    except (MemoryError, *_DAMAGE) as error:
        if _TOO_LARGE.search(str(error)) or (
            isinstance(error, MemoryError) and path.suffix in (".zst", ".xz")
        ):
            raise _window(path) from error
        if isinstance(error, MemoryError) and not isinstance(error, pa.ArrowException):
            raise
        raise CorruptFile(
            f"cannot be decompressed ({error})", where=str(path), next="copy or download it again"
        ) from error
    except OSError as error:
        if path.suffix == ".lz4" and not is_fault_of_reading(error):  # what Arrow raises for damage
            raise CorruptFile(
                f"cannot be decompressed ({error})", where=str(path), next="copy or download it again"
            ) from error
        raise unreadable(error, path) from error
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def plain_sha256(path: Path) -> str:
    """sha256 of the decompressed content."""
    digest = hashlib.sha256()
    with open_stream(path) as stream:
        while piece := read_exactly(stream, BLOCK_BYTES, path):
            digest.update(piece)
    return digest.hexdigest()


def read_blocks(
    path: AnyPath,
    *,
    max_record_bytes: int,
    start: int = 0,
    end: int | None = None,
    block_bytes: int | None = None,
) -> Iterator[Block | Oversize]:
    """Blocks of the lines whose first byte lies in [start, end).

    [0, a), [a, b), [b, None) together give each line exactly once. Positions are of what a file is
    decompressed to, and what lies before `start` is decompressed and let go.
    """
    size = block_bytes or BLOCK_BYTES
    with open_stream(path) as stream:
        position = max(start - 1, 0)
        if position and path.suffix in PACKED:
            _skip(stream, position, path)
        elif position:
            stream.seek(position)  # type: ignore[attr-defined]
        elif path.name.endswith(JSON):
            stream = open_records(stream, path)
        tail = b""  # the beginning of a line whose end is not read yet
        skipped = 0  # bytes of an oversize line that were already let go
        must_find_start = start > 0
        while True:
            fresh = read_exactly(stream, size, path)
            at_end = len(fresh) < size
            if must_find_start:
                newline = fresh.find(b"\n")
                if newline < 0:
                    position += len(fresh)
                    if at_end or (end is not None and position >= end):
                        return
                    continue
                position += newline + 1
                if end is not None and position >= end:
                    return
                fresh = fresh[newline + 1 :]
                must_find_start = False
            elif position == 0 and not (tail or skipped) and fresh.startswith(UTF8_BOM):
                fresh, position = fresh[3:], 3

            if skipped:
                newline = fresh.find(b"\n")
                if newline < 0 and not at_end:
                    skipped += len(fresh)
                    continue
                cut = newline + 1 if newline >= 0 else len(fresh)
                yield Oversize(position, skipped + cut - (newline >= 0))
                position += skipped + cut
                skipped, fresh = 0, fresh[cut:]
                if end is not None and position >= end:
                    return

            if end is not None and position + len(tail) + len(fresh) >= end:
                # the last line of the range is the one that holds the byte before `end`
                data = tail + fresh
                newline = data.find(b"\n", max(end - 1 - position, 0))
                if newline >= 0:
                    yield Block(position, data[: newline + 1])
                    return
            cut = len(fresh) if at_end else fresh.rfind(b"\n") + 1  # there is no newline in the tail
            if cut or (at_end and tail):
                # one copy, not one to put the tail before and one to cut
                data = b"".join((tail, memoryview(fresh)[:cut])) if tail or cut < len(fresh) else fresh
                yield Block(position, data)
                position += len(data)
                tail = fresh[cut:]
            else:
                tail += fresh
            if len(tail) > max_record_bytes:
                skipped, tail = len(tail), b""
            if at_end:
                return


def _skip(stream: Stream, size: int, path: AnyPath) -> None:
    while size and (piece := read_exactly(stream, min(size, BLOCK_BYTES), path)):
        size -= len(piece)


def _window(path: AnyPath) -> InputError:
    again = "xz -6" if path.suffix == ".xz" else "zstd -19"
    return InputError(
        "its window needs more memory than there is here, or more than the 2 GiB that are read at most",
        where=str(path),
        next=f"read it where there is more memory, or unpack it and pack it with a smaller one: `{again}`",
    )


def _truncated(path: AnyPath) -> CorruptFile:
    return CorruptFile(
        "the compressed data ends before its end marker: the file is truncated",
        where=str(path),
        next="copy or download it again",
    )


class Kind(StrEnum):
    TEXT = "text"  # must be a string
    LINES = "text or list of texts"  # a list of strings is one text, with a line for each
    TERMS = "licence or list of licences"  # all of them, as one expression
    SCALAR = "scalar"  # a string, or a number or boolean written as one
    JSON = "json"  # any value, kept as its JSON
    NAME = "name"  # a string, or a number written as one; any other value is no name, and null
    OBJECT = "object"  # a JSON object, or a string that spells one; any other value as {"<key>": value}


_PATH = re.compile(r"([^.\[\]]+)((?:\.[^.\[\]]+|\[-?\d+\])+)")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(-?\d+)\]")


def outer_of(key: str) -> str:
    """The field that a path like `a.b` or `a[0].b` begins with; any other key itself."""
    path = _PATH.fullmatch(key)
    return path[1] if path else key


def steps_of(key: str) -> list[tuple[str | None, str | int]]:
    """Of a path behind its field: the rest of it as one key, which it may be at each place; and the next
    member or element."""
    rest = key.removeprefix(outer_of(key))
    return [
        (rest[step.start() + 1 :] if step[1] else None, step[1] or int(step[2]))
        for step in _STEP.finditer(rest)
    ]


class Wanted(NamedTuple):
    """Read `key` of each record into column `name`;
    where a record has none, or a null, the first of `others`.

    What `others` hold is looked at in those records alone: of another record it may be anything.
    """

    name: str
    key: str
    kind: Kind
    required: bool
    others: tuple[str, ...] = ()
    for_paths: bool = False  # an object, wanted only for paths into it that name no column

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key, *self.others)


class BadRecord(NamedTuple):
    """`offset`: bytes into the decompressed file, or the row number in a file of columns."""

    offset: int
    reason: str
    detail: str
    file: str = ""  # where a reader takes records from several files at once


class Batch(NamedTuple):
    table: Any
    bad: list[BadRecord]
    offsets: NDArray[np.int64]  # where each row of the table lies, as in BadRecord


class Peek(NamedTuple):
    """What the beginning of a file shows."""

    keys: list[str]
    is_whole: bool  # there are no others: it was all of the file, or a file says which columns it has


class Span(NamedTuple):
    """A part of a file: bytes [start, end) of what it is decompressed to, of one of columns row groups or
    batches."""

    start: int = 0
    end: int | None = None


WHOLE = Span()


class Seam(NamedTuple):
    """Of a part of a file that had to guess where its first record begins: where it took it to be, None for
    nowhere in it; and where the first record of the next part begins, None for the end of the file."""

    begins: int | None
    ends: int | None
    is_broken: bool = False  # it could not be read from there, as may be where the guess was wrong


def no_rows(wanted: Sequence[Wanted], bad: list[BadRecord]) -> Batch:
    return Batch(string_table(wanted, [[] for _ in wanted]), bad, np.empty(0, np.int64))


def join_list(value: Any, kind: Kind) -> Any:
    """A list of strings as one; anything else as it is."""
    if not isinstance(value, list):
        return value
    if kind is Kind.LINES:
        return "\n".join(value)
    # AND binds closer than OR
    return (
        " AND ".join(f"({one})" if len(value) > 1 and " OR " in one.upper() else one for one in value) or None
    )


def string_table(wanted: Sequence[Wanted], columns: list[Any]) -> Any:
    """`columns`: lists of strings and None, or large_string arrays."""
    arrays = [
        pa.array(column, pa.large_string()) if isinstance(column, list) else column for column in columns
    ]
    return pa.table(arrays, names=[want.name for want in wanted])


_NOT_JSON = re.compile(rb"(?:NaN|-?Infinity)\b")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def find_fault(line: bytes, flags: int, max_record_bytes: int) -> tuple[str, str] | None:
    """What is wrong with a line that the parser would accept."""
    if len(line) > max_record_bytes:
        return too_large(0, len(line), max_record_bytes)[1:3]
    if flags & jsonlines.INVALID_UTF8:
        try:
            line.decode()
        except UnicodeDecodeError as error:
            return "invalid_utf8", f"byte {error.start}: {error.reason}"
    if flags & jsonlines.TOO_DEEP:
        return "too_deep", f"nested deeper than {jsonlines.MAX_DEPTH} levels"
    if flags & (jsonlines.DUPLICATE_KEY | jsonlines.ESCAPED_KEY):
        duplicate = _duplicate_key(line)
        if duplicate:
            return "duplicate_key", duplicate
    return None


def _duplicate_key(line: bytes) -> str | None:
    found: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found.extend(key for key, count in Counter(key for key, _ in items).items() if count > 1)
        return dict(items)

    try:
        # numbers stay as they are written: Python refuses to convert more than 4,300 digits
        json.loads(line, object_pairs_hook=pairs, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None  # not JSON at all: the parser says so
    return f"key {min(found)!r} occurs twice in one object" if found else None


def explain_error(line: bytes, error: Exception) -> tuple[str, str]:
    text = str(error).replace("`str | array`", "`str`")
    if isinstance(error, UnicodeDecodeError):
        return "invalid_utf8", f"byte {error.start} of a field: {error.reason}"
    if isinstance(error, RecursionError):
        return "too_deep", "nested deeper than the parser goes"
    if isinstance(error, msgspec.ValidationError):
        try:
            msgspec.json.decode(line, type=msgspec.Raw)
        except msgspec.DecodeError as deeper:
            text = str(deeper)  # the parser stopped at a wrong type, before the place where this is not JSON
        else:
            if "missing required field" in text:
                return "missing_field", text.replace("Object missing required field", "no field")
            if "got `null` - at `$." in text:
                return "missing_field", f"{text.rpartition(' - at ')[2]} is null"
            return "wrong_type", text
    surrogate = _SURROGATE.search(line)
    if surrogate and _has_lone_surrogate(line):
        return "lone_surrogate", f"byte {surrogate.start()}: half of a surrogate pair"
    literal = _NOT_JSON.search(line)
    if literal:
        return "invalid_json", f"byte {literal.start()}: {literal[0].decode()} is not JSON"
    return "invalid_json", text


def _has_lone_surrogate(line: bytes) -> bool:
    try:
        json.dumps(json.loads(line), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except (ValueError, RecursionError):
        return False
    return False


def too_large(offset: int, size: int, max_record_bytes: int, unit: str = "line") -> BadRecord:
    return BadRecord(
        offset, "too_large", f"{size:,} bytes in one {unit}; max_record_bytes is {max_record_bytes:,}"
    )


_OBJECT = msgspec.json.Decoder(dict[str, Any])


def as_object(spelled: str, key: str) -> str:
    """The JSON of a value as that of an object, in one line."""
    if spelled.startswith("{"):
        return spelled
    if spelled.startswith('"'):
        return objects_of([msgspec.json.decode(spelled, type=str)], key)[0] or "{}"
    return _wrapped(spelled, key)


def as_name(spelled: str | None) -> str | None:
    """The JSON of a string or a number as a name."""
    value = None if spelled is None else msgspec.json.decode(spelled)
    if value is None or isinstance(value, dict | list):
        return None
    return value if isinstance(value, str) else spelled


def objects_of(texts: list[str | None], key: str) -> list[str | None]:
    """Each string that spells a JSON object, as strictly as lines are read; any other as a member of one."""
    lines = [text for text in texts if text is not None]
    if not _are_objects(lines):  # one of them is none: find out which
        texts = [None if text is None else _in_one_line(text, key) for text in texts]
    return texts


def _in_one_line(text: str, key: str) -> str:
    if _are_objects([text]):
        return text
    joined = text.replace("\r", " ").replace("\n", " ").strip()  # within a string both would be escaped
    if _are_objects([joined]):
        return joined
    return _wrapped(msgspec.json.encode(text).decode(), key)


def _are_objects(lines: list[str]) -> bool:
    """Every one from { to }, and as many objects as lines: then there is one in each."""
    if not all(line.startswith("{") and line.endswith("}") for line in lines):
        return False
    data = "\n".join(lines).encode()
    try:
        count = len(_OBJECT.decode_lines(data))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    starts, ends, flags, _ = jsonlines.audit_lines(data) if data else jsonlines.audit_lines(b"\n")
    return count == len(lines) == len(starts) and not any(
        find_fault(data[starts[row] : ends[row]], int(flags[row]), len(data))
        for row in np.flatnonzero(flags).tolist()
    )


def _wrapped(spelled: str, key: str) -> str:
    return f"{{{msgspec.json.encode(key).decode()}:{spelled}}}"
