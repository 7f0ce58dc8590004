"""A report of a run with stages, counted again from index.jsonl.zst, order files and token shards; its
builds are called as manifests call what they say."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tokmill
from mill import write_problems
from tokmill.errors import RecipeError
from written import load_lines, load_table

Json = dict[str, Any]
Key = tuple[str, str]  # source and id
BUILDS = ("warnings", "notes")
STAGES: list[Json] = [
    {"name": "main", "steps": 20},
    {"name": "long", "tokens": 3000, "length": 96},
    {"name": "last", "tokens": 60_000, "weights": {"web": "0.1", "math": "0.9"}},
]


def recipe_of(directory: Path, builds: tuple[str, ...], **mixture: Any) -> Path:
    for number, (name, count) in enumerate({"web": 60, "math": 20}.items()):
        write_problems(directory / f"{name}.jsonl", count, seed=number + 1)
    sources = [
        {
            "name": name,
            "domain": name,
            "license": "MIT",
            "files": f"{name}.jsonl",
            "template": "{question} {answer}",
            "fields": {"id": "id"},
        }
        for name in ("web", "math")
    ]
    recipe = {
        "name": "staged",
        "seed": 3,
        "sources": sources,
        "split": {"valid_fraction": "0.1"},
        "tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<|endoftext|>"},
        "pack": {"length": 48},
        "mixture": {
            "weights": {"web": "0.6", "math": "0.4"},
            "held_out": "whole",
            "batch_tokens": 192,
            "exhausted": "renormalize",
            "stages": STAGES,
            **mixture,
        },
        "builds": [{"name": name, "format": "memmap"} for name in builds],
    }
    path = directory / "recipe.yaml"
    path.write_text(json.dumps(recipe))
    return path


class Made(NamedTuple):
    out: Path
    facts: Json


@pytest.fixture(scope="module", params=["once", "repeated"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    directory = tmp_path_factory.mktemp(request.param)
    stages = [{**stage, "tokens": 4000} if stage["name"] == "last" else stage for stage in STAGES]
    mixture = {"exhausted": "repeat", "max_epochs": 5, "stages": stages} if request.param != "once" else {}
    out = tokmill.run(recipe_of(directory, BUILDS, **mixture), directory / "out", workers=1).out
    return Made(out, json.loads(tokmill.report(out).figures.read_bytes()))


def lengths_of(out: Path, split: str) -> dict[Key, int]:
    return {
        (path.parent.name, row["doc_id"]): row["tokens"]
        for path in sorted((out / "tokens" / split).glob("*/lengths-*.parquet"))
        for row in load_table(path).to_pylist()
    }


def turns_of(out: Path, stage: str) -> list[Key]:
    documents = {
        (int(path.stem.removeprefix("lengths-")), at): (path.parent.name, row["doc_id"])
        for path in sorted((out / "tokens/train").glob("*/lengths-*.parquet"))
        for at, row in enumerate(load_table(path).to_pylist())
    }
    table = load_table(out / "stage" / stage / "order-train.parquet").to_pylist()
    return [documents[row["shard"], row["sequence"]] for row in table]


def tokens_in_rows(out: Path, build: str, split: str) -> Counter[Key]:
    found: Counter[Key] = Counter()
    for row in load_lines(out / "build" / build / split / "index.jsonl.zst"):
        for span in row["docs"]:
            found[span["source"], span["doc_id"]] += span["end"] - span["start"]
    return found


def splits_of(out: Path, build: str) -> list[str]:
    return sorted(path.parent.name for path in (out / "build" / build).glob("*/index.jsonl.zst"))


def test_builds_and_totals_are_those_of_the_rows(made: Made) -> None:
    built: set[Key] = set()
    names = [f"{build}-{stage['name']}" for build in BUILDS for stage in STAGES]
    assert sorted(one["name"] for one in made.facts["builds"]) == sorted(names)
    for one in made.facts["builds"]:
        held = [tokens_in_rows(made.out, one["name"], split) for split in splits_of(made.out, one["name"])]
        built |= {key for counts in held for key in counts}
        for source in ("web", "math"):
            (share,) = (row for row in one["shares"]["source"] if row["name"] == source)
            assert share["tokens"] == sum(n for own in held for (name, _), n in own.items() if name == source)
            assert share["docs"] == sum(name == source for own in held for name, _ in own)
            (row,) = (row for row in made.facts["sources"] if row["name"] == source)
            assert row["built"]["tokens"][one["name"]] == share["tokens"]
        assert made.facts["totals"]["documents_built"][one["name"]] == sum(map(len, held))
    assert made.facts["totals"]["documents_in_builds"] == len(built)


def test_shares_of_each_stage_are_those_of_its_rows(made: Made) -> None:
    there = lengths_of(made.out, "train")
    stages = made.facts["mixture"]["splits"]
    assert [one["split"] for one in stages] == [f"train, {stage['name']}" for stage in STAGES]
    for one, stage in zip(stages, STAGES, strict=True):
        rows = tokens_in_rows(made.out, f"warnings-{stage['name']}", "train")
        for source in one["sources"]:
            own = {key: count for key, count in rows.items() if key[0] == source["name"]}
            assert source["tokens"] == sum(own.values())
            assert source["documents"] == len(own)
            assert source["available"] == sum(n for (name, _), n in there.items() if name == source["name"])
            assert source["built"] == pytest.approx(sum(own.values()) / sum(rows.values()))
        assert one["tokens"] == sum(rows.values())


def test_the_flow_into_the_build_of_a_stage_says_of_which_it_is(made: Made) -> None:
    turns, there = turns_of(made.out, "main"), lengths_of(made.out, "train")
    flow = made.facts["flow"]["tokens"]
    assert flow["build"] == "warnings-main"
    links = {(link["from"], link["to"]): link["value"] for link in flow["links"]}
    rows = tokens_in_rows(made.out, "warnings-main", "train")
    assert links["split train", "written train"] == sum(rows.values())
    unused = sum(there.values()) - sum(there[key] for key in set(turns))
    unused += (
        sum(lengths_of(made.out, "valid").values())
        if "valid" not in splits_of(made.out, flow["build"])
        else 0
    )
    assert sum(n for (_, end), n in links.items() if end == "drop unused") == unused
    again = sum(there[key] for key in turns) - sum(there[key] for key in set(turns))
    assert links.get(("repeats train", "split train"), 0) == again
    documents = made.facts["flow"]["documents"]
    labels = {node["id"]: (node["label"], node["value"]) for node in documents["nodes"]}
    assert labels["mixed train"] == ("train, stage main", len(set(turns)))
    left_out = [label for key, label in labels.items() if key.startswith("drop mixture ")]
    assert sum(count for _, count in left_out) == len(there) - len(set(turns)) > 0
    assert all(label.endswith(", in main") for label, _ in left_out), "other stages may have them"
    for one in (flow, documents):
        into, out = Counter[str](), Counter[str]()
        for link in one["links"]:
            into[link["to"]] += link["value"]
            out[link["from"]] += link["value"]
        inner = [node["id"] for node in one["nodes"] if into[node["id"]] and out[node["id"]]]
        assert all(into[key] == out[key] for key in inner)


def test_what_a_build_is_called_is_no_warning(made: Made) -> None:
    told = [one["what"] for one in made.facts["warnings"] if one["where"] == "curriculum"]
    short = []
    for stage in STAGES:
        rows = len(load_lines(made.out / f"build/warnings-{stage['name']}/train/index.jsonl.zst"))
        asked = json.loads((made.out / "curriculum/warnings.json").read_text())["stages"]
        (one,) = (one for one in asked if one["name"] == stage["name"])
        assert one["rows"] == rows
        if rows < round(one["asked"] / one["length"]):
            short.append(f"the stage {stage['name']} has {rows:,} of")
    assert len(told) == len(short)
    assert all(what.startswith(start) for what, start in zip(told, short, strict=True))
    assert not [one for one in made.facts["notes"] if one["where"] == "curriculum"]
    facts = json.loads((made.out / "curriculum/manifest.json").read_text())["facts"]
    assert sorted(facts["builds"]) == sorted(BUILDS)


def test_a_build_of_stages_is_not_called_as_the_manifest_beside_it(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, ("rows", "manifest"))
    with pytest.raises(RecipeError, match=r"builds\[1\]\.name: is the name of a file"):
        tokmill.run(recipe, tmp_path / "out", workers=1)
    assert not (tmp_path / "out/curriculum").exists()
