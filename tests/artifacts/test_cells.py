"""What a notebook shows of results: escaped, whole, and with the figures of the files."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from reports.reported import HOSTILE_ID, write_corpus
from tokmill import peek, run, why
from tokmill.artifacts.cells import passage, shown


class Read(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.names: set[str] = set()
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


PLAIN = {"div", "b", "span", "table", "thead", "tbody", "tr", "th", "td", "pre"}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("cells")
    return run(write_corpus(directory), directory / "out", workers=1)


def read(text: str) -> Read:
    found = Read(text)
    assert found.open == []
    assert found.tags <= PLAIN
    assert found.names <= {"style", "dir"}
    return found


def test_a_run_shows_every_step_with_what_came_in_and_what_left(result: Any) -> None:
    text = read(result._repr_html_()).text
    for name in result.artifacts:
        assert name in text
    assert "exact_dup 3 · near_dup 1" in text


def test_a_document_shows_its_outcome_and_the_margin_of_each_rule(result: Any) -> None:
    text = read(why(result.out, "fault-1")._repr_html_()).text
    assert "dropped by clean: too_short" in text
    assert "chars.min" in text
    assert "min 10" in text
    assert "-1" in text


def test_a_hostile_id_is_only_read(result: Any) -> None:
    found = read(why(result.out, HOSTILE_ID)._repr_html_())
    assert HOSTILE_ID in found.text


def test_a_row_shows_its_documents_and_their_text(result: Any) -> None:
    row = peek(result.out / "build/rows", 1)
    text = read(row._repr_html_()).text
    assert f"row 1 of {row.rows}" in text  # type: ignore[union-attr]
    for piece in row.pieces:  # type: ignore[union-attr]
        assert piece.text in text
        assert piece.doc_id in text


def test_what_turns_a_line_or_draws_nothing_is_spelled_out() -> None:
    assert shown("a\u202eb\x1b[31m\x00\u200b\ud800") == "a[U+202E]b[U+001B][31m[U+0000][U+200B][U+D800]"
    assert shown("<script>'\"&") == "&lt;script&gt;&#x27;&quot;&amp;"


def test_a_text_of_any_length_is_a_cell_of_a_few_kilobytes() -> None:
    found = passage("<" * 5_000_000)
    assert len(found) < 20_000
    assert "4,996,000 characters more" in found
