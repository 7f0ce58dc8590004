"""The page in a real browser: it runs nothing but its own script, asks for nothing, and answers."""

from __future__ import annotations

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from browser import Page, open_page
from reports.reported import HOSTILE, HOSTILE_ID, figures_of, write_corpus
from tokmill import report, run
from tokmill.reports.page import render_page


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("page")
    return report(
        run(write_corpus(directory), directory / "out", workers=1).out, out=directory / "report.html"
    )


@pytest.fixture(scope="module")
def page(made: Any) -> Iterator[Page]:
    with open_page() as opened:
        opened.open(made.page)
        yield opened


def test_it_loads_without_a_complaint_and_asks_for_nothing(page: Page, made: Any) -> None:
    assert page.run("document.readyState") == "complete"
    assert page.complaints == []
    assert page.requests == [made.page.resolve().as_uri()]


def test_every_chart_has_its_marks_and_words_for_who_cannot_see_them(page: Page, made: Any) -> None:
    charts = page.run(
        "[...document.querySelectorAll('svg.chart')].map(c => ({marks: c.querySelectorAll('.mark').length, "
        "title: c.querySelector('title').textContent, desc: c.querySelector('desc').textContent, "
        "high: c.getBoundingClientRect().height}))"
    )
    assert len(charts) == 5  # two rivers, two histograms, packing
    assert all(
        chart["marks"] > 1 and chart["title"] and chart["desc"] and chart["high"] > 40 for chart in charts
    )
    for name, flow in made.facts["flow"].items():
        assert page.run(f"document.querySelectorAll('.{name}-flow .ribbon').length") == len(flow["links"])
        assert page.run(f"document.querySelectorAll('.{name}-flow .node').length") == len(flow["nodes"])
    bars = made.facts["lengths"]["tokens"]
    assert page.run("document.querySelectorAll('.tokens-histogram .mark').length") == sum(
        b["docs"] > 0 for b in bars
    )


def test_labels_of_the_rivers_lie_on_the_page_and_not_on_each_other(page: Page) -> None:
    overlaps = page.run(
        """(() => { let bad = [];
        for (const chart of document.querySelectorAll('.documents-flow, .tokens-flow')) {
          const boxes = [...chart.querySelectorAll('text')].map(
            t => [t.textContent, t.getBoundingClientRect()]);
          for (let a = 0; a < boxes.length; a++) for (let b = a + 1; b < boxes.length; b++) {
            const [x, y] = [boxes[a][1], boxes[b][1]];
            const wide = Math.min(x.right, y.right) - Math.max(x.left, y.left);
            const high = Math.min(x.bottom, y.bottom) - Math.max(x.top, y.top);
            if (wide > 1 && high > 5) bad.push([boxes[a][0], boxes[b][0], wide, high]);
          } } return bad; })()"""
    )
    assert overlaps == []


def test_search_finds_a_document_by_id_and_tells_its_fate(page: Page) -> None:
    page.type("#q", "mill-2")
    assert page.run("document.querySelectorAll('#results li').length") == 1
    assert page.run("document.querySelector('#results .id').textContent") == "mill-2"
    assert page.run("document.querySelector('#results .outcome').textContent") == "dropped by dedup: near_dup"
    assert page.run("document.querySelector('#results .outcome').className") == "outcome out"
    page.type("#q", "fault-1")
    assert "9 against 10" in page.run("document.querySelector('#results').textContent")


def test_search_finds_words_and_says_when_there_are_none(page: Page) -> None:
    page.type("#q", "river turns")
    found = page.run("[...document.querySelectorAll('#results li')].map(l => l.textContent)")
    assert found
    assert all("river" in text.lower() and "turns" in text.lower() for text in found)
    page.type("#q", "no such words anywhere")
    assert "tokmill why" in page.run("document.querySelector('#found').textContent")
    assert page.run("document.querySelectorAll('#results li').length") == 0


