"""Tokens: the kept texts of a shard, encoded once, EOS after each document.

    texts of all splits ─ encode ─ check a sample ─ EOS ─> <split>/<domain>/tokens-<shard>.{bin,idx}   ids, one sequence per document
                                                           <split>/<domain>/lengths-<shard>.parquet    row, doc_id, tokens, text_bytes

Ids take the smallest dtype that holds the vocabulary; builds widen them where asked. Control tokens that the recipe
asks for are the only strings that become one; EOS is the tokenizer's, whatever the text says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from tokmill.artifacts.artifact import Artifact
from tokmill.artifacts.manifest import FileEntry, Json, Receipt, add_counts, file_entry, sum_counts
from tokmill.artifacts.step import (
    Conduct,
    Input,
    Made,
    Outcome,
    Stage,
    Step,
    Task,
    TaskFunction,
    TaskOptions,
    tally,
    write_shard_table,
)
from tokmill.errors import TokenizerError
from tokmill.formats.megatron import write_megatron
from tokmill.kernels.packing import end_sequences
from tokmill.kernels.patterns import literal_table
from tokmill.schema import LENGTHS, one_piece, string_column
from tokmill.stages.texts import labelled_shards, load_split_texts
from tokmill.tokenizers.fast import encode_with_controls, first_difference, rows_to_check, starts
from tokmill.tokenizers.load import check_dtype, pinned_tokenizer
from tokmill.tokenizers.protocol import Encoded, Tokenizer

# Texts are handed to the tokenizer a few megabytes at a time. gigatoken then writes into memory that it has used
# before: 135 MB/s, against 103 for a corpus in one call. A reference has its Python strings only so long.
_BATCH_BYTES = 4 << 20


class _Batch(NamedTuple):
    """Some documents of the shard, from row `first` of the table of texts."""

    first: int
    ids: Any
    offsets: Any


class TokensOptions(msgspec.Struct, frozen=True):
    """Nothing of a recipe: all that can change a token is in the steps before."""


@dataclass(frozen=True)
class TokensExtra:
    narrow: Sequence[str] = ()  # builds whose ids have two bytes


class ShardTokensOptions(TaskOptions, frozen=True):
    source: str
    domain: str
    eos_id: int
    encoding: str | None
    controls: dict[str, int]
    splits: tuple[str, ...]
    dtype: Literal["uint16", "int32"]


def conduct(step: Step[TokensOptions, TokensExtra | None], upstream: Mapping[str, Artifact]) -> Conduct:
    tokenizer = upstream["tokenizer"]
    facts = tokenizer.manifest.facts
    splits = upstream["split"].manifest.facts["splits"]
    pinned = _pinned(tokenizer)
    for build in (step.extra or TokensExtra()).narrow:  # before anything is encoded that could not be built
        check_dtype(facts["padded_vocab_size"], "uint16", where=f"build {build}")
    tasks = [
        Task(
            function="tokens",
            key=f"{shard.number:05d}",
            options=ShardTokensOptions(
                source=shard.source,
                domain=shard.domain,
                eos_id=facts["eos_id"],
                encoding=facts["encoding"],
                controls=facts.get("controls", {}),
                splits=tuple(splits),
                dtype="uint16" if facts["vocab_size"] <= 1 << 16 else "int32",
            ),
            inputs=[pinned, *inputs],
            directory=str(step.directory),
        )
        for shard, inputs in labelled_shards(dict(upstream))
    ]
    receipts = yield tasks
    return Outcome(receipts, sum_counts(receipts), {"tokenizer": facts, "splits": splits})


def _environment(step: Step, receipts: Sequence[Receipt]) -> Json:
    """Libraries and versions that encoded, as their tasks say: part of the environment, never of the identity."""
    encoders = {receipt.facts["encoder"] for receipt in receipts if "encoder" in receipt.facts}
    return {"encoder": ", ".join(sorted(encoders))}


def perform_tokens(task: Task[ShardTokensOptions]) -> Made:
    options = task.options
    (pinned,) = (item for item in task.inputs if item.role == "tokenizer")
    tokenizer = pinned_tokenizer(pinned.path, pinned.content_sha256, options.encoding)
    table = load_split_texts(task.inputs)
    batches = list(_encode(task, table, tokenizer))
    counts: Json = {
        "in": table.num_rows,
        "kept": 0,
        "dropped": {},
        "quarantined": {},
        "tokens": {},
        "checked": _check(task, table, batches, tokenizer),
        "licenses": {options.source: {}},
        "languages": {},
    }
    files: list[FileEntry] = []
    labels = np.asarray(table.column("split"))
    for number, split in enumerate(options.splits):
        rows = np.flatnonzero(labels == number)
        if len(rows):
            chosen = table.drop_columns(["text"]).take(pa.array(rows))
            written, lengths = _write(task, split, chosen, rows, _bytes_of(table)[rows], batches)
            files += written
            chars = np.asarray(chosen.column("chars"))
            sums = {
                name: tally(one_piece(chosen.column(name)), chars=chars, tokens=lengths)
                for name in ("license", "language")
            }
            totals = counts["licenses"][options.source]
            counts["licenses"][options.source] = add_counts(totals, sums["license"])
            counts["languages"] = add_counts(counts["languages"], sums["language"])
            counts["kept"] += len(rows)
            counts["tokens"][split] = int(lengths.sum())
    return Made(files, counts, {"encoder": tokenizer.engine} if table.num_rows else {})


def _encode(task: Task[ShardTokensOptions], table: Any, tokenizer: Tokenizer) -> Iterator[_Batch]:
    texts = one_piece(table.column("text"))
    offsets = string_column(texts).offsets
    start = 0
    while start < len(texts):
        end = max(int(np.searchsorted(offsets, offsets[start] + _BATCH_BYTES, side="right")) - 1, start + 1)
        encoded = encode_with_controls(
            texts.slice(start, end - start), tokenizer.encode_column, task.options.controls
        )
        yield _Batch(start, encoded.ids, starts(encoded.lengths))
        start = end


def _check(task: Task[ShardTokensOptions], table: Any, batches: list[_Batch], tokenizer: Tokenizer) -> int:
    """How many documents the reference vouches for. One id that is not its own stops the run."""
    if not table.num_rows:
        return 0
    texts, doc_ids = one_piece(table.column("text")), one_piece(table.column("doc_id"))
    rows = rows_to_check(doc_ids, texts, tokenizer.kind, literal_table(list(tokenizer.specials)))
    if not tokenizer.is_fast:
        return len(rows)  # all of the shard is by the reference
    for batch in batches:
        mine = rows[(rows >= batch.first) & (rows < batch.first + len(batch.offsets) - 1)]
        if len(mine):
            expected = encode_with_controls(
                texts.take(pa.array(mine)),
                lambda column: tokenizer.encode(column.to_pylist()),
                task.options.controls,
            )
            encoded = Encoded(batch.ids, np.diff(batch.offsets))
            difference = first_difference(encoded, mine - batch.first, expected)
            if difference is not None:
                row = batch.first + difference.row
                raise TokenizerError(
                    f"token {difference.position} is {difference.found} by {tokenizer.engine} and "
                    f"{difference.expected} by the {tokenizer.kind} reference",
                    where=f"{task.options.source} document {doc_ids[row].as_py()!r} "
                    f"(row {table.column('row')[row].as_py()} of shard {task.key})",
                    next="uninstall gigatoken to encode with the reference alone, and report the document",
                )
    return len(rows)


def _write(
    task: Task[ShardTokensOptions], split: str, table: Any, rows: Any, text_bytes: Any, batches: list[_Batch]
) -> tuple[list[FileEntry], Any]:
    """The documents `rows` of the shard; `table` has them already."""
    chunks, lengths = [], []
    for batch in batches:
        mine = rows[slice(*np.searchsorted(rows, [batch.first, batch.first + len(batch.offsets) - 1]))]
        mine = mine - batch.first
        chunks.append(end_sequences(batch.ids, batch.offsets, mine, task.options.eos_id, task.options.dtype))
        lengths.append(batch.offsets[mine + 1] - batch.offsets[mine] + 1)
    tokens = np.concatenate(lengths)
    name = f"tokens-{task.key}"
    stem = f"{split}/{task.options.domain}/{name}"
    written = write_megatron(Path(task.directory) / stem, chunks, tokens, dtype=task.options.dtype)
    documents = pa.table(
        [
            table.column("row").cast(pa.uint32()),
            table.column("doc_id"),
            tokens,
            text_bytes,
            table.column("language"),
            table.column("license"),
        ],
        schema=LENGTHS,
    )
    files = [
        file_entry(f"{stem}.bin", "tokens", written[f"{name}.bin"], rows=table.num_rows),
        file_entry(f"{stem}.idx", "sequences", written[f"{name}.idx"], rows=table.num_rows),
        write_shard_table(
            task.directory, f"{stem.replace('/tokens-', '/lengths-')}.parquet", "lengths", documents
        ),
    ]
    return files, tokens


def _bytes_of(table: Any) -> Any:
    return np.diff(string_column(table.column("text")).offsets)


def _pinned(tokenizer: Artifact) -> Input:
    (file,) = tokenizer.manifest.entries("tokenizer")
    return Input("tokenizer", str(tokenizer.path(file)), file.content_sha256)


STAGE = Stage(
    "tokens",
    TokensOptions,
    conduct,
    {"tokens": TaskFunction(ShardTokensOptions, perform_tokens)},
    lambda _: {"patterns", "packing"},
    _environment,
)
