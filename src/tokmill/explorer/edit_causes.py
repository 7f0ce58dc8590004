"""Which rule made an edit: the steps of cleaning done again on one text, one after the other.

    received ─ NUL ─ newlines ─ Unicode ─ lines ─ redaction ─> as cleaned    must be what cleaning wrote
             ─ stripped ─ trims ─> as trained on                              as deduplication wrote it

Each step says which characters of the text before it it changed, and why; those are led back to characters of
the text as received. The code of others (transforms) is not run again: then, and where the steps here lead
elsewhere than cleaning did, nothing is said of a single edit.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tokmill.audit.places import Place
from tokmill.audit.trace import read_layers
from tokmill.clean.edits import NormalizeOptions
from tokmill.clean.examine import CleanOptions
from tokmill.clean.redaction import redact_texts
from tokmill.clean.rules import edit_lines
from tokmill.explorer.passages import Change, find_changes
from tokmill.explorer.site import Site

_DEDUP = {"stripped": "dedup: site_template", "trims": "dedup: passages_trimmed"}
_NEWLINE = re.compile("\r\n?")


class Cause(NamedTuple):
    """Characters [start, end) of the text as received, and the rule that changed them."""

    start: int
    end: int
    by: str


class _Step(NamedTuple):
    text: str  # after it
    changes: list[Change]
    reasons: list[list[str]]  # of each change


def find_causes(site: Site, place: Place) -> list[Cause]:
    """None of them where it cannot be said."""
    (_, received), (_, cleaned), *later = read_layers(site.run, place)
    artifact = site.run.artifacts.get(f"clean/{place.shard.source}")
    if artifact is None:
        return []
    steps: list[_Step] = []
    if cleaned != received:
        options = artifact.manifest.options(CleanOptions)
        if options.transforms:
            return []
        steps += _clean_again(received, options)
        if (steps[-1].text if steps else received) != cleaned:
            return []
    text = cleaned
    for table, after in later:
        if after != text:
            changes = find_changes(text, after)
            steps.append(_Step(after, changes, [[_DEDUP[table]] for _ in changes]))
            text = after
    return list(_led_back(steps))


def _clean_again(text: str, options: CleanOptions) -> list[_Step]:
    found = list(_normalize(text, options.normalize))
    for act in (_cut_lines, _redact):
        step = act(found[-1].text if found else text, options)
        if step is not None and step.changes:
            found.append(step)
    return found


def _normalize(text: str, options: NormalizeOptions) -> Iterator[_Step]:
    for reason in ("nul_stripped", "newlines_to_lf", f"unicode_{options.unicode.lower()}"):
        after = text
        if reason == "nul_stripped" and options.nul == "strip":
            after = text.replace("\0", "")
        elif reason == "newlines_to_lf" and options.newlines == "lf":
            after = _NEWLINE.sub("\n", text)
        elif reason.startswith("unicode_") and options.unicode != "none":
            after = unicodedata.normalize(options.unicode, text)
        if after != text:
            changes = find_changes(text, after)
            yield _Step(after, changes, [[f"clean: {reason}"] for _ in changes])
            text = after


def _cut_lines(text: str, cleaning: CleanOptions) -> _Step | None:
    options = cleaning.sieve.line_edits
    if options is None:
        return None
    after = edit_lines(pa.array([text], pa.large_string()), options).texts[0].as_py()
    lines = text.split("\n")
    by_line = edit_lines(pa.array(lines, pa.large_string()), options)
    reasons: dict[int, list[str]] = {}
    for reason, times in by_line.removed.items():
        for row in by_line.rows[times > 0].tolist():
            reasons.setdefault(row, []).append(f"clean: {reason}")
    starts = np.cumsum([0, *(len(line) + 1 for line in lines)])
    changes = find_changes(text, after)
    told = []
    for change in changes:
        first = int(np.searchsorted(starts, change.start, side="right")) - 1
        last = int(np.searchsorted(starts, max(change.end - 1, change.start), side="right"))
        own = dict.fromkeys(one for line in range(first, last) for one in reasons.get(line, ()))
        told.append(list(own) or ["clean: outer_whitespace"])
    return _Step(after, changes, told)


def _redact(text: str, cleaning: CleanOptions) -> _Step | None:
    done = redact_texts(pa.array([text], pa.large_string()), cleaning.redact) if cleaning.redact else None
    if done is None or not len(done.rows):
        return None
    after = done.texts[0].as_py()
    data = text.encode()
    spans = [
        (_characters(data, one["start"]), _characters(data, one["end"]), str(one["kind"]))
        for one in done.found.to_pylist()
    ]
    changes = find_changes(text, after)
    told = [
        sorted(
            f"clean: redacted_{kind}"
            for kind in {own for first, end, own in spans if first <= change.end and change.start <= end}
        )
        for change in changes
    ]
    return _Step(after, changes, told)


def _characters(data: bytes, end: int) -> int:
    return len(data[:end].decode(errors="ignore"))


def _led_back(steps: list[_Step]) -> Iterator[Cause]:
    for at, step in enumerate(steps):
        for change, reasons in zip(step.changes, step.reasons, strict=True):
            start, end = change.start, change.end
            for earlier in reversed(steps[:at]):
                start, end = _before(earlier.changes, start, False), _before(earlier.changes, end, True)
            for reason in reasons:
                yield Cause(start, max(start, end), reason)


def _before(changes: Iterable[Change], place: int, is_end: bool) -> int:
    """Where a place of the new text was in the old one; inside of a change, its beginning or its end."""
    shift = 0
    for change in changes:
        if place < change.new_start or (place == change.new_start and not is_end):
            break
        if place < change.new_end or (place == change.new_end and is_end):
            return change.end if is_end else change.start
        shift = change.end - change.new_end
    return place + shift


def causes_of(change: Change, causes: list[Cause]) -> list[str]:
    """The rules that changed something of it."""
    inside = [one.by for one in causes if one.start < change.end and change.start < one.end]
    touching = [one.by for one in causes if one.start <= change.end and change.start <= one.end]
    return list(dict.fromkeys(inside or touching))
