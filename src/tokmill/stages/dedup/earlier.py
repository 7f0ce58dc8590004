"""Documents that an earlier corpus has, as tasks: one per shard, each with a search in every index.

    shard ─ hashes, sketches of its texts ─ search ─> earlier-<s>      of an index: estimates decide

    run ─ tokmill.stages.indexes ─> an index for as long as the step lasts, and where each text is
    shard ─ search ─> suspects-<s>, wanted-<s>       of a run: its texts are there
    shard of the run ─ extract ─> texts-<x>          those that are wanted
    shard ─ verify ─> earlier-<s>                    texts compared, n-gram by n-gram

This comes before all that compares documents of the run with each other, and no order is in it: a document
goes, or it does not, whatever else there is. So one that goes takes no other with it, and a shard that has
not changed is not looked up again. Texts are compared as they were cleaned, on either side.

Who is in several corpora is told of the one where it is equal, else most similar; then of the first.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifacts.manifest import MANIFEST, Json, Receipt, fingerprint_of
from tokmill.artifacts.step import Input, Made, Task, TaskFunction, TaskOptions, table_input, tables_of
from tokmill.artifacts.upstream import Shard, write_shard_table, write_sorted_shard_table
from tokmill.duplicates.near import SHINGLE_NORMALIZATION, NearOptions, compare_pairs
from tokmill.duplicates.shingling import Shingle
from tokmill.duplicates.sketches import SIGMAS, SKETCH_NORMALIZATION, SketchOptions, sketch, standard_error
from tokmill.schema import DROPS
from tokmill.stages.dedup.method import (
    Considered,
    DedupOptions,
    DedupStep,
    EarlierCorpus,
    Method,
    Phase,
    considered_rows,
    load_texts,
)
from tokmill.stages.dedup.survivors import NumberedTexts, write_numbered_texts
from tokmill.stages.external.runs import Layout, joined, load_between, open_runs, write_run
from tokmill.stages.indexes.files import Index, Pairs, load_listing
from tokmill.stages.indexes.stage import IndexOptions, ListingOptions, make_index

EQUAL, ESTIMATED, SUSPECTED, COMPARED = 0, 1, 2, 3
EXACT_REASON, NEAR_REASON = "reference_exact_dup", "reference_near_dup"

SUSPECTS = pa.schema(
    [
        pa.field("row", pa.uint32(), nullable=False),
        pa.field("corpus", pa.uint32(), nullable=False),
        pa.field("document", pa.int64(), nullable=False),  # its number in the index
        pa.field("similarity", pa.float64(), nullable=False),
        pa.field("standing", pa.uint8(), nullable=False),
    ]
)
EARLIER = pa.schema([*DROPS, pa.field("reason", pa.string(), nullable=False)])

# Shard of the run that is compared with, counted through all of them, and row.
WANTED: Layout = {"place": "<u8"}
_ROW_BITS = 32

# Texts that a document is compared with at most: those that are estimated to be most similar.
_MOST_COMPARED = 16

Numbers = NDArray[np.int64]


class EarlierNearOptions(msgspec.Struct, frozen=True):
    threshold: Decimal
    unit: Shingle
    ngram: int


class EarlierOptions(msgspec.Struct, frozen=True):
    """Which looks are taken at the corpora of `reference`; which those are, the inputs say."""

    exact: bool
    near: EarlierNearOptions | None


class CorpusOptions(TaskOptions, frozen=True):
    name: str
    sketch: SketchOptions
    first_shard: int | None = None  # of a run: the number of its first shard; None: there are no texts


class LookupOptions(TaskOptions, frozen=True):
    number: int
    asked: EarlierOptions
    corpora: tuple[CorpusOptions, ...]
    is_reference: bool = False  # the source loses nothing


class ExtractOptions(TaskOptions, frozen=True):
    number: int


class VerifyOptions(LookupOptions, frozen=True):
    shards: int = 0  # of all runs


class _Opened(NamedTuple):
    """The corpora as tasks know them, and the shards of those that are runs."""

    corpora: list[CorpusOptions]
    listings: list[Input]
    shards: list[Shard]


def _find_earlier(step: DedupStep, asked: EarlierOptions, considered: Sequence[Considered]) -> Phase:
    opened = _Opened([], [], [])
    for number, corpus in enumerate(step.extra.earlier):
        yield from _open(step, number, corpus, opened)

    def options(shard: Shard) -> Json:
        return {
            "number": shard.number,
            "asked": asked,
            "corpora": tuple(opened.corpora),
            "is_reference": shard.source in step.options.reference,
        }

    found = yield [
        Task(
            function="dedup.earlier",
            key=f"e{shard.number:05d}",
            options=LookupOptions(**options(shard)),
            inputs=[*inputs, *opened.listings],
            directory=str(step.directory),
        )
        for shard, _, inputs in considered
    ]
    if not opened.shards or not asked.near:
        return found
    wanted, suspects = (tables_of(step, found, table) for table in ("wanted", "suspects"))
    extracted = yield [
        Task(
            function="dedup.earlier_texts",
            key=f"y{number:05d}",
            options=ExtractOptions(number=number),
            inputs=[*shard.inputs(), *wanted],
            directory=str(step.directory),
        )
        for number, shard in enumerate(opened.shards)
    ]
    texts = tables_of(step, extracted, "texts")
    return (
        yield [
            Task(
                function="dedup.earlier_verify",
                key=f"g{shard.number:05d}",
                options=VerifyOptions(**options(shard), shards=len(opened.shards)),
                inputs=[*inputs, *opened.listings, own, *(texts if receipt.facts["suspected"] else [])],
                directory=str(step.directory),
            )
            for (shard, _, inputs), own, receipt in zip(considered, suspects, found, strict=True)
        ]
    )


def _open(step: DedupStep, number: int, corpus: EarlierCorpus, opened: _Opened) -> Any:
    """A listing for the corpus; of a run, an index is made first."""
    if corpus.run is None:
        opened.corpora.append(CorpusOptions(name=corpus.name, sketch=corpus.sketch))
        opened.listings.append(Input("listing", str(corpus.directory / MANIFEST), corpus.digest))
        return
    options = IndexOptions(name=corpus.name, splits=(), ids=True, sketch=corpus.sketch)
    made = yield from make_index(step.directory, corpus.run, options, prefix=f"r{number}", places=True)
    (listed,) = yield [
        Task(
            function="index.listing",
            key=f"r{number}",
            options=ListingOptions(listing=made.listing),
            inputs=[Input("corpus", str(corpus.directory / MANIFEST), corpus.digest)],
            directory=str(step.directory),
        )
    ]
    opened.corpora.append(
        CorpusOptions(name=corpus.name, sketch=corpus.sketch, first_shard=len(opened.shards))
    )
    opened.shards.extend(made.shards)
    listing = table_input("listing", step.directory, listed.files[0])
    # it names files; what they hold follows from the run
    digest = fingerprint_of([corpus.digest, listing.content_sha256])
    opened.listings.append(Input("listing", listing.path, digest))


@functools.lru_cache(maxsize=16)
def _index(path: str, digest: str) -> Index:
    """Once per worker process; the digest says which content is meant."""
    return Index(Path(path).parent, load_listing(Path(path)))


def _indexes(task: Task[Any]) -> list[Index]:
    return [_index(item.path, item.content_sha256) for item in task.inputs if item.role == "listing"]


# --- the search ---


def perform_lookup(task: Task[LookupOptions]) -> Made:
    """All that an index says; and, where there is a run, what its texts have to say still."""
    options, indexes = task.options, _indexes(task)
    rows = considered_rows(task.inputs, options.number)
    parts: list[Any] = [SUSPECTS.empty_table()]
    if not options.is_reference:
        if options.asked.exact:
            parts += _equal(task, rows, indexes)
            rows = np.setdiff1d(rows, np.asarray(pa.concat_tables(parts).column("row")))
        if options.asked.near is not None:
            parts += _similar(task, rows, indexes)
    suspects = pa.concat_tables(parts)
    standing = np.asarray(suspects.column("standing"))
    has_texts = any(corpus.first_shard is not None for corpus in options.corpora)
    if not has_texts or options.asked.near is None:
        return Made([_write(task, suspects, indexes)], {})
    facts = {"suspected": int((standing == SUSPECTED).sum())}
    files = [
        write_shard_table(task.directory, f"suspects-{task.key}.parquet", "suspects", suspects),
        write_run(task, "wanted", [np.unique(_places(task, suspects, indexes))], WANTED),
    ]
    return Made(files, {}, facts)


def _equal(task: Task[LookupOptions], rows: Numbers, indexes: Sequence[Index]) -> list[Any]:
    """In the first corpus that has it."""
    marks = task.load("marks", ["exact_high", "exact_low"])
    high, low = (np.asarray(marks.column(name)) for name in ("exact_high", "exact_low"))
    parts = []
    for corpus, index in enumerate(indexes):
        found = index.find_equal(high[rows], low[rows])
        is_there = found >= 0
        similarity = np.ones(int(is_there.sum()))
        parts.append(_suspects(rows[is_there], corpus, found[is_there], similarity, EQUAL))
        rows = rows[~is_there]
    return parts


def _similar(task: Task[LookupOptions], rows: Numbers, indexes: Sequence[Index]) -> list[Any]:
    near, corpora = task.options.asked.near, task.options.corpora
    assert near is not None
    threshold = float(near.threshold)
    if not len(rows):
        return []
    texts, parts = load_texts(task.inputs, rows), []
    for options, group in itertools.groupby(range(len(corpora)), key=lambda number: corpora[number].sketch):
        sketches = sketch(texts, options)  # mostly one for all: indexes are made alike
        for corpus in group:
            has_texts = corpora[corpus].first_shard is not None
            least = threshold - SIGMAS * standard_error(threshold) if has_texts else threshold
            pairs = indexes[corpus].find_similar(sketches, least)
            if has_texts:
                pairs = _most_similar(pairs)
            standing = SUSPECTED if has_texts else ESTIMATED
            parts.append(_suspects(rows[pairs.asked], corpus, pairs.found, pairs.similarity, standing))
    return parts


def _most_similar(pairs: Pairs) -> Pairs:
    """Those that are worth a comparison."""
    order = np.lexsort((pairs.found, -pairs.similarity, pairs.asked))
    asked = pairs.asked[order]
    place = np.arange(len(asked)) - np.searchsorted(asked, asked)
    chosen = np.sort(order[place < _MOST_COMPARED])
    return Pairs(pairs.asked[chosen], pairs.found[chosen], pairs.similarity[chosen])


def _suspects(rows: Numbers, corpus: int, documents: Numbers, similarity: Any, standing: int) -> Any:
    return pa.table(
        [
            rows.astype(np.uint32),
            np.full(len(rows), corpus, np.uint32),
            documents,
            similarity,
            np.full(len(rows), standing, np.uint8),
        ],
        schema=SUSPECTS,
    )


def _places(task: Task[LookupOptions], suspects: Any, indexes: Sequence[Index]) -> NDArray[np.uint64]:
    """Where the texts of those lie that are suspected, in the order of the rows that are."""
    corpora, documents = (np.asarray(suspects.column(name)) for name in ("corpus", "document"))
    is_open = np.asarray(suspects.column("standing")) == SUSPECTED
    corpora, documents = corpora[is_open], documents[is_open]
    places = np.zeros(len(documents), np.uint64)
    for number in np.unique(corpora).tolist():
        own = np.flatnonzero(corpora == number)
        first = task.options.corpora[number].first_shard
        assert first is not None
        wanted, at = np.unique(documents[own], return_inverse=True)
        shards, rows = indexes[number].places(wanted)
        found = ((shards + first) << _ROW_BITS) | rows
        places[own] = found[at].astype(np.uint64)
    return places


# --- texts of a run ---


def perform_texts(task: Task[ExtractOptions]) -> Made:
    first, stop = (number << _ROW_BITS for number in (task.options.number, task.options.number + 1))
    (places,) = joined(load_between(open_runs(task.inputs, "wanted", WANTED), first, stop), WANTED)
    wanted = np.unique(places).astype(np.int64)
    texts = load_texts(task.inputs, wanted - first) if len(wanted) else pa.array([], pa.large_string())
    return Made([write_numbered_texts(task, wanted, texts)], {})


def perform_verify(task: Task[VerifyOptions]) -> Made:
    suspects, indexes = task.load("suspects"), _indexes(task)
    standing = np.asarray(suspects.column("standing")).copy()
    similarity = np.asarray(suspects.column("similarity")).copy()
    is_open = standing == SUSPECTED
    if is_open.any():
        near = task.options.asked.near
        assert near is not None
        own = np.asarray(suspects.column("row"))[is_open].astype(np.int64)
        exact = _compare(task, own, _places(task, suspects, indexes), near)
        similarity[is_open] = exact
        standing[is_open] = np.where(exact >= float(near.threshold), COMPARED, SUSPECTED)
    columns = [*suspects.select(["row", "corpus", "document"]).columns, similarity, standing]
    decided = pa.table(columns, schema=SUSPECTS).filter(pa.array(standing != SUSPECTED))
    return Made([_write(task, decided, indexes)], {})


def _compare(
    task: Task[VerifyOptions], rows: Numbers, places: NDArray[np.uint64], near: EarlierNearOptions
) -> NDArray[np.float64]:
    """The Jaccard similarity of each pair of texts: documents of the shard come first in the numbering."""
    own, a = np.unique(rows, return_inverse=True)
    theirs, b = np.unique(places.astype(np.int64), return_inverse=True)
    texts = load_texts(task.inputs, own)
    stored = NumberedTexts(task, [number << _ROW_BITS for number in range(task.options.shards + 1)])

    def load(numbers: Numbers) -> Any:
        cut = int(np.searchsorted(numbers, len(own)))
        return pa.concat_arrays(
            [texts.take(pa.array(numbers[:cut])), stored.take(theirs[numbers[cut:] - len(own)])]
        )

    return compare_pairs(a, b + len(own), NearOptions(unit=near.unit, ngram=near.ngram), load)


# --- what is told ---


def _write(task: Task[Any], decided: Any, indexes: Sequence[Index]) -> Any:
    """One row for each document that goes: where it is equal, else where it is most similar."""
    row, corpus, document, similarity, standing = (
        np.asarray(decided.column(name)) for name in SUSPECTS.names
    )
    order = np.lexsort((document, corpus, -similarity, standing != EQUAL, row))
    order = order[np.unique(row[order], return_index=True)[1]]
    row, corpus, document, similarity, standing = (
        column[order] for column in (row, corpus, document, similarity, standing)
    )
    count = len(row)
    table = pa.table(
        {
            "shard": pa.array(np.full(count, task.options.number, np.uint32)),
            "row": pa.array(row),
            "survivor_shard": pa.nulls(count, pa.string()),
            "survivor_row": pa.nulls(count, pa.uint32()),
            "similarity": pa.array(similarity),
            "cluster": pa.nulls(count, pa.int64()),
            "cluster_size": pa.nulls(count, pa.int64()),
            "detail": pa.array(_details(task, indexes, corpus, document, standing), pa.string()),
            "reason": pa.array(np.where(standing == EQUAL, EXACT_REASON, NEAR_REASON).tolist(), pa.string()),
        },
        schema=EARLIER,
    )
    path = f"earlier-{task.options.number:05d}.parquet"
    return write_sorted_shard_table(task.directory, path, "earlier", table, "shard")


def _details(
    task: Task[LookupOptions], indexes: Sequence[Index], corpus: Any, document: Any, standing: Any
) -> list[str]:
    """Corpus and document; "estimated" where no text was there to compare with."""
    told = [""] * len(corpus)
    for number in np.unique(corpus).tolist():
        own = np.flatnonzero(corpus == number)
        wanted, at = np.unique(document[own], return_inverse=True)
        names = indexes[number].names(wanted) or indexes[number].hashes(wanted)
        for place, which in zip(own.tolist(), at.tolist(), strict=True):
            note = " (estimated)" if standing[place] == ESTIMATED else ""
            told[place] = f"{task.options.corpora[number].name}: {names[which]}{note}"
    return told


def _reads(options: DedupOptions, shard: Shard) -> list[Input]:
    """Hashes are in the marks."""
    asked = getattr(options, "earlier", None)
    return shard.inputs() if asked is None or asked.near is not None else [shard.marks]


def _facts(step: DedupStep, receipts: Sequence[Receipt]) -> Json:
    return {
        "corpora": [
            {
                "name": corpus.name,
                "identity": corpus.digest,
                "verified": "estimate" if corpus.run is None else "exact",
                **({"standard_error": f"{corpus.sketch.error:.5f}"} if corpus.run is None else {}),
            }
            for corpus in step.extra.earlier
        ],
        "documents": sum(entry.rows for receipt in receipts for entry in receipt.files),
    }


METHOD = Method(
    key="earlier",
    options=EarlierOptions,
    reason=NEAR_REASON,
    find=_find_earlier,
    tasks={
        "dedup.earlier": TaskFunction(LookupOptions, perform_lookup),
        "dedup.earlier_texts": TaskFunction(ExtractOptions, perform_texts),
        "dedup.earlier_verify": TaskFunction(VerifyOptions, perform_verify),
    },
    facts=_facts,
    reads=_reads,
    others=(EXACT_REASON,),
    by_shard=True,
    versions=lambda options, asked, has_chats: (
        [SKETCH_NORMALIZATION, SHINGLE_NORMALIZATION] if asked.near is not None else []
    ),
)
