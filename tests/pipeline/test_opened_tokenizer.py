"""A tokenizer that another process opens while the recipe is examined: the same mistakes are told."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from forked import run_forked
from mill import small_corpus
from trained import train

TEXTS = ["the quick brown fox jumps over the lazy dog " * 3, "and another text of the same few words " * 3]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = train(TEXTS, eos="<|endoftext|>", model="byte_bpe", vocab_size=300)
    path = tmp_path_factory.mktemp("tokenizer") / made.name
    path.write_bytes(made.data)
    return path


WRONG: dict[str, dict[str, Any]] = {
    "eos": {"eos": "<nothing of the kind>"},
    "eos and control": {"eos": "<nothing>", "control": ["<|endoftext|>", "<missing>"]},
    "bos": {"bos": "<nowhere>"},
    "padded": {"padded_vocab_size": 20},
    "damaged": {"path": "damaged.json"},
    "missing": {"path": "missing.json"},
    "pinned": {"sha256": "0" * 64},
    "and a source": {"eos": "<nothing>", "source": "nowhere/*.jsonl"},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
@pytest.mark.usefixtures("forked_workers")
def test_one_worker_and_several_are_told_the_same_mistakes(
    tmp_path: Path, tokenizer: Path, wrong: dict[str, Any]
) -> None:
    (tmp_path / "damaged.json").write_text('{"model": {"type": "BPE"')
    asked = {"path": str(tokenizer), "eos": "<|endoftext|>", **wrong}
    source = asked.pop("source", None)
    recipe = small_corpus(tmp_path, tokenizer=asked)
    if source:
        described = json.loads(recipe.read_text())
        described["sources"][0]["files"] = source
        recipe.write_text(json.dumps(described))
    said = {}
    for workers in (1, 2):
        out = tmp_path / "out"
        done = run_forked(["run", str(recipe), "--out", str(out), "--workers", str(workers)], os.environ)
        assert done.returncode == 1
        assert not out.exists()
        said[workers] = done.stdout + done.stderr
    assert said[1] == said[2]
    assert "tokenizer" in said[1]


ASKING = """
from tokmill.engines.forking import ask_ahead, forked_helper
with forked_helper():
    asked = [("len", [1, 2, 3]), ("exit", 3), ("int", "x"), ("len", "x" * (1 << 15))]
    print([ask_ahead("builtins:" + name, argument).wait() for name, argument in asked])
print(ask_ahead("builtins:len", []))
"""


def test_a_process_that_dies_or_raises_has_no_answer_and_harms_nobody() -> None:
    """The examination opens the file itself then."""
    done = run_forked([], os.environ, code=ASKING)
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["[3, None, None, 32768]", "None"]
