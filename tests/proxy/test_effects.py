"""Ablations find what was planted, and nothing where nothing was.

0.2M weights, 200 steps of 2,048 tokens, five seeds, 360 kB of made English: its grammar is learnt in that
time. On encyclopedic prose as much training comes to 3.3 bits per byte, and two seeds of one build differ by
0.1 of them: no effect could be told.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")

import tokmill  # noqa: E402
from tokmill.artifacts.progress import Silence  # noqa: E402
from tokmill.demos.corpus import generate_pairs, write_passage  # noqa: E402
from tokmill.demos.problems import Draw  # noqa: E402
from tokmill.proxy.comparing import compare  # noqa: E402
from tokmill.proxy.targets import open_target  # noqa: E402
from tokmill.proxy.trials import Asked, run_trials  # noqa: E402

pytestmark = pytest.mark.slow_training

Records = list[dict[str, str]]
QUICK: Any = {"size": "0.2M", "tokens": 200 * 2048, "batch_tokens": 2048, "rate": 0.004, "device": "cpu"}


def english() -> Records:
    return [{"id": f"made-{at}", "text": write_passage(Draw(f"made {at}"), 2)} for at in range(500)]


def is_chosen(record: dict[str, str], share: float) -> bool:
    return int(hashlib.sha256(record["id"].encode()).hexdigest()[:8], 16) < share * 2**32


def shuffled(records: Records) -> Records:
    """30 % of the documents have their words in another order."""
    made = []
    for record in records:
        words = record["text"].split()
        if is_chosen(record, 0.3):
            random.Random(record["id"]).shuffle(words)
            record = {**record, "text": " ".join(words)}
        made.append(record)
    return made


def repeated(records: Records) -> Records:
    """As many documents, an eighth of them eight times each. Copies have ids of their own."""
    return [
        {"id": f"{record['id']}-{copy}", "text": record["text"]}
        for record in records[: len(records) // 8]
        for copy in range(8)
    ]


def mixed(records: Records) -> Records:
    """Half of the documents are in French instead."""
    pairs = [pair["fr"] for pair in generate_pairs(3040, 1)]
    french = ({"id": f"fr-{at}", "text": " ".join(pairs[at : at + 8])} for at in range(0, 3040, 8))
    return [next(french) if is_chosen(record, 0.5) else record for record in records]


def run_of(directory: Path, records: Records, tokenizer: Path | None = None) -> Path:
    directory.mkdir(parents=True)
    (directory / "texts.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    section: Any = {"eos": "<|endoftext|>"}
    section |= (
        {"train": {"model": "byte_bpe", "vocab_size": 512}} if tokenizer is None else {"path": str(tokenizer)}
    )
    recipe = {
        "name": directory.name,
        "sources": [{"name": "prose", "domain": "prose", "files": str(directory / "texts.jsonl")}],
        "dedup": {"exact": False},
        "split": {"valid_fraction": "0.1"},
        "tokenizer": section,
        "pack": {"length": 128},
        "builds": [{"name": "rows", "format": "memmap"}],
    }
    tokmill.run(recipe, directory / "out", workers=1)
    return directory / "out"


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(tmp_path_factory.mktemp("effects") / "clean", english())


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Those of the clean build are trained once."""
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("plant", [shuffled, repeated, mixed])
def test_a_planted_effect_is_found(plant: Callable[[Records], Records], clean: Path, models: Path) -> None:
    worse = run_of(
        clean.parents[1] / plant.__name__,
        plant(english()),
        clean / "tokenizer/tokenizer.json",
    )
    result = tokmill.ablate([clean, worse], **QUICK, seeds=5, held_out_bytes=20_000, out=models)
    (found,) = result.differences
    assert found.verdict == "worse", found
    assert found.low is not None
    assert found.low > 0


def test_seeds_of_one_build_give_hardly_an_alarm(clean: Path, models: Path) -> None:
    """Twenty-four models of one build. Forty times, eight of them are drawn and compared four to four, as two
    builds would be: pairs share models, but no pair has one on both sides. Fewer than 5 % are alarms."""
    target = open_target("clean", clean / "build/rows")
    asked = Asked("0.2M", 60 * 2048, 24, 0.004, batch_tokens=2048, device="cpu", held_out_bytes=20_000)
    scores = run_trials([target], asked, models, Silence()).scores
    draw = random.Random(1)
    alarms = 0
    for _ in range(40):
        seeds = draw.sample(range(24), 8)
        pair = {
            place: {
                "a": [by_target["clean"][seed] for seed in seeds[:4]],
                "b": [by_target["clean"][seed] for seed in seeds[4:]],
            }
            for place, by_target in scores.items()
        }
        alarms += any(one.verdict != "noise" for one in compare(pair, confidence=0.99))
    assert alarms / 40 < 0.05
    assert len({round(value, 12) for by in scores.values() for value in by["clean"]}) == 24
