"""What all ways to find duplicates share: the record of one, whom it considers, and who comes before whom.

Who comes first: of equal or similar documents, the one that is kept.

    rank = source priority, then the policy's own key, then position (ties are by number everywhere)

    first     position alone
    longest   most characters
    newest    latest created_at, as far as its digits say (2024-05-01T12:00 as 202405011200); without one
              that begins with the year, or is a number, last
    best      farthest from being dropped: the least margin over all rules, in shares of their bounds; then
              longest

A rank is an int64, the least is kept first. Shards are ranked one by one: nothing needs the whole corpus.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifacts.cache import ENTRY_BYTES, Cached, allot, cache_of, entry_name, sweep_table
from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import Json, Manifest, Receipt
from tokmill.artifacts.step import Input, Step, Task, TaskFunction, table_input
from tokmill.artifacts.upstream import Shard
from tokmill.clean.edits import apply_edits
from tokmill.clean.examine import CleanOptions
from tokmill.clean.rules import Rule, columns_of
from tokmill.duplicates.sketches import SketchOptions
from tokmill.kernels import hashing
from tokmill.recipe.names import METHODS
from tokmill.schema import DEDUP_EDITS, EDITS, one_piece, string_column
from tokmill.storage.location import InputFile
from tokmill.storage.tables import load_range, load_strings, load_table

KeepRule = Literal["first", "longest", "newest", "best"]
Ranks = NDArray[np.int64]

# 15 bits for the place in the list of priorities, 48 for the policy's key.
_KEY_BITS = 48
_MAX_KEY = (1 << _KEY_BITS) - 1
_NOT_DIGITS = re.compile(r"\D")
# ISO 8601, with or without marks between the numbers; seconds since 1970, or a time that is digits alone
_IS_DATE = re.compile(
    r"""\s*(?: \d{4,}(?:\.\d+)?
             | \d{4}[-/.]?\d\d
             | \d{4}([-/.]?)\d\d\1\d\d
               (?:[T\s]\d\d(?::?\d\d(?::?\d\d(?:[.,]\d+)?)?)?)?
               (?:\s*[A-Za-z]{1,5})?(?:\s*[-+]\d\d(?::?\d\d)?)? )\s*""",
    re.VERBOSE,
)
_DATE_DIGITS = 14  # down to the second: below 2^48
_MARGIN_STEPS = 1 << 15
_MAX_CHARS = (1 << 32) - 1
# One row of so many, and texts are not all held at once to take it.
_FEW_OF = 8


def priority_of(source: str, priorities: Sequence[str]) -> int:
    """Listed sources in their order, then all others alike."""
    return priorities.index(source) if source in priorities else len(priorities)


def rank_documents(
    keep: KeepRule,
    priority: int,
    chars: NDArray[np.int64],
    *,
    created_at: Any = None,
    measures: Mapping[str, NDArray[Any]] | None = None,
    rules: Sequence[Rule] = (),
) -> Ranks:
    if keep == "first":
        keys = np.zeros(len(chars), np.int64)
    elif keep == "longest":
        keys = _MAX_CHARS - np.minimum(chars, _MAX_CHARS)
    elif keep == "newest":
        keys = _MAX_KEY - np.array([_date_key(date) for date in created_at.to_pylist()], np.int64)
    else:
        keys = _best_keys(chars, measures or {}, rules)
    return (np.int64(priority) << np.int64(_KEY_BITS)) + keys


def is_date(text: str) -> bool:
    """Are its digits in the order of time?"""
    return _IS_DATE.fullmatch(text) is not None


def _date_key(date: str | None) -> int:
    if date is None or not is_date(date):
        return 0
    return int(_NOT_DIGITS.sub("", date)[:_DATE_DIGITS].ljust(_DATE_DIGITS, "0"))


def _best_keys(
    chars: NDArray[np.int64], measures: Mapping[str, NDArray[Any]], rules: Sequence[Rule]
) -> Ranks:
    margin = np.full(len(chars), 1.0)
    for rule in rules:
        if rule.column in measures:
            values = rule.margins(measures[rule.column].astype(np.float64))
            margin = np.minimum(margin, values / max(abs(rule.threshold), 1e-9))
    steps = (np.clip(margin, 0.0, 1.0) * (_MARGIN_STEPS - 1)).astype(np.int64)
    longest = _MAX_CHARS - np.minimum(chars, _MAX_CHARS)
    keys: Ranks = ((_MARGIN_STEPS - 1 - steps) << np.int64(32)) + longest
    return keys


# A scope besides those of a recipe: documents of several sources in one,
# told apart by what their records said.
OWN_SOURCE = "own-source"


class DedupOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`dedup` of a recipe: all that can change a verdict. `stage.py` adds a field for each method."""

    scope: Literal["global", "per-source", "own-source"]
    keep: KeepRule
    priority: tuple[str, ...]
    reference: tuple[str, ...]
    max_cluster: int | None
    max_source_loss: Decimal | None
    partitions: int

    @property
    def by_source(self) -> bool:
        """Whether each record says which source it is compared within."""
        return self.scope == OWN_SOURCE

    def groups(self, shards: Sequence[Shard]) -> list[int]:
        """Of each shard the number of its source, from 1, where sources are kept apart; else 0."""
        if self.scope != "per-source":
            return [0] * len(shards)
        sources = list(dict.fromkeys(shard.source for shard in shards))
        return [sources.index(shard.source) + 1 for shard in shards]


