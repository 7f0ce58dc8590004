from __future__ import annotations

import itertools
import re
from typing import NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clean.measured_texts import TEXTS
from cleaned import clean
from plain.measures import ascii_lower
from plain.measures import measure as slow_measures
from tokmill.clean import measures as measures_module
from tokmill.clean.measures import MEASURES, measure
from tokmill.clean.rules import REASONS, LineOptions, edit_and_measure, edit_lines
from tokmill.kernels.patterns import POLICY_PHRASES

OPTIONS = st.builds(
    LineOptions,
    min_words=st.integers(0, 4),
    max_word_chars=st.sampled_from([1, 5, 1000]),
    javascript=st.booleans(),
    policy_phrases=st.booleans(),
    terminal_punctuation=st.booleans(),
    citations=st.booleans(),
)

# What words, sentences, citations and the ends of lines can do to each other: other line ends inside a line,
# a citation between two halves of a word, scripts without spaces, a line that is nothing but a citation.
LINES = st.lists(
    st.sampled_from(
        [
            *(
                "[1]",
                "[edit]",
                "[citation needed]",
                "[",
                "]",
                "a[2]b",
                "x.[3]..",
                "end.[4]",
                "[5]Next",
                "U.[6]S.",
            ),
            *("\r", "\x85", "\u2028", "\u2029", "\x0b", "\x1c", "\u3000", "\u200b", "\0", " ", "\t"),
            *(
                "One",
                "two",
                "three.",
                "Four!",
                '"',
                "?",
                "…",
                "don't",
                "你好。",
                "の",
                "กำ",
                "e\u0301",
                "٣",
                "10km",
            ),
            *("The end. It was. ", "javascript", "use cookies"),
        ]
    ),
    max_size=9,
).map("".join)
PAGES = st.lists(LINES, max_size=12).map("\n".join)

# With words split before and asked for after; only one of the two; more of them than the lines can tell;
# none.
ASKED = st.sampled_from(
    [
        (["non_symbol_words", "dup_5gram_share"], ["sentences", "newline_word_ratio", "open_braces"]),
        (["top_2gram_share", "words"], ["words"]),
        (["words"], ["words", "sentences", "hash_word_ratio", "ellipsis_word_ratio", "lorem_ipsum"]),
        (["chars"], ["words", "sentences"]),
        (["words"], ["chars"]),
        (["words"], ["words", "mean_word_length"]),
        (["words"], ["words", "top_2gram_share"]),
        ([], ["sentences"]),
        (["words"], []),
        (list(MEASURES), list(MEASURES)),
    ]
)


class SlowEdit(NamedTuple):
    text: str
    removed: dict[str, int]
    is_whole: list[bool]  # per filled line
    cut: str


def slow_edit(text: str, options: LineOptions) -> SlowEdit:
    removed = dict.fromkeys(REASONS, 0)
    kept, is_whole, cut = [], [], []
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    for whole in lines:
        line = whole.strip()
        words = line.split()
        if not line:
            removed["blank_line"] += 1
            continue
        is_whole.append(False)
        removed["outer_whitespace"] += line != whole
        if max(map(len, words)) > options.max_word_chars:
            removed["line_with_long_word"] += 1
            continue
        citations = 0
        if options.citations:
            line, citations = re.subn(r"\[[0-9]*\]|\[edit\]|\[citation needed\]", "", line)
            line = line.strip() if citations else line
        if options.terminal_punctuation and (
            not line.endswith((".", "?", "!", '"', "'")) or line.endswith("...")
        ):
            removed["line_without_terminal_punctuation"] += 1
        elif len(words) < options.min_words:
            removed["line_of_few_words"] += 1
        elif options.javascript and "javascript" in ascii_lower(line):
            removed["line_with_javascript"] += 1
        elif options.policy_phrases and any(phrase in ascii_lower(line) for phrase in POLICY_PHRASES):
            removed["line_with_policy_phrase"] += 1
        else:
            removed["citation"] += citations
            if line:
                kept.append(line)
                is_whole[-1] = not citations
                cut += [line] if citations else []
            else:
                removed["blank_line"] += 1
    removed["outer_whitespace"] += text.endswith("\n")
    return SlowEdit("\n".join(kept), removed, is_whole, "\n".join(cut))


