"""Repeated passages against slow twins, and what each policy makes of them."""

from __future__ import annotations

import json
import random
import unicodedata
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplicates.deduped import Deduped, dedup
from duplicates.passages_in_memory import apply_policy, find_passages, resolve
from kernels.test_windows import slow_words
from mill import SHARED
from tokmill.duplicates.window import (
    Pairs,
    Spans,
    WindowOptions,
    count_words,
    extend_matches,
    match_marks,
    merge_spans,
    resolve_piece,
    trim_texts,
    window_marks,
)
from tokmill.kernels.jit import TERMINAL
from tokmill.kernels.patterns import ABBREVIATIONS
from tokmill.kernels.survivors import get_bits, no_bits
from tokmill.kernels.wordclasses import class_table
from written import ZstdFile

ANY = settings(deadline=None, max_examples=200)
SMALL = WindowOptions(words=4, winnow=3)


def texts_of(texts: list[str]) -> Any:
    return pa.array(texts, pa.large_string())


def prose(seed: int, words: int, sentence: int = 12) -> str:
    """Sentences of words that no other seed has."""
    draw = random.Random(f"seed {seed}")  # of a number it would be the absolute value
    found = [
        "".join(draw.choice("bcdfghklmnprst") + draw.choice("aeiou") for _ in range(3)) for _ in range(words)
    ]
    for k in range(0, words, sentence):
        found[k] = found[k].capitalize()
        found[min(k + sentence, words) - 1] += "."
    return " ".join(found)


def told_spans(texts: list[str], found: Deduped) -> list[tuple[int, str, int, str]]:
    """What a run wrote: the document, the passage, the earlier document, and the passage there."""
    return [
        (
            *(span["document"], texts[span["document"]].encode()[span["start"] : span["end"]].decode()),
            span["first_document"],
            texts[span["first_document"]].encode()[span["first_start"] : span["first_end"]].decode(),
        )
        for span in found.spans
    ]


def span_texts(texts: list[str], spans: Spans) -> list[tuple[int, str, int, str]]:
    columns = (spans.rows, spans.starts, spans.ends, spans.first_rows, spans.first_starts, spans.first_ends)
    return [
        (row, texts[row].encode()[a:b].decode(), first, texts[first].encode()[c:d].decode())
        for row, a, b, first, c, d in zip(*(column.tolist() for column in columns), strict=True)
    ]


# --- matching ---


def slow_matches(marks: list[tuple[int, int]], ranks: list[int]) -> list[tuple[int, int]]:
    """(hash, document) of each mark: with the first mark of its hash in the earliest document,
    unless that is its own."""
    found = []
    for place, (hashed, document) in enumerate(marks):
        same = [(ranks[d], d, k) for k, (h, d) in enumerate(marks) if h == hashed]
        _, first_document, first = min(same)
        if first_document != document:
            found.append((place, first))
    return found


MARKS = st.lists(
    st.tuples(st.sampled_from([0, 1, 2, 2**32, 2**63, 2**64 - 1]), st.integers(0, 5)), max_size=30
)


@ANY
@given(MARKS, st.lists(st.integers(0, 3), min_size=6, max_size=6))
def test_a_mark_is_matched_with_the_first_of_its_hash_in_keep_order(
    marks: list[tuple[int, int]], ranks: list[int]
) -> None:
    hashes, documents = (
        np.array([mark[k] for mark in marks], kind) for k, kind in enumerate((np.uint64, np.int64))
    )
    found = match_marks(hashes, documents, np.array(ranks)[documents])
    assert list(zip(found.marks.tolist(), found.firsts.tolist(), strict=True)) == slow_matches(marks, ranks)


# --- spans ---


def slow_spans(texts: list[str], pairs: list[tuple[int, int, int, int]], n: int) -> list[tuple[int, ...]]:
    """(row, first word, words, first row, its first word): pairs in order, words covered once."""
    words = [[word for word, _, _ in slow_words(text)] for text in texts]
    covered: set[tuple[int, int]] = set()
    found = []
    for row, place, other, other_place in sorted(pairs, key=lambda pair: (pair[0], pair[2], pair[1])):
        here, there = words[row], words[other]
        if here[place : place + n] != there[other_place : other_place + n] or len(here) < place + n:
            continue
        if all((row, k) in covered for k in range(place, place + n)):
            continue
        a, b, stop = place, other_place, place + n
        while a and b and (row, a - 1) not in covered and here[a - 1] == there[b - 1]:
            a, b = a - 1, b - 1
        while (
            stop < len(here)
            and stop - a + b < len(there)
            and (row, stop) not in covered
            and here[stop] == there[stop - a + b]
        ):
            stop += 1
        covered |= {(row, k) for k in range(a, stop)}
        found.append((row, a, stop - a, other, b))
    return sorted(found)


