"""Words, marks and grams against plain Python on characters and integers."""

from __future__ import annotations

import functools
import itertools
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.arrow_buffers import buffers, column
from tokmill.duplicates.shingling import fold_character, word_table
from tokmill.kernels import windows
from tokmill.kernels.jit import SPACELESS
from tokmill.kernels.wordclasses import class_table

MASK = (1 << 64) - 1
SEED, FACTOR, LENGTH = 0x297938D91E1D6CAF, 0x59F9E7D5943C9B9F, 0x21014FA0D786C587

# What folds to several words, what folds to nothing but separators, marks with and without a base,
# format characters.
PIECES = [
    *"aZ9_-. \n", "ﷺ", "㏂", "½", "…", "！", "①", "Ⅷ", "ﬁ", "ß", "İ", "é", "e\u0301", "\u0301", "\u0345", "ᾳ",
    "가", "각", "日", "本", "が", "ｶﾞ", "ก", "ำ", "ทำ", "\u3099", "\u00ad", "\u200b", "\u200d", "\ufeff", "٣",
    "𝟗", "𐐀", "😀", "\U000e0041", "word", "eightchr", "sixteen characters", "Ω", "\0", "\u0085", "’",
]  # fmt: skip
CHARACTERS = st.one_of(st.sampled_from(PIECES), st.characters(exclude_categories=["Cs"]))
TEXTS = st.lists(st.one_of(CHARACTERS, st.text("abcDEF019", max_size=20)), max_size=30).map("".join)
COLUMNS = st.tuples(st.lists(TEXTS, max_size=6), st.integers(0, 2)).map(lambda drawn: column(*drawn))
ANY = settings(deadline=None, max_examples=400)

SlowWord = tuple[str, int, int]


@functools.cache
def kind_of(character: str) -> str:
    category = unicodedata.category(character)
    if class_table()[ord(character)] & SPACELESS:
        return "whole"
    if category == "Cf" and character != "\u200b":
        return "ignored"
    return "part" if category[0] == "L" or category == "Nd" else "mark" if category[0] == "M" else "separator"


def slow_words(text: str) -> list[SlowWord]:
    """(folded, first byte, last byte + 1) of each word."""
    words: list[SlowWord] = []
    state = "between"  # or in a "word", or after a "whole" letter
    at = 0
    for character in text:
        width = len(character.encode())
        for folded in fold_character(character):
            kind = kind_of(folded)
            if kind == "separator":
                state = "between"
            elif kind != "ignored":
                is_new = state == "between" or kind == "whole" or (kind == "part" and state == "whole")
                if is_new:
                    words.append((folded, at, at + width))
                    state = "whole" if kind == "whole" else "word"
                else:
                    before, start, _ = words[-1]
                    words[-1] = (before + folded, start, at + width)
        at += width
    return words


def slow_hash(word: str) -> int:
    data = word.encode()
    full, rest = len(data) // 8, len(data) % 8

    def stirred(hashed: int, chunk: bytes) -> int:
        hashed = (hashed ^ int.from_bytes(chunk, "little")) * FACTOR & MASK
        return hashed ^ (hashed >> 32)

    hashed = SEED
    for k in range(full):
        hashed = stirred(hashed, data[8 * k : 8 * k + 8])
    return stirred(hashed ^ (len(data) * LENGTH & MASK), data[len(data) - rest :])


def slow_window_hashes(words: list[SlowWord], n: int) -> list[int]:
    hashes = [slow_hash(word) for word, _, _ in words]
    found = []
    for first in range(len(words) - n + 1):
        value = 0
        for hashed in hashes[first : first + n]:
            value = (value * windows.BASE + hashed) & MASK
        value = (value ^ (value >> 33)) * 0xFF51AFD7ED558CCD & MASK
        value = (value ^ (value >> 33)) * 0xC4CEB9FE1A85EC53 & MASK
        found.append(value ^ (value >> 33))
    return found


