"""What an edit of a finished run costs, beside a fresh run of the same recipe: CPU seconds, and the digests.

    python bench/incremental.py [--texts DIR] [--workers 1] [--rounds 1] [--only NAME …] [--json FILE]

    base       19 in 20 documents of every file, one source each; the others are what comes later
    an edit    of a copy of the finished base: the same command with the edited recipe
    fresh      the edited recipe in an empty directory, which keeps nothing (--lean): its digest has to be the
               same
    little     both once more, of the first 40 documents of every file

CPU seconds are those of `tokmill run` and all its workers, as the system counts them, medians of the rounds.
What an edit costs beside a fresh run is told twice. Above a run that has nothing to do: that stands for
Python, libraries and manifests, but not for kernels, tables and the tokenizer, which an edit loads like a
fresh run. And above start-up as docs/performance.md has it, the CPU of the same command over next to nothing:
from an edit what it takes of the little corpus is taken, and from a fresh run what that takes of it.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

import tokmill
from chain import SHARED, TOKENIZER, write_recipe
from command import command, environment
from tokmill.artifacts.cache import cache_bytes, cache_directory
from tokmill.kernels.warm import load_kernels
from tokmill.storage.disk import ZstdFile

EVERY = 20  # one document in so many is new
LITTLE = 40  # documents of a file that are next to nothing
Recipe = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=Path, default=SHARED / "bench", help="directory of *.jsonl.zst")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER, help="a tokenizer.json")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--window", action="store_true", help="look for repeated passages too")
    parser.add_argument("--only", nargs="*", help="these edits")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    paths = sorted(options.texts.glob("*.jsonl.zst"))
    if not paths:
        print(f"no *.jsonl.zst in {options.texts}: give a directory with --texts", file=sys.stderr)
        return 2
    load_kernels()
    with tempfile.TemporaryDirectory(prefix="tokmill-bench-") as scratch:
        figures = measure(paths, Path(scratch), options)
    render(figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def measure(paths: list[Path], home: Path, options: argparse.Namespace) -> dict[str, Any]:
    whole, little = Corpus(home / "whole", paths, options), Corpus(home / "little", paths, options, LITTLE)
    whole.mill(whole.base, whole.home / "warm-up", "--until", "split")  # of files and bytecode
    fresh = whole.mill(whole.base, whole.finished)
    little.mill(little.base, little.finished)
    nothing = statistics.median(whole.mill(whole.base, whole.finished) for _ in range(options.rounds))
    out = whole.finished
    manifest = json.loads((out / "manifest.json").read_bytes())
    text_bytes = sum(c["text_bytes"] for name, c in manifest["counts"].items() if name.startswith("ingest/"))
    figures: dict[str, Any] = {
        "text_mb": round(text_bytes / 1e6, 1),
        "fresh_cpu_s": round(fresh, 2),
        "nothing_cpu_s": round(nothing, 2),
        "cache_mb": round(cache_bytes(out) / 1e6, 1),
        "cache_share": round(cache_bytes(out) / text_bytes, 4),
        "edits": [],
    }
    for name, edit in EDITS.items():
        if options.only and name not in options.only:
            continue
        rounds = [(*whole.cost(edit), *little.cost(edit)[:2]) for _ in range(options.rounds)]
        spent, again, little_spent, little_again = (
            statistics.median(found[at] for found in rounds) for at in (0, 1, 4, 5)
        )
        figures["edits"].append(
            {
                "edit": name,
                "cpu_s": round(spent, 2),
                "fresh_cpu_s": round(again, 2),
                "little_cpu_s": round(little_spent, 2),
                "little_fresh_cpu_s": round(little_again, 2),
                "share": round((spent - nothing) / (again - nothing), 4),
                "share_above_start": round((spent - little_spent) / (again - little_again), 4),
                "same_digest": all(found[2] for found in rounds),
                "cache_share": round(rounds[-1][3] / text_bytes, 4),
            }
        )
    return figures


class Corpus:
    """Texts in two parts, and a finished run of the first."""

    def __init__(
        self, home: Path, paths: list[Path], options: argparse.Namespace, most: int | None = None
    ) -> None:
        self.home, self._workers = home, options.workers
        self.finished = home / "base"
        self._new = part_texts(paths, home, most)
        self.base = base_recipe(home, options)

    def mill(self, recipe: Recipe, out: Path, *more: str) -> float:
        return mill(self.home, recipe, out, self._workers, *more)

    def cost(self, edit: Callable[[Recipe, Path], None]) -> tuple[float, float, bool, int]:
        """CPU seconds of the edit and of a fresh run, whether their digests are the same, and how many bytes
        the edited run has in its cache."""
        recipe = json.loads(json.dumps(self.base))
        edit(recipe, self._new)
        edited, alone = self.home / "edited", self.home / "alone"
        copy_trees({self.finished: edited, cache_directory(self.finished): cache_directory(edited)})
        spent, again = self.mill(recipe, edited), self.mill(recipe, alone, "--lean")
        same = tokmill.verify(edited).digest == tokmill.verify(alone).digest
        kept = cache_bytes(edited)
        for directory in (edited, cache_directory(edited), alone):
            shutil.rmtree(directory, ignore_errors=True)
        return spent, again, same, kept


def copy_trees(targets: dict[Path, Path]) -> None:
    """With the times of files, and those that have two names with both: no byte is shared with the base."""
    copies: dict[int, Path] = {}
    for original, target in targets.items():
        for path in [original, *sorted(original.rglob("*"))]:
            copy = target / path.relative_to(original)
            if path.is_dir():
                copy.mkdir()
            elif path.stat().st_ino in copies:
                copy.hardlink_to(copies[path.stat().st_ino])
            else:
                copies[path.stat().st_ino] = Path(shutil.copy2(path, copy))


def part_texts(paths: list[Path], home: Path, most: int | None) -> Path:
    """Files of the base in texts/, and one file of all the others; of so many documents of each file."""
    later: list[bytes] = []
    for path in paths:
        with ZstdFile(path) as file:
            lines = [line for line in file.read().split(b"\n") if line][:most]
        later += lines[EVERY // 2 :: EVERY]
        is_new = set(range(EVERY // 2, len(lines), EVERY))
        _write(
            home / "texts" / path.name.split(".")[0] / "a.jsonl.zst",
            [line for number, line in enumerate(lines) if number not in is_new],
        )
    new = home / "new" / "new.jsonl.zst"
    _write(new, later)
    return new


def _write(path: Path, lines: list[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.CompressedOutputStream(str(path), "zstd") as file:
        file.write(b"".join(line + b"\n" for line in lines))


def base_recipe(home: Path, options: argparse.Namespace) -> Recipe:
    """As bench/chain.py has it, each source a domain of its own."""
    files = sorted((home / "texts").glob("*/a.jsonl.zst"))
    recipe: Recipe = json.loads(
        write_recipe(home / "recipe", files, options.tokenizer, "all kept").read_text()
    )
    recipe["sources"] = [
        {"name": path.parent.name, "domain": path.parent.name, "files": str(path.parent / "*.jsonl.zst")}
        for path in files
    ]
    if options.window:
        recipe["dedup"]["window"] = {}
    return recipe


def mill(home: Path, recipe: Recipe, out: Path, workers: int, *more: str) -> float:
    """CPU seconds."""
    path = home / "recipe.yaml"
    path.write_text(json.dumps(recipe, indent=1))  # JSON is YAML
    asked = command("run", path, "--out", out, "--workers", workers, *more)
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(asked, env=environment(), stdout=said, stderr=said)
        _, status, used = os.wait4(process.pid, 0)  # of the process and of all that it waited for
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            raise SystemExit(f"tokmill run ended with status {process.returncode}:\n{said.read()[-3000:]}")
    return used.ru_utime + used.ru_stime


# --- edits ---


def _source(new: Path) -> Recipe:
    return {"name": "new", "domain": "web", "files": str(new)}


def add_source(recipe: Recipe, new: Path) -> None:
    recipe["sources"].append(_source(new))


def add_source_first(recipe: Recipe, new: Path) -> None:
    recipe["sources"].insert(0, _source(new))


def add_file(recipe: Recipe, new: Path) -> None:
    """A file that comes after those that the source has."""
    web = next(source for source in recipe["sources"] if source["name"] == "web")
    web["files"] = [web["files"], str(new)]


def drop_first(recipe: Recipe, new: Path) -> None:
    del recipe["sources"][0]


def drop_last(recipe: Recipe, new: Path) -> None:
    del recipe["sources"][-1]


def reorder(recipe: Recipe, new: Path) -> None:
    recipe["sources"].reverse()


def move_rule(recipe: Recipe, new: Path) -> None:
    """One more bound for the documents of one domain."""
    rules = [*recipe["filters"], {"measure": "words", "min": 150, "reason": "too_few_words"}]
    recipe["domains"] = {"math": {"filters": rules}}


def move_threshold(recipe: Recipe, new: Path) -> None:
    recipe["dedup"]["near"] = {"threshold": "0.82", "bands": 14, "rows": 8}


EDITS: dict[str, Callable[[Recipe, Path], None]] = {
    edit.__name__: edit
    for edit in (
        add_source,
        add_source_first,
        add_file,
        drop_first,
        drop_last,
        reorder,
        move_rule,
        move_threshold,
    )
}


def render(figures: dict[str, Any]) -> None:
    console = Console(soft_wrap=True)
    console.print(
        f"{figures['text_mb']} MB of text: {figures['fresh_cpu_s']} CPU s, {figures['nothing_cpu_s']} where "
        f"nothing is to do; cache {figures['cache_mb']} MB, {figures['cache_share']:.1%} of the text"
    )
    table = Table(title="edits of a finished run, as shares of a fresh one")
    columns = ("edit", "CPU s", "fresh CPU s", "of little", "fresh", "above nothing", "above start-up")
    for column in (*columns, "same digest", "cache / text"):
        table.add_column(column, justify="left" if column == "edit" else "right")
    for edit in figures["edits"]:
        table.add_row(
            edit["edit"],
            f"{edit['cpu_s']:.2f}",
            f"{edit['fresh_cpu_s']:.2f}",
            f"{edit['little_cpu_s']:.2f}",
            f"{edit['little_fresh_cpu_s']:.2f}",
            f"{edit['share']:.1%}",
            f"{edit['share_above_start']:.1%}",
            "yes" if edit["same_digest"] else "NO",
            f"{edit['cache_share']:.1%}",
        )
    console.print(table)


if __name__ == "__main__":
    raise SystemExit(main())
