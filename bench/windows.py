"""How fast passages and benchmark items are found: MB of text per CPU second, one core.

    python bench/windows.py [--texts DIR] [--benchmark DIR] [--rounds 3]

    marks     window_marks, 50 words, winnowed by 31
    passages  all of it: marks, matching, the check of the words
    matching  marks per CPU second through match_marks, on marks with 5 % repeats
    decontam  find_contamination against the benchmark files (13-grams), with what it finds

Kernels are compiled before the clock starts. A figure is the median of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from tokmill.duplicates.decontaminate import (
    BenchmarkIndex,
    contaminated_rows,
    find_contamination,
    load_benchmark,
    ngram_index,
)
from tokmill.duplicates.window import (
    Pairs,
    Spans,
    WindowOptions,
    count_words,
    extend_matches,
    match_marks,
    merge_spans,
    window_marks,
)
from tokmill.schema import string_column
from tokmill.storage.disk import ZstdFile

SHARED = Path(__file__).resolve().parents[2] / "shared"
OPTIONS = WindowOptions()
MARKS = 4_000_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--texts", type=Path, default=SHARED / "bench", help="directory of *.jsonl.zst")
    parser.add_argument("--benchmark", type=Path, default=SHARED / "data/math", help="directory of *.jsonl")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    paths, items = sorted(options.texts.glob("*.jsonl.zst")), sorted(options.benchmark.rglob("*.jsonl"))
    if not paths or not items:
        empty = options.benchmark if paths else options.texts
        print(f"nothing to read in {empty}: give directories with --texts and --benchmark", file=sys.stderr)
        return 2
    benchmark = load_benchmark(items, ["question", "answer"])
    started = time.process_time()
    index = ngram_index(benchmark)
    seconds = time.process_time() - started
    columns = {path.name.split(".")[0]: load_texts(path) for path in paths}
    warm_up(index)
    console = Console(soft_wrap=True)
    table = Table(
        title="passages and decontamination, one core, median of the rounds, MB of text per CPU second"
    )
    for name in (
        "text",
        "MB",
        "marks",
        "passages",
        "decontam",
        "marks / KB",
        "repeated words",
        "items",
    ):
        table.add_column(name, justify="left" if name == "text" else "right")
    for name, texts in {**columns, "all": pa.concat_arrays(list(columns.values()))}.items():
        table.add_row(name, *figures(texts, index, options.rounds))
    console.print(table)
    console.print(matching_figures(options.rounds))
    console.print(
        f"index: {len(benchmark.texts):,} items, {len(index.lookup.hashes):,} grams in {seconds:.2f} CPU s, "
        f"{len(index.unused):,} items too short to be used"
    )
    return 0


def figures(texts: Any, index: BenchmarkIndex, rounds: int) -> list[str]:
    column = string_column(texts)
    size = int(column.offsets[-1] - column.offsets[0])
    marks = window_marks(texts, OPTIONS)
    spans = merge_spans(find_passages(texts, OPTIONS))
    repeated = int(spans.words.sum()) / max(int(count_words(texts).sum()), 1)
    hits = find_contamination(texts, index)
    speeds = [
        size / 1e6 / cpu_seconds(act, rounds)
        for act in (
            lambda: window_marks(texts, OPTIONS),
            lambda: find_passages(texts, OPTIONS),
            lambda: find_contamination(texts, index),
        )
    ]
    return [
        f"{size / 1e6:.1f}",
        *(f"{speed:.0f}" for speed in speeds),
        f"{len(marks.rows) / size * 1000:.1f}",
        f"{repeated:.1%}",
        f"{len(np.unique(hits.items)):,} in {int(contaminated_rows(hits, len(texts)).sum()):,} texts",
    ]


def find_passages(texts: Any, options: WindowOptions) -> Spans:
    """Marks to spans."""
    marks = window_marks(texts, options)
    matches = match_marks(marks.hashes, marks.rows, marks.rows)
    ends = (matches.marks, matches.firsts)
    pairs = Pairs(*(column[end] for end in ends for column in (marks.rows, marks.first_words)))
    return extend_matches(texts, pairs, options).spans


def matching_figures(rounds: int) -> str:
    """Marks as of documents of 20 marks, 5 % of them with the hash of another."""
    draw = np.random.default_rng(1)
    hashes = draw.integers(0, 2**64, MARKS, np.uint64)
    copies = draw.integers(0, MARKS, MARKS // 20)
    hashes[copies] = hashes[draw.integers(0, MARKS, len(copies))]
    documents = np.arange(MARKS) // 20
    matched = cpu_seconds(lambda: match_marks(hashes, documents, documents), rounds)
    return f"{MARKS:,} marks: matching {MARKS / matched / 1e6:.1f} million marks per CPU second"


def warm_up(index: BenchmarkIndex) -> None:
    texts = pa.array([f"Ä {'one two. ' * 100}", f"{'one two. ' * 60} three"], pa.large_string())
    find_passages(texts, OPTIONS)
    find_contamination(texts, index)


def cpu_seconds(act: Callable[[], object], rounds: int) -> float:
    samples = []
    for _ in range(rounds):
        started = time.process_time()
        act()
        samples.append(time.process_time() - started)
    return statistics.median(samples)


def load_texts(path: Path) -> Any:
    with ZstdFile(path) as lines:
        return pa.array([msgspec.json.decode(line)["text"] for line in lines], pa.large_string())


if __name__ == "__main__":
    raise SystemExit(main())
