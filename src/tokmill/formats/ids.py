"""What all formats share: names of splits, ids as they are stored, and sequences of them.

ids        little-endian, in the dtype asked for, and never wrapped

batches    |a bb c| |dddd| |e f|        as they come
regroup    |a bb| |c| |dddd| |e f|      two sequences or four tokens at most: how they came does not show

Names of splits: train, valid and test, and the field's other words for the second of them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import VocabTooLarge
from tokmill.formats.description import corrupt

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
