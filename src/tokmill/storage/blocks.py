"""Files of lines, plain or compressed, in blocks of whole lines.

    file ─ decompress ─ read_exactly(4 MiB) ─ cut at the last "\\n" ─> Block(offset, bytes)
                                                  └ a line over max_record_bytes: skipped, reported

Lines end at "\\n" and nowhere else (`str.splitlines` would also split at U+2028). A compressed stream that
ends before its own end marker is an error that names the file, never a shorter file. A block is cut from the
decompressed stream at fixed positions, so blocks do not depend on how a library chunks its output.
"""

from __future__ import annotations

import bz2
import hashlib
import itertools
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from zlib_ng import gzip_ng, zlib_ng

from tokmill.errors import CorruptFile, InputError
from tokmill.kernels import jsonarray
from tokmill.storage.disk import (
    DecompressionParameter,
    ZstdDecompressor,
    ZstdError,
    is_fault_of_reading,
    unreadable,
)
from tokmill.storage.location import AnyPath, open_binary

BLOCK_BYTES = 4 << 20
_BLOCK_LINES = 1 << 16  # lines of 64 bytes fill a block
_COMPRESSED_BYTES = 1 << 20
UTF8_BOM = b"\xef\xbb\xbf"
# The most bytes that one byte of each compression can become: in deflate 2 bits are 258 bytes, in zstd 4 are
# a block of 128 KiB, in lz4 one is 255, in LZMA 0.3 bits are 273; a block of bzip2 is at most 47 MB, and
# takes 20 bytes or more.
EXPANSION = {".gz": 1032, ".zst": 1 << 15, ".bz2": 1 << 22, ".xz": 1 << 13, ".lz4": 256}
PACKED = tuple(EXPANSION)


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
    Behind a stream of xz may be padding, four bytes of NUL or a multiple.
    """

    def __init__(self, raw: Stream, new_frame: Callable[[], Any], *, is_padded: bool = False) -> None:
        self._raw, self._new_frame, self._frame = raw, new_frame, new_frame()
        self._is_padded = is_padded

    def read(self, size: int = -1, /) -> bytes:
        while True:
            fresh = b""
            if self._frame.eof:
                fresh = self._behind_frame()
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

    def _behind_frame(self) -> bytes:
        fresh: bytes = self._frame.unused_data or self._raw.read(_COMPRESSED_BYTES) or b""
        padding = 0
        while self._is_padded and fresh.startswith(b"\0"):
            size = len(fresh)
            fresh = fresh.lstrip(b"\0")
            padding += size - len(fresh)
            fresh = fresh or self._raw.read(_COMPRESSED_BYTES) or b""
        if padding % 4:
            raise lzma.LZMAError("the padding is no multiple of four bytes")
        return fresh


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
            yield FrameStream(raw, _xz, is_padded=True)
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
                    yield from _few_lines(position, data[: newline + 1])
                    return
            cut = len(fresh) if at_end else fresh.rfind(b"\n") + 1  # there is no newline in the tail
            if cut or (at_end and tail):
                # one copy, not one to put the tail before and one to cut
                data = b"".join((tail, memoryview(fresh)[:cut])) if tail or cut < len(fresh) else fresh
                yield from _few_lines(position, data)
                position += len(data)
                tail = fresh[cut:]
            else:
                tail += fresh
            if len(tail) > max_record_bytes:
                skipped, tail = len(tail), b""
            if at_end:
                return


def _few_lines(offset: int, data: bytes) -> Iterator[Block]:
    """Cut a block of very short lines: 4 MiB of `{}` are 1.4 million bad records, which took 700 MB."""
    if data.count(b"\n") <= _BLOCK_LINES:
        yield Block(offset, data)
        return
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))[_BLOCK_LINES - 1 :: _BLOCK_LINES] + 1
    for start, end in itertools.pairwise([0, *ends.tolist(), len(data)]):
        if start < end:
            yield Block(offset + start, data[start:end])


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