@ANY
@given(
    st.lists(
        st.lists(st.sampled_from(["a", "B", "b", "é", "E\u0301", "日", "㏂", "—"]), max_size=25).map(
            " ".join
        ),
        min_size=2,
        max_size=4,
    ),
    st.data(),
)
def test_runs_are_the_maximal_ones_of_equal_words(texts: list[str], data: st.DataObject) -> None:
    place = st.integers(0, 20)
    row = st.integers(0, len(texts) - 1)
    pairs = data.draw(
        st.lists(
            st.tuples(row, place, row, place).filter(lambda pair: pair[0] != pair[2]),
            max_size=20,
            unique=True,
        )
    )
    # Two pairs of one place and document would be a tie; match_marks gives one.
    pairs = list(
        {(row, word, other): (row, word, other, there) for row, word, other, there in pairs}.values()
    )
    columns = np.array(pairs, np.int64).reshape(-1, 4).T
    options = WindowOptions(words=2, winnow=1)
    spans = extend_matches(texts_of(texts), Pairs(*columns), options).spans
    expected = slow_spans(texts, pairs, 2)
    words = [slow_words(text) for text in texts]
    assert list(zip(*(part.tolist() for part in spans), strict=True)) == [
        (
            *(row, first, count, words[row][first][1], words[row][first + count - 1][2]),
            *(other, words[other][there][1], words[other][there + count - 1][2]),
        )
        for row, first, count, other, there in expected
    ]


def test_equal_hashes_of_other_words_are_no_match() -> None:
    texts = texts_of(["one two three four five", "one two three four six"])
    pairs = Pairs(*(np.array([k]) for k in (1, 1, 0, 1)))
    assert extend_matches(texts, pairs, WindowOptions(words=3)).spans.words.tolist() == [4]
    found = extend_matches(texts, pairs, WindowOptions(words=4))
    assert found.different == 1
    assert not len(found.spans.rows)


@pytest.mark.parametrize("size", [20, 49])
def test_a_passage_shorter_than_a_window_is_never_found(size: int) -> None:
    shared = prose(0, size)
    texts = [f"{prose(k, 100)} {shared} {prose(-k, 100)}" for k in range(1, 20)]
    assert dedup(texts, window={}).spans == []


@pytest.mark.parametrize("size", [80, 81, 200])
def test_a_passage_of_words_plus_winnow_minus_one_words_is_always_found_and_whole(size: int) -> None:
    shared = prose(0, size)
    texts = [
        f"{prose(k, 3 * k)} {shared.upper() if k % 2 else shared} {prose(-k, 100)}" for k in range(1, 40)
    ]
    found = told_spans(texts, dedup(texts, window={}))
    assert [(row, text.lower().rstrip("."), first) for row, text, first, _ in found] == [
        (row, shared.lower().rstrip("."), 0) for row in range(1, 39)
    ]


def test_a_passage_of_just_a_window_is_found_when_nothing_is_winnowed() -> None:
    shared = prose(0, 50)
    texts = [f"{prose(k, 70)} {shared} {prose(-k, 70)}" for k in range(1, 6)]
    assert [span["words"] for span in dedup(texts, window={"winnow": 1}).spans] == [50] * 4


@ANY
@given(st.lists(st.lists(st.sampled_from("abcdef"), max_size=30).map(" ".join), max_size=6))
def test_every_span_is_shared_text_and_every_long_shared_passage_is_touched(texts: list[str]) -> None:
    spans = find_passages(texts_of(texts), SMALL)
    for row, text, first, copy in span_texts(texts, spans):
        assert text == copy
        assert first < row
        assert text in texts[row]
    covered = {
        (r, k) for r, a, n, *_ in zip(*(p.tolist() for p in spans), strict=True) for k in range(a, a + n)
    }
    for row, text in enumerate(texts):
        words = text.split()
        for at in range(len(words) - 5):  # 4 + 3 - 1 words
            passage = f" {' '.join(words[at : at + 6])} "
            if any(passage in f" {earlier} " for earlier in texts[:row]):
                assert any((row, at + k) in covered for k in range(6))


