"""A model is trained on all stages of a mixture, one after the other: what a review says of training is of
their builds together, counted here from the index of each."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import tokmill as mill
from mill import write_problems
from recount import read_rows
from reviews.reviewed import copied
from tokmill.artifacts.manifest import Json
from tokmill.reviews.finding import Review

RECORDS = {"web": 60, "math": 25}
STAGES: list[Json] = [
    {"name": "main", "tokens": 8000},
    {"name": "polish", "tokens": 5000, "weights": {"web": "0.1", "math": "0.9"}},
]
ALL = "build rows (all stages)"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Mathematics comes again in the last stage."""
    directory = tmp_path_factory.mktemp("stages")
    for number, (name, count) in enumerate(RECORDS.items()):
        write_problems(directory / f"{name}.jsonl", count, seed=number + 1)
    sources = [
        {
            "name": name,
            "domain": name,
            "files": f"{name}.jsonl",
            "template": "{question} {answer}",
            "fields": {"id": "id"},
        }
        for name in RECORDS
    ]
    recipe = {
        "name": "staged",
        "sources": sources,
        "split": {"valid_fraction": "0.3"},
        "tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<|endoftext|>"},
        "pack": {"length": 48},
        "mixture": {
            "weights": {"web": "0.9", "math": "0.1"},
            "held_out": "whole",
            "exhausted": "repeat",
            "stages": STAGES,
        },
        "builds": [{"name": "rows", "format": "memmap"}],
    }
    (directory / "recipe.yaml").write_text(json.dumps(recipe))
    return mill.run(directory / "recipe.yaml", workers=1).out


class Counted:
    """Of the training rows of all stages."""

    def __init__(self, run: Path) -> None:
        self.rows: Counter[str] = Counter()  # tokens by source
        self.of_document: Counter[tuple[str, str]] = Counter()
        self.of_stage: Counter[str] = Counter()
        turns: Counter[tuple[str, str]] = Counter()
        for stage in STAGES:
            for _, pieces in read_rows(run / f"build/rows-{stage['name']}/train"):
                for piece in pieces:
                    name = piece["source"], piece["doc_id"]
                    self.rows[piece["source"]] += piece["end"] - piece["start"]
                    self.of_stage[stage["name"]] += piece["end"] - piece["start"]
                    self.of_document[name] += piece["end"] - piece["start"]
                    turns[name] += piece["offset"] == 0
        whole = {}
        for path in (run / "tokens/train").rglob("lengths-*.parquet"):
            for line in pq.read_table(path, partitioning=None).to_pylist():
                whole[path.parent.name, line["doc_id"]] = line["tokens"]
        self.read, self.once = (
            {
                source: sum(whole[one] * times(one) for one in self.of_document if one[0] == source)
                for source in RECORDS
            }
            for times in (lambda one: max(turns[one], 1), lambda _: 1)
        )
        self.tokens = self.rows.total()
        self.held_out = sum(
            piece["end"] - piece["start"]
            for _, pieces in read_rows(run / "build/rows-main/valid")
            for piece in pieces
        )


@pytest.fixture(scope="module")
def counted(run: Path) -> Counted:
    found = Counted(run)
    assert found.read["math"] > found.once["math"], "or nothing comes again"
    return found


def found_by(found: Review, check: str) -> list[Json]:
    assert check in found.checks_made
    return [one for one in found.as_json()["findings"] if one["check"] == check]


def values_of(finding: Json) -> dict[str, Any]:
    return {measure["name"]: measure["value"] for measure in finding["evidence"]}


def answer_of(found: Review, words: str) -> Any:
    return next(one for one in found.questions if words in one.question)


