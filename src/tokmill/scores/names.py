"""What n-grams are called: a model knows numbers, people want words.

    bucket 48,123  ─  "new york" in 310 texts, "der katze" in 2  ─>  new york

    name_buckets   of the texts of a shard, for the buckets that are asked for: names, and in how many texts
                   they are the first of their bucket
    join_names     of all shards: the most frequent name of each bucket, of equal ones the first

Tokens of an n-gram of words stand apart by a space. An n-gram of characters has < and > where its word begins
and ends, and ~ where it goes on: <kno~ ~now>.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.ngrams import CHARS, FROM_FIRST, TO_LAST, Located, Shape, hash_ngrams, locate_ngrams
from tokmill.schema import StringColumn

Names = dict[int, dict[str, int]]  # by bucket: names, and how often


def name_buckets(
    texts: StringColumn,
    shape: Shape,
    wanted: NDArray[np.uint32],
    is_looked_at: NDArray[np.bool_] | None = None,
) -> Names:
    """Only rows that have one of them, of those to be looked at, are looked at by Python."""
    is_wanted = np.zeros(1 << shape.bits, np.bool_)
    is_wanted[wanted] = True
    ngrams = hash_ngrams(texts.data, texts.offsets, shape)
    hits = np.concatenate([np.zeros(1, np.int64), np.cumsum(is_wanted[ngrams.buckets])])[ngrams.ends]
    names: Names = {}
    spelled: dict[tuple[int, bytes], str] = {}  # most n-grams are there again and again
    has_some = np.diff(hits) > 0
    for row in np.flatnonzero(has_some if is_looked_at is None else has_some & is_looked_at).tolist():
        data = texts.data[texts.offsets[row] : texts.offsets[row + 1]].tobytes()
        located = locate_ngrams(data, shape)
        places = np.flatnonzero(is_wanted[located.buckets])
        places = places[np.unique(located.buckets[places], return_index=True)[1]]
        for bucket, kind, start, stop, place in zip(
            *(column[places].tolist() for column in located), places.tolist(), strict=True
        ):
            counts = names.setdefault(bucket, {})
            key = kind, data[start:stop]
            name = spelled.get(key) or spelled.setdefault(key, name_of(data, located, place))
            counts[name] = counts.get(name, 0) + 1
    return names


def join_names(shards: Iterable[Names]) -> dict[int, str]:
    joined: dict[int, Counter[str]] = {}
    for shard in shards:
        for bucket, names in shard.items():
            joined.setdefault(bucket, Counter()).update(names)
    return {
        bucket: min(joined[bucket], key=lambda name: (-joined[bucket][name], name))
        for bucket in sorted(joined)
    }


def name_of(text: bytes, located: Located, place: int) -> str:
    kind, start, stop = (int(part[place]) for part in located[1:])
    if kind & CHARS:
        spelled = _folded(text[start:stop])
        return ("<" if kind & FROM_FIRST else "~") + spelled + (">" if kind & TO_LAST else "~")
    return " ".join(_folded(token) for token in _tokens(text[start:stop]))


def _tokens(text: bytes) -> list[bytes]:
    """Of the few words of an n-gram, by the n-grams of one token that they have."""
    located = locate_ngrams(text, Shape(words=1))
    return [text[start:stop] for start, stop in zip(located.starts, located.stops, strict=True)]


def _folded(text: bytes) -> str:
    """A to Z as a to z, and no other letter: what the hash saw."""
    return text.lower().decode()
