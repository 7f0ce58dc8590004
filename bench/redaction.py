"""How fast redaction is on real text, all kinds on:
MB of text per CPU second, beside plain `re` over whole texts.

    python bench/redaction.py [--texts DIR] [--rounds 3] [--json FILE]

The kernel is compiled before the clock starts. A figure is the median of the rounds. `found` says how often
each kind was replaced; look at a sample of that with --show KIND (it prints what stood there: for your eyes
only).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from tokmill.clean.redaction import find_spans, redact_texts
from tokmill.kernels.redaction import KINDS, find_windows
from tokmill.schema import string_column
from tokmill.storage.disk import ZstdFile

SHARED = Path(__file__).resolve().parents[2] / "shared"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--texts", type=Path, default=SHARED / "bench", help="directory of *.jsonl.zst")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--show", choices=KINDS, help="print what one kind finds, and do not measure")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    paths = sorted(options.texts.glob("*.jsonl.zst"))
    if not paths:
        print(f"no *.jsonl.zst in {options.texts}: give a directory with --texts", file=sys.stderr)
        return 2
    columns = {path.name.split(".")[0]: load_texts(path) for path in paths}
    if options.show:
        show(columns, options.show)
        return 0
    redact_texts(pa.array(["x@y.org"], pa.large_string()), KINDS)
    table = Table(title="redaction, all kinds, one core, median of the rounds, MB of text per CPU second")
    for name in ("text", "MB", "kernel", "redact_texts", "plain re", "windows / MB", "found"):
        table.add_column(name, justify="left" if name in ("text", "found") else "right")
    whole = pa.concat_arrays(list(columns.values()))
    found = {name: figures(texts, options.rounds) for name, texts in {**columns, "all": whole}.items()}
    for name, f in found.items():
        counts = ", ".join(f"{kind} {count:,}" for kind, count in f["found"].items())
        speeds = (f"{f[key]:.0f}" for key in ("kernel_mb_per_cpu_s", "mb_per_cpu_s"))
        plain, windows = f"{f['plain_mb_per_cpu_s']:.1f}", f"{f['windows_per_mb']:,.0f}"
        table.add_row(name, f"{f['text_mb']:.1f}", *speeds, plain, windows, counts)
    Console(soft_wrap=True).print(table)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def figures(texts: Any, rounds: int) -> dict[str, Any]:
    column = string_column(texts)
    megabytes = int(column.offsets[-1] - column.offsets[0]) / 1e6
    every = tuple(range(len(KINDS)))
    sample = texts.slice(0, max(1, len(texts) // 20)).to_pylist()  # plain `re` is slow: a twentieth of it
    sample_mb = sum(len(text.encode()) for text in sample) / 1e6
    windows = find_windows(column.data, column.offsets, every)
    found = Counter(redact_texts(texts, KINDS).found["kind"].to_pylist())
    kernel = cpu_seconds(lambda: find_windows(column.data, column.offsets, every), rounds)
    redact = cpu_seconds(lambda: redact_texts(texts, KINDS), rounds)
    plain = cpu_seconds(
        lambda: [list(find_spans(kind, text.encode())) for text in sample for kind in KINDS], 1
    )
    return {
        "text_mb": megabytes,
        "kernel_mb_per_cpu_s": megabytes / kernel,
        "mb_per_cpu_s": megabytes / redact,
        "plain_mb_per_cpu_s": sample_mb / plain,
        "windows_per_mb": len(windows.rows) / megabytes,
        "found": {kind: found[kind] for kind in KINDS},
    }


def cpu_seconds(act: Callable[[], object], rounds: int) -> float:
    samples = []
    for _ in range(rounds):
        started = time.process_time()
        act()
        samples.append(time.process_time() - started)
    return statistics.median(samples)


def load_texts(path: Path) -> Any:
    with ZstdFile(path) as lines:
        return pa.array([msgspec.json.decode(line)["text"] for line in lines], pa.large_string())


def show(columns: dict[str, Any], kind: str) -> None:
    for name, texts in columns.items():
        found = redact_texts(texts, [kind]).found.to_pylist()
        for line in found[:: max(1, len(found) // 60)]:
            text = texts[line["row"]].as_py().encode()
            around = text[max(0, line["start"] - 25) : line["end"] + 15]
            print(
                name, repr(text[line["start"] : line["end"]].decode()), repr(around.decode(errors="replace"))
            )


if __name__ == "__main__":
    raise SystemExit(main())
