"""`tokmill why` of web pages: where the page lies and what became of its blocks, counted again."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tokmill
from sources.extract.pages_by_hand import archived, article, texts_of
from tokmill.cli import main
from tokmill.errors import RecipeError

pytest.importorskip("fastwarc")
pytest.importorskip("resiliparse")

EMPTY = "<html><body><script>only = 1</script></body></html>"


def pages() -> dict[int | None, str]:
    found: dict[int | None, str] = {n: article(f"A tale of {n} cats", 4 + n % 3) for n in range(6)}
    return {**found, 6: EMPTY, None: article("A tale without an id")}


def recipe(base: Path, **source: Any) -> dict[str, Any]:
    section = {"name": "web", "domain": "web", "files": "crawl/*.warc.gz", "warc": {}, **source}
    written = {
        "name": "small",
        "sources": [{key: value for key, value in section.items() if value is not None}],
        "shards": {"megabytes": 1},
    }
    (base / "recipe.yaml").write_text(json.dumps(written))
    return written


def milled(base: Path, **source: Any) -> Path:
    recipe(base, **source)
    return tokmill.run(base / "recipe.yaml", base / "out/small", workers=1).out


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive, a directory and a run of each."""
    base = tmp_path_factory.mktemp("web")
    (base / "crawl").mkdir()
    (base / "crawl/a.warc.gz").write_bytes(b"".join(archived(n, html) for n, html in pages().items()))
    milled(base)
    return base


def told(run: Path, doc_id: str, **options: Any) -> Any:
    (history,) = tokmill.why(run, doc_id, **options).documents or []
    return history.as_json()["page"]


def offset_of(number: int) -> int:
    before = [archived(n, html) for n, html in pages().items() if n is not None and n < number]
    return sum(map(len, before))


@pytest.mark.parametrize("number", range(6))
def test_a_page_is_told_with_its_place_and_its_blocks_counted(place: Path, number: int) -> None:
    page = told(place / "out/small", f"page-{number}", blocks=True)
    assert page["file"] == str(place / "crawl/a.warc.gz")
    assert page["offset"] == offset_of(number)
    assert page["url"] == f"https://example.org/{number}"
    assert page["note"] is None
    texts = texts_of(pages()[number])
    assert [block["text"] for block in page["blocks"]] == texts
    for name in ("kept", "left out", "hidden"):
        own = [block for block in page["blocks"] if block["verdict"] == name]
        tally = page[name.replace(" ", "_")]
        assert tally == {"blocks": len(own), "chars": sum(len(block["text"]) for block in own)}
    # what is kept is the document: every word of it, and of nothing else
    (history,) = tokmill.why(place / "out/small", f"page-{number}").documents or []
    documents = load_texts(place / "out/small")
    kept = [block["text"] for block in page["blocks"] if block["verdict"] == "kept"]
    assert " ".join(kept).split() == documents[f"page-{number}"].split()
    assert history.page is not None
    assert "blocks" not in history.page


def load_texts(run: Path) -> dict[str, str]:
    import pyarrow.parquet

    tables = [pyarrow.parquet.read_table(path) for path in sorted(run.glob("ingest/web/documents-*.parquet"))]
    return {row["doc_id"]: row["text"] for table in tables for row in table.to_pylist()}


def test_a_page_without_an_id_is_found_by_its_text(place: Path) -> None:
    (doc_id,) = [name for name in load_texts(place / "out/small") if not name.startswith("page-")]
    page = told(place / "out/small", doc_id, blocks=True)
    assert page["note"] is None
    assert [block["text"] for block in page["blocks"]] == texts_of(pages()[None])


def test_a_page_that_gave_no_text_is_told_too(place: Path) -> None:
    page = told(place / "out/small", "page-6", blocks=True)
    assert page["offset"] == offset_of(6)
    assert page["note"] is None
    assert page["blocks"] == []


def test_of_two_files_with_one_name_it_is_the_right_one(tmp_path: Path) -> None:
    for name, title in (("a", "Cats"), ("b", "Dogs")):
        (tmp_path / "crawl" / name).mkdir(parents=True)
        (tmp_path / "crawl" / name / "x.warc.gz").write_bytes(archived(1, article(title)))
    run = milled(tmp_path, files=["crawl/a/*.warc.gz", "crawl/b/*.gz"])
    pages = [history.page for history in tokmill.why(run, "page-1", blocks=True).documents or ()]
    for name, title, page in zip("ab", ("Cats", "Dogs"), pages, strict=True):
        assert page is not None
        assert page["note"] is None
        assert page["file"] == str(tmp_path / "crawl" / name / "x.warc.gz")
        assert [block["text"] for block in page["blocks"]] == texts_of(article(title))


def test_a_file_that_is_gone_or_elsewhere_is_told_in_a_line(place: Path, tmp_path: Path) -> None:
    run = shutil.copytree(place / "out/small", tmp_path / "far/away/run")
    page = told(run, "page-1")
    assert (page["file"], page["offset"], page["url"]) == ("a.warc.gz", None, "https://example.org/1")
    assert page["note"] == (
        "its blocks are not known: the file is not found, or has no such page; `--base` says where the "
        "recipe lies"
    )
    assert "kept" not in page
    assert told(run, "page-1", base=place)["kept"]["blocks"] > 0


