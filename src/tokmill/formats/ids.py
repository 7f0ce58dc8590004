"""What all formats share: ids as they are stored, sequences of them, and the description beside them.

ids        little-endian, in the dtype asked for, and never wrapped
meta.json  what the ids mean: sorted keys, written last

batches    |a bb c| |dddd| |e f|        as they come
regroup    |a bb| |c| |dddd| |e f|      two sequences or four tokens at most: how they came does not show

Names of splits: train, valid and test, and the field's other words for the second of them.

The files of one split behind one face, whatever their format: a row is its ids.

    Store        what the loader asks of a format
    RowStore     rows of one length in shards, mapped when first touched; `block(rows)` takes many at once
    PartStore    sequences in numbered parts, each mapped or decoded as a whole when a row of it is asked for

A format whose files are neither writes a class of its own (Megatron: lengths and pointers are mapped).
Nothing here knows what the ids mean.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, Protocol, TypeVar, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import FileEntry, file_entry, fingerprint_of
from tokmill.errors import CorruptFile, InputError, VocabTooLarge
from tokmill.storage.disk import Written, commit_bytes, load_bytes, remove_file
from tokmill.storage.location import is_within

T = TypeVar("T")

SPLITS: Final = ("train", "valid", "test")  # by number

# What records, hub datasets and trainers call each. A word stands in one list only.
SPLIT_WORDS: Final = {"train": ("train",), "valid": ("valid", "validation", "val", "dev"), "test": ("test",)}

_OURS: Final = {word: name for name, words in SPLIT_WORDS.items() for word in words}


def plain_split(name: str) -> str:
    """Our name for it; a word that is no other name for one of ours stays as it is."""
    return _OURS.get(name, name)


def find_split(wanted: str, names: Iterable[str]) -> str | None:
    """The one of `names` that is meant: the very word, or else another word for the same."""
    known = list(names)
    if wanted in known:
        return wanted
    return next((name for name in known if plain_split(name) == plain_split(wanted)), None)


META_NAME = "meta.json"
Count = Annotated[int, msgspec.Meta(ge=0)]


def smallest_dtype(vocab_size: int) -> str:
    return "uint16" if vocab_size <= 1 << 16 else "int32"


def cast_ids(ids: NDArray[np.integer], dtype: str, *, where: str) -> NDArray[np.integer]:
    """`ids`, contiguous and as `dtype`; an id that does not fit is an error."""
    assert np.issubdtype(ids.dtype, np.integer), f"{where}: ids are integers, not {ids.dtype}"
    if ids.size and not np.can_cast(ids.dtype, dtype):
        limits = np.iinfo(dtype)
        for id in (int(ids.min()), int(ids.max())):
            if not limits.min <= id <= limits.max:
                raise VocabTooLarge(
                    f"id {id:,} does not fit {dtype}",
                    where=where,
                    next="set `dtype: int32`"
                    if id > 0
                    else "make the tokens again: no tokenizer gives such an id",
                )
    return np.ascontiguousarray(ids, dtype=np.dtype(dtype).newbyteorder("<"))


def check_vocabulary(ids: NDArray[np.integer], meta: Mapping[str, Any], path: Path) -> None:
    """Every id is one of the vocabulary, if the description says how large that is."""
    vocab_size = meta.get("vocab_size")
    if type(vocab_size) is not int or not ids.size:
        return
    for id in (int(ids.min()), int(ids.max())):
        if not 0 <= id < vocab_size:
            raise corrupt(f"holds the id {id:,}, outside of the vocabulary of {vocab_size:,}", path)


class Pieces:
    """A stream of ids as `dtype`, cut where it is asked to be."""

    def __init__(self, arrays: Iterable[NDArray[np.integer]], dtype: str, where: str) -> None:
        self._arrays, self._dtype, self._where = iter(arrays), dtype, where
        self._rest: NDArray[np.integer] = np.empty(0, dtype)

    def take(self, count: int) -> Iterator[NDArray[np.integer]]:
        while count:
            if not self._rest.size and self.is_empty():
                raise AssertionError(f"{self._where}: {count} ids are missing")
            piece, self._rest = self._rest[:count], self._rest[count:]
            count -= piece.size
            yield piece

    def is_empty(self) -> bool:
        while not self._rest.size:
            array = next(self._arrays, None)
            if array is None:
                return True
            self._rest = cast_ids(array, self._dtype, where=self._where).reshape(-1)
        return False


class Sequences(NamedTuple):
    """Some sequences, one after the other in `ids`; with their names, where they have any.

    `positions`, where they were asked for: of every id how far it is into its document (or into what the
    row has of it), 0, 1, …; of padding ~0, ~1, …, which is below 0.
    """

    ids: NDArray[np.integer]
    lengths: NDArray[np.integer]
    doc_ids: Sequence[str] | None = None
    positions: NDArray[np.int32] | None = None
    loss: NDArray[np.integer] | None = None  # per id: 1 where it is learned; None: all are


def regroup(
    batches: Iterable[Sequences], *, max_sequences: int, max_tokens: int, where: str
) -> Iterator[Sequences]:
    """Groups as large as both bounds allow, ids as int32.
    A longer sequence than that is a group of its own."""
    assert max_sequences >= 1, "a group holds a sequence at least"
    waiting: list[Sequences] = []
    count = tokens = 0
    for batch in batches:
        ends = np.cumsum(batch.lengths, dtype=np.int64)
        assert len(batch.ids) == (int(ends[-1]) if ends.size else 0), "lengths do not add up to the ids"
        assert batch.doc_ids is None or len(batch.doc_ids) == len(ends), (
            "a name for each sequence, or for none"
        )
        ids, start = cast_ids(batch.ids, "int32", where=where), 0
        while start < len(ends):
            begin = int(ends[start - 1]) if start else 0
            most = int(np.searchsorted(ends, begin + max_tokens - tokens, "right"))
            stop = min(most, start + max_sequences - count)
            if stop == start and tokens == 0:
                stop = start + 1
            if stop > start:
                end = int(ends[stop - 1])
                names = None if batch.doc_ids is None else batch.doc_ids[start:stop]
                places = None if batch.positions is None else batch.positions[begin:end]
                loss = None if batch.loss is None else batch.loss[begin:end]
                waiting.append(Sequences(ids[begin:end], batch.lengths[start:stop], names, places, loss))
                count, tokens, start = count + stop - start, tokens + end - begin, stop
            if count == max_sequences or (start < len(ends) and tokens):
                yield joined(waiting)
                waiting, count, tokens = [], 0, 0
    if waiting:
        yield joined(waiting)


def cut_sequences(
    lengths: Iterable[NDArray[np.integer]], *, max_sequences: int, max_tokens: int
) -> Iterator[tuple[int, int]]:
    """Sequences and tokens of each of the groups that `regroup` makes, from lengths alone."""
    count = tokens = 0
    for block in lengths:
        ends, start = np.cumsum(block, dtype=np.int64), 0
        while start < len(ends):
            begin = int(ends[start - 1]) if start else 0
            most = int(np.searchsorted(ends, begin + max_tokens - tokens, "right"))
            stop = min(most, start + max_sequences - count)
            if stop == start and tokens == 0:
                stop = start + 1
            if stop > start:
                count, tokens = count + stop - start, tokens + int(ends[stop - 1]) - begin
                start = stop
            if count == max_sequences or (start < len(ends) and tokens):
                yield count, tokens
                count = tokens = 0
    if count:
        yield count, tokens


def sequence_lengths(
    rows: int, seq_len: int, lengths: Iterable[NDArray[np.int64]]
) -> Iterable[NDArray[np.int64]]:
    """Of rows, which have one length, or of documents."""
    return [np.full(rows, seq_len, np.int64)] if seq_len else lengths


def joined(parts: list[Sequences]) -> Sequences:
    names = None if parts[0].doc_ids is None else [name for part in parts for name in part.doc_ids or ()]
    ids = np.concatenate([part.ids for part in parts])
    places = [part.positions for part in parts if part.positions is not None]
    masks = [part.loss for part in parts if part.loss is not None]
    lengths = np.concatenate([part.lengths for part in parts]).astype(np.int64)
    return Sequences(
        ids,
        lengths,
        names,
        np.concatenate(places) if places else None,
        np.concatenate(masks) if masks else None,
    )


@functools.lru_cache(maxsize=64)  # many shards are asked for a document
def npy_header(shape: tuple[int, ...], kind: str = "<i4") -> bytes:
    """What precedes the data of an .npy file; spelled here,
    because bytes must not change with NumPy's version."""
    facts = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    spaces = -(10 + len(facts) + 1) % 64
    return (
        b"\x93NUMPY\x01\x00" + (len(facts) + spaces + 1).to_bytes(2, "little") + facts + b" " * spaces + b"\n"
    )


