"""Sequences of any length in flat arrays, and such batches cut anew.

batches    |a bb c| |dddd| |e f|        as they come
regroup    |a bb| |c| |dddd| |e f|      two sequences or four tokens at most: how they came does not show
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.formats.ids import cast_ids


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
