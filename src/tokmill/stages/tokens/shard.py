"""The tokens of a shard: from its texts, or from the ids that an earlier run gave them.

    texts ─ encode, a few megabytes at a time ─ check a sample ─┬─ EOS, BOS ─> files of each split
    cache ─ documents that are known ───────────────────────────┘
            those that are new ─ their texts ─ encode ─┘

Whoever is kept, a document that was encoded once is copied. The sample is drawn among all, known or not, as
if there were no cache; what the reference vouched for then is not encoded by it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from tokmill.artifacts.manifest import FileEntry, Json, add_counts, file_entry
from tokmill.artifacts.step import Made, Task, TaskOptions
from tokmill.artifacts.upstream import tally, write_shard_table
from tokmill.errors import TokenizerError
from tokmill.formats.megatron import write_megatron
from tokmill.kernels.characters import measure_text
from tokmill.kernels.packing import end_sequences
from tokmill.kernels.patterns import literal_table
from tokmill.schema import LENGTHS, NO_SPLIT, one_piece, string_column
from tokmill.stages.dedup.method import load_texts
from tokmill.stages.tokens.encoded import Known, Told, keep_files, load_known, take_files
from tokmill.stages.tokens.encoding import Encoding, FimOptions, encode_documents
from tokmill.stages.tokens.reading import Numbers, load_described, load_labels, load_split_texts
from tokmill.storage.disk import open_commit
from tokmill.tokenizers.fast import drawn_rows, first_difference, rows_with_literals, starts
from tokmill.tokenizers.load import pinned_tokenizer
from tokmill.tokenizers.protocol import Encoded, Tokenizer
from tokmill.tokenizers.regions import Masked, strip_marks

# Texts are handed to the tokenizer a few megabytes at a time. gigatoken then writes into memory that it has
# used before: 135 MB/s, against 103 for a corpus in one call. A reference has its Python strings only so
# long.
_BATCH_BYTES = 4 << 20


class _Batch(NamedTuple):
    """Some documents of the shard, from row `first` of the table of texts."""

    first: int
    ids: Any
    offsets: Any
    masked: Masked | None = None  # of conversations


class ShardTokensOptions(TaskOptions, frozen=True):
    source: str
    domain: str
    eos_id: int
    encoding: str | None
    controls: dict[str, int]
    splits: tuple[str, ...]
    dtype: Literal["uint16", "int32"]
    bos_id: int | None = None
    is_chat: bool = False  # texts are conversations, with marks
    fim: FimOptions | None = None
    sentinels: dict[str, int] | None = None  # of `fim`


def perform_tokens(task: Task[ShardTokensOptions]) -> Made:
    made = take_files(task)
    if made is None:
        known = load_known(task) if not task.options.is_chat else None  # what is learned of those is not kept
        made, told = (_copy(task, known) if known is not None else None) or _make(task)
        keep_files(task, made, task.options.dtype, told)
    return made


def _make(task: Task[ShardTokensOptions]) -> tuple[Made, Told]:
    """From the texts of all documents."""
    options, tokenizer = task.options, _tokenizer(task)
    table = load_split_texts(task.inputs, is_marked=True)
    batches = list(_encode(task, table, tokenizer))
    texts, doc_ids = one_piece(table.column("text")), one_piece(table.column("doc_id"))
    literals = rows_with_literals(texts, literal_table(list(tokenizer.specials)))
    chosen = drawn_rows(doc_ids, np.diff(string_column(texts).offsets), literals, tokenizer.kind)
    if tokenizer.is_fast:  # else all of the shard is by the reference
        for batch in batches:
            mine = chosen[(chosen >= batch.first) & (chosen < batch.first + len(batch.offsets) - 1)]
            encoded = Encoded(batch.ids, np.diff(batch.offsets))
            _check(task, table.take(pa.array(mine)), encoded, mine - batch.first, tokenizer)
    if options.is_chat:
        texts = strip_marks(texts)
        chars = pa.array(measure_text(*string_column(texts)[:2]).chars)
        table = table.set_column(table.column_names.index("chars"), "chars", chars)

    def ended(rows: Numbers) -> _Ended:
        return _end(task, rows, batches)

    sizes, encoder = np.diff(string_column(texts).offsets), tokenizer.engine
    made = _write_all(task, table.drop_columns(["text"]), sizes, ended, len(chosen), encoder)
    rows = np.asarray(table.column("row"))
    return made, Told(tokenizer.kind, rows[literals].tolist(), rows[chosen].tolist())


def _copy(task: Task[ShardTokensOptions], known: Known) -> tuple[Made, Told] | None:
    """From the ids that an earlier run gave them; texts are read where they are new, or new to the check.
    None: others would be encoded by another library than these."""
    options, rows = task.options, np.flatnonzero(load_labels(task.inputs) != NO_SPLIT)
    new = np.setdiff1d(rows, known.rows, assume_unique=True)
    if len(new):
        tokenizer = _tokenizer(task)
        if tokenizer.engine != known.encoder:
            return None
        known = known.joined(_encode_new(task, _with_texts(task, new), tokenizer))
    table = load_described(task.inputs, rows)
    at = known.places(rows)
    is_literal = np.isin(rows, known.told.literals)
    doc_ids = one_piece(table.column("doc_id"))
    chosen = drawn_rows(doc_ids, known.sizes[at], np.flatnonzero(is_literal), known.told.kind)
    unchecked = np.setdiff1d(rows[chosen], known.told.checked)
    if len(unchecked) and (tokenizer := _tokenizer(task)).is_fast:
        ids, lengths = known.take(unchecked)
        added = 1 if options.bos_id is None else 2
        begins = starts(lengths)[:-1] + (added - 1)  # the last of those is EOS, the one before it BOS
        inner = [ids[begin : begin + size] for begin, size in zip(begins, lengths - added, strict=True)]
        encoded = Encoded(np.concatenate(inner).astype(np.int32), lengths - added)
        _check(task, _with_texts(task, unchecked), encoded, np.arange(len(unchecked)), tokenizer)

    def ended(places: Numbers) -> _Ended:
        ids, lengths = known.take(rows[places])
        return _Ended([ids], lengths, [])

    made = _write_all(task, table, known.sizes[at], ended, len(chosen), known.encoder)
    return made, Told(known.told.kind, rows[is_literal].tolist(), rows[chosen].tolist())


def _tokenizer(task: Task[ShardTokensOptions]) -> Tokenizer:
    (pinned,) = (item for item in task.inputs if item.role == "tokenizer")
    return pinned_tokenizer(pinned.path, pinned.content_sha256, task.options.encoding)


def _with_texts(task: Task[ShardTokensOptions], rows: Numbers) -> Any:
    return load_described(task.inputs, rows).append_column("text", load_texts(task.inputs, rows))


def _encode_new(task: Task[ShardTokensOptions], table: Any, tokenizer: Tokenizer) -> Known:
    """Documents that no earlier run encoded."""
    batches = list(_encode(task, table, tokenizer))
    texts, rows = one_piece(table.column("text")), np.asarray(table.column("row"))
    chunks, lengths, _ = _end(task, np.arange(len(rows)), batches)
    ids = np.concatenate(chunks)
    literals = rows_with_literals(texts, literal_table(list(tokenizer.specials)))
    return Known(
        rows,
        np.zeros(len(rows), np.int64),
        starts(lengths)[:-1],
        lengths,
        np.diff(string_column(texts).offsets),
        [ids],
        Told(tokenizer.kind, rows[literals].tolist(), []),
        tokenizer.engine,
    )


def _write_all(
    task: Task[ShardTokensOptions],
    table: Any,
    sizes: Any,
    ended: Callable[[Numbers], _Ended],
    checked: int,
    encoder: str,
) -> Made:
    """The files of each split; `table` has all documents but for their texts, `sizes` the bytes of those."""
    options = task.options
    counts: Json = {
        "in": table.num_rows,
        "kept": 0,
        "dropped": {},
        "quarantined": {},
        "tokens": {},
        "checked": checked,
        "licenses": {options.source: {}},
        "languages": {},
    }
    files: list[FileEntry] = []
    labels, chars = np.asarray(table.column("split")), np.asarray(table.column("chars"))
    for number, split in enumerate(options.splits):
        rows = np.flatnonzero(labels == number)
        if len(rows):
            chosen = table.take(pa.array(rows))
            own = ended(rows)
            files += _write(task, split, chosen, sizes[rows], own)
            sums = {
                name: tally(one_piece(chosen.column(name)), chars=chars[rows], tokens=own.lengths)
                for name in ("license", "language")
            }
            totals = counts["licenses"][options.source]
            counts["licenses"][options.source] = add_counts(totals, sums["license"])
            counts["languages"] = add_counts(counts["languages"], sums["language"])
            counts["kept"] += len(rows)
            counts["tokens"][split] = int(own.lengths.sum())
    return Made(files, counts, {"encoder": encoder} if table.num_rows else {})


def _encoding(task: Task[ShardTokensOptions], tokenizer: Tokenizer) -> Encoding:
    options = task.options
    fim = options.fim.of_source(options.source, options.sentinels or {}) if options.fim is not None else None
    return Encoding(options.controls, tokenizer.specials if options.is_chat else None, fim)


def _encode(task: Task[ShardTokensOptions], table: Any, tokenizer: Tokenizer) -> Iterator[_Batch]:
    texts, doc_ids = one_piece(table.column("text")), one_piece(table.column("doc_id"))
    offsets = string_column(texts).offsets
    encoding = _encoding(task, tokenizer)
    start = 0
    while start < len(texts):
        end = max(int(np.searchsorted(offsets, offsets[start] + _BATCH_BYTES, side="right")) - 1, start + 1)
        some = texts.slice(start, end - start), doc_ids.slice(start, end - start)
        encoded, masked = encode_documents(*some, tokenizer.encode_column, encoding)
        yield _Batch(start, encoded.ids, starts(encoded.lengths), masked)
        start = end


def _check(
    task: Task[ShardTokensOptions], table: Any, encoded: Encoded, places: Numbers, tokenizer: Tokenizer
) -> None:
    """The reference vouches for the documents of `table`, which are those in `places` of `encoded`, new or
    not. One id that is not its own stops the run."""
    if not table.num_rows:
        return
    expected, _ = encode_documents(
        one_piece(table.column("text")),
        one_piece(table.column("doc_id")),
        lambda column: tokenizer.encode(column.to_pylist()),
        _encoding(task, tokenizer),
    )
    difference = first_difference(encoded, places, expected)
    if difference is not None:
        at = int(np.searchsorted(places, difference.row))
        raise TokenizerError(
            f"token {difference.position} is {difference.found} by {tokenizer.engine} and "
            f"{difference.expected} by the {tokenizer.kind} reference",
            where=f"{task.options.source} document {table.column('doc_id')[at].as_py()!r} "
            f"(row {table.column('row')[at].as_py()} of shard {task.key})",
            next="uninstall gigatoken to encode with the reference alone, and report the document",
        )


class _Ended(NamedTuple):
    """Ids as they are written, in chunks; how many each document has; what is learned, of conversations."""

    chunks: list[Any]
    lengths: Any
    masks: list[Any]


def _end(task: Task[ShardTokensOptions], rows: Numbers, batches: list[_Batch]) -> _Ended:
    """The documents `rows` of the batches, with what is put around each."""
    options = task.options
    added = 1 if options.bos_id is None else 2
    chunks, lengths, masks = [], [], []
    for batch in batches:
        mine = rows[slice(*np.searchsorted(rows, [batch.first, batch.first + len(batch.offsets) - 1]))]
        mine = mine - batch.first
        ended = end_sequences(batch.ids, batch.offsets, mine, options.eos_id, options.dtype, options.bos_id)
        chunks.append(ended)
        lengths.append(batch.offsets[mine + 1] - batch.offsets[mine] + added)
        if batch.masked is not None:
            masks.append(_ended(batch.masked, batch.offsets, mine, added))
    return _Ended(chunks, np.concatenate(lengths), masks)


def _write(
    task: Task[ShardTokensOptions], split: str, table: Any, text_bytes: Any, ended: _Ended
) -> list[FileEntry]:
    """The documents of `table`, which are in this order."""
    chunks, tokens, masks = ended
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
    if masks and not all(mask.all() for mask in masks):
        path = f"{stem.replace('/tokens-', '/loss-')}.bin"
        with open_commit(Path(task.directory) / path) as file:
            for mask in masks:
                file.write(mask)
        files.append(file_entry(path, "loss", file.written, rows=table.num_rows))
    return files


def _ended(masked: Masked, offsets: Any, rows: Any, added: int) -> Any:
    """What is learned of the documents `rows`, and of the token after each; one before it is not learned."""
    begin = 0 if added == 2 else None
    ended = end_sequences(masked.loss.astype(np.int32), offsets, rows, 0, "uint16", begin).astype(np.uint8)
    ended[np.cumsum(offsets[rows + 1] - offsets[rows] + added) - 1] = masked.end_loss[rows]
    return ended
