"""Many gigabytes through the whole chain, by several engines: wall and CPU seconds, and one digest.

    python bench/at_size.py DIRECTORY [--texts DIR] [--variants 119] [--on local:16 dask:16 …] [--json FILE]

Each text is made more by mapping its letters to others (x -> a x + b modulo 26, 312 maps), so that no
document is a copy of another; 119 variants of shared/bench are 16 GB and five million documents. The recipe
is that of bench/scaling.py. DIRECTORY keeps the texts, so that engines can be asked one by one; the output of
a run is removed before the next, and its digests are noted in DIRECTORY/digests.jsonl: all must be the same.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import string
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from math import gcd
from pathlib import Path
from typing import Any

import msgspec

from chain import SHARED, TOKENIZER
from command import command, environment
from scaling import write_recipe
from tokmill.artifacts.manifest import load_manifest
from tokmill.storage.disk import ZstdFile

MAPS = [(a, b) for a in range(1, 26) if gcd(a, 26) == 1 for b in range(26)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--texts", type=Path, default=SHARED / "bench", help="directory of *.jsonl.zst")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER)
    parser.add_argument("--variants", type=int, default=119, choices=range(1, len(MAPS) + 1), metavar="N")
    parser.add_argument("--on", nargs="*", default=["local:16", "local:1"], help="ENGINE:WORKERS")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    paths = sorted(options.texts.glob("*.jsonl.zst"))
    if not paths:
        print(f"no *.jsonl.zst in {options.texts}: give a directory with --texts", file=sys.stderr)
        return 2
    recipe, size = make_texts(options.directory, paths, options.variants, options.tokenizer)
    figures = [measure(recipe, one, size) for one in options.on]
    if options.json:
        options.json.write_text(json.dumps({**size, "runs": figures}, indent=2) + "\n")
    return 0


def make_texts(
    directory: Path, paths: list[Path], variants: int, tokenizer: Path
) -> tuple[Path, dict[str, int]]:
    """The recipe, and how much there is of text. What is there already is taken as it is."""
    noted = directory / "size.json"
    if not noted.exists():
        (directory / "texts").mkdir(parents=True, exist_ok=True)
        jobs = [(path, number, directory / "texts") for path in paths for number in range(variants)]
        with ProcessPoolExecutor() as pool:
            made = list(pool.map(write_variant, *zip(*jobs, strict=True)))
        size = {"documents": sum(count for count, _ in made), "bytes": sum(size for _, size in made)}
        noted.write_text(json.dumps(size))
    found: dict[str, int] = json.loads(noted.read_text())
    print(f"{found['bytes'] / 1e9:.1f} GB of text, {found['documents']:,} documents", file=sys.stderr)
    return write_recipe(directory, paths, tokenizer), found


def write_variant(path: Path, number: int, directory: Path) -> tuple[int, int]:
    """Its documents, and the bytes of their text. Letters of ASCII alone: UTF-8 stays UTF-8."""
    a, b = MAPS[number]
    letters = [(a * k + b) % 26 for k in range(26)]
    mapped = "".join(case[k] for case in (string.ascii_lowercase, string.ascii_uppercase) for k in letters)
    table = bytes.maketrans(string.ascii_letters.encode(), mapped.encode())
    documents = size = 0
    encoder = msgspec.json.Encoder()
    target = directory / f"{path.name.split('.')[0]}-{number:03d}.jsonl.zst"
    with ZstdFile(path) as lines, ZstdFile(target, "w", level=1) as made:
        while some := list(itertools.islice(lines, 2_000)):
            records: list[dict[str, Any]] = [msgspec.json.decode(line) for line in some]
            for record in records:
                text = record["text"].encode().translate(table)
                size += len(text)
                record["text"], record["id"] = text.decode(), f"{number}/{record['id']}"
            documents += len(records)
            made.write(encoder.encode_lines(records))
    return documents, size


def measure(recipe: Path, on: str, size: dict[str, int]) -> dict[str, Any]:
    engine, _, workers = on.partition(":")
    out = recipe.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    asked = command(
        "run", recipe, "--out", out, "--engine", engine, "--workers", workers, "--lean", "--quiet"
    )
    begun = time.monotonic()
    process = subprocess.Popen(asked, env=environment(), stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)  # of the process and of all that it waited for
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.monotonic() - begun
    if process.returncode:
        raise SystemExit(f"tokmill run ended with status {process.returncode}")
    manifests = sorted(path.parent for path in out.glob("*/**/manifest.json"))
    digests = {str(one.relative_to(out)): load_manifest(one).identity for one in manifests}
    peak = used.ru_maxrss / (1 << 10 if sys.platform == "linux" else 1 << 20)
    figures = {
        "engine": engine,
        "workers": int(workers),
        "wall_s": round(wall, 1),
        "cpu_s": round(used.ru_utime + used.ru_stime, 1),  # a cluster's nodes are no children of the driver
        "mb_per_s_and_core": round(size["bytes"] / 1e6 / wall / int(workers), 2),
        "peak_mb_of_a_process": round(peak),
        "disk_gb": round(sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / 1e9, 1),
    }
    print(json.dumps(figures), file=sys.stderr, flush=True)
    with (recipe.parent / "digests.jsonl").open("a+") as noted:
        noted.write(json.dumps({"on": on, "digests": digests}) + "\n")
        noted.seek(0)
        known = [json.loads(line) for line in noted]
    assert all(one["digests"] == digests for one in known), "the content depends on the engine"
    shutil.rmtree(out)
    return figures


if __name__ == "__main__":
    raise SystemExit(main())
