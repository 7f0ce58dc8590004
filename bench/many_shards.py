"""What the driver does where there is much to plan and little to do: many sources, many shards.

    python bench/many_shards.py [--sources 1000] [--files 10] [--workers 2] [--json FILE]

Every file has four short documents and is a shard of its own. `plan`, `run`, `status` and a second `run` that
has nothing to do are processes of their own; told are CPU seconds of the driver and of its workers, peak
memory of the driver, tasks, and the bytes of all manifests.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from chain import TOKENIZER
from command import command, environment


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--sources", type=int, default=1000)
    parser.add_argument("--files", type=int, default=10, help="of each source")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tokmill-bench-") as scratch:
        directory = Path(scratch)
        recipe, out = write_inputs(directory, options), directory / "out"
        plan = measure("plan", recipe, "--out", out)
        run = measure("run", recipe, "--out", out, "--workers", options.workers)
        status = measure("status", out)
        again = measure("run", recipe, "--out", out, "--workers", options.workers)
        manifests = sorted(out.glob("**/manifest.json"))
        figures = {
            "shards": options.sources * options.files,
            "tasks": sum(len(json.loads(path.read_bytes())["tasks"]) for path in manifests),
            "manifest_mb": round(sum(path.stat().st_size for path in manifests) / 1e6, 1),
            "plan": plan,
            "run": run,
            "status": status,
            "run again": again,
        }
    render(figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def write_inputs(directory: Path, options: argparse.Namespace) -> Path:
    (directory / "texts").mkdir()
    number = 0
    for source in range(options.sources):
        for file in range(options.files):
            lines = []
            for _ in range(4):
                number += 1
                text = (
                    f"Document {number} of source {source} tells of the river {number * 7919 % 100_003} and "
                    f"of the town {number * 104_729 % 99_991}, and of nothing else at all."
                )
                lines.append(json.dumps({"id": str(number), "text": text}))
            (directory / f"texts/s{source:04d}-{file:03d}.jsonl").write_text("\n".join(lines) + "\n")
    recipe = {
        "name": "many",
        "sources": [
            {"name": f"s{n:04d}", "domain": f"d{n % 5}", "files": f"texts/s{n:04d}-*.jsonl"}
            for n in range(options.sources)
        ],
        "dedup": {"exact": True, "near": {"threshold": 0.8}},
        "split": {"valid_fraction": 0.1},
        "tokenizer": {"path": str(options.tokenizer.resolve()), "eos": "<|endoftext|>"},
        "pack": {"length": 128},
        "builds": [{"name": "rows", "format": "memmap"}],
    }
    path = directory / "recipe.yaml"
    path.write_text(json.dumps(recipe))
    return path


_ASK = """
import resource, sys
from tokmill.cli import main
try:
    main(sys.argv[2:])
except SystemExit as end:
    assert not end.code, end.code
own, others = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
figures = [own.ru_utime + own.ru_stime, others.ru_utime + others.ru_stime, own.ru_maxrss / 1e3]
open(sys.argv[1], "w").write(" ".join(map(str, figures)))
"""


def measure(*arguments: Any) -> dict[str, float]:
    """Of a command: CPU seconds of it and of its workers, its memory and how long it took."""
    begun = time.monotonic()
    with tempfile.NamedTemporaryFile("r") as told:
        asked = [command()[0], "-c", _ASK, told.name, *map(str, arguments)]
        settings = {**environment(), "TOKMILL_WORKER_MEGABYTES": "0"}  # workers, however little there is
        subprocess.run(asked, env=settings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
        own, others, peak = map(float, told.read().split())
    figures = {"driver_cpu_s": own, "workers_cpu_s": others, "peak_mb": peak}
    figures["wall_s"] = time.monotonic() - begun
    print(arguments[0], {name: round(value, 1) for name, value in figures.items()}, file=sys.stderr)
    return {name: round(value, 2) for name, value in figures.items()}


def render(figures: dict[str, Any]) -> None:
    table = Table(
        title=f"{figures['shards']:,} shards, {figures['tasks']:,} tasks, "
        f"{figures['manifest_mb']:,} MB of manifests"
    )
    for column in ("", "CPU s of the driver", "CPU s of workers", "peak MB of the driver", "wall s"):
        table.add_column(column, justify="right")
    for name in ("plan", "run", "status", "run again"):
        row = figures[name]
        table.add_row(name, *(f"{row[key]:,.1f}" for key in row))
    Console(soft_wrap=True).print(table)


if __name__ == "__main__":
    raise SystemExit(main())
