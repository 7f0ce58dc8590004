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

from mill import digest_of, small_corpus, tokmill

MAIN = "from tokmill.cli import main; main()"
SAMPLE_SECONDS = 0.05


def resident_bytes(process: psutil.Process) -> int:
    """Of a process and all below it; pages that they share count once for each."""
    total = 0
    with contextlib.suppress(psutil.Error):
        for member in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                total += member.memory_info().rss
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
    assert digest_of(tmp_path / "one") == digest_of(tmp_path / "bounded")


def test_memory_for_less_than_one_worker_is_refused(tmp_path: Path) -> None:
    recipe = small_corpus(tmp_path, problems=20, tokenizer=None, builds=None)
    refused = tokmill("run", recipe, "--memory", "300MB")
    assert refused.returncode == 1
    assert "RecipeError --memory: 0.3 GB is too little for one worker" in refused.stderr


def peak_of(directory: Path, problems: int, workers: str, dedup: dict[str, Any]) -> int:
    train = {"model": "bpe", "vocab_size": 500, "sample_megabytes": 1}
    tokenizer = {"train": train, "eos": "<|endoftext|>"}
    recipe = small_corpus(directory, problems, shards={"megabytes": 1}, dedup=dedup, tokenizer=tokenizer)
    peak, _ = run_watched(recipe, directory / "out", "--workers", workers)
    return peak


@pytest.mark.slow_faults
@pytest.mark.parametrize("workers", ["1", "2"])
def test_ten_times_the_input_needs_no_more_memory(tmp_path: Path, workers: str) -> None:
    dedup = {"exact": True, "partitions": 4}
    small = peak_of(tmp_path / "small", 15_000, workers, dedup)
    large = peak_of(tmp_path / "large", 150_000, workers, dedup)
    text = (tmp_path / "large/problems.jsonl").stat().st_size
    print("PEAKS", small, large, text)
    assert large < 1.1 * small, f"{small} for a tenth of {text} bytes of text, {large} for the whole"


@pytest.mark.slow_faults
def test_near_duplicates_take_memory_for_documents_in_a_partition_and_for_pairs_not_for_text(
    tmp_path: Path,
) -> None:
    """Generated problems are alike, so many pairs of them are candidates: more than in a corpus."""
    small = peak_of(tmp_path / "small", 15_000, "1", {"near": {}, "partitions": 2})
    large = peak_of(tmp_path / "large", 150_000, "1", {"near": {}, "partitions": 20})
    print("PEAKS", small, large)
    assert large - small < 135_000 * 800
