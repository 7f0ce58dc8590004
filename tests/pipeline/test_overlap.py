"""Steps that do not need each other: neither waits for the other, whatever happens to their workers.

ingest/slow   ├────────────── waits for the manifest of clean/quick ──────┤ clean/slow ├─┐
ingest/quick  ├──┤ clean/quick ├─┤                                                      └ dedup …
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from faults.disk import checked_digest
from tokmill.artifacts.progress import Silence

# Acts in a worker of the run into `two` alone: the driver reads the first records too.
HOOKS = """
import json, os, signal, time

def read(path):
    out, died = path.parent / "two", path.parent / "died"
    lock = out / ".lock"
    if lock.exists() and json.loads(lock.read_bytes())["pid"] != os.getpid():
        until = time.monotonic() + 60
        while not (out / "clean/quick/manifest.json").exists():
            if time.monotonic() > until:
                raise TimeoutError("a step waits for one that it does not need")
            time.sleep(0.01)
        if (path.parent / "dies").exists() and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
    for line in path.read_text().splitlines():
        yield {"text": line}
"""


class Said(Silence):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, message: str) -> None:
        self.lines.append(message)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    (tmp_path / "hooks.py").write_text(HOOKS)
    (tmp_path / "slow.txt").write_text(
        "".join(f"The mill turns slowly, {number} times.\n" for number in range(40))
    )
    (tmp_path / "quick.jsonl").write_text(
        "".join(json.dumps({"text": f"Quick is the river, {number}."}) + "\n" for number in range(40))
    )
    written: dict[str, Any] = {
        "name": "overlap",
        "sources": [
            {"name": "slow", "files": "slow.txt", "reader": "hooks.py:read"},
            {"name": "quick", "files": "quick.jsonl"},
        ],
        "tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<|endoftext|>"},
        "pack": {"length": 16},
        "builds": [{"name": "rows", "format": "memmap"}],
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(written))  # JSON is YAML
    return path


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("dies", [False, True])
def test_a_step_goes_on_while_another_one_is_at_work(recipe: Path, dies: bool) -> None:
    if dies:
        (recipe.parent / "dies").touch()
    said = Said()
    out = mill.run(recipe, recipe.parent / "two", workers=2, progress=said).out
    assert said.lines.count("a worker died; its tasks run again") == dies
    assert (recipe.parent / "died").exists() == dies
    alone = mill.run(recipe, recipe.parent / "one", workers=1).out
    assert checked_digest(out) == checked_digest(alone)


@pytest.mark.usefixtures("forked_workers")
def test_steps_are_told_in_the_order_of_the_plan_whichever_is_done_first(recipe: Path) -> None:
    made = mill.run(recipe, recipe.parent / "two", workers=2)
    planned = list(mill.plan(recipe, recipe.parent / "two").steps)
    assert made.ran == planned
    assert mill.run(recipe, recipe.parent / "two", workers=2).skipped == planned
