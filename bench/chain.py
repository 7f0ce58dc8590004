"""The recipe that bench/end_to_end.py and bench/stages.py mill, and samples of its input.

read ─ language ─ four packs in FineWeb's order ─ exact and near duplicates
     ─ gpt2 tokens ─ rows of 2,048 ─> memmap

filtered   English only, and what a rule refuses is dropped: later stages see what is left
all kept   the same work on every document, and no verdict drops it: the language is recorded, bounds are open
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from tokmill.clean.rules import load_pack
from tokmill.storage.disk import ZstdFile

SHARED = Path(__file__).resolve().parents[2] / "shared"
TOKENIZER = SHARED / "data/tokenizers/hf/gpt2-tokenizer.json"
Setting = Literal["filtered", "all kept"]
SETTINGS: tuple[Setting, ...] = ("filtered", "all kept")


def write_recipe(directory: Path, paths: Sequence[Path], tokenizer: Path, setting: Setting) -> Path:
    """One domain for all: packs would not look at a source of the domain `code`."""
    recipe: dict[str, Any] = {
        "name": "end-to-end",
        "sources": [
            {"name": path.name.split(".")[0], "domain": "text", "files": str(path.resolve())}
            for path in paths
        ],
        "language": {"method": "detect", "keep": ["en"] if setting == "filtered" else []},
        "filters": [{"pack": "web-en", "set": open_bounds() if setting == "all kept" else {}}],
        "dedup": {"near": {}},
        "tokenizer": {"path": str(tokenizer.resolve()), "eos": "<|endoftext|>"},
        "pack": {"layout": "concat", "length": 2048},
        "builds": [{"name": "rows", "format": "memmap"}],
    }
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "recipe.yaml"
    path.write_text(json.dumps(recipe, indent=1))  # JSON is YAML
    return path


def open_bounds() -> dict[str, int]:
    """For every rule of the packs a bound that no document breaks: all is measured, nothing is dropped."""
    rules = [rule for part in load_pack("web-en").simple() for rule in part.rules]
    return {rule.name: 0 if rule.min is not None else 10**15 for rule in rules}


def write_sample(paths: Sequence[Path], directory: Path, step: int) -> list[Path]:
    """One in `step` documents of every file of JSON lines, compressed or not."""
    directory.mkdir(parents=True)
    found = []
    for path in paths:
        if path.suffix == ".zst":
            with ZstdFile(path) as file:
                data = file.read()
        else:
            data = path.read_bytes()
        lines = [line for line in data.split(b"\n") if line]
        found.append(directory / path.name.removesuffix(".zst"))
        found[-1].write_bytes(b"".join(line + b"\n" for line in lines[::step]))
    return found
