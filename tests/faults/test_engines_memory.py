"""Memory: a bound holds, and ten times the input needs no more of it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from faults.disk import checked_digest
from mill import small_corpus, tokmill, write_recipe
from tokmill.demos.problems import generate_problems

MAIN = "from tokmill.cli import main; main()"
SAMPLE_SECONDS = 0.05


def resident_bytes(process: psutil.Process) -> int:
    """Of a process and all below it. A child that has yet to become another program is its parent still."""
    total = 0
    with contextlib.suppress(psutil.Error):
        command = process.cmdline()
        total += process.memory_info().rss
        for child in process.children(recursive=True):
            with contextlib.suppress(psutil.Error):
                total += child.memory_info().rss if child.cmdline() != command else 0
    return total


def run_watched(recipe: Path, out: Path, *options: str) -> tuple[int, str]:
    """Peak of resident memory, and what was said."""
    command = [sys.executable, "-c", MAIN, "run", str(recipe), "--out", str(out), *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as driver:
        watched, peak = psutil.Process(driver.pid), 0
        while True:
            peak = max(peak, resident_bytes(watched))
            with contextlib.suppress(subprocess.TimeoutExpired):
                driver.wait(SAMPLE_SECONDS)
                break
        assert driver.stderr is not None
        said = driver.stderr.read()
    assert driver.returncode == 0, said
    return peak, said


@pytest.mark.slow_faults
def test_a_run_stays_within_its_memory(tmp_path: Path) -> None:
    dedup = {"near": {}, "window": {"policy": "trim"}, "partitions": 2}
    recipe = small_corpus(tmp_path, problems=6000, shards={"megabytes": 1}, dedup=dedup)
    peak, said = run_watched(recipe, tmp_path / "bounded", "--workers", "5", "--memory", "1.6GB")
    assert "2 of 5 workers fit into 1.6 GB" in said
    assert peak < 1_600_000_000
    environment = json.loads((tmp_path / "bounded/manifest.json").read_bytes())["environment"]
    assert environment["workers"] == 2
    one, _ = run_watched(recipe, tmp_path / "one", "--workers", "5", "--memory", "0.7GB")
    assert one < 700_000_000
    assert checked_digest(tmp_path / "one") == checked_digest(tmp_path / "bounded")


def test_memory_for_less_than_one_worker_is_refused(tmp_path: Path) -> None:
    recipe = small_corpus(tmp_path, problems=20, tokenizer=None, builds=None)
    refused = tokmill("run", recipe, "--memory", "300MB")
    assert refused.returncode == 1
    assert "RecipeError --memory: 0.3 GB is too little for one worker" in refused.stderr


def write_documents(path: Path, count: int) -> None:
    """As long as pages of the web: twenty problems, some 8 kB, in each."""
    problems = [f"{p['question']}\n\n{p['answer']}" for p in generate_problems(20 * count, 1)]
    texts = ["\n\n".join(problems[start : start + 20]) for start in range(0, len(problems), 20)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def peak_of(directory: Path, documents: int, workers: str) -> int:
    train = {"model": "bpe", "vocab_size": 500, "sample_megabytes": 1}
    sections: dict[str, Any] = {
        "sources": [{"name": "pages", "domain": "web", "files": "pages.jsonl"}],
        "shards": {"megabytes": 1},
        "dedup": {"near": {}, "partitions": 4},
        "tokenizer": {"train": train, "eos": "<|endoftext|>"},
        "pack": {"length": 2048},  # of a row a place is kept
    }
    directory.mkdir()
    write_documents(directory / "pages.jsonl", documents)
    peak, _ = run_watched(write_recipe(directory, **sections), directory / "out", "--workers", workers)
    return peak


@pytest.mark.slow_faults
@pytest.mark.parametrize("workers", ["1", "2"])
def test_ten_times_the_input_needs_no_more_memory(tmp_path: Path, workers: str) -> None:
    """What grows is what is kept of a document (its place, its length, its verdict), not its text. The
    smaller one is large enough to fill what is filled before it is written, 64 MB of a build among it."""
    small = peak_of(tmp_path / "small", 5_000, workers)
    large = peak_of(tmp_path / "large", 50_000, workers)
    text = (tmp_path / "large/pages.jsonl").stat().st_size
    assert text > 300_000_000
    assert large < 1.1 * small, f"{small} for a tenth of {text} bytes of text, {large} for the whole"