@dataclass(frozen=True)
class DedupExtra:
    against: list[InputFile]  # the benchmarks
    warn_source_loss: Decimal | None = None
    earlier: list[EarlierCorpus] = field(default_factory=list)


@dataclass(frozen=True)
class EarlierCorpus:
    """One of `reference`: an index, or a finished run."""

    name: str
    directory: Path
    digest: str  # of all that can change a verdict
    sketch: SketchOptions  # of its index, which is still to be made of a run
    run: Mapping[str, Artifact] | None = None  # its steps; None: an index, and no texts


DedupStep = Step[DedupOptions, DedupExtra]


class Keep(msgspec.Struct, frozen=True):
    """Who comes before whom in a shard; the rules are those of its source, for `best`."""

    policy: KeepRule
    priority: int
    rules: tuple[Rule, ...]


class Considered(NamedTuple):
    """What a task needs to know and to read of one shard."""

    shard: Shard
    keep: Keep
    inputs: list[Input]


class Ranked(NamedTuple):
    """The considered documents of a shard, in row order."""

    rows: NDArray[np.int64]
    ranks: NDArray[np.int64]
    texts: Any


def keep_of(dedup: DedupOptions, shard: Shard, upstream: Mapping[str, Artifact]) -> Keep:
    """Reference sources come before all others."""
    priority = priority_of(shard.source, [*dedup.reference, *dedup.priority])
    rules: tuple[Rule, ...] = ()
    if dedup.keep == "best":
        rules = upstream[f"clean/{shard.source}"].manifest.options(CleanOptions).sieve.rules
    return Keep(dedup.keep, priority, rules)


def rank_inputs(dedup: DedupOptions, shard: Shard, upstream: Mapping[str, Artifact]) -> list[Input]:
    """What ranking reads besides the marks: dates are in the documents, margins in the measures."""
    if dedup.keep == "newest":
        return [shard.documents]
    if dedup.keep == "best":
        cleaned = upstream[f"clean/{shard.source}"]
        path = f"measures-{shard.key}.parquet"
        return [
            table_input("measures", cleaned.directory, entry)
            for entry in cleaned.manifest.entries("measures")
            if entry.path == path
        ]
    return []


def scope_salts(task: Task, rows: NDArray[np.int64], *, group: int, by_source: bool) -> Any:
    """What moves the hashes of documents that must not meet:
    one number for the shard, or one per document."""
    if not by_source:
        return np.uint64((group * 0x9E3779B97F4A7C15) & (2**64 - 1))
    sources = task.load("documents", ["source"]).column("source").take(pa.array(rows))
    state = np.zeros((len(rows), 2), np.uint64)
    hashing.mix_column(*string_column(sources), state)
    return np.ascontiguousarray(state[:, 0])