@settings(deadline=None, max_examples=500)
@given(st.lists(TEXTS | PAGES, max_size=5), OPTIONS)
def test_edits_are_what_the_slow_twin_does(texts: list[str], options: LineOptions) -> None:
    edits = edit_lines(pa.array(texts, pa.large_string()), options)
    slow = [slow_edit(text, options) for text in texts]
    changed = [row for row, (text, edit) in enumerate(zip(texts, slow, strict=True)) if edit.text != text]
    assert edits.rows.tolist() == changed
    assert edits.texts.to_pylist() == [edit.text for edit in slow]
    assert {reason: counts.tolist() for reason, counts in edits.removed.items()} == {
        reason: [slow[row].removed[reason] for row in changed] for reason in REASONS
    }
    places = edits.kept.offsets.tolist()
    assert [edits.kept.is_whole[a:b].tolist() for a, b in itertools.pairwise(places)] == [
        edit.is_whole for edit in slow
    ]
    assert edits.kept.cut.to_pylist() == [edit.cut for edit in slow]


# A bracket, a space, a control character, the end:
# at each place of the eight bytes that are looked at together.
@pytest.mark.parametrize(
    "piece", ["[1]", "[", "[edit]", " ", "  ", "\t", "\x1c", "\0", "é", "\u2028", " [2] ", "[3]\n", "\n"]
)
@pytest.mark.parametrize("min_words", [0, 1, 2, 3, 9])
def test_edits_are_those_of_the_twin_wherever_in_a_line_something_is(piece: str, min_words: int) -> None:
    lines = [("ab cdefg h. " * 3)[shift:][:size] for size in range(26) for shift in (0, 1, 2)]
    texts = [line[:place] + piece + line[place:] + behind for line in lines for place in range(0,
        len(line) + 1, 3)
             for behind in ("", "\n", "\nOne two three four.")]  # fmt: skip
    for options in (
        LineOptions(min_words=min_words),
        LineOptions(min_words=min_words, terminal_punctuation=False, citations=False, max_word_chars=6),
    ):
        edits = edit_lines(pa.array(texts, pa.large_string()), options)
        assert edits.texts.to_pylist() == [slow_edit(text, options).text for text in texts]


@settings(deadline=None, max_examples=600)
@given(st.lists(TEXTS | PAGES, max_size=5), OPTIONS, ASKED, st.integers(1, 60))
def test_what_is_measured_around_the_edits_is_what_each_text_measures_by_itself(
    texts: list[str], options: LineOptions, asked: tuple[list[str], list[str]], block_bytes: int
) -> None:
    column, (names, names_after) = pa.array(texts, pa.large_string()), asked
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measures_module, "_BLOCK_BYTES", block_bytes)
        found = edit_and_measure(column, options, names, names_after)
    assert list(found.before) == names
    assert list(found.after) == names_after
    for values, plain in (
        (found.before, measure(column, names)),
        (found.after, measure(found.edits.texts, names_after)),
    ):
        for name, column_of in plain.items():
            assert values[name].dtype == column_of.dtype
            assert values[name].tolist() == column_of.tolist(), name
    slow = [slow_measures(slow_edit(text, options).text) for text in texts]
    assert {name: values.tolist() for name, values in found.after.items()} == {
        name: [measures[name] for measures in slow] for name in names_after
    }


