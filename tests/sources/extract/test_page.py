"""What is kept of pages: the same on every machine, in any number of workers, by every engine."""

from __future__ import annotations

import hashlib
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sources.extract.hostile_pages import SEEDS
from sources.ingested import ingest_source
from tokmill.errors import MissingExtra
from tokmill.sources.extract.engines import open_engine
from tokmill.sources.extract.model import load_model
from tokmill.sources.extract.page import extract, find_blocks, judge, parse_page
from tokmill.sources.extract.reasons import block_texts

MODEL = files("tokmill.sources.extract").joinpath("model.npz")
# Of the shipped model, and of what it answers for SEEDS. Both change when a model is trained: run
#     PYTHONPATH=tests python tests/sources/extract/test_page.py
# and put down what it prints. Where the model is the same and the verdicts are not, another machine, another
# numba or another kernel gives other numbers, and that is a fault.
MODEL_SHA256 = "a9b4a6d779c61c9d0cd24bd62109d96f52bd5e91ab77dbece1141a3bf947fe51"
VERDICTS_SHA256 = "82c52ade73faa0c6a71e996fc84e8284213975c7a0b8e4de4e95c8c8e2a4a485"

PARAGRAPH = "A river is a stream of water that flows to the sea, to a lake or into another river. " * 4
PAGE = f"""<html><head><title>Rivers</title></head><body>
<nav><a href="/">Home</a> <a href="/about">About us</a> <a href="/contact">Contact</a></nav>
<article><h1>Rivers</h1><p>{PARAGRAPH}</p><p>See <a href="https://example.org/">this</a>. {PARAGRAPH}</p>
<pre><code class="language-python">print("Danube")</code></pre></article>
<footer>© 2024 <a href="/imprint">Imprint</a> <a href="/privacy">Privacy</a></footer></body></html>"""


def model_digest() -> str:
    return hashlib.sha256(MODEL.read_bytes()).hexdigest()


def verdicts_digest() -> str:
    digest = hashlib.sha256()
    for page in (*SEEDS, PAGE.encode()):
        verdicts = judge(find_blocks(*parse_page(page)))
        digest.update(repr([values.tolist() for values in verdicts]).encode())
    return digest.hexdigest()


def test_the_shipped_model_gives_the_recorded_verdicts_on_this_machine() -> None:
    assert model_digest() == MODEL_SHA256, (
        "another model is shipped: run `PYTHONPATH=tests python tests/sources/extract/test_page.py`, "
        "and record both digests"
    )
    assert verdicts_digest() == VERDICTS_SHA256


def test_the_main_text_is_kept_and_what_is_around_it_is_not() -> None:
    text = extract(PAGE.encode())
    assert text.count(PARAGRAPH.strip()) == 2
    assert 'print("Danube")' in text
    assert not any(word in text for word in ("About us", "Imprint", "Privacy"))


CODE = '<pre><code class="language-python">print("Danube")</code></pre>'
TABLE = "<table><tr><th>river<th>km<tr><td>Danube<td>2,850<tr><td>Rhine<td>1,233</table>"


@pytest.mark.parametrize("around", ["article", "div class=content", "section"])
@pytest.mark.parametrize("behind", [CODE, TABLE, CODE + TABLE, TABLE + CODE])
@pytest.mark.parametrize("paragraphs", [1, 2, 5])
def test_code_and_tables_behind_all_prose_belong_to_it(around: str, behind: str, paragraphs: int) -> None:
    name = around.split()[0]
    page = (
        "<html><head><title>Rivers</title></head><body>"
        '<nav><a href="/">Home</a> <a href="/about">About us</a> <a href="/contact">Contact</a></nav>'
        f"<{around}><h1>Rivers</h1>{f'<p>{PARAGRAPH}</p>' * paragraphs}{behind}</{name}>"
        '<footer>© 2024 <a href="/imprint">Imprint</a> <a href="/privacy">Privacy</a></footer></body></html>'
    )
    text = extract(page.encode(), markup="markdown")
    assert text.count(PARAGRAPH.strip()) == paragraphs
    assert ('```python\nprint("Danube")\n```' in text) == (CODE in behind)
    assert ("| Rhine | 1,233 |" in text) == (TABLE in behind)
    assert "Imprint" not in text


