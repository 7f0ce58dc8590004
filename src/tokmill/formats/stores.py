"""The files of one split behind one face, whatever their format: a row is its ids.

    Store        what the loader asks of a format
    RowStore     rows of one length in shards, mapped when first touched; `block(rows)` takes many at once
    PartStore    sequences in numbered parts, each mapped or decoded as a whole when a row of it is asked for

A format whose files are neither writes a class of its own (Megatron: lengths and pointers are mapped).
Nothing here knows what the ids mean.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from tokmill.formats.ids import Sequences, cast_ids

Ids = NDArray[np.integer]

# Of parts that are held decoded: 1 GB.
_HELD_TOKENS = 1 << 28


class Store(Protocol):
    format: str
    size: int  # rows, or documents
    seq_len: int | None  # None: rows are of any length
    dtype: str
    meta: dict[
        str, Any
    ]  # tokenizer_sha256, eos_id, pad_id, vocab_size, layout, split … as far as the files say
    split: str | None = None  # the one that is opened, of several in the directory
    loss: Store | None = None  # the same rows, 1 where an id is learned; None: all are
    first: int = 0  # its first row, in an index that goes through all of them

    def view(self, row: int) -> Ids:
        """The ids of a row, read-only and with the padding that is stored."""

    def block(self, rows: NDArray[np.int64]) -> Ids:
        """(rows, seq_len), a copy; only where there is a seq_len."""

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ids of each row."""

    def files(self) -> Iterator[tuple[Path, int]]:
        """Every file of ids, and its bytes as they must be; -1 where only reading it tells."""

    # What a class that names this one as its base need not write.

    def doc_id(self, row: int) -> str | None:
        """Where the files themselves name the document of a row."""
        return None

    def digests(self) -> list[tuple[Path, str]]:
        """sha256 of the files, where the format itself knows them."""
        return []

    def content(self) -> list[str]:
        """Digests of all that is in the files, of their bytes or not; none: the format keeps none."""
        return []


class RowStore(Store):
    """`rows[n]` rows are in shard n, which `load(n)` maps; `files` are the shards with their bytes."""

    seq_len: int

    def __init__(
        self,
        format: str,
        meta: dict[str, Any],
        rows: Sequence[int],
        load: Callable[[int], Ids],
        *,
        seq_len: int,
        dtype: str,
        files: Sequence[tuple[Path, int]],
        loss: Store | None = None,
    ) -> None:
        self.format, self.meta, self.seq_len, self.dtype = format, meta, seq_len, dtype
        self.loss = loss
        self._load, self._files = load, list(files)
        self._ends = np.cumsum([0, *rows])[1:]
        self._bounds: list[int] = self._ends.tolist()
        self.size = self._bounds[-1] if self._bounds else 0
        self._shards: list[Ids | None] = [None] * len(rows)
        self._may_wrap = not np.can_cast(np.dtype(dtype), np.int32)

    def view(self, row: int) -> Ids:
        number = bisect.bisect_right(self._bounds, row)
        return cast("Ids", self._shard(number)[row - (self._bounds[number - 1] if number else 0)])

    def block(self, rows: NDArray[np.int64]) -> Ids:
        if len(self._shards) == 1:
            # 8.5 µs for eight rows of 2,048; [rows] takes 11.8, and a named axis 0.3 more
            taken = (self._shards[0] if self._shards[0] is not None else self._shard(0)).take(rows, 0)
        else:
            taken = np.empty((len(rows), self.seq_len), self.dtype)
            numbers = np.searchsorted(self._ends, rows, "right")
            for place, (number, row) in enumerate(zip(numbers.tolist(), rows.tolist(), strict=True)):
                taken[place] = self._shard(number)[row - (self._bounds[number - 1] if number else 0)]
        if self._may_wrap:  # batches are int32
            cast_ids(taken, "int32", where=str(self._files[0][0].parent))
        return taken

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.full(len(rows), self.seq_len, np.int64)

    def files(self) -> Iterator[tuple[Path, int]]:
        return iter(self._files)

    def _shard(self, number: int) -> Ids:
        shard = self._shards[number]
        if shard is None:
            shard = self._shards[number] = plain(self._load(number))
        return shard


