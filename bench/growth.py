"""How much memory a mixture and a build take as the corpus grows.

    python bench/growth.py [--documents 1000000 4000000 16000000] [--layout concat] [--format memmap]

Three sources of documents with lengths drawn at random are written as the tokens step leaves them: a table of
lengths and a file of ids for every shard. Then the two tasks are done, each in a process of its own: a
mixture by weights to a budget of tokens, and a build of all its turns; and both once more with a source that
repeats. Printed are the peak of resident memory, which should not grow, and CPU seconds, which should grow
with the corpus.
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

import msgspec
import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from tokmill.artifacts.manifest import FileEntry
from tokmill.artifacts.step import Input, Task, table_input
from tokmill.kernels.warm import load_kernels
from tokmill.schema import LENGTHS
from tokmill.stages.build.mixture import SplitMixtureOptions
from tokmill.stages.registry import FUNCTIONS
from tokmill.storage.tables import write_table

SOURCES = {"web": 0.5, "books": 0.3, "math": 0.2}  # of the documents
WEIGHTS = {"web": "0.4", "books": "0.35", "math": "0.25"}
SHARD_DOCUMENTS = 100_000
MEAN_TOKENS = 48
ROW = 2048
LICENSES = pa.array(["CC-BY-4.0", "MIT", None])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--documents", type=int, nargs="+", default=[1_000_000, 4_000_000, 16_000_000])
    parser.add_argument("--layout", default="concat", choices=["concat", "apart", "document", "best_fit"])
    parser.add_argument("--format", default="memmap", choices=["memmap", "npy", "megatron"])
    parser.add_argument("--balance", default="none", choices=["none", "smallest"])
    parser.add_argument("--keep", type=Path, help="directory for the corpora: left there, and found again")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return _child(Path(options.child))
    table = Table(
        "documents", "task", "turns", "peak MB", "CPU s", title=f"{options.layout} {options.format}"
    )
    for count in options.documents:
        home = options.keep or Path(tempfile.mkdtemp(prefix="growth-"))
        try:
            shards = write_corpus(home / f"tokens-{count}", count)
            for name, mixture in (("budget", _budget(count)), ("repeat", _repeat(count))):
                for told in measure(home / f"{name}-{count}", shards, mixture, options):
                    table.add_row(f"{count:,}", f"{name}: {told[0]}", *told[1:])
                shutil.rmtree(home / f"{name}-{count}")
        finally:
            if options.keep is None:
                shutil.rmtree(home)
        Console().print(table)
    return 0


def _budget(count: int) -> dict[str, Any]:
    return {"target": ["tokens", int(0.6 * count * MEAN_TOKENS)], "exhausted": "stop", "weights": WEIGHTS}


def _repeat(count: int) -> dict[str, Any]:
    """A tenth of the documents of mathematics are read three times."""
    weights = {"web": "0.3", "books": "0.2", "math": "0.5"}
    return {"target": ["tokens", int(1.1 * count * MEAN_TOKENS)], "exhausted": "repeat", "weights": weights}


def write_corpus(home: Path, count: int) -> list[dict[str, Any]]:
    """Shards of all sources, as the tokens step leaves them."""
    listed = home / "shards.json"
    if listed.exists():
        found: list[dict[str, Any]] = json.loads(listed.read_text())
        return found
    shards: list[dict[str, Any]] = []
    for source, share in SOURCES.items():
        left = int(count * share)
        while left:
            rows = min(left, SHARD_DOCUMENTS)
            shards.append(_write_shard(home, len(shards), source, rows))
            left -= rows
    listed.write_text(json.dumps(shards))
    return shards


def _write_shard(home: Path, number: int, source: str, rows: int) -> dict[str, Any]:
    draw = np.random.default_rng([7, number])
    lengths = np.maximum(1, draw.gamma(1.5, MEAN_TOKENS / 1.5, rows)).astype(np.int64)
    names = np.char.add(f"{source}-{number:05d}-", np.arange(rows).astype(str))
    table = pa.table(
        [
            pa.array(np.arange(rows), pa.uint32()),
            pa.array(names, pa.string()),
            lengths,
            4 * lengths,
            pa.array(["en"] * rows, pa.string()),
            LICENSES.take(pa.array(draw.integers(0, 3, rows))),
        ],
        schema=LENGTHS,
    )
    path = home / f"lengths-{number:05d}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(path, table)
    ids = draw.integers(0, 50_000, int(lengths.sum()), dtype=np.uint16)
    ids.tofile(path.with_name(f"tokens-{number:05d}.bin"))
    return {"number": number, "source": source, "lengths": str(path), "rows": rows}


def measure(
    home: Path, shards: list[dict[str, Any]], mixture: dict[str, Any], options: argparse.Namespace
) -> list[list[str]]:
    """Task, turns, peak and seconds, of the mixture and of the build."""
    task = _mixture_task(home / "mixture", shards, mixture)
    made, *told = _run(home, task)
    entries = msgspec.convert(made, list[FileEntry])
    turns = [table_input(entry.table, home / "mixture", entry) for entry in entries]
    _, *of_build = _run(home, _build_task(home / "build", shards, turns, options))
    count = f"{entries[0].rows:,}"
    return [["mixture", count, *told], ["build", count, *of_build]]


def _mixture_task(home: Path, shards: list[dict[str, Any]], mixture: dict[str, Any]) -> Task:
    config = {
        "domains": mixture["weights"],
        "sources": {},
        "domain_of": {source: source for source in SOURCES},
        "target": mixture["target"],
        "amount": mixture["target"][1],
        "exhausted": mixture["exhausted"],
        "max_epochs": 8,
        "order": "shuffle",
        "held_out": "mixed",
        "is_held_out": False,
        "seed": 1,
        "seq_len": ROW,
        "shards": [[shard["number"], shard["source"]] for shard in shards],
    }
    inputs = [Input("lengths", shard["lengths"], "", shard["rows"]) for shard in shards]
    options = msgspec.convert(config, SplitMixtureOptions)
    return Task(function="mixture", key="train", options=options, inputs=inputs, directory=str(home))


def _build_task(
    home: Path, shards: list[dict[str, Any]], turns: list[Input], options: argparse.Namespace
) -> Task:
    layout = "concat" if options.layout == "apart" else options.layout
    pack: dict[str, Any] = {"layout": layout, "length": ROW, "mix_domains": options.layout == "concat"}
    if layout == "concat":
        pack["tail"] = "drop"
    if options.format == "megatron":
        pack = {"layout": "indexed"}
    facts = {"file": "t", "sha256": "", "vocab_size": 50_000, "eos_id": 0}
    config = {
        "name": "rows",
        "format": options.format,
        "rows_per_shard": 8192,
        "dtype": "int32" if options.format == "npy" else "uint16",
        "split": "train",
        "tokenizer": facts,
        "experiment_id": "",
        "sources": [],
        "pack": pack,
        "balance": options.balance,
        "seed": 1,
        "rows": None,
        "shards": [[shard["number"], shard["source"], shard["source"]] for shard in shards],
    }
    inputs = [
        item
        for shard in shards
        for item in (
            Input("tokens", shard["lengths"].replace("lengths-", "tokens-").replace(".parquet", ".bin"), ""),
            Input("lengths", shard["lengths"], "", shard["rows"]),
        )
    ]
    return Task(function="build", key="train", options=config, inputs=[*inputs, *turns], directory=str(home))


def _run(home: Path, task: Task) -> tuple[Any, str, str]:
    home.mkdir(parents=True, exist_ok=True)
    (home / "task.json").write_bytes(msgspec.json.encode(task))
    command = [sys.executable, __file__, "--child", str(home / "task.json")]
    told = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])
    return told["files"], f"{told['peak'] / 1024:,.0f}", f"{told['seconds']:,.1f}"


def _child(path: Path) -> int:
    load_kernels({"mixing", "packing"})
    task: Task = msgspec.json.decode(path.read_bytes(), type=Task)
    function = FUNCTIONS[task.function]
    task = msgspec.structs.replace(task, options=msgspec.convert(task.options, function.options))
    started = time.process_time()
    made = function.perform(task)
    seconds = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"files": msgspec.to_builtins(made.files), "peak": peak, "seconds": seconds}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
