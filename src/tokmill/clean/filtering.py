"""Texts measured, edited and judged, document by document.

texts ─ transforms ─ measure ─ line edits ─ measure again ─ measures of others ─ scores
      ─ judge ─ redact ─> Filtered
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.plugins import Plugin
from tokmill.clean.edits import apply_edits
from tokmill.clean.measures import measure, measure_by
from tokmill.clean.redaction import redact_texts
from tokmill.clean.rules import AFTER, HOOK, CompiledFilters, Judged, edit_and_measure, judge
from tokmill.clean.transforms import transform_texts
from tokmill.schema import SCORE, string_column
from tokmill.scores.scoring import HOOK as SCORE_HOOK
from tokmill.scores.scoring import ScorePlan, score_columns, texts_to_score

Column = NDArray[Any]


class Change(NamedTuple):
    """Why the text of some rows is another: how often each, and where, if it is known."""

    reason: str
    rows: Column
    counts: Column
    details: list[str] | None = None
    sizes: Column | None = None  # of a transform: bytes before are counted, and these are the bytes after


class Scoring(NamedTuple):
    """What is scored, and by which files: where they are, by sha256."""

    plans: Sequence[ScorePlan] = ()
    files: Mapping[str, Path] = {}
    stored: Mapping[str, Column] = {}  # columns that a step before this one computed


NO_SCORES = Scoring()


class Filtered(NamedTuple):
    measures: dict[str, Column]
    judged: Judged
    texts: Any  # of all rows, as they are now
    rows: Column  # whose text is another
    changes: list[Change]


def apply_filters(
    texts: Any,
    others: Mapping[str, Any],
    filters: CompiledFilters,
    transforms: Sequence[Plugin],
    redact: Sequence[str],
    scoring: Scoring = NO_SCORES,
    *,
    is_chat: bool = False,
) -> Filtered:
    """`others`: the columns besides the texts that the code of others is shown."""
    count = len(texts)
    changed, changes = np.zeros(count, np.bool_), list[Change]()
    for plugin in transforms if count else ():
        before = texts
        texts, rows = transform_texts(plugin, {"text": texts, **others}, is_chat=is_chat)
        changed[rows] = True
        sizes = [np.diff(string_column(column).offsets)[rows] for column in (before, texts)]
        changes.append(Change(plugin.name.rpartition(":")[2], rows, sizes[0], sizes=sizes[1]))
    names = [column for column in filters.columns() if not column.startswith((AFTER, HOOK, SCORE))]
    if filters.line_edits is None:
        measures = measure(texts, names)
    else:
        after = [column.removeprefix(AFTER) for column in filters.columns() if column.startswith(AFTER)]
        found = edit_and_measure(texts, filters.line_edits, names, after)
        texts = found.edits.texts
        measures = found.before | {AFTER + name: values for name, values in found.after.items()}
        changed[found.edits.rows] = True
        for reason, times in found.edits.removed.items():
            some = times > 0
            if some.any():
                changes.append(Change(reason, found.edits.rows[some], times[some]))
    for name, digest in filters.hooks.items():
        # not called with no documents: the function need not handle that
        columns, plugin = {"text": texts, **others}, Plugin("measures", name, digest)
        measures[HOOK + name] = measure_by(plugin, columns) if count else np.zeros(0)
    scored = texts_to_score(texts, scoring.plans)
    for plan in scoring.plans:
        if plan.kind == SCORE_HOOK and not plan.is_stored:
            assert plan.plugin is not None
            columns = {"text": scored, **others}
            measures[plan.column] = measure_by(plan.plugin, columns) if count else np.zeros(0)
    measures |= score_columns(scored, scoring.plans, scoring.files)
    measures |= scoring.stored
    judged = judge(measures, filters.rules, count)
    if redact:
        texts = _redact(texts, redact, changed, changes)
    return Filtered(measures, judged, texts, np.flatnonzero(changed), changes)


def _redact(texts: Any, kinds: Sequence[str], changed: Column, changes: list[Change]) -> Any:
    """Offsets are bytes of the text before."""
    done = redact_texts(texts, kinds)
    changed[done.rows] = True
    where = done.found.to_pylist()
    for kind in sorted({str(found["kind"]) for found in where}):
        spans: dict[int, list[str]] = {}
        for found in where:
            if found["kind"] == kind:
                spans.setdefault(int(found["row"]), []).append(f"{found['start']}-{found['end']}")
        counts = np.array([len(places) for places in spans.values()], np.int64)
        details = [f"bytes {', '.join(places)}" for places in spans.values()]
        changes.append(Change(f"redacted_{kind}", np.array(list(spans), np.int64), counts, details))
    return apply_edits(texts, done.rows, done.texts)
