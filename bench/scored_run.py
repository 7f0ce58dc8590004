"""What one score adds to a whole run: CPU seconds and peak RSS of the filtered chain, with it and without.

    python bench/scored_run.py [--texts DIR] [--rounds 3] [--workers 1] [--sample-every 1] [--json FILE]

The chain is that of bench/end_to_end.py, "filtered". The score is a fastText classifier of two labels with
word bigrams and 100 dimensions, trained on the spot by the library (make .venv-fasttext/.installed); no rule
asks for it, so both runs keep the same documents and build the same rows, which is checked. Rounds alternate,
and medians count. Bars: 15 % more CPU time, and 900 MB.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from chain import SHARED, TOKENIZER, write_recipe, write_sample
from end_to_end import counted, run_tokmill
from scores import MODELS, load_texts, train
from tokmill.artifacts.directory import open_artifact
from tokmill.kernels.warm import load_kernels

MORE_CPU, PEAK_MB = 0.15, 900


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=Path, default=SHARED / "bench", help="directory of *.jsonl.zst")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER, help="a tokenizer.json")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--sample-every", type=int, default=1, help="one document in so many")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    paths = sorted(options.texts.glob("*.jsonl.zst"))
    if not paths:
        print(f"no *.jsonl.zst in {options.texts}: give a directory with --texts", file=sys.stderr)
        return 2
    load_kernels()
    with tempfile.TemporaryDirectory(prefix="tokmill-bench-") as scratch:
        figures = measure(paths, Path(scratch), options)
    json.dump(figures, sys.stdout, indent=2)
    print()
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if figures["holds"] else 1


def measure(paths: list[Path], scratch: Path, options: argparse.Namespace) -> dict[str, Any]:
    name = next(iter(MODELS))
    labels = MODELS[name][0]
    model = train(scratch, name, {label: load_texts(options.texts, label) for label in labels})
    if options.sample_every > 1:
        paths = write_sample(paths, scratch / "sample", options.sample_every)
    plain, scored = (
        write_recipe(scratch / run, paths, options.tokenizer, "filtered") for run in ("plain", "scored")
    )
    shutil.copy(model, scored.parent / "model.bin")
    recipe = json.loads(scored.read_text())
    recipe["scores"] = [{"name": "one", "fasttext": {"path": "model.bin", "label": labels[0]}}]
    scored.write_text(json.dumps(recipe, indent=1))
    samples: dict[str, list[dict[str, float]]] = {"plain": [], "scored": []}
    for _ in range(options.rounds):
        for run, path in (("plain", plain), ("scored", scored)):
            samples[run].append(run_tokmill(path, options.workers))
    rows = [open_artifact(path.parent / "out/build/rows") for path in (plain, scored)]
    identities = {made.manifest.identity for made in rows if made is not None}
    assert len(identities) == 1, "a score that no rule asks for changes no row"
    cpu = {run: statistics.median(one["cpu_s"] for one in own) for run, own in samples.items()}
    peak = {run: max(one["peak_rss_mb"] for one in own) for run, own in samples.items()}
    more = cpu["scored"] / cpu["plain"] - 1
    return {
        **counted(scored.parent / "out"),
        "model": name,
        "workers": options.workers,
        "cpu_s": {run: round(seconds, 2) for run, seconds in cpu.items()},
        "cpu_s_each": {run: [round(one["cpu_s"], 2) for one in own] for run, own in samples.items()},
        "peak_rss_mb": {run: round(most) for run, most in peak.items()},
        "more_cpu": round(more, 4),
        "holds": more <= MORE_CPU and peak["scored"] <= PEAK_MB,
    }


if __name__ == "__main__":
    sys.exit(main())
