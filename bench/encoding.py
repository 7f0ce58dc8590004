"""Documents to Megatron files: how fast, against Megatron-style encoding, and whether the bytes are the same.

python bench/encoding.py [--texts DIR] [--rounds 3] [--sample-every 1] [--json FILE]
python bench/encoding.py --equal [--tokenizer NAME]      every tokenizer file against its reference, id by id

Working shards (Parquet) are made before the clock starts.
Each round is a new process that has never seen the text:

    tokmill      `tokmill run`, one worker, on a directory that ends at the split: start-up, loading the
                 kernels, the steps tokenizer, tokens (with the check against tiktoken) and build, all
                 manifests and fsyncs
    steps alone  the steps tokens and build in a process that has imported its libraries and loaded the
                 kernels; it reads the Parquet files, loads the tokenizer, checks, writes, hashes and syncs
                 within the clock
    tokenizers   the loop of encoding_reference.py over the same documents, in memory already: encode, EOS,
                 files
    tiktoken     the same loop with `encode_ordinary`

MB are 10^6 bytes of UTF-8 text, CPU seconds those of all processes, memory the peak RSS of the process.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import multiprocessing
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from encoding_reference import write_megatron_style
from tokmill.artifacts.directory import open_artifact
from tokmill.kernels.warm import load_kernels
from tokmill.pipeline.run import run
from tokmill.recipe.file import load_recipe
from tokmill.schema import one_piece
from tokmill.storage.tables import load_table
from tokmill.tokenizers.load import load_tokenizer

SHARED = Path(__file__).resolve().parents[2] / "shared"
TOKENIZERS = SHARED / "data/tokenizers"
RANKS = TOKENIZERS / "tiktoken/r50k_base.tiktoken"
JSON = TOKENIZERS / "hf/gpt2-tokenizer.json"
EOS_ID, VOCAB_SIZE = 50256, 50257
FILES = ("tokens.bin", "tokens.idx")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--texts", type=Path, default=SHARED / "bench", help="directory of *.jsonl.zst")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--sample-every", type=int, default=1, help="documents for the slow loops: one in so many"
    )
    parser.add_argument(
        "--equal", action="store_true", help="compare ids of every tokenizer file, and no clock"
    )
    parser.add_argument("--tokenizer", help="for --equal: only files with this in their name")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    paths = sorted(options.texts.glob("*.jsonl.zst"))
    if not paths:
        print(f"no *.jsonl.zst in {options.texts}: give a directory with --texts", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        prepared = prepare(paths, Path(scratch))
        if options.equal:
            return compare_all(prepared, options.tokenizer or "")
        return race(prepared, options.rounds, options.sample_every, options.json)


def prepare(paths: list[Path], directory: Path) -> Path:
    """A run that has everything but tokens: nothing is filtered, held out or removed."""
    recipe: dict[str, Any] = {
        "name": "encoding",
        "sources": [
            {"name": path.name.partition(".")[0], "domain": "all", "files": str(path)} for path in paths
        ],
        "normalize": {"nul": "keep", "max_nul_fraction": "1"},
        "dedup": {"exact": False},
        "split": {"valid_fraction": "0"},
        "tokenizer": {"path": str(RANKS), "eos": "<|endoftext|>"},
        "builds": [{"name": "mega", "format": "megatron", "dtype": "uint16"}],
    }
    (directory / "recipe.yaml").write_text(json.dumps(recipe))
    run(directory / "recipe.yaml", directory / "out", workers=1, until="split")
    return directory


def race(prepared: Path, rounds: int, sample_every: int, json_path: Path | None) -> int:
    megabytes = text_bytes(prepared) / 1e6
    console = Console(soft_wrap=True)
    table = Table(title=f"documents to Megatron files, gpt2: {megabytes:.1f} MB of text")
    for name in ("what", "MB / CPU s", "CPU s", "peak RSS MB", "MB of text"):
        table.add_column(name, justify="left" if name == "what" else "right")
    whole = [in_new_process(run_whole, prepared, prepared / f"whole-{n}") for n in range(rounds)]
    alone = [in_new_process(run_steps, prepared, prepared / f"alone-{n}") for n in range(rounds)]
    loops = [
        ("tokenizers, document by document", [in_new_process(run_tokenizers, prepared, sample_every)]),
        ("tiktoken, document by document", [in_new_process(run_tiktoken, prepared, sample_every)]),
    ]
    speeds, figures = {}, []
    for what, samples in [("tokmill run", whole), ("steps alone", alone), *loops]:
        seconds = statistics.median(sample["seconds"] for sample in samples)
        size = samples[0].get("megabytes", megabytes)
        speeds[what] = size / seconds
        peak = max(sample["peak"] for sample in samples)
        figures.append(
            {
                "what": what,
                "mb_per_cpu_s": speeds[what],
                "cpu_s": seconds,
                "peak_rss_mb": peak,
                "text_mb": size,
            }
        )
        table.add_row(what, f"{speeds[what]:.1f}", f"{seconds:.2f}", f"{peak:,.0f}", f"{size:.1f}")
    console.print(table)
    slow = speeds["tokenizers, document by document"]
    for what in ("tokmill run", "steps alone"):
        console.print(f"{what}: {speeds[what] / slow:.1f} times the loop with tokenizers")
    same = sample_every == 1 and all(
        filecmp.cmp(prepared / "whole-0/build/mega/train" / name, prepared / "loop" / name, shallow=False)
        and filecmp.cmp(prepared / "alone-0/build/mega/train" / name, prepared / "loop" / name, shallow=False)
        for name in FILES
    )
    console.print(
        f".bin and .idx equal byte for byte, all documents: {same if sample_every == 1 else 'not compared'}"
    )
    if json_path:
        equal = same if sample_every == 1 else None
        json_path.write_text(json.dumps({"figures": figures, "equal_bytes": equal}, indent=2) + "\n")
    return 0 if same or sample_every != 1 else 1


def in_new_process(act: Callable[..., dict[str, float]], *arguments: Any) -> dict[str, float]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(act, arguments)


def run_whole(prepared: Path, out: Path) -> dict[str, float]:
    shutil.copytree(prepared / "out", out)
    command = [sys.executable, "-c", "from tokmill.cli import main; main()", "run"]
    arguments = [str(prepared / "recipe.yaml"), "--out", str(out), "--workers", "1"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"seconds": used.ru_utime + used.ru_stime, "peak": used.ru_maxrss / 1024}


def run_steps(prepared: Path, out: Path) -> dict[str, float]:
    shutil.copytree(prepared / "out", out)
    run(prepared / "recipe.yaml", out, workers=1, until="tokenizer")
    load_kernels()
    load_tokenizer(RANKS).engine  # noqa: B018  the libraries, not this tokenizer: the task loads its own
    started = time.process_time()
    run(prepared / "recipe.yaml", out, workers=1)
    return measured(started)


def run_tokenizers(prepared: Path, sample_every: int) -> dict[str, float]:
    import tokenizers

    texts = load_documents(prepared)[::sample_every]
    tokenizer = tokenizers.Tokenizer.from_file(str(JSON))
    tokenizer.encode_special_tokens = True  # text is text
    directory = prepared / "loop"
    directory.mkdir()
    started = time.process_time()
    write_megatron_style(
        texts,
        lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids),
        EOS_ID,
        directory / "tokens",
        VOCAB_SIZE,
    )
    return measured(started) | {"megabytes": sum(len(text.encode()) for text in texts) / 1e6}


def run_tiktoken(prepared: Path, sample_every: int) -> dict[str, float]:
    texts = load_documents(prepared)[::sample_every]
    encoding: Any = load_tokenizer(RANKS)
    directory = prepared / "loop-tiktoken"
    directory.mkdir()
    started = time.process_time()
    write_megatron_style(texts, encoding._bpe.encode_ordinary, EOS_ID, directory / "tokens", VOCAB_SIZE)
    return measured(started) | {"megabytes": sum(len(text.encode()) for text in texts) / 1e6}


def measured(started: float) -> dict[str, float]:
    seconds = time.process_time() - started
    return {"seconds": seconds, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def compare_all(prepared: Path, name: str) -> int:
    files = [
        path for path in sorted(TOKENIZERS.glob("*/*")) if path.parent.name != "gpt2" and name in path.name
    ]
    texts = pa.array(load_documents(prepared), pa.large_string())
    wrong = 0
    for path in files:
        tokenizer = load_tokenizer(path)
        different = ids = 0
        started, fast = time.process_time(), 0.0
        for first in range(0, len(texts), 1000):
            batch = texts.slice(first, 1000)
            before = time.process_time()
            found = tokenizer.encode_column(batch)
            fast += time.process_time() - before
            expected = tokenizer.encode(batch.to_pylist())
            ids += len(expected.ids)
            same = np.array_equal(found.ids, expected.ids) and np.array_equal(found.lengths, expected.lengths)
            different += not same
        size = texts.nbytes / 1e6
        slow = time.process_time() - started - fast
        print(
            f"{path.name}: {tokenizer.engine} {size / fast:.1f} MB/s, reference {size / slow:.1f} MB/s, "
            f"{len(texts):,} documents, {ids:,} ids, "
            f"{'equal' if not different else f'{different} batches DIFFER'}",
            flush=True,
        )
        wrong += different
    return 1 if wrong else 0


def load_documents(prepared: Path) -> list[str]:
    """In the order of the corpus."""
    out = prepared / "out"
    recipe = load_recipe(prepared / "recipe.yaml")
    texts: list[str] = []
    for source in recipe.sources:
        ingested = open_artifact(out / "ingest" / source.name)
        assert ingested is not None
        for entry in ingested.manifest.entries("documents"):
            texts += one_piece(load_table(ingested.path(entry), ["text"]).column("text")).to_pylist()
    return texts


def text_bytes(prepared: Path) -> int:
    total = 0
    for path in sorted((prepared / "out/ingest").iterdir()):
        artifact = open_artifact(path)
        assert artifact is not None
        total += int(artifact.manifest.counts["text_bytes"])
    return total


if __name__ == "__main__":
    raise SystemExit(main())
