"""`tokmill demo`: with a report, and with what became of every document, on request."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from mill import small_corpus, tokmill
from written import ZstdFile, load_manifest


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """A directory whose demo was begun with a smaller corpus: its recipe is taken as it is."""
    return small_corpus(tmp_path / "demo").parent


def load_lines(path: Path) -> list[dict[str, Any]]:
    with ZstdFile(path) as file:
        return [json.loads(line) for line in file]


def test_the_demo_writes_no_more_than_asked_for(demo: Path) -> None:
    shown = tokmill("demo", "--out", demo)
    assert shown.returncode == 0, shown.stderr
    assert not [path for path in demo.rglob("*") if path.name.startswith(("report.", "decisions."))]
    assert "report" not in shown.stdout


def test_the_report_and_the_decisions_are_those_of_the_run(demo: Path) -> None:
    shown = tokmill("demo", "--out", demo, "--report", "--decisions")
    assert shown.returncode == 0, shown.stderr
    for line in (f"report     {demo}/report.html", f"decisions  {demo}/decisions.jsonl.zst"):
        assert line in shown.stdout
    facts = json.loads((demo / "report.json").read_text())
    assert (demo / "report.html").read_text().startswith("<!doctype html>")
    decisions = load_lines(demo / "decisions.jsonl.zst")
    assert facts["totals"]["records"] == len(decisions)
    # recounted from the documents, the ledgers and the manifests of the run
    out = demo / "out"
    ids = [
        i
        for path in sorted(out.glob("ingest/*/documents-*.parquet"))
        for i in pq.read_table(path)["doc_id"].to_pylist()
    ]
    assert Counter(item["doc_id"] for item in decisions) == Counter(ids)
    drops = Counter((item["stage"], item["reason"]) for item in decisions if not item["keep"])
    counted: Counter[tuple[str, str]] = Counter()
    for step in ("clean/problems", "clean/notes", "dedup"):
        counted.update(
            {(step.partition("/")[0], r): n for r, n in load_manifest(out / step).counts["dropped"].items()}
        )
    assert drops == counted
    assert {stage for stage, _ in drops} == {"clean", "dedup"}
    kept = Counter(item["split"] for item in decisions if item["keep"])
    split = load_manifest(out / "split").counts
    assert kept == {name: split[name] for name in kept}
    kept_ids = {
        item["doc_id"] for item in decisions if item["keep"]
    }  # an id that the content gives may occur twice
    for item in decisions:
        if item.get("stage") == "dedup":
            assert item["dup_of"] in kept_ids
            assert item["similarity"] == 1
    short = next(item for item in decisions if item.get("reason") == "too_short")
    assert (short["value"], short["threshold"]) == (2.0, 5.0)


def test_a_second_time_gives_the_same_bytes(demo: Path) -> None:
    written = []
    for _ in range(2):
        assert tokmill("demo", "--out", demo, "--report", "--decisions").returncode == 0
        written.append(
            {
                name: (demo / name).read_bytes()
                for name in ("report.html", "report.json", "decisions.jsonl.zst")
            }
        )
    assert written[0] == written[1]
