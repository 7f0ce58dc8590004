"""A build says in its own manifest what it was made from, and says the same however the run came about."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import tokmill as mill
from mill import small_corpus


def facts_of(run: Path) -> dict[str, Any]:
    return {
        path.parent.name: json.loads(path.read_bytes())["facts"]
        for path in sorted(run.glob("build/*/manifest.json"))
    }


def test_every_build_of_a_recipe_names_split_tokenizer_budget_and_what_was_skipped(tmp_path: Path) -> None:
    recipe = small_corpus(tmp_path, problems=200, mixture={"tokens": "2k"}, dedup={"exact": True})
    with (tmp_path / "problems.jsonl").open("a") as lines:
        lines.write("{broken\n")
    run = mill.run(recipe, workers=1).out
    found = facts_of(run)
    assert set(found) == {"rows", "mega"}
    (tokenizer,) = run.glob("tokenizer/tokenizer.json")
    # counted from the ledgers of the run, row by row
    ledgers: dict[str, dict[str, dict[str, int]]] = {}
    for path in sorted(run.rglob("ledger-*.parquet")):
        step = path.parent.relative_to(run).as_posix()
        for row in pq.read_table(path).to_pylist():
            kind = {"drop": "dropped", "quarantine": "quarantined"}.get(row["verdict"])
            if kind is not None:
                by_reason = ledgers.setdefault(step, {}).setdefault(kind, {})
                by_reason[row["reason"]] = by_reason.get(row["reason"], 0) + 1
    for facts in found.values():
        assert facts["tokenizer_sha256"] == hashlib.sha256(tokenizer.read_bytes()).hexdigest()
        assert facts["split"] == {
            "method": "hash",
            "by": "document",
            "valid_fraction": "0.1",
            "test_fraction": "0",
        }
        assert facts["budget"]["target"] == {"tokens": 2000}
        assert sum(split["tokens"] for split in facts["budget"]["splits"].values()) <= 2000
        read = {step: told for step, told in facts["skipped"].items() if step != "mixture"}
        assert read == ledgers
        assert "hub" not in facts
    assert len({facts["config_sha256"] for facts in found.values()}) == 1
    assert mill.verify(run).problems == []


def test_an_edited_run_ends_with_the_facts_of_a_fresh_one(tmp_path: Path) -> None:
    """Another share that holds the same documents out changes no byte of a build,
    and is told all the same."""
    for name in ("edited", "fresh"):
        small_corpus(tmp_path / name, problems=5, split={"valid_fraction": "0.0001"})
    mill.run(tmp_path / "edited/recipe.yaml", workers=1)
    for name in ("edited", "fresh"):
        small_corpus(tmp_path / name, problems=5, split={"valid_fraction": "0.0002"})
    again = mill.run(tmp_path / "edited/recipe.yaml", workers=1)
    assert again.ran == ["split"]
    mill.run(tmp_path / "fresh/recipe.yaml", workers=1)
    edited, fresh = (tmp_path / name / "out/small" for name in ("edited", "fresh"))
    assert facts_of(edited)["rows"]["split"]["valid_fraction"] == "0.0002"
    assert facts_of(edited) == facts_of(fresh)
    assert mill.verify(edited).problems == []
    assert mill.verify(edited).digest == mill.verify(fresh).digest
    assert mill.run(tmp_path / "edited/recipe.yaml", workers=1).ran == []
