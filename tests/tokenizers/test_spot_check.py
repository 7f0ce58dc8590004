"""Which documents the reference sees too, and what it finds."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.kernels.patterns import literal_table
from tokmill.tokenizers.fast import Difference, first_difference, rows_to_check
from tokmill.tokenizers.protocol import Encoded

LITERALS = literal_table(["<|end|>", "</s>"])


def strings(texts):
    return pa.array(texts, pa.large_string())


def chosen(texts, kind="tiktoken", names=None):
    names = names or [f"doc-{number}" for number in range(len(texts))]
    return rows_to_check(pa.array(names), strings(texts), kind, LITERALS).tolist()


def test_every_document_that_spells_a_control_token_is_chosen():
    texts = ["plain"] * 2000
    for row in (0, 700, 1999):
        texts[row] = "x <|end|> y"
    assert {0, 700, 1999} <= set(chosen(texts))


def test_the_sample_goes_by_id_and_is_about_as_large_as_it_says():
    names = [f"doc-{number}" for number in range(40_000)]
    rows = chosen(["text"] * len(names), names=names)
    assert 100 <= len(rows) <= 220
    backwards = chosen(["text"] * len(names), names=names[::-1])
    assert [len(names) - 1 - row for row in reversed(backwards)] == rows


def test_no_shard_goes_unchecked():
    assert len(chosen(["only one"])) == 1
    assert chosen([]) == []


def test_a_very_long_document_is_checked_only_for_its_literals():
    long = "a" * (1 << 20) + "a"
    assert chosen([long]) == []
    assert chosen([long + "</s>"]) == [0]


def test_the_sample_is_not_the_split_that_goes_by_the_same_hash():
    names = [f"doc-{number}" for number in range(40_000)]
    held_out = {
        row for row, name in enumerate(names) if hashlib.sha256(name.encode()).digest()[:2] < b"\x02\x8f"
    }  # one in a hundred
    assert len(held_out.intersection(chosen(["text"] * len(names), names=names))) <= 12


def encoded(lists):
    flat = np.array([id for ids in lists for id in ids], np.int32)
    return Encoded(flat, np.array([len(ids) for ids in lists], np.int64))


@given(
    sequences=st.lists(st.lists(st.integers(0, 3), max_size=5), min_size=1, max_size=6),
    data=st.data(),
)
@settings(deadline=None)
def test_the_first_id_that_differs_is_named(sequences, data):
    rows = sorted(data.draw(st.sets(st.integers(0, len(sequences) - 1), min_size=1)))
    expected = [list(sequences[row]) for row in rows]
    assert first_difference(encoded(sequences), np.array(rows), encoded(expected)) is None
    number = data.draw(st.integers(0, len(rows) - 1))
    at = data.draw(st.integers(0, len(expected[number])))
    if at == len(expected[number]):
        expected[number].append(9)
        wanted = Difference(rows[number], at, None, 9)
    else:
        wanted = Difference(rows[number], at, expected[number][at], 9)
        expected[number][at] = 9
    assert first_difference(encoded(sequences), np.array(rows), encoded(expected)) == wanted


def test_ids_that_the_reference_does_not_have_are_a_difference():
    assert first_difference(encoded([[1, 2]]), np.array([0]), encoded([[1]])) == Difference(0, 1, 2, None)
