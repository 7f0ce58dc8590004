"""How much of a build was trained on, document by document, from how many times each row was handed out.

    places.npy   turn row start end       x   times[row]   ─┬─ tokens in rows, seen, seen once at least
                 (meetings, by turn)                        └─ of a turn the fewest times: its whole passes

A document may have several turns in a mixture. It was seen whole as many times as its turns were, counting of
each what the build has of it; partly, if a token of it was seen and no turn whole. Four bytes for each
document are held, and two for each row; the rest is read in pieces.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.audit.grouping import Grouped
from tokmill.audit.places import Turns
from tokmill.formats.index import read_places
from tokmill.kernels.exposure import GROUP_AT, add_meetings, count_documents

_PIECE = 1 << 18


class Exposure(NamedTuple):
    """Of each group, the numbers of names."""

    names: list[str]
    tokens: NDArray[np.int64]  # in rows
    seen: NDArray[np.int64]  # handed out, again and again
    new: NDArray[np.int64]  # of those in rows, handed out once at least
    whole: NDArray[np.int64]  # documents
    partly: NDArray[np.int64]
    unseen: NDArray[np.int64]
    passes: dict[int, int]  # documents by how many times they were seen whole


class PlacesFile(NamedTuple):
    path: Path
    meetings: int


def measure_exposure(
    turns: Turns, places: PlacesFile | None, times: NDArray[np.uint16], grouped: Grouped
) -> Exposure:
    """Of one split of a build; without places a row is a document. The codes are used up: four bytes for each
    document are held once."""
    names, documents = grouped.names, grouped.codes
    documents <<= np.uint32(GROUP_AT)
    totals = np.zeros((len(names), 3), np.int64)
    for table, first, positions in _read_with_documents(turns, places):
        add_meetings(table, first, positions, times, documents, totals)
    counts, passes = count_documents(documents, len(names))
    told = {number: int(passes[number]) for number in np.flatnonzero(passes).tolist()}
    (tokens, seen, new), (whole, partly, unseen) = totals.T, counts.T
    return Exposure(names, tokens, seen, new, whole, partly, unseen, told)


class Passes(NamedTuple):
    """Of each document, in the order of the shards."""

    whole: NDArray[np.int32]
    is_partly: NDArray[np.bool_]  # some of its tokens were handed out once more than others
    tokens: NDArray[np.int64]  # handed out, again and again


def count_passes(turns: Turns, places: PlacesFile | None, times: NDArray[np.uint16]) -> Passes:
    """The same, document by document."""
    documents = sum(shard.lengths.rows for shard in turns.shards)
    whole, most = np.zeros(documents, np.int32), np.zeros(documents, np.int32)
    tokens = np.zeros(documents, np.int64)
    for table, first, positions in _read_with_documents(turns, places):
        turn, row, start, end = (table[:, column].astype(np.int64) for column in range(4))
        begins = np.flatnonzero(np.diff(turn, prepend=-1))
        document, often = positions[turn[begins] - first], times[row].astype(np.int32)
        np.add.at(whole, document, np.minimum.reduceat(often, begins))
        np.add.at(most, document, np.maximum.reduceat(often, begins))
        np.add.at(tokens, document, np.add.reduceat((end - start) * often, begins))
    return Passes(whole, most > whole, tokens)


def _read_with_documents(
    turns: Turns, places: PlacesFile | None
) -> Iterator[tuple[NDArray[np.uint32], int, NDArray[np.int64]]]:
    """Meetings of whole turns, the first of these turns, and the documents of turns from there on."""
    positions = turns.read_positions()
    held, base = np.empty(0, np.int64), 0
    for table in _read_meetings(turns, places):
        first, stop = int(table[0, 0]), int(table[-1, 0]) + 1
        parts = [held]
        while base + sum(map(len, parts)) < stop:
            parts.append(next(positions))
        held = np.concatenate(parts)[first - base :]
        yield table, first, held
        held, base = held[stop - first :], stop


def _read_meetings(turns: Turns, places: PlacesFile | None) -> Iterator[NDArray[np.uint32]]:
    if places is not None:
        yield from read_places(*places, _PIECE)
        return
    widths = turns.column("tokens")
    for first in range(0, len(widths), _PIECE):
        part = widths[first : first + _PIECE]
        table = np.zeros((len(part), 5), np.uint32)
        table[:, 0] = table[:, 1] = np.arange(first, first + len(part))
        table[:, 3] = part
        yield table
