"""`tokmill peek --html`: what the written page shows, counted again; hostile pages; a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tokmill
from browser import Page, open_page
from sources.extract.pages_by_hand import archived, article, texts_of
from tokmill.cli import main
from tokmill.errors import InputError, RecipeError

HOSTILE = (
    '<html><head><title></title><script>window.pwned = 1</script></head><body onload="window.pwned = 2">'
    '<div class="&quot;><script>window.pwned=3</script>" id="x&#39; onmouseover=&#39;window.pwned=4">'
    "<p>&lt;/pre&gt;&lt;/details&gt;&lt;script&gt;window.pwned = 5&lt;/script&gt; "
    "&lt;img src=http://127.0.0.1:9/x.png onerror=window.pwned=6&gt; "
    "\u202eturned\u202c &lt;style&gt;body{display:none}&lt;/style&gt; a long sentence, with commas, that may "
    "well be kept as the best that there is on this page.</p></div>"
    "<img src=http://127.0.0.1:9/y.png><iframe src=http://127.0.0.1:9/></iframe>"
    "<base href=http://127.0.0.1:9/><form action=http://127.0.0.1:9/><button>Send</button></form>"
    '<a href="javascript:window.pwned=7">Read on</a><style>* { color: red }</style></body></html>'
)


class Shown(HTMLParser):
    """The blocks of a written page by verdict, with their texts; the texts taken out; the figures on top."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[tuple[str, str]] = []
        self.taken: list[str] = []
        self.figures: list[tuple[str, str]] = []
        self.tags: set[str] = set()
        self._within: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        words = (dict(attrs).get("class") or "").split()
        if tag == "li":
            self.blocks.append((words[-1], ""))
        if "taken" in words:
            self.taken.append("")
        if tag not in ("meta", "link", "input", "rect"):
            self._within.append(words[0] if words else tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("meta", "link", "input", "rect"):
            self._within.pop()

    def handle_data(self, data: str) -> None:
        if "words" in self._within:
            verdict, text = self.blocks[-1]
            self.blocks[-1] = verdict, text + data
        elif "taken" in self._within:
            self.taken[-1] += data
        elif "numbers" in self._within and self._within[-1] in ("b", "small"):
            self.figures.append((self._within[-2], data))


def parsed(page: Path) -> Shown:
    shown = Shown()
    shown.feed(page.read_text())
    return shown


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("cats")
    (directory / "cats.html").write_text(article())
    return tokmill.peek(html=directory / "cats.html", out=directory / "page.html")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("hostile")
    (directory / "</title><script>alert(1)<.html".replace("/", "_")).write_text(HOSTILE)
    (source,) = directory.glob("*.html")
    found: Any = tokmill.peek(html=source, out=directory / "out.html")
    page: Path = found.page
    return page


# -- what it shows ---------------------------------------------------------------------------------


def test_every_block_is_there_once_and_the_figures_are_of_those(made: Any) -> None:
    shown = parsed(made.page)
    assert [text for _, text in shown.blocks] == texts_of(article())
    for key, name in (("kept", "kept"), ("left", "left out"), ("hidden", "hidden")):
        texts = [text for verdict, text in shown.blocks if verdict == key]
        chars = sum(map(len, texts))
        spelled = f"{chars:,} character{'' if chars == 1 else 's'}"
        assert [figure for own, figure in shown.figures if own == key] == [f"{len(texts):,}", spelled]
        assert made.explained.tallies[name] == (len(texts), chars)
    assert "Words that nobody sees." in [text for verdict, text in shown.blocks if verdict == "hidden"]


def test_the_text_beside_them_is_what_a_run_takes_out(made: Any, tmp_path: Path) -> None:
    shown = parsed(made.page)
    kept = [text for verdict, text in shown.blocks if verdict == "kept"]
    plain, markdown = shown.taken
    assert plain.split() == " ".join(kept).split()
    for markup, text in (("text", plain), ("markdown", markdown)):
        (tmp_path / "pages").mkdir(exist_ok=True)
        (tmp_path / "pages/cats.html").write_text(article())
        source = {
            "name": "web",
            "directory": {"path": str(tmp_path / "pages")},
            "extract": {"markup": markup},
        }
        run = tokmill.run({"name": "m", "sources": [source]}, tmp_path / markup, workers=1).out
        import pyarrow.parquet

        (path,) = run.glob("ingest/web/documents-*.parquet")
        (document,) = pyarrow.parquet.read_table(path).to_pylist()
        assert document["text"] == text


def test_points_of_a_block_add_up_as_they_are_shown(made: Any) -> None:
    """Each is rounded to a hundredth."""
    tables = re.findall(r'<table class="reasons">(.*?)</table>', made.page.read_text())
    assert len(tables) == 2 * len(texts_of(article()))
    for table in tables:
        *points, total = [float(cell) for cell in re.findall(r'<td class="n">([^<]*)</td>', table)]
        assert abs(sum(points) - total) < 0.005 * (len(points) + 1)


def test_nothing_of_a_hostile_page_is_markup(hostile: Path) -> None:
    text = hostile.read_text()
    shown = parsed(hostile)
    forbidden = {"script", "img", "iframe", "form", "base", "object", "embed", "a"}
    assert shown.tags & forbidden == {"a"}
    assert set(re.findall(r'<a href="([^"]*)"', text)) == {"#blocks", "#taken"}
    assert not re.search(r"<[^>]*\son\w+\s*=", text)
    assert text.count("<style>") == 1
    assert "script-src" not in re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]  # type: ignore[index]
    assert any("</pre></details><script>window.pwned = 5</script>" in own for _, own in shown.blocks)
    assert any("[U+202E]turned[U+202C]" in own for _, own in shown.blocks)


