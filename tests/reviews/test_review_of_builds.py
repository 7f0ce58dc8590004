"""Of builds of some sources, a review speaks of the one that has them all, by its name; it knows weights
within a domain: counted here from the index of each build."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from mill import write_problems
from recount import read_rows
from tokmill.artifacts.manifest import Json
from tokmill.errors import InputError

RECORDS = {"web": 60, "math": 15}
LICENSES = {"web": "MIT", "math": "Apache-2.0"}
ALL: Json = {"name": "all", "format": "memmap"}
MATH: Json = {"name": "justmath", "format": "memmap", "sources": ["math"]}
WEB: Json = {"name": "justweb", "format": "memmap", "sources": ["web"]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("builds")
    for number, (name, count) in enumerate(RECORDS.items()):
        write_problems(directory / f"{name}.jsonl", count, seed=number + 1)
    return directory


def run_of(place: Path, builds: list[Json], domain: str = "", **sections: Any) -> Path:
    sources = [
        {
            "name": name,
            "domain": domain or name,
            "license": LICENSES[name],
            "files": f"{name}.jsonl",
            "template": "{question} {answer}",
            "fields": {"id": "id"},
        }
        for name in RECORDS
    ]
    recipe = {
        "name": f"of_{domain}",
        "sources": sources,
        "split": {"valid_fraction": "0.1"},
        "tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<|endoftext|>"},
        "pack": {"length": 48},
        "builds": builds,
        **sections,
    }
    (place / "recipe.yaml").write_text(json.dumps(recipe))
    return mill.run(place / "recipe.yaml", workers=1).out


def tokens_in(build: Path, *splits: str) -> dict[str, Counter[str]]:
    """By source and document."""
    found: dict[str, Counter[str]] = {name: Counter() for name in RECORDS}
    for split in splits:
        for _, pieces in read_rows(build / split):
            for piece in pieces:
                found[piece["source"]][piece["doc_id"]] += piece["end"] - piece["start"]
    return found


@pytest.mark.parametrize("builds", [[MATH, ALL], [ALL, MATH], [MATH, WEB], [WEB, MATH]])
def test_a_review_speaks_of_the_build_of_all_sources_and_names_it(place: Path, builds: list[Json]) -> None:
    """Where there is none, of the one with most tokens."""
    main = "all" if ALL in builds else "justweb"
    run = run_of(place, builds)
    found = mill.review(run, no_verify=True)
    (sources,) = (one for one in found.questions if "Which sources" in one.question)
    built = tokens_in(run / "build" / main, "train", "valid")
    for name in RECORDS:
        assert sources.figures[name]["built_documents"] == len(built[name])
        assert sources.figures[name]["built_tokens"] == built[name].total()
        assert sources.figures[name]["licenses"] == (
            {LICENSES[name]: len(built[name])} if built[name] else {}
        )
        (said,) = (one for one in sources.says if one.startswith(f"{name} "))
        assert f"with {built[name].total():,} tokens in build {main}" in said
    train = tokens_in(run / "build" / main, "train")
    total = sum(count.total() for count in train.values())
    most = max(count for counts in train.values() for count in counts.values())
    largest = [
        f"document {source}/{name}"
        for source, counts in train.items()
        for name, count in counts.items()
        if count == most
    ]
    (giant,) = (one for one in found.findings if one.check == "giant_document")
    assert giant.about in largest
    assert giant.says == (
        f"{most:,} of {total:,} training tokens ({100 * most / total:.2f} %) in build {main} are one document"
    )
    drifted = [one.says for one in found.findings if one.check == "drift"]
    assert bool(drifted) == (main == "all"), "the sources come one after the other"
    assert all(f"in the first half of build {main}," in says for says in drifted)


def test_what_can_be_built_knows_the_weights_within_a_domain(place: Path) -> None:
    """So much is built, and no more; the part of a source is rounded down."""

    def made(**target: Any) -> Path:
        weights = {
            "weights": {"d": "1"},
            "sources": {"d": {"web": "0.1", "math": "0.9"}},
            "held_out": "whole",
        }
        return run_of(place, [ALL], "d", mixture={**weights, **target})

    (size,) = (one for one in mill.review(made(), no_verify=True).questions if "large enough" in one.question)
    reach = size.figures["reach_without_repeats"]
    made(tokens=reach)
    with pytest.raises(InputError, match="exhausted"):
        made(tokens=reach + 3)


def test_what_is_left_out_for_balance_is_told_of_each_build(place: Path) -> None:
    builds = [ALL, {"name": "wide", "format": "memmap", "pack": {"length": 96}}]
    run = run_of(place, builds, mixture={"balance": "smallest", "held_out": "whole"})
    (balance,) = (one for one in mill.review(run, no_verify=True).questions if "in balance" in one.question)
    told = balance.figures["left_out"]
    assert set(told) == {"build all", "build wide"}
    for name, length in (("all", 48), ("wide", 96)):
        rows = Counter(pieces[0]["source"] for _, pieces in read_rows(run / f"build/{name}/train"))
        assert told[f"build {name}"]["rows"] == rows
        assert len(set(rows.values())) == 1
        came = told[f"build {name}"]["of_tokens"]
        # beside those that are left out and the tails of two domains all is in rows
        assert 0 <= came - told[f"build {name}"]["tokens"] - length * rows.total() < 2 * length
