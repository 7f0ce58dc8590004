"""What `tokmill plan --estimate` says of a run, beside what the run is: three recipes over the five texts.

    python bench/estimate.py [--workers 1] [--json FILE]

For each recipe the estimate and then the run, each as a process of its own. Kept documents are off by points
of a hundred, all else by per cent. What is actual is counted here: rows of the tables of lengths, the tokens
they tell, sizes of files as the disk has them, wall and CPU time of the process.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from chain import SHARED, TOKENIZER, write_recipe
from command import command, environment
from tokmill.kernels.warm import load_kernels


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    paths = sorted((SHARED / "bench").glob("*.jsonl.zst"))
    if not paths:
        print(f"needs the texts in {SHARED}/bench", file=sys.stderr)
        return 2
    load_kernels()
    with tempfile.TemporaryDirectory(prefix="tokmill-bench-") as scratch:
        recipes = {
            "filtered": write_recipe(Path(scratch) / "filtered", paths, TOKENIZER, "filtered"),
            "all kept": write_recipe(Path(scratch) / "all-kept", paths, TOKENIZER, "all kept"),
            "mixed": write_mixed(Path(scratch) / "mixed", paths),
        }
        figures = [{"recipe": name, **compare(path, options.workers)} for name, path in recipes.items()]
    render(figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def write_mixed(directory: Path, paths: list[Path]) -> Path:
    """Weights, a target, a limit, a sample and two builds."""
    bounds: dict[str, dict[str, Any]] = {
        "web": {"limit": {"megabytes": 20}},
        "math": {"sample": {"method": "reservoir", "k": 6000}},
    }
    names = [path.name.split(".")[0] for path in paths]
    recipe = {
        "name": "mixed",
        "sources": [
            {"name": name, "domain": name, "files": str(path.resolve()), **bounds.get(name, {})}
            for name, path in zip(names, paths, strict=True)
        ],
        "normalize": {"unicode": "NFC", "newlines": "lf"},
        "dedup": {"exact": True, "near": {"threshold": 0.8}},
        "split": {"valid_fraction": 0.05},
        "tokenizer": {"path": str(TOKENIZER.resolve()), "eos": "<|endoftext|>"},
        "mixture": {"weights": {name: round(1 / len(names), 3) for name in names}, "tokens": 12_000_000},
        "pack": {"layout": "best_fit", "length": 2048},
        "builds": [{"name": "rows", "format": "memmap"}, {"name": "mega", "format": "megatron"}],
    }
    directory.mkdir(parents=True)
    path = directory / "recipe.yaml"
    path.write_text(json.dumps(recipe, indent=1))
    return path


def compare(recipe: Path, workers: int) -> dict[str, Any]:
    out = recipe.parent / "out"
    begun = time.monotonic()
    plan = json.loads(ask("plan", recipe, "--out", out, "--estimate", "--json"))["estimate"]
    took = time.monotonic() - begun
    begun, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    ask("run", recipe, "--out", out, "--workers", workers)
    wall, after = time.monotonic() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    documents = sum(pq.read_metadata(path).num_rows for path in out.glob("ingest/*/documents-*.parquet"))
    lengths = list(out.glob("tokens/**/lengths-*.parquet"))
    kept = sum(pq.read_metadata(path).num_rows for path in lengths)
    tokens = sum(sum(pq.read_table(path, columns=["tokens"]).column(0).to_pylist()) for path in lengths)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    shutil.rmtree(out)
    estimated = {
        "kept": sum(one["kept"][0] for one in plan["sources"].values()),
        "tokens": sum(interval[0] for interval in plan["tokens"].values()),
        "disk_mb": sum(plan["disk"].values()) / 1e6,
        "wall_s": plan["seconds"][str(workers)][0],
        "cpu_s": sum(plan["cpu_seconds"].values()) + plan["start_seconds"],
    }
    actual = {"kept": kept, "tokens": tokens, "disk_mb": size / 1e6, "wall_s": wall, "cpu_s": cpu}
    off = {name: 100 * (estimated[name] / actual[name] - 1) for name in actual}
    off["kept"] = 100 * (estimated["kept"] - kept) / documents
    return {"took_s": took, "estimated": estimated, "actual": actual, "off": off}


def ask(*words: object) -> str:
    done = subprocess.run(command(*words), env=environment(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"tokmill {words[0]} ended with status {done.returncode}:\n{done.stderr[-3000:]}")
    return done.stdout


def render(figures: list[dict[str, Any]]) -> None:
    table = Table(title="estimated, actual and off by: points for kept, per cent for the others")
    for name in ("recipe", "what", "estimated", "actual", "off", "the estimate took s"):
        table.add_column(name, justify="left" if name in ("recipe", "what") else "right")
    for row in figures:
        for what, actual in row["actual"].items():
            table.add_row(
                row["recipe"] if what == "kept" else "",
                what,
                f"{row['estimated'][what]:,.1f}",
                f"{actual:,.1f}",
                f"{row['off'][what]:+.1f}",
                f"{row['took_s']:.1f}" if what == "kept" else "",
            )
    Console(width=120).print(table)


if __name__ == "__main__":
    raise SystemExit(main())
