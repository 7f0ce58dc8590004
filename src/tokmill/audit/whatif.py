"""What would change: if a threshold were another, or a layout; and which sources lost most of their documents to one rule.

    whatif          measures, marks, ledger of every shard ─ judge with the old thresholds ┐
                                                           └ judge with the new thresholds ┴─> who changes sides, and why
    layouts         lengths of the training documents ─> what each layout would cost
    losses_of_run   counts of manifests ─> losses over the limit

No text is read. A document that has no licence to be here, is empty (or would be after the edits) or is in another language
stays out whatever the rules say; what they would have measured of it is null. The answer is about cleaning:
deduplication comes after it.
"""

from __future__ import annotations

import contextlib
import difflib
import math
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tokmill.adhoc.tokens import read_listing, run_listing, tokenizer_section
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.progress import Progress
from tokmill.artifacts.step import Artifact
from tokmill.audit.opened import ShardTables, list_shard_tables, load_of, open_run
from tokmill.clean.examine import EMPTY, CleanOptions, is_blank
from tokmill.clean.language import LANGUAGE_SCORE, OTHER_LANGUAGE, UNSURE_LANGUAGE, is_known, is_wanted
from tokmill.clean.license_policy import DENIED, NOT_ALLOWED, UNKNOWN
from tokmill.clean.rules import Rule, columns_of, judge
from tokmill.errors import InputError, RecipeError
from tokmill.packing.costs import Cost, compare_strategies
from tokmill.recipe.cleaning import WARN_SOURCE_LOSS
from tokmill.schema import one_piece
from tokmill.stages.losses import Loss, by_source, cleaning_losses, find_losses
from tokmill.stages.tokens.stage import shards_of_split
from tokmill.storage.tables import load_table

MIN_SCORE = "language.min_score"
_HASH = ["exact_high", "exact_low"]
_MARKS = ["kept", "chars", "language", *_HASH]
_FIXED = (EMPTY, OTHER_LANGUAGE, DENIED, NOT_ALLOWED, UNKNOWN)


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


class WhatIf(NamedTuple):
    kept_now: int
    kept_then: int
    chars_now: int
    chars_then: int
    movers: list[Mover]
    examples: int

    def as_json(self) -> Json:
        return {
            "kept": {"now": self.kept_now, "then": self.kept_then},
            "chars": {"now": self.chars_now, "then": self.chars_then},
            "changes": self.changes(),
            "examples": [mover._asdict() for mover in self.nearest()],
        }

    def changes(self) -> list[Json]:
        """By source, direction and reason."""
        docs: Counter[tuple[str, str, str]] = Counter()
        chars: Counter[tuple[str, str, str]] = Counter()
        for mover in self.movers:
            key = (mover.source, mover.becomes, mover.reason)
            docs[key] += 1
            chars[key] += mover.chars
        return [
            {"source": s, "becomes": b, "reason": r, "docs": docs[s, b, r], "chars": chars[s, b, r]}
            for s, b, r in sorted(docs)
        ]

    def nearest(self) -> list[Mover]:
        by_distance = sorted(self.movers, key=lambda mover: (mover.distance, mover.source, mover.doc_id))
        return by_distance[: self.examples]


def whatif(directory: str | Path, set: Mapping[str, float] | Sequence[str], examples: int = 8) -> WhatIf:
    """Which documents would change sides with other thresholds, from the measures alone: no text is read.

    Thresholds by rule: {"gopher-quality.min_words": 30}, or ["gopher-quality.min_words=30"].
    """
    bounds = set if isinstance(set, Mapping) else dict(map(_threshold, set))
    run = open_run(Path(directory))
    _check_names(run, bounds)
    kept_now = kept_then = chars_now = chars_then = 0
    movers: list[Mover] = []
    for shard in list_shard_tables(run):
        cleaned = run.get(f"clean/{shard.source}")
        if cleaned is None:
            continue
        marks = load_table(cleaned.directory / f"marks-{shard.key}.parquet", _MARKS)
        kept, chars = (np.asarray(marks.column(name)) for name in ("kept", "chars"))
        kept_now += int(kept.sum())
        chars_now += int(chars[kept].sum())
        then = kept.copy()
        for row, mover in _movers(run, cleaned, shard, bounds, marks):
            then[row] = mover.becomes == "kept"
            movers.append(mover)
        kept_then += int(then.sum())
        chars_then += int(chars[then].sum())
    return WhatIf(kept_now, kept_then, chars_now, chars_then, movers, examples)


