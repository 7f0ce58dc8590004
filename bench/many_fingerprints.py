"""Near duplicates of very many documents: made fingerprints through the real tasks.

    python bench/many_fingerprints.py [--documents 2000000] [--shard 500000] [--copies 20] [--most-gb 8]
                                      [--workers 1]

    make         what `dedup.fingerprint` writes, shard by shard: fingerprints-<s>.bin and bands-<s>.bin
    candidates   the tasks that the step itself plans, partition by partition
    verify       likewise; similarity is told by the signatures, so no text is read
    resolve      one task

One document in `--copies` is a copy of a document of another shard, with 10 of its 112 positions changed. Its
band keys are made by the step's kernel. All others have random keys, and nobody ever reads the rest of their
fingerprints: those parts of the files are holes, so that 200 million take 46 GB of disk and not 130.

Told are CPU seconds and the peak memory of each act: the largest of a process, times the processes that work
at once. How many copies must be found is known beforehand; that, and `--most-gb`, decide the exit status.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from rich.console import Console

from tokmill.artifacts.manifest import FileEntry, Receipt
from tokmill.artifacts.step import Task, tables_of
from tokmill.duplicates.near import NearOptions, found_share
from tokmill.engines.own_process import forget_peak, read_peak
from tokmill.kernels.minhash import band_keys
from tokmill.stages.dedup.method import Considered
from tokmill.stages.dedup.near import BANDS, METHOD
from tokmill.stages.dedup.stage import STAGE, resolve_task
from tokmill.stages.dedup.survivors import fingerprint_layout
from tokmill.stages.external.runs import by_hash

CHANGED = 10  # positions of a copy, of 112: an estimate of 0.91
ROWS_AT_ONCE = 100_000
ACTS = {"dedup.candidates": "candidates", "dedup.verify": "verify", "dedup.resolve": "resolve"}


class Corpus:
    def __init__(self, directory: Path, documents: int, shard: int, copies: int, near: NearOptions) -> None:
        self.directory, self.near = directory, near
        self.sizes = [min(shard, documents - first) for first in range(0, documents, shard)]
        self.copies = [size // copies for size in self.sizes]  # of each shard, and as many originals

    def write(self, number: int) -> Receipt:
        """Rows: originals, copies of the originals of the shard before, all others."""
        size, before = self.sizes[number], (number - 1) % len(self.sizes)
        values = [self._originals(number), self._changed(self._originals(before), number)]
        signed = np.concatenate(values)
        random = np.random.default_rng([1, number])
        fingerprints = self._write_fingerprints(number, signed, random)
        keys = np.empty((size, self.near.bands), np.uint64)
        keys[: len(signed)] = band_keys(signed, self.near.bands, self.near.rows)
        del signed, values
        keys[self._signed(number) :] = random.integers(
            1, 1 << 64, (size - self._signed(number), self.near.bands), np.uint64
        )
        flat = keys.reshape(-1)
        order = by_hash(flat)
        path = f"bands-f{number:05d}.bin"
        with (self.directory / path).open("wb") as file:
            file.write(flat[order].data)
            index = (order // self.near.bands).astype(BANDS["index"])
            file.write(index.data)
            file.write(bytes(-index.nbytes % 8))
        bands = entry(path, "bands", len(flat))
        return Receipt(key=f"f{number:05d}", fingerprint="", files=[fingerprints, bands], counts={})

    def _signed(self, number: int) -> int:
        return self.copies[number] + self.copies[(number - 1) % len(self.sizes)]

    def _originals(self, number: int) -> Any:
        random = np.random.default_rng([0, number])
        return random.integers(0, 1 << 32, (self.copies[number], self.near.positions), np.uint32)

    def _changed(self, values: Any, number: int) -> Any:
        random = np.random.default_rng([2, number])
        for start in range(0, len(values), ROWS_AT_ONCE):
            part = values[start : start + ROWS_AT_ONCE]
            places = random.random(part.shape, np.float32).argpartition(CHANGED, axis=1)[:, :CHANGED]
            part[np.arange(len(part))[:, None], places] ^= np.uint32(1)
        return values

    def _write_fingerprints(self, number: int, signed: Any, random: Any) -> FileEntry:
        """Of those that have company; ranks are all 0, and what is not written is a hole."""
        size, path = self.sizes[number], f"fingerprints-f{number:05d}.bin"
        columns = {
            "digest": random.integers(1, 1 << 64, len(signed), np.uint64),
            "row": np.arange(len(signed), dtype=np.uint32),
            "values": signed,
        }
        at = 0
        with (self.directory / path).open("wb") as file:
            for name, kind in fingerprint_layout(self.near).items():
                if name in columns:
                    file.seek(at)
                    file.write(np.ascontiguousarray(columns[name]).data)
                at += -(-size * np.dtype(kind).itemsize // 8) * 8
            file.truncate(at)
        return entry(path, "fingerprints", size)


def entry(path: str, table: str, rows: int) -> FileEntry:
    return FileEntry(path=path, table=table, bytes=0, rows=rows, sha256="", content_sha256="")


def perform_task(task: Task) -> Any:
    return STAGE.tasks[task.function].perform(task)


def timed(work: Callable[[Any], Any], given: Any) -> tuple[Any, float, float]:
    """What it gives, its CPU seconds, and the most gigabytes that the process had meanwhile."""
    forget_peak()
    begun = time.process_time()
    made = work(given)
    return made, time.process_time() - begun, read_peak() / 1e9


class Clock:
    def __init__(self, workers: int) -> None:
        self.acts: dict[str, dict[str, float]] = {}
        self._workers = workers

    def run(self, act: str, work: Callable[[Any], Any], given: Sequence[Any]) -> list[Any]:
        """Of each in order, several at once."""
        begun = time.perf_counter()
        at_once = min(self._workers, len(given))
        if at_once > 1:
            with ProcessPoolExecutor(at_once) as pool:
                done = list(pool.map(timed, itertools.repeat(work), given))
        else:
            done = [timed(work, one) for one in given]
        self.acts[act] = {
            "tasks": len(given),
            "seconds": time.perf_counter() - begun,
            "cpu_seconds": sum(cpu for _, cpu, _ in done),
            "peak_gb": at_once * max(peak for _, _, peak in done),
        }
        return [made for made, _, _ in done]


def measure(options: argparse.Namespace, directory: Path) -> dict[str, Any]:
    near, clock = NearOptions(verify="signature"), Clock(options.workers)
    corpus = Corpus(directory, options.documents, options.shard, options.copies, near)
    receipts = clock.run("make", corpus.write, range(len(corpus.sizes)))
    phase = planned(directory, near, corpus.sizes)
    next(phase)  # fingerprints: made above
    facts: dict[str, Any] = {}
    disk = 0
    while True:
        try:
            tasks = phase.send(receipts)
        except StopIteration:
            break
        receipts = []
        for task, made in zip(tasks, clock.run(ACTS[tasks[0].function], perform_task, tasks), strict=True):
            receipts.append(Receipt(key=task.key, fingerprint="", files=made.files, counts={}))
            facts = made.facts or facts
        disk = max(disk, sum(path.stat().st_blocks * 512 for path in directory.iterdir()))
        if tasks[0].function == "dedup.candidates":
            facts["pairs"] = sum(
                file.rows for receipt in receipts for file in receipt.files if file.table == "pairs"
            )
            for path in directory.glob("bands-*.bin"):  # nobody reads them any more
                path.unlink()
    return {
        "documents": options.documents,
        "shards": len(corpus.sizes),
        "copies": sum(corpus.copies),
        "duplicates": facts["duplicates"],
        "edges": facts["edges"],
        "largest_cluster": facts["largest_cluster"],
        "acts": clock.acts,
        "cpu_seconds": sum(act["cpu_seconds"] for name, act in clock.acts.items() if name != "make"),
        "peak_gb": max(act["peak_gb"] for act in clock.acts.values()),
        "disk_gb": disk / 1e9,
    }


def planned(
    directory: Path, near: NearOptions, sizes: Sequence[int]
) -> Generator[list[Task], list[Receipt], Any]:
    """Plan what the step does, by its own code: of shards it asks names, numbers and sizes alone."""
    shown: Any = [
        SimpleNamespace(number=n, name=f"s-{n:05d}", source="s", documents=SimpleNamespace(rows=size))
        for n, size in enumerate(sizes)
    ]
    keep: Any = None
    considered = [Considered(shard, keep, []) for shard in shown]
    settings = SimpleNamespace(
        partitions=1,
        by_source=False,
        reference=(),
        groups=lambda of: [0] * len(of),
        near=near,
        **dict.fromkeys(("url", "exact", "templates", "window")),
    )
    step: Any = SimpleNamespace(directory=directory, name="dedup", options=settings)
    receipts = yield from METHOD.find(step, near, considered)
    yield [resolve_task(step, shown, near, tables_of(step, receipts, "edges"), [])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--documents", type=int, default=2_000_000)
    parser.add_argument("--shard", type=int, default=500_000, help="documents of a shard")
    parser.add_argument("--copies", type=int, default=20, help="one document in so many")
    parser.add_argument("--most-gb", type=float, default=8.0)
    parser.add_argument("--workers", type=int, default=1, help="processes that work at once")
    parser.add_argument("--scratch", type=Path, help="where the files lie")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tokmill-bench-", dir=options.scratch) as scratch:
        (Path(scratch) / "run/dedup").mkdir(parents=True)
        figures = measure(options, Path(scratch) / "run/dedup")
    render(figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    near = NearOptions()
    expected = figures["copies"] * found_share(1 - CHANGED / near.positions, near.bands, near.rows)
    is_found = 0.999 * expected <= figures["duplicates"] <= figures["copies"]
    return 0 if is_found and figures["peak_gb"] < options.most_gb else 1


def render(figures: dict[str, Any]) -> None:
    console = Console(width=110)
    console.print(
        f"{figures['documents']:,} fingerprints in {figures['shards']} shards, {figures['copies']:,} copies: "
        f"{figures['duplicates']:,} found, largest cluster {figures['largest_cluster']}"
    )
    for act, told in figures["acts"].items():
        console.print(
            f"{act:11s} {told['tasks']:6,.0f} tasks {told['cpu_seconds']:9.1f} CPU s "
            f"{told['seconds']:8.1f} s   peak {told['peak_gb']:.2f} GB"
        )
    console.print(
        f"{figures['cpu_seconds']:.1f} CPU s without making: "
        f"{figures['documents'] / figures['cpu_seconds'] / 1e6:.2f} million documents per CPU second; "
        f"peak {figures['peak_gb']:.2f} GB, files {figures['disk_gb']:.1f} GB"
    )


if __name__ == "__main__":
    raise SystemExit(main())
