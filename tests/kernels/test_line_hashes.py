"""Lines known by a hash of their bytes: wherever they end and whatever stands behind them,
eight or sixteen at a time."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.arrow_buffers import QUICK, buffers
from tokmill.kernels.lines import LineMeasures, measure_lines
from tokmill.kernels.wordclasses import class_table


def measured(texts: list[str], short_chars: int = 30) -> LineMeasures:
    data, offsets, _ = buffers(pa.array(texts, pa.large_string()))
    return measure_lines(data, offsets, class_table(), short_chars=short_chars)


def slow_dups(text: str) -> tuple[int, int, int]:
    lines = [line for line in text.split("\n") if line.strip()]
    seen = Counter(lines)
    dups = sum(seen.values()) - len(seen)
    return dups, sum(len(line) * (n - 1) for line, n in seen.items()), sum(n for n in seen.values() if n > 1)


def assert_dups(texts: list[str]) -> None:
    found = measured(texts)
    counted = zip(
        found.dup_lines.tolist(), found.dup_line_chars.tolist(), found.repeated_lines.tolist(), strict=True
    )
    assert list(counted) == [slow_dups(text) for text in texts]


@pytest.mark.parametrize("size", range(1, 50))
def test_a_line_equals_another_wherever_the_two_end(size: int) -> None:
    line = ("abcdefgh" * 8)[:size]
    assert_dups(["\n".join([line, "x" * between, line]) + behind
                 for between in range(20) for behind in ("", "\n", "\nyz", "\n" + "y" * 20,
                                                         "y")])  # fmt: skip


@pytest.mark.parametrize("size", range(1, 50))
def test_a_line_with_one_other_byte_is_another(size: int) -> None:
    line = ("abcdefgh" * 8)[:size]
    others = [line[:k] + "?" + line[k + 1 :] for k in range(size)]
    swapped = [line[k:] + line[:k] for k in range(1, min(size, 8))] if size >= 8 else []
    text = "\n".join([line, *others, *swapped, line + "a", line[:-1], line])
    assert_dups([text, text + "\n" + text])


@QUICK
@given(st.lists(st.lists(st.text("ab\0é", max_size=40), max_size=12).map("\n".join), max_size=4))
def test_lines_that_are_said_twice_are_those_python_counts(texts: list[str]) -> None:
    assert_dups(texts)


def test_numbered_lines_are_all_different() -> None:
    forms = (
        "{:07d}",
        "{0:08d}{0:08d}",
        "{0:08d}={0:08d}={0:08d}",
        "a{0:06d}\t{0:06d}\t{0:06d}\t{0:06d}\t{0:06d}",
    )
    assert [
        measured(["\n".join(form.format(n) for n in range(100_000))]).dup_lines.tolist() for form in forms
    ] == [[0]] * 4


@pytest.mark.parametrize("character", ["a", "é", "日", "😀"])
@pytest.mark.parametrize("short_chars", [0, 1, 7, 8, 30])
def test_a_line_is_short_by_its_characters_not_its_bytes(character: str, short_chars: int) -> None:
    sizes = range(1, 45)
    found = measured([character * size + "  \nx" for size in sizes], short_chars)
    assert found.short.tolist() == [(size <= short_chars) + (short_chars >= 1) for size in sizes]


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 95, 96, 97, 191, 192, 193, 254, 255, 256, 257])
def test_rows_of_newlines_alone_have_as_many_lines(size: int) -> None:
    assert measured(["\n" * size, "x" + "\n" * size]).lines.tolist() == [size, max(size, 1)]