def load_ranks(inputs: Sequence[Input], keep: Keep) -> NDArray[np.int64]:
    """One rank per row of the shard; that of a document which cleaning did not keep says nothing."""
    paths = {item.role: Path(item.path) for item in inputs}
    chars = np.asarray(load_table(paths["marks"], ["chars"]).column("chars"))
    dates = measures = None
    if keep.policy == "newest":
        dates = one_piece(load_table(paths["documents"], ["created_at"]).column("created_at"))
    if keep.policy == "best" and "measures" in paths:
        measures = columns_of(load_table(paths["measures"]))
    return rank_documents(
        keep.policy, keep.priority, chars, created_at=dates, measures=measures, rules=list(keep.rules)
    )


def considered_rows(inputs: Sequence[Input], number: int) -> NDArray[np.int64]:
    """Kept by cleaning and not dropped by an earlier look of this step (its tables are sorted by shard)."""
    (marks,) = (item.path for item in inputs if item.role == "marks")
    considered = np.asarray(load_table(Path(marks), ["kept"]).column("kept")).copy()
    for item in inputs:
        if item.role in TABLES.values():
            considered[np.asarray(load_range(Path(item.path), "shard", number).column("row"))] = False
    return np.flatnonzero(considered)


LATER = pa.schema(
    [
        pa.field("shard", pa.uint32(), nullable=False),
        pa.field("row", pa.uint32(), nullable=False),
        pa.field("is_page", pa.bool_(), nullable=False),  # of a URL that was there before; else a text
        pa.field("is_settled", pa.bool_(), nullable=False),
    ]
)


class LaterCopies(NamedTuple):
    """Flags per row of a shard: it has a copy before it."""

    by_url: NDArray[np.bool_]
    by_text: NDArray[np.bool_]
    is_settled: NDArray[np.bool_]  # by text: whatever becomes of the first of its equals, it is dropped too


def later_copies(inputs: Sequence[Input], number: int, rows: int) -> LaterCopies:
    found = LaterCopies(*np.zeros((3, rows), np.bool_))
    for item in inputs:
        if item.role == "later":
            table = load_range(Path(item.path), "shard", number)
            own, is_page = (np.asarray(table.column(name)) for name in ("row", "is_page"))
            found.by_url[own[is_page]] = True
            found.by_text[own[~is_page]] = True
            found.is_settled[own[np.asarray(table.column("is_settled"))]] = True
    return found


def resolves_copies(options: DedupOptions) -> bool:
    """True if what becomes of a copy hangs on other methods too, which may drop the first of its equals."""
    near = getattr(options, "near", None)
    return bool(
        getattr(options, "url", None)
        or getattr(options, "templates", None)
        or (near is not None and near.policy == "drop")
    )


def row_starts(shards: Sequence[Shard]) -> tuple[int, ...]:
    """The number of the first row of each shard, and how many rows there are."""
    return (0, *itertools.accumulate(shard.documents.rows for shard in shards))


def load_ranked(inputs: Sequence[Input], number: int, keep: Keep) -> Ranked:
    rows = considered_rows(inputs, number)
    return Ranked(rows, load_ranks(inputs, keep)[rows], load_texts(inputs, rows))


def load_texts(inputs: Sequence[Input], rows: NDArray[np.int64]) -> Any:
    """As they are when a method looks at them."""
    paths = {item.role: Path(item.path) for item in inputs}
    # each layer is of the text that the one before left: the last of a row counts
    layers = [paths[role] for role in ("edits", *DEDUP_EDITS) if role in paths]
    (documents,) = (item for item in inputs if item.role == "documents")
    if len(rows) * _FEW_OF <= documents.rows:
        return _few_texts(paths["documents"], layers, rows)
    texts = one_piece(load_table(paths["documents"], ["text"]).column("text"))
    edits = pa.concat_tables([EDITS.empty_table(), *(load_table(path, EDITS.names) for path in layers)])
    return apply_edits(texts, np.asarray(edits.column("row")), one_piece(edits.column("text")), rows)


def _few_texts(documents: Path, layers: Sequence[Path], rows: NDArray[np.int64]) -> Any:
    """The same of a few rows, each from the one table that has the last word."""
    parts, order = [], []
    left = np.arange(len(rows))
    for path in reversed(layers):
        edited = np.asarray(load_table(path, ["row"]).column("row"))
        by_row = np.argsort(edited, kind="stable")
        at = np.searchsorted(edited[by_row], rows[left], side="right") - 1
        is_edited = at >= 0
        is_edited[is_edited] = edited[by_row[at[is_edited]]] == rows[left[is_edited]]
        places, back = np.unique(by_row[at[is_edited]], return_inverse=True)
        parts.append(load_strings(path, "text", places).take(pa.array(back)))
        order.append(left[is_edited])
        left = left[~is_edited]
    parts.append(load_strings(documents, "text", rows[left]))
    return pa.concat_arrays(parts).take(pa.array(np.argsort(np.concatenate([*order, left]))))


