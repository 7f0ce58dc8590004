"""`--seed`: every verb that draws or orders takes one;
the same seed gives the same bytes, another one others."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from mill import tokmill, write_problems
from tokmill.cli import main

# What each of these draws, or puts into an order: records of a sample, shards, documents of a mixture, a
# tokenizer's text; normalize and filter write it down, for whoever goes on from there. All else is drawn by
# the seed of a recipe.
DRAWING = {
    "sample": [],
    "select": [],
    "encode": [],
    "layouts": [],
    "shard": [],
    "build": [],
    "normalize": [],
    "filter": [],
    "tokenizer": ["train"],
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("seeds")
    for name, seed in (("a", 1), ("b", 2)):
        raw = write_problems(directory / f"{name}.jsonl", 150, seed)
        records = [json.loads(line) for line in raw.read_text().splitlines()]
        rows = [{"id": f"{name}{n}", "text": f"{r['question']} {r['answer']}"} for n, r in enumerate(records)]
        raw.write_text("".join(json.dumps(row) + "\n" for row in rows))
    datasets = "".join(
        f"- {{name: {name}, files: {name}.jsonl, weight: 0.5, samples: 60}}\n" for name in "ab"
    )
    for seed in (5, 6):
        (directory / f"mixture-{seed}.yaml").write_text(f"seed: {seed}\ndatasets:\n{datasets}")
    made = tokmill(
        "tokenizer", "train", "--manifest", directory / "mixture-5.yaml", "--vocab-size", "300",
        "--model", "byte_bpe", "--out", directory / "tok",
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    return directory


TOKENS = {
    "encode": ("--tokenizer", "tok/tokenizer.json", "--out"),
    "pack": ("--tokenizer", "tok/tokenizer.json", "--length", "64", "--out"),
    "shard": ("--tokenizer", "tok/tokenizer.json", "--length", "64", "--out"),
    "build": ("--tokenizer", "tok/tokenizer.json", "--length", "64", "--tokens", "3k", "--out"),
}


def written(corpus: Path, verb: str, mixture: str, out: Path, *seed: str) -> bytes:
    listed = str(corpus / mixture)
    before = [listed] if verb in ("encode", "shard") else ["--manifest", listed]
    before = ["megatron", *before] if verb == "build" else before
    options = [str(corpus / word) if word.startswith("tok/") else word for word in TOKENS[verb]]
    done = tokmill(verb, *before, *options, out, *seed)
    assert done.returncode == 0, done.stderr
    files = sorted(path for path in out.rglob("*") if path.is_file() and path.suffix != ".json")
    assert files
    return b"".join(path.read_bytes() for path in files)


@pytest.mark.parametrize("verb", TOKENS)
def test_a_seed_on_the_command_line_stands_for_that_of_the_mixture(
    corpus: Path, tmp_path: Path, verb: str
) -> None:
    own = written(corpus, verb, "mixture-5.yaml", tmp_path / "own")
    other = written(corpus, verb, "mixture-6.yaml", tmp_path / "other")
    assert written(corpus, verb, "mixture-5.yaml", tmp_path / "said", "--seed", "6") == other
    assert own != other


def test_every_verb_that_draws_takes_a_seed() -> None:
    context = click.Context(main)
    for verb, parts in DRAWING.items():
        command = main.get_command(context, verb)
        for part in parts:
            assert isinstance(command, click.Group)
            command = command.get_command(context, part)
        assert command is not None
        assert "seed" in {option.name for option in command.params}, verb
