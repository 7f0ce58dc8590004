"""What an engine costs on one machine: wall time and CPU seconds of a recipe's tasks, start-up aside.

    python bench/engines.py [--texts DIR] [--workers 2] [--rounds 3] [--engines local ray dask] [--json FILE]

`slurm` is an engine too, where the temporary directory is on a disk that the nodes have; the CPU seconds of
its jobs are not counted. What an engine costs without any work is in bench/empty_tasks.py.

In a process of its own, each engine first mills a few documents, which starts its workers and loads their
kernels and the tokenizer; that is its start-up. Then it mills the texts, and that is timed. Engines
alternate, so that a noisy minute does not fall on one of them only; figures are medians of the rounds. All
must make the same content. CPU seconds are those of the driver and of every process below it: workers, and
Ray's own daemons. On a machine that is shared they say more than wall time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from rich.console import Console
from rich.table import Table

from tokmill.artifacts.directory import Artifact, begin, finish
from tokmill.artifacts.manifest import build_manifest
from tokmill.artifacts.step import Step, Task
from tokmill.engines.cluster import Engine
from tokmill.engines.local import EngineName, Resources, open_engine
from tokmill.kernels.warm import load_kernels
from tokmill.pipeline.freshness import step_inputs
from tokmill.pipeline.plan import plan_steps
from tokmill.recipe.file import load_recipe
from tokmill.stages.registry import STAGES, perform
from tokmill.storage.blocks import open_stream

SHARED = Path(__file__).resolve().parents[2] / "shared"


class Sample(NamedTuple):
    startup: float
    wall: float
    cpu: float


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--texts", type=Path, default=SHARED / "bench", help="directory of *.jsonl.zst")
    tokenizer = SHARED / "data/tokenizers/tiktoken/r50k_base.tiktoken"
    parser.add_argument("--tokenizer", type=Path, default=tokenizer)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--engines", nargs="*", default=["local", "ray"])
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    if not sorted(options.texts.glob("*.jsonl.zst")):
        print(f"no *.jsonl.zst in {options.texts}: give a directory with --texts", file=sys.stderr)
        return 2
    load_kernels()
    with tempfile.TemporaryDirectory(prefix="tokmill-bench-") as directory:
        figures = measure(Path(directory), options)
    render(figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def measure(directory: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    whole = write_recipe(directory / "whole", options.texts, options.tokenizer)
    few = write_recipe(directory / "few", write_few(options.texts, directory / "texts"), options.tokenizer)
    samples: dict[str, list[Sample]] = {engine: [] for engine in options.engines}
    identities: set[str] = set()
    for _ in range(options.rounds):
        for engine in options.engines:
            sample, found = measure_alone(engine, options.workers, few, whole)
            samples[engine].append(sample)
            identities.add(found)
            print(
                f"{engine}: start-up {sample.startup:.2f} s, work {sample.wall:.2f} s, {sample.cpu:.2f} CPU "
                "s",
                file=sys.stderr,
            )
    assert len(identities) == 1, f"engines disagree: {sorted(identities)}"
    wall = {engine: statistics.median(s.wall for s in found) for engine, found in samples.items()}
    cpu = {engine: statistics.median(s.cpu for s in found) for engine, found in samples.items()}
    first = options.engines[0]
    return [
        {
            "engine": engine,
            "workers": options.workers,
            "startup_s": round(statistics.median(s.startup for s in found), 2),
            "work_s": round(wall[engine], 2),
            "times_first": round(wall[engine] / wall[first], 3),
            "cpu_s": round(cpu[engine], 2),
            "times_first_cpu": round(cpu[engine] / cpu[first], 3),
            "work_s_each": [round(s.wall, 2) for s in found],
            "cpu_s_each": [round(s.cpu, 2) for s in found],
        }
        for engine, found in samples.items()
    ]


def write_few(texts: Path, directory: Path) -> Path:
    """The first documents of each file: enough for every stage to have something to do."""
    directory.mkdir()
    for path in sorted(texts.glob("*.jsonl.zst")):
        with open_stream(path) as stream:
            lines = (stream.read(1 << 20) or b"").split(b"\n")[:-1][:20]
        (directory / path.name.removesuffix(".zst")).write_bytes(b"\n".join(lines) + b"\n")
    return directory


def write_recipe(directory: Path, texts: Path, tokenizer: Path) -> Path:
    directory.mkdir()
    names = {path.name.split(".")[0]: str(path) for path in sorted(texts.glob("*.jsonl*"))}
    recipe = {
        "name": "engines",
        "sources": [{"name": name, "domain": name, "files": path} for name, path in names.items()],
        "shards": {"megabytes": 8},
        "normalize": {"unicode": "NFC"},
        "filters": ["gopher-quality", "gopher-repetition"],
        "dedup": {"near": {}},
        "tokenizer": {"path": str(tokenizer), "eos": "<|endoftext|>"},
        "builds": [{"name": "rows", "format": "memmap"}, {"name": "mega", "format": "megatron"}],
    }
    path = directory / "recipe.yaml"
    path.write_text(json.dumps(recipe, indent=1))  # JSON is YAML
    return path


def measure_alone(engine: EngineName, workers: int, few: Path, whole: Path) -> tuple[Sample, str]:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure_here, args=(engine, workers, few, whole, sender))
    process.start()
    sender.close()
    found: tuple[Sample, str] = receiver.recv()
    process.join()
    return found


def _measure_here(name: EngineName, workers: int, few: Path, whole: Path, sender: Any) -> None:
    load_kernels()
    started = time.perf_counter()
    engine = open_engine(
        Resources(workers, name),
        8 << 20,
        lambda message: print(message, file=sys.stderr),
        directory=whole.parent,
    )
    try:
        mill(few, engine)
        ready, before = time.perf_counter(), tree_cpu_seconds()
        identities = mill(whole, engine)
        ended, after = time.perf_counter(), tree_cpu_seconds()
    finally:
        engine.close()
    sender.send((Sample(ready - started, ended - ready, after - before), json.dumps(identities)))


def tree_cpu_seconds() -> float:
    """Of this process and all below it; of those that have ended, where somebody waited for them."""
    here, total = psutil.Process(), 0.0
    for process in [here, *here.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])
    return total


def mill(recipe: Path, engine: Engine) -> dict[str, str]:
    """Every step in order, with tasks as a run hands them out."""
    out = recipe.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    artifacts: dict[str, Artifact] = {}
    for step in plan_steps(load_recipe(recipe), recipe.parent, out):
        if step.kind == "ingest":
            step = replace(step, extra=replace(step.extra, follower=None))  # cleaned in a step of its own
        artifacts[step.name] = conduct(step, artifacts, engine)
    return {name: artifact.manifest.identity for name, artifact in artifacts.items()}


def conduct(step: Step, artifacts: dict[str, Artifact], engine: Engine) -> Artifact:
    upstream = {name: artifacts[name] for name in step.needs}
    begin(step.directory)
    conducting = STAGES[step.kind].conduct(step, upstream)
    tasks: list[Task] = next(conducting)
    while True:
        engine.submit(perform, tasks)
        made = {receipt.fingerprint: receipt for _, receipt, *_ in (engine.collect() for _ in tasks)}
        try:
            tasks = conducting.send([made[task.fingerprint] for task in tasks])
        except StopIteration as stop:
            outcome = stop.value
            break
    manifest = build_manifest(
        kind=step.kind,
        step=step.name,
        config=step.config,
        inputs=step_inputs(step, upstream),
        receipts=outcome.receipts,
        counts=outcome.counts,
        facts=outcome.facts,
        experiment_id="",
        environment={},
    )
    return finish(step.directory, manifest)


def render(figures: list[dict[str, Any]]) -> None:
    table = Table(title="one whole run, median of the rounds")
    for column in ("engine", "workers", "start-up s", "work s", "× first", "CPU s", "× first"):
        table.add_column(column, justify="left" if column == "engine" else "right")
    for f in figures:
        table.add_row(
            f["engine"],
            *(
                str(f[k])
                for k in ("workers", "startup_s", "work_s", "times_first", "cpu_s", "times_first_cpu")
            ),
        )
    Console(soft_wrap=True).print(table)


if __name__ == "__main__":
    raise SystemExit(main())
