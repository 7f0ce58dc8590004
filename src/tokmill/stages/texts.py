"""Texts: the documents of each split in files for people and other tools, with all their fields.

    documents, edits, trims, kept, labels ─ a shard at a time ─> <split>/texts-<shard>.<suffix>

With a mixture they are the documents that it gives a turn, whole, in its order, and as often as it repeats
them. A document may come from anywhere then, so each shard is laid out once to be read here and there:

    shard ─> scratch-<split>-<shard>.arrow, mapped            rows in the order of its token file
    order-<split> ─ cut where tokens reach a shard's worth ─ take ─> <split>/texts-00000.<suffix> …

Several stages are one after the other, each in files of its own.

A budget in tokens may cut the last document of a build, and `balance` leaves rows out: a text is never cut,
and every document with a turn is here. Splits that the mixture leaves alone are in the order of the corpus.

README.md comes last: a dataset card, so that `datasets.load_dataset` opens the directory with its splits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import (
    NO_DOCUMENTS,
    FileEntry,
    Json,
    Receipt,
    add_counts,
    file_entry,
    sum_counts,
)
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
    table_input,
    tables_of,
)
from tokmill.artifacts.upstream import Shard, tally, texts_in_order
from tokmill.schema import one_piece, string_column
from tokmill.stages.build.stage import all_turns_of
from tokmill.stages.text_card import CardOptions, perform_card
from tokmill.stages.tokens.reading import CHARS_PER_TOKEN, labelled_shards, load_split_texts
from tokmill.stages.warnings import tell
from tokmill.storage.digests import join_sequences, row_sequence, table_sha256
from tokmill.storage.on_demand import at_hand
from tokmill.storage.tables import load_rows, load_table, open_arrow, write_arrow
from tokmill.storage.textfiles import DOCUMENT, FIELDS, MEASURES, find_text_format

# Beside the fields until they are counted: the licence as cleaning resolved it, and characters.
_COUNTED = ("license", "chars")

_PERCENTILES = "percentiles"  # of scores, beside the measures

_NOTHING_MEASURED = (
    "`measures` are asked for, and no rule measures anything: add `filters` to the recipe, or leave it out"
)


class TextsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A build with `content: text`."""

    title: str  # of the card
    format: str
    sources: tuple[str, ...] = ()  # none: all
    measures: bool = False
    shard_bytes: int  # of a file, where the order is that of a mixture


class ShardTextsOptions(TaskOptions, frozen=True):
    """Documents of one shard, of the splits `own`. `format` is that of the files; None: to be gathered."""

    number: int
    splits: tuple[str, ...]
    own: tuple[str, ...]
    measures: dict[str, str]  # name and type of each
    format: str | None = None


class GatherOptions(TaskOptions, frozen=True):
    """The turns [first, stop) of a split; other shards than these have none that count."""

    format: str
    split: str
    number: int
    first: int
    stop: int
    shards: tuple[int, ...]


def conduct(step: Step[TextsOptions], upstream: Mapping[str, Artifact]) -> Conduct:
    options, splits = step.options, tuple(upstream["split"].manifest.facts["splits"])
    measures = _measure_types(upstream, options) if options.measures else {}
    shards = [
        (shard, [*inputs, *_measures_input(upstream, shard)] if measures else inputs)
        for shard, inputs in labelled_shards(dict(upstream))
        if not options.sources or shard.source in options.sources
    ]
    turns = {split: found for split in splits if (found := all_turns_of(upstream, split))}
    held = tuple(split for split in splits if split not in turns)
    slices = {
        split: [one for stage in found for one in _cut(stage, shards, options.shard_bytes)]
        for split, found in turns.items()
    }

    def of_shards(function: str, name: str, own: tuple[str, ...], format: str | None) -> list[Task]:
        return [
            Task(
                function=function,
                key=f"{name}{shard.number:05d}",
                options=ShardTextsOptions(
                    number=shard.number, splits=splits, own=own, measures=measures, format=format
                ),
                inputs=inputs,
                directory=str(step.directory),
            )
            for shard, inputs in shards
            if own and (format is not None or shard.number in used)
        ]

    used = {number for own in slices.values() for one in own for number in one.shards}
    written = yield of_shards("texts", "", held, options.format)
    scratch = yield of_shards("texts.scratch", "scratch-", tuple(turns), None)
    gathered = yield list(_gather_tasks(step, slices, tables_of(step, scratch, "scratch")))
    receipts = [*written, *gathered]
    counts = add_counts({**NO_DOCUMENTS, "splits": {}}, sum_counts(receipts))
    facts = _facts(splits, receipts)
    if options.measures and not measures:
        facts["warnings"] = [_NOTHING_MEASURED]
        tell(step.name, facts["warnings"])
    card = CardOptions(
        title=options.title, format=options.format, counts=counts, splits=splits, measures=measures
    )
    receipts += yield [
        Task(function="texts.card", key="card", options=card, inputs=[], directory=str(step.directory))
    ]
    return Outcome(receipts, counts, facts)


