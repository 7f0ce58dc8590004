"""A takedown holds: no file that is lost, no other place and no other bound brings a document back, and no
file names what was taken down."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from cleaned import rows_of, write_documents
from mill import tokmill as command
from mill import write_recipe
from takedown.marked import (
    BUILDS,
    files_with,
    ids,
    leaks_of,
    make_corpus,
    make_recipe,
    marker,
    small_run,
    tree,
)
from written import load_manifest

TEXTS_ALONE = dict.fromkeys(("tokenizer", "mixture", "pack", "builds"))


def text_run(directory: Path, source: dict[str, Any], **sections: Any) -> tuple[Path, Path]:
    """A run to the split, of one source that is called notes."""
    given = {"split": {"valid_fraction": 0}, **TEXTS_ALONE, **sections}
    recipe = write_recipe(directory, sources=[{"name": "notes", **source}], **given)
    return mill.run(recipe, workers=1).out, recipe


def read_ids(out: Path, source: str = "notes") -> set[str]:
    return {row["doc_id"] for row in rows_of(out, f"ingest/{source}", "documents")}


# --- the list ---


@pytest.mark.parametrize("damage", ["lost", "older", "of no takedown", "broken"])
def test_a_list_that_is_lost_or_older_brings_nothing_back(tmp_path: Path, damage: str) -> None:
    out, recipe = small_run(tmp_path)
    mill.forget(out, **ids("w3", source="web"), workers=1)
    older = (out / "forgotten.parquet").read_bytes()
    mill.forget(out, **ids("w4", "b1"), workers=1)
    listed = out / "forgotten.parquet"
    if damage == "lost":
        listed.unlink()
    elif damage == "older":
        listed.write_bytes(older)
    elif damage == "broken":
        listed.write_bytes(older[:-9])
    else:
        (tmp_path / "other").mkdir()
        other, _ = small_run(tmp_path / "other")
        mill.forget(other, **ids("m1"), workers=1)
        shutil.copyfile(other / "forgotten.parquet", listed)
    found = mill.verify(out)
    assert [problem.where for problem in found.problems] == ["forgotten.parquet"]
    done = command("run", recipe, "--out", out, "--verify")
    assert done.returncode == 0, done.stderr
    assert "put back" in " ".join(done.stderr.split())
    for again in ("w3", "w4", "b1"):
        assert files_with(out, again) == set()
        assert mill.trace(out, doc_id=again).documents[0].outcome == "forgotten"
    assert mill.verify(out).problems == []
    shutil.rmtree(out / "ingest")  # all sources anew
    mill.run(recipe, workers=1)
    assert files_with(out, "w3") == files_with(out, "w4") == files_with(out, "b1") == set()
    assert mill.verify(out).problems == []


@pytest.mark.parametrize(
    "lost", ["ingest/web/forgotten.parquet", "ingest/web/manifest.json", "manifest.json"]
)
def test_no_other_file_that_is_lost_brings_a_document_back(tmp_path: Path, lost: str) -> None:
    out, recipe = small_run(tmp_path)
    mill.forget(out, **ids("w3", "b1"), workers=1)
    (out / lost).unlink()
    mill.run(recipe, workers=1, verify=True)
    assert files_with(out, "w3") == files_with(out, "b1") == set()
    assert mill.verify(out).problems == []


def test_a_list_of_sources_that_are_gone_is_asked_for_and_nothing_is_read_without_it(tmp_path: Path) -> None:
    """Nothing else of the run has these ids: a source that comes may have the documents."""
    out, recipe = small_run(tmp_path)
    mill.forget(out, **ids("w3"), workers=1)
    kept = (out / "forgotten.parquet").read_bytes()
    books = {"name": "books", "domain": "prose", "files": "books.jsonl"}
    make_recipe(tmp_path, sources=[books], dedup={"exact": True}, builds=BUILDS[:1])
    mill.run(recipe, workers=1)
    (out / "forgotten.parquet").unlink()
    back = {"name": "site", "domain": "web", "files": "web-*.jsonl"}
    make_recipe(tmp_path, sources=[books, back], dedup={"exact": True}, builds=BUILDS[:1])
    before = tree(out)
    for verb in (["run", recipe], ["plan", recipe], ["forget", out, "--doc-id", "b1"]):
        refused = command(*verb)
        assert refused.returncode == 1
        told = " ".join(refused.stderr.split())
        assert "1 id that was taken down is not known any more" in told
        assert "restore" in told
    assert {path for path in tree(out) if "lock" not in path and "journal" not in path} == {
        path for path in before if "lock" not in path and "journal" not in path
    }
    (out / "forgotten.parquet").write_bytes(kept)
    mill.run(recipe, workers=1)
    assert files_with(out, "w3") == set()


def test_a_published_run_is_replaced_from_anywhere_without_what_was_taken_down(tmp_path: Path) -> None:
    url = f"memory://{uuid.uuid4().hex}/runs/x"
    make_corpus(tmp_path)
    recipe = make_recipe(tmp_path, dedup={"exact": True}, builds=BUILDS[:1])
    mill.run(recipe, url, work=tmp_path / "work", workers=1)
    mill.forget(tmp_path / "work/run", **ids("w3"), workers=1)
    mill.run(recipe, url, work=tmp_path / "work", replace=True, workers=1)
    make_recipe(tmp_path, dedup={"exact": True}, builds=BUILDS[:1], seed=8)
    for work in ("empty", "empty too"):
        mill.run(recipe, url, work=tmp_path / work, replace=True, workers=1)
        got = mill.fetch(url, tmp_path / "got" / work).directory
        assert files_with(got, "w3") == set()
        assert files_with(got, "w4")
        assert mill.verify(got).problems == []


# --- what is not in the run now ---


def test_an_id_that_a_bound_leaves_out_is_left_out_when_the_bound_moves(tmp_path: Path) -> None:
    make_corpus(tmp_path)
    source = {"domain": "web", "files": "web-a.jsonl"}
    out, _ = text_run(tmp_path, {**source, "limit": {"docs": 4}})
    told = command("forget", out, "--doc-id", "w9", "--workers", "1")
    assert told.returncode == 0, told.stderr
    said = " ".join(told.stdout.split())
    assert "not in the run now, and left out from now on: 1 id" in said
    assert mill.verify(out).problems == []
    assert mill.verify(out).warnings == []
    again = command("forget", out, "--doc-id", "w9", "--workers", "1")
    assert "nothing to do: they are forgotten already" in again.stdout
    out, recipe = text_run(tmp_path, source)
    assert read_ids(out) == {f"w{n}" for n in range(12)} - {"w9"}
    assert leaks_of(out, "w9") == set()
    for part in ({"sample": {"method": "reservoir", "k": 11}}, {"limit": {"docs": 11}}):
        out, _ = text_run(tmp_path, {**source, **part})
        assert "w9" not in read_ids(out)
    assert mill.run(recipe, workers=1).warnings == []


def test_a_takedown_of_an_id_that_is_not_there_makes_no_step_again_but_ingest(run: Path) -> None:
    before = tree(run)
    done = mill.forget(run, **ids("nobody"), workers=1)
    assert done.is_done
    assert set(done.ran) == {"ingest/web", "ingest/books", "ingest/more"}
    assert done.affected["not_found"] == 1
    changed = {path for path, data in tree(run).items() if before.get(path) != data}
    data = {path for path in changed if not path.endswith(".json")}  # manifests tell of the other list
    assert data == {
        "forgotten.parquet",
        *(f"ingest/{name}/forgotten.parquet" for name in ("web", "books", "more")),
    }
    assert mill.verify(run).problems == []


@pytest.mark.parametrize("taken", ["early", "late"])
def test_a_record_that_ingest_dropped_or_quarantined_is_left_out_and_no_longer_named(
    tmp_path: Path, taken: str
) -> None:
    lines = [
        {"id": f"secret-{n}", "text": f"a text of number {n}", "lang": "en" if n else "fr"} for n in range(5)
    ]
    write_documents(tmp_path / "x.jsonl", lines)
    source = {"files": "x.jsonl", "where": {"lang": "en"}}
    out, recipe = text_run(tmp_path, source)
    assert leaks_of(out, "secret-0")
    done = mill.forget(out, **ids("secret-0"), workers=1)
    assert done.affected["not_found"] == 0
    assert done.affected["sources"]["notes"]["left_out"] == 1
    if taken == "late":
        shutil.rmtree(out / "ingest")
        mill.run(recipe, workers=1)
    assert leaks_of(out, "secret-0") == set()
    assert mill.verify(out).problems == []
    counts = load_manifest(out / "ingest/notes").counts
    assert (counts["in"], counts["kept"], counts["dropped"]) == (5, 4, {"other_lang": 1})
    text_run(tmp_path, {"files": "x.jsonl"})
    assert read_ids(out) == {f"secret-{n}" for n in range(1, 5)}
    assert leaks_of(out, "secret-0") == set()


def test_a_document_that_only_a_kept_step_has_is_found_and_gone(tmp_path: Path) -> None:
    make_corpus(tmp_path)
    source = {"domain": "web", "files": "web-a.jsonl"}
    text_run(tmp_path, source)
    recipe = write_recipe(
        tmp_path,
        sources=[{"name": "notes", **source, "limit": {"docs": 4}}],
        split={"valid_fraction": 0},
        **TEXTS_ALONE,
    )
    out = mill.run(recipe, workers=1, keep_previous=True).out
    assert any(".previous/" in name for name in leaks_of(out, "w9", marker("w9")))
    told = mill.forget(out, **ids("w9"), dry_run=True).affected
    assert (told["kept_steps"], told["not_found"]) == (1, 0)
    mill.forget(out, **ids("w9"), workers=1)
    assert leaks_of(out, "w9", marker("w9")) == set()
    out, _ = text_run(tmp_path, source)
    assert "w9" not in read_ids(out)


# --- names and hashes of files ---

SECRET = "the one text that was taken down, and that nobody is to find again"


@pytest.mark.parametrize(
    ("source", "doc_id"),
    [
        ({"files": ["texts/*/*.txt"]}, "anna/letter-to-bob.txt"),
        ({"files": ["texts/zoe/*.txt", "texts/anna/*.txt"]}, "letter-to-bob.txt"),
        ({"directory": {"path": "texts", "suffixes": [".txt"]}}, "anna/letter-to-bob.txt"),
        ({"files": ["texts/*/*.txt"], "sample": {"method": "reservoir", "k": 4}}, "anna/letter-to-bob.txt"),
        ({"files": ["texts/anna/*.txt"]}, "letter-to-bob.txt"),
    ],
)
@pytest.mark.parametrize("read_anew", [False, True])
def test_no_file_has_the_name_or_a_hash_of_a_file_that_was_taken_down(
    tmp_path: Path, source: dict[str, Any], doc_id: str, read_anew: bool
) -> None:
    for name, text in (
        ("anna/letter-to-bob", SECRET),
        ("anna/zz", "of her too"),
        ("zoe/a", "other"),
        ("zoe/b", "more"),
    ):
        (tmp_path / f"texts/{name}.txt").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"texts/{name}.txt").write_text(text)
    out, recipe = text_run(tmp_path, source)
    assert any(path.endswith("manifest.json") for path in leaks_of(out, doc_id, SECRET))
    mill.forget(out, **ids(doc_id), workers=1)
    if read_anew:
        shutil.rmtree(out / "ingest")
        mill.run(recipe, workers=1)
    assert leaks_of(out, doc_id, SECRET) == set()
    assert mill.run(recipe, workers=1).ran == []
    mill.forget(out, **ids("zoe/b.txt", "b.txt"), workers=1)
    assert mill.run(recipe, workers=1).ran == []
    assert mill.verify(out).problems == []
    assert leaks_of(out, doc_id, SECRET) == set()


# --- files that are made while a takedown is under way ---


def cut_short(out: Path, doc_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from takedown.test_forget_interrupted import _failing_at

    with monkeypatch.context() as patch:
        patch.setattr("tokmill.stages.registry.FUNCTIONS", _failing_at("ingest.forget"))
        with pytest.raises(RuntimeError, match="pulled the plug"):
            mill.forget(out, **ids(doc_id), workers=1)


def test_nothing_is_made_of_a_run_while_a_takedown_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, _ = small_run(tmp_path)
    cut_short(out, "w3", monkeypatch)
    before = set(tree(out))
    for words in (
        ["report", out, "--out", tmp_path / "page"],
        ["report", out, "--cards"],
        ["review", out],
        ["documents", out],
        ["why", out, "w3"],
        ["trace", out, "--doc-id", "w3"],
        ["clusters", out],
        ["whatif", out, "--set", "words.min=9"],
        ["diff", out, out],
        ["export", out, "--out", tmp_path / "exported"],
        ["index", out, "--out", tmp_path / "indexed"],
        ["score", "compare", out, "chars", "words"],
    ):
        refused = command(*words)
        assert refused.returncode == 1, (words, refused.stdout)
        assert "a takedown is not done" in " ".join(refused.stderr.split()), (words, refused.stderr)
    assert set(tree(out)) == before
    assert "pulled the plug" in command("status", out).stdout
    assert "takedown was cut short" in command("verify", out).stdout + command("verify", out).stderr
    mill.forget(out, **ids("w3"), workers=1)
    assert command("report", out).returncode == 0


@pytest.mark.parametrize("ended_by", ["forget", "run"])
def test_what_was_written_beside_a_takedown_goes_when_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended_by: str
) -> None:
    """By a report that began before, say."""
    out, recipe = small_run(tmp_path)
    cut_short(out, "w3", monkeypatch)
    (out / "report.html").write_text(f"<title>tokmill</title><p>{marker('w3')}</p>")
    if ended_by == "forget":
        mill.forget(out, **ids("w3"), workers=1)
    else:
        mill.run(recipe, workers=1)
    assert files_with(out, "w3") == set()
    assert mill.verify(out).problems == []


# --- steps of a training ---


def test_the_steps_of_a_shuffled_epoch_are_told_as_a_bound(run: Path) -> None:
    told = mill.forget(run, **ids("w3", "w5"), batch_size=2, dry_run=True).affected["builds"]
    for build in told:
        assert build["steps_shuffled"] == min(build["rows"], build["of_steps"])
    shown = command(
        "forget", run, "--doc-id", "w3", "--doc-id", "w5", "--batch-size", "2", "--dry-run"
    ).stdout
    (line,) = [line for line in shown.splitlines() if line.strip().startswith("build/fit train")]
    (fit,) = [one for one in told if one["build"] == "build/fit" and one["split"] == "train"]
    assert f"{fit['steps']} of {fit['of_steps']} steps in order" in line
    assert f"up to {fit['steps_shuffled']} shuffled" in line
