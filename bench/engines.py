"""What an engine costs on one machine: wall time of a whole run, start-up aside.

    python bench/engines.py [--texts DIR] [--workers 2] [--rounds 3] [--engines local ray dask] [--json FILE]

Each run is a process of its own. Start-up (the engine, its workers, their kernels, the tokenizer) is what the same
recipe takes on a few documents, and is taken off. Engines alternate, so that a noisy minute does not fall on one
of them only; figures are medians of the rounds. All must end with the same digests.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tokmill.kernels.warm import compile_kernels
from tokmill.storage.streams import open_stream

SHARED = Path(__file__).resolve().parents[2] / "shared"
RUN = "from tokmill.cli import main; main()"


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
    compile_kernels(lambda message: print(message, file=sys.stderr))
    with tempfile.TemporaryDirectory(prefix="tokmill-bench-") as directory:
        figures = measure(Path(directory), options)
    render(figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def measure(directory: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    whole = write_recipe(directory / "whole", options.texts, options.tokenizer)
    few = write_recipe(directory / "few", write_few(options.texts, directory / "texts"), options.tokenizer)
    samples: dict[str, list[tuple[float, float]]] = {engine: [] for engine in options.engines}
    identities: set[str] = set()
    for number in range(options.rounds):
        for engine in options.engines:
            startup, _ = run(few, engine, options.workers, f"{engine}-{number}")
            seconds, found = run(whole, engine, options.workers, f"{engine}-{number}")
            samples[engine].append((startup, seconds - startup))
            identities.add(found)
            print(f"{engine}: start-up {startup:.2f} s, work {seconds - startup:.2f} s", file=sys.stderr)
    assert len(identities) == 1, "engines disagree"
    work = {engine: statistics.median(w for _, w in found) for engine, found in samples.items()}
    return [
        {
            "engine": engine,
            "workers": options.workers,
            "startup_s": round(statistics.median(s for s, _ in found), 2),
            "work_s": round(work[engine], 2),
            "times_local": round(work[engine] / work[options.engines[0]], 3),
            "work_s_each": [round(w, 2) for _, w in found],
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


def run(recipe: Path, engine: str, workers: int, name: str) -> tuple[float, str]:
    command = ["run", recipe, "--out", recipe.parent / name, "--json", "--device", "cpu"]
    command += ["--engine", engine, "--workers", str(workers)]
    started = time.perf_counter()
    ran = subprocess.run(
        [sys.executable, "-c", RUN, *map(str, command)], capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - started
    if ran.returncode:
        raise SystemExit(ran.stdout + ran.stderr)
    steps = json.loads(ran.stdout)["steps"]
    return seconds, json.dumps({step: found["identity"] for step, found in steps.items()})


def render(figures: list[dict[str, Any]]) -> None:
    table = Table(title="one whole run, median of the rounds")
    for column in ("engine", "workers", "start-up s", "work s", "times the first"):
        table.add_column(column, justify="left" if column == "engine" else "right")
    for f in figures:
        table.add_row(f["engine"], *(str(f[k]) for k in ("workers", "startup_s", "work_s", "times_local")))
    Console(soft_wrap=True).print(table)


if __name__ == "__main__":
    raise SystemExit(main())
