"""Texts through the `dedup` of a recipe, by `tokmill.run`:
what is left of each, from the files that it wrote."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import tokmill
from written import Json, load_manifest, load_table, load_tables


class Deduped(NamedTuple):
    texts: list[str]  # dropped ones as they were
    is_dropped: list[bool]
    verdicts: list[Json]
    ledger: list[Json]
    spans: list[Json]  # of passages
    contamination: list[Json]
    counts: Json
    facts: Json


def dedup(texts: Sequence[str], **section: Any) -> Deduped:
    """One document for every text, in one shard. Equal ones stay unless `exact` asks.
    Nothing is normalized."""
    recipe = {
        "name": "one",
        "sources": [
            {"name": "s", "data": [{"id": str(number), "text": text} for number, text in enumerate(texts)]}
        ],
        "normalize": {"nul": "keep", "max_nul_fraction": 1},
        "dedup": {"exact": False, **section},
    }
    with tempfile.TemporaryDirectory() as place:
        out = tokmill.run(recipe, Path(place) / "out", workers=1, until="dedup").out / "dedup"
        manifest = load_manifest(out)
        verdicts, ledger, spans, contamination = (
            [row for part in load_tables(out, name) for row in part.to_pylist()]
            for name in ("verdicts", "ledger", "spans", "contamination")
        )
        trims = [load_table(out / entry.path) for entry in manifest.entries("trims")]
    left = list(texts)
    for row in (row for part in trims for row in part.to_pylist()):
        left[row["row"]] = row["text"]
    is_dropped = [not verdict["kept"] for verdict in verdicts]
    assert len(verdicts) == len(texts)
    assert manifest.counts["kept"] == is_dropped.count(False)
    return Deduped(left, is_dropped, verdicts, ledger, spans, contamination, manifest.counts, manifest.facts)