def write_meta(path: Path, described: Mapping[str, object]) -> Written:
    encoded = msgspec.json.format(msgspec.json.encode(described, order="sorted"), indent=2)
    return commit_bytes(path, encoded + b"\n")


def load_meta(directory: Path, format: str, what: str, facts: type[T]) -> tuple[dict[str, Any], T]:
    """What a build of this format tells of itself: all that was written, and what its reader must know."""
    path = directory / META_NAME
    if not path.is_file():
        raise InputError(
            "no such file", where=str(path), next=f"give the directory of a finished {format} build"
        )
    try:
        meta = msgspec.json.decode(load_bytes(path), type=dict[str, Any])
        return meta, msgspec.convert(meta, facts)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise corrupt(f"not the description of {what} ({error})", path) from error


class SplitFacts(msgspec.Struct):
    """What the description of a split tells, whatever the format."""

    format: str
    n_seqs: Count
    n_tokens: Count
    seq_len: Annotated[int, msgspec.Meta(ge=1)] | None

    def check(self, name: str, path: Path) -> None:
        if self.format != name:
            raise corrupt(f"describes {self.format!r}, not {name}", path)
        if self.seq_len is not None and self.n_seqs * self.seq_len != self.n_tokens:
            rows = f"{self.n_seqs:,} rows of {self.seq_len:,}"
            raise corrupt(f"{self.n_tokens:,} tokens are not {rows}", path)