@pytest.mark.parametrize(
    ("text", "left", "words", "sentences"),
    [
        ("He left.[1] She stayed.", "He left. She stayed.", 6, 2),
        ("He left[1]. She stayed.[2]\nMenu\nThey met again", "He left. She stayed.\nThey met again", 9, 3),
        ("wa[1]ter runs down\nOne two three! [edit]", "water runs down\nOne two three!", 7, 2),
        ("One two three.\r\n[1] [2] [3]\nFour five six.", "One two three.\nFour five six.", 8, 2),
        ("One two three.\u2028Four\x85five six.", "One two three.\u2028Four\x85five six.", 8, 2),
        ("你好。 世 界。[7]\n好。", "你好。 世 界。", 6, 2),
    ],
)
def test_words_of_lines_that_lost_a_citation_are_those_of_what_is_left(
    text: str, left: str, words: int, sentences: int
) -> None:
    options = LineOptions(terminal_punctuation=False)
    asked = ["words", "sentences"]
    found = edit_and_measure(pa.array([text], pa.large_string()), options, asked, asked)
    assert found.edits.texts.to_pylist() == [left]
    assert [found.after[name].tolist() for name in asked] == [[words], [sentences]]


@settings(deadline=None, max_examples=100)
@given(st.lists(TEXTS, max_size=5))
def test_what_was_edited_needs_no_second_edit_but_for_joined_brackets(texts: list[str]) -> None:
    options = LineOptions(citations=False)
    once = edit_lines(pa.array(texts, pa.large_string()), options).texts
    assert edit_lines(once, options).rows.tolist() == []


def test_a_page_loses_its_furniture_and_each_loss_has_a_reason() -> None:
    page = "\n".join(
        [
            "Home",
            "  The mill stands by the river.[1] ",
            "",
            "Please enable JavaScript to read this.",
            "This site uses cookies, as all do.",
            "No end to this line",
            "It has milled since 1790.[citation needed]",
            "He said nothing more...",
        ]
    )
    rules = [{"pack": "c4", "set": {"max_lorem_ipsum": 9, "max_open_braces": 9, "min_sentences": 0}}]
    found = clean([{"text": "Kept as it is."}, {"text": page}], filters=rules)
    assert found.texts == ["Kept as it is.", "The mill stands by the river.\nIt has milled since 1790."]
    assert found.edits.keys() == {1}
    assert {reason: line["value"] for reason, line in found.edits[1].items()} == {
        "blank_line": 1,
        "outer_whitespace": 1,
        "citation": 2,
        "line_without_terminal_punctuation": 3,
        "line_with_javascript": 1,
        "line_with_policy_phrase": 1,
    }


@pytest.mark.parametrize(
    "text", ["", "\0" * 9, "a" * 3_000_000, "one two three.\n" * 300_000, "\n" * 1_000_000]
)
def test_strange_documents_are_edited_like_their_twin(text: str) -> None:
    edits = edit_lines(pa.array([text], pa.large_string()), LineOptions())
    assert edits.texts.to_pylist() == [slow_edit(text, LineOptions()).text]


def test_no_rows_are_no_trouble() -> None:
    edits = edit_lines(pa.array([], pa.large_string()), LineOptions())
    assert len(edits.rows) == len(edits.texts) == 0
    found = edit_and_measure(pa.array([], pa.large_string()), LineOptions(), ["words"], ["words"])
    assert (len(found.before["words"]), len(found.after["words"])) == (0, 0)


def test_a_slice_of_a_column_is_edited_and_measured_like_a_copy() -> None:
    texts = pa.array(
        ["before it", "One two three. [1]\nMenu", "Four five six. Seven!", "after"], pa.large_string()
    )
    asked = ["words", "sentences"]
    sliced, copied = (
        edit_and_measure(column, LineOptions(terminal_punctuation=False), asked, asked)
        for column in (texts.slice(1, 2), pa.array(texts.to_pylist()[1:3], pa.large_string()))
    )
    for name in asked:
        assert sliced.before[name].tolist() == copied.before[name].tolist()
        assert sliced.after[name].tolist() == copied.after[name].tolist()
    assert sliced.after["words"].tolist() == [4, 6]
