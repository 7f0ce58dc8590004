"""What a further worker costs: CPU seconds of the same run with one worker and with several.

    python bench/workers.py [--texts DIR] [--workers 1 2 3 4] [--rounds 5] [--python PYTHON …] [--json FILE]

A round is `tokmill run` once with each number of workers, in turn, in an empty directory, of the chain of
bench/chain.py with nothing dropped; CPU seconds are those of the driver and all its processes, as the system
counts them. The cost of a further worker is the slope of a line through the medians. With several
`--python` (two versions, each in its environment) rounds take turns between them, so that a busy machine is
equally busy for both. Every run must have the same content.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from chain import SHARED, TOKENIZER, write_recipe
from command import command, environment
from tokmill.artifacts.manifest import load_manifest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--texts", type=Path, default=SHARED / "bench", help="directory of *.jsonl.zst")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--python", nargs="+", default=[command()[0]], help="of versions to compare")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    paths = sorted(options.texts.glob("*.jsonl.zst"))
    if not paths:
        print(f"no *.jsonl.zst in {options.texts}: give a directory with --texts", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="tokmill-bench-") as scratch:
        recipe = write_recipe(Path(scratch), paths, options.tokenizer, "all kept")
        figures = measure(recipe, options)
    render(figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def measure(recipe: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    samples: dict[tuple[str, int], list[tuple[float, float]]] = {}
    identities: set[str] = set()
    for _ in range(options.rounds):
        for python in options.python:
            for workers in options.workers:
                cpu, wall, identity = run(python, recipe, workers, {"TOKMILL_WORKER_MEGABYTES": "0"})
                samples.setdefault((python, workers), []).append((cpu, wall))
                identities.add(identity)
                print(f"{python}: {workers} workers, {cpu:.2f} CPU s, {wall:.2f} s", file=sys.stderr)
    assert len(identities) == 1, "the content depends on the number of workers"
    return [
        {
            "python": python,
            "workers": workers,
            "cpu_s": round(statistics.median(cpu for cpu, _ in found), 2),
            "wall_s": round(statistics.median(wall for _, wall in found), 2),
            "cpu_s_each": [round(cpu, 2) for cpu, _ in found],
        }
        for (python, workers), found in samples.items()
    ]


def run(
    python: str, recipe: Path, workers: int, settings: Mapping[str, str] | None = None
) -> tuple[float, float, str]:
    """CPU and wall seconds of a run in an empty directory, and what is the same for any number of workers."""
    out = recipe.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    asked = [python, *command("run", recipe, "--out", out, "--workers", workers)[1:]]
    begun = time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(asked, env={**environment(), **(settings or {})}, stdout=said, stderr=said)
        _, status, used = os.wait4(process.pid, 0)  # of the process and of all that it waited for
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            raise SystemExit(f"tokmill run ended with status {process.returncode}:\n{said.read()[-3000:]}")
    wall = time.monotonic() - begun
    manifests = sorted(path.parent for path in out.glob("*/**/manifest.json"))
    identity = json.dumps([load_manifest(directory).identity for directory in manifests])
    return used.ru_utime + used.ru_stime, wall, identity


def render(figures: list[dict[str, Any]]) -> None:
    console = Console(soft_wrap=True)
    for python in dict.fromkeys(figure["python"] for figure in figures):
        of = [figure for figure in figures if figure["python"] == python]
        table = Table(title=f"{python}, median of the rounds")
        for column in ("workers", "CPU s", "× one", "wall s"):
            table.add_column(column, justify="right")
        for f in of:
            times = f["cpu_s"] / of[0]["cpu_s"]
            table.add_row(str(f["workers"]), f"{f['cpu_s']:.2f}", f"{times:.2f}", f"{f['wall_s']:.2f}")
        console.print(table)
        if len(of) > 1:
            slope = np.polyfit([f["workers"] for f in of], [f["cpu_s"] for f in of], 1)[0]
            console.print(f"a further worker: {slope:.2f} CPU s")


if __name__ == "__main__":
    raise SystemExit(main())
