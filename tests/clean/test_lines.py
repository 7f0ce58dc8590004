from __future__ import annotations

import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clean.slow_measures import TEXTS, ascii_lower
from tokmill.clean.lines import REASONS, LineOptions, edit_lines
from tokmill.clean.wordlists import POLICY_PHRASES

OPTIONS = st.builds(
    LineOptions,
    min_words=st.integers(0, 4),
    max_word_chars=st.sampled_from([1, 5, 1000]),
    javascript=st.booleans(),
    policy_phrases=st.booleans(),
    terminal_punctuation=st.booleans(),
    citations=st.booleans(),
)


def slow_edit(text: str, options: LineOptions) -> tuple[str, dict[str, int]]:
    removed = dict.fromkeys(REASONS, 0)
    kept = []
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    for whole in lines:
        line = whole.strip()
        words = line.split()
        if not line:
            removed["blank_line"] += 1
            continue
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
            else:
                removed["blank_line"] += 1
    removed["outer_whitespace"] += text.endswith("\n")
    return "\n".join(kept), removed


@settings(deadline=None, max_examples=500)
@given(st.lists(TEXTS, max_size=5), OPTIONS)
def test_edits_are_what_the_slow_twin_does(texts: list[str], options: LineOptions) -> None:
    edits = edit_lines(pa.array(texts, pa.large_string()), options)
    slow = [slow_edit(text, options) for text in texts]
    changed = [row for row, (text, (edited, _)) in enumerate(zip(texts, slow, strict=True)) if edited != text]
    assert edits.rows.tolist() == changed
    assert edits.texts.to_pylist() == [slow[row][0] for row in changed]
    assert {reason: counts.tolist() for reason, counts in edits.removed.items()} == {
        reason: [slow[row][1][reason] for row in changed] for reason in REASONS
    }


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
    edits = edit_lines(pa.array(["Kept as it is.", page], pa.large_string()), LineOptions())
    assert edits.rows.tolist() == [1]
    assert edits.texts.to_pylist() == ["The mill stands by the river.\nIt has milled since 1790."]
    assert {reason: int(counts[0]) for reason, counts in edits.removed.items()} == {
        "blank_line": 1,
        "outer_whitespace": 1,
        "line_with_long_word": 0,
        "citation": 2,
        "line_without_terminal_punctuation": 3,
        "line_of_few_words": 0,
        "line_with_javascript": 1,
        "line_with_policy_phrase": 1,
    }


@pytest.mark.parametrize(
    "text", ["", "\0" * 9, "a" * 3_000_000, "one two three.\n" * 300_000, "\n" * 1_000_000]
)
def test_strange_documents_are_edited_like_their_twin(text: str) -> None:
    edits = edit_lines(pa.array([text], pa.large_string()), LineOptions())
    edited, _ = slow_edit(text, LineOptions())
    assert edits.texts.to_pylist() == ([edited] if edited != text else [])


def test_no_rows_are_no_trouble() -> None:
    edits = edit_lines(pa.array([], pa.large_string()), LineOptions())
    assert len(edits.rows) == len(edits.texts) == 0
