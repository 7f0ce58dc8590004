"""Sources that lose most of their documents to one rule of cleaning, or to one kind of copy,
are told while a run works.

counts of clean, or of dedup by shard
    ─ by source and reason ─> losses over `clean.warn_source_loss`, `dedup.warn_source_loss`
    ─ by rule ──────────────> rules that take nine in ten of what reached them
      ledgers ─> one id of each, to look up, and the licence or language that most of them have
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import pyarrow.compute as pc

from tokmill.artifacts.manifest import Json
from tokmill.clean.examine import CleanOptions
from tokmill.clean.language import OTHER_LANGUAGE, UNSURE_LANGUAGE
from tokmill.clean.license_policy import DENIED, NOT_ALLOWED, UNKNOWN
from tokmill.clean.rules import EMPTY, FEW_WORDS, NOT_TERMINAL, REASONS, load_pack
from tokmill.errors import spelled_share
from tokmill.storage.tables import load_table

Counts = Mapping[
    str, tuple[int, Mapping[str, int]]
]  # source -> documents that came, and of them dropped by reason

MOST_OF_WHAT_IT_SAW = Fraction(9, 10)  # a rule that takes more is no filter of these documents
_FEWEST = 20  # documents; of fewer a share says little

# What most of the documents have, as the ledger's detail tells it, and what to do about it.
_CAUSES = {
    NOT_ALLOWED: (
        "the licence {} is not listed",
        "add it to `license.allow`, or take the source out of the recipe",
    ),
    DENIED: (
        "the licence {} is denied",
        "take it out of `license.deny`, or the source out of the recipe",
    ),
    UNKNOWN: (
        "the licence {} is not known",
        "name it with `license` or `fields.license` of the source, or set `license.unknown` to `keep`",
    ),
    OTHER_LANGUAGE: ("they are {}", "add it to `language.keep`, or take the source out of the recipe"),
    UNSURE_LANGUAGE: ("the detector is not sure that they are {}", "lower `language.min_score`"),
}
_UNSAID = (
    "the field that `fields.language` names says none",
    "name another field, or ask a detector with `language: {method: detect}`",
)
_COPIES = "is it a copy of another source? Set its `priority`"
# what else deduplication drops for
_NO_COPIES = {
    "contaminated": "read some with `tokmill why OUT --reason contaminated`; where they share no more than a "
    "phrase with the benchmark, raise `against.min_share` or `against.ngram`",
    "reference_exact_dup": "does the earlier corpus have this source? Then they are meant to go",
    "reference_near_dup": "does the earlier corpus have this source? Then they are meant to go; else raise "
    "`near.threshold`",
    "only_site_template": "are they pages of one form? Raise `templates.min_share`",
    "window_dup": "read some with `tokmill why OUT --reason window_dup`; raise `window.max_share` (drop), or "
    "lower `window.min_words` (trim)",
}
_EDITED = "give the source `filters` of its own, which are made for such text"


def name_run(text: str, run: Path) -> str:
    """Put the directory of a run where a warning has OUT: reviews and reports, which travel, keep that."""
    return text.replace("`tokmill why OUT", f"`tokmill why {shlex.quote(str(run))}")


class Loss(NamedTuple):
    """To one reason; or to several together, where none of them is enough to be told by itself."""

    source: str
    reasons: tuple[str, ...]  # the one that took most first
    rules: tuple[str, ...]  # that drop for the first
    lost: int
    came: int  # to the source; to the rule, where it is told for that
    is_of_rule: bool = False
    is_cleaning: bool = False
    example: str = ""  # the first document that went for the first reason
    detail: str = ""  # that most of them have
    cause: tuple[str, str] | None = None  # of _CAUSES

    @property
    def to(self) -> str:
        first = self.reasons[0] + (f" ({', '.join(self.rules)})" if self.rules else "")
        return first if len(self.reasons) == 1 else f"{len(self.reasons)} reasons, {first} first of them"

    @property
    def mend(self) -> str:
        """What would keep the documents."""
        first = self.reasons[0]
        if self.cause:
            return self.cause[1]
        if not self.is_cleaning:
            return _NO_COPIES.get(first, _COPIES)
        if first == EMPTY:
            return _EDITED if self.rules else "look at what the reader takes as text (`fields.text`)"
        return f"read some with `tokmill why OUT --reason {first}`, change the rule"

    @property
    def next(self) -> str:
        if self.cause or (self.is_cleaning and self.reasons[0] == EMPTY):
            return self.mend
        section = "clean" if self.is_cleaning else "dedup"
        return f"{self.mend}, or allow the loss with `{section}.warn_source_loss`"

    def __str__(self) -> str:
        return f"{self.says}; one of them is {self.example}; {self.next}"

    @property
    def says(self) -> str:
        share = f"{spelled_share(self.lost, self.came)} of"
        amount = f"({self.lost:,} of {self.came:,})"
        cause = f": {self.cause[0].format(self.detail)}" if self.cause else ""
        if self.is_of_rule:
            says = f"{self.to} takes {share} the documents of {self.source} that reach it {amount}"
        else:
            says = f"{self.source} loses {share} its documents {amount} to {self.to}"
        return f"{says}{cause}"


def find_losses(
    counts: Counts,
    limit: Decimal | None,
    ledgers: Iterable[Path],
    rules: Mapping[str, tuple[str, ...]] | None = None,
    reached: Mapping[str, int] | None = None,
    causes: Mapping[str, tuple[str, str]] = _CAUSES,
    blank: int = 0,
) -> list[Loss]:
    """Losses of more than this share of a source, in the order of the sources, the largest first.
    Cleaning has `rules` for reasons, how many documents `reached` the first of them, and how many were
    `blank` when they came: blank lines of a file of lines are told by themselves, or not at all."""
    over: list[Loss] = []
    for source, (came, dropped) in counts.items() if limit is not None and limit < 1 else ():
        ranked = sorted(dropped, key=lambda reason: (-dropped[reason], reason))
        share = Fraction(limit)  # type: ignore[arg-type]
        alone: list[tuple[str, ...]] = [(reason,) for reason in ranked if dropped[reason] > share * came]
        together: list[tuple[str, ...]] = []
        if not alone:
            dropped = {**dropped, EMPTY: dropped.get(EMPTY, 0) - blank}
            ranked = [reason for reason in ranked if dropped[reason]]
            came -= blank
            together = [tuple(ranked)] if sum(dropped.values()) > share * came else []
        for reasons in alone or together:
            lost = sum(dropped[reason] for reason in reasons)
            own = (rules or {}).get(reasons[0], ())
            over.append(Loss(source, reasons, own, lost, came, is_cleaning=rules is not None))
        for reason, seen in (reached or {}).items():
            lost = dropped.get(reason, 0)
            if (reason,) not in alone and seen >= _FEWEST and lost > MOST_OF_WHAT_IT_SAW * seen:
                own = (rules or {}).get(reason, ())
                over.append(Loss(source, (reason,), own, lost, seen, is_of_rule=True, is_cleaning=True))
    examples = _examples([(loss.source, loss.reasons[0]) for loss in over], ledgers)
    return [
        loss._replace(example=example, detail=detail, cause=causes.get(loss.reasons[0]))
        for loss in over
        for example, detail in (examples.get((loss.source, loss.reasons[0]), ("", "")),)
    ]


def cleaning_losses(
    options: CleanOptions, counts: Json, limit: Decimal | None, ledgers: Iterable[Path]
) -> list[Loss]:
    """Of one source."""
    rules: dict[str, tuple[str, ...]] = {}
    for rule in options.sieve.rules:
        rules[rule.reason] = (*rules.get(rule.reason, ()), rule.name)
    dropped, emptied = counts["dropped"], counts.get("emptied", {})
    reached: dict[str, int] = {}
    left = counts["kept"] + sum(emptied.values())
    for reason in reversed(rules):  # a document that an earlier rule took does not reach a later one
        left += dropped.get(reason, 0)
        reached[reason] = left
    if emptied:
        rules[EMPTY] = (_edit(options, max(emptied, key=lambda edit: (emptied[edit], edit))),)
    counted: Counts = {options.source: (counts["in"], dropped)}
    is_said = options.language is not None and options.language.applied == "field"
    causes = {**_CAUSES, UNSURE_LANGUAGE: _UNSAID} if is_said else _CAUSES
    blank = dropped.get(EMPTY, 0) - sum(emptied.values())
    return find_losses(counted, limit, ledgers, rules, dict(reversed(reached.items())), causes, blank)


def _edit(options: CleanOptions, reason: str) -> str:
    """What took most of most of them: an edit of lines, with its pack, or a transform."""
    edits = options.sieve.line_edits
    if edits is None or reason not in REASONS:
        return reason
    packs = [
        name for name in options.sieve.packs if any(part.line_edits for part in load_pack(name).simple())
    ]
    told = {
        FEW_WORDS: f"lines of fewer than {edits.min_words} words between spaces",
        NOT_TERMINAL: "lines that do not end in . ? ! or a quote",
    }
    return f"{', '.join(packs)} takes out {told.get(reason, reason)}"


def by_source(counted: Iterable[tuple[str, Json]]) -> Counts:
    """Of shards: the source of each, and its counts."""
    found: dict[str, tuple[int, dict[str, int]]] = {}
    for source, counts in counted:
        came, dropped = found.get(source, (0, {}))
        added = {
            reason: dropped.get(reason, 0) + counts["dropped"].get(reason, 0)
            for reason in {**dropped, **counts["dropped"]}
        }
        found[source] = came + counts["in"], added
    return found


def _examples(
    wanted: list[tuple[str, str]], ledgers: Iterable[Path]
) -> dict[tuple[str, str], tuple[str, str]]:
    """The first id of each source and reason, and the commonest detail beside it;
    no more ledgers are read than that takes."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    paths: Iterator[Path] = iter(ledgers)
    while len(found) < len({*wanted}) and (path := next(paths, None)) is not None:
        table = load_table(path, ["source", "reason", "doc_id", "verdict", "detail"])
        table = table.filter(pc.equal(table.column("verdict"), "drop"))
        for source, reason in wanted:
            if (source, reason) not in found:
                is_it = pc.and_(
                    pc.equal(table.column("source"), source), pc.equal(table.column("reason"), reason)
                )
                own = table.filter(is_it)
                if own.num_rows:
                    details = Counter(own.column("detail").drop_null().to_pylist())
                    detail = min(details, key=lambda name: (-details[name], name), default="(none is given)")
                    found[source, reason] = own.column("doc_id")[0].as_py(), detail
    return found
