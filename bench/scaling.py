"""How much sooner a run ends with more workers: wall and CPU seconds, and that the content is the same.

    python bench/scaling.py [--texts DIR] [--variants 16] [--workers 16 8 4 1] [--rounds 1] [--json FILE]

Texts are made more by shifting their letters (a variant of each file for each shift, `--variants 1`: as they
are), so that no document is a copy of another. Each round is `tokmill run` once with each number of workers,
from nothing: language, packs for the web, exact and near duplicates, split, gpt2 tokens, a mixture of five
domains, rows packed by best fit, a memmap and a Megatron build.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import string
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from chain import SHARED, TOKENIZER
from command import command
from tokmill.storage.disk import ZstdFile
from workers import run


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--texts", type=Path, default=SHARED / "bench", help="directory of *.jsonl.zst")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER)
    parser.add_argument("--variants", type=int, default=16)
    parser.add_argument("--workers", type=int, nargs="+", default=[16, 8, 4, 1])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    paths = sorted(options.texts.glob("*.jsonl.zst"))
    if not paths:
        print(f"no *.jsonl.zst in {options.texts}: give a directory with --texts", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="tokmill-bench-") as scratch:
        directory = Path(scratch)
        jobs = [(path, shift, directory / "texts") for path in paths for shift in range(options.variants)]
        (directory / "texts").mkdir()
        with ProcessPoolExecutor() as pool:
            megabytes = sum(pool.map(write_variant, *zip(*jobs, strict=True))) / 1e6
        recipe = write_recipe(directory, paths, options.tokenizer)
        figures = measure(recipe, options.workers, options.rounds)
        shutil.rmtree(directory / "out", ignore_errors=True)
    render(figures, megabytes)
    if options.json:
        options.json.write_text(json.dumps({"text_mb": megabytes, "runs": figures}, indent=2) + "\n")
    return 0


def write_variant(path: Path, shift: int, directory: Path) -> int:
    """Its bytes of text."""
    letters = (string.ascii_lowercase, string.ascii_uppercase)
    table = str.maketrans("".join(letters), "".join(some[shift:] + some[:shift] for some in letters))
    size = 0
    with (
        ZstdFile(path) as lines,
        ZstdFile(directory / f"{path.name.split('.')[0]}-{shift:02d}.jsonl.zst", "w", level=1) as made,
    ):
        for line in lines:
            record = json.loads(line)
            text = record["text"].translate(table)
            size += len(text.encode())
            record |= {"id": f"{shift}/{record['id']}", "text": text}
            made.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
    return size


def write_recipe(directory: Path, paths: Sequence[Path], tokenizer: Path) -> Path:
    names = [path.name.split(".")[0] for path in paths]
    recipe = {
        "name": "scaling",
        "sources": [
            {"name": name, "domain": name, "files": f"texts/{name}-*.jsonl.zst", "fields": {"id": "id"}}
            for name in names
        ],
        "normalize": {"unicode": "NFC", "newlines": "lf"},
        "language": {"method": "detect"},
        "domains": {"web": {"filters": ["gopher-repetition", "fineweb"]}},
        "dedup": {"exact": True, "near": {"threshold": 0.8}},
        "split": {"method": "hash", "valid_fraction": 0.02},
        "tokenizer": {"path": str(tokenizer.resolve()), "eos": "<|endoftext|>"},
        "mixture": {"weights": dict.fromkeys(names, 1)},
        "pack": {"layout": "best_fit", "length": 2048},
        "builds": [{"name": "rows", "format": "memmap"}, {"name": "mega", "format": "megatron"}],
    }
    path = directory / "recipe.yaml"
    path.write_text(json.dumps(recipe, indent=1))
    return path


def measure(recipe: Path, workers: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    samples: dict[int, list[tuple[float, float]]] = {}
    identities: set[str] = set()
    for _ in range(rounds):
        for count in workers:
            cpu, wall, identity = run(command()[0], recipe, count)
            samples.setdefault(count, []).append((cpu, wall))
            identities.add(identity)
            print(f"{count} workers: {wall:.1f} s, {cpu:.1f} CPU s", file=sys.stderr)
    assert len(identities) == 1, "the content depends on the number of workers"
    return [
        {
            "workers": count,
            "wall_s": round(statistics.median(wall for _, wall in found), 2),
            "cpu_s": round(statistics.median(cpu for cpu, _ in found), 2),
        }
        for count, found in samples.items()
    ]


def render(figures: list[dict[str, Any]], megabytes: float) -> None:
    table = Table(title=f"{megabytes:,.0f} MB of text, one content for all")
    for column in ("workers", "wall s", "sooner by", "CPU s", "CPU × one"):
        table.add_column(column, justify="right")
    one = next((figure for figure in figures if figure["workers"] == 1), None)
    for figure in figures:
        sooner, more = (
            (f"{one['wall_s'] / figure['wall_s']:.2f}", f"{figure['cpu_s'] / one['cpu_s']:.2f}")
            if one is not None
            else ("", "")
        )
        table.add_row(
            str(figure["workers"]), f"{figure['wall_s']:.1f}", sooner, f"{figure['cpu_s']:.1f}", more
        )
    Console(soft_wrap=True).print(table)


if __name__ == "__main__":
    raise SystemExit(main())