# -- in a browser ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with open_page() as opened:
        yield opened


def test_a_hostile_page_is_only_read(browser: Page, hostile: Path) -> None:
    asked = len(browser.requests)
    browser.open(hostile)
    assert browser.run("window.pwned === undefined")
    assert browser.complaints == []
    assert browser.requests[asked:] == [hostile.resolve().as_uri()]
    assert browser.run("document.querySelectorAll('script, img, iframe, form, base').length") == 0
    assert browser.run("getComputedStyle(document.body).display") == "block"
    for hover in ("mouseover", "click"):
        browser.run(
            f"document.querySelectorAll('*').forEach(e => e.dispatchEvent(new Event('{hover}', "
            "{bubbles: false})))"
        )
    assert browser.run("window.pwned === undefined")


@pytest.mark.parametrize("width", [1400, 420])
def test_it_fits_the_window_and_buttons_choose_blocks(browser: Page, made: Any, width: int) -> None:
    browser.open(made.page, width=width)
    assert browser.complaints == []
    assert browser.run("document.documentElement.scrollWidth") <= width
    seen = "[...document.querySelectorAll('.block')].filter(b => b.offsetHeight > 0).map(b => b.classList[1])"
    verdicts = [verdict for verdict, _ in parsed(made.page).blocks]
    assert browser.run(seen) == verdicts
    for key in ("kept", "left", "hidden"):
        browser.run(f"document.querySelector('#only-{key}').click()")
        assert browser.run(seen) == [verdict for verdict in verdicts if verdict == key]
    columns = (
        "['blocks', 'taken'].map(i => Math.round(document.getElementById(i).getBoundingClientRect().left))"
    )
    left, right = browser.run(columns)
    assert (left < right) == (width > 960)  # side by side, or one below the other


def test_a_block_opens_and_hovering_tells_what_decided_it(browser: Page, made: Any) -> None:
    browser.open(made.page)
    block = made.explained.blocks[0]
    title = browser.run("document.querySelector('#b0 summary').title")
    heaviest = next(one for one in block.reasons if one.feature != "others")
    assert title.splitlines()[0].endswith(heaviest.words)
    browser.run("document.querySelector('#b0 details').open = true")
    rows = browser.run(
        "[...document.querySelectorAll('#b0 .reasons:first-of-type tr')].map(r => r.offsetHeight)"
    )
    assert len(rows) > 2
    assert min(rows) > 0


# -- files, and mistakes ---------------------------------------------------------------------------


