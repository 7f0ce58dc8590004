"""Windows hold every match of their kind, whatever stands around, and never leave their row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.arrow_buffers import buffers, columns
from tokmill.clean.redaction import find_spans
from tokmill.kernels.redaction import CONTEXT, KINDS, find_windows

EVERY = tuple(range(len(KINDS)))
PIECES = [
    "bob@gmail.com", "x@a.b.c.d.org", "52.10.3.200", "2a00:1450::200e:1", "+44 20 7946 0958",
    "(212) 555-1234", "212.555.1234", "@", ".", ":", "-", "+", "1", "ghp_" + "a" * 36, "hf_" + "b" * 34,
    "AKIA" + "B" * 16, "AIza" + "c" * 35, "eyJ" + "d" * 10, ".eyJ" + "e" * 10, "." + "f" * 10,
    "xoxp-12345678-" + "g" * 15, "secret_key=" + "h" * 40, "SecretAccessKey\" : '" + "i" * 40, "é", "日", " ",
    "\n", "a" * 70, "0" * 20, "github_pat_" + "k" * 22 + "_" + "l" * 59, "-----BEGIN PRIVATE KEY-----",
    "m" * 70, "-----END PRIVATE KEY-----", "é" * 64 + "@" + "é" * 60 + ".de",
]  # fmt: skip
TEXTS = st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=8).map("".join)


@settings(deadline=None, max_examples=500)
@given(columns(TEXTS))
def test_every_match_lies_in_a_window_with_all_that_its_pattern_looks_at(column: object) -> None:
    data, offsets, _ = buffers(column)
    windows = find_windows(data, offsets, EVERY)
    for row in range(len(offsets) - 1):
        begin, end = int(offsets[row]), int(offsets[row + 1])
        for number, kind in enumerate(KINDS):
            mine = (windows.kinds == number) & (windows.rows == row)
            for span in find_spans(kind, data[begin:end].tobytes()):
                first, last = max(begin, begin + span.start - 10), min(end, begin + span.end + 4)
                assert np.any(mine & (windows.starts <= first) & (windows.ends >= last)), (kind, span)


@settings(deadline=None, max_examples=300)
@given(columns(TEXTS))
def test_windows_stay_in_their_row_and_apart_from_each_other(column: object) -> None:
    data, offsets, _ = buffers(column)
    windows = find_windows(data, offsets, EVERY)
    assert (windows.starts >= offsets[windows.rows]).all()
    assert (windows.ends <= offsets[windows.rows + 1]).all()
    assert (windows.starts < windows.ends).all()
    for number in EVERY:
        mine = windows.kinds == number
        assert (windows.starts[mine][1:] >= windows.ends[mine][:-1]).all()
        alone = find_windows(data, offsets, (number,))
        assert [a.tolist() for a in alone] == [w[mine].tolist() for w in windows]


def test_prose_has_no_windows() -> None:
    text = (
        "On 2 May 2024, at 10:30, prices rose by 3.5 %; see http://example.org (p. 12) - or ask. A + b = c."
    )
    data = np.frombuffer(text.encode(), np.uint8)
    assert len(find_windows(data, np.array([0, data.size]), EVERY).rows) == 0


def test_more_windows_than_there_was_room_for() -> None:
    text = ("a@b.cd" + " " * 2 * CONTEXT) * 5000
    data = np.frombuffer(text.encode(), np.uint8)
    windows = find_windows(data, np.array([0, data.size]), EVERY)
    assert len(windows.rows) == 5000
    assert set(np.diff(windows.starts).tolist()) <= {
        6 + CONTEXT,
        6 + 2 * CONTEXT,
    }  # the first starts with its row


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_empty_rows(rows: int) -> None:
    assert len(find_windows(np.zeros(1, np.uint8), np.zeros(rows + 1, np.int64), EVERY).rows) == 0
