from __future__ import annotations

import hashlib
from functools import reduce
from itertools import pairwise

import mmh3
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kernels.arrow_buffers import QUICK, TEXTS, WHITESPACE, buffers, column, columns
from tokmill.kernels.hashing import (
    MERSENNE_61,
    SEQUENCE_BASES,
    blank_rows,
    fold_hashes,
    fold_sequence,
    join_sequences,
    mix_column,
)

ASCII_LOWER = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")
EDGES = [0, 1, MERSENNE_61 - 1, MERSENNE_61, MERSENNE_61 + 1, 2 * MERSENNE_61, (1 << 64) - 1]
ROW_HASHES = st.lists(
    st.tuples(*[st.one_of(st.sampled_from(EDGES), st.integers(0, (1 << 64) - 1))] * 2), max_size=12
)


def slow_fold(text: str) -> tuple[int, int]:
    folded = " ".join(text.split()).translate(ASCII_LOWER)
    return mmh3.hash64(folded.encode(), x64arch=True, signed=False)


def folded(texts: list[str], margin: int = 0) -> list[tuple[int, ...]]:
    return [tuple(row) for row in fold_hashes(*buffers(column(texts, margin))[:2]).tolist()]


@QUICK
@given(columns())
def test_folding_is_split_join_lower_and_murmur(array: pa.LargeStringArray) -> None:
    hashes = fold_hashes(*buffers(array)[:2])
    assert [tuple(row) for row in hashes.tolist()] == [slow_fold(text) for text in array.to_pylist()]


@QUICK
@given(columns(), st.data())
def test_rows_that_are_not_wanted_are_left_alone(array: pa.LargeStringArray, data: st.DataObject) -> None:
    wanted = np.array([data.draw(st.booleans()) for _ in range(len(array))], np.bool_)
    whole, some = (fold_hashes(*buffers(array)[:2], is_wanted) for is_wanted in (None, wanted))
    assert (some == np.where(wanted[:, None], whole, 0)).all()


@QUICK
@given(st.lists(st.one_of(TEXTS, st.text(st.sampled_from(WHITESPACE)))), st.integers(0, 2))
def test_blank_is_what_split_finds_nothing_in(texts: list[str], margin: int) -> None:
    found = blank_rows(*buffers(column(texts, margin))[:2])
    assert found.tolist() == [not text.split() for text in texts]


@pytest.mark.parametrize("space", WHITESPACE, ids=ascii)
def test_each_whitespace_character_folds_wherever_it_stands(space: str) -> None:
    texts = ["." * before + space + "B" * after for before in range(18) for after in range(4)]
    texts += [space, space * 40, "a" + space * 40 + "b" + space, space + " a\u00a0" + space]
    assert folded(texts) == [slow_fold(text) for text in texts]


@pytest.mark.parametrize(
    "word", ["word ", "    \n\tIndented", "日本語。", "x\u3000", "Ünï\u2003\u2003", "a" * 2047 + " "]
)
def test_texts_longer_than_the_scratch_block_hash_the_same(word: str) -> None:
    texts = [
        word * count + tail for count in (1, 250, 409, 410, 1100) for tail in ("", " ", "A", "\u2003 \n")
    ]
    assert folded(texts, margin=1) == [slow_fold(text) for text in texts]


def test_a_character_cut_off_by_the_end_of_its_row_is_not_read_on_into_the_next() -> None:
    data = np.frombuffer("\u3000".encode() * 2, np.uint8)
    hashes = fold_hashes(data, np.array([0, 2, 6]))
    assert tuple(hashes[0].tolist()) == mmh3.hash64(b"\xe3\x80", x64arch=True, signed=False)


def row_hashes(*table: list[str | None], margin: int = 0) -> list[tuple[int, ...]]:
    state = np.zeros((len(table[0]), 2), np.uint64)
    for texts in table:
        mix_column(*buffers(column(texts, margin)), state)
    return [tuple(row) for row in state.tolist()]


def slow_mix(state: tuple[int, int], value: str | None) -> tuple[int, int]:
    """MurmurHash3's own block step and finish over (1, length, hash of the bytes), or over (2, 0)
    for a null."""
    mask, c1, c2 = (1 << 64) - 1, 0x87C37B91114253D5, 0x4CF5AD432745937F

    def rotated(word: int, bits: int) -> int:
        return (word << bits | word >> (64 - bits)) & mask

    def finished(word: int) -> int:
        word = (word ^ word >> 33) * 0xFF51AFD7ED558CCD & mask
        word = (word ^ word >> 33) * 0xC4CEB9FE1A85EC53 & mask
        return word ^ word >> 33

    blocks = [(2, 0)]
    if value is not None:
        blocks = [(1, len(value.encode())), mmh3.hash64(value.encode(), x64arch=True, signed=False)]
    first, second = state
    for word, next_word in blocks:
        first ^= rotated(word * c1 & mask, 31) * c2 & mask
        first = ((rotated(first, 27) + second) * 5 + 0x52DCE729) & mask
        second ^= rotated(next_word * c2 & mask, 33) * c1 & mask
        second = ((rotated(second, 31) + first) * 5 + 0x38495AB5) & mask
    first = (first + second) & mask
    second = (second + first) & mask
    first, second = finished(first), finished(second)
    first = (first + second) & mask
    return first, (second + first) & mask


