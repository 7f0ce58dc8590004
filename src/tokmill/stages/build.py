"""Build: the tokens of each split in the format that a trainer reads.

token shards in stable order ─ plan on lengths ─ gather ─> <split>/input_ids.mmap  meta.json  index.jsonl.zst
                             └ as they are ──────────────> <split>/tokens.bin  tokens.idx
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tokmill.artifact import Artifact
from tokmill.errors import ConservationBroken
from tokmill.formats.megatron import MegatronFile, write_megatron
from tokmill.formats.memmap import write_memmap, write_row_index
from tokmill.manifest import FileEntry, Json, file_entry, fingerprint_of, sum_counts
from tokmill.pack.concat import plan_concat
from tokmill.schema import one_piece
from tokmill.stages.split import VALID
from tokmill.stages.step import Conduct, Made, Outcome, Step
from tokmill.storage.parquet import load_table
from tokmill.storage.streams import plain_sha256
from tokmill.task import Input, Task
from tokmill.tokenizers.load import check_dtype


def conduct(step: Step, upstream: Mapping[str, Artifact]) -> Conduct:
    tokens = upstream["tokens"]
    facts = tokens.manifest.facts["tokenizer"]
    check_dtype(facts["vocab_size"], step.config["dtype"], where=f"build {step.config['name']}")
    tasks = []
    for split in tokens.manifest.facts["splits"]:
        inputs, sources = _token_inputs(tokens, upstream, split)
        if not inputs and split == VALID:
            continue  # nothing was held out
        config = {**step.config, "split": split, "tokenizer": facts, "sources": sources}
        task = Task(function="build", key=split, config=config, inputs=inputs, directory=str(step.directory))
        tasks.append(task)
    receipts = yield tasks
    return Outcome(receipts, sum_counts(receipts), {"tokenizer": facts})


def perform_build(task: Task) -> Made:
    lengths, doc_ids, sources = _documents(task)
    counts: Json = {
        "in": len(lengths),
        "kept": len(lengths),
        "dropped": {},
        "quarantined": {},
        "tokens": {"in": int(lengths.sum()), "written": int(lengths.sum()), "tail_dropped": 0, "padding": 0},
    }
    if task.config["format"] == "megatron":
        files = _megatron(task, lengths)
    else:
        files = _memmap(task, lengths, doc_ids, sources, counts)
    tokens = counts["tokens"]
    if tokens["in"] != tokens["written"] + tokens["tail_dropped"]:
        raise ConservationBroken(f"{tokens}", where=f"build {task.config['name']} {task.config['split']}")
    return Made(files, counts)


def _megatron(task: Task, lengths: Any) -> list[FileEntry]:
    stem = f"{task.config['split']}/tokens"
    written = write_megatron(Path(task.directory) / stem, _ids(task), lengths, dtype=task.config["dtype"])
    return [
        file_entry(f"{stem}.bin", "tokens", written["tokens.bin"], rows=len(lengths)),
        file_entry(f"{stem}.idx", "sequences", written["tokens.idx"], rows=len(lengths)),
    ]


def _memmap(task: Task, lengths: Any, doc_ids: Any, sources: Any, counts: Json) -> list[FileEntry]:
    pack, facts, split = task.config["pack"], task.config["tokenizer"], task.config["split"]
    plan = plan_concat(lengths, pack["length"], pack["tail"])
    counts["tokens"].update(written=plan.tokens_kept, tail_dropped=plan.tokens_dropped, padding=plan.padding)
    counts["rows"] = plan.n_rows
    meta = {
        "tokenizer_path": f"../../../tokenizer/{facts['file']}",
        "tokenizer_sha256": facts["sha256"],
        "eos_id": facts["eos_id"],
        "pad_id": facts["eos_id"] if pack["tail"] == "pad" else None,
        "vocab_size": facts["vocab_size"],
        "split": split,
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "counts": {"documents": len(lengths), **counts["tokens"]},
    }
    directory = Path(task.directory) / split
    rows = _exactly(_ids(task), plan.n_rows * pack["length"], facts["eos_id"])
    written = write_memmap(directory, rows, seq_len=pack["length"], dtype=task.config["dtype"], meta=meta)
    index = write_row_index(directory / "index.jsonl.zst", plan.spans(), doc_ids, sources)
    timeless = {
        key: value
        for key, value in json.loads((directory / "meta.json").read_bytes()).items()
        if key != "created_at"
    }
    spans = plain_sha256(directory / "index.jsonl.zst")
    return [
        file_entry(f"{split}/input_ids.mmap", "rows", written["input_ids.mmap"], rows=plan.n_rows),
        file_entry(
            f"{split}/meta.json",
            "meta",
            written["meta.json"],
            rows=1,
            content_sha256=fingerprint_of(timeless),
        ),
        file_entry(f"{split}/index.jsonl.zst", "index", index, rows=plan.n_rows, content_sha256=spans),
    ]


def _token_inputs(
    tokens: Artifact, upstream: Mapping[str, Artifact], split: str
) -> tuple[list[Input], list[str]]:
    """(.idx, lengths) of every shard of the split, in shard order, and the source of each."""
    shard_sources = [
        name.removeprefix("ingest/")
        for name, artifact in upstream.items()
        if name.startswith("ingest/")
        for _ in artifact.manifest.entries("documents")
    ]
    inputs, sources = [], []
    for receipt in tokens.manifest.receipts():
        mine = [entry for entry in receipt.files if entry.path.startswith(f"{split}/")]
        if mine:
            inputs += [
                Input(entry.table, str(tokens.path(entry)), entry.content_sha256, entry.rows)
                for entry in mine
            ]
            sources.append(shard_sources[int(receipt.key)])
    return inputs, sources


def _documents(task: Task) -> tuple[Any, Any, Any]:
    """Lengths, doc_ids and sources of all documents, in the order of the tokens."""
    tables = [load_table(path, ["doc_id", "tokens"]) for path in task.paths("lengths")]
    if not tables:
        return np.zeros(0, np.int64), pa.array([], pa.string()), pa.array([], pa.string())
    names = [
        pa.repeat(name, table.num_rows) for name, table in zip(task.config["sources"], tables, strict=True)
    ]
    whole = pa.concat_tables(tables)
    return (
        np.asarray(whole.column("tokens")),
        one_piece(whole.column("doc_id")),
        pa.concat_arrays(names),
    )


def _ids(task: Task) -> Iterator[Any]:
    for path in task.paths("tokens"):
        yield MegatronFile(path.with_suffix("")).ids


def _exactly(chunks: Iterator[Any], total: int, filler: int) -> Iterator[Any]:
    """The first `total` ids; the filler after them if there are fewer."""
    for chunk in chunks:
        yield chunk[:total]
        total -= min(len(chunk), total)
        if not total:
            return
    if total:
        yield np.full(total, filler, np.int32)
