"""Bounds of cleaning, and which documents change sides with others: from the measures alone, no text is read.

    measures, marks, ledger of a shard ─ judge with the old bounds ┐
                                       └ judge with the new bounds ┴─> who changes sides, and why

A document that has no licence to be here, is of a page that is blocked, is empty (or would be after the
edits) or is in another language stays out whatever the bounds say; what they would have measured of it is
null. Whatever is a column of the measures has a bound: those of the recipe, and any that is asked for
(`words.max`), a hook's or a score's like our own.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.upstream import domain_of
from tokmill.audit.opened import Found, ShardTables, load_of
from tokmill.clean.examine import CleanOptions, is_blank
from tokmill.clean.language import LANGUAGE_SCORE, OTHER_LANGUAGE, UNSURE_LANGUAGE, is_known, is_wanted
from tokmill.clean.license_policy import DENIED, NOT_ALLOWED, UNKNOWN
from tokmill.clean.rules import AFTER, BOUNDS, EMPTY, HOOK, Rule, columns_of, fault_of, judge
from tokmill.clean.url_policy import BLOCKED_DOMAIN, BLOCKED_URL, BLOCKED_WORD, NO_URL, ROBOTS
from tokmill.errors import InputError
from tokmill.schema import one_piece
from tokmill.storage.tables import load_table

MIN_SCORE, NEAR_THRESHOLD = "language.min_score", "dedup.near.threshold"
_HASH = ["exact_high", "exact_low"]
_FIXED = (
    *(EMPTY, OTHER_LANGUAGE, DENIED, NOT_ALLOWED, UNKNOWN),
    *(BLOCKED_DOMAIN, BLOCKED_URL, BLOCKED_WORD, NO_URL),
)


class Mover(NamedTuple):
    """A document that would change sides."""

    source: str
    doc_id: str
    becomes: str  # "kept", "dropped"
    reason: str  # of the drop that ends, or begins
    value: float
    threshold: float  # new bound of the rule that decides
    chars: int
    distance: float  # from the new bound, in shares of it


class Sides(NamedTuple):
    """The documents of a shard."""

    is_kept: NDArray[np.bool_]
    stays: NDArray[np.bool_]  # with the new bounds
    chars: NDArray[np.int64]
    movers: list[Mover]


def rules_of(cleaned: Artifact) -> list[Rule]:
    """The rules of a source in order; the least score of a language is one of them."""
    options = cleaned.manifest.options(CleanOptions)
    rules, language = list(options.sieve.rules), options.language
    if language and language.applied == "detect" and language.asked.keep:
        least = float(language.asked.min_score)
        rules.insert(0, Rule(MIN_SCORE, LANGUAGE_SCORE, "min", least, UNSURE_LANGUAGE))
    return rules


def move_bounds(found: Found, asked: Mapping[str, float]) -> Iterator[Sides]:
    """Of every shard that is cleaned. A bound is that of all sources that have the rule, of one domain's, or
    of one source's: `words.min`, `domains.web.words.min`, `sources.blogs.words.min`; the narrowest one
    holds."""
    rules = {source: _Bounds(found, source, asked) for source in found.of_kind("clean")}
    _check_names(rules, asked)
    for shard in found.shards():
        if shard.source in rules:
            yield _judged(found, rules[shard.source], shard)


class _Bounds:
    """The rules of one source as they are, and as they would be."""

    def __init__(self, found: Found, source: str, asked: Mapping[str, float]) -> None:
        self.cleaned = found.artifacts[f"clean/{source}"]
        self._scopes = (
            "",
            f"domains.{domain_of(found.artifacts[f'ingest/{source}'])}.",
            f"sources.{source}.",
        )
        old, measured = rules_of(self.cleaned), _measured(self.cleaned)
        known = {rule.name for rule in old}
        # no bound of the recipe: one that everything keeps to
        added = [
            Rule(name, column, bound, -np.inf if bound == "min" else np.inf, fault_of(label, bound))
            for label, column in measured.items()
            for bound in BOUNDS
            if (name := f"{label}.{bound}") not in known and any(s + name in asked for s in self._scopes)
        ]
        self.old = [*old, *added]
        self.new = [self._bounded(rule, asked) for rule in self.old]
        self.names = known | {f"{label}.{bound}" for label in measured for bound in BOUNDS}
        self.listed = sorted(known)

    def _bounded(self, rule: Rule, asked: Mapping[str, float]) -> Rule:
        for scope in self._scopes:
            if scope + rule.name in asked:
                rule = msgspec.structs.replace(rule, threshold=asked[scope + rule.name])
        return rule

    def scoped(self) -> set[str]:
        return {scope + name for scope in self._scopes for name in self.names}


def _measured(cleaned: Artifact) -> dict[str, str]:
    entries = cleaned.manifest.entries("measures")
    return columns_by_label(pq.read_schema(cleaned.path(entries[0])).names if entries else ())


def columns_by_label(columns: Iterable[str]) -> dict[str, str]:
    """Columns of measures by the names that bounds on them have; of the text after line edits, where that was
    measured."""
    return {
        column.rpartition(":")[2] if column.startswith(HOOK) else column.removeprefix(AFTER): column
        for column in sorted(columns, key=lambda column: column.startswith(AFTER))
        if column != LANGUAGE_SCORE
    }


def _judged(found: Found, rules: _Bounds, shard: ShardTables) -> Sides:
    path = rules.cleaned.directory / f"marks-{shard.key}.parquet"
    marks = load_table(path, [*judged_marks(rules.cleaned), "chars"])
    is_kept, chars = (np.asarray(marks.column(name)) for name in ("kept", "chars"))
    if rules.new == rules.old:
        return Sides(is_kept, is_kept, chars, [])
    table = load_of(rules.cleaned, f"measures-{shard.key}.parquet")
    assert table is not None, "where there are rules there are measures"
    columns = columns_of(table)
    is_open = ~claimed_otherwise(rules.cleaned, marks, *_left(rules.cleaned, shard))
    before, after = (judge(columns, own, marks.num_rows).first for own in (rules.old, rules.new))
    none = len(rules.old)
    rows = np.flatnonzero(is_open & ((before == none) != (after == none)))
    stays = is_kept.copy()
    stays[rows] = after[rows] == none
    if not len(rows):
        return Sides(is_kept, stays, chars, [])
    ids = load_table(found.artifacts[f"ingest/{shard.source}"].path(shard.documents), ["doc_id"]).column(
        "doc_id"
    )
    movers = []
    for row in rows.tolist():
        rule = rules.new[int(before[row] if stays[row] else after[row])]
        value = float(columns[rule.column][row])
        distance = abs(value - rule.threshold) / max(abs(rule.threshold), 1e-9)
        becomes = "kept" if stays[row] else "dropped"
        own = (value, rule.threshold, int(chars[row]), distance)
        movers.append(Mover(shard.source, ids[row].as_py(), becomes, rule.reason, *own))
    return Sides(is_kept, stays, chars, movers)


def _left(cleaned: Artifact, shard: ShardTables) -> tuple[Any, Any]:
    """Who left, and why."""
    ledger = load_of(cleaned, f"ledger-{shard.key}.parquet", ["row", "verdict", "reason"])
    if ledger is None:
        return np.zeros(0, np.int64), pa.nulls(0, pa.string())
    ledger = ledger.filter(pc.not_equal(ledger.column("verdict"), "edit"))
    return np.asarray(ledger.column("row")), ledger.column("reason")


def judged_marks(cleaned: Artifact) -> list[str]:
    """Columns of the marks that `claimed_otherwise` looks at, and who was kept."""
    return ["kept", *_HASH, *(["language"] if _kept_languages(cleaned) else [])]


def _kept_languages(cleaned: Artifact) -> tuple[str, ...]:
    language = cleaned.manifest.options(CleanOptions).language
    return language.asked.keep if language and language.applied != "none" else ()


def claimed_otherwise(cleaned: Artifact, marks: Any, left: Any, reasons: Any) -> Any:
    """Who is out for another reason than a bound; `left` are rows of the marks, with their reasons. A ledger
    names the first fault alone, so what comes after a broken bound is looked up in the marks: nothing left to
    read, and a language that nobody asked for."""
    claimed = is_blank(np.column_stack([np.asarray(marks.column(name)) for name in _HASH]))
    languages = _kept_languages(cleaned)
    if languages:
        codes = one_piece(marks.column("language"))
        claimed |= ~(is_known(codes) & is_wanted(codes, languages))
    is_fixed = pc.or_(
        pc.is_in(reasons, value_set=pa.array(_FIXED, reasons.type)), pc.starts_with(reasons, ROBOTS)
    )
    claimed[left[np.asarray(is_fixed)]] = True
    return claimed


def _check_names(rules: Mapping[str, _Bounds], asked: Mapping[str, float]) -> None:
    known = set().union(*(own.scoped() for own in rules.values()))
    listed = sorted(set().union(*(own.listed for own in rules.values())))
    for name in asked:
        if name not in known:
            is_scoped = name.startswith(("domains.", "sources."))
            candidates = sorted(known) if is_scoped else [*listed, NEAR_THRESHOLD]
            near = difflib.get_close_matches(name, candidates, n=1, cutoff=0.4)
            raise InputError(
                f"no rule of this run is called {name}",
                where="--set",
                next=f"did you mean {near[0]}?" if near else f"its rules: {', '.join(listed) or 'none'}",
            )
