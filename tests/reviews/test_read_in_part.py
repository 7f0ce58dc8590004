"""A limit stops reading somewhere in a piece of a source: what is told of its bytes is a bound."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

import tokmill as mill
from mill import small_corpus, tokmill
from tokmill.cli import main

_TOLD = r"at most (\S+) ?% of the (?:source read|files was read)"


def test_what_was_read_of_a_source_is_told_as_a_bound(tmp_path: Path) -> None:
    recipe = small_corpus(tmp_path, 60)
    asked = json.loads(recipe.read_text())
    asked["sources"][0]["limit"] = {"docs": 20}
    recipe.write_text(json.dumps(asked))
    run = mill.run(recipe, workers=1).out
    lines = (tmp_path / "problems.jsonl").read_bytes().splitlines(keepends=True)
    read = 100 * sum(map(len, lines[:20])) / sum(map(len, lines))
    result = CliRunner().invoke(main, ["review", str(run), "--json", "--no-verify"])
    found = json.loads(result.stdout)
    (finding,) = (one for one in found["findings"] if one["check"] == "head_sampling")
    scanned = finding["evidence"][0]
    assert scanned["unit"] == "% of the bytes, at most"
    assert read < scanned["value"] <= 100
    (answer,) = (one for one in found["questions"] if "Which sources" in one["question"])
    assert "an unknown share of the source read" in " ".join(answer["says"])  # a small file is read at once


def test_a_sample_of_a_head_says_that_it_is_one(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"{at} {'word ' * at}"}).encode() + b"\n" for at in range(1, 61)]
    (tmp_path / "texts.jsonl").write_bytes(b"".join(lines))
    words = ["sample", tmp_path / "texts.jsonl", "--method", "head", "--k", "20"]
    made = tokmill(*words, "--out", tmp_path / "some.jsonl")
    assert made.returncode == 0, made.stderr
    assert "an unknown share of the files was read" in " ".join(made.stdout.split())
