"""The section about what a model has seen, against a replay of the loader and the index of the rows."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tokmill as mill
from browser import open_page
from mill import small_corpus
from tokmill.cli import main
from tokmill.errors import InputError
from tokmill.loader import Batches, open_curriculum, open_dataset
from written import read_row_index

BUILDS = [
    {"name": "short", "format": "memmap", "pack": {"layout": "concat", "length": 32}},
    {"name": "long", "format": "npy", "pack": {"layout": "concat", "length": 64}},
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mill.run(small_corpus(tmp_path_factory.mktemp("seen"), builds=BUILDS), workers=1).out


def test_the_figures_are_those_of_a_replay(run: Path, tmp_path: Path) -> None:
    build = run / "build" / "short"
    dataset, state = open_dataset(build, "train"), tmp_path / "state.json"
    known = {tuple(np.asarray(dataset[row]["ids"]).tolist()): row for row in range(len(dataset))}
    batches, rows = Batches(dataset, 4, seed=2), list[int]()
    for number, batch in enumerate(batches):
        rows += [known[tuple(ids)] for ids in np.asarray(batch["tokens"]).tolist()]
        if number == 6:
            break
    state.write_text(json.dumps(batches.state_dict()))
    index = dict(read_row_index(build / "train" / "index.jsonl.zst"))
    tokens: Counter[str] = Counter()
    for row in rows:
        for span in index[row]:
            tokens[span.source] += span.end - span.start
    done = CliRunner().invoke(main, ["report", str(run), "--out", str(tmp_path), "--state", str(state)])
    assert done.exit_code == 0, done.output
    told = json.loads((tmp_path / "report.json").read_text())["seen"][0]
    assert (told["builds"], told["split"], told["position"]) == (["short"], "train", len(rows))
    assert {group["name"]: group["seen"] for group in told["by"]["source"] if group["seen"]} == dict(tokens)
    assert told["total"]["seen"] == sum(tokens.values()) == 32 * len(rows)
    with open_page() as page:
        for scheme in ("light", "dark"):
            page.open(tmp_path / "report.html", scheme=scheme)
            assert page.complaints == []
            text = page.run("document.querySelector('#seen').innerText")
            for count in (*tokens.values(), told["total"]["seen"]):
                assert re.search(rf"\b{count:,}\b", text), (count, text)


def test_a_report_without_a_state_has_no_such_section(run: Path, tmp_path: Path) -> None:
    made = mill.report(run, out=tmp_path)
    assert made.facts["seen"] is None
    assert 'id="seen"' not in made.page.read_text()


def test_a_state_of_two_builds_is_found_in_the_order_of_its_datasets(run: Path, tmp_path: Path) -> None:
    pair = [open_dataset(run / "build" / name, "train") for name in ("short", "long")]
    batches = Batches(pair, 2, weights=["3", "1"])
    batches.took(0, 8)
    told = mill.report(run, out=tmp_path, state=batches.state_dict()).facts["seen"][0]
    assert told["builds"] == ["short", "long"]
    assert told["total"]["seen"] == 6 * 32 + 2 * 64


def test_a_state_of_other_files_is_refused(run: Path, tmp_path: Path) -> None:
    state = Batches(open_dataset(run / "build" / "short", "train"), 1).state_dict()
    state["datasets"][0]["fingerprint"] = "0" * 64
    with pytest.raises(InputError, match="other files"):
        mill.report(run, out=tmp_path, state=state)


def test_of_a_curriculum_every_stage_is_told(tmp_path: Path) -> None:
    mixture = {
        "batch_tokens": 128,
        "held_out": "whole",
        "stages": [
            {"name": "main", "tokens": 1024},
            {"name": "long", "tokens": 512, "length": 64},
        ],
    }
    recipe = small_corpus(
        tmp_path, builds=[{"name": "rows", "format": "memmap"}], pack={"length": 32}, mixture=mixture
    )
    out = mill.run(recipe, workers=1).out
    curriculum = open_curriculum(out, seed=1)
    for number, _ in enumerate(curriculum):
        if number == 8:  # 8 steps of `main`, and one of the 4 of `long`
            break
    facts = mill.report(out, out=tmp_path / "page", state=curriculum.state_dict()).facts["seen"]
    assert [(one["stage"], one["total"]["seen"]) for one in facts] == [("main", 1024), ("long", 128)]
