"""What the rules say of documents, and what is left of their texts. Nothing here knows who is out already.

    texts ─ measure ─ line edits ─ measure again ─ hooks ─ judge ─ redact ─> Sifted

Rows are those of the texts that are given, and each is looked at by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.clean.hooks import call_hook
from tokmill.clean.lines import LineOptions, edit_and_measure
from tokmill.clean.measures import measure
from tokmill.clean.normalize import apply_edits
from tokmill.clean.redact import redact_texts
from tokmill.clean.rules import AFTER, HOOK, Judged, Sieve, judge

Column = NDArray[Any]


class Change(NamedTuple):
    """Why the text of some rows is another: how often each, and where, if it is known."""

    reason: str
    rows: Column
    counts: Column
    details: list[str] | None = None


class Sifted(NamedTuple):
    measures: dict[str, Column]
    judged: Judged
    texts: Any  # of all rows, as they are now
    rows: Column  # whose text is another
    changes: list[Change]


def sift(
    texts: Any, others: Mapping[str, Any], sieve: Sieve, hooks: Mapping[str, str], redact: Sequence[str]
) -> Sifted:
    """`others`: the columns besides the texts that hooks are shown; `hooks`: where the file of each lies."""
    count = len(texts)
    changed, changes = np.zeros(count, np.bool_), list[Change]()
    names = [column for column in sieve.columns() if not column.startswith((AFTER, HOOK))]
    if sieve.line_edits is None:
        measures = measure(texts, names)
    else:
        after = [column.removeprefix(AFTER) for column in sieve.columns() if column.startswith(AFTER)]
        found = edit_and_measure(texts, LineOptions(**sieve.line_edits), names, after)
        texts = found.edits.texts
        measures = found.before | {AFTER + name: values for name, values in found.after.items()}
        changed[found.edits.rows] = True
        for reason, times in found.edits.removed.items():
            some = times > 0
            if some.any():
                changes.append(Change(reason, found.edits.rows[some], times[some]))
    for hook in [column.removeprefix(HOOK) for column in sieve.columns() if column.startswith(HOOK)]:
        # of nobody nothing is asked: the user's function need not know what no documents are
        columns = {"text": texts, **others}
        measures[HOOK + hook] = (
            call_hook(hook, hooks[hook], sieve.hooks[hook], columns) if count else np.zeros(0)
        )
    judged = judge(measures, sieve.rules, count)
    if redact:
        texts = _redact(texts, redact, changed, changes)
    return Sifted(measures, judged, texts, np.flatnonzero(changed), changes)


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