def test_keep_order_says_which_copy_is_the_first() -> None:
    shared = prose(0, 90)
    texts = [f"{prose(k, 50)} {shared}" for k in range(1, 4)]
    spans = find_passages(texts_of(texts), WindowOptions(), np.array([2, 0, 1]))
    assert (spans.rows.tolist(), spans.first_rows.tolist()) == ([0, 2], [1, 1])


def test_spans_that_touch_or_overlap_are_merged_within_a_document() -> None:
    #            row  word words start end
    lines = [
        (1, 0, 5, 0, 50),
        (1, 5, 5, 51, 99),
        (1, 7, 1, 70, 75),
        (1, 12, 2, 110, 120),
        (2, 0, 3, 0, 30),
        (2, 2, 9, 20, 90),
    ]
    columns = np.array(lines, np.int64).T
    merged = merge_spans(Spans(*columns, *(np.zeros(len(lines), np.int64) for _ in range(3))))
    assert list(zip(*(part.tolist() for part in merged[:5]), strict=True)) == [
        (1, 0, 10, 0, 99),
        (1, 12, 2, 110, 120),
        (2, 0, 11, 0, 90),
    ]


# --- what is decided ---


def slow_resolve(
    spans: list[tuple[int, int, int, int]], totals: list[int], ranks: list[int], options: WindowOptions
) -> tuple[list[bool], list[bool]]:
    dropped = [False] * len(totals)
    counts = [False] * len(spans)
    for row in sorted(range(len(totals)), key=lambda row: (ranks[row], row)):
        words: set[int] = set()
        for k, (owner, first, count, other) in enumerate(spans):
            if owner == row and not dropped[other]:
                counts[k] = True
                words |= set(range(first, first + count))
        if words and options.policy == "drop":
            dropped[row] = len(words) > options.max_share * totals[row]
        if words and options.policy == "trim":
            dropped[row] = totals[row] - len(words) < options.min_words
    return dropped, counts


@ANY
@given(st.data(), st.sampled_from(["report", "drop", "trim"]), st.permutations(range(6)))
def test_documents_go_in_keep_order_and_only_for_passages_that_stay_elsewhere(
    data: st.DataObject, policy: Any, ranks: list[int]
) -> None:
    totals = data.draw(st.lists(st.integers(10, 20), min_size=6, max_size=6))
    span = st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(1, 10), st.integers(0, 5))
    spans = data.draw(st.lists(span.filter(lambda s: ranks[s[3]] < ranks[s[0]]), max_size=15))
    spans = [(row, first, min(count, totals[row] - first), other) for row, first, count, other in spans]
    options = WindowOptions(policy=policy, max_share=Decimal("0.5"), min_words=5)
    rows, first_words, words, others = (np.array([s[k] for s in spans], np.int64) for k in range(4))
    nothing = np.zeros(len(spans), np.int64)
    resolved = resolve(
        Spans(rows, first_words, words, nothing, nothing, others, nothing, nothing),
        np.array(totals),
        options,
        np.array(ranks),
    )
    expected = slow_resolve(spans, totals, ranks, options)
    assert (resolved.is_dropped.tolist(), resolved.counts.tolist()) == expected
    # the same document by document, with nothing but a bit for each of those before
    order = np.lexsort((np.arange(len(spans)), first_words, rows, np.array(ranks)[rows]))
    dropped, counts = no_bits(6), np.zeros(len(spans), np.bool_)
    for row in np.argsort(ranks).tolist():
        own = order[rows[order] == row]
        columns = [column[own] for column in (rows, first_words, words, others)]
        counts[own] = resolve_piece(*columns, np.array(totals)[rows[own]], options, dropped)
    assert (get_bits(dropped, np.arange(6)).tolist(), counts.tolist()) == expected


