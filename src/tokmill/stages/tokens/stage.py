"""Tokens: the kept texts of a shard, encoded once, EOS after each document, and BOS before it if asked for.

    texts of all splits ─ encode ─ check a sample ─ EOS
        ─> <split>/<domain>/tokens-<shard>.{bin,idx}   ids, one sequence per document
           <split>/<domain>/lengths-<shard>.parquet    row, doc_id, tokens, text_bytes
           <split>/<domain>/loss-<shard>.bin           of conversations: per token 1 where it is learned

Ids take the smallest dtype that holds the vocabulary; builds widen them where asked. Control tokens that the
recipe asks for are the only strings that become one; EOS and BOS are the tokenizer's, whatever the text says.
Of conversations those that the template writes are, and no others (tokmill.tokenizers.regions).
`shards_of_split` is the one way mixtures and builds find them again, `load_split_texts` the one way to read
documents as cleaning left them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifacts.cache import cache_of
from tokmill.artifacts.manifest import FileEntry, Json, Receipt, add_counts, file_entry, sum_counts
from tokmill.artifacts.step import (
    Artifact,
    Conduct,
    Input,
    Made,
    Outcome,
    Shard,
    Stage,
    Step,
    Task,
    TaskFunction,
    TaskOptions,
    domain_of,
    hook_inputs,
    is_chat,
    kept_inputs,
    list_shards,
    table_input,
    tally,
    write_shard_table,
)
from tokmill.clean.edits import apply_edits
from tokmill.errors import TokenizerError
from tokmill.formats import plugin_of
from tokmill.formats.megatron import write_megatron
from tokmill.kernels.characters import measure_text
from tokmill.kernels.packing import end_sequences
from tokmill.kernels.patterns import literal_table
from tokmill.schema import DEDUP_EDITS, LENGTHS, NO_SPLIT, one_piece, string_column
from tokmill.stages.dedup.method import load_texts
from tokmill.stages.tokens.encoded import Known, Told, cached_tasks, keep_files, load_known, take_files
from tokmill.stages.tokens.encoding import Encoding, FimOptions, encode_documents
from tokmill.storage.disk import open_commit
from tokmill.storage.tables import load_table
from tokmill.tokenizers.fast import drawn_rows, first_difference, rows_with_literals, starts
from tokmill.tokenizers.fim import Fim
from tokmill.tokenizers.load import check_dtype, pinned_tokenizer, resolve_sentinels
from tokmill.tokenizers.protocol import Encoded, Tokenizer
from tokmill.tokenizers.regions import Masked, strip_marks

Numbers = NDArray[np.int64]

_TEXTS = pa.schema(
    [
        pa.field("row", pa.int64()),
        pa.field("split", pa.uint8()),
        pa.field("doc_id", pa.string()),
        pa.field("text", pa.large_string()),
        pa.field("language", pa.string()),
        pa.field("license", pa.string()),
        pa.field("chars", pa.int64()),
    ]
)


def labelled_shards(upstream: dict[str, Artifact]) -> list[tuple[Shard, list[Input]]]:
    """Every shard with the inputs for `load_split_texts`."""
    shards = list_shards(upstream)
    split = upstream["split"]
    trims = trim_inputs(upstream)
    labels = [table_input("labels", split.directory, entry) for entry in split.manifest.entries("labels")]
    return [
        (shard, [*shard.inputs(), kept, label, *trims.get(shard.number, [])])
        for shard, kept, label in zip(shards, kept_inputs(upstream, shards), labels, strict=True)
    ]


def trim_inputs(upstream: dict[str, Artifact]) -> dict[int, list[Input]]:
    """By shard: texts that lost lines or passages to deduplication."""
    found: dict[int, list[Input]] = {}
    if "dedup" in upstream:
        dedup = upstream["dedup"]
        for table in DEDUP_EDITS:
            for entry in dedup.manifest.entries(table):
                number = int(entry.path.removeprefix(f"{table}-").removesuffix(".parquet"))
                found.setdefault(number, []).append(table_input(table, dedup.directory, entry))
    return found


def load_split_texts(inputs: list[Input], split: int | None = None, *, is_marked: bool = False) -> Any:
    """Table row, split, doc_id, text, language, license, chars of the kept documents of a split,
    in row order; or of all splits: one reading for them all. The marks of conversations are for who
    encodes them (`is_marked`), and nobody else."""
    by_role = {item.role: Path(item.path) for item in inputs}
    labels = load_labels(inputs)
    rows = np.flatnonzero(labels != NO_SPLIT if split is None else labels == split)
    if not len(rows):
        return _TEXTS.empty_table()

    documents = load_table(by_role["documents"], ["text", "doc_id"])
    texts = [one_piece(documents.column("text"))]
    order = np.arange(documents.num_rows)
    for role in ("edits", *DEDUP_EDITS):  # each is of the text that the one before left
        if role in by_role:
            edits = load_table(by_role[role], ["row", "text"])
            order[np.asarray(edits.column("row"))] = sum(map(len, texts)) + np.arange(edits.num_rows)
            texts.append(one_piece(edits.column("text")))
    wanted = ["language", "license", "chars"]
    marks = load_table(by_role["marks"], wanted)
    columns = [one_piece(documents.column("doc_id")), *(one_piece(marks.column(name)) for name in wanted)]
    doc_ids, *named = (_taken(column, rows) for column in columns)
    chosen = _taken(texts[0] if len(texts) == 1 else pa.concat_arrays(texts), order[rows])
    if not by_role.keys().isdisjoint(DEDUP_EDITS):  # the marks are of the text before
        named[-1] = pa.array(measure_text(*string_column(chosen)[:2]).chars)
    if not is_marked and (plain := strip_marks(chosen)) is not chosen:
        chosen, named[-1] = plain, pa.array(measure_text(*string_column(plain)[:2]).chars)
    return pa.table([rows, labels[rows], doc_ids, chosen, *named], schema=_TEXTS)


def load_labels(inputs: list[Input]) -> Any:
    """The split of every document; NO_SPLIT where it was dropped."""
    by_role = {item.role: Path(item.path) for item in inputs}
    kept = np.asarray(load_table(by_role["kept"], ["kept"]).column("kept"))
    labels = np.asarray(load_table(by_role["labels"], ["split"]).column("split"))
    return np.where(kept, labels, NO_SPLIT).astype(np.uint8)


def _taken(column: Any, rows: Any) -> Any:
    """Not copied where all is taken as it stands: a corpus that loses nothing is the common case of the large
    ones."""
    if len(rows) == len(column) and (rows == np.arange(len(rows))).all():
        return column
    return column.take(pa.array(rows))


def load_clean(inputs: list[Input]) -> tuple[Any, Any]:
    """The document table of what cleaning kept of a shard, edits laid over,
    and trims where they are among the inputs; and the characters of each after cleaning."""
    by_role = {item.role: Path(item.path) for item in inputs}
    marks = load_table(by_role["marks"], ["kept", "chars"])
    kept = np.asarray(marks.column("kept"))
    documents = load_table(by_role["documents"])
    for role in ("edits", *DEDUP_EDITS):  # each is of the text that the one before left
        if role in by_role:
            edits = load_table(by_role[role], ["row", "text"])
            texts = apply_edits(
                one_piece(documents.column("text")),
                np.asarray(edits.column("row")),
                one_piece(edits.column("text")),
            )
            documents = documents.set_column(0, documents.schema.field(0), texts)
    return documents.filter(pa.array(kept)), np.asarray(marks.column("chars"))[kept]


# For planning only: what a limit in tokens, and an estimate in a manifest, take a token for.
CHARS_PER_TOKEN = 4


def estimate_tokens(chars: Any) -> int:
    """Of documents with so many characters each."""
    return int((-(-chars // CHARS_PER_TOKEN)).sum())


class DocIds:
    """doc_id of any document by shard and row; shards that were asked for stay in memory."""

    def __init__(self, shards: list[Shard]) -> None:
        self._paths = {shard.name: Path(shard.documents.path) for shard in shards}
        self._columns: dict[str, Any] = {}

    def of(self, shard: str, row: int) -> str:
        if shard not in self._columns:
            self._columns[shard] = load_table(self._paths[shard], ["doc_id"]).column("doc_id")
        return str(self._columns[shard][row])


# --- tokens ---

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


class TokensOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """Fill in the middle; all else that can change a token is in the steps before."""

    fim: FimOptions | None = None


@dataclass(frozen=True)
class TokensExtra:
    # builds whose ids have two bytes, and the dtypes of their formats
    narrow: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


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


def conduct(step: Step[TokensOptions, TokensExtra | None], upstream: Mapping[str, Artifact]) -> Conduct:
    tokenizer = upstream["tokenizer"]
    facts = tokenizer.manifest.facts
    splits = upstream["split"].manifest.facts["splits"]
    pinned = _pinned(tokenizer)
    fim = step.options.fim
    sentinels = _sentinels(fim, tokenizer, facts) if fim is not None else {}
    # before anything is encoded that could not be built
    for build, dtypes in (step.extra or TokensExtra()).narrow.items():
        check_dtype(facts["padded_vocab_size"], "uint16", f"build {build}", dtypes)
    labelled = labelled_shards(dict(upstream))
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
                bos_id=facts.get("bos_id"),
                is_chat=is_chat(upstream[f"ingest/{shard.source}"]),
                **_fim_of(fim, sentinels, shard),
            ),
            inputs=[*pinned, *inputs],
            directory=str(step.directory),
        )
        for shard, inputs in labelled
    ]
    shards = [shard for shard, _ in labelled]
    tasks = cached_tasks(cache_of(step.directory.parent, step.name), tasks, shards)
    receipts = yield tasks
    told = {"fim": sentinels} if fim is not None else {}
    return Outcome(receipts, sum_counts(receipts), {"tokenizer": facts, "splits": splits, **told})


def _sentinels(fim: FimOptions, tokenizer: Artifact, facts: Json) -> dict[str, int]:
    (entry,) = tokenizer.manifest.entries("tokenizer")
    loaded = pinned_tokenizer(str(tokenizer.path(entry)), entry.content_sha256, facts["encoding"])
    return resolve_sentinels(loaded, {key: getattr(fim, key) for key in ("prefix", "middle", "suffix")})


def fim_of(tokens: Artifact, source: str, domain: str) -> Fim | None:
    """How the documents of a source were reordered, as the step says."""
    fim = tokens.manifest.options(TokensOptions).fim
    is_wanted = fim is not None and domain in fim.domains
    return fim.of_source(source, tokens.manifest.facts["fim"]) if fim is not None and is_wanted else None


def _fim_of(fim: FimOptions | None, sentinels: dict[str, int], shard: Shard) -> dict[str, Any]:
    is_wanted = fim is not None and shard.domain in fim.domains
    return {"fim": fim, "sentinels": sentinels} if is_wanted else {}


def _environment(step: Step, receipts: Sequence[Receipt]) -> Json:
    """Libraries and versions that encoded, as their tasks say:
    part of the environment, never of the identity."""
    encoders = {receipt.facts["encoder"] for receipt in receipts if "encoder" in receipt.facts}
    return {"encoder": ", ".join(sorted(encoders))}


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
    table = _described(task.inputs, rows)
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


def _described(inputs: list[Input], rows: Numbers) -> Any:
    """What `load_split_texts` tells of these rows, without their texts."""
    by_role = {item.role: Path(item.path) for item in inputs}
    named = ["language", "license", "chars"]
    marks = load_table(by_role["marks"], named)
    chars = np.asarray(marks.column("chars")).copy()
    for role in DEDUP_EDITS:  # the marks are of the text before
        if role in by_role:
            edits = load_table(by_role[role], ["row", "text"])
            lengths = measure_text(*string_column(edits.column("text"))[:2]).chars
            chars[np.asarray(edits.column("row"))] = lengths
    documents = load_table(by_role["documents"], ["doc_id"])
    columns = [documents.column("doc_id"), marks.column("language"), marks.column("license"), pa.array(chars)]
    taken = [_taken(one_piece(column), rows) for column in columns]
    labels = load_labels(inputs)[rows]
    return pa.table([rows, labels, *taken], names=["row", "split", "doc_id", *named])


def _with_texts(task: Task[ShardTokensOptions], rows: Numbers) -> Any:
    return _described(task.inputs, rows).append_column("text", load_texts(task.inputs, rows))


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


def _pinned(tokenizer: Artifact) -> list[Input]:
    """The file, and the code behind it where that lies beside the recipe."""
    (file,) = tokenizer.manifest.entries("tokenizer")
    plugin = plugin_of(tokenizer.manifest.config)
    pinned = Input("tokenizer", str(tokenizer.path(file)), file.content_sha256)
    return [pinned, *hook_inputs([plugin] if plugin else [])]


STAGE = Stage(
    "tokens",
    TokensOptions,
    conduct,
    {"tokens": TaskFunction(ShardTokensOptions, perform_tokens)},
    _environment,
)


class SplitShard(NamedTuple):
    """A working shard with documents in the split: ids, and a table with a row per sequence."""

    number: int
    source: str
    domain: str
    tokens: Input
    lengths: Input
    loss: Input | None = None  # None: all is learned


def shards_of_split(upstream: Mapping[str, Artifact], split: str) -> list[SplitShard]:
    """In shard order, which is the order of the corpus."""
    origins = [
        (name.removeprefix("ingest/"), domain_of(artifact))
        for name, artifact in upstream.items()
        if name.startswith("ingest/")
        for _ in artifact.manifest.entries("documents")
    ]
    tokens = upstream["tokens"]
    found = []
    for receipt in tokens.manifest.receipts():
        mine = {entry.table: entry for entry in receipt.files if entry.path.startswith(f"{split}/")}
        if mine:
            number = int(receipt.key)
            tables = [table for table in ("tokens", "lengths", "loss") if table in mine]
            inputs = (table_input(table, tokens.directory, mine[table]) for table in tables)
            found.append(SplitShard(number, *origins[number], *inputs))
    return found
