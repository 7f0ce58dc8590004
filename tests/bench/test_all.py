"""`make bench` on a few documents: every child that is asked for runs,
and the page says what they measured."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
SHARED = BENCH.parents[1] / "shared"
needs_texts = pytest.mark.skipif(not (SHARED / "bench").is_dir(), reason="needs ../shared/bench")


def run_all(results: Path, *arguments: str) -> tuple[int, str, str]:
    page = results.parent / "page.md"
    command = [
        sys.executable,
        str(BENCH / "all.py"),
        "--results",
        str(results),
        "--page",
        str(page),
        *arguments,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr, page.read_text() if page.exists() else ""


@pytest.mark.slow_docs
@needs_texts
def test_a_quick_run_fills_the_page(tmp_path: Path) -> None:
    results = tmp_path / "results"
    status, said, page = run_all(
        results, "--quick", "--datatrove", str(tmp_path / "none"), "--only", "limits", "end_to_end", "stages"
    )  # fmt: skip
    assert status == 0, said
    found = json.loads((results / "end_to_end.json").read_text())
    filtered, kept = found["runs"]
    assert (
        filtered["documents"]
        == kept["documents"]
        == kept["cleaned"]
        > filtered["cleaned"]
        >= filtered["left"]
        > 0
    )
    assert kept["tokens"] > filtered["tokens"] > 0
    assert [part["times"] for part in found["growth"]] == [1, 4, 16]
    assert found["growth"][0]["documents"] < found["growth"][2]["documents"]
    for heading in ("End to end", "Cost against input size", "Stages, and how far each is from its limit"):
        assert f"## {heading}\n" in page
    for stage in ("ingest+clean", "dedup", "tokens", "build"):
        assert re.search(rf"^\| {re.escape(stage)} \| [\d,.]+ \|", page, re.MULTILINE), stage
    assert "datatrove was not at hand" in page
    assert "these figures mean nothing" in page
    assert not re.search(r"\bnan\b|\binf\b|None", page)


def test_a_page_is_made_of_the_results_that_are_there(tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    facts = {"command": "bench/redaction.py", "rounds": 1, "status": 0, "wall_s": 1.5, "cpu_s": 1.0,
             "peak_rss_mb": 99,
             "date": "2026-01-02", "load_before": 0.0}  # fmt: skip
    (results / "redaction.run").write_text(json.dumps(facts))
    (results / "redaction.json").write_text(
        json.dumps({"all": {"plain_mb_per_cpu_s": 1.25, "mb_per_cpu_s": 480}})
    )
    status, said, page = run_all(results, "--page-only")
    assert status == 0, said
    assert "| redaction, all kinds | 480 | plain `re` 1.2 | redaction.py |" in page
    assert "2026-01-02; " in page
    assert "## End to end" not in page
    assert "not idle" not in page


def test_a_bench_that_fails_is_named(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "broken.jsonl.zst").write_bytes(b"not zstd")
    status, said, page = run_all(tmp_path / "results", "--texts", str(texts), "--only", "redaction")
    assert status == 1
    assert "failed: redaction" in said
    assert "| `bench/redaction.py` |" in page
    assert "status 1" in page


def test_no_texts_are_an_error_before_anything_runs(tmp_path: Path) -> None:
    status, said, page = run_all(tmp_path / "results", "--texts", str(tmp_path))
    assert (status, page) == (2, "")
    assert f"no *.jsonl.zst in {tmp_path}" in said
