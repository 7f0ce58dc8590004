"""Personal data and secrets replaced by constants. What was replaced, and where, is told; never the value.

    texts ─ windows (one compiled pass) ─ patterns in the windows alone ─ overlaps: the first kind keeps it ─> claims
      claims ─ changed rows with the constants in place ─ look again ─ nothing more? ─> Redactions
                                                        └ something: join it with the claims it touches, look again

The second look is for values that only stand free once their neighbour is gone; it makes redacting twice the same
as redacting once, whatever the text. It reads changed rows only. Offsets are bytes of the original UTF-8 text. A
row's result depends on that row alone, so any cut of a column into batches gives the same.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tokmill.clean.sensitive import find_spans
from tokmill.errors import RecipeError
from tokmill.kernels.redaction import CONTEXT, KINDS, find_windows
from tokmill.schema import StringColumn, string_column

FOUND = pa.schema(
    [
        pa.field("row", pa.uint32(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("start", pa.int64(), nullable=False),  # bytes into the original text of the row
        pa.field("end", pa.int64(), nullable=False),
    ]
)


class Redactions(NamedTuple):
    """`rows` changed to `texts`; `found` has one line per replacement, by row and start."""

    rows: np.ndarray[Any, np.dtype[np.int64]]
    texts: Any
    found: Any


class _Claim(NamedTuple):
    """Bytes of a row that a constant stands for."""

    row: int
    start: int
    end: int
    kind: str
    constant: bytes

    @property
    def growth(self) -> int:
        return len(self.constant) - (self.end - self.start)


def redact_texts(texts: Any, kinds: Sequence[str]) -> Redactions:
    """Kinds are claimed in the order of KINDS (secret, email, ip, phone), however they are given."""
    numbers = tuple(sorted({_number_of(kind) for kind in kinds}))
    column = string_column(texts)
    claims = _find(column, numbers) if numbers else {}
    fresh = list(claims)
    while fresh:
        rewritten = pa.array([_rewritten(column, row, claims[row]) for row in fresh], pa.large_string())
        more = _find(string_column(rewritten), numbers)
        for number, found in more.items():
            row = fresh[number]
            claims[row] = _joined(claims[row], [claim._replace(row=row) for claim in found])
        fresh = [fresh[number] for number in more]
    return _result(column, [claims[row] for row in sorted(claims)])


def _number_of(kind: str) -> int:
    if kind in KINDS:
        return KINDS.index(kind)
    near = difflib.get_close_matches(kind, KINDS, n=1, cutoff=0)[0]
    raise RecipeError(
        f"{kind!r} is nothing that can be redacted", where="redact", next=f"did you mean {near}?"
    )


def _find(column: StringColumn, numbers: tuple[int, ...]) -> dict[int, list[_Claim]]:
    """The claims of each row that has any, by start."""
    data = column.data.data
    windows = find_windows(column.data, column.offsets, numbers)
    begins, stops = column.offsets[windows.rows], column.offsets[windows.rows + 1]
    # A window that ends inside its row may cut a longer word to something that looks like a match. A true one
    # has all its context in the window (the kernel gave it CONTEXT bytes), so what is nearer to a cut is not true.
    first = np.where(windows.starts > begins, windows.starts + CONTEXT, windows.starts)
    last = np.where(windows.ends < stops, windows.ends - CONTEXT, windows.ends)
    claims = []
    for number, row, start, end, begin, low, high in zip(
        *(array.tolist() for array in (*windows, begins, first, last)), strict=True
    ):
        kind = KINDS[number]
        for span in find_spans(kind, bytes(data[start:end])):
            if low <= start + span.start and start + span.end <= high:
                at = start - begin
                claims.append(_Claim(row, at + span.start, at + span.end, kind, span.constant))
    claims.sort(key=attrgetter("row"))  # within a row still by kind, then by start
    return {row: _without_overlaps(mine) for row, mine in groupby(claims, attrgetter("row"))}


def _without_overlaps(claims: Iterable[_Claim]) -> list[_Claim]:
    """By start. Of two that overlap the one of the earlier kind stays; within a kind none do."""
    taken: list[_Claim] = []
    for _, mine in groupby(claims, attrgetter("kind")):
        taken = _with_free(taken, list(mine))
    return taken


def _with_free(taken: list[_Claim], more: list[_Claim]) -> list[_Claim]:
    if not taken:
        return more
    starts = [claim.start for claim in taken] + [np.iinfo(np.int64).max]
    ends = [claim.end for claim in taken]
    # For each new claim the first taken one that ends after its start: is it free to there?
    beyond = np.searchsorted(ends, [claim.start for claim in more], side="right").tolist()
    free = [claim for claim, next_one in zip(more, beyond, strict=True) if starts[next_one] >= claim.end]
    return sorted([*taken, *free], key=attrgetter("start"))


def _joined(old: list[_Claim], new: list[_Claim]) -> list[_Claim]:
    """All claims in bytes of the original. `new` counts in the text that `old` left, and swallows what it touches."""
    joined: list[_Claim] = []
    at, shift = 0, 0  # how many of `old` are done, and by how much they moved what follows
    for claim in new:
        while at < len(old) and old[at].end + shift + old[at].growth <= claim.start:
            joined.append(old[at])
            shift += old[at].growth
            at += 1
        start, end = claim.start - shift, None
        while at < len(old) and old[at].start + shift < claim.end:
            start = min(start, old[at].start)
            shift += old[at].growth
            end = old[at].end if claim.end <= old[at].end + shift else None  # it ends inside this constant
            at += 1
        end = claim.end - shift if end is None else end
        if joined and start < joined[-1].end:  # touches what was just swallowed: the next look will see
            continue
        joined.append(claim._replace(start=start, end=end))
    return joined + old[at:]


def _rewritten(column: StringColumn, row: int, claims: list[_Claim]) -> bytes:
    begin, end = int(column.offsets[row]), int(column.offsets[row + 1])
    data = column.data.data
    pieces: list[bytes | memoryview] = []
    done = begin
    for claim in claims:
        pieces += [data[done : begin + claim.start], claim.constant]
        done = begin + claim.end
    return b"".join([*pieces, data[done:end]])


def _result(column: StringColumn, by_row: list[list[_Claim]]) -> Redactions:
    claims = [claim for mine in by_row for claim in mine]
    found = pa.table(
        [
            pa.array([claim.row for claim in claims], pa.uint32()),
            pa.array([claim.kind for claim in claims], pa.string()),
            pa.array([claim.start for claim in claims], pa.int64()),
            pa.array([claim.end for claim in claims], pa.int64()),
        ],
        schema=FOUND,
    )
    rows = [mine[0].row for mine in by_row]
    texts = [_rewritten(column, row, mine) for row, mine in zip(rows, by_row, strict=True)]
    return Redactions(np.array(rows, np.int64), pa.array(texts, pa.large_string()), found)
