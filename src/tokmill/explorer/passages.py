"""Where two texts differ, and texts as the page is sent them.

    received, trained ─ equal beginning and end put aside ─ lines ─ words of what differs ─> Change
    offsets are UTF-16 code units: what `slice` of a browser counts

NUL cannot be drawn, and a lone surrogate cannot be sent: both are sent as U+FFFD, one for one.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# difflib is quadratic at its worst: more than this on either side is one change
_MAX_LINES, _MAX_WORDS = 3_000, 3_000
_MAX_WORD = 100  # characters of a word that is shown whole
_WORD = re.compile(r"\w+|\s+|[^\w\s]")
_UNSENDABLE = re.compile("[\x00\ud800-\udfff]")


class Change(NamedTuple):
    """Characters [start, end) of the one text became [new_start, new_end) of the other."""

    start: int
    end: int
    new_start: int
    new_end: int

    @property
    def kind(self) -> str:
        if self.start == self.end:
            return "insert"
        return "delete" if self.new_start == self.new_end else "replace"


def find_changes(old: str, new: str) -> list[Change]:
    """In order, none touching the next."""
    if old == new:
        return []
    head = _common(old, new)
    head -= _back(old, new, head, head)
    tail = _common(old[head:][::-1], new[head:][::-1])
    tail -= _back(old[::-1], new[::-1], tail, tail)
    left, right = old[head : len(old) - tail], new[head : len(new) - tail]
    lines = left.splitlines(keepends=True), right.splitlines(keepends=True)
    found: list[Change] = []
    for one in _differences(*lines, _MAX_LINES):
        words = (_WORD.findall(left[one.start : one.end]), _WORD.findall(right[one.new_start : one.new_end]))
        for two in _differences(*words, _MAX_WORDS):
            found.append(
                Change(
                    head + one.start + two.start,
                    head + one.start + two.end,
                    head + one.new_start + two.new_start,
                    head + one.new_start + two.new_end,
                )
            )
    return list(_joined(found))


def _back(one: str, other: str, at: int, most: int) -> int:
    """Characters back to where neither text is inside of a word: `four` for `five` is not `our` for `ive`."""
    for step in range(min(most, _MAX_WORD)):
        place = at - step
        if not any(text[place - 1 : place + 1].isalnum() and len(text) > place for text in (one, other)):
            return step
    return 0


def _common(one: str, other: str) -> int:
    """Characters that both begin with, by halving: a comparison of slices is one of memory."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _differences(old: Sequence[str], new: Sequence[str], most: int) -> Iterator[Change]:
    """Of two lists of pieces, in characters."""
    starts, new_starts = _starts(old), _starts(new)
    if len(old) > most or len(new) > most or not old or not new:
        if old or new:
            yield Change(0, int(starts[-1]), 0, int(new_starts[-1]))
        return
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind != "equal":
            yield Change(int(starts[a]), int(starts[b]), int(new_starts[c]), int(new_starts[d]))


def _starts(pieces: Sequence[str]) -> NDArray[np.int64]:
    return np.cumsum([0, *map(len, pieces)], dtype=np.int64)


def _joined(changes: Sequence[Change]) -> Iterator[Change]:
    last: Change | None = None
    for one in changes:
        if last is not None and last.end == one.start and last.new_end == one.new_start:
            last = Change(last.start, one.end, last.new_start, one.new_end)
            continue
        if last is not None:
            yield last
        last = one
    if last is not None:
        yield last


class Units:
    """From characters to UTF-16 code units of a text."""

    def __init__(self, text: str) -> None:
        self._wide: NDArray[np.int64] | None = None
        if not text.isascii():
            points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
            wide = np.flatnonzero(points > 0xFFFF)
            self._wide = wide if len(wide) else None

    def __call__(self, at: int) -> int:
        return at if self._wide is None else at + int(np.searchsorted(self._wide, at))


class Sent(NamedTuple):
    text: str
    notes: list[str]


def sendable(text: str) -> Sent:
    sent, count = _UNSENDABLE.subn("\ufffd", text)
    if not count:
        return Sent(text, [])
    noun = "character that cannot be shown is" if count == 1 else "characters that cannot be shown are"
    return Sent(sent, [f"{count:,} {noun} sent as U+FFFD (NUL, or half of a surrogate pair)"])