def test_drop_takes_documents_whose_share_of_passages_is_over_the_limit() -> None:
    shared = prose(0, 100)
    texts = [prose(1, 300) + " " + shared, shared + " " + prose(2, 50), shared + " " + prose(3, 150)]
    done = dedup(texts, window={"policy": "drop", "max_share": "0.5"})
    assert done.is_dropped == [False, True, False]
    assert done.texts == texts


def test_a_passage_whose_only_other_copy_is_dropped_is_not_lost() -> None:
    first, own = prose(1, 300), prose(2, 100)
    texts = [first, f"{first} {own}", f"{own} {prose(3, 30)}"]
    done = dedup(texts, window={"policy": "drop", "max_share": "0.5"})
    assert done.is_dropped == [False, True, False], "its passage is in no other document that stays"


# --- trimming ---

PASSAGE = (
    "The passage begins here and goes on for a while. It has Mr. Smith in it, e.g. as a guest. It ends here."
)


def trimmed(text: str, passage: str) -> str:
    start = text.index(passage)
    start, end = len(text[:start].encode()), len(text[: start + len(passage)].encode())
    nothing = np.zeros(1, np.int64)
    span = Spans(nothing, nothing, nothing, nothing + start, nothing + end, nothing, nothing, nothing)
    return str(trim_texts(texts_of([text]), span).texts[0])


@pytest.mark.parametrize(
    ("text", "passage", "left"),
    [
        ("Before it. One two. Three four. After it.", "One two. Three four", "Before it. After it."),
        (
            "Before it. One two. Three four. After it.",
            "two. Three four. After",
            "Before it. One two. After it.",
        ),
        ("Before it. One two three four. After it.", "two three", "Before it. One two three four. After it."),
        ("P one\n\nP two is\n\nP three", "P two is", "P one\n\nP three"),
        ("One two.\n\nThree four.\n\nFive six.", "two.\n\nThree four", "One two.\n\nFive six."),
        ("One two.", "One two", ""),
        ("Say. “One two.” Then more.", "One two", "Say. Then more."),
        ("Before Mr. Smith went. One two. End it.", "Smith went. One two", "Before Mr. Smith went. End it."),
        ("He is J. Smith. One two. End.", "Smith. One two", "He is J. Smith. End."),
        ("It is e.g. One of two. End.", "One of two", "It is e.g. One of two. End."),
        ("Of 3.5 parts. One two. End.", "5 parts. One two", "Of 3.5 parts. End."),
        ("It grew by 5. Then it fell. End.", "Then it fell", "It grew by 5. End."),
        ("前の文。これは文です。次の文。", "これは文です", "前の文。次の文。"),
        ("Вот так. Это оно! А дальше?", "Это оно", "Вот так. А дальше?"),
        ("جملة. هذه هي. نهاية.", "هذه هي", "جملة. نهاية."),
        ("a = 1;\nb = 2;\nc = 3;\n", "b = 2", "a = 1;\nc = 3;\n"),
        ("Title\nOne two\nThree four\n", "One two", "Title\nThree four\n"),
        ("- one\n- two\n- three", "two", "- one\n- three"),
        ("one\r\n\r\nTwo three\r\n\r\nfour", "Two three", "one\r\n\r\nfour"),
        ("he went\nto the house and\nslept", "to the house and", "he went\nto the house and\nslept"),
        (
            (
                "It was in the middle of the second week that old Mister\nSmith came to the house of the "
                "well known old Missis\nJones."
            ),
            "Smith came to the house of the well known old Missis",
            (
                "It was in the middle of the second week that old Mister\nSmith came to the house of the "
                "well known old Missis\nJones."
            ),
        ),
        ("", "", ""),
    ],
)
def test_a_cut_is_made_at_boundaries_and_never_in_a_sentence(text: str, passage: str, left: str) -> None:
    assert trimmed(text, passage) == left