def peeked(*words: str | Path) -> Any:
    shown = CliRunner().invoke(main, ["peek", *map(str, words), "--json"])
    return shown.exit_code, json.loads(shown.stdout)


def test_a_page_of_an_archive_is_chosen_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastwarc")
    pytest.importorskip("resiliparse")
    monkeypatch.chdir(tmp_path)
    records = [archived(n, article(f"Tale {n}")) for n in range(3)]
    (tmp_path / "crawl.warc.gz").write_bytes(b"".join(records))
    status, first = peeked("--html", "crawl.warc.gz")
    assert (status, first["id"], first["offset"], first["page"]) == (0, "page-0", 0, "crawl.blocks.html")
    status, found = peeked("--html", "crawl.warc.gz", "--id", "page-2", "--out", "made.html")
    assert (status, found["offset"]) == (0, len(records[0]) + len(records[1]))
    assert found["url"] == "https://example.org/2"
    assert found["bytes"] == (tmp_path / "made.html").stat().st_size
    assert [block["text"] for block in found["blocks"]] == texts_of(article("Tale 2"))
    assert [text for _, text in parsed(tmp_path / "made.html").blocks] == texts_of(article("Tale 2"))
    status, told = peeked("--html", "crawl.warc.gz", "--id", "page-7")
    assert (status, told["error"]["what"]) == (1, "no web page has the id page-7")
    assert told["error"]["next"] == "its first pages: page-0, page-1, page-2"
    shown = CliRunner().invoke(main, ["peek", "--html", "crawl.warc.gz"])
    count = first["kept"]["blocks"]
    assert f"kept {count} block" in shown.stdout
    assert "crawl.blocks.html" in shown.stdout


@pytest.mark.parametrize("charset", ["utf-8", "utf-16", "utf-8-sig", "latin-1"])
def test_a_page_is_read_in_its_charset(charset: str, tmp_path: Path) -> None:
    if charset == "latin-1":
        pytest.importorskip("fastwarc")
        pytest.importorskip("resiliparse")
    html = article("Les chats dorment l'été").replace("<head>", f'<head><meta charset="{charset}">')
    (tmp_path / "page.html").write_bytes(html.encode(charset))
    found: Any = tokmill.peek(html=tmp_path / "page.html", out=tmp_path)
    assert found.page == tmp_path / "page.blocks.html"
    assert "Les chats dorment l'été" in [text for _, text in parsed(found.page).blocks]


def test_what_cannot_be_shown_is_told_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(article())
    (tmp_path / "page.jsonl").write_text("{}")
    for arguments, what in (
        ({}, "needs either BUILD or --html"),
        ({"build": tmp_path, "html": tmp_path / "page.html"}, "needs either BUILD or --html"),
        ({"build": tmp_path, "id": "a"}, "--id and --out are for --html"),
        ({"html": tmp_path / "page.html", "row": 3}, "are for a BUILD"),
    ):
        with pytest.raises(RecipeError, match=re.escape(what)):
            tokmill.peek(**arguments)  # type: ignore[arg-type]
    for arguments, what in (
        ({"html": tmp_path / "page.html", "id": "a"}, "a web page has no ids"),
        ({"html": tmp_path / "page.html", "out": tmp_path / "page.html"}, "would replace the file it is of"),
        ({"html": tmp_path / "page.jsonl"}, "no web page for the suffix .jsonl"),
    ):
        with pytest.raises(InputError, match=re.escape(what)):
            tokmill.peek(**arguments)  # type: ignore[arg-type]
    assert (tmp_path / "page.html").read_text() == article()


def test_an_archive_without_pages_is_told(tmp_path: Path) -> None:
    pytest.importorskip("fastwarc")
    pytest.importorskip("resiliparse")
    (tmp_path / "a.warc.gz").write_bytes(archived(1, " "))
    with pytest.raises(InputError, match="holds no web page"):
        tokmill.peek(html=tmp_path / "a.warc.gz", out=tmp_path)


def test_a_page_of_nothing_is_a_page(tmp_path: Path) -> None:
    (tmp_path / "empty.html").write_text("")
    found: Any = tokmill.peek(html=tmp_path / "empty.html", out=tmp_path)
    assert parsed(found.page).blocks == []
