"""Other thresholds of near duplicates, against what they predict:
a second run with that threshold in the recipe."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tokmill as mill
from cleaned import prose, rows_of, write_documents
from mill import write_recipe
from tokmill.cli import main
from tokmill.errors import DedupLimit, InputError

BANDS = {"bands": 28, "rows": 4}  # the same at every threshold: a run finds the same pairs


def family(name: str, seed: int, copies: int) -> list[dict[str, Any]]:
    """A text and copies of it, each with more other words than the one before:
    chains, stars, and all in between."""
    draw = random.Random(seed)
    words = prose(seed, 24).split()
    records = [{"id": name, "text": " ".join(words), "created_at": "2020-01-01"}]
    for copy in range(copies):
        base = records[draw.randrange(len(records))]["text"].split()
        for at in draw.sample(range(len(base)), 1 + copy % 7):
            base[at] = f"{name}{copy}x{at}".translate(str.maketrans("0123456789", "abcdefghij"))
        text = " ".join(base) + (" and on it goes" * (copy % 3))
        records.append({"id": f"{name}-{copy}", "text": text, "created_at": f"20{10 + copy:02}-05-01"})
    return records


def corpus() -> dict[str, list[dict[str, Any]]]:
    records = [record for n in range(12) for record in family(f"f{'abcdefghijkl'[n]}", 100 + n, 9)]
    random.Random(5).shuffle(records)
    alone = [{"id": f"alone-{n}", "text": prose(5000 + n, 20), "created_at": "2021"} for n in range(20)]
    return {"one": [*records[:60], *alone], "two": records[60:]}


def write(directory: Path, threshold: float, near: dict[str, Any] | None = None, **dedup: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, records in corpus().items():
        write_documents(directory / f"{name}.jsonl", records)
    fields = {"id": "id", "created_at": "created_at"}
    return write_recipe(
        directory,
        sources=[{"name": s, "domain": s, "files": f"{s}.jsonl", "fields": fields} for s in ("one", "two")],
        license={"unknown": "keep"},
        filters=None,
        redact=["email"],
        dedup={"near": {"threshold": str(threshold), **BANDS, **(near or {})}, **dedup},
        tokenizer=None,
        builds=None,
    )


def kept_in(out: Path) -> set[tuple[str, str]]:
    """After deduplication, by its own ledger."""
    there = {
        (row["source"], row["doc_id"])
        for s in ("one", "two")
        for row in rows_of(out, f"ingest/{s}", "documents")
    }
    gone = {(row["source"], row["doc_id"]) for row in rows_of(out, "dedup", "ledger")}
    return there - gone


def chars_of(kept: set[tuple[str, str]]) -> int:
    texts = {(source, one["id"]): one["text"] for source, own in corpus().items() for one in own}
    return sum(len(texts[document]) for document in kept)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"keep": "longest"},
        {"keep": "newest"},
        {"priority": ["two"]},
        {"reference": ["two"]},
        {"scope": "per-source"},
    ],
    ids=["first", "longest", "newest", "priority", "reference", "per-source"],
)
def test_the_prediction_is_what_a_run_with_that_threshold_does(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    out = mill.run(write(tmp_path, 0.6, **options), workers=1).out
    now = kept_in(out)
    moved = 0
    for threshold in (0.6, 0.75, 0.9, 1.0):
        found = mill.whatif(out, {"dedup.near.threshold": threshold})
        entering = {(m.source, m.doc_id) for m in found.movers if m.becomes == "kept"}
        leaving = {(m.source, m.doc_id) for m in found.movers if m.becomes == "dropped"}
        second = mill.run(write(tmp_path / "second", threshold, **options), workers=1).out
        then = kept_in(second)
        assert (now | entering) - leaving == then, threshold
        assert (found.step, found.kept_now, found.kept_then) == ("dedup", len(now), len(then))
        assert (found.chars_now, found.chars_then) == (chars_of(now), chars_of(then))
        assert {m.reason for m in found.movers} <= {"near_dup"}
        moved += len(found.movers)
    assert moved > 20


def test_bands_that_the_recipe_leaves_open_are_those_of_the_new_threshold(tmp_path: Path) -> None:
    open_bands = {"bands": None, "rows": None}
    out = mill.run(write(tmp_path, 0.7, open_bands), workers=1).out
    found = mill.whatif(out, ["dedup.near.threshold=0.9"])
    second = mill.run(write(tmp_path / "second", 0.9, open_bands), workers=1).out
    assert found.kept_then == len(kept_in(second)) > found.kept_now


def test_a_run_that_only_reports_can_be_asked_what_any_threshold_above_would_drop(tmp_path: Path) -> None:
    out = mill.run(write(tmp_path, 0.5, {"policy": "report"}), workers=1).out
    found = mill.whatif(out, {"dedup.near.threshold": 0.8})
    assert found.kept_now == len(kept_in(out)) == 140
    second = mill.run(write(tmp_path / "second", 0.8), workers=1).out
    leaving = {(mover.source, mover.doc_id) for mover in found.movers}
    assert kept_in(out) - leaving == kept_in(second)


def test_at_a_threshold_of_one_all_that_are_not_equal_would_stay(tmp_path: Path) -> None:
    words = [word for word in prose(1, 120).split() if word.isalpha()]
    texts = [" ".join(words), *(" ".join([*words[:at], "another", *words[at + 1 :]]) for at in range(20))]
    (tmp_path / "data").mkdir()
    write_documents(
        tmp_path / "data/all.jsonl", [{"id": f"d{n}", "text": text} for n, text in enumerate(texts)]
    )
    dedup = {"near": {"threshold": 0.9}}
    none = dict.fromkeys(("filters", "normalize", "split", "tokenizer", "builds", "pack"))
    source = {"name": "all", "files": "all.jsonl"}
    recipe = write_recipe(tmp_path / "data", sources=[source], dedup=dedup, **none)
    found = mill.whatif(mill.run(recipe, workers=1).out, {"dedup.near.threshold": 1.0})
    assert (found.kept_now, found.kept_then) == (1, 21)


def test_clusters_that_are_read_in_parts_stay_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = mill.run(write(tmp_path, 0.6), workers=1).out
    whole = mill.whatif(out, {"dedup.near.threshold": 0.85})
    monkeypatch.setattr("tokmill.audit.likeness._AT_ONCE", 3)
    assert mill.whatif(out, {"dedup.near.threshold": 0.85})._replace(movers=[]) == whole._replace(movers=[])


def ask(out: Path, *changes: str) -> Any:
    return CliRunner().invoke(main, ["whatif", str(out), *(f"--set={change}" for change in changes)])


def test_what_cannot_be_known_is_said_with_what_to_do(tmp_path: Path) -> None:
    out = mill.run(write(tmp_path, 0.8), workers=1).out
    below = ask(out, "dedup.near.threshold=0.6")
    assert below.exit_code == 1
    assert (
        "dedup.near.threshold was 0.8: which documents are less alike than that is not known" in below.stderr
    )
    assert "`dedup: {near: {threshold: 0.6, policy: report}}`, which drops nothing" in below.stderr
    above = ask(out, "dedup.near.threshold=1.5")
    assert above.exit_code == 1
    assert "is a similarity, and 1.5 is none" in above.stderr
    both = ask(out, "dedup.near.threshold=0.9", "chars.min=3")
    assert both.exit_code == 1
    assert "were never compared" in both.stderr
    told = json.loads(
        CliRunner().invoke(main, ["whatif", str(out), "--set=dedup.near.threshold=0.9", "--json"]).stdout
    )
    assert told["step"] == "dedup"
    shown = ask(out, "dedup.near.threshold=0.9").stdout
    assert f"kept {told['kept']['now']} → {told['kept']['then']} documents" in shown
    assert ", after deduplication" in shown
    assert all(0.8 <= one["value"] < 1 and one["becomes"] == "kept" for one in told["examples"])


def test_a_run_without_near_duplicates_or_not_that_far_says_so(tmp_path: Path) -> None:
    recipe = write(tmp_path, 0.8)
    body = json.loads(recipe.read_text())
    recipe.write_text(json.dumps({**body, "dedup": {"exact": True}}))
    out = mill.run(recipe, workers=1).out
    with pytest.raises(InputError, match="did not look for near duplicates"):
        mill.whatif(out, {"dedup.near.threshold": 0.9})
    stopped = write(tmp_path / "stopped", 0.6, max_source_loss="0.01")
    with pytest.raises(DedupLimit):
        mill.run(stopped, workers=1)
    with pytest.raises(InputError, match="not deduplicated yet"):
        mill.whatif(tmp_path / "stopped/out/small", {"dedup.near.threshold": 0.9})
