"""Files that tokmill did not write stay, whatever a run, `gc` or a takedown removes or replaces."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import tokmill
from mill import tokmill as command
from tokmill.errors import TokmillError

TEXTS = [
    f"Document {n} tells of {n * 7 % 90} mills and {n * n} sacks of grain by the river." for n in range(40)
]


def recipe(**sections: object) -> dict[str, Any]:
    return {
        "name": "others",
        "sources": [{"name": "notes", "files": "data/notes.jsonl"}],
        "split": {"valid_fraction": 0.1},
        "tokenizer": {"train": {"vocab_size": 300}, "eos": "<eos>"},
        "pack": {"length": 16},
        "builds": [{"name": "rows", "format": "memmap"}],
        **sections,
    }


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"id": f"n{n}", "text": text}) for n, text in enumerate(TEXTS)]
    (tmp_path / "data").mkdir()
    (tmp_path / "data/notes.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


def put(*paths: Path) -> dict[Path, str]:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"mine: {path.name}", encoding="utf-8")
    return {path: path.read_text(encoding="utf-8") for path in paths}


def all_there(mine: dict[Path, str]) -> bool:
    return all(path.is_file() and path.read_text(encoding="utf-8") == text for path, text in mine.items())


def listing(directory: Path) -> list[str]:
    return sorted(str(path) for path in directory.rglob("*"))


def test_a_directory_that_has_the_name_of_a_step_and_files_of_others_is_refused(work: Path) -> None:
    names = ("tokenizer/NOTES.md", "tokens/thesis.tex", "build/rows/main.c", "build/x.c")
    put(*(work / name for name in names))
    (work / "r.yaml").write_text(json.dumps(recipe()))
    before = listing(work)
    for verb in ("run", "plan"):
        refused = command(verb, "r.yaml", "--out", ".")
        assert refused.returncode != 0
        for said in ("tokenizer/NOTES.md", "tokens/thesis.tex", "build/rows/main.c", "3 files", "--out"):
            assert said in refused.stderr
        assert "build/x.c" not in refused.stderr
        assert listing(work) == before, "something was written"
    for name in ("tokenizer", "tokens", "build/rows"):
        shutil.move(work / name, work / f"{name}-mine")
    assert command("run", "r.yaml", "--out", ".").returncode == 0
    assert (work / "build/x.c").is_file()


BESIDE = ["manifest.json", "ATTRIBUTION.md", "journal.json", "estimate.json", ".lock"]


@pytest.mark.parametrize("name", BESIDE)
def test_a_file_of_others_that_has_the_name_of_one_of_a_run_is_refused(work: Path, name: str) -> None:
    mine = put(work / "out" / name)
    (work / "out" / name).write_text('{"name": "a page"}')
    mine = {path: path.read_text() for path in mine}
    with pytest.raises(TokmillError, match=name):
        tokmill.run(recipe(), work / "out", workers=1)
    assert all_there(mine)
    assert listing(work / "out") == [str(work / "out" / name)]


def test_a_file_that_was_put_into_a_finished_step_stays_when_the_step_is_made_again(work: Path) -> None:
    out = work / "out"
    tokmill.run(recipe(), out, workers=1)
    mine = put(out / "build/rows/train/main.c", out / "build/rows/plot.parquet")
    assert tokmill.run(recipe(), out, workers=1).ran == [], "nothing is made again: nothing is in the way"
    before = listing(out)
    with pytest.raises(TokmillError, match=r"main\.c") as refused:
        tokmill.run(recipe(pack={"length": 32}), out, workers=1)
    assert "plot.parquet" in str(refused.value)
    assert all_there(mine)
    assert [path for path in listing(out) if not path.endswith("journal.json")] == before
    for path in mine:
        path.rename(work / path.name)
    assert tokmill.run(recipe(pack={"length": 32}), out, workers=1).ran == ["build/rows"]
    assert tokmill.verify(out).ok


def test_a_file_that_was_put_into_a_step_at_work_stays_when_the_run_goes_on(work: Path) -> None:
    out = work / "out"
    tokmill.run(recipe(), out, workers=1)
    step = out / "build/rows"
    (step / "manifest.json").rename(step / "manifest.stale.json")  # as a kill leaves it
    (step / "receipts").mkdir()
    (step / "train/places-00009.npy").write_bytes(b"of a task that was killed")
    mine = put(step / "NOTES.md", step / "train/main.c")
    assert tokmill.run(recipe(), out, workers=1).ran == ["build/rows"]
    assert all_there(mine)
    assert not (step / "train/places-00009.npy").exists()


def test_a_step_that_goes_leaves_the_files_of_others(work: Path) -> None:
    out = work / "out"
    tokmill.run(
        recipe(builds=[{"name": name, "format": "memmap"} for name in ("rows", "more")]), out, workers=1
    )
    mine = put(out / "build/more/NOTES.md", out / "build/web/app.js")
    (out / "build/web/manifest.json").write_text('{"name": "a page", "start_url": "/"}')
    mine[out / "build/web/manifest.json"] = '{"name": "a page", "start_url": "/"}'
    tokmill.run(recipe(), out, workers=1)
    assert all_there(mine)
    assert not (out / "build/more/manifest.json").exists()


def test_gc_frees_what_tokmill_left_and_nothing_else(work: Path) -> None:
    out = work / "out"
    tokmill.run(recipe(), out, workers=1)
    tokmill.run(recipe(pack={"length": 32}), out, workers=1, keep_previous=True)
    shutil.copytree(out, work / "out.previous/backup")
    backup = listing(work / "out.previous/backup")
    (out / "build/rows/.tmp-1-2-3-left").write_bytes(b"x" * 1000)
    mine = put(
        out / "src/.work/main.c",
        out / ".tmp-mine",
        out / "src/.tmp-1/main.c",
        work / "out.previous/NOTES.md",
        work / "out.previous/mine/build/rows/plot.py",
        work / "out.cache/NOTES.md",
        work / "out.cache/tokens/mine.npy",
    )
    told = tokmill.gc(out, delete=True)
    assert all_there(mine)
    assert listing(work / "out.previous/backup") == backup
    assert {Path(item.path).name for item in told.found} >= {".tmp-1-2-3-left", "out.cache"}
    assert not (out / "build/rows/.tmp-1-2-3-left").exists()
    assert not list((work / "out.previous/build").rglob("manifest.json"))
    assert [path for path in (work / "out.cache").rglob("*") if path.is_file()] == [
        work / "out.cache/NOTES.md",
        work / "out.cache/tokens/mine.npy",
    ]


def test_a_takedown_removes_all_kept_steps_and_nothing_of_others(work: Path) -> None:
    out = work / "out"
    tokmill.run(recipe(), out, workers=1)
    tokmill.run(recipe(pack={"length": 32}), out, workers=1, keep_previous=True)
    mine = put(work / "out.previous/NOTES.md", work / "out.cache/NOTES.md", out / "docs/page.md")
    tokmill.forget(out, doc_id="n3", workers=1)
    assert all_there(mine)
    assert [path for path in (work / "out.previous").rglob("*") if path.is_file()] == [
        work / "out.previous/NOTES.md"
    ]


def test_a_lean_run_leaves_files_of_others_beside_it(work: Path) -> None:
    out = work / "out"
    tokmill.run(recipe(), out, workers=1)
    mine = put(work / "out.cache/NOTES.md")
    tokmill.run(recipe(), out, workers=1, lean=True)
    assert all_there(mine)


TEXT_BUILD = {"name": "kept", "content": "text", "format": "jsonl"}


@pytest.mark.parametrize("out", ["out/others", ".", "data", "data/deep"])
def test_a_run_does_not_read_what_it_wrote_itself(work: Path, out: str) -> None:
    asked = recipe(
        sources=[{"name": "notes", "files": "**/*.jsonl*"}],
        dedup={"exact": False},
        builds=[{"name": "rows", "format": "memmap"}, TEXT_BUILD],
    )
    (work / "r.yaml").write_text(json.dumps(asked))
    said = []
    for _ in range(3):
        ran = command("run", "r.yaml", "--out", out, "--json")
        assert ran.returncode == 0, ran.stderr
        counts = json.loads((work / out / "manifest.json").read_bytes())["counts"]
        assert counts["texts/kept"]["in"] == len(TEXTS)
        said.append("wrote itself" in ran.stderr)
    assert said == [False, True, True]
    assert json.loads(ran.stdout)["ran"] == []


def test_a_directory_that_is_read_leaves_out_the_run_in_it(work: Path) -> None:
    put(work / "a.md", work / "texts/b.md", work / "build/c.md")
    asked = recipe(
        sources=[{"name": "notes", "directory": {"path": ".", "suffixes": [".md", ".json"]}}],
        builds=[{"name": "rows", "format": "memmap"}],
    )
    runs = [tokmill.run(asked, ".", workers=1) for _ in range(2)]
    assert runs[1].ran == []
    assert runs[1].artifacts["ingest/notes"].manifest.counts["kept"] == 3


def test_a_source_that_is_all_of_the_runs_own_files_is_refused(work: Path) -> None:
    out = work / "out"
    tokmill.run(recipe(builds=[TEXT_BUILD]), out, workers=1)
    loop = recipe(sources=[{"name": "notes", "files": "out/texts/kept/**/*.jsonl*"}], builds=[TEXT_BUILD])
    with pytest.raises(TokmillError, match="wrote itself"):
        tokmill.run(loop, out, workers=1)


def test_a_report_is_not_written_over_a_page_of_others(work: Path) -> None:
    out = work / "out"
    tokmill.run(recipe(), out, workers=1)
    mine = put(out / "report.html")
    with pytest.raises(TokmillError, match=r"report\.html"):
        tokmill.report(out)
    tokmill.forget(out, doc_id="n3", workers=1)
    assert all_there(mine)
    (out / "report.html").unlink()
    assert [tokmill.report(out).page for _ in range(2)] == [out / "report.html"] * 2
