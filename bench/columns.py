"""How fast the functions on columns are on real text:
MB of text per CPU second, and documents per second for `pack`.

    python bench/columns.py [--texts DIR] [--rounds 3] [--json FILE]

Kernels and models are loaded before the clock starts. A figure is the median of the rounds, of one core.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

import tokmill
from tokmill.storage.disk import ZstdFile

SHARED = Path(__file__).resolve().parents[2] / "shared"
_MAX_BYTES = 20_000_000  # of each domain


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--texts", type=Path, default=SHARED / "bench", help="directory of *.jsonl.zst")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    paths = sorted(options.texts.glob("*.jsonl.zst"))
    if not paths:
        print(f"no *.jsonl.zst in {options.texts}: give a directory with --texts", file=sys.stderr)
        return 2
    texts = pa.array([text for path in paths for text in load_texts(path)], pa.large_string())
    lengths = np.diff(np.frombuffer(texts.buffers()[1], np.int64)) // 4 + 1
    megabytes = int(lengths.sum()) * 4 / 1e6
    functions: dict[str, Callable[[Any], Any]] = {
        "measure": tokmill.measure,
        "detect_language": tokmill.detect_language,
        "near_duplicates": tokmill.near_duplicates,
        "redact": tokmill.redact,
    }
    found = {}
    for name, function in functions.items():
        function(texts.slice(0, 10))
        found[name] = megabytes / median_seconds(partial(function, texts), options.rounds)
        print(f"{name:16} {found[name]:8.1f} MB per CPU second")
    many = np.resize(lengths, 1_000_000)
    for layout in ("concat", "best_fit"):
        packed = partial(tokmill.pack, length=2048, layout=layout)
        packed(many[:10])
        seconds = median_seconds(partial(packed, many), options.rounds)
        found[f"pack {layout}"] = len(many) / seconds
        print(f"pack {layout:11} {len(many) / seconds:12,.0f} documents per CPU second")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def load_texts(path: Path) -> list[str]:
    texts, size = [], 0
    with ZstdFile(path, "rb") as file:
        for line in file:
            texts.append(msgspec.json.decode(line)["text"])
            size += len(line)
            if size > _MAX_BYTES:
                break
    return texts


def median_seconds(call: Callable[[], Any], rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        started = time.process_time()
        call()
        seconds.append(time.process_time() - started)
    return statistics.median(seconds)


if __name__ == "__main__":
    raise SystemExit(main())