def test_a_file_that_changed_is_told_and_a_run_that_was_cut_short_finds_a_file_by_its_name(
    place: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(place / "out/small", tmp_path / "run")
    (tmp_path / "a.warc.gz").write_bytes(archived(1, article("A tale of dogs")))
    shutil.rmtree(run / "split")
    (run / "manifest.json").unlink()
    page = told(run, "page-1", base=tmp_path)
    assert "is another than in the run" in page["note"]
    assert page["kept"]["blocks"] > 0
    assert "not found" in told(run, "page-2", base=tmp_path)["note"]
    shutil.copyfile(place / "crawl/a.warc.gz", tmp_path / "a.warc.gz")
    assert told(run, "page-2", base=tmp_path)["note"] is None
    (tmp_path / "a.warc.gz").write_bytes(b"\x1f\x8b\x08 damaged")
    assert "its blocks are not known: " in told(run, "page-2", base=tmp_path)["note"]


def test_another_engine_keeps_its_verdicts_to_itself(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "crawl", tmp_path / "crawl")
    page = told(milled(tmp_path, extract={"engine": "resiliparse"}), "page-1", blocks=True)
    assert page["engine"] == "resiliparse"
    assert page["note"] == "its blocks are not known: resiliparse took the text out"
    assert "blocks" not in page


def test_without_main_text_all_that_is_shown_is_kept(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "crawl", tmp_path / "crawl")
    page = told(milled(tmp_path, warc={"main_text": False}), "page-1", blocks=True)
    assert page["note"] is None
    assert page["left_out"] == {"blocks": 0, "chars": 0}
    assert page["kept"]["blocks"] == len(texts_of(pages()[1])) - 1


def test_a_page_of_any_part_of_a_large_file_is_found(tmp_path: Path) -> None:
    """Parts of a megabyte: each is read from its own beginning."""
    draw = random.Random(5)
    (tmp_path / "crawl").mkdir()
    noise = [f"<!-- {draw.randbytes(180_000).hex()} -->" for _ in range(20)]
    records = [archived(n, article(f"Tale {n}") + noise[n]) for n in range(20)]
    (tmp_path / "crawl/a.warc.gz").write_bytes(b"".join(records))
    run = milled(tmp_path)
    manifest = json.loads((run / "ingest/web/manifest.json").read_text())
    assert len(manifest["tasks"]) > 2
    for number in (0, 7, 12, 19):
        page = told(run, f"page-{number}")
        assert page["note"] is None
        assert page["offset"] == sum(map(len, records[:number]))


def test_pages_of_a_directory_and_what_is_no_page(tmp_path: Path) -> None:
    root = tmp_path / "notes"
    (root / "in").mkdir(parents=True)
    (root / "in/cats.html").write_text(article())
    (root / "marked.htm").write_bytes(article("Sixteen bits").encode("utf-16"))
    (root / "plain.txt").write_text("No page at all.")
    source = {
        "files": None,
        "warc": None,
        "directory": {"path": "notes", "suffixes": [".html", ".htm", ".txt"]},
    }
    run = milled(tmp_path, **source, extract={"markup": "markdown"})
    for name, html in {"in/cats.html": article(), "marked.htm": article("Sixteen bits")}.items():
        page = told(run, name, blocks=True)
        assert (page["file"], page["offset"], page["note"]) == (str(root / name), 0, None)
        assert [block["text"] for block in page["blocks"]] == texts_of(html)
    assert told(run, "plain.txt") is None
    (root / "in/cats.html").write_bytes(b"\xff no text")
    assert "not found, or has no such page" in told(run, "in/cats.html")["note"]
    (root / "in/cats.html").unlink()
    assert "not found, or has no such page" in told(run, "in/cats.html")["note"]
    shutil.rmtree(run)
    assert told(milled(tmp_path, **source), "marked.htm") is None  # laid out whole, without verdicts


# -- the command -----------------------------------------------------------------------------------


def said(*words: str | Path) -> str:
    shown = CliRunner().invoke(main, ["why", *map(str, words)])
    assert shown.exit_code == 0, shown.stderr
    return shown.stdout


def test_the_command_prints_counts_and_with_blocks_each_of_them(place: Path) -> None:
    run = place / "out/small"
    page = told(run, "page-1", blocks=True)
    short = said(run, "page-1")
    whole = said(run, "page-1", "--blocks")
    for name in ("kept", "left_out", "hidden"):
        count = page[name]["blocks"]
        line = f"{name.replace('_', ' ')} {count:,} block{'' if count == 1 else 's'}, "
        assert line in short
        assert line in whole
    for block in page["blocks"]:
        line = f"{block['score']:+6.2f}  {block['path']}  {block['text'][:100]}"
        assert line in whole
        assert line not in short
    assert json.loads(said(run, "page-1", "--blocks", "--json"))["documents"][0]["page"] == page


def test_a_page_cannot_control_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "crawl").mkdir()
    hostile = article("A \x1b[31mred\x07 title").replace('class="content wide"', 'class="\x1b[2J[bold]x"')
    (tmp_path / "crawl/a.warc.gz").write_bytes(archived(1, hostile))
    shown = said(milled(tmp_path), "page-1", "--blocks")
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "[bold]x" in shown


def test_blocks_are_of_one_document(place: Path) -> None:
    with pytest.raises(RecipeError, match="--blocks is for one document"):
        tokmill.why(place / "out/small", reason="all", blocks=True)