def _threshold(change: str) -> tuple[str, float]:
    name, _, value = change.partition("=")
    with contextlib.suppress(ValueError):
        if math.isfinite(float(value)):
            return name, float(value)
    raise RecipeError(
        f"{change} is not RULE=NUMBER", where="--set", next="for example `gopher-quality.min_words=30`"
    )


def _movers(
    run: Mapping[str, Artifact],
    cleaned: Artifact,
    shard: ShardTables,
    bounds: Mapping[str, float],
    marks: Any,
) -> Iterator[tuple[int, Mover]]:
    rules = rules_of(cleaned)
    changed = [
        msgspec.structs.replace(rule, threshold=bounds[rule.name]) if rule.name in bounds else rule
        for rule in rules
    ]
    if changed == rules:
        return
    table = load_of(cleaned, f"measures-{shard.key}.parquet")
    assert table is not None, "where there are rules there are measures"
    columns = columns_of(table)
    is_open = ~_claimed_otherwise(cleaned, shard, marks)
    before, after = judge(columns, rules, marks.num_rows), judge(columns, changed, marks.num_rows)
    none = len(rules)
    moved = np.flatnonzero(is_open & ((before.first == none) != (after.first == none)))
    if not len(moved):
        return
    ids = load_table(run[f"ingest/{shard.source}"].path(shard.documents), ["doc_id"]).column("doc_id")
    for row in moved.tolist():
        enters = bool(after.first[row] == none)
        rule = changed[int(before.first[row] if enters else after.first[row])]
        value = float(columns[rule.column][row])
        distance = abs(value - rule.threshold) / max(abs(rule.threshold), 1e-9)
        yield (
            row,
            Mover(
                shard.source,
                ids[row].as_py(),
                "kept" if enters else "dropped",
                rule.reason,
                value,
                rule.threshold,
                marks.column("chars")[row].as_py(),
                distance,
            ),
        )


def rules_of(cleaned: Artifact) -> list[Rule]:
    """The rules of a source in order; the least score of a language is one of them."""
    options = cleaned.manifest.options(CleanOptions)
    rules, language = list(options.sieve.rules), options.language
    if language and language.applied == "detect" and language.asked.keep:
        least = float(language.asked.min_score)
        rules.insert(0, Rule(MIN_SCORE, LANGUAGE_SCORE, "min", least, UNSURE_LANGUAGE))
    return rules


def _claimed_otherwise(cleaned: Artifact, shard: ShardTables, marks: Any) -> Any:
    """Who is out for another reason than a bound. The ledger names the first fault alone, so what comes after a
    broken bound is looked up in the marks: nothing left to read, and a language that nobody asked for."""
    claimed = is_blank(np.column_stack([np.asarray(marks.column(name)) for name in _HASH]))
    language = cleaned.manifest.options(CleanOptions).language
    if language and language.applied != "none" and language.asked.keep:
        codes = one_piece(marks.column("language"))
        claimed |= ~(is_known(codes) & is_wanted(codes, language.asked.keep))
    ledger = load_of(cleaned, f"ledger-{shard.key}.parquet", ["row", "verdict", "reason"])
    if ledger is not None:
        reasons = ledger.column("reason").to_pylist()
        verdicts = ledger.column("verdict").to_pylist()
        fixed = [v != "edit" and r in _FIXED for v, r in zip(verdicts, reasons, strict=True)]
        claimed[np.asarray(ledger.column("row"))[fixed]] = True
    return claimed


