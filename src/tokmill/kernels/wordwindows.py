"""Windows of words: texts cut into stretches of about equal size, and one number made of theirs.

    text       a b c d e f g h i j       words between white space of ASCII
    words: 4   |a b c d|e f g|h i j|     as few windows as hold at most 4 words each, and as equal as can be

A window is a slice of its text: a column of windows has the bytes of the texts and more offsets. A text
without a word is one window.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.fasttext_words import is_blank
from tokmill.kernels.jit import TEXT, Bytes, Int, Offsets, frozen, frozen_text, raw_kernel

U64 = np.uint64
Aggregate = Literal["mean", "max", "min", "share_above"]
_AGGREGATES: tuple[Aggregate, ...] = ("mean", "max", "min", "share_above")


class Windows(NamedTuple):
    offsets: Offsets  # [windows + 1], into the bytes of the texts
    firsts: Offsets  # [texts + 1]: the windows of each


def count_words(data: Bytes, offsets: Offsets) -> NDArray[np.int64]:
    data, offsets, rows = frozen_text(data, offsets)
    found = np.zeros(rows, np.int64)
    _count_words(data, offsets, found)
    return found


def cut_windows(data: Bytes, offsets: Offsets, words: int) -> Windows:
    data, offsets, rows = frozen_text(data, offsets)
    counts = count_words(data, offsets)
    firsts = np.zeros(rows + 1, np.int64)
    np.cumsum(np.maximum(-(-counts // words), 1), out=firsts[1:])
    cuts = np.zeros(firsts[-1] + 1, np.int64)
    cuts[-1] = offsets[-1]
    _cut_windows(data, offsets, counts, firsts, cuts)
    return Windows(cuts, firsts)


def first_words(data: Bytes, offsets: Offsets, words: int) -> tuple[Bytes, Offsets]:
    """The beginning of each text with so many words, as a column of its own."""
    data, offsets, rows = frozen_text(data, offsets)
    ends = np.zeros(rows, np.int64)
    _end_of_words(data, offsets, words, ends)
    sizes = ends - offsets[:-1]
    if (ends == offsets[1:]).all():
        return data, offsets
    places = np.zeros(rows + 1, np.int64)
    np.cumsum(sizes, out=places[1:])
    cut = np.empty(int(places[-1]), np.uint8)
    _gather(data, offsets, places, cut)
    return cut, places


def aggregate(
    values: NDArray[np.float64], firsts: Offsets, how: Aggregate, bound: float = 0.0
) -> NDArray[np.float64]:
    """One number for each text, of the numbers of its windows; added up in their order."""
    found = np.zeros(len(firsts) - 1)
    _aggregate(
        frozen(values, np.float64), frozen(firsts, np.int64), _AGGREGATES.index(how), float(bound), found
    )
    return found


@raw_kernel(lambda: count_words(*TEXT))
def _count_words(data: Bytes, offsets: Offsets, found: NDArray[np.int64]) -> None:
    for row in range(offsets.size - 1):
        count: Int = 0
        was_blank = True
        for at in range(offsets[row], offsets[row + 1]):
            is_now = is_blank(data[U64(at)])
            count += was_blank and not is_now
            was_blank = is_now
        found[row] = count


@raw_kernel(lambda: cut_windows(*TEXT, 1))
def _cut_windows(
    data: Bytes, offsets: Offsets, counts: NDArray[np.int64], firsts: Offsets, cuts: Offsets
) -> None:
    for row in range(offsets.size - 1):
        first, windows = firsts[row], firsts[row + 1] - firsts[row]
        cuts[first] = offsets[row]
        if windows == 1:
            continue
        word: Int = 0
        window: Int = 1
        begins = counts[row] // windows  # words before the window
        was_blank = True
        for at in range(offsets[row], offsets[row + 1]):
            is_now = is_blank(data[U64(at)])
            if was_blank and not is_now:
                if word == begins:
                    cuts[first + window] = at
                    window += 1
                    if window == windows:
                        break
                    begins = counts[row] * window // windows
                word += 1
            was_blank = is_now


@raw_kernel(lambda: first_words(*TEXT, 1))
def _end_of_words(data: Bytes, offsets: Offsets, words: Int, ends: Offsets) -> None:
    for row in range(offsets.size - 1):
        count: Int = 0
        was_blank = True
        end = offsets[row + 1]
        for at in range(offsets[row], offsets[row + 1]):
            is_now = is_blank(data[U64(at)])
            if was_blank and not is_now:
                if count == words:
                    end = at
                    break
                count += 1
            was_blank = is_now
        ends[row] = end


@raw_kernel(lambda: first_words(*TEXT, 1))
def _gather(data: Bytes, offsets: Offsets, places: Offsets, cut: Bytes) -> None:
    for row in range(offsets.size - 1):
        first = offsets[row] - places[row]
        for at in range(places[row], places[row + 1]):
            cut[U64(at)] = data[U64(first + at)]


@raw_kernel(lambda: aggregate(np.zeros(1), np.zeros(1, np.int64), "mean"))
def _aggregate(
    values: NDArray[np.float64], firsts: Offsets, how: Int, bound: float, found: NDArray[np.float64]
) -> None:
    for row in range(firsts.size - 1):
        first, stop = firsts[row], firsts[row + 1]
        total = values[first] if how in (1, 2) else 0.0
        for at in range(first, stop):
            value = values[at]
            if how == 0:
                total += value
            elif how == 1:
                total = max(total, value)
            elif how == 2:
                total = min(total, value)
            else:
                total += value > bound
        found[row] = total / (stop - first) if how in (0, 3) else total


def blank_line_ends(data: Bytes, offsets: Offsets) -> Bytes:
    """The bytes with a space in place of every byte of U+001C to U+001E, U+0085, U+2028 and U+2029:
    what `str.splitlines` cuts at, beside white space. The same array where there is none."""
    data, offsets, _ = frozen_text(data, offsets)
    if not len(data) or not _has_line_ends(data, offsets):
        return data
    found = data.copy()
    _blank_line_ends(data, offsets, found)
    return found


@raw_kernel(lambda: blank_line_ends(*TEXT))
def _has_line_ends(data: Bytes, offsets: Offsets) -> bool:
    for at in range(offsets[0], offsets[-1]):
        byte = data[U64(at)]
        if (0x1C <= byte <= 0x1E) or byte == 0xC2 or byte == 0xE2:
            if byte < 0x80:
                return True
            if byte == 0xC2 and data[U64(at + 1)] == 0x85:
                return True
            if byte == 0xE2 and data[U64(at + 1)] == 0x80 and data[U64(at + 2)] & 0xFE == 0xA8:
                return True
    return False


@raw_kernel(lambda: blank_line_ends(np.frombuffer(b"\x1c", np.uint8), np.array([0, 1])))
def _blank_line_ends(data: Bytes, offsets: Offsets, found: Bytes) -> None:
    for at in range(offsets[0], offsets[-1]):
        byte = data[U64(at)]
        if 0x1C <= byte <= 0x1E:
            found[at] = 32
        elif byte == 0xC2 and data[U64(at + 1)] == 0x85:
            found[at], found[at + 1] = 32, 32
        elif byte == 0xE2 and data[U64(at + 1)] == 0x80 and data[U64(at + 2)] & 0xFE == 0xA8:
            found[at], found[at + 1], found[at + 2] = 32, 32, 32
