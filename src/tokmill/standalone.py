"""One stage over files, without a recipe: JSONL.zst in, JSONL.zst out, every decision told.

    files ─ ingest ─ clean ─┬─> <source>-00000.jsonl.zst …             what is kept, edits laid over
                            ├─> <source>-00000.manifest.json …         counts and drops of that shard
                            └─> decisions.jsonl.zst                    one line per document: kept or why not

The working directory `.work` inside the output makes a killed command resume, and goes when it is done.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tokmill.artifact import Artifact
from tokmill.manifest import Json, Receipt
from tokmill.progress import Progress
from tokmill.recipe import Recipe
from tokmill.running import run_recipe
from tokmill.stages.step import Shard, list_shards
from tokmill.stages.texts import load_clean
from tokmill.storage.commit import commit_bytes
from tokmill.storage.jsonl import write_jsonl, write_jsonl_tables
from tokmill.storage.parquet import load_table

_WORK = ".work"
DECISIONS = "decisions.jsonl.zst"
_CHARS_PER_TOKEN = 4  # the estimate that limits use too


def clean_files(
    recipe: Recipe, base: Path, out: Path, *, workers: int | None = None, progress: Progress | None = None
) -> Json:
    """Clean the sources of `recipe` into `out`; the sum of all shards."""
    result = run_recipe(recipe, base, out / _WORK, workers=workers, until="clean", progress=progress)
    totals: Json = {"shards": 0, "docs_in": 0, "docs": 0, "bytes": 0, "est_tokens": 0, "drops": {}}
    for shard in list_shards(result.artifacts):
        receipt = _receipt_of(result.artifacts[f"clean/{shard.source}"], shard)
        path = out / f"{shard.source}-{totals['shards']:05d}.jsonl.zst"
        manifest = _write_shard(path, shard, receipt, recipe.seed)
        totals["shards"] += 1
        totals["docs_in"] += receipt.counts["in"]
        for key in ("docs", "bytes", "est_tokens"):
            totals[key] += manifest["counts"][key]
        for reason, count in manifest["drops"].items():
            totals["drops"][reason] = totals["drops"].get(reason, 0) + count
    write_jsonl_tables(out / DECISIONS, _decisions(result.artifacts))
    shutil.rmtree(out / _WORK)
    return totals


def _write_shard(path: Path, shard: Shard, receipt: Receipt, seed: int) -> Json:
    documents, chars = load_clean(shard.inputs())
    written = write_jsonl(path, documents)
    counts = receipt.counts
    manifest: Json = {
        "shard_path": path.name,
        "domain": shard.domain,
        "source": shard.source,
        "seed": seed,
        "sha256": written.sha256,
        "counts": {
            "docs": counts["kept"],
            "bytes": counts["kept_bytes"],
            "est_tokens": int((-(-chars // _CHARS_PER_TOKEN)).sum()),
        },
        "drops": dict(sorted({**counts["dropped"], **counts["quarantined"]}.items())),
        "edits": counts["edited"],
    }
    name = path.name.removesuffix(".jsonl.zst")
    commit_bytes(
        path.with_name(f"{name}.manifest.json"),
        json.dumps(manifest, indent=1, ensure_ascii=False).encode() + b"\n",
    )
    return manifest


def _receipt_of(cleaned: Artifact, shard: Shard) -> Receipt:
    key = shard.name.rpartition("/")[2]
    return next(receipt for receipt in cleaned.manifest.receipts() if receipt.key == key)


def _decisions(artifacts: dict[str, Artifact]) -> Iterator[Any]:
    """Per shard: doc_id, source, domain, keep, and for what is not kept verdict, reason, value and threshold."""
    for shard in list_shards(artifacts):
        documents = load_table(Path(shard.documents.path), ["doc_id", "source", "domain"])
        kept = np.asarray(load_table(Path(shard.marks.path), ["kept"]).column("kept"))
        told: dict[str, list[Any]] = {
            name: [None] * len(kept) for name in ("verdict", "reason", "value", "threshold", "detail")
        }
        cleaned = artifacts[f"clean/{shard.source}"]
        path = cleaned.directory / f"ledger-{shard.name.rpartition('/')[2]}.parquet"
        if path.is_file():
            for line in load_table(path).to_pylist():
                if line["verdict"] != "edit":
                    for name, column in told.items():
                        column[line["row"]] = line[name]
        yield pa.table(
            {
                **{name: documents.column(name) for name in ("doc_id", "source", "domain")},
                "keep": kept,
                "verdict": pa.array(told["verdict"], pa.string()),
                "reason": pa.array(told["reason"], pa.string()),
                "value": pa.array(told["value"], pa.float64()),
                "threshold": pa.array(told["threshold"], pa.float64()),
                "detail": pa.array(told["detail"], pa.string()),
            }
        )