def _check_names(run: Mapping[str, Artifact], bounds: Mapping[str, float]) -> None:
    known = sorted({rule.name for a in run.values() if a.manifest.kind == "clean" for rule in rules_of(a)})
    for name in bounds:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            raise InputError(
                f"no rule of this run is called {name}",
                where="--set",
                next=f"did you mean {near[0]}?" if near else f"its rules: {', '.join(known) or 'none'}",
            )


class Layouts(NamedTuple):
    """What each layout costs with rows of `length` tokens."""

    length: int
    costs: list[Cost]

    def as_json(self) -> Json:
        shares = ("padding_share", "truncated_share", "fragmented_share", "cross_document_share")
        rounded = [{name: round(getattr(cost, name), 6) for name in shares} for cost in self.costs]
        costs = [{**vars(cost), **own} for cost, own in zip(self.costs, rounded, strict=True)]
        return {"length": self.length, "layouts": costs}


def layouts(
    target: str | Path,
    *,
    length: int = 2048,
    tokenizer_path: str | Path | None = None,
    eos: str | int | None = None,
    root: str | Path | None = None,
    seed: int | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Layouts:
    """What each layout would cost on the training documents of a run, or of the texts that a manifest lists.

    A manifest is a mixture (.yaml), a snapshot (.json) or a sample (manifest.jsonl), and needs a tokenizer; nothing is kept.
    """
    path = Path(target)
    if path.is_dir():
        return Layouts(length, _compare(open_run(path), length, str(path)))
    if tokenizer_path is None:
        raise RecipeError(
            "is no run, and there is no tokenizer", where=str(path), next="give `--tokenizer-path`"
        )
    listing = read_listing(path, seed=seed, root=root)
    sections: Json = {"split": {"valid_fraction": 0}, "tokenizer": tokenizer_section(tokenizer_path, eos=eos)}
    with tempfile.TemporaryDirectory(prefix="tokmill-layouts-") as scratch:
        made = run_listing(listing, Path(scratch), sections, workers=workers, progress=progress)
        return Layouts(length, _compare(made, length, str(path)))


def _compare(artifacts: Mapping[str, Artifact], length: int, where: str) -> list[Cost]:
    """Rows keep domains apart where a layout can."""
    if "tokens" not in artifacts:
        raise InputError("has no tokens", where=where, next="give a run of a recipe with a tokenizer")
    split = artifacts["tokens"].manifest.facts["splits"][0]
    shards = shards_of_split(artifacts, split)
    domains = list(dict.fromkeys(shard.domain for shard in shards))
    lengths, groups = [np.empty(0, np.int64)], [np.empty(0, np.int32)]
    for shard in shards:
        own = np.asarray(load_table(Path(shard.lengths.path), ["tokens"]).column("tokens"))
        lengths.append(own)
        groups.append(np.full(len(own), domains.index(shard.domain), np.int32))
    return compare_strategies(np.concatenate(lengths), length, np.concatenate(groups))


def loss_limit(recipe: Json) -> Decimal:
    """As the run wrote its recipe down; the default where it did not come to that."""
    return Decimal(str((recipe.get("dedup") or {}).get("warn_source_loss", WARN_SOURCE_LOSS)))


def losses_of_run(artifacts: Mapping[str, Artifact], limit: Decimal) -> Iterator[tuple[str, Loss]]:
    """With the step that dropped them."""
    for step, artifact in artifacts.items():
        ledgers = [artifact.path(entry) for entry in artifact.manifest.entries("ledger")]
        if artifact.manifest.kind == "clean":
            found = cleaning_losses(
                artifact.manifest.options(CleanOptions), artifact.manifest.counts, limit, ledgers
            )
            yield from ((step, loss) for loss in found)
        elif artifact.manifest.kind == "dedup":
            sources = [shard.source for shard in list_shard_tables(artifacts)]
            verdicts = [receipt for receipt in artifact.manifest.receipts() if "in" in receipt.counts]
            counts = by_source((sources[int(receipt.key)], receipt.counts) for receipt in verdicts)
            yield from ((step, loss) for loss in find_losses(counts, limit, ledgers))
