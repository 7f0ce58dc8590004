"""Of a run with stages and no builds, what a review says of training documents is of the turns of all stages:
counted here from order-train.parquet of each."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import tokmill as mill
from mill import write_problems
from tokmill.reviews.subject import join_turns, load_turns, open_subject

NAMES = ("web", "math")
STAGES = [
    {"name": "main", "tokens": 2000},
    {"name": "anneal", "tokens": 700, "weights": {"web": "0.2", "math": "0.8"}},
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("staged")
    for number, name in enumerate(NAMES):
        write_problems(directory / f"{name}.jsonl", 60, seed=number + 1)
    sources = [
        {
            "name": name,
            "domain": name,
            "files": f"{name}.jsonl",
            "template": "{question} {answer}",
            "fields": {"id": "id"},
        }
        for name in NAMES
    ]
    recipe = {
        "name": "staged",
        "sources": sources,
        "split": {"valid_fraction": "0.1"},
        "tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<|endoftext|>"},
        "pack": {"length": 48},
        "mixture": {"weights": {"web": "0.7", "math": "0.3"}, "held_out": "whole", "stages": STAGES},
    }
    (directory / "recipe.yaml").write_text(json.dumps(recipe))
    return mill.run(directory / "recipe.yaml", workers=1).out


def test_turns_of_a_run_without_builds_are_those_of_its_stages(run: Path) -> None:
    lengths = {
        number: pq.read_table(run / f"tokens/train/{name}/lengths-{number:05d}.parquet").to_pylist()
        for number, name in enumerate(NAMES)
    }
    expected = [
        lengths[line["shard"]][line["sequence"]]
        for stage in STAGES
        for line in pq.read_table(run / f"stage/{stage['name']}/order-train.parquet").to_pylist()
    ]
    whole = sum(len(rows) for rows in lengths.values())
    assert 0 < len(expected) < whole, "the stages have no turn for all"
    turns = join_turns(load_turns(open_subject(run).artifacts))
    assert turns.lengths.tolist() == [one["tokens"] for one in expected]
    tokens, doc_id, _, total = turns.longest()
    sums: Counter[str] = Counter()
    for one in expected:
        sums[one["doc_id"]] += one["tokens"]
    assert total == sum(sums.values())
    assert tokens == max(sums.values()) == sums[doc_id]