def _facts(splits: Sequence[str], receipts: Sequence[Receipt]) -> Json:
    """The digest of all documents in the order of the files, split by split: that of an ingest step which
    has read them in this order."""
    entries = texts_in_order(splits, [entry for receipt in receipts for entry in receipt.files])
    digests = {
        split: join_sequences((entry.sequence or "", entry.rows) for entry in own)
        for split, own in entries.items()
    }
    every = [entry for own in entries.values() for entry in own]
    return {
        "splits": list(splits),
        "corpus_digest": join_sequences((entry.sequence or "", entry.rows) for entry in every),
        "split_digests": digests,
    }


# --- measures ---


def _measures_input(upstream: Mapping[str, Artifact], shard: Shard) -> list[Input]:
    cleaned = upstream[f"clean/{shard.source}"]
    path = f"measures-{shard.key}.parquet"
    found = [
        table_input(MEASURES, cleaned.directory, entry)
        for entry in cleaned.manifest.entries(MEASURES)
        if entry.path == path
    ]
    ranked = f"{_PERCENTILES}-{shard.number:05d}.parquet"
    return found + [
        table_input(_PERCENTILES, upstream["scores"].directory, entry)
        for entry in (upstream["scores"].manifest.files if "scores" in upstream else ())
        if entry.path == ranked
    ]


def _measure_types(upstream: Mapping[str, Artifact], options: TextsOptions) -> dict[str, str]:
    """Of every measure of any source, so that all files have the same columns."""
    found: dict[str, str] = {}
    for name, cleaned in upstream.items():
        if name.startswith("clean/") and (
            not options.sources or name.removeprefix("clean/") in options.sources
        ):
            for entry in cleaned.manifest.entries(MEASURES)[:1]:
                for field in pq.read_schema(at_hand(cleaned.path(entry))):
                    kind = "int64" if pa.types.is_integer(field.type) else "double"
                    found[field.name] = kind if found.get(field.name, kind) == kind else "double"
    if found and "scores" in upstream:
        for entry in upstream["scores"].manifest.entries(_PERCENTILES)[:1]:
            names = pq.read_schema(at_hand(upstream["scores"].path(entry))).names
            found |= dict.fromkeys(names, "double")
    return dict(sorted(found.items()))


def _measured(task: Task[ShardTextsOptions], rows: Any) -> Any:
    types = {name: pa.type_for_alias(kind) for name, kind in task.options.measures.items()}
    struct = pa.struct(list(types.items()))
    if not task.paths(MEASURES):
        return pa.nulls(len(rows), struct)
    table = task.load(MEASURES).take(rows)
    for path in task.paths(_PERCENTILES):
        ranked = load_table(path).take(rows)
        for name in ranked.column_names:
            table = table.append_column(name, ranked.column(name))
    columns = [
        one_piece(table.column(name)).cast(kind) if name in table.column_names else pa.nulls(len(rows), kind)
        for name, kind in types.items()
    ]
    return pa.StructArray.from_arrays(columns, fields=list(struct))


# --- a shard ---


def _load_texts(task: Task[ShardTextsOptions]) -> Iterator[tuple[str, Any]]:
    """Of each split that is asked for, and has documents here: FIELDS and what is counted."""
    texts = load_split_texts(task.inputs)
    numbers, rows = np.asarray(texts.column("split")), texts.column("row").combine_chunks()
    others = [name for name in DOCUMENT if name not in texts.column_names]
    documents = task.load("documents", others).take(rows)
    names = pa.array(task.options.splits, pa.string())
    columns = {name: texts.column(name) for name in ("text", "doc_id", "language", *_COUNTED)}
    columns |= {name: documents.column(name) for name in others}
    columns["split"] = names.take(pa.array(np.minimum(numbers, len(names) - 1)))
    if task.options.measures:
        columns[MEASURES] = _measured(task, rows)
    order = [*FIELDS, *([MEASURES] if task.options.measures else []), *_COUNTED]
    table = pa.table({name: columns[name] for name in order})
    for number, split in enumerate(task.options.splits):
        if split in task.options.own and (numbers == number).any():
            yield split, table.filter(pa.array(numbers == number)).combine_chunks()


def perform_texts(task: Task[ShardTextsOptions]) -> Made:
    """A shard as it lies in the corpus."""
    counts, files = dict(NO_DOCUMENTS), []
    assert task.options.format is not None, "what is gathered later has another function"
    for split, table in _load_texts(task):
        files.append(_write(task.directory, task.options.format, split, task.options.number, table))
        counts = add_counts(counts, _count(split, table))
    return Made(files, counts)


def perform_scratch(task: Task[ShardTextsOptions]) -> Made:
    """A row is a sequence of the token file of its split: both have the documents in the order of rows."""
    files = []
    for split, table in _load_texts(task):
        path = f"scratch-{split}-{task.options.number:05d}.arrow"
        written = write_arrow(Path(task.directory) / path, table)
        digest = table_sha256(table.flatten())
        files.append(file_entry(path, "scratch", written, rows=table.num_rows, content_sha256=digest))
    return Made(files, {})