def test_a_hostile_document_is_only_read(page: Page) -> None:
    page.type("#q", HOSTILE_ID)
    assert page.run("document.querySelector('#results .id').textContent") == HOSTILE_ID
    shown = page.run("document.querySelector('#results blockquote').textContent")
    assert shown.startswith("</script><script>window.pwned = 1")
    assert "[U+202E]turned[U+202C]" in shown
    assert page.run("window.pwned === undefined")
    assert page.run("document.title") == "small · tokmill report"
    assert page.run("document.querySelectorAll('script').length") == 2
    assert page.run("document.querySelectorAll('img, iframe, object, embed, base, form').length") == 0
    assert page.complaints == []


def test_the_policy_stops_a_script_that_got_in(page: Page, tmp_path: Path, made: Any) -> None:
    """Escaping is the first wall; this is the second, tried by tearing a hole into the first."""
    holed = tmp_path / "holed.html"
    text = made.page.read_text()
    holed.write_text(
        text.replace(
            "</footer>", "</footer><script>window.pwned = 3</script><img src='http://127.0.0.1:9/x.png'>"
        )
    )
    before, asked = len(page.complaints), len(page.requests)
    page.open(holed)
    assert page.run("window.pwned === undefined")
    assert any("Content Security Policy" in complaint for complaint in page.complaints[before:])
    assert page.blocked == ["csp"]
    del page.complaints[before:], page.requests[asked:]
    page.open(made.page)
    page.requests.pop()


def test_light_and_dark_follow_the_reader_and_the_button(page: Page, made: Any) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    page.open(made.page, scheme="dark")
    dark = page.run(colour)
    page.open(made.page, scheme="light")
    light = page.run(colour)
    assert dark != light
    page.run("document.querySelector('#theme').click()")  # auto -> light
    page.run("document.querySelector('#theme').click()")  # light -> dark
    assert page.run(colour) == dark
    assert page.run("document.querySelector('#theme span').textContent") == "dark"
    page.run("document.querySelector('#theme').click()")
    assert page.run(colour) == light


@pytest.mark.parametrize("width", [360, 768, 1440])
def test_nothing_is_wider_than_the_window(page: Page, made: Any, width: int) -> None:
    page.open(made.page, width=width)
    page.run("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.run("document.documentElement.scrollWidth") <= width


def test_a_tip_tells_the_number_of_a_mark(page: Page, made: Any) -> None:
    page.open(made.page)
    tip = page.run(
        "(() => { const mark = document.querySelector('.tokens-histogram .mark');"
        "mark.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: 10, clientY: 10}));"
        "const tip = document.getElementById('tip'); return tip.hidden ? null : tip.textContent; })()"
    )
    assert "documents (encoded)" in tip


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.scripts = 0
        self.handlers: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name == "style"]
        self.outside += [
            str(value)
            for name, value in attrs
            if name in ("src", "href", "action", "srcset") and not str(value).startswith(("#", "data:,"))
        ]


def test_the_page_has_two_scripts_no_handler_and_no_address(made: Any) -> None:
    """Without a browser: what a parser finds in it."""
    tags = _Tags()
    text = made.page.read_text()
    tags.feed(text)
    assert (tags.scripts, tags.handlers, tags.outside) == (2, [], [])
    assert "http://" not in text.replace(HOSTILE, "")
    assert "https://" not in text


def test_names_of_sources_and_runs_are_escaped_too(made: Any) -> None:
    facts = figures_of(made.page.parent / "out")
    facts["run"]["name"] = "<script>alert(1)</script>"
    facts["sources"][0]["name"] = facts["chain"][0]["step"] = facts["warnings"][0]["where"] = "<script>x"
    facts["drops"][0]["reason"] = facts["builds"][0]["name"] = facts["tokenizer"]["file"] = "<script>y"
    facts["flow"]["documents"]["nodes"][0]["label"] = "<script>z"
    tags = _Tags()
    tags.feed(render_page(facts))
    assert tags.scripts == 2


def test_what_a_warning_quotes_is_set_as_code(made: Any) -> None:
    facts = figures_of(made.page.parent / "out")
    facts["warnings"][0] = {"where": "clean", "what": "set `max_source_loss: <0.9>` higher"}
    assert "set <code>max_source_loss: &lt;0.9&gt;</code> higher" in render_page(facts)
