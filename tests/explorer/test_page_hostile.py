"""Fifty documents that want to be more than text, each in the browser: they are shown, and do nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from explored import HOSTILE
from explorer.browsed import Explored, open_explored


@pytest.fixture(scope="module")
def explored(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Explored]:
    with open_explored(run, labels=tmp_path_factory.mktemp("labels") / "labels.jsonl") as opened:
        yield opened


def _is_harmless(explored: Explored) -> None:
    page = explored.page
    assert page.run("window.hacked === undefined && ({}).polluted === undefined")
    assert page.run("document.querySelectorAll('script').length") == 2
    assert page.run("document.querySelectorAll('img, iframe, object, embed, base, main style').length") == 0
    assert page.run("[...document.querySelectorAll('a')].every((one) => !/^javascript:/i.test(one.href))")
    assert page.run("document.title").endswith("tokmill explore")
    assert page.complaints == []
    assert explored.leaks() == []


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_a_hostile_document_is_shown_and_does_nothing(explored: Explored, number: int) -> None:
    doc_id, text = list(HOSTILE.items())[number]
    explored.go("document?" + urlencode({"id": doc_id}))
    assert explored.page.run("document.querySelector('.fault') === null"), explored.text("main")[:500]
    _is_harmless(explored)
    shown = explored.page.run(
        "(() => { const box = document.querySelector('#part-texts .text').cloneNode(true); "
        "box.querySelectorAll('.glyph, br, button').forEach((one) => one.remove()); "
        "return box.textContent; })()"
    )
    words = "".join(text.split())
    assert len(shown) <= 120_000, "a page of a text, and the rest when it is asked for"
    plain = "".join(c for c in words if c.isascii() and c.isprintable())[:2000]
    assert plain in "".join(c for c in shown if c.isascii() and c.isprintable() and not c.isspace())
    # nothing that turns the line or drives a terminal is left as it was
    assert not set(shown) & set("\x00\x1b\x07\u202e\u2066\u200b\u200d\ufeff\u2028")


def test_all_of_them_stand_in_the_table_by_their_ids(explored: Explored) -> None:
    explored.go("documents?f=source:books&sort=-chars")
    _is_harmless(explored)
    assert explored.page.run("document.documentElement.scrollWidth") <= 1280


def test_what_an_address_says_is_only_text_too(explored: Explored) -> None:
    for address in (
        "documents?" + urlencode({"q": "<img src=x onerror=window.hacked=1>"}),
        "documents?" + urlencode({"f": "source:<script>window.hacked=1</script>"}),
        "document?" + urlencode({"id": "<script>window.hacked=1</script>"}),
        "__proto__",
        "threshold?" + urlencode({"rule": "constructor", "value": "x"}),
    ):
        explored.go(address)
        assert explored.page.run("window.hacked === undefined")
        assert explored.page.run("document.querySelectorAll('img, main script').length") == 0
    explored.page.complaints.clear()  # the refusals of the server, which the browser tells of


def test_hidden_characters_have_names(explored: Explored) -> None:
    wanted = {
        "bidi": {"RLO", "PDF", "LRI", "PDI", "RLM"},
        "zero-width": {"ZWSP", "ZWNJ", "ZWJ", "BOM", "WJ"},
        "escape": {"␛", "␇", "U+009B"},
        "separators": {"LS", "PS"},
    }
    for doc_id, names in wanted.items():
        explored.go("document?" + urlencode({"id": doc_id}))
        assert names <= set(explored.texts("#part-texts .text .glyph")), doc_id


def test_the_policy_stops_a_script_that_got_in(explored: Explored) -> None:
    """Text nodes are the first wall; this is the second, tried by tearing a hole into the first."""
    explored.go("documents")
    hole = json.dumps("<img src='http://127.0.0.1:9/x.png' onerror='window.hacked = 3'>")
    explored.page.run(f"document.querySelector('main').innerHTML = {hole}")
    explored.page.run(
        "(() => { const script = document.createElement('script'); script.textContent = 'window.hacked = 4'; "
        "document.body.append(script); })()"
    )
    explored.page.wait("true")
    assert explored.page.run("window.hacked === undefined")
    assert any("Content Security Policy" in complaint for complaint in explored.page.complaints)
    explored.page.complaints.clear()
    explored.page.requests.clear()