def slow_marks(text: str, n: int, winnow: int) -> list[tuple[int, int, int, int]]:
    """(hash, first word, first byte, last byte + 1)."""
    words = slow_words(text)
    hashes = slow_window_hashes(words, n)
    chosen: list[int] = []
    for first in range(max(len(hashes) - winnow + 1, 1) if hashes else 0):
        window = range(first, min(first + winnow, len(hashes)))
        least = min(hashes[k] for k in window)
        if not chosen or chosen[-1] < first or hashes[chosen[-1]] != least:
            chosen.append(max(k for k in window if hashes[k] == least))
    return [(hashes[k], k, words[k][1], words[k + n - 1][2]) for k in chosen]


def marks_of(array: pa.LargeStringArray, n: int, winnow: int) -> list[list[tuple[int, int, int, int]]]:
    found = windows.window_marks(*buffers(array)[:2], word_table(), n, winnow)
    rows: list[list[tuple[int, int, int, int]]] = [[] for _ in range(len(array))]
    for row, *mark in zip(*(part.tolist() for part in found), strict=True):
        rows[row].append(tuple(mark))
    return rows


def words_of(array: pa.LargeStringArray) -> list[list[SlowWord]]:
    data, offsets, _ = buffers(array)
    words = windows.fold_words(data, offsets[:-1], offsets[1:], word_table())
    assert [slow_hash(word) for word in _folded(words)] == words.hashes.tolist()
    every = list(zip(_folded(words), words.starts.tolist(), words.ends.tolist(), strict=True))
    bounds = words.offsets.tolist()
    return [every[a:b] for a, b in itertools.pairwise(bounds)]


def _folded(words: windows.FoldedWords) -> list[str]:
    folds = words.folds.tolist()
    data = words.folded.tobytes()
    return [data[a:b].decode() for a, b in itertools.pairwise(folds)]


@ANY
@given(COLUMNS)
def test_words_and_their_places_are_those_of_a_walk_over_characters(array: pa.LargeStringArray) -> None:
    assert words_of(array) == [slow_words(text) for text in array.to_pylist()]
    counted = windows.count_words(*buffers(array)[:2], word_table())
    assert counted.tolist() == [len(slow_words(text)) for text in array.to_pylist()]


@ANY
@given(COLUMNS, st.integers(1, 5), st.integers(1, 6))
def test_marks_are_the_least_of_each_run_of_windows(array: pa.LargeStringArray, n: int, winnow: int) -> None:
    assert marks_of(array, n, winnow) == [slow_marks(text, n, winnow) for text in array.to_pylist()]


@ANY
@given(st.lists(st.sampled_from(["a", "b"]), max_size=60), st.integers(1, 3), st.integers(1, 6))
def test_marks_of_text_that_repeats_itself_are_those_of_the_rule(
    words: list[str], n: int, winnow: int
) -> None:
    text = " ".join(words)
    assert marks_of(column([text]), n, winnow) == [slow_marks(text, n, winnow)]


@ANY
@given(
    st.lists(st.integers(0, 50), min_size=7, max_size=30),
    *(st.lists(st.integers(0, 50), max_size=40) for _ in range(4)),
)
def test_a_shared_passage_of_words_plus_winnow_minus_one_words_shares_a_mark(
    passage: list[int], before: list[int], after: list[int], other_before: list[int], other_after: list[int]
) -> None:
    n, winnow = 4, 4  # 7 words
    texts = [
        " ".join(map(str, [*a, *passage, *b])) for a, b in ((before, after), (other_before, other_after))
    ]
    left, right = ({mark[0] for mark in marks} for marks in marks_of(column(texts), n, winnow))
    assert left & right


def test_a_text_of_one_line_a_million_times_has_few_marks() -> None:
    line = "the same line of eight words again and\n"
    (marks,) = marks_of(column([line * 1_000_000]), 50, 31)
    assert len(marks) <= 8_000_000 // 24  # robust winnowing: a tie keeps the mark that is there
    assert len({mark[0] for mark in marks}) <= 8


def test_more_marks_than_the_first_guess_has_room_for_are_all_there() -> None:
    (marks,) = marks_of(column(["a b " * 20_000]), 1, 1)
    assert [mark[1:] for mark in marks] == [(k, 2 * k, 2 * k + 1) for k in range(40_000)]


def test_marks_do_not_depend_on_how_the_column_is_cut() -> None:
    texts = [f"{number} " * 40 + "é words and more " * (number % 90) for number in range(600)]
    whole = marks_of(column(texts), 10, 5)
    for step in (1, 7, 599):
        parts = [column(texts[k : k + step]) for k in range(0, len(texts), step)]
        assert [row for part in parts for row in marks_of(part, 10, 5)] == whole