@pytest.mark.parametrize("target", ["run", "build/rows-polish"])
def test_training_goes_through_all_stages_once(run: Path, counted: Counted, target: str) -> None:
    found = mill.review(
        run if target == "run" else run / target,
        no_verify=True,
        model_params=counted.tokens // 10,
        train_tokens=2 * counted.tokens,
    )
    (finding,) = found_by(found, "plan_epochs")
    assert finding["about"] == ALL
    assert values_of(finding) == {
        "passes": 2.0,
        "of the tokens trained on are new": 50.0,
        **{
            f"source {source} is seen": pytest.approx(
                2 * counted.read[source] / counted.once[source], abs=1e-5
            )
            for source in RECORDS
        },
    }
    told = answer_of(found, "large enough").figures["training"]
    assert told["built_tokens"] == counted.tokens
    assert {name: one["built"] for name, one in told["sources"].items()} == counted.rows
    once = mill.review(run, no_verify=True, model_params=counted.tokens // 10)
    (finding,) = found_by(once, "tokens_per_parameter")
    assert finding["about"] == ALL
    assert values_of(finding)["trained on"] == counted.tokens


def test_a_short_stage_is_not_compared_with_what_is_held_out(run: Path, counted: Counted) -> None:
    found = mill.review(run, no_verify=True)
    (finding,) = found_by(found, "held_out")
    assert counted.held_out > counted.of_stage["polish"], "or this proves nothing"
    assert (finding["severity"], finding["about"]) == ("medium", ALL)
    assert values_of(finding) == {
        "train": counted.tokens,
        "valid": counted.held_out,
        "held out": pytest.approx(100 * counted.held_out / (counted.held_out + counted.tokens), abs=1e-5),
    }


def test_documents_of_all_stages_are_told_of(run: Path, counted: Counted) -> None:
    found = mill.review(run, no_verify=True)
    (name, most), *_ = counted.of_document.most_common(1)
    (finding,) = found_by(found, "giant_document")
    assert finding["about"] == f"document {'/'.join(name)}"
    assert finding["says"].startswith(f"{most:,} of {counted.tokens:,} training tokens ")
    figures = answer_of(found, "Which sources").figures
    for source in RECORDS:
        train = {one for one in counted.of_document if one[0] == source}
        valid: Counter[str] = Counter()
        for _, pieces in read_rows(run / "build/rows-main/valid"):
            for piece in pieces:
                if piece["source"] == source:
                    valid[piece["doc_id"]] += piece["end"] - piece["start"]
        assert figures[source]["built_documents"] == len(train) + len(valid)
        assert figures[source]["built_tokens"] == counted.rows[source] + valid.total()
        assert sum(figures[source]["licenses"].values()) == len(train) + len(valid)


def test_where_a_stage_is_not_built_yet_the_others_are_named(
    run: Path, counted: Counted, tmp_path: Path
) -> None:
    part = copied(run, tmp_path / "part")
    for name in ("manifest.json", "build/rows-main/manifest.json", "curriculum/manifest.json"):
        (part / name).unlink()
    found = mill.review(part, no_verify=True, model_params=counted.tokens)
    (finding,) = found_by(found, "tokens_per_parameter")
    assert finding["about"] == "build rows (polish)"
    assert values_of(finding)["trained on"] == counted.of_stage["polish"]
    drifts = [one["says"] for one in found_by(found, "drift")]
    assert not [one for one in drifts if "stage main" in one]


def test_drift_is_within_a_stage_and_not_from_one_to_the_next(run: Path, tmp_path: Path) -> None:
    """The last stage has other weights, as it was asked for; without builds too."""
    shares = [
        Counter(piece["source"] for _, row in read_rows(run / f"build/rows-{name}/train") for piece in row)
        for name in ("main", "polish")
    ]
    assert shares[0]["web"] > shares[0]["math"]
    assert shares[1]["web"] < shares[1]["math"]
    assert found_by(mill.review(run, no_verify=True), "drift") == []
    unbuilt = copied(run, tmp_path / "unbuilt")
    (unbuilt / "manifest.json").unlink()
    for name in ("build/rows-main", "build/rows-polish", "curriculum"):
        (unbuilt / name / "manifest.json").unlink()
    assert found_by(mill.review(unbuilt, no_verify=True), "drift") == []
    (unbuilt / "stage/main/manifest.json").unlink()
    said = [one.says for one in mill.review(unbuilt, no_verify=True).assumptions]
    assert "stage/polish was not read: it was made from what is not here (stage/main)" in said
