"""Recipes whose figures are counted again: one corpus with something of every outcome, generated or real,
built in many ways."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path
from typing import Any

import zstandard

from mill import SHARED
from reviews.reviewed import WORDS

DOMAINS = {"web": "web", "math": "math", "code": "code"}  # source -> domain
BENCH = SHARED / "bench"
LENGTH = 48

_WORDS = WORDS[:40]
_WEIGHTS = {"web": "0.5", "math": "0.3", "code": "0.2"}

# What each adds to the recipe, or puts in the place of a section.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "weighted": {"mixture": {"weights": _WEIGHTS}},
    "budgeted": {"mixture": {"weights": _WEIGHTS, "tokens": 9_000, "exhausted": "renormalize"}},
    "blocks": {"mixture": {"weights": _WEIGHTS, "blocks": 120, "exhausted": "renormalize"}},
    "balanced": {"limit": {"docs": 120}, "mixture": {"balance": "smallest"}},
    "balanced_long": {"mixture": {"balance": "smallest"}, "pack": {"length": 512}},
    "balanced_pad": {"mixture": {"balance": "smallest"}, "pack": {"layout": "pad", "length": LENGTH}},
    "starved": {"mixture": {"weights": {"web": "0.05", "math": "0.05", "code": "0.9"}}},
    "truncated": {"pack": {"layout": "pad", "length": LENGTH}},
    "document": {"pack": {"layout": "document", "length": LENGTH}},
    "best_fit": {"pack": {"layout": "best_fit", "length": LENGTH}},
    "padded_tail": {"pack": {"length": LENGTH, "tail": "pad"}},
    "repeated": {
        "mixture": {
            "weights": {"web": "0.2", "math": "0.2", "code": "0.6"},
            "tokens": 36_000,
            "exhausted": "repeat",
        }
    },
}


def write_variant(directory: Path, variant: str, texts: str, tokenizer: Path | None = None) -> Path:
    """Corpus and recipe; returns the recipe. `texts`: generated, or real."""
    directory.mkdir(parents=True)
    corpus = _generated() if texts == "generated" else _real()
    _add_odd_ones(corpus)
    for source, records in corpus.items():
        lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
        if source == "math":
            lines[3:3] = ["{ not JSON\n", '{"id": "no-text"}\n']
        (directory / f"{source}.jsonl").write_text("".join(lines), encoding="utf-8")
    sections = json.loads(json.dumps(VARIANTS[variant]))
    if texts == "real" and "tokens" in sections.get("mixture", {}):
        sections["mixture"]["tokens"] *= 4  # documents are longer
    limit = sections.pop("limit", None)
    fields = {"text": "text", "id": "id", "license": "license", "language": "lang"}
    trained = {"train": {"model": "byte_bpe", "vocab_size": 320}, "eos": "<|endoftext|>"}
    recipe: dict[str, Any] = {
        "name": variant.replace("_", "-"),
        "seed": 11,
        "sources": [
            {
                "name": source,
                "domain": domain,
                "files": f"{source}.jsonl",
                "fields": fields,
                "max_bad_fraction": "0.2",
                **({"limit": limit} if limit and source == "web" else {}),
            }
            for source, domain in DOMAINS.items()
        ],
        "license": {"deny": ["GPL-3.0-only"], "unknown": "keep"},
        "language": {"method": "field"},
        "filters": [
            {"measure": "chars", "min": 20, "reason": "too_short"},
            {"measure": "words", "min": 1},
        ],
        "dedup": {"near": {}, "partitions": 1},
        "split": {"valid_fraction": "0.1", "test_fraction": "0.05"},
        "tokenizer": {"path": str(tokenizer), "eos": "<|endoftext|>"} if tokenizer else trained,
        "pack": {"length": LENGTH},
        "builds": [
            {"name": "rows", "format": "memmap"},
            {"name": "mega", "format": "megatron"},
            {"name": "some", "format": "npy", "sources": ["web", "math"]},
        ],
        **sections,
    }
    path = directory / "recipe.yaml"
    path.write_text(json.dumps(recipe, indent=1))  # JSON is YAML
    return path


def _generated() -> dict[str, list[dict[str, Any]]]:
    rng = random.Random(8)

    def words(count: int) -> str:
        return " ".join(rng.choice(_WORDS) + rng.choice(["", "", "", ".", " é"]) for _ in range(count))

    sizes = {"web": (150, 6, 70), "math": (70, 6, 40), "code": (26, 20, 120)}
    return {
        source: [
            {
                "id": f"{source}-{number:03d}",
                "text": words(rng.randint(shortest, longest)),
                "license": ("MIT", "CC-BY-4.0", None)[number % 3],
                "lang": "en" if number % 4 else None,
            }
            for number in range(count)
        ]
        for source, (count, shortest, longest) in sizes.items()
    }


def _real() -> dict[str, list[dict[str, Any]]]:
    return {source: list(_first(BENCH / f"{source}.jsonl.zst", 60)) for source in DOMAINS}


def _first(path: Path, count: int) -> Any:
    """The first documents of at most 4,000 characters."""
    with path.open("rb") as file:
        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        for line in io.TextIOWrapper(reader, encoding="utf-8"):
            record = json.loads(line)
            if 200 < len(record["text"]) < 4_000 and "\r" not in record["text"]:
                yield {key: record[key] for key in ("id", "text", "license", "lang")}
                count -= 1
            if not count:
                return


def _add_odd_ones(corpus: dict[str, list[dict[str, Any]]]) -> None:
    """Copies, near copies, too short ones, one with a licence that is refused."""
    web, math = corpus["web"], corpus["math"]
    longest = sorted(web, key=lambda record: len(record["text"]))[-3:]
    web[5:5] = [{**longest[0], "id": "short-1", "text": "too short"}]
    web[40:40] = [{**record, "id": f"copy-{at}"} for at, record in enumerate(longest)]
    near = [
        {**record, "id": f"near-{at}", "text": record["text"] + " again"} for at, record in enumerate(longest)
    ]
    web[60:60] = near
    math[9:9] = [
        {**math[0], "id": "denied-1", "text": "not to be used at all, ever", "license": "GPL-3.0-only"}
    ]