def test_a_table_of_short_cells_is_kept_whole_where_a_third_of_it_is() -> None:
    completed = 0
    for paragraphs in range(1, 6):
        for rows in range(1, 30):
            cells = "".join(
                f"<tr><td><a href=/{n}>{n * rows}</a><td>{n}<td>{'word ' * (n % 7)}</tr>" for n in range(rows)
            )
            prose = f"<p>{PARAGRAPH}</p>" * paragraphs
            html = f"<title>Rivers</title><h1>Rivers</h1>{prose}<table>{cells}</table>"
            page = find_blocks(*parse_page(html.encode()))
            verdicts = judge(page)
            texts = block_texts(page)
            in_table = [at for at, text in enumerate(texts) if text not in ("Rivers", PARAGRAPH.strip())]
            above = {at for at in in_table if verdicts.second[at] > load_model().threshold}
            whole = sum(len(texts[at].replace(" ", "")) for at in in_table)
            part = sum(len(texts[at].replace(" ", "")) for at in above)
            kept = {at for at in in_table if verdicts.keep[at]}
            assert kept == (set(in_table) if part and 3 * part >= whole else above)
            assert np.flatnonzero(verdicts.completed).tolist() == sorted(kept - above)
            completed += kept != above
    assert completed > 0


def read_by(html: str, *, main_text: bool = True, **options: Any) -> str:
    return open_engine(options, main_text=main_text)(html, *parse_page(html.encode()))


def test_markdown_has_structure_and_addresses_where_they_are_asked_for() -> None:
    assert "# Rivers" in read_by(PAGE, markup="markdown")
    assert '```python\nprint("Danube")\n```' in read_by(PAGE, markup="markdown")
    assert "https://example.org/" not in read_by(PAGE, markup="markdown")
    assert "[this](https://example.org/)" in read_by(PAGE, markup="markdown", links=True)


def test_all_text_is_what_the_page_shows() -> None:
    text = read_by(PAGE, main_text=False)
    assert all(word in text for word in ("About us", "Imprint", "Privacy", "Danube"))
    assert "hidden" not in read_by('<p>seen</p><p style="display: none">hidden</p>', main_text=False)


@pytest.mark.parametrize("html", ["", " ", "<p>", "<script>x</script>", "<!-- a", "\0"])
def test_a_page_of_next_to_nothing_has_next_to_no_text(html: str) -> None:
    assert read_by(html).strip("\0") == ""
    assert read_by(html, markup="markdown").strip("\0") == ""


def test_resiliparse_reads_the_same_page() -> None:
    pytest.importorskip("resiliparse")
    assert PARAGRAPH.strip() in read_by(PAGE, engine="resiliparse")
    assert "About us" in read_by(PAGE, engine="resiliparse", main_text=False)


def test_trafilatura_reads_the_same_page() -> None:
    pytest.importorskip("trafilatura")
    assert PARAGRAPH.strip() in read_by(PAGE, engine="trafilatura")
    assert "Imprint" not in read_by(PAGE, engine="trafilatura")
    assert "# Rivers" in read_by(PAGE, engine="trafilatura", markup="markdown")
    assert "](https://example.org/)" in read_by(PAGE, engine="trafilatura", markup="markdown", links=True)
    assert "About us" in read_by(PAGE, engine="trafilatura", main_text=False)
    assert read_by("<p></p>", engine="trafilatura") == ""


def test_an_engine_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trafilatura", None)
    with pytest.raises(MissingExtra, match=r"pip install '\.\[trafilatura\]'"):
        open_engine({"engine": "trafilatura"}, main_text=True)


def write_site(base: Path) -> Path:
    site = base / "site"
    site.mkdir()
    for number in range(40):
        (site / f"{number:02}.html").write_text(
            PAGE.replace("Danube", f"river {number}") + f"<p>{number}" * number
        )
    return site


@pytest.mark.usefixtures("forked_workers")
def test_pages_of_a_directory_are_read_alike_by_one_worker_and_by_three(tmp_path: Path) -> None:
    section = {"path": str(write_site(tmp_path)), "suffixes": [".html"]}
    one, three = (
        ingest_source(workers=workers, directory=section, extract={"markup": "markdown"})
        for workers in (1, 3)
    )
    assert one.table.num_rows == 40
    assert one.corpus_digest == three.corpus_digest
    assert one.table.equals(three.table)
    assert "# Rivers" in one.documents[0]["text"]
    whole = ingest_source(directory=section)
    assert "Imprint" in whole.documents[0]["text"]
    assert "Imprint" not in one.documents[0]["text"]


if __name__ == "__main__":
    print(f'MODEL_SHA256 = "{model_digest()}"\nVERDICTS_SHA256 = "{verdicts_digest()}"')
