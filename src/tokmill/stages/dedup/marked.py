"""Marks of passages of the rows of a shard: those of an earlier run, and the others from their texts.

    cache ─ rows that are known ─┐
    texts of the other rows ─────┴─> marks of each row, in order ─> cache, where there were others

    <entry>.passages   row 4, words 4, marks 4 │ hash 8, word 4          ascending rows; then all their marks

Like signatures (tokmill.stages.dedup.signed) they depend on the text and on how it is read alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.cache import load_columns, save_columns
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.step import Task
from tokmill.duplicates.window import WindowOptions, count_words, window_marks
from tokmill.stages.dedup.method import load_texts

PASSAGES = "passages"
# A mark per 120 bytes of text has 8 + 4 bytes, of which the last four pack to one: 7.1 % of the bench texts.
ROW_BYTES, SHARE = 12, 0.08

Numbers = NDArray[np.int64]


class Marked(NamedTuple):
    """Of rows in ascending order."""

    rows: Numbers
    words: Numbers  # in the document
    counts: Numbers  # marks of it
    hashes: NDArray[np.uint64]  # of all marks, document by document
    first_words: Numbers

    def of(self, rows: Numbers) -> Marked:
        """Of some of them."""
        if len(rows) == len(self.rows):
            return self
        places = np.searchsorted(self.rows, rows)
        is_wanted = np.zeros(len(self.rows), np.bool_)
        is_wanted[places] = True
        marks = np.repeat(is_wanted, self.counts)
        return Marked(
            rows, self.words[places], self.counts[places], self.hashes[marks], self.first_words[marks]
        )

    def joined(self, other: Marked) -> Marked:
        """With other rows."""
        rows = np.concatenate([self.rows, other.rows])
        order = np.argsort(rows, kind="stable")
        counts = np.concatenate([self.counts, other.counts])
        by_row = np.argsort(np.repeat(rows, counts), kind="stable")
        return Marked(
            rows[order],
            np.concatenate([self.words, other.words])[order],
            counts[order],
            np.concatenate([self.hashes, other.hashes])[by_row],
            np.concatenate([self.first_words, other.first_words])[by_row],
        )


def mark_config(window: WindowOptions) -> Json:
    """What marks depend on besides the text."""
    asked = msgspec.to_builtins(window)
    return {name: asked[name] for name in ("words", "winnow", "normalization")}


def marked_rows(task: Task[Any], rows: Numbers, window: WindowOptions) -> Marked:
    """Of these rows, which ascend."""
    known = _load(task)
    missing = np.setdiff1d(rows, known.rows, assume_unique=True)
    if len(missing):
        texts = load_texts(task.inputs, missing)
        marks = window_marks(texts, window)
        counts = np.bincount(marks.rows, minlength=len(missing))
        fresh = Marked(missing, count_words(texts), counts, marks.hashes, marks.first_words)
        known = known.joined(fresh) if len(known.rows) else fresh
        _save(task, known)
    return known.of(rows)


def _load(task: Task[Any]) -> Marked:
    found = load_columns(task.cached.path(PASSAGES)) if task.cached is not None else None
    if found is None:
        nothing = np.empty(0, np.int64)
        return Marked(nothing, nothing, nothing, np.empty(0, np.uint64), nothing)
    columns = found.columns
    row, words, marks, word = (columns[name].astype(np.int64) for name in ("row", "words", "marks", "word"))
    return Marked(row, words, marks, columns["hash"], word)


def _save(task: Task[Any], known: Marked) -> None:
    if task.cached is not None:
        small = {"row": known.rows, "words": known.words, "marks": known.counts, "word": known.first_words}
        columns: dict[str, Any] = {name: column.astype(np.uint32) for name, column in small.items()}
        save_columns(task.cached.path(PASSAGES), {**columns, "hash": known.hashes}, task.cached.room)