@ANY
@given(
    st.lists(
        st.sampled_from(
            ["a", "B", "Mr.", ".", ".", " ", " ", "\n", "\n\n", "é", "。", ")", '"', "日", "\u00ad", "½"]
        ),
        max_size=40,
    )
    .map("".join)
    .filter(str.strip),
    st.data(),
)
def test_a_cut_holds_no_word_outside_its_span(text: str, data: st.DataObject) -> None:
    words = slow_words(text)
    if not words:
        return
    first = data.draw(st.integers(0, len(words) - 1))
    last = data.draw(st.integers(first, len(words) - 1))
    nothing = np.zeros(1, np.int64)
    span = Spans(
        nothing, nothing + first, nothing + last - first + 1, nothing + words[first][1],
        nothing + words[last][2], nothing, nothing, nothing,
    )  # fmt: skip
    done = trim_texts(texts_of([text]), span)
    data_bytes = text.encode()
    left = done.texts[0].as_py().encode()
    if len(done.rows):
        start, end = int(done.starts[0]), int(done.ends[0])
        assert left == data_bytes[:start] + data_bytes[end:]
        inside = {k for k, word in enumerate(words) if start < word[2] and word[1] < end}
        # a code point of several words is not cut in two: those in it go together
        around = {k for k, word in enumerate(words) if words[first][1] < word[2] and word[1] < words[last][2]}
        assert inside <= around
    else:
        assert left == data_bytes


def boundary_kind(character: str) -> str:
    if character in "。！？｡．":
        return "stop without space"
    if character in "'\"" or unicodedata.category(character) in ("Pe", "Pf"):
        return "closer"
    if slow_words(character):
        return "lower" if character.islower() else "word"
    if character.isspace():
        return "space"
    return "stop" if class_table()[ord(character)] & TERMINAL else "other"


def is_word(character: str) -> bool:
    return boundary_kind(character) in ("lower", "word")


def ends_with_abbreviation(text: str) -> bool:
    """The text ends before a full stop that is part of it."""
    if not text or not is_word(text[-1]) or text[-1] in "0123456789":
        return False
    if len(text) == 1 or not is_word(text[-2]):
        return True
    start = len(text)
    while start and (is_word(text[start - 1]) or text[start - 1] == "."):
        start -= 1
    return f"{text[start:]}." in ABBREVIATIONS


def slow_is_boundary(text: str, at: int) -> bool:
    if at in (0, len(text)):
        return True
    before, after = text[:at], text[at:]
    is_line = before[-1] == "\n"
    visible = before.rstrip()
    rest = after.lstrip()
    gap = before[len(visible) :]
    if is_line:
        if not visible or "\n" in gap[:-1] or "\n" in after[: len(after) - len(rest)] or not rest:
            return True
    else:
        if boundary_kind(after[0]) == "space" or boundary_kind(before[-1]) not in (
            "space",
            "stop without space",
            "closer",
        ):
            return False
        if "\n" in gap:
            return False
        if not visible:
            return True
    closed = visible
    while (
        len(closed) > 1
        and boundary_kind(closed[-1]) == "closer"
        and len(visible[len(closed) - 1 :].encode()) <= 16
    ):
        closed = closed[:-1]
    kind = boundary_kind(closed[-1])
    if kind == "stop without space":
        return boundary_kind(after[0]) not in ("closer", "stop", "stop without space")
    if kind == "stop" and gap:
        if closed[-1] != ".":
            return True
        return boundary_kind(rest[0]) != "lower" and not ends_with_abbreviation(closed[:-1])
    if not is_line:
        return False
    if visible[-1] in ";{}:>" or rest[0] == "|" or (rest[0] in "-+" and rest[1:2] in ("", " ")):
        return True
    if len(visible.rpartition("\n")[2].encode()) >= 50:
        return False
    return not (boundary_kind(rest[0]) == "lower" and (is_word(visible[-1]) or visible[-1] == ","))


def slow_cut(text: str, start: int, stop: int) -> str:
    """What is left of the text when the span of characters is cut."""
    begin, end = start, stop
    while begin and not is_word(text[begin - 1]):
        begin -= 1
    while end < len(text) and not is_word(text[end]):
        end += 1
    places = [at for at in range(begin, end + 1) if slow_is_boundary(text, at)]
    if not places:
        return text
    first = max(at for at in places if not any(map(is_word, text[places[0] : at])))
    return text[:first] + text[places[-1] :] if places[-1] > max(first, start) else text