@QUICK
@given(columns(st.none() | TEXTS), st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 64) - 1))
def test_mixing_is_what_it_says(array: pa.LargeStringArray, first: int, second: int) -> None:
    state = np.tile(np.array([first, second], np.uint64), (len(array), 1))
    mix_column(*buffers(array), state)
    assert [tuple(row) for row in state.tolist()] == [
        slow_mix((first, second), value) for value in array.to_pylist()
    ]


@QUICK
@given(st.lists(st.tuples(st.none() | TEXTS, st.none() | TEXTS), min_size=1, max_size=6), st.integers(0, 2))
def test_rows_hash_alike_exactly_when_their_values_are_alike(
    rows: list[tuple[str | None, str | None]], margin: int
) -> None:
    first, second = [row[0] for row in rows], [row[1] for row in rows]
    hashes = row_hashes(first, second, margin=margin)
    alone = [row_hashes([a], [b])[0] for a, b in rows]
    assert hashes == alone, "a row's hash depends on the row only"
    assert len(set(hashes)) == len(set(rows))


def test_null_empty_order_of_columns_and_borders_of_values_all_count() -> None:
    tables = [
        ([None], [None]),
        ([""], [None]),
        ([None], [""]),
        ([""], [""]),
        (["ab"], ["c"]),
        (["a"], ["bc"]),
        (["c"], ["ab"]),
        (["abc"], [""]),
        ([""], ["abc"]),
        (["abc"],),
        (["abc\0"],),
        ([""],),
        ([None],),
    ]
    assert len({row_hashes(*table)[0] for table in tables}) == len(tables)


def test_bytes_that_arrow_left_under_a_null_do_not_count() -> None:
    data, offsets = np.frombuffer(b"leftover", np.uint8), np.array([0, 8])
    state = np.zeros((1, 2), np.uint64)
    mix_column(data, offsets, np.zeros(1, np.bool_), state)
    assert tuple(state[0].tolist()) == row_hashes([None])[0]


def test_a_row_hash_is_the_same_in_every_release() -> None:
    assert row_hashes(["tokmill", None, ""], ["Ünï", "x" * 100, None]) == [
        (0x26D5B1E7BC6620AD, 0x06C918755BE97A5B),
        (0x45B15EAFE88532F2, 0xC1BDA64EDAE6BA83),
        (0x3B47F2D64937A81B, 0x1BDA418418BC5513),
    ]


@pytest.mark.parametrize(
    "wrong", [np.zeros((2, 2), np.uint64), np.zeros((1, 2), np.int64), np.zeros((1, 4), np.uint64)[:, ::2]]
)
def test_a_state_that_cannot_be_changed_in_place_is_refused(wrong: NDArray[np.uint64]) -> None:
    with pytest.raises((TypeError, ValueError), match="state"):
        mix_column(*buffers(column(["a"])), wrong)


def slow_sequence(rows: list[tuple[int, int]]) -> tuple[int, int]:
    first, second = (
        sum((row[lane] + 1) * base ** (len(rows) - 1 - i) for i, row in enumerate(rows)) % MERSENNE_61
        for lane, base in enumerate(SEQUENCE_BASES)
    )
    return first, second


def as_array(rows: list[tuple[int, int]]) -> NDArray[np.uint64]:
    return np.array(rows, np.uint64).reshape(-1, 2)


@QUICK
@given(ROW_HASHES)
def test_a_sequence_digest_is_the_polynomial_in_its_base(rows: list[tuple[int, int]]) -> None:
    assert fold_sequence(as_array(rows)) == slow_sequence(rows)


@QUICK
@given(ROW_HASHES, st.lists(st.integers(0, 12), max_size=4))
def test_any_partition_of_the_rows_has_the_same_digest(rows: list[tuple[int, int]], cuts: list[int]) -> None:
    borders = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    parts = [rows[a:b] for a, b in pairwise(borders)]
    joined = reduce(
        lambda left, part: join_sequences(left, fold_sequence(as_array(part)), len(part)), parts, (0, 0)
    )
    assert joined == fold_sequence(as_array(rows))


def test_swapped_repeated_and_zero_rows_change_the_digest() -> None:
    sequences = [
        [],
        [(0, 0)],
        [(0, 0)] * 2,
        [(1, 2)],
        [(1, 2), (3, 4)],
        [(3, 4), (1, 2)],
        [(1, 2), (3, 4), (3, 4)],
    ]
    assert len({fold_sequence(as_array(rows)) for rows in sequences}) == len(sequences)


def test_the_bases_come_from_the_words_the_comment_names() -> None:
    words = [hashlib.sha256(f"tokmill sequence base {lane}".encode()).hexdigest()[:16] for lane in (0, 1)]
    assert [int(word, 16) % MERSENNE_61 for word in words] == list(SEQUENCE_BASES)
