"""How fast each stage of the whole chain is on real text:
MB of text per CPU second and per wall second, peak memory.

    python bench/stages.py [--texts DIR] [--rounds 3] [--json FILE]

Every stage runs in a process of its own, on one core, with the kernels compiled and libraries loaded, so that
CPU time and peak RSS belong to it alone. A figure is the median of the rounds; rounds of all stages
alternate, so that a noisy minute does not fall on one stage only. Text bytes are those of the documents as
received; bytes read and written are those of the process, as the system counts them. bench/chain.py has the
recipe: nothing is dropped but duplicates, so that every stage sees all of the text.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from chain import TOKENIZER, write_recipe
from tokmill.artifacts.directory import Artifact, begin, finish, open_artifact, usable_receipts
from tokmill.artifacts.manifest import Receipt, build_manifest
from tokmill.artifacts.step import Step, Task, Unawaited
from tokmill.kernels.warm import load_kernels
from tokmill.pipeline.freshness import step_inputs
from tokmill.pipeline.plan import plan_steps
from tokmill.recipe.file import parse_recipe
from tokmill.stages.registry import STAGES, perform

SHARED = Path(__file__).resolve().parents[2] / "shared"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--texts", type=Path, default=SHARED / "bench", help="directory of *.jsonl.zst")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER, help="a tokenizer.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--stages", nargs="*", help="only these, e.g. ingest+clean")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    if not sorted(options.texts.glob("*.jsonl.zst")):
        print(f"no *.jsonl.zst in {options.texts}: give a directory with --texts", file=sys.stderr)
        return 2
    load_kernels()
    figures = measure(options.texts, options.tokenizer, options.rounds, options.stages)
    render(figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def measure(texts: Path, tokenizer: Path, rounds: int, only: Sequence[str] | None) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="tokmill-bench-") as directory:
        recipe = write_recipe(Path(directory), sorted(texts.glob("*.jsonl.zst")), tokenizer, "all kept")
        stages = [("ingest+clean", ["ingest", "clean"], True)]
        stages += [
            (kind, [kind], False)
            for kind in ("ingest", "clean", "dedup", "split", "tokenizer", "tokens", "build")
        ]
        samples: dict[str, list[dict[str, float]]] = {}
        for _ in range(rounds):
            shutil.rmtree(Path(directory) / "out", ignore_errors=True)
            for name, kinds, fuse in stages:
                is_wanted = not only or name in only
                sample = run_alone(recipe, kinds, fuse)
                if is_wanted:
                    samples.setdefault(name, []).append(sample)
    return [_summary(name, found) for name, found in samples.items()]


def run_alone(recipe: Path, kinds: list[str], fuse: bool) -> dict[str, float]:
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_measure_here, args=(recipe, kinds, fuse, sender))
    process.start()
    sender.close()
    sample: dict[str, float] = receiver.recv()
    process.join()
    return sample


def _measure_here(recipe: Path, kinds: list[str], fuse: bool, sender: Any) -> None:
    load_kernels()
    pa.array([""])  # Arrow imports pandas here, once per process and where there is one: 0.25 s
    out = recipe.parent / "out"
    steps = plan_steps(parse_recipe(recipe.read_bytes(), str(recipe)), recipe.parent, out)
    if kinds == ["ingest"] or fuse:
        shutil.rmtree(out, ignore_errors=True)
    artifacts: dict[str, Artifact] = {}
    cpu = wall = read = written = 0.0
    for step in steps:
        is_measured = step.kind in kinds
        if step.kind == "ingest" and not fuse:
            step = replace(step, extra=replace(step.extra, follower=None))
        if is_measured and not fuse:
            shutil.rmtree(step.directory, ignore_errors=True)
        if not is_measured:
            if (step.directory / "manifest.json").exists():
                artifacts[step.name] = _open(step)
            continue
        before, start_cpu, start_wall = _moved(), time.process_time(), time.perf_counter()
        artifacts[step.name] = _conduct(step, artifacts)
        cpu += time.process_time() - start_cpu
        wall += time.perf_counter() - start_wall
        read, written = read + _moved()[0] - before[0], written + _moved()[1] - before[1]
    text_bytes = sum(a.manifest.counts["text_bytes"] for n, a in artifacts.items() if n.startswith("ingest/"))
    moved = {"read": read, "written": written}
    sender.send({"cpu": cpu, "wall": wall, "peak_rss": float(_peak_rss()), "text_bytes": text_bytes, **moved})


def _moved() -> tuple[float, float]:
    """Bytes that this process has read and written so far; zero where the system does not count them."""
    path = Path("/proc/self/io")
    if not path.exists():
        return 0.0, 0.0
    counts = dict(line.split(": ") for line in path.read_text().splitlines())
    return float(counts["rchar"]), float(counts["wchar"])


def _peak_rss() -> int:
    """Of this process alone: getrusage's figure also remembers the parent that it was started from."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _open(step: Step) -> Artifact:
    artifact = open_artifact(step.directory)
    assert artifact is not None
    return artifact


def _conduct(step: Step, artifacts: dict[str, Artifact]) -> Artifact:
    """One step in this process: the tasks that an engine would hand out, one after the other."""
    upstream = {name: artifacts[name] for name in step.needs}
    begin(step.directory)
    conduct = STAGES[step.kind].conduct(step, upstream)
    tasks: list[Task] = next(conduct)
    left: list[Receipt] = []
    while True:
        held = usable_receipts(step.directory, [task.fingerprint for task in tasks])
        receipts = [held.get(task.fingerprint) or perform(task) for task in tasks]
        first = tasks.first if isinstance(tasks, Unawaited) else 0
        try:
            tasks, left = conduct.send([*left, *receipts[first:]]), receipts[:first]
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


def _summary(name: str, samples: list[dict[str, float]]) -> dict[str, Any]:
    megabytes = samples[0]["text_bytes"] / 1e6
    cpu = statistics.median(sample["cpu"] for sample in samples)
    wall = statistics.median(sample["wall"] for sample in samples)
    return {
        "stage": name,
        "text_mb": round(megabytes, 1),
        "cpu_s": round(cpu, 3),
        "wall_s": round(wall, 3),
        "mb_per_cpu_s": round(megabytes / cpu, 1),
        "mb_per_wall_s": round(megabytes / wall, 1),
        "peak_rss_mb": round(max(sample["peak_rss"] for sample in samples) / 1e6),
        "read_mb": round(samples[0]["read"] / 1e6, 1),
        "written_mb": round(samples[0]["written"] / 1e6, 1),
        "cpu_s_each": [round(sample["cpu"], 3) for sample in samples],
    }


def render(figures: list[dict[str, Any]]) -> None:
    table = Table(title="tokmill stages, one core, median of the rounds")
    for column in (
        "stage",
        "text MB",
        "CPU s",
        "MB / CPU s",
        "MB / wall s",
        "peak RSS MB",
        "read MB",
        "written MB",
    ):
        table.add_column(column, justify="left" if column == "stage" else "right")
    for f in figures:
        keys = ("text_mb", "cpu_s", "mb_per_cpu_s", "mb_per_wall_s", "peak_rss_mb", "read_mb", "written_mb")
        table.add_row(f["stage"], *(f"{f[key]:,}" for key in keys))
    Console(soft_wrap=True).print(table)


if __name__ == "__main__":
    raise SystemExit(main())
