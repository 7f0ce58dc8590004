"""Builds of real documents: the shares that were asked for, hardly any padding, and nothing truncated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tokmill as mill
from mill import SHARED
from written import load_manifest, read_row_index


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = sorted((SHARED / "bench").glob("*.jsonl.zst"))
    tokenizers = sorted((SHARED / "data/tokenizers").rglob("r50k_base.tiktoken"))
    if not files or not tokenizers:
        pytest.skip("the shared texts and tokenizers are not here")
    directory = tmp_path_factory.mktemp("real")
    names = [path.name.partition(".")[0] for path in files]
    weights = {name: place + 1 for place, name in enumerate(names)}
    recipe = {
        "name": "real",
        "seed": 11,
        "sources": [
            {"name": name, "domain": name, "files": str(path), "limit": {"megabytes": 4}}
            for name, path in zip(names, files, strict=True)
        ],
        "split": {"valid_fraction": "0.05"},
        "tokenizer": {"path": str(tokenizers[0]), "eos": "<|endoftext|>"},
        "mixture": {"weights": weights, "normalize": True, "tokens": "3M"},
        "pack": {"layout": "best_fit", "length": 2048},
        "builds": [{"name": "rows", "format": "memmap", "dtype": "smallest"}],
    }
    path = directory / "recipe.yaml"
    path.write_text(json.dumps(recipe))
    return mill.run(path, workers=1).out


def test_built_shares_are_within_a_tenth_of_a_point_of_the_weights(built: Path) -> None:
    facts = load_manifest(built / "mixture").facts["splits"]["train"]
    assert facts["exhausted"] == []
    assert facts["max_error"] < 0.001
    assert 0 <= facts["left_over"] < 1000, "of 2.85 million"
    domains = load_manifest(built / "build/rows").tasks[0]["counts"]["domains"]
    total = sum(domain["tokens"] for domain in domains.values())
    for name, domain in domains.items():
        assert abs(domain["tokens"] / total - facts["sources"][name]["wanted"]) < 0.001


def test_best_fit_leaves_hardly_any_padding_and_truncates_nothing(built: Path) -> None:
    tokens = load_manifest(built / "build/rows").tasks[0]["counts"]["tokens"]
    rows = load_manifest(built / "build/rows").tasks[0]["counts"]["rows"]
    assert tokens["padding"] < 0.02 * rows * 2048
    assert tokens["truncated"] == tokens["tail_dropped"] == 0
    whole = {}
    for row in read_row_index(built / "build/rows/train/index.jsonl.zst"):
        for span in row.docs:
            pieces = whole.setdefault((span.source, span.doc_id), [])
            pieces.append((span.offset, span.end - span.start))
    for pieces in whole.values():
        length = sum(width for _, width in pieces)
        assert len(pieces) == -(-length // 2048), "cut only where longer than a row"


def test_the_run_is_proven(built: Path) -> None:
    assert mill.verify(built).problems == []