def test_every_code_point_folds_in_two_rounds_and_to_what_the_table_holds() -> None:
    table = word_table()
    for code in [*range(0x80, 0xD800), *range(0xE000, 0x34000)]:
        folded = fold_character(chr(code))
        assert unicodedata.normalize("NFKD", folded.casefold()) == folded or code == 0x345
        assert (table.starts[code] >= 0) == (folded != chr(code))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Straße", "STRASSE"),
        ("caf\u00e9", "CAFE\u0301"),
        ("co\u00adoperate", "cooperate"),
        ("ＡＢＣ １２", "abc 12"),
        ("각", "\u1100\u1161\u11a8"),
        ("ﬁne…", "fine!"),
    ],
)
def test_spellings_of_one_word_are_one_word(one: str, other: str) -> None:
    left, right = words_of(column([one, other]))
    assert [word for word, _, _ in left] == [word for word, _, _ in right]


def slow_grams(spoken: list[SlowWord], n: int) -> list[tuple[str, ...]]:
    words = [word for word, _, _ in spoken]
    return [tuple(words[k : k + n]) for k in range(len(words) - n + 1)]


@ANY
@given(
    st.lists(st.lists(st.sampled_from("abcdé"), max_size=12).map(" ".join), min_size=1, max_size=4),
    st.lists(st.lists(st.sampled_from("abcdé"), max_size=30).map(" ".join), max_size=4),
    st.sampled_from([[3], [4, 2], [2, 5]]),
    st.integers(1, 300),
)
def test_grams_are_found_exactly_where_the_index_has_them(
    indexed: list[str], texts: list[str], lengths: list[int], repeats: int
) -> None:
    texts = [(text + " ") * repeats for text in texts[:2]] + texts[2:]  # more windows than wait together
    hashes = [
        np.array(sorted({h for text in indexed for h in slow_window_hashes(slow_words(text), n)}), np.uint64)
        for n in lengths
    ]
    hits = windows.find_grams(*buffers(column(texts))[:2], word_table(), windows.gram_index(lengths, hashes))
    found = sorted(zip(hits.rows.tolist(), hits.kinds.tolist(), hits.first_words.tolist(), strict=True))
    grams = [{gram for text in indexed for gram in slow_grams(slow_words(text), n)} for n in lengths]
    spoken = [slow_words(text) for text in texts]  # once: a walk over 18,000 characters takes 20 ms
    assert found == [
        (row, kind, first)
        for row, words in enumerate(spoken)
        for kind, n in enumerate(lengths)
        for first, gram in enumerate(slow_grams(words, n))
        if gram in grams[kind]
    ]
    every = np.concatenate(hashes).tolist()
    places = zip(
        hits.rows.tolist(), hits.kinds.tolist(), hits.first_words.tolist(), hits.places.tolist(), strict=True
    )
    for row, kind, first, place in list(places)[:50]:
        words = spoken[row][first : first + lengths[kind]]
        assert slow_window_hashes(words, lengths[kind]) == [every[place]]


def test_more_hits_than_the_first_guess_has_room_for_are_all_there() -> None:
    hashes = np.array(slow_window_hashes(slow_words("a a a"), 3), np.uint64)
    index = windows.gram_index([3], [hashes])
    hits = windows.find_grams(*buffers(column(["a " * 5000]))[:2], word_table(), index)
    assert hits.first_words.tolist() == list(range(4998))


@ANY
@given(TEXTS, st.integers(1, 4))
def test_gram_hashes_are_those_of_the_windows(text: str, n: int) -> None:
    data, offsets, _ = buffers(column([text]))
    words = windows.fold_words(data, offsets[:-1], offsets[1:], word_table())
    places = np.arange(max(words.hashes.size - n + 1, 0))
    assert windows.gram_hashes(words, places, n).tolist() == slow_window_hashes(slow_words(text), n)


def test_a_window_of_no_words_is_refused() -> None:
    with pytest.raises(ValueError, match="windows of 0 words"):
        marks_of(column(["x"]), 0, 1)
