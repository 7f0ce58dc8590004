"""The plain mill and the mill agree on the recipes written out here; random ones are in random_recipes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

import tokmill
from plain.compare import differences
from plain.mill import mill

PACKS = {
    path.stem: yaml.safe_load(path.read_text())
    for path in (Path(tokmill.__file__).parent / "clean" / "packs").glob("*.yaml")
}
TOKENIZER = {"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<|endoftext|>"}

WORDS = [
    "mill",
    "grain",
    "rye",
    "sack",
    "the",
    "of",
    "and",
    "to",
    "stone",
    "wheel",
    "7",
    "1.5",
    "don't",
    "École",
    "ﬁne",
    "水",
    "車",
    "Mühle",
    "//",
    "{x}",
    "<|endoftext|>",
]


def write_corpus(directory: Path) -> None:
    """Prose with licences and URLs in some records, copies and bad lines; and problems for a template."""
    draw = random.Random(3)
    prose: list[Any] = []
    for number in range(80):
        text = "\n".join(" ".join(draw.choices(WORDS, k=12)) + "." for _ in range(draw.randrange(1, 9)))
        record: dict[str, Any] = {"text": text, "id": f"d{number % 70}"}
        record |= {"license": draw.choice(["MIT", "cc-by-4.0", "GPL-3.0", "so so", ""])} if number % 3 else {}
        record |= {"created_at": f"2024-01-{number % 28 + 1:02d}"} if number % 4 else {}
        record["meta"] = {"url": f"http://www.a{number % 9}.org/p?utm_x=1&n={number % 40}", "split": "train"}
        prose.append(record)
    prose[11]["text"], prose[12]["text"] = prose[10]["text"], prose[10]["text"] + " once more"
    prose[13]["text"] = prose[10]["text"].upper()
    prose[14]["text"], prose[15]["text"], prose[16]["text"] = " \n", "a\0b\r\nc\rd", ["one", "two"]
    del prose[17]["id"], prose[18]["text"]
    lines = [json.dumps(record, ensure_ascii=number % 2 == 0) for number, record in enumerate(prose)]
    lines += [
        '{"text": "a", "text": "b"}',
        '{"text": NaN}',
        '{"text": "\\ud800"}',
        "[1]",
        "{",
        "",
        '{"text": 1}',
    ]
    (directory / "prose.jsonl").write_text("\n".join(lines), encoding="utf-8")
    problems = [
        {"q": f"What is {n} and {n}?", "a": 2 * n, "kind": "sum" if n % 5 else "trick"} for n in range(40)
    ]
    (directory / "problems.jsonl").write_text("".join(json.dumps(problem) + "\n" for problem in problems))


SOURCES = [
    {"name": "prose", "domain": "prose", "files": "prose.jsonl", "license": "MIT", "max_bad_fraction": 0.2},
    {
        "name": "problems",
        "license": "Apache-2.0",
        "domain": "math",
        "files": "problems.jsonl",
        "template": "{q}\n{{{a}}}",
        "where": {"kind": "sum"},
    },
]

RECIPES: dict[str, dict[str, Any]] = {
    "copies": {
        "normalize": {"unicode": "NFC", "newlines": "lf"},
        "license": {"allow": ["MIT", "CC-BY-*", "Apache-2.0"], "unknown": "keep"},
        "dedup": {"exact": True, "near": {"threshold": 0.7}},
        "split": {"valid_fraction": 0.2, "test_fraction": 0.1},
        "mixture": {"weights": {"prose": 0.7, "math": 0.3}},
        "pack": {"layout": "best_fit", "length": 32},
        "builds": [
            {"name": "rows", "format": "memmap"},
            {"name": "mega", "format": "megatron", "dtype": "smallest"},
        ],
    },
    "filters": {
        "filters": [
            "gopher-repetition",
            {"pack": "c4", "set": {"min_sentences": 2}},
            {"measure": "words", "min": 9},
        ],
        "domains": {"math": {"filters": [{"measure": "digit_share", "max": 0.3}]}},
        "dedup": {"exact": False},
        "split": {"method": "formula", "test": True},
        "mixture": {"tokens": 900, "exhausted": "renormalize", "weights": {"prose": 1, "math": 3}},
        "pack": {"layout": "document", "length": 24},
        "builds": [
            {"name": "rows", "format": "npy", "rows_per_shard": 7},
            {"name": "nano", "format": "nanotron"},
        ],
    },
    "counts": {
        "license": {"deny": ["GPL-*"], "unknown": "quarantine"},
        "urls": {"block": {"domains": ["a3.org"]}},
        "dedup": {"url": True, "keep": "longest", "priority": ["problems"]},
        "split": {"method": "counts", "counts": {"train": 20, "val": 5}},
        "mixture": {
            "documents": 12,
            "exhausted": "repeat",
            "weights": {"prose": 0.2, "math": 0.8},
            "order": "corpus",
        },
        "pack": {"layout": "concat", "length": 16, "tail": "pad", "mix_domains": False},
        "builds": [
            {"name": "rows", "format": "memmap", "dtype": "uint16"},
            {"name": "llm", "format": "llmc"},
        ],
    },
}


@pytest.mark.parametrize("name", RECIPES)
def test_the_plain_mill_and_the_mill_agree(name: str, tmp_path: Path) -> None:
    write_corpus(tmp_path)
    recipe = {"name": name, "seed": 5, "sources": SOURCES, "tokenizer": TOKENIZER, **RECIPES[name]}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    out = tokmill.run(tmp_path / "recipe.yaml", workers=1).out
    milled = mill(recipe, tmp_path, out / "tokenizer" / "tokenizer.json", PACKS)
    assert differences(milled, out) == []
    assert sum(len(files) for splits in milled.builds.values() for files in splits.values()) >= 4
