from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clean.measured_texts import TEXTS
from plain.measures import dup_gram_chars, split_words, top_gram_chars
from plain.measures import measure as slow_measures
from tokmill import measure
from tokmill.clean import measures as measures_module
from tokmill.clean.measures import MEASURES
from tokmill.kernels import words, wordstats
from tokmill.kernels.wordclasses import class_table

DOCUMENTED = Path(__file__).parents[2] / "docs" / "measures.md"


def measured(texts: list[str]) -> list[dict[str, float]]:
    columns = measure(pa.array(texts, pa.large_string()))
    return [{name: column[row].item() for name, column in columns.items()} for row in range(len(texts))]


def word_lengths(text: str) -> list[int]:
    data = np.frombuffer(text.encode() or b"\0", np.uint8)
    offsets = np.array([0, len(text.encode())], np.int64)
    split = words.split_words(data, offsets, class_table(), measures_module._lexicon())
    lengths: list[int] = split.chars.tolist()
    return lengths


@settings(deadline=None, max_examples=600)
@given(st.lists(TEXTS, max_size=4))
def test_every_measure_is_what_its_slow_twin_says(texts: list[str]) -> None:
    assert measured(texts) == [slow_measures(text) for text in texts]


@settings(deadline=None, max_examples=600)
@given(TEXTS)
def test_words_are_cut_where_the_slow_twin_cuts(text: str) -> None:
    assert word_lengths(text) == [len(word) for word in split_words(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('he said: "don\'t e.g. pay $5-7/kg..."', 'he said : " do n\'t e.g. pay $ 5 - 7 / kg ... "'),
        ("(the U.S. and the USA.)", "( the U.S. and the USA . )"),
        ("10km at 5% for 12€ in the 1990s", "10 km at 5 % for 12 € in the 1990s"),
        ("it's a well-known end.Next", "it 's a well - known end . Next"),
        ("see https://example.com/a-b?c=d, ok", "see https://example.com/a-b?c=d , ok"),
        ("**bold** `code` <b>", "* * bold * * ` code ` < b >"),
        ("x=1;y a/b 3+4 2*3", "x=1;y a / b 3 + 4 2 * 3"),
        ("你好，世界。", "你 好 ， 世 界 。"),
        ("สวัสดีครับ", "ส วั ส ดี ค รั บ"),
        ("wait…what -- no", "wait … what -- no"),
        ('if foo_bar(x, "y"): # (z)', 'if foo_bar(x , " y " ) : # ( z )'),
        ('self.x_y = {"a": \\frac{b}}', 'self.x_y = { " a " : \\frac{b } }'),
        ('He left." (Mr.) "No).', 'He left . " ( Mr. ) " No ) .'),
        ("\tone\rtwo\u3000∀ x_2km →y “z”.", "one two ∀ x_2 km →y “ z ” ."),
    ],
)
def test_words_are_what_a_tokenizer_of_prose_makes_of_them(text: str, expected: str) -> None:
    assert " ".join(split_words(text)) == expected
    assert word_lengths(text) == [len(word) for word in expected.split()]


def slow_hash(word: bytes) -> int:
    mixed, tail = 0, len(word) % 8
    for start in range(0, len(word) - tail, 8):
        mixed = fmix(mixed ^ int.from_bytes(word[start : start + 8], "little"))
    rest = int.from_bytes(word[len(word) - tail :], "little")
    return fmix(mixed ^ rest ^ (len(word) * 0x9E3779B97F4A7C15 % 2**64))


def fmix(word: int) -> int:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        word = (word ^ (word >> 33)) * factor % 2**64
    return word ^ (word >> 33)


