"""Synthetic fingerprints through partition files to verdicts, with the memory and the seconds of each act.

generate    N fingerprints, one in twenty a copy of an earlier one with a few positions changed    not counted
partition   band keys ─ range of keys ─> one file of (key, document) rows per partition
pairs       partition by partition: buckets of equal keys ─> pairs
verify      fingerprints of both ends, read by position
resolve     union-find and the greedy walk over the edges

What is held in memory is one chunk of fingerprints, one partition, 8 bytes per document for the digests,
and the pairs. Files lie in one directory, as a stage would have them.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from tokmill.duplicates.near import NearOptions, read_pairs, resolve, unique_pairs, verify_pairs
from tokmill.duplicates.shingling import partition_of
from tokmill.kernels.minhash import band_keys

CHUNK = 100_000
COPIES = 20  # one document in so many
CHANGED = 10  # positions of a copy, of 112: an estimate of 0.91
ROW = np.dtype([("key", "<u8"), ("doc", "<u4")])


def cluster_synthetic(count: int, partitions: int, scratch: Path | None, console: Console) -> None:
    options = NearOptions(verify="signature")
    with tempfile.TemporaryDirectory(dir=scratch) as name:
        folder = Path(name)
        seconds: dict[str, float] = {}
        with clock("generate", seconds):
            copies = generate(folder / "signatures.bin", count, options.positions)
        with clock("partition", seconds):
            digests = partition(folder, count, partitions, options)
        with clock("pairs", seconds):
            a, b = find_pairs(folder, partitions, digests)
        with clock("verify", seconds), (folder / "signatures.bin").open("rb") as file:
            edges = verify_pairs(
                a, b, options, lambda docs: read_rows(file, docs, options.positions), no_texts
            )
        with clock("resolve", seconds):
            docs, places = np.unique(np.concatenate([edges.a, edges.b]), return_inverse=True)
            found = resolve(len(docs), places[: len(edges.a)], places[len(edges.a) :], edges.similarity)
        dropped = int((found.survivor >= 0).sum())
        disk = sum(path.stat().st_size for path in folder.iterdir()) / 1e9
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    spent = sum(value for act, value in seconds.items() if act != "generate")
    console.print(
        f"{count:,} fingerprints, {copies:,} of them copies, {partitions} partitions\n"
        f"pairs {len(a):,}, edges {len(edges.a):,}, dropped {dropped:,}, largest cluster "
        f"{int(np.bincount(found.component).max(initial=1)):,}\n"
        + "".join(f"{act:10s} {value:8.1f} CPU s\n" for act, value in seconds.items())
        + f"{spent:.1f} CPU s without generating: "
        f"{count / spent / 1e6:.2f} million documents per CPU second\n"
        f"peak RSS {peak:.2f} GB, files {disk:.1f} GB"
    )


@contextmanager
def clock(name: str, seconds: dict[str, float]) -> Iterator[None]:
    started = time.process_time()
    yield
    seconds[name] = time.process_time() - started


def generate(path: Path, count: int, positions: int) -> int:
    """A copy is made of a document of the same chunk,
    so that every chunk is a function of its number alone."""
    copies = 0
    with path.open("wb") as file:
        for start in range(0, count, CHUNK):
            draw = np.random.Generator(np.random.PCG64([7, start]))
            rows = min(CHUNK, count - start)
            values = draw.integers(0, 0xFFFFFFFE, (rows, positions), np.uint32)
            chosen = np.arange(COPIES, rows, COPIES)
            values[chosen] = values[chosen - draw.integers(1, COPIES, len(chosen))]
            changed = draw.integers(0, positions, (len(chosen), CHANGED))
            values[chosen[:, None], changed] = draw.integers(0, 0xFFFFFFFE, changed.shape, np.uint32)
            copies += len(chosen)
            values.tofile(file)
    return copies


def partition(folder: Path, count: int, partitions: int, options: NearOptions) -> NDArray[np.uint64]:
    digests = np.empty(count, np.uint64)
    files = [(folder / f"keys-{number:04d}.bin").open("wb", buffering=0) for number in range(partitions)]
    with (folder / "signatures.bin").open("rb") as signatures:
        for start in range(0, count, CHUNK):
            rows = min(CHUNK, count - start)
            values = np.fromfile(signatures, np.uint32, rows * options.positions).reshape(rows, -1)
            digests[start : start + rows] = band_keys(values, 1, options.positions)[:, 0]
            keys = band_keys(values, options.bands, options.rows).ravel()
            home = partition_of(keys, partitions).astype(np.uint16)
            order = np.argsort(home, kind="stable")
            table = np.empty(len(keys), ROW)
            table["key"] = keys[order]
            table["doc"] = order // options.bands + start
            bounds = np.searchsorted(home[order], np.arange(partitions + 1))
            for number, file in enumerate(files):
                file.write(table[bounds[number] : bounds[number + 1]].tobytes())
    for file in files:
        file.close()
    return digests


def find_pairs(
    folder: Path, partitions: int, digests: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    found: list[Any] = []
    for number in range(partitions):
        table = np.fromfile(folder / f"keys-{number:04d}.bin", ROW)
        docs = table["doc"].astype(np.int64)
        key = np.ascontiguousarray(table["key"])
        found += read_pairs(key, docs, digests=digests[docs], ranks=docs)
    return unique_pairs(*(np.concatenate(ends) for ends in zip(*found, strict=True)))


def read_rows(file: Any, docs: NDArray[np.int64], positions: int) -> NDArray[np.uint32]:
    """By position, with plain reads: pages of a mapping would count as this process's memory."""
    size = 4 * positions
    rows = b"".join(os.pread(file.fileno(), size, size * doc) for doc in docs.tolist())
    return np.frombuffer(rows, np.uint32).reshape(-1, positions)


def no_texts(docs: NDArray[np.int64]) -> Any:
    raise AssertionError(f"{len(docs)} texts were asked for, and there are only fingerprints")
