"""What all formats share: ids as they are stored, sequences of them, and the description beside them.

ids        little-endian, in the dtype asked for, and never wrapped
meta.json  what the ids mean: sorted keys, written last

batches    |a bb c| |dddd| |e f|        as they come
regroup    |a bb| |c| |dddd| |e f|      two sequences or four tokens at most: how they came does not show

Names of splits: train, valid and test, and the field's other words for the second of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import FileEntry, file_entry, fingerprint_of
from tokmill.errors import CorruptFile, VocabTooLarge
from tokmill.storage.commit import Written, commit_bytes
from tokmill.storage.reading import load_bytes

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


class Sequences(NamedTuple):
    """Some sequences, one after the other in `ids`; with their names, where they have any."""

    ids: NDArray[np.integer]
    lengths: NDArray[np.integer]
    doc_ids: Sequence[str] | None = None


def regroup(
    batches: Iterable[Sequences], *, max_sequences: int, max_tokens: int, where: str
) -> Iterator[Sequences]:
    """Groups as large as both bounds allow, ids as int32. A longer sequence than that is a group of its own."""
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
                waiting.append(Sequences(ids[begin:end], batch.lengths[start:stop], names))
                count, tokens, start = count + stop - start, tokens + end - begin, stop
            if count == max_sequences or (start < len(ends) and tokens):
                yield _joined(waiting)
                waiting, count, tokens = [], 0, 0
    if waiting:
        yield _joined(waiting)


def _joined(parts: list[Sequences]) -> Sequences:
    names = None if parts[0].doc_ids is None else [name for part in parts for name in part.doc_ids or ()]
    ids = np.concatenate([part.ids for part in parts])
    return Sequences(ids, np.concatenate([part.lengths for part in parts]).astype(np.int64), names)


def write_meta(path: Path, described: Mapping[str, object]) -> Written:
    encoded = msgspec.json.format(msgspec.json.encode(described, order="sorted"), indent=2)
    return commit_bytes(path, encoded + b"\n")


def meta_entry(directory: Path, written: Written) -> FileEntry:
    """Of meta.json: when it was written is not what it says."""
    described = json.loads(load_bytes(directory / META_NAME))
    del described["created_at"]
    return file_entry(META_NAME, "meta", written, rows=1, content_sha256=fingerprint_of(described))


def corrupt(what: str, path: Path | str) -> CorruptFile:
    return CorruptFile(
        what, where=str(path), next="copy the file again, or build it again: it is cut or damaged"
    )
