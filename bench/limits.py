"""What this machine can do at most: the disk, memory, and the tokenizer alone.

    python bench/limits.py [--texts DIR] [--rounds 3] [--json FILE]

    disk write       1 MB blocks into a new file and fsync, wall time
    disk read        the same file after the system was asked to forget it, wall time
    memory copy      one array of 256 MB into another: bytes read and written per CPU second
    tokenizer core   documents in memory to token ids, nothing else: MB of text per CPU second, in a process
                     that has not seen the text (fast tokenizers remember words)

A figure is the median of the rounds.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from chain import SHARED, TOKENIZER
from tokmill.storage.disk import ZstdFile
from tokmill.tokenizers.load import load_tokenizer

BLOCK, BLOCKS = 1 << 20, 256


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--texts", type=Path, default=SHARED / "bench", help="directory of *.jsonl.zst")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    paths = sorted(options.texts.glob("*.jsonl.zst"))
    if not paths:
        print(f"no *.jsonl.zst in {options.texts}: give a directory with --texts", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="tokmill-bench-") as scratch:
        path = Path(scratch) / "blocks"
        figures = {
            "disk_write_mb_s": median(lambda: write_blocks(path), options.rounds),
            "disk_read_mb_s": median(lambda: read_blocks(path), options.rounds),
        }
    figures["memory_copy_mb_s"] = median(copy_memory, options.rounds)
    figures["tokenizer_mb_per_cpu_s"] = median(
        lambda: in_new_process(encode, paths, options.tokenizer), options.rounds
    )
    for name, value in figures.items():
        print(f"{name:24s} {value:10,.1f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def median(act: Callable[[], float], rounds: int) -> float:
    return round(statistics.median(act() for _ in range(rounds)), 1)


def write_blocks(path: Path) -> float:
    block = np.random.default_rng(0).integers(0, 256, BLOCK, np.uint8).tobytes()
    started = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(BLOCKS):
            file.write(block)
        os.fsync(file.fileno())
    return BLOCK * BLOCKS / 1e6 / (time.perf_counter() - started)


def read_blocks(path: Path) -> float:
    with path.open("rb", buffering=0) as file:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        started = time.perf_counter()
        while file.read(BLOCK):
            pass
        return BLOCK * BLOCKS / 1e6 / (time.perf_counter() - started)


def copy_memory() -> float:
    one = np.ones(BLOCK * BLOCKS, np.uint8)
    other = np.zeros_like(one)
    started = time.process_time()
    np.copyto(other, one)
    return 2 * one.nbytes / 1e6 / (time.process_time() - started)


def in_new_process(act: Callable[..., float], *arguments: Any) -> float:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(act, arguments)


def encode(paths: list[Path], tokenizer_path: Path) -> float:
    texts = []
    for path in paths:
        with ZstdFile(path) as lines:
            texts += [json.loads(line)["text"] for line in lines]
    column = pa.array(texts, pa.large_string())
    tokenizer = load_tokenizer(tokenizer_path)
    tokenizer.encode_column(pa.array(["one word"], pa.large_string()))
    seconds = 0.0
    for first in range(0, len(column), 1000):
        batch = column.slice(first, 1000)
        started = time.process_time()
        tokenizer.encode_column(batch)
        seconds += time.process_time() - started
    return sum(len(text.encode()) for text in texts) / 1e6 / seconds


if __name__ == "__main__":
    raise SystemExit(main())