def cached_shards(
    step: DedupStep,
    considered: Sequence[Considered],
    table: str,
    how: Json,
    *,
    row_bytes: float,
    share: float = 0.0,
    reserved: float = 0.0,
) -> list[Cached | None]:
    """Of each shard where what is known of its texts is kept, for a method that asks `how` of them, and what
    it may take: so much for a row, and such a share of the text. Entries that nobody asks for any more go."""
    directory = cache_of(step.directory.parent, step.name)
    if directory is None:
        return [None] * len(considered)
    names = [_entry_of(one, how) for one in considered]
    sweep_table(directory, table, names)
    texts = [one.shard.text_bytes for one in considered]
    wanted = [
        ENTRY_BYTES + int(row_bytes * one.shard.documents.rows + share * one.shard.text_bytes)
        for one in considered
    ]
    rooms = allot(directory, table, texts, wanted, reserved)
    return [Cached(str(directory), (name,), room) for name, room in zip(names, rooms, strict=True)]


def _entry_of(one: Considered, how: Json) -> str:
    """By the content of the documents, and of what was laid over them."""
    layers = one.shard.made_of(item for item in one.inputs if item.role in _TEXT_ROLES)
    return entry_name(one.shard.documents.content_sha256, [how, layers])


_TEXT_ROLES = ("documents", "edits", *DEDUP_EDITS)

# Tables that tell who goes, and for whom (schema.DROPS): named after the method, but for the two oldest.
TABLES = {key: {"against": "contaminated", "exact": "matches"}.get(key, key) for key in METHODS}

# Steps went by these before they said so: they are in no fingerprint, and what was made by them holds.
UNSAID = {
    "1, unicode 14.0.0",
    "lines-spaces-digits0-1 (1-unicode-14.0.0)",
    "nfkc-casefold-digits0-words-1 (1-unicode-14.0.0)",
    "nfkc-casefold-words-sketch-1 (1-unicode-14.0.0)",
    "nfkd-casefold-words-1 (1-unicode-14.0.0)",
}

Phase = Generator[list[Task], list[Receipt], list[Receipt]]
Asked = TypeVar("Asked")


def _all_of(options: DedupOptions, shard: Shard) -> list[Input]:
    return shard.inputs()


class Edited(NamedTuple):
    """What a method does to texts that stay."""

    table: str  # of the changed ones: one of DEDUP_EDITS
    reason: str


@dataclass(frozen=True, kw_only=True)
class Method(Generic[Asked]):
    """One way to find documents that say what another one already says."""

    key: str  # of `dedup` in a recipe
    options: type[Asked]  # what is asked for under that key
    reason: str  # of a drop
    find: Callable[[DedupStep, Asked, Sequence[Considered]], Phase]  # among what is left to look at
    tasks: Mapping[str, TaskFunction[Any]]
    facts: Callable[[DedupStep, Sequence[Receipt]], Json] | None = (
        None  # for the manifest; may refuse what it sees
    )
    reads: Callable[[DedupOptions, Shard], list[Input]] = _all_of
    similarity: float | None = 1.0  # of a pair whose table tells none: equal texts
    edits: Edited | None = None
    cached: tuple[str, ...] = ()  # tables of the cache that it fills
    others: tuple[str, ...] = ()  # reasons that rows of its table tell themselves
    by_shard: bool = False  # a table is of one shard, whose number its name ends with
    # How it reads texts and decides, besides what is asked; `has_chats`: sources of conversations.
    versions: Callable[[DedupOptions, Asked, bool], list[str]] = lambda options, asked, has_chats: []

    @property
    def table(self) -> str:
        return TABLES[self.key]

    def asked_in(self, manifest: Manifest) -> Asked | None:
        """What the recipe of a finished step asked of this method, if it did."""
        only = msgspec.defstruct("Only", [(self.key, self.options | None, None)])
        return getattr(manifest.options(only), self.key) or None
