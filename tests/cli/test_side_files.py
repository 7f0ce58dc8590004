"""What a verb or a step writes beside documents is not read as documents."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from cleaned import prose
from forked import run_forked
from written import ZstdFile, load_lines, load_manifest, load_tables

IDS = [f"d{n}" for n in range(6)]


def tokmill(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    made = run_forked(list(arguments), {"TOKMILL_WORKERS": "1", **os.environ}, directory)
    assert made.returncode == 0, made.stdout + made.stderr
    return made


def write_documents(path: Path) -> None:
    path.write_text("".join(json.dumps({"id": id, "text": prose(n)}) + "\n" for n, id in enumerate(IDS)))


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    """data/normalize, data/dedup and data/texts.txt, as verbs made them of six documents."""
    write_documents(tmp_path / "in.jsonl")
    tokmill(tmp_path, "normalize", "in.jsonl", "--out", "data/normalize")
    tokmill(tmp_path, "dedup", "in.jsonl", "--mode", "exact+window", "--out", "data/dedup")
    tokmill(tmp_path, "normalize", "in.jsonl", "--out", "data/texts.txt")
    return tmp_path


def ids_of(steps: Path, /, **source: object) -> list[str]:
    (steps / "r.yaml").write_text(yaml.safe_dump({"name": "r", "sources": [{"name": "s", **source}]}))
    tokmill(steps, "run", "r.yaml", "--until", "ingest")
    ingest = steps / "out/r/ingest/s"
    assert load_manifest(ingest).counts["quarantined"] == {}
    return [id for part in load_tables(ingest, "documents") for id in part["doc_id"].to_pylist()]


def test_a_glob_over_results_of_verbs_finds_their_documents_alone(steps: Path) -> None:
    assert sorted(ids_of(steps, files="data/**/*.jsonl.zst")) == sorted(IDS * 2)


def test_a_glob_that_the_shell_has_expanded_is_read_without_side_files(steps: Path) -> None:
    names = sorted(str(path.relative_to(steps)) for path in (steps / "data/normalize").iterdir())
    assert "data/normalize/decisions.jsonl.zst" in names
    made = tokmill(steps, "dedup", *names, "--out", "once", "--json")
    assert json.loads(made.stdout)["docs"] == 6
    assert made.stderr.count("data/normalize/decisions.jsonl.zst") == 1  # it is said, once
    tokmill(steps, "filter", "data/**/*.jsonl.zst", "--rule", "chars>=1", "--out", "kept")
    tokmill(steps, "sample", "data/normalize/*", "--k", "3", "--out", "some.jsonl")


def test_a_glob_over_the_tables_of_another_run_finds_its_documents_alone(steps: Path) -> None:
    recipe = {
        "name": "other",
        "sources": [{"name": "o", "files": "in.jsonl"}],
        "filters": [{"measure": "chars", "min": 1_000_000}],
    }
    (steps / "other.yaml").write_text(yaml.safe_dump(recipe))
    tokmill(steps, "run", "other.yaml", "--until", "clean")
    assert list((steps / "out/other").rglob("ledger-*.parquet"))
    assert sorted(ids_of(steps, files="out/other/**/*.parquet")) == IDS


def test_manifests_and_decisions_are_no_files_of_a_directory(steps: Path) -> None:
    (steps / "data/notes.json").write_text('"a note"')
    assert list((steps / "data").rglob("*.manifest.json"))
    assert ids_of(steps, directory={"path": "data", "suffixes": [".json"]}) == ["notes.json"]


def test_a_source_of_decisions_alone_is_read(steps: Path) -> None:
    found = ids_of(steps, files="data/*/decisions.jsonl.zst", template="{doc_id} {keep}")
    assert sorted(found) == sorted(IDS * 2)


def test_a_file_of_that_name_with_other_records_is_read(steps: Path) -> None:
    with ZstdFile(steps / "data/decisions.jsonl.zst", "w") as file:
        file.write(json.dumps({"id": "court", "text": "The court decides."}).encode() + b"\n")
    assert sorted(ids_of(steps, files="data/**/*.jsonl.zst")) == sorted(["court", *IDS * 2])
    assert load_lines(steps / "data/decisions.jsonl.zst")
