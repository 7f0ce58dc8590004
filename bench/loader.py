"""Batches per CPU second, beside others; and how soon the first one is there.

    python bench/loader.py                                        ours and a plain gather
    python bench/loader.py --peers /path/to/venv/bin/python       with MosaicML Streaming and a Hugging Face
                                                                  Arrow table

The same rows for all, shuffled globally, in batches of 8 x 2,048. A plain gather is
`np.memmap[permutation[n : n + 8]]` with a stored permutation, and nothing else: no targets, no mask, no
state. Ours gives tokens, targets and mask as int32. Then every layout of the same documents, whose lengths
are drawn so that one in eight is longer than a row.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from tokmill.formats.megatron import write_megatron
from tokmill.formats.memmap import write_memmap
from tokmill.loader import Batches, open_dataset
from tokmill.packing.plan import LAYOUTS, Store, gather_rows, plan_layout, row_batches

HERE = Path(__file__).parent
BATCH, LENGTH = 8, 2048
META: dict[str, object] = {"eos_id": 0, "pad_id": None, "vocab_size": 50_000, "split": "train"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--many", type=int, default=10_000_000, help="rows of the build that is opened")
    parser.add_argument("--peers", type=Path, help="a Python with torch, mosaicml-streaming and datasets")
    options = parser.parse_args()
    console = Console(soft_wrap=True)
    with tempfile.TemporaryDirectory() as scratch:
        console.print(speeds(Path(scratch), options.rows, options.rounds, options.peers))
    with tempfile.TemporaryDirectory() as scratch:
        console.print(layouts(Path(scratch), options.rows, options.rounds))
    with tempfile.TemporaryDirectory() as scratch:
        console.print(first_batches(Path(scratch), options.many, options.rounds))
    for code in ("import tokmill.loader", "from tokmill.loader import Batches, open_dataset", "import numpy"):
        console.print(f"{code}: {1000 * import_seconds(code):.0f} ms of CPU")
    return 0


def speeds(scratch: Path, rows: int, rounds: int, peers: Path | None) -> Table:
    ids = np.random.default_rng(0).integers(1, 50_000, (rows, LENGTH)).astype(np.int32)
    found: dict[str, float] = {}
    for dtype in ("int32", "uint16"):
        directory = scratch / dtype
        write_memmap(directory, [ids], seq_len=LENGTH, dtype=dtype, meta=META)
        mapped = np.memmap(directory / "input_ids.mmap", dtype, "r", shape=(rows, LENGTH))
        found[f"plain gather, {dtype}"] = per_batch(partial(gathered, mapped), rounds)
        dataset = open_dataset(directory)
        found[f"tokmill, {dtype}"] = per_batch(partial(Batches, dataset, BATCH, 1), rounds)
        found[f"tokmill, {dtype}, prefetch 2"] = per_batch(
            partial(Batches, dataset, BATCH, 1, prefetch=2), rounds
        )
    if peers is not None:
        np.save(scratch / "rows.npy", ids)
        count = str(min(rows // BATCH - 2, 600))
        script, data = str(HERE / "loader_reference.py"), str(scratch / "rows.npy")
        command = [str(peers), script, data, str(BATCH), count, str(rounds)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stderr, file=sys.stderr)
        else:
            found.update(json.loads(done.stdout.splitlines()[-1]))
    table = Table(title=f"batches of {BATCH} x {LENGTH:,}, {rows:,} rows, one process")
    for name in ("", "µs of CPU per batch", "million tokens/s", "tokmill int32 is faster by"):
        table.add_column(name, justify="left" if not name else "right")
    for name, seconds in found.items():
        ratio = seconds / found["tokmill, int32"]
        speed = BATCH * LENGTH / seconds / 1e6
        table.add_row(name, f"{1e6 * seconds:,.1f}", f"{speed:,.0f}", f"{ratio:.2f}")
    return table


def layouts(scratch: Path, rows: int, rounds: int) -> Table:
    """Of rows of every layout of the same documents:
    padding is EOS, as in a build of a tokenizer without another."""
    draw = np.random.default_rng(0)
    lengths = np.maximum(draw.lognormal(6.6, 1, 2 * rows), 1).astype(np.int64)
    ids = draw.integers(1, 50_000, int(lengths.sum())).astype(np.uint16)
    ends = np.cumsum(lengths)
    ids[ends - 1] = 0
    store = Store([ids], ends - lengths)
    table = Table(title=f"batches of {BATCH} x {LENGTH:,} by layout, {len(lengths):,} documents, uint16")
    for name in ("", "rows", "padding", "µs of CPU per batch", "of concat"):
        table.add_column(name, justify="left" if not name else "right")
    found: dict[str, float] = {}
    for layout in LAYOUTS:
        if layout == "indexed":  # sequences of any length: no block
            continue
        plan = plan_layout(layout, lengths, LENGTH)
        padding = plan.padding / (plan.n_rows * LENGTH)
        blocks = (gather_rows(plan, store, *bounds, pad_id=0) for bounds in row_batches(plan))
        meta = {**META, "pad_id": 0 if padding else None, "layout": layout}
        write_memmap(scratch / layout, blocks, seq_len=LENGTH, dtype="uint16", meta=meta)
        dataset = open_dataset(scratch / layout)
        found[layout] = per_batch(partial(Batches, dataset, BATCH, 1, length=LENGTH), rounds)
        table.add_row(
            layout,
            f"{plan.n_rows:,}",
            f"{100 * padding:.2f} %",
            f"{1e6 * found[layout]:,.1f}",
            f"{found[layout] / found['concat']:.2f}",
        )
    return table


def gathered(mapped: Any) -> Iterable[Any]:
    order = np.random.default_rng(1).permutation(len(mapped))
    return (mapped[order[start : start + BATCH]] for start in range(0, len(order), BATCH))


def per_batch(opened: Callable[[], Iterable[Any]], rounds: int) -> float:
    samples = []
    for number in range(rounds + 1):
        loop = iter(opened())
        next(loop)  # what it costs to begin is not counted
        started, count = time.process_time(), 0
        for _batch in loop:
            count += 1
        if number:  # the first round brings the file into memory
            samples.append((time.process_time() - started) / count)
    return statistics.median(samples)


def first_batches(scratch: Path, rows: int, rounds: int) -> Table:
    """Of a build of many short rows, and of one of many documents of any length."""
    draw = np.random.default_rng(0)
    block = draw.integers(1, 50_000, 1 << 22).astype(np.uint16)
    length = 16
    whole = rows * length
    pieces = [block] * (whole // len(block)) + [block[: whole % len(block)]]
    write_memmap(scratch / "rows", pieces, seq_len=length, dtype="uint16", meta=META)
    lengths = draw.integers(1, 32, rows)
    total = int(lengths.sum())
    chunks = [block] * (total // len(block)) + [block[: total % len(block)]]
    write_megatron(scratch / "documents/tokens", chunks, lengths, dtype="uint16")
    table = Table(title=f"a build of {rows:,} rows")
    for name in ("", "open ms", "first batch ms", "state ms"):
        table.add_column(name, justify="left" if not name else "right")
    for name, directory in (("memmap", scratch / "rows"), ("megatron", scratch / "documents")):
        samples = []
        for _ in range(rounds):
            begun = time.perf_counter()
            dataset = open_dataset(directory)
            opened = time.perf_counter()
            batches = Batches(dataset, BATCH, 1)
            next(iter(batches))
            made = time.perf_counter()
            batches.state_dict()
            samples.append((opened - begun, made - opened, time.perf_counter() - made))
        cells = [f"{1000 * statistics.median(column):.1f}" for column in zip(*samples, strict=True)]
        table.add_row(name, *cells)
    return table


def import_seconds(statement: str) -> float:
    code = f"import time; a = time.process_time(); {statement}; print(time.process_time() - a)"
    samples = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(5)
    ]
    return statistics.median(samples)


if __name__ == "__main__":
    raise SystemExit(main())
