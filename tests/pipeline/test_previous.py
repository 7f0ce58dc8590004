"""A change of mind, and back: what `--keep-previous` keeps, what `gc` frees,
and what a takedown takes with it."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tokmill
from mill import tokmill as command
from tokmill.cli import main
from tokmill.errors import RecipeError

TEXTS = [
    f"Document {n} tells of {n * 7 % 90} mills and {n * n} sacks of grain by the river." for n in range(60)
]


def recipe(length: int = 16, min_chars: int = 10, builds: tuple[str, ...] = ("rows",)) -> dict[str, object]:
    return {
        "name": "minds",
        "sources": [{"name": "notes", "files": "notes.jsonl"}],
        "filters": [{"measure": "chars", "min": min_chars, "reason": "too_short"}],
        "split": {"valid_fraction": 0.1},
        "tokenizer": {"train": {"vocab_size": 300}, "eos": "<eos>"},
        "pack": {"length": length},
        "builds": [{"name": name, "format": "memmap"} for name in builds],
    }


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"id": f"n{n}", "text": text}) for n, text in enumerate(TEXTS)]
    (tmp_path / "notes.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


def content(out: Path) -> dict[str, str]:
    """Every file of the run but manifests and descriptions, which have times in them."""
    return {
        path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(out.rglob("*"))
        if path.is_file() and path.name not in ("manifest.json", "meta.json")
    }


def bytes_of(step: Path) -> int:
    """Of the files that its manifest lists."""
    files = [path for path in step.rglob("*") if path.is_file() and path.name != "manifest.json"]
    return sum(path.stat().st_size for path in files)


def disk_bytes(*roots: Path) -> int:
    """Of all files, each counted once however many names it has."""
    sizes = {}
    for root in roots:
        for path in root.rglob("*"):
            stat = path.lstat()
            if path.is_file():
                sizes[stat.st_ino] = stat.st_size
    return sum(sizes.values())


def test_going_back_is_free_and_gives_the_same_bytes(work: Path) -> None:
    out = work / "out"
    tokmill.run(recipe(), out, workers=1)
    first = content(out)
    changed = tokmill.run(recipe(length=32, min_chars=65), out, workers=1, keep_previous=True)
    assert {"clean/notes", "build/rows"} <= set(changed.ran)
    assert content(out) != first
    back = tokmill.run(recipe(), out, workers=1, keep_previous=True)
    assert back.ran == []
    assert set(back.restored) == set(changed.ran)
    assert content(out) == first
    assert tokmill.verify(out).problems == []
    again = tokmill.run(recipe(length=32, min_chars=65), out, workers=1, keep_previous=True)
    assert (again.ran, set(again.restored)) == ([], set(changed.ran))
    assert tokmill.verify(out).problems == []


def test_without_it_nothing_is_kept(work: Path) -> None:
    out = work / "out"
    tokmill.run(recipe(), out, workers=1)
    tokmill.run(recipe(length=32), out, workers=1)
    assert not (work / "out.previous").exists()
    assert tokmill.run(recipe(), out, workers=1).ran == ["build/rows"]


def test_the_plan_knows_what_would_come_back(work: Path) -> None:
    out = work / "out"
    tokmill.run(recipe(), out, workers=1)
    tokmill.run(recipe(length=32), out, workers=1, keep_previous=True)
    assert tokmill.plan(recipe(), out).restored == ["build/rows"]
    assert tokmill.plan(recipe(length=32), out).restored == []


def test_a_build_that_was_taken_out_of_the_recipe_comes_back(work: Path) -> None:
    out = work / "out"
    tokmill.run(recipe(builds=("rows", "more")), out, workers=1)
    before = content(out)
    tokmill.run(recipe(), out, workers=1, keep_previous=True)
    assert not (out / "build/more").exists()
    back = tokmill.run(recipe(builds=("rows", "more")), out, workers=1)
    assert (back.ran, back.restored) == ([], ["build/more"])
    assert content(out) == before
    kept = [path for path in (work / "out.previous").rglob("*") if path.is_dir()]
    assert all(any(path.iterdir()) for path in kept), "what came back left its directory"


def test_gc_says_what_is_freed_and_frees_it(work: Path) -> None:
    out, previous = work / "out", work / "out.previous"
    tokmill.run(recipe(), out, workers=1)
    tokmill.run(recipe(length=32, min_chars=65), out, workers=1, keep_previous=True, lean=True)
    (out / "build/rows/.tmp-1-2-3-left").write_bytes(b"x" * 1000)
    before, alone = disk_bytes(out, previous), disk_bytes(out) - 1000
    told = tokmill.gc(out)
    assert disk_bytes(out, previous) == before, "it only says"
    assert told.bytes == before - alone
    tokmill.gc(out, delete=True)
    assert not previous.exists()
    assert disk_bytes(out) == alone
    assert tokmill.verify(out).problems == []
    assert tokmill.gc(out).found == []


def test_a_kept_step_that_lost_a_file_is_made_again(work: Path) -> None:
    out = work / "out"
    tokmill.run(recipe(), out, workers=1)
    first = content(out)
    tokmill.run(recipe(length=32), out, workers=1, keep_previous=True)
    (victim,) = (work / "out.previous").rglob("train/input_ids.mmap")
    victim.unlink()
    assert tokmill.run(recipe(), out, workers=1).ran == ["build/rows"]
    assert content(out) == first


def test_a_file_system_without_links_keeps_them_too(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(95, "Operation not supported")

    out = work / "out"
    tokmill.run(recipe(), out, workers=1)
    first = content(out)
    monkeypatch.setattr(os, "link", refuse)
    tokmill.run(recipe(length=32, min_chars=65), out, workers=1, keep_previous=True)
    assert tokmill.run(recipe(), out, workers=1, keep_previous=True).ran == []
    assert content(out) == first


def test_the_run_may_be_the_working_directory(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = work / "out"
    (work / "recipe.json").write_text(json.dumps(recipe()))
    out.mkdir()
    monkeypatch.chdir(out)

    def answer(*words: str) -> Any:
        """An error is told, and none is a traceback."""
        found = CliRunner().invoke(main, [*words, "--json"])
        assert found.exit_code == 0, found.output
        return json.loads(found.stdout)

    monkeypatch.setenv("TOKMILL_WORKERS", "1")
    answer("run", "../recipe.json", "--out", ".")
    answer("run", "../recipe.json", "--out", ".", "--set", "pack.length=32", "--keep-previous")
    freed = answer("gc", ".")
    assert {Path(one["path"]).resolve().relative_to(work).parts[0] for one in freed["found"]} == {
        "out.previous",
        "out.cache",
    }
    assert answer("status", ".")["cache_bytes"] == answer("status", str(out))["cache_bytes"] > 0
    for verb, *others in (["verify"], ["why", "n3"], ["report"], ["review"]):
        answer(verb, ".", *others)
    answer("forget", ".", "--doc-id", "n7")
    assert not (work / "out.previous").exists()
    assert answer("verify", ".")["problems"] == []
    (out / "below").mkdir()
    monkeypatch.chdir(out / "below")
    assert tokmill.gc("..").bytes == tokmill.gc(out).bytes
    assert sorted(path.name for path in work.iterdir()) == ["notes.jsonl", "out", "out.cache", "recipe.json"]


def test_documents_that_are_forgotten_are_in_no_kept_step(work: Path) -> None:
    out, previous = work / "out", work / "out.previous"
    tokmill.run(recipe(), out, workers=1)
    tokmill.run(recipe(min_chars=20), out, workers=1, keep_previous=True)
    assert previous.exists()
    tokmill.forget(out, doc_ids=["n7"], workers=1)
    assert not previous.exists()
    assert tokmill.verify(out).problems == []


def test_a_build_that_the_recipe_no_longer_names_is_kept_until_gc(work: Path) -> None:
    out = work / "out"
    tokmill.run(recipe(builds=("rows", "more")), out, workers=1)
    before = content(out / "build/more")
    size = bytes_of(out / "build/more")
    renamed = recipe(builds=("rows", "fresh"))
    (work / "renamed.yaml").write_text(json.dumps(renamed))
    planned = command("plan", "renamed.yaml", "--out", "out")
    assert "no longer names build/more" in " ".join(planned.stderr.split())
    assert tokmill.plan(renamed, out).removed == {"build/more": size}
    ran = command("run", "renamed.yaml", "--out", "out")
    assert ran.returncode == 0
    for said in ("no longer names build/more", f"{size / 1e6:,.1f} MB", "`tokmill gc out --delete`"):
        assert said in " ".join(ran.stderr.split())
    assert not (out / "build/more").exists()
    (kept,) = (work / "out.previous/build/more").iterdir()
    assert content(kept) == before
    assert tokmill.verify(out).problems == []
    back = tokmill.run(recipe(builds=("rows", "more")), out, workers=1)
    assert (back.ran, back.restored) == ([], ["build/more"])
    tokmill.gc(out, delete=True)
    assert not (work / "out.previous").exists()


def test_steps_that_are_replaced_are_named_with_their_size(work: Path) -> None:
    out = work / "out"
    tokmill.run(recipe(), out, workers=1)
    (work / "longer.yaml").write_text(json.dumps(recipe(length=32)))
    planned = tokmill.plan(recipe(length=32), out)
    size = bytes_of(out / "build/rows")
    assert planned.replaced == {"build/rows": size}
    told = command("plan", "longer.yaml", "--out", "out").stderr
    assert f"build/rows ({size / 1e6:,.1f} MB); `--keep-previous`" in " ".join(told.split())
    ran = command("run", "longer.yaml", "--out", "out")
    assert f"build/rows ({size / 1e6:,.1f} MB); `--keep-previous`" in " ".join(ran.stderr.split())
    again = command("run", "longer.yaml", "--out", "out")
    assert "--keep-previous" not in again.stderr
    kept = command("run", "longer.yaml", "--out", "out", "--set", "pack.length=64", "--keep-previous")
    assert "--keep-previous" not in kept.stderr


def test_the_run_of_another_recipe_is_replaced_only_when_that_is_asked_for(work: Path) -> None:
    out = work / "out"
    tokmill.run(recipe(), out, workers=1)
    before = content(out)
    other = {**recipe(length=32), "name": "other"}
    with pytest.raises(RecipeError, match="another recipe: minds") as refused:
        tokmill.run(other, out, workers=1)
    assert "--replace" in refused.value.next
    assert content(out) == before
    assert "another recipe, minds" in tokmill.plan(other, out).notes[-1]
    assert tokmill.run(other, out, workers=1, keep_previous=True).ran == ["build/rows"]
    back = tokmill.run(recipe(), out, workers=1, replace=True)
    assert (back.ran, back.restored) == ([], ["build/rows"])
    assert content(out) == before
    assert tokmill.verify(out).problems == []


def test_a_takedown_keeps_no_step_that_the_recipe_no_longer_names(work: Path) -> None:
    out = work / "out"
    tokmill.run(recipe(builds=("rows", "more")), out, workers=1)
    tokmill.run(recipe(), out, workers=1)
    assert (work / "out.previous").exists()
    tokmill.forget(out, doc_id="n3", workers=1)
    assert not (work / "out.previous").exists()
    tokmill.run(recipe(builds=("fresh",)), out, workers=1)
    assert tokmill.verify(out).problems == []
    assert all(b"n3" not in path.read_bytes() for path in (work / "out.previous").rglob("*.zst"))