def mask_store(format: str, rows: Sequence[int], load: Callable[[int], Ids], seq_len: int) -> RowStore:
    """What is learned of rows, in shards as theirs; the files are listed with those of the ids."""
    return RowStore(format, {}, rows, load, seq_len=seq_len, dtype="uint8", files=())


class Part(NamedTuple):
    path: Path
    rows: int
    tokens: int
    digest: str


class PartStore(Store):
    """`load(n)` gives the sequences of part n. Mapped parts stay, and their digests are those of their files;
    of decoded ones as many are held as there is room for, and their digests are those of what they hold."""

    dtype = "int32"

    def __init__(
        self,
        format: str,
        meta: dict[str, Any],
        parts: Sequence[Part],
        load: Callable[[int], Sequences],
        *,
        is_mapped: bool,
        seq_len: int | None = None,
    ) -> None:
        self.format, self.meta, self.seq_len = format, meta, seq_len
        self._parts, self._load, self._is_mapped = list(parts), load, is_mapped
        self._ends = list(itertools.accumulate(part.rows for part in parts))
        self.size = self._ends[-1] if self._ends else 0
        self._held: dict[int, tuple[Ids, NDArray[np.int64], Any]] = {}

    def narrow(self, split: str, first: int, size: int) -> None:
        """To the rows of one split, of several one after the other."""
        self.split, self.first, self.size = split, first, size

    def view(self, row: int) -> Ids:
        number, within = self._place(row)
        ids, begins, _ = self._part(number)
        return ids[begins[within] : begins[within + 1]]

    def block(self, rows: NDArray[np.int64]) -> Ids:
        assert self.seq_len is not None, "sequences of any length are no block"
        taken = np.empty((len(rows), self.seq_len), self.dtype)
        for place, row in enumerate(rows.tolist()):
            taken[place] = self.view(row)
        return taken

    def doc_id(self, row: int) -> str | None:
        number, within = self._place(row)
        names = self._part(number)[2]
        return None if names is None else str(names[within])

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        rows = rows + self.first
        numbers = np.searchsorted(self._ends, rows, "right")
        lengths = np.empty(len(rows), np.int64)
        for number in np.unique(numbers).tolist():
            mine = numbers == number
            begins = self._part(number)[1]
            within = rows[mine] - (self._ends[number - 1] if number else 0)
            lengths[mine] = begins[within + 1] - begins[within]
        return lengths

    def files(self) -> Iterator[tuple[Path, int]]:
        for number, part in enumerate(self._parts):
            if self._is_mapped and isinstance(part.path, Path):
                self._part(number)  # its arrays must lie within the file; of objects, when it is touched
            yield part.path, part.path.stat().st_size if self._is_mapped else -1

    def digests(self) -> list[tuple[Path, str]]:
        return [(part.path, part.digest) for part in self._parts] if self._is_mapped else []

    def content(self) -> list[str]:
        return [part.digest for part in self._parts]

    def _place(self, row: int) -> tuple[int, int]:
        """The part, and the row in it."""
        row += self.first
        number = bisect.bisect_right(self._ends, row)
        return number, row - (self._ends[number - 1] if number else 0)

    def _part(self, number: int) -> tuple[Ids, NDArray[np.int64], Any]:
        held = self._held.get(number)
        if held is None:
            part = self._load(number)
            while not self._is_mapped and self._held and not self._has_room(number):
                self._held.pop(next(iter(self._held)))  # the one that has been here longest
            begins = np.concatenate((np.zeros(1, np.int64), np.cumsum(part.lengths, dtype=np.int64)))
            held = self._held[number] = (plain(part.ids), begins, part.doc_ids)
        return held

    def _has_room(self, number: int) -> bool:
        return sum(self._parts[one].tokens for one in (*self._held, number)) <= _HELD_TOKENS


def plain(ids: Ids) -> Ids:
    """As an ndarray, read-only: a slice of np.memmap takes 2 µs to be made, one of its base 0.15."""
    if not isinstance(cast("object", ids), np.ndarray):  # blocks of an object: every slice of them is read
        return ids
    view = np.asarray(ids).view(np.ndarray)
    view.flags.writeable = False
    return view