@settings(deadline=None, max_examples=600)
@given(TEXTS, st.booleans())
def test_a_word_has_the_hash_of_its_bytes_whatever_way_it_was_cut(text: str, is_last: bool) -> None:
    data = text.encode()
    column = np.frombuffer(data if is_last else data + b"and more", np.uint8)
    offsets = np.array([0, len(data)], np.int64)
    split = words.split_words(column, offsets, class_table(), measures_module._lexicon())
    assert split.hashes.tolist() == [slow_hash(word.encode()) for word in split_words(text)]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 5), max_size=60), st.sampled_from([1, 16, 2**40]))
def test_repetition_is_exact_where_all_words_ask_for_one_slot(chosen: list[int], stride: int) -> None:
    offsets = np.array([0, len(chosen)], np.int64)
    hashes = np.array(chosen, np.uint64) * np.uint64(stride)
    found = wordstats.measure_repetition(offsets, hashes, np.ones(len(chosen), np.int32))
    letters = ["abcdef"[word] for word in chosen]
    assert found.top[0].tolist() == [top_gram_chars(letters, n) for n in wordstats.TOP_SIZES]
    assert found.dup[0].tolist() == [dup_gram_chars(letters, n) for n in wordstats.DUP_SIZES]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0" * 50,
        " \n\t\n ",
        "\u2028",
        "x" * 5000,
        "!" * 5000,
        "." * 5001,
        "-" * 5000,
        "你" * 3000,
        "a" * 999 + "\n" + "b" * 700 + " c",
        ("same line\n" * 400),
        ("one two three four five six seven eight nine ten eleven\n" * 60),
        "\n" * 3000,
        "'s" * 900,
        "word's" * 300 + "!!!",
        "\u0301" * 100,
    ],
)
def test_strange_documents_measure_like_their_twin(text: str) -> None:
    assert measured([text, "and one more", text]) == [slow_measures(t) for t in (text, "and one more", text)]


@settings(deadline=None, max_examples=60)
@given(st.lists(TEXTS, min_size=1, max_size=6), st.integers(1, 40))
def test_the_cut_into_blocks_changes_nothing(texts: list[str], block_bytes: int) -> None:
    whole = measured(texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measures_module, "_BLOCK_BYTES", block_bytes)
        assert measured(texts) == whole
    assert [one for text in texts for one in measured([text])] == whole


def test_only_what_is_asked_for_is_computed_and_no_rows_are_no_trouble() -> None:
    texts = pa.array(["Some text."], pa.large_string())
    assert list(measure(texts, ["digit_share", "words"])) == ["digit_share", "words"]
    assert measure(texts, []) == {}
    assert all(len(column) == 0 for column in measure(texts[:0]).values())


def test_a_slice_of_a_column_and_a_column_of_chunks_measure_alike() -> None:
    texts = ["one two.", "three four five.", "six"]
    array = pa.array(["before", *texts, "after"], pa.large_string())
    for column in (array.slice(1, 3), pa.chunked_array([array.slice(1, 2), array.slice(3, 1)])):
        assert measure(column, ["words", "chars"])["words"].tolist() == [3, 4, 1]


def test_counts_are_whole_numbers_and_shares_are_not() -> None:
    columns = measure(["a b"])
    assert {name for name, column in columns.items() if column.dtype == np.int64} == {
        name for name, m in MEASURES.items() if not m.of
    }
    assert {column.dtype for column in columns.values()} == {np.dtype(np.int64), np.dtype(np.float64)}


@pytest.mark.parametrize("text", ["a" * 10_000_000, "!" * 1_000_000, "line\n" * 1_000_000, "\0" * 1_000_000])
def test_a_huge_document_of_one_kind_is_measured(text: str) -> None:
    (found,) = measured([text])
    assert found["bytes"] == len(text)
    assert found["lines"] == (1_000_000 if "\n" in text else 1)
    assert found["longest_char_run"] == (1 if "\n" in text else len(text))


def test_every_measure_is_documented() -> None:
    if not DOCUMENTED.exists():
        pytest.skip("the documentation is not here")
    text = DOCUMENTED.read_text(encoding="utf-8")
    assert [name for name in measure([]) if f"`{name}`" not in text] == []
