"""Scores of two runs, and documents drawn by a score: recounted from the written files by other code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

import tokmill as mill
from mill import small_corpus
from tokmill.cli import main
from written import load_lines

HOOK = """
def judge(columns):
    return [float(SCALE) * (len(text) % 11 == 0) for text in columns["text"]]
"""


def run_of(directory: Path, code: str, **sections: Any) -> Path:
    directory.mkdir()
    (directory / "hooks.py").write_text(code)
    scores = [{"name": "own", "hook": "hooks.py:judge"}]
    sections.setdefault("filters", [])
    return mill.run(small_corpus(directory, scores=scores, **sections), workers=1).out


def scores_of(run: Path) -> list[float]:
    """Of all documents, in order: both runs have the same ones."""
    return [
        value
        for source in ("problems", "notes")
        for path in sorted((run / "clean" / source).glob("measures-*.parquet"))
        for value in pq.read_table(path).column("score.own").to_pylist()
    ]


def test_diff_tells_how_many_documents_have_another_score(tmp_path: Path) -> None:
    a = run_of(tmp_path / "a", HOOK.replace("SCALE", "2"))
    b = run_of(tmp_path / "b", HOOK.replace("SCALE", "7"))
    before, after = scores_of(a), scores_of(b)
    (told,) = mill.diff(a, b).as_json()["documents"]["scores"]
    changed = sum(one != other for one, other in zip(before, after, strict=True))
    assert 0 < changed < len(before)
    assert told == {
        "measure": "score.own",
        "compared": len(before),
        "changed": changed,
        "mean": [
            pytest.approx(sum(before) / len(before)),
            pytest.approx(sum(after) / len(after)),
        ],
        "largest": 5.0,
    }
    shown = CliRunner().invoke(main, ["diff", str(a), str(b)])
    assert shown.exit_code == 0
    assert f"score.own  {changed} of {len(before)} documents have another, mean" in shown.stdout


def test_a_run_and_itself_have_the_same_scores_and_one_without_has_none(tmp_path: Path) -> None:
    a = run_of(tmp_path / "a", HOOK.replace("SCALE", "2"))
    assert [one.changed for one in mill.diff(a, a).documents.scores] == [0]
    (tmp_path / "plain").mkdir()
    plain = mill.run(small_corpus(tmp_path / "plain", filters=[]), workers=1).out
    assert mill.diff(a, plain).as_json()["documents"]["scores"] == []


def test_exported_documents_are_drawn_by_their_score(tmp_path: Path) -> None:
    builds = [{"name": "out", "format": "jsonl", "content": "text", "measures": True}]
    out = run_of(tmp_path / "a", HOOK.replace("SCALE", "3"), builds=builds)
    files = sorted(str(path) for path in (out / "texts/out").rglob("*.jsonl*"))
    lines = [line for path in files for line in load_lines(path)]
    wanted = {line["doc_id"] for line in lines if line["measures"]["score.own"] > 0}
    assert 1 < len(wanted) < len(lines) / 2
    made = tmp_path / "some.jsonl"
    options = ["--method", "weighted", "--weight", "measures.score.own", "--k", str(len(wanted))]
    shown = CliRunner().invoke(main, ["sample", *files, *options, "--out", str(made)])
    assert shown.exit_code == 0, shown.output
    # a weight of zero is not drawn while there is another
    assert {json.loads(line)["doc_id"] for line in made.read_text().splitlines()} == wanted