PIECES = [
    *[
        "a",
        "B",
        "Mr.",
        "e.g.",
        "St.",
        "J.",
        "U.S.",
        "5.",
        ".",
        ".",
        " ",
        " ",
        "  ",
        "\n",
        "\n",
        "\n\n",
        "\r\n",
        "é",
        "É",
        "。",
    ],
    *[
        ")",
        '"',
        "”",
        "(",
        "日",
        "\u00ad",
        "½",
        ",",
        ";",
        ":",
        "-",
        "- ",
        "|",
        "!",
        "?",
        "…",
        "\u3000",
        "\x1c",
        "ª",
        "ش",
    ],
    *["many words of wrapped prose in a line of some length", ")" * 20],
]


@settings(deadline=None, max_examples=1000)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=25).map("".join), st.data())
def test_cuts_are_those_of_the_rules(text: str, data: st.DataObject) -> None:
    places = [at for at in range(len(text)) if is_word(text[at])]
    if not places:
        return
    start = data.draw(st.sampled_from(places))
    stop = data.draw(st.sampled_from([at + 1 for at in places if at >= start]))
    nothing = np.zeros(1, np.int64)
    a, b = len(text[:start].encode()), len(text[:stop].encode())
    span = Spans(nothing, nothing, nothing + 1, nothing + a, nothing + b, nothing, nothing, nothing)
    assert trim_texts(texts_of([text]), span).texts[0].as_py() == slow_cut(text, start, stop)


def test_trim_cuts_later_copies_and_leaves_the_first_and_the_rest_untouched() -> None:
    shared = prose(0, 120)
    own = [prose(k, 96) for k in range(1, 7)]
    texts = [f"{a}\n\n{shared}\n\n{b}" for a, b in zip(own[:3], own[3:], strict=True)]
    done = dedup(texts, window={"policy": "trim"})
    assert done.texts == [texts[0], f"{own[1]}\n\n{own[4]}", f"{own[2]}\n\n{own[5]}"]
    assert not any(done.is_dropped)
    assert done.facts["window"]["bytes_cut"] == sum(map(len, texts)) - sum(map(len, done.texts))


def test_a_document_with_too_little_of_its_own_is_dropped_not_trimmed() -> None:
    shared = prose(0, 200)
    texts = [shared, f"{shared} {prose(1, 20)}", f"{shared} {prose(2, 60)}"]
    done = dedup(texts, window={"policy": "trim", "min_words": 50})
    assert done.is_dropped == [False, True, False]
    assert done.texts == [shared, texts[1], prose(2, 60)]


@pytest.mark.parametrize("min_words", [0, 1])
def test_a_document_of_which_nothing_would_be_left_is_dropped(min_words: int) -> None:
    shared = prose(0, 200)
    texts = [f"{shared} {prose(1, 20)}", f"{shared}\n", f"{shared} It is."]
    done = dedup(texts, window={"policy": "trim", "min_words": min_words})
    assert done.is_dropped == [False, True, False]
    assert done.texts[2] == "It is."


SENTENCES = st.lists(
    st.sampled_from([f"{a.upper()} {b} {c}. " for a in "ab" for b in "cd" for c in "ef"]), max_size=14
)


@ANY
@given(st.lists(SENTENCES.map("".join), max_size=6), st.sampled_from(["drop", "trim"]))
def test_cuts_are_places_of_the_text_as_given(texts: list[str], policy: Any) -> None:
    options = WindowOptions(words=4, winnow=3, policy=policy, min_words=3)
    done = apply_policy(texts_of(texts), options)
    rebuilt = [bytearray(text.encode()) for text in texts]
    for row, start, end in reversed(list(zip(*(part.tolist() for part in done.cuts[1:]), strict=True))):
        del rebuilt[row][start:end]
    for row, text in enumerate(done.texts.to_pylist()):
        assert text == (texts[row] if done.is_dropped[row] else rebuilt[row].decode())


# --- what peers get wrong ---

LICENSE = """\
# Licensed under the Example License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at the place where it is kept.
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License. Nothing in this header is about the code
# below, which is why it is the same in every file of the project."""


def test_licence_headers_are_reported_and_trimmed_and_the_code_below_is_untouched() -> None:
    code = [f"import {prose(-k, 1)}\n\n\ndef work_{k}(x):\n    {prose(k, 90, 6)}\n" for k in range(1, 20)]
    texts = [f"{LICENSE}\n\n{body}" for body in code]
    reported = dedup(texts, window={})
    assert reported.texts == texts
    assert [(span["document"], span["first_document"]) for span in reported.spans] == [
        (row, 0) for row in range(1, 19)
    ]
    dropped = dedup(texts, window={"policy": "drop", "max_share": "0.6"})
    assert not any(dropped.is_dropped), "half of each file is its own"
    assert dedup(texts, window={"policy": "trim"}).texts == [texts[0], *code[1:]]


