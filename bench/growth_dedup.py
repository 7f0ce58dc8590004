"""What a task of deduplication or of a split needs, when the corpus grows:
many short documents, a process per task.

    python bench/growth_dedup.py [--documents 300_000 3_000_000] [--out DIR]
    python bench/growth_dedup.py --single 1_000_000 10_000_000  made-up edges and keys, the tasks that see all

    documents   10 to 30 words, some 120 bytes: one in ten a copy, one in ten a near copy, one in ten with a
                passage of an earlier one
    recipe      exact, near, window (8 words, drop), split by counts, and by cluster
    a task      in a fork of its own: peak is what it has above the fork that did nothing, CPU its own seconds

    --single    resolve: one document in ten has an edge; meetings: a partition of as many marks, one in ten
                twice; select: keys alone, and one document in ten in a pair

Ingest and clean run as ever and are not looked at. A figure is the most that any task of its kind needs;
what grows with the corpus is seen by the last column.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import resource
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import tokmill
from tokmill.artifacts.directory import Artifact, begin, finish, open_artifact
from tokmill.artifacts.manifest import Receipt, build_manifest
from tokmill.artifacts.step import Input, Step, Task, table_input
from tokmill.duplicates.near import NearOptions
from tokmill.duplicates.window import WindowOptions
from tokmill.kernels.survivors import NEAR
from tokmill.kernels.warm import load_kernels
from tokmill.pipeline.plan import plan_steps
from tokmill.recipe.file import load_recipe
from tokmill.stages.dedup.survivors import EDGES, ResolveOptions
from tokmill.stages.dedup.window import MARKS_AT_ONCE, WINDOWS, MeetingOptions
from tokmill.stages.external.runs import by_hash, partitions_for, write_run
from tokmill.stages.registry import STAGES, perform
from tokmill.stages.split.selection import KEYS

FILE_ROWS = 200_000
SHARD_MEGABYTES = 4
VOCABULARY = 20_000
SEED = 5
SHARD_ROWS = 500_000  # of made-up shards

console = Console(width=130)


class Spent(NamedTuple):
    tasks: int
    megabytes: float
    cpu_seconds: float


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, nargs="+", default=[300_000, 3_000_000])
    parser.add_argument("--single", type=int, nargs="+", help="this many made-up documents, and nothing else")
    parser.add_argument("--out", type=Path, help="where runs are made; default: a temporary directory")
    options = parser.parse_args()
    load_kernels()
    found = []
    with tempfile.TemporaryDirectory(dir=options.out) as folder:
        for count in options.single or options.documents:
            measure = measure_single if options.single else measure_corpus
            found.append(measure(Path(folder) / f"{count}", count))
    report(options.single or options.documents, found)
    return 0


def measure_corpus(directory: Path, count: int) -> dict[str, Spent]:
    directory.mkdir(parents=True)
    write_corpus(directory, count)
    spent: dict[str, Spent] = {}
    for name, split in (
        ("counts", {"method": "counts", "counts": {"valid": count // 100, "test": count // 100}}),
        (
            "clusters",
            {"method": "counts", "by": "cluster", "counts": {"valid": count // 100, "test": count // 100}},
        ),
    ):
        recipe = write_recipe(directory, split)
        if name == "counts":
            tokmill.run(recipe, directory / "out", workers=2, until="clean")
        steps = plan_steps(load_recipe(recipe), directory, directory / "out")
        artifacts: dict[str, Artifact] = {}
        for step in steps:
            there = open_artifact(step.directory) if step.kind in ("ingest", "clean") else None
            if name == "clusters" and step.kind == "dedup":
                there = open_artifact(step.directory)
            artifacts[step.name] = there or measure_step(
                step,
                {need: artifacts[need] for need in step.needs},
                spent,
                "" if name == "counts" else " by cluster",
            )
    return spent


def measure_single(directory: Path, count: int) -> dict[str, Spent]:
    """The tasks that see all documents, over shards that nobody made."""
    directory.mkdir(parents=True)
    spent: dict[str, Spent] = {}
    tasks, _, _ = in_a_fork(
        lambda: (
            [make(directory, count) for make in (resolve_task, meetings_task)]
            + select_tasks(directory, count)
        )
    )
    _, idle, _ = in_a_fork(lambda: None)
    for task in tasks:
        measure_task(task, idle, spent, f" {task.key}" if task.function == "split.select" else "")
    return spent


def shard_starts(count: int) -> list[int]:
    return [*range(0, count, SHARD_ROWS), count]


def names_of(starts: Sequence[int]) -> list[str]:
    return [f"made/{shard}" for shard in range(len(starts) - 1)]


def meetings_task(directory: Path, count: int) -> Task:
    starts = shard_starts(count)
    inputs = []
    for shard in range(len(starts) - 1):
        rows = starts[shard + 1] - starts[shard]
        own = Task(function="", key=f"w{shard}", options=None, inputs=[], directory=str(directory))
        draw = np.random.Generator(np.random.PCG64([SEED + 2, shard]))
        hashes = draw.integers(0, 2**64, rows, np.uint64)
        hashes[: rows // 20] = hashes[-(rows // 20) :]
        order = by_hash(hashes)
        nothing = np.zeros(rows, np.int64)
        entry = write_run(own, "windows", [hashes[order], order, nothing, nothing], WINDOWS)
        inputs.append(table_input("windows", directory, entry))
    options = MeetingOptions(
        window=WindowOptions(),
        starts=tuple(starts),
        partition=0,
        partitions=partitions_for(count, MARKS_AT_ONCE, 1),
    )
    return Task(function="dedup.meetings", key="m0", options=options, inputs=inputs, directory=str(directory))


def resolve_task(directory: Path, count: int) -> Task:
    """One document in twenty is like one of the hundred before it."""
    near = NearOptions(bands=2, rows=1)
    starts = shard_starts(count)
    inputs = []
    for shard in range(len(starts) - 1):
        rows = starts[shard + 1] - starts[shard]
        own = Task(function="", key=f"f{shard}", options=None, inputs=[], directory=str(directory))
        draw = np.random.Generator(np.random.PCG64([SEED, shard]))
        b = np.sort(draw.choice(np.arange(100, rows), rows // 20, replace=False)) + starts[shard]
        a = b - draw.integers(1, 100, len(b))
        zeros = np.zeros(len(b), np.int64)
        kinds = np.full(len(b), NEAR, np.uint8)
        entry = write_run(own, "edges", [zeros, b, zeros, a, np.full(len(b), 0.9), kinds], EDGES)
        inputs.append(table_input("edges", directory, entry))
    options = ResolveOptions(
        near=near,
        starts=tuple(starts),
        shards=tuple(names_of(starts)),
        sources=("made",) * (len(starts) - 1),
        reference=(),
        copies=(),
    )
    return Task(
        function="dedup.resolve", key="near", options=options, inputs=inputs, directory=str(directory)
    )


def select_tasks(directory: Path, count: int) -> list[Task]:
    starts = shard_starts(count)
    keys = []
    for shard in range(len(starts) - 1):
        rows = starts[shard + 1] - starts[shard]
        draw = np.random.Generator(np.random.PCG64([SEED + 1, shard]))
        own = Task(function="", key=f"k{shard}", options=None, inputs=[], directory=str(directory))
        columns = [
            draw.integers(0, 2**64, rows, np.uint64),
            draw.integers(0, 2**64, rows, np.uint64),
            np.arange(rows),
        ]
        keys.append(table_input("keys", directory, write_run(own, "keys", columns, KEYS)))
    first = np.arange(0, count - 1, 20)
    docs = np.stack([first, first + 1], axis=1).ravel()
    shards = np.searchsorted(starts, docs, side="right") - 1
    owners = pa.array(names_of(starts)).take(pa.array(shards))
    members = {
        "cluster": np.repeat(first, 2),
        "shard": owners,
        "row": (docs - np.asarray(starts)[shards]).astype(np.uint32),
    }
    path = directory / "made.parquet"
    pq.write_table(pa.table(members), path, row_group_size=65536)
    config = {
        "starts": starts,
        "groups": [0] * (len(starts) - 1),
        "shards": names_of(starts),
        "quotas": [[1, [count // 100]], [2, [count // 100]]],
        "bounds": None,
        "rest": 0,
    }
    return [
        Task(
            function="split.select", key=key, options=config, inputs=[*keys, *more], directory=str(directory)
        )
        for key, more in (("by document", []), ("by cluster", [Input("clusters", str(path), "")]))
    ]


def write_corpus(directory: Path, count: int) -> None:
    """A chunk is a function of its number: a larger corpus begins with a smaller one."""
    draw = np.random.Generator(np.random.PCG64(SEED))
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)
    words = [
        letters[draw.integers(0, 26, size)].tobytes().decode() for size in draw.integers(3, 9, VOCABULARY)
    ]
    for part, start in enumerate(range(0, count, FILE_ROWS)):
        draw = np.random.Generator(np.random.PCG64([SEED, part]))
        rows = min(FILE_ROWS, count - start)
        lengths = draw.integers(10, 31, rows)
        ends = np.cumsum(lengths)
        chosen = [words[word] for word in draw.integers(0, VOCABULARY, int(ends[-1]))]
        kinds, others = draw.integers(0, 10, rows), draw.random(rows)
        texts: list[list[str]] = []
        for row, end in enumerate(ends.tolist()):
            own = chosen[end - int(lengths[row]) : end]
            if row and kinds[row] < 3:
                other = texts[int(others[row] * row)]
                if kinds[row] == 0:
                    own = other
                elif kinds[row] == 1:
                    own = [*other, own[0]]
                else:
                    own = [*own[:6], *other[:10], *own[6:12]]
            texts.append(own)
        with (directory / f"part-{part:05d}.jsonl").open("w") as file:
            file.writelines(json.dumps({"text": " ".join(text)}) + "\n" for text in texts)


def write_recipe(directory: Path, split: Mapping[str, Any]) -> Path:
    recipe = {
        "name": "growth",
        "sources": [{"name": "short", "files": "part-*.jsonl"}],
        "shards": {"megabytes": SHARD_MEGABYTES},
        "dedup": {"near": {}, "window": {"words": 8, "winnow": 4, "policy": "drop"}},
        "split": split,
    }
    path = directory / "recipe.yaml"
    path.write_text(json.dumps(recipe))
    return path


def measure_step(
    step: Step, upstream: Mapping[str, Artifact], spent: dict[str, Spent], suffix: str
) -> Artifact:
    """As a run conducts it, one task after the other, each in a fork of its own."""
    begin(step.directory)
    conduct = STAGES[step.kind].conduct(step, upstream)
    tasks = next(conduct)
    while True:
        _, idle, _ = in_a_fork(lambda: None)
        receipts = [measure_task(task, idle, spent, suffix) for task in tasks]
        try:
            tasks = conduct.send(receipts)
        except StopIteration as stop:
            outcome = stop.value
            break
    manifest = build_manifest(
        kind=step.kind,
        step=step.name,
        config=step.config,
        inputs={name: artifact.manifest.identity for name, artifact in upstream.items()},
        receipts=outcome.receipts,
        counts=outcome.counts,
        facts=outcome.facts,
        experiment_id="",
        environment={},
    )
    console.print(
        f"{step.name}{suffix}: {outcome.counts} {outcome.facts.get('near', '')} {manifest.identity}"
    )
    return finish(step.directory, manifest)


def measure_task(task: Task, idle: int, spent: dict[str, Spent], suffix: str) -> Receipt:
    receipt: Receipt
    receipt, peak, seconds = in_a_fork(lambda: perform(task))
    before = spent.get(task.function + suffix, Spent(0, 0.0, 0.0))
    spent[task.function + suffix] = Spent(
        before.tasks + 1, max(before.megabytes, (peak - idle) / 1e6), before.cpu_seconds + seconds
    )
    return receipt


def in_a_fork(act: Callable[[], Any]) -> tuple[Any, int, float]:
    """What it returns, its peak in bytes, its CPU seconds."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(reading)
            started = time.process_time()
            result = act()
            seconds = time.process_time() - started
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            with os.fdopen(writing, "wb") as sink:
                pickle.dump((result, peak, seconds), sink)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as source:
        told = source.read()
    _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit("a task failed; its traceback is above")
    found: tuple[Any, int, float] = pickle.loads(told)  # noqa: S301 (our own child)
    return found


def report(counts: Sequence[int], found: Sequence[Mapping[str, Spent]]) -> None:
    table = Table(title="peak of any task above an idle process (MB), and CPU seconds of all of them")
    table.add_column("task")
    for count in counts:
        for column in ("tasks", "MB", "CPU s"):
            table.add_column(f"{column}, {count / 1e6:g} M", justify="right")
    table.add_column("grows by", justify="right")
    for name in found[-1]:
        cells: list[str] = []
        for spent in found:
            own = spent[name]
            cells += [f"{own.tasks:,}", f"{own.megabytes:.1f}", f"{own.cpu_seconds:.1f}"]
        growth = found[-1][name].megabytes / max(found[0][name].megabytes, 1.0)
        table.add_row(name, *cells, f"{growth:.1f} x")
    console.print(table)


if __name__ == "__main__":
    raise SystemExit(main())
