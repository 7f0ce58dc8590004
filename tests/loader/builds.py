"""Small builds of every format, with a manifest as a run writes it;
and the slow, obvious way from them to batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tokmill.artifacts.directory import finish
from tokmill.artifacts.manifest import Receipt, build_manifest, file_entry
from tokmill.formats.ids import Sequences
from tokmill.formats.index import RowSpans, write_row_index
from tokmill.formats.megatron import write_megatron
from tokmill.formats.memmap import write_memmap
from tokmill.formats.npy import write_npy
from tokmill.formats.parquet import write_parquet
from tokmill.formats.token_cache import EncodeFacts, write_token_cache

SHA = "ab" * 32
EOS = 2
VOCAB = 500
FORMATS = ("memmap", "npy", "megatron", "token_cache", "parquet")
ROW_FORMATS = ("memmap", "npy")


def documents(count: int, longest: int = 30, seed: int = 0) -> list[list[int]]:
    """Each ends in EOS, and has it nowhere else."""
    draw = np.random.default_rng(seed)
    lengths = draw.integers(0, longest, count)
    return [[*draw.integers(3, VOCAB, length).tolist(), EOS] for length in lengths]


def as_rows(docs: list[list[int]], seq_len: int) -> tuple[np.ndarray, RowSpans]:
    """All documents one after the other, cut every seq_len tokens; the last row is padded with EOS."""
    stream = [id for doc in docs for id in doc]
    rows = -(-len(stream) // seq_len)
    spans, at = [], 0
    for number, doc in enumerate(docs):
        for token in range(len(doc)):
            row, column = divmod(at + token, seq_len)
            if spans and spans[-1][:2] == [row, number]:
                spans[-1][3] = column + 1
            else:
                spans.append([row, number, column, column + 1, token])
        at += len(doc)
    flat = np.array(stream + [EOS] * (rows * seq_len - len(stream)), np.int64)
    columns = np.array(spans, np.int64).reshape(-1, 5).T
    return flat.reshape(rows, seq_len), RowSpans(*columns)


def write_split(
    directory: Path,
    format: str,
    docs: list[list[int]],
    *,
    seq_len: int = 16,
    rows_per_shard: int = 3,
    part_tokens: int = 40,
    sha256: str = SHA,
    vocab_size: int = VOCAB,
) -> dict[str, Any]:
    lengths = np.array([len(doc) for doc in docs], np.int64)
    ids = np.array([id for doc in docs for id in doc], np.int64)
    names = [f"doc-{number}" for number in range(len(docs))]
    meta = {
        "tokenizer_sha256": sha256,
        "eos_id": EOS,
        "pad_id": None,
        "vocab_size": vocab_size,
        "split": directory.name,
        "layout": "concat",
    }
    numbers, zeros = np.arange(len(docs)), np.zeros(len(docs), np.int64)
    spans = RowSpans(numbers, numbers, zeros, lengths, zeros)
    if format in ROW_FORMATS:
        rows, spans = as_rows(docs, seq_len)
        meta["pad_id"] = EOS if len(ids) % seq_len else None
    if format == "memmap":
        written = write_memmap(directory, [rows], seq_len=seq_len, dtype="uint16", meta=meta)
    elif format == "npy":
        written = write_npy(
            directory, [rows], n_seqs=len(rows), seq_len=seq_len, rows_per_shard=rows_per_shard, meta=meta
        )
    elif format == "megatron":
        written = write_megatron(directory / "tokens", [ids], lengths, dtype="uint16")
    elif format == "parquet":
        batch = Sequences(ids, lengths, names)
        written = write_parquet(directory, [batch], rows_per_shard=rows_per_shard, meta=meta)
    else:
        facts = EncodeFacts(
            model="t.model", model_sha256=sha256, vocab_size=vocab_size, experiment_id="e", eos_id=EOS
        )
        written = write_token_cache(directory, [Sequences(ids, lengths)], facts, part_tokens=part_tokens)
    index = directory / "index.jsonl.zst"
    return {**written, index.name: write_row_index(index, spans, names, ["web"] * len(docs))}


def write_build(
    root: Path,
    format: str,
    splits: dict[str, list[list[int]]],
    tokenizer: dict[str, Any] | None = None,
    **how: Any,
) -> Path:
    """`root/<split>/…` and the manifest."""
    receipts = []
    for split, docs in splits.items():
        written = write_split(root / split, format, docs, **how)
        examples = len(as_rows(docs, how.get("seq_len", 16))[0]) if format in ROW_FORMATS else len(docs)
        entries = [
            file_entry(
                f"{split}/{name}",
                "index" if name == "index.jsonl.zst" else "shard",
                one,
                rows=examples if name == "index.jsonl.zst" else 0,
            )
            for name, one in written.items()
        ]
        receipts.append(Receipt(key=split, fingerprint=split, files=entries, counts={}))
    facts = {"sha256": SHA, "eos_id": EOS, "vocab_size": VOCAB, "file": "t.model", "encoding": None}
    manifest = build_manifest(
        kind="build",
        step=f"build/{root.name}",
        config={"dtype": "smallest"},
        inputs={},
        receipts=receipts,
        counts={},
        facts={"tokenizer": {**facts, **(tokenizer or {})}},
        experiment_id="e",
        environment={},
    )
    finish(root, manifest)
    return root