def test_forms_that_differ_in_their_figures_share_no_passage() -> None:
    rows = [
        "\n".join(f"{k * 31 + line} paid {k * 17 + line} on day {line * k}" for line in range(1, 200))
        for k in range(1, 8)
    ]
    assert dedup(rows, window={}).spans == []


def test_templated_prose_loses_the_template_and_keeps_what_is_between() -> None:
    head, foot = prose(0, 96), prose(-1, 96)
    own = [prose(k, 72) for k in range(1, 10)]
    texts = [f"{head}\n\n{body}\n\n{foot}" for body in own]
    done = dedup(texts, window={"policy": "trim"})
    assert [text.strip() for text in done.texts] == [texts[0], *own[1:]]


def test_a_book_and_a_book_with_another_preface_share_all_but_the_preface() -> None:
    book = "\n\n".join(prose(k, 2000) for k in range(1, 101))
    texts = [book, f"{prose(-1, 300)}\n\n{book}", prose(-2, 5000)]
    done = dedup(texts, window={"policy": "trim"})
    (span,) = done.spans
    assert (span["words"], span["document"], span["first_document"]) == (200_000, 1, 0)
    assert done.texts == [book, f"{prose(-1, 300)}\n\n", texts[2]]


def test_a_million_equal_lines_in_two_documents_are_one_span() -> None:
    lines = "the same line of eight words again and\n" * 1_000_000
    texts = [lines, f"{prose(1, 100)}\n{lines}"]
    spans = merge_spans(find_passages(texts_of(texts), WindowOptions()))
    assert spans.rows.tolist() == [1]
    assert spans.words[0] >= 7_999_900
    assert count_words(texts_of(texts)).tolist() == [8_000_000, 8_000_100]


def test_the_result_does_not_depend_on_how_marks_are_batched_or_partitioned() -> None:
    shared = [prose(-k, 100) for k in range(1, 9)]
    texts = [
        f"{prose(k, 60)} {shared[k % 8]} {prose(1000 + k, 60)} {shared[(k * 3) % 8]}" for k in range(1, 60)
    ]
    whole = window_marks(texts_of(texts), WindowOptions())
    for step in (1, 13):
        parts = [
            window_marks(texts_of(texts[k : k + step]), WindowOptions()) for k in range(0, len(texts), step)
        ]
        assert np.concatenate([part.hashes for part in parts]).tolist() == whole.hashes.tolist()
    everything = match_marks(whole.hashes, whole.rows, whole.rows)
    found = []
    for part in range(7):
        chosen = np.flatnonzero(whole.hashes % np.uint64(7) == part)
        matches = match_marks(whole.hashes[chosen], whole.rows[chosen], whole.rows[chosen])
        found += zip(chosen[matches.marks].tolist(), chosen[matches.firsts].tolist(), strict=True)
    assert sorted(found) == list(zip(everything.marks.tolist(), everything.firsts.tolist(), strict=True))


@pytest.mark.skipif(not (SHARED / "bench").exists(), reason="needs ../shared/bench")
def test_passages_planted_in_real_text_are_found_and_cut() -> None:
    with ZstdFile(SHARED / "bench/prose.jsonl.zst") as lines:
        texts = [json.loads(line)["text"] for line, _ in zip(lines, range(300), strict=False)]
    passage = prose(0, 150)
    planted = [f"{text}\n\n{passage}\n\n{prose(k, 20)}" for k, text in enumerate(texts, 1)]
    done = dedup(planted, window={"policy": "trim", "min_words": 1})
    found = told_spans(planted, done)
    assert [row for row, text, *_ in found if passage.rstrip(".") in text] == list(range(1, 300))
    assert passage in done.texts[0]
    assert not any(passage in text for text in done.texts[1:])
    untouched = set(range(1, 300)) - {row for row, text, *_ in found if text != passage.rstrip(".")}
    assert len(untouched) > 250
    for row in untouched:
        assert done.texts[row] == planted[row].replace(f"{passage}\n\n", "")
