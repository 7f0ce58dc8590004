"""The recipe in the manifest of a run is the last that it was run with, though no step had to run for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from cleaned import prose, write_documents
from tokmill.recipe.file import read_recipe


def recipe(**sections: Any) -> dict[str, Any]:
    return {
        "name": "small",
        "sources": [{"name": "notes", "files": "one/notes.jsonl"}],
        "dedup": {"against": {"files": "bench/*.jsonl", "fields": ["q"]}, "warn_source_loss": "0.9"},
        **sections,
    }


def write(directory: Path, content: dict[str, Any]) -> Path:
    path = directory / "recipe.yaml"
    path.write_text(json.dumps(content))
    return path


def manifest(out: Path) -> Any:
    return json.loads((out / "manifest.json").read_text())


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "one").mkdir()
    (tmp_path / "bench").mkdir()
    rows = [{"id": f"n{n}", "text": prose(n // 2, 3)} for n in range(20)]  # each twice
    write_documents(tmp_path / "one/notes.jsonl", rows)
    write_documents(tmp_path / "bench/q.jsonl", [{"q": "a question that is in none of these texts at all"}])
    return mill.run(write(tmp_path, recipe()), tmp_path / "out", workers=1).out


def test_keys_that_no_step_depends_on_are_written_down_and_what_the_run_took_stays(
    out: Path, tmp_path: Path
) -> None:
    before = manifest(out)
    assert before["environment"]["seconds"] > 0
    (tmp_path / "one").rename(tmp_path / "two")
    (tmp_path / "bench").rename(tmp_path / "elsewhere")
    against = {"files": "elsewhere/*.jsonl", "fields": ["q"]}
    edits: list[dict[str, Any]] = [
        {"sources": [{"name": "notes", "files": "two/notes.jsonl"}], "dedup": {"against": against}},
        {"sources": [{"name": "notes", "files": "two/notes.jsonl", "max_bad_fraction": "0.5"}]},
        {"dedup": {"against": against, "warn_source_loss": "0.1"}},
        {"clean": {"warn_source_loss": "0.1", "max_source_loss": "0.9"}},
        {"name": "other"},
        {"review": {"model_params": "7B"}},
    ]
    content = recipe()
    for edit in edits:
        content |= edit
        path = write(tmp_path, content)
        assert mill.run(path, out, workers=1, replace=True).ran == []
        now = manifest(out)
        assert now["config"] == read_recipe(path).recipe.model_dump(mode="json")
        assert now["step"] == content["name"]
        assert now["environment"]["seconds"] == before["environment"]["seconds"]
        assert now["environment"]["timeline"] == before["environment"]["timeline"]
        stamp = (out / "manifest.json").stat().st_mtime_ns
        mill.run(path, out, workers=1)
        assert (out / "manifest.json").stat().st_mtime_ns == stamp
    assert now["environment"]["review"] == {"model_params": 7_000_000_000}
    mill.report(out)
    assert json.loads((out / "report.json").read_text())["warnings"]  # half are copies
    mill.run(path, out, workers=1, set={"dedup.warn_source_loss": "0.2"})
    assert list(manifest(out)["environment"]["set"]) == ["dedup.warn_source_loss"]
    mill.run(path, out, workers=1)
    assert "set" not in manifest(out)["environment"]
    mill.forget(out, doc_id="n3", base=tmp_path, workers=1)
    assert mill.verify(out).problems == []