# --- in the order of a mixture ---


class _Slice(NamedTuple):
    """Turns in an order that make one file, and the shards that they are in."""

    order: Input
    first: int
    stop: int
    shards: tuple[int, ...]


def _cut(
    turns: Sequence[Input], shards: Sequence[tuple[Shard, list[Input]]], shard_bytes: int
) -> list[_Slice]:
    """A file ends where its tokens would be the text of a working shard."""
    per_file, own = max(shard_bytes // CHARS_PER_TOKEN, 1), [shard.number for shard, _ in shards]
    (order,) = (part for part in turns if part.role == "order")
    found: dict[int, _Slice] = {}
    position = total = 0
    for part in turns:
        if part.role != "turns":
            continue
        table = load_table(Path(part.path), ["shard", "tokens"])
        numbers = np.asarray(table.column("shard"))
        at = np.flatnonzero(np.isin(numbers, own))
        tokens = np.asarray(table.column("tokens"))[at]
        ends = total + np.cumsum(tokens)
        files, firsts = np.unique((ends - tokens) // per_file, return_index=True)
        for file, (first, stop) in zip(files.tolist(), pairwise([*firsts.tolist(), len(at)]), strict=True):
            mine = set(numbers[at[first:stop]].tolist())
            begins, ends_at = position + int(at[first]), position + int(at[stop - 1]) + 1
            if file in found:  # begun in the part before
                begins, mine = found[file].first, mine | set(found[file].shards)
            found[file] = _Slice(order, begins, ends_at, tuple(sorted(mine)))
        total = int(ends[-1]) if len(ends) else total
        position += len(numbers)
    return list(found.values())


def _gather_tasks(
    step: Step[TextsOptions],
    slices: Mapping[str, list[_Slice]],
    scratch: Sequence[Input],
) -> Iterator[Task[GatherOptions]]:
    by_name = {Path(item.path).stem: item for item in scratch}
    for split, own in slices.items():
        for number, one in enumerate(own):
            options = GatherOptions(
                format=step.options.format,
                split=split,
                number=number,
                first=one.first,
                stop=one.stop,
                shards=one.shards,
            )
            parts = [by_name[f"scratch-{split}-{shard:05d}"] for shard in one.shards]
            yield Task(
                function="texts.gather",
                key=f"{split}-{number:05d}",
                options=options,
                inputs=[one.order, *parts],
                directory=str(step.directory),
            )


def perform_gather(task: Task[GatherOptions]) -> Made:
    options = task.options
    (path,) = task.paths("order")
    order = load_rows(path, options.first, options.stop)
    shard, sequence = (np.asarray(order.column(name)) for name in ("shard", "sequence"))
    parts, places = [], []
    for number, path in zip(options.shards, task.paths("scratch"), strict=True):
        at = np.flatnonzero(shard == number)
        parts.append(open_arrow(path).take(pa.array(sequence[at])))
        places.append(at)
    inverse = np.argsort(np.concatenate(places), kind="stable")
    table = pa.concat_tables(parts).combine_chunks().take(pa.array(inverse)).combine_chunks()
    entry = _write(task.directory, options.format, options.split, options.number, table)
    return Made([entry], _count(options.split, table))


# --- files and counts ---


def _write(directory: str, format: str, split: str, number: int, table: Any) -> FileEntry:
    one, fields = find_text_format(format), table.drop_columns(list(_COUNTED))
    path = f"{split}/texts-{number:05d}{one.suffix}"
    made = one.write(Path(directory) / path, f"{number:05d}", fields)
    entry = file_entry(path, "texts", made.written, rows=table.num_rows, content_sha256=made.content_sha256)
    return msgspec.structs.replace(entry, sequence=row_sequence(fields.select(list(DOCUMENT))))


def _count(split: str, table: Any) -> Json:
    """A document that repeats counts each time."""
    chars, sources = np.asarray(table.column("chars")), one_piece(table.column("source"))
    column = string_column(table.column("text"))
    coded = sources.dictionary_encode()
    numbers, licenses = np.asarray(coded.indices), one_piece(table.column("license"))
    return {
        "in": table.num_rows,
        "kept": table.num_rows,
        "dropped": {},
        "quarantined": {},
        "splits": {
            split: {
                "docs": table.num_rows,
                "bytes": int(column.offsets[-1] - column.offsets[0]),
                "chars": int(chars.sum()),
            }
        },
        "licenses": {
            name: tally(licenses.filter(pa.array(numbers == code)), chars=chars[numbers == code])
            for code, name in enumerate(coded.dictionary.to_pylist())
        },
        "languages": tally(one_piece(table.column("language")), chars=chars),
    }


STAGE = Stage(
    "texts",
    TextsOptions,
    conduct,
    {
        "texts": TaskFunction(ShardTextsOptions, perform_texts),
        "texts.scratch": TaskFunction(ShardTextsOptions, perform_scratch),
        "texts.gather": TaskFunction(GatherOptions, perform_gather),
        "texts.card": TaskFunction(CardOptions, perform_card),
    },
)
