"""A file that is read by ranges: little after a jump (a Parquet footer), twice as much each time reading goes on."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

MIN_FETCH_BYTES = 64 << 10
MAX_FETCH_BYTES = 16 << 20

Fetch = Callable[[int, int], bytes | bytearray]


class RangedBytes(io.RawIOBase):
    """`fetch(start, end)` gives exactly those bytes. Unbuffered as a local file is; a read returns all it was asked for."""

    def __init__(self, size: int, fetch: Fetch, max_fetch_bytes: int = MAX_FETCH_BYTES) -> None:
        super().__init__()
        self._size, self._fetch, self._max_fetch_bytes = size, fetch, max_fetch_bytes
        self._position = 0
        self._start = 0
        self._held: bytes | bytearray = b""  # the range fetched last
        self._ahead = MIN_FETCH_BYTES

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._refuse_if_closed()
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"negative seek position {base + offset}")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        self._refuse_if_closed()
        view = memoryview(buffer).cast("B")
        filled = 0
        while filled < len(view) and self._position < self._size:
            at = self._position - self._start
            if not 0 <= at < len(self._held):
                self._hold(len(view) - filled)
                at = 0
            piece = memoryview(self._held)[at : at + len(view) - filled]
            view[filled : filled + len(piece)] = piece
            filled += len(piece)
            self._position += len(piece)
        return filled

    def readall(self) -> bytes:
        return self.read(max(self._size - self._position, 0)) or b""

    def close(self) -> None:
        self._held = b""
        super().close()

    def _refuse_if_closed(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _hold(self, wanted: int) -> None:
        goes_on = bool(self._held) and self._position == self._start + len(self._held)
        self._ahead = min(2 * self._ahead, self._max_fetch_bytes) if goes_on else MIN_FETCH_BYTES
        end = min(self._position + max(wanted, self._ahead), self._size)
        self._start, self._held = self._position, self._fetch(self._position, end)
