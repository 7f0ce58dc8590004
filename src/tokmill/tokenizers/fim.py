"""Fill in the middle: some documents are cut in three and told in another order, so that a model learns to
write what is missing between what comes before and after (Bavarian et al. 2022, arXiv:2207.14255).

    text    |---prefix---|---middle---|---suffix---|            cut at two places, drawn by hash
    PSM     <PRE> prefix <SUF> suffix <MID> middle              prefix, suffix, middle
    SPM     <PRE> <SUF> suffix <MID> prefix middle              their variant 2: both sides of one prompt

Both are of one document, before its end token, and keep every character of it. The parts are slices of the
text, so only offsets are added to the column; their ids are then gathered in the new order, all documents at
once. Cuts are drawn among the bytes of a text and moved back to the character that they fall in. Each part is
encoded by itself, as it will be when a model is asked; in SPM so are prefix and middle.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels import hashing
from tokmill.schema import large_strings, string_column
from tokmill.tokenizers.fast import starts
from tokmill.tokenizers.protocol import Encoded

_WHOLE = 1 << 64


class Fim(NamedTuple):
    """Which documents of a source, and how."""

    seed: int
    source: str
    rate: Fraction
    spm: Fraction  # of those
    prefix: int  # the ids of the three sentinels
    middle: int
    suffix: int


class _Drawn(NamedTuple):
    is_cut: NDArray[np.bool_]
    is_spm: NDArray[np.bool_]
    first: NDArray[np.int64]  # bytes into the text
    second: NDArray[np.int64]


def encode_fim(texts: Any, doc_ids: Any, encode: Callable[[Any], Encoded], fim: Fim) -> Encoded:
    """One sequence per text; those that are not drawn are as `encode` gives them."""
    column = string_column(texts)
    drawn = _draw(column.data, column.offsets, doc_ids, fim)
    rows = np.flatnonzero(drawn.is_cut)
    cuts = np.stack([drawn.first[rows], drawn.second[rows]], axis=1) + column.offsets[rows, None]
    offsets = np.insert(column.offsets, np.repeat(rows + 1, 2), cuts.ravel())
    parts = encode(large_strings(column.data, offsets))
    return _reordered(parts, drawn, fim)


def _draw(data: NDArray[np.uint8], offsets: NDArray[np.int64], doc_ids: Any, fim: Fim) -> _Drawn:
    state = np.empty((len(offsets) - 1, 2), np.uint64)
    state[:] = np.frombuffer(hashlib.sha256(f"{fim.seed}/fim/{fim.source}".encode()).digest()[:16], "<u8")
    hashing.mix_column(*string_column(doc_ids), state)
    sizes = np.diff(offsets)
    one, two, three, four = (_mixed(state[:, 0], state[:, 1], lane) for lane in range(4))
    is_cut = _below(one, fim.rate) & (sizes > 0)
    ends = np.sort(np.stack([_within(three, sizes), _within(four, sizes)]), axis=0)
    first, second = (_at_character(data, offsets[:-1], at, sizes) for at in ends)
    return _Drawn(is_cut, _below(two, fim.spm), first, second)


def _mixed(high: NDArray[np.uint64], low: NDArray[np.uint64], lane: int) -> NDArray[np.uint64]:
    """Several numbers of one hash: splitmix64 from another start each."""
    mixed = high + low * np.uint64(2 * lane + 1) + np.uint64((lane + 1) * 0x9E3779B97F4A7C15 % _WHOLE)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    drawn: NDArray[np.uint64] = mixed ^ (mixed >> np.uint64(31))
    return drawn


def _below(draws: NDArray[np.uint64], share: Fraction) -> NDArray[np.bool_]:
    threshold = int(share * _WHOLE)
    if threshold >= _WHOLE:
        return np.ones(len(draws), np.bool_)
    below: NDArray[np.bool_] = draws < np.uint64(threshold)
    return below


def _within(draws: NDArray[np.uint64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """A place from 0 to the size, both included."""
    return (draws % (sizes + 1).astype(np.uint64)).astype(np.int64)


def _at_character(
    data: NDArray[np.uint8], begins: NDArray[np.int64], at: NDArray[np.int64], sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Back to the first byte of the character: UTF-8 has three after it at most."""
    at = at.copy()
    for _ in range(3):
        inside = at < sizes
        inside[inside] = (data[begins[inside] + at[inside]] & 0xC0) == 0x80
        at[inside] -= 1
    return at


def _reordered(parts: Encoded, drawn: _Drawn, fim: Fim) -> Encoded:
    """Every sequence as a list of stretches of ids, sentinels among them, and one gather for all."""
    per_row = np.where(drawn.is_cut, 3, 1)
    first = starts(per_row)[:-1]
    begins = starts(parts.lengths)
    end = len(parts.ids)  # the sentinels stand behind the ids: prefix, suffix, middle
    ids = np.concatenate([parts.ids, np.array([fim.prefix, fim.suffix, fim.middle], np.int32)])
    stretches = np.where(drawn.is_cut, 6, 1)
    at = starts(stretches)
    begin, width = np.empty(at[-1], np.int64), np.empty(at[-1], np.int64)
    whole = ~drawn.is_cut
    begin[at[:-1][whole]], width[at[:-1][whole]] = begins[first[whole]], parts.lengths[first[whole]]
    for is_spm, order in ((False, "PpSsMm"), (True, "PSsMpm")):
        rows = np.flatnonzero(drawn.is_cut & (drawn.is_spm == is_spm))
        for place, name in enumerate(order):
            into = at[rows] + place
            if name.isupper():
                begin[into], width[into] = end + "PSM".index(name), 1
            else:
                part = first[rows] + "pms".index(name)
                begin[into], width[into] = begins[part], parts.lengths[part]
    places = starts(width)
    gathered = ids[np.repeat(begin - places[:-1], width) + np.arange(places[-1])]
    return Encoded(gathered, np.diff(places[at]))
