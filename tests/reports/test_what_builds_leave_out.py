"""Runs whose builds have less than was kept: the report and the cards, counted again from the written files.

    few      a build of a source that is empty, one whose rows are longer than its held-out splits, `limit`
    cut      rows that are much shorter than documents, a domain that repeats
    stages   documents that come again within a stage, and in a later one

Counted from order files, lengths, indexes and manifests by json, pyarrow and Zstandard's own library.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

import tokmill
from reviews.reviewed import WORDS
from written import load_lines, load_table

Json = dict[str, Any]
EOS = {"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<|endoftext|>"}


class Made(NamedTuple):
    out: Path
    facts: Json
    card: str


def write_source(directory: Path, name: str, words: list[int]) -> Json:
    rng = random.Random(name)
    records = [
        {
            "id": f"{name}-{n}",
            "text": " ".join(f"{rng.choice(WORDS)}{rng.randrange(999)}" for _ in range(many)),
        }
        for n, many in enumerate(words)
    ]
    (directory / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return {"name": name, "domain": name, "license": "MIT", "files": f"{name}.jsonl", "fields": {"id": "id"}}


def made_of(directory: Path, **recipe: Any) -> Made:
    path = directory / "recipe.yaml"
    path.write_text(json.dumps({"name": directory.name, "seed": 3, "tokenizer": EOS, **recipe}))
    out = tokmill.run(path, directory / "out", workers=1).out
    made = tokmill.report(out, cards=True)
    return Made(out, json.loads(made.figures.read_bytes()), made.cards[0].read_text())


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Made:
    directory = tmp_path_factory.mktemp("few")
    one = write_source(directory, "one", [30] * 40)
    two = write_source(directory, "two", [12] * 15)
    none = write_source(directory, "none", [0] * 4)
    length = {"layout": "concat", "length": 2000}
    return made_of(
        directory,
        sources=[{**one, "limit": {"docs": 30}}, two, none],
        filters=[{"measure": "chars", "min": 5, "reason": "too_short"}],
        split={"method": "counts", "counts": {"valid": 4, "test": 3}},
        pack={"layout": "concat", "length": 256},
        builds=[
            {"name": "nothing", "format": "memmap", "sources": ["none"]},
            {"name": "empty", "format": "parquet", "sources": ["none"]},
            {"name": "long", "format": "parquet", "pack": length},
            {"name": "saved", "format": "arrow", "pack": length},
            {"name": "short", "format": "parquet"},
        ],
    )


@pytest.fixture(scope="module")
def cut(tmp_path_factory: pytest.TempPathFactory) -> Made:
    directory = tmp_path_factory.mktemp("cut")
    many, rare = write_source(directory, "many", [60] * 60), write_source(directory, "rare", [60] * 12)
    return made_of(
        directory,
        sources=[many, rare],
        split={"valid_fraction": "0.15"},
        mixture={
            "weights": {"many": "0.3", "rare": "0.7"},
            "tokens": 40_000,
            "exhausted": "repeat",
            "max_epochs": 8,
        },
        pack={"layout": "pad", "length": 64},
        builds=[{"name": "padded", "format": "memmap"}],
    )


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Made:
    directory = tmp_path_factory.mktemp("stages")
    many = write_source(directory, "many", [20, 60, 90] * 14)
    rare = write_source(directory, "rare", [20, 90] * 5)
    return made_of(
        directory,
        sources=[many, rare],
        split={"valid_fraction": "0.1"},
        mixture={
            "weights": {"many": "0.6", "rare": "0.4"},
            "held_out": "whole",
            "exhausted": "repeat",
            "max_epochs": 5,
            "batch_tokens": 512,
            "stages": [
                {"name": "main", "steps": 20},
                {"name": "long", "tokens": 2048, "min_tokens": 200},
                {"name": "last", "steps": 6, "weights": {"many": "0.2", "rare": "0.8"}},
            ],
        },
        pack={"layout": "concat", "length": 64},
        builds=[{"name": "rows", "format": "memmap"}],
    )


def turns_of(step: Path, split: str) -> list[tuple[int, int]]:
    table = load_table(step / f"order-{split}.parquet")
    return list(zip(*(table.column(name).to_pylist() for name in ("shard", "sequence")), strict=True))


def tokens_of(out: Path, split: str) -> dict[tuple[int, int], int]:
    """Of each document, by shard and sequence."""
    return {
        (int(path.stem.removeprefix("lengths-")), sequence): row["tokens"]
        for path in sorted((out / "tokens" / split).glob("*/lengths-*.parquet"))
        for sequence, row in enumerate(load_table(path).to_pylist())
    }


def source_of_shard(out: Path) -> dict[int, str]:
    return {
        int(path.stem.removeprefix("lengths-")): path.parent.name
        for split in ("train", "valid", "test")
        for path in (out / "tokens" / split).glob("*/lengths-*.parquet")
    }


# --- the card ---


def configs_of(card: str) -> dict[str, dict[str, str]]:
    matter = yaml.safe_load(card.split("---\n")[1])
    return {
        config["config_name"]: {part["split"]: part["path"] for part in config["data_files"]}
        for config in matter["configs"]
    }


def test_the_card_names_no_split_that_has_no_row(few: Made) -> None:
    configs = configs_of(few.card)
    assert {name: list(splits) for name, splits in configs.items()} == {
        "long": ["train"],
        "short": ["train", "validation", "test"],
    }
    assert "by their paths: `build/saved`." in few.card, "the files of all configs are of one kind"
    files = [path.relative_to(few.out).as_posix() for path in few.out.rglob("*") if path.is_file()]
    for splits in configs.values():
        assert all(any(fnmatch(file, pattern) for file in files) for pattern in splits.values())


def test_every_config_of_the_card_is_loaded(few: Made, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the card is read with datasets")
    (few.out / "README.md").write_text(few.card)
    try:
        for name, splits in configs_of(few.card).items():
            loaded = datasets.load_dataset(str(few.out), name, cache_dir=str(tmp_path))
            assert {split: len(rows) for split, rows in loaded.items()} == {
                split: len(load_lines((few.out / path).parent / "index.jsonl.zst"))
                for split, path in splits.items()
            }
    finally:
        (few.out / "README.md").unlink()


def test_a_saved_dataset_without_held_out_rows_is_loaded(tmp_path: Path) -> None:
    """There the splits have files, and nothing in them."""
    datasets = pytest.importorskip("datasets", reason="the card is read with datasets")
    made = made_of(
        tmp_path,
        sources=[write_source(tmp_path, "one", [30] * 40)],
        split={"method": "counts", "counts": {"valid": 4}},
        pack={"layout": "concat", "length": 2000},
        builds=[{"name": "saved", "format": "arrow"}],
    )
    assert list((made.out / "build/saved/valid").glob("*.arrow"))
    (made.out / "README.md").write_text(made.card)
    loaded = datasets.load_dataset(str(made.out), "saved", cache_dir=str(tmp_path / "cache"))
    assert list(loaded) == ["train"]


def left_out_of(card: str) -> Counter[tuple[str, str, str]]:
    section = card.split("left out of the training data")[1].split("\n\n")[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines()[2:]]
    return Counter(
        {
            (step.replace("\\", ""), split, reason): int(docs.replace(",", ""))
            for step, split, reason, docs in rows
        }
    )


def test_the_card_says_what_a_mixture_left_out(cut: Made) -> None:
    expected = Counter(
        {
            ("mixture", split, "over budget"): len(
                tokens_of(cut.out, split).keys() - set(turns_of(cut.out / "mixture", split))
            )
            for split in ("train", "valid")
        }
    )
    assert left_out_of(cut.card) == +expected
    assert expected["mixture", "train", "over budget"] > 20
    assert "Nothing was left out" not in cut.card


def test_the_card_says_what_rows_left_out(few: Made) -> None:
    expected = Counter[tuple[str, str, str]]()
    for name in ("long", "saved", "short"):
        for split in ("train", "valid", "test"):
            path = few.out / f"build/{name}/{split}/index.jsonl.zst"
            rows = list(load_lines(path)) if path.is_file() else []
            in_rows = {span["doc_id"] for row in rows for span in row["docs"]}
            expected[f"build/{name}", split, "tail"] = len(tokens_of(few.out, split)) - len(in_rows)
    assert left_out_of(few.card) == +expected
    assert expected["build/long", "test", "tail"] == 3


def test_the_card_says_what_each_stage_left_out(stages: Made) -> None:
    documents = tokens_of(stages.out, "train")
    left = left_out_of(stages.card)
    for stage in ("main", "long", "last"):
        unused = documents.keys() - set(turns_of(stages.out / "stage" / stage, "train"))
        told = {reason: docs for (step, _, reason), docs in left.items() if step == f"stage/{stage}"}
        assert sum(told.values()) == len(unused)
        if stage == "long":
            assert told["left out by stage"] == sum(tokens < 200 for tokens in documents.values()) > 0


def test_the_card_has_no_table_without_a_row(few: Made) -> None:
    lines = few.card.splitlines()
    heads = [at for at, line in enumerate(lines) if line.startswith("| ---")]
    assert heads
    assert all(at + 1 < len(lines) and lines[at + 1].startswith("|") for at in heads)


# --- the mixture ---


def test_epochs_are_of_whole_documents_whatever_rows_cut_off(cut: Made) -> None:
    lengths, turns = tokens_of(cut.out, "train"), turns_of(cut.out / "mixture", "train")
    sources = source_of_shard(cut.out)
    rows = list(load_lines(cut.out / "build/padded/train/index.jsonl.zst"))
    built = {(row["row"], span["doc_id"]): span["source"] for row in rows for span in row["docs"]}
    assert Counter(built.values()) == Counter(sources[shard] for shard, _ in turns), "every turn has its row"
    scheduled = json.loads((cut.out / "mixture/manifest.json").read_text())["facts"]["splits"]["train"]
    (train,) = (split for split in cut.facts["mixture"]["splits"] if split["split"] == "train")
    for told in (*train["sources"], *train["domains"]):
        name = told["name"]
        read = sum(lengths[turn] for turn in turns if sources[turn[0]] == name)
        available = sum(tokens for (shard, _), tokens in lengths.items() if sources[shard] == name)
        assert told["read"] == read
        assert told["epochs"] == pytest.approx(read / available, abs=1e-5)
        assert told["epochs"] == pytest.approx(scheduled["sources"][name]["epochs"], abs=1e-5)
        assert told["tokens"] == sum(
            s["end"] - s["start"] for row in rows for s in row["docs"] if s["source"] == name
        )
        assert told["tokens"] < told["read"]


def test_many_epochs_are_a_warning_where_rows_are_short(cut: Made) -> None:
    (rare,) = (
        source
        for split in cut.facts["mixture"]["splits"]
        for source in split["sources"]
        if split["split"] == "train" and source["name"] == "rare"
    )
    assert rare["tokens"] / rare["available"] < 4 < rare["epochs"]
    told = f"rare is read {rare['epochs']:.2f} times in train"
    assert {"where": "mixture", "what": told} in cut.facts["warnings"]
    found = tokmill.review(cut.out).as_json()
    assert f"{rare['epochs']:.2f}"[:3] in json.dumps(found["findings"])


def test_a_source_with_more_than_its_share_had_not_too_little(tmp_path: Path) -> None:
    """All of it is read, and the rows cut the others off."""
    brief, wordy = write_source(tmp_path, "brief", [9] * 20), write_source(tmp_path, "wordy", [200] * 40)
    made = made_of(
        tmp_path,
        sources=[brief, wordy],
        split={"valid_fraction": "0.1"},
        mixture={
            "weights": {"brief": "0.2", "wordy": "0.8"},
            "tokens": 20_000,
            "exhausted": "renormalize",
        },
        pack={"layout": "pad", "length": 64},
        builds=[{"name": "padded", "format": "memmap"}],
    )
    train = next(split for split in made.facts["mixture"]["splits"] if split["split"] == "train")
    built = {source["name"]: source["built"] for source in train["sources"]}
    assert "brief" in train["ran_out"]
    assert built["brief"] > 0.21
    told = [one["what"] for one in (*made.facts["warnings"], *made.facts["notes"])]
    assert not [what for what in told if what.startswith("train: brief had too little")]


def test_repeats_of_stages_are_turns_beyond_the_first_of_all_stages(stages: Made) -> None:
    turns = [
        turn for stage in ("main", "long", "last") for turn in turns_of(stages.out / "stage" / stage, "train")
    ]
    within = sum(
        len(own) - len(set(own))
        for own in (turns_of(stages.out / "stage" / stage, "train") for stage in ("main", "long", "last"))
    )
    mixture = stages.facts["mixture"]
    assert mixture["repeats"] == len(turns) - len(set(turns)) > within > 0
    assert {split["split"]: split["build"] for split in mixture["splits"]} == {
        "train, main": "rows-main",
        "train, long": "rows-long",
        "train, last": "rows-last",
    }
    page = (stages.out / "report.html").read_text()
    assert "Kept, and left out of the training data" in page
    assert "in rows of the builds rows-main, rows-long, rows-last" in page


# --- the flow, the totals, the notes ---


def test_the_flow_goes_into_a_build_of_all_sources(few: Made) -> None:
    assert few.facts["flow"]["tokens"]["build"] == "long"
    encoded = sum(sum(tokens_of(few.out, split).values()) for split in ("train", "valid", "test"))
    assert flow_ends(few.facts["flow"]["tokens"]) == encoded


def test_the_flow_of_splits_that_a_build_has_not_ends_beside_it(tmp_path: Path) -> None:
    one, none = write_source(tmp_path, "one", [30] * 40), write_source(tmp_path, "none", [0] * 4)
    made = made_of(
        tmp_path,
        sources=[one, none],
        filters=[{"measure": "chars", "min": 5, "reason": "too_short"}],
        split={"method": "counts", "counts": {"valid": 4, "test": 3}},
        pack={"layout": "concat", "length": 256},
        builds=[{"name": "nothing", "format": "memmap", "sources": ["none"]}],
    )
    links = {(link["from"], link["to"]): link["value"] for link in made.facts["flow"]["tokens"]["links"]}
    for split in ("train", "valid", "test"):
        encoded = sum(tokens_of(made.out, split).values())
        assert links["source one", f"split {split}"] == links[f"split {split}", "drop unused"] == encoded > 0


def flow_ends(flow: Json) -> int:
    """What flows into nodes that nothing leaves; no split may be one."""
    starts = {link["from"] for link in flow["links"]}
    ends = [link for link in flow["links"] if link["to"] not in starts]
    assert not [link for link in ends if link["to"].startswith("split ")]
    return sum(link["value"] for link in ends)


def test_a_build_without_documents_has_none(few: Made) -> None:
    totals = few.facts["totals"]
    expected = {}
    for build in sorted((few.out / "build").iterdir()):
        rows = [row for path in build.glob("*/index.jsonl.zst") for row in load_lines(path)]
        expected[build.name] = len({span["doc_id"] for row in rows for span in row["docs"]})
    assert totals["documents_built"] == expected
    assert totals["tokens_written"].keys() == expected.keys()
    assert expected["nothing"] == expected["empty"] == 0


def test_reading_that_stopped_is_told_in_records(few: Made) -> None:
    (note,) = (one["what"] for one in few.facts["notes"] if one["where"] == "ingest/one")
    assert "30 records" in note
    assert "100.00 % of its bytes were read" not in note
