"""Lines of the index of rows against those that an encoder of objects writes."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.kernels.rowlines import spell_rows

NAMES = st.text(st.characters(codec="utf-8"), max_size=30) | st.text(
    '"\\/\x00\x07\b\n\x1f\x7fé€𝄞', max_size=30
)
NUMBERS = st.integers(0, 9) | st.integers(0, (1 << 62) - 1)


def column(strings: list[str]) -> tuple[np.ndarray, np.ndarray]:
    encoded = [string.encode() for string in strings]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    return np.frombuffer(b"".join(encoded), np.uint8), ends


def slow_lines(first: int, rows: list[list[tuple[str, str, int, int, int]]]) -> bytes:
    keys = ("doc_id", "source", "start", "end", "offset")
    lines = [
        {"row": first + number, "docs": [dict(zip(keys, span, strict=True)) for span in row]}
        for number, row in enumerate(rows)
    ]
    return b"".join(msgspec.json.encode(line) + b"\n" for line in lines)


@given(data=st.data())
@settings(deadline=None)
def test_lines_are_those_of_the_encoder(data: st.DataObject) -> None:
    names = data.draw(st.lists(NAMES, min_size=1, max_size=6))
    sources = data.draw(st.lists(NAMES, min_size=1, max_size=3))
    source_of = [data.draw(st.integers(0, len(sources) - 1)) for _ in names]
    span = st.tuples(st.integers(0, len(names) - 1), NUMBERS, NUMBERS, NUMBERS)
    rows = data.draw(st.lists(st.lists(span, max_size=4), max_size=6))
    first = data.draw(NUMBERS)
    flat = np.array([one for row in rows for one in row], np.int64).reshape(-1, 4).T
    lines = spell_rows(
        first,
        np.cumsum([0, *map(len, rows)], dtype=np.int64),
        tuple(np.ascontiguousarray(numbers) for numbers in flat),
        column(names),
        column(sources),
        np.array(source_of, np.int32),
    ).tobytes()
    named = [[(names[d], sources[source_of[d]], *numbers) for d, *numbers in row] for row in rows]
    assert lines == slow_lines(first, named)
    assert [json.loads(line)["row"] for line in lines.split(b"\n")[:-1]] == [
        first + at for at in range(len(rows))
    ]


def test_what_does_not_fit_together_is_refused() -> None:
    one, names = np.zeros(1, np.int64), column(["a"])
    whole = np.array([0, 1])
    with pytest.raises(ValueError, match="one after the other"):
        spell_rows(0, np.array([0, 2]), (one, one, one, one), names, names, np.zeros(1, np.int32))
    with pytest.raises(ValueError, match=r"documents 1\.\.1 of 1"):
        spell_rows(0, whole, (one + 1, one, one, one), names, names, np.zeros(1, np.int32))
    with pytest.raises(ValueError, match=r"sources 3\.\.3 of 1"):
        spell_rows(0, whole, (one, one, one, one), names, names, np.full(1, 3, np.int32))