class FilePart(msgspec.Struct, frozen=True):
    """One of the files of a format that writes each by itself, and what is in it."""

    entry: FileEntry
    rows: int
    tokens: int


class ListedPart(Protocol):
    @property
    def file(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def tokens(self) -> int: ...


def check_parts(facts: SplitFacts, parts: Sequence[ListedPart], path: Path) -> None:
    if not all(is_within(part.file) for part in parts):
        raise corrupt("lists a file outside of its directory", path)
    sums = [sum(part.rows for part in parts), sum(part.tokens for part in parts)]
    if sums != [facts.n_seqs, facts.n_tokens]:
        raise corrupt("its parts do not add up to its sequences and tokens", path)


def described_as(name: str) -> Callable[[Path], bool]:
    """Is this a directory whose description says so?"""
    mark = f'"format": "{name}"'.encode()

    def recognizes(directory: Path) -> bool:
        meta = directory / META_NAME
        return meta.is_file() and mark in meta.read_bytes()

    return recognizes


def remove_stale(directory: Path, pattern: str, written: Collection[str]) -> None:
    """What an earlier, longer build left behind."""
    for path in sorted(directory.glob(pattern)):
        if path.name not in written:
            remove_file(path)


def meta_entry(directory: Path, written: Written) -> FileEntry:
    """Of meta.json: when it was written is not what it says."""
    described = json.loads(load_bytes(directory / META_NAME))
    del described["created_at"]
    return file_entry(META_NAME, "meta", written, rows=1, content_sha256=fingerprint_of(described))


def check_size(path: Path, expected: int) -> None:
    """Of a file that the description tells of."""
    if not path.is_file():
        raise CorruptFile(
            f"no such file, and {META_NAME} tells of it", where=str(path), next="copy the directory again"
        )
    size = path.stat().st_size
    if size != expected:
        raise corrupt(f"{size:,} bytes, but {META_NAME} describes {expected:,}", path)


def corrupt(what: str, path: Path | str) -> CorruptFile:
    return CorruptFile(
        what, where=str(path), next="copy the file again, or build it again: it is cut or damaged"
    )


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
