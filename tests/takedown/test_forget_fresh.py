"""A taken-down run is the run that reads its sources with the same list, whoever makes it and when."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from cleaned import write_documents
from mill import differences, digest_of, steps_of
from takedown.marked import BOOKS, BUILDS, ids, make_corpus, make_recipe, text_of

WEB = {"name": "web", "domain": "web", "files": "web-*.jsonl"}
MORE = {"name": "more", "domain": "prose", "files": ["more.jsonl", "even-more.jsonl"]}
CACHE, TEXTS = {"name": "cache", "format": "token_cache"}, {"name": "t", "content": "text", "format": "jsonl"}

# Orders that are not those of names or of the recipe; all that judges documents by others; every way of
# reading a part of a source.
RECIPES: dict[str, dict[str, Any]] = {
    "scores that learn from sources in another order": {
        "scores": [
            {
                "name": "good",
                "train": {"positive": [{"source": "more"}], "negative": [{"source": "web"}], "min_docs": 1},
                "percentile": "corpus",
            }
        ],
        "filters": [{"measure": "score.good.percentile", "min": 5}],
        "split": {"method": "counts", "counts": {"valid": 3, "test": 2}},
    },
    "copies of every kind": {
        "dedup": {
            "near": {"threshold": "0.7"},
            "window": {"policy": "trim", "words": 20},
            "against": {"files": ["second.jsonl", "first.jsonl"], "fields": ["text"]},
            "keep": "longest",
            "reference": ["more"],
        },
        "split": {"by": "cluster", "valid_fraction": "0.3"},
        "mixture": {"tokens": 3000, "exhausted": "repeat", "max_epochs": 9},
    },
    "stages": {
        "mixture": {
            "held_out": "whole",
            "exhausted": "repeat",
            "stages": [{"name": "one", "tokens": 640}, {"name": "two", "tokens": 320}],
        },
        "builds": [{"name": "rows", "format": "memmap"}],
    },
    "parts of sources": {
        "sources": [
            {**WEB, "sample": {"method": "reservoir", "k": 9}},
            {**BOOKS, "limit": {"docs": 7}, "fallback": "more"},
            {**MORE, "limit": {"docs": 9}},
        ],
        "tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<|endoftext|>"},
    },
    "every layout": {"builds": [*BUILDS, TEXTS]},
}
TAKEDOWNS = (ids("w3", "b2", "m1", "short"), {"source": "web", "license": "MIT"})


def stale_steps(recipe: Path, out: Path) -> list[str]:
    return [step for step, reasons in mill.plan(recipe, out).steps.items() if reasons]


@pytest.mark.parametrize("name", RECIPES)
def test_a_takedown_leaves_what_reading_the_sources_with_the_list_makes(tmp_path: Path, name: str) -> None:
    make_corpus(tmp_path)
    own = [{"id": f"e{n}", "text": text_of(f"e{n}", 300 + n)} for n in range(4)]
    write_documents(tmp_path / "even-more.jsonl", own)
    for number, file in enumerate(("first", "second")):
        write_documents(tmp_path / f"{file}.jsonl", own[number : number + 1])
    sections = {"dedup": {"exact": True}, "sources": [WEB, BOOKS, MORE], "builds": [BUILDS[0], CACHE, TEXTS]}
    recipe = make_recipe(tmp_path, **{**sections, **RECIPES[name]})
    out = mill.run(recipe, workers=1).out
    for takedown in TAKEDOWNS:
        mill.forget(out, **takedown, workers=1)
        assert stale_steps(recipe, out) == []
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    shutil.copy(out / "forgotten.parquet", fresh)
    mill.run(recipe, fresh, workers=1)
    assert differences(steps_of(fresh), steps_of(out)) == []
    assert digest_of(fresh) == digest_of(out)

    before = digest_of(out)
    for shard in (*out.glob("ingest/*/documents-*"), *out.glob("ingest/*/ledger-*.parquet")):
        shard.write_bytes(bytes(shard.stat().st_size))
    mill.run(recipe, workers=1, verify=True)
    assert digest_of(out) == before
    assert differences(steps_of(fresh), steps_of(out)) == []


def test_several_takedowns_leave_what_one_leaves(run: Path, tmp_path: Path) -> None:
    once = shutil.copytree(run, tmp_path / "once")
    for name in ("w4", "short", "w3"):
        mill.forget(run, **ids(name), workers=1)
    mill.forget(once, **ids("short", "w3", "w4"), workers=1)
    assert differences(steps_of(once), steps_of(run)) == []
    ledger = json.dumps([task["counts"] for task in steps_of(run)["ingest/web"]["tasks"]])
    assert '"forgotten": 2' in ledger
    assert digest_of(once) == digest_of(run)
