"""Do the filter packs make a web corpus better to train on? The table of docs/ablations.md.

    web.jsonl.zst ─ one tokenizer, one split ─┬─ no filter ─┐
                                              ├─ gopher-quality …, one run for each pack ─┴─ tokmill.ablate
    prose, math ─ texts that no build trains on ─> judged on as well

    python bench/filter_packs.py ../shared/bench OUT         ~20 minutes of one core; once more: it resumes

Small on purpose, and it says so: 0.2M weights and 300,000 tokens tell large effects from none, and no more.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
import zstandard

import tokmill
from tokmill.proxy.ablation import Ablation
from tokmill.proxy.page import page_of

PACKS = ("gopher-quality", "gopher-repetition", "c4", "fineweb")
TEXT_CHARS = 100_000


def recipe_of(corpus: Path, **sections: Any) -> dict[str, Any]:
    return {
        "name": "web",
        "seed": 1,
        "sources": [{"name": "web", "domain": "web", "files": str((corpus / "web.jsonl.zst").resolve())}],
        "split": {"valid_fraction": "0.05"},
        "tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 2048}, "eos": "<|endoftext|>"},
        "pack": {"length": 256},
        "builds": [{"name": "rows", "format": "memmap"}],
        **sections,
    }


def run_packs(corpus: Path, out: Path, workers: int) -> list[Path]:
    none = out / "runs/none"
    tokmill.run(recipe_of(corpus), none, workers=workers)
    same = {"path": str((none / "tokenizer/tokenizer.json").resolve()), "eos": "<|endoftext|>"}
    runs = [none]
    for pack in PACKS:
        runs.append(out / "runs" / pack)
        tokmill.run(recipe_of(corpus, filters=[pack], tokenizer=same), runs[-1], workers=workers)
    return runs


def write_text(corpus: Path, name: str, out: Path) -> Path:
    """The first documents of another domain, as one file: no build has seen them."""
    path = out / f"{name}.txt"
    texts: list[str] = []
    with zstandard.open(corpus / f"{name}.jsonl.zst", "rt", encoding="utf-8") as lines:
        while sum(map(len, texts)) < TEXT_CHARS:
            texts.append(json.loads(next(lines))["text"])
    path.write_text("\n\n".join(texts), encoding="utf-8")
    return path


def kept_lines(runs: list[Path]) -> list[str]:
    lines = ["| filters | documents | of | tokens to train on |", "| --- | --- | --- | --- |"]
    for run in runs:
        clean = json.loads((run / "clean/web/manifest.json").read_text())["counts"]
        tokens = json.loads((run / "tokens/manifest.json").read_text())["counts"]["tokens"]["train"]
        lines.append(f"| {run.name} | {clean['kept']:,} | {clean['in']:,} | {tokens:,} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", default="0.2M")
    parser.add_argument("--tokens", default="300k")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(asked.workers)
    asked.out.mkdir(parents=True, exist_ok=True)
    runs = run_packs(asked.corpus, asked.out, asked.workers)
    texts = [write_text(asked.corpus, name, asked.out) for name in ("prose", "math")]
    result: Ablation = tokmill.ablate(
        runs,
        size=asked.size,
        tokens=asked.tokens,
        seeds=asked.seeds,
        text=texts,
        held_out_bytes="100k",
        out=asked.out / "ablation",
        device="cpu",
    )
    sys.stdout.write("\n".join(kept_lines(runs)) + "\n\n" + page_of(result))


if __name__ == "__main__":
    main()
