"""The line edits of C4: furniture of web pages goes, line by line, before the document is judged.

texts ─ edit_lines (one compiled pass) ─> LineEdits: what is left, and what was taken out of each row

texts ─ edit_and_measure ─> the same, and what was measured before and after
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.clean.measures import KeptLines, measure_both
from tokmill.clean.wordlists import JAVASCRIPT, POLICY_PHRASES
from tokmill.kernels import lineedits
from tokmill.kernels.phrases import PhraseTable, phrase_table
from tokmill.schema import large_strings, string_column
from tokmill.wordclasses import class_table


class LineOptions(NamedTuple):
    """What is taken out. A word, here, is what stands between spaces."""

    min_words: int = 3
    max_word_chars: int = 1000
    javascript: bool = True
    policy_phrases: bool = True
    terminal_punctuation: bool = True  # keep only lines that end in . ? ! " '
    citations: bool = True  # [12] [edit] [citation needed]


class LineEdits(NamedTuple):
    """`texts` are all rows, `rows` those that changed; `removed` says per reason how often, row by row of `rows`."""

    texts: Any
    rows: NDArray[np.int64]
    removed: dict[str, NDArray[np.int64]]
    kept: KeptLines


class EditedMeasures(NamedTuple):
    edits: LineEdits
    before: dict[str, NDArray[Any]]
    after: dict[str, NDArray[Any]]


# In the order of kernels.lineedits; outer_whitespace counts lines, and the line end of the last one.
REASONS = (
    "blank_line",
    "outer_whitespace",
    "line_with_long_word",
    "citation",
    "line_without_terminal_punctuation",
    "line_of_few_words",
    "line_with_javascript",
    "line_with_policy_phrase",
)


def edit_and_measure(
    texts: Any, options: LineOptions, names: Collection[str], names_after: Collection[str]
) -> EditedMeasures:
    """`names` of the texts as they come, `names_after` of what the edits leave."""
    edits = edit_lines(texts, options)
    return EditedMeasures(edits, *measure_both(texts, names, edits.texts, names_after, edits.kept))


def edit_lines(texts: Any, options: LineOptions) -> LineEdits:
    column = string_column(texts)
    edited = lineedits.edit_lines(
        column.data,
        column.offsets,
        class_table(),
        _phrases(options.javascript, options.policy_phrases),
        min_words=options.min_words,
        max_word_chars=options.max_word_chars,
        terminal_only=options.terminal_punctuation,
        strip_citations=options.citations,
    )
    removed = dict(zip(REASONS, edited.removed, strict=True))
    cut = large_strings(edited.cut_data, edited.cut_offsets)
    kept = KeptLines(edited.line_offsets, edited.is_whole, cut)
    return LineEdits(large_strings(edited.data, edited.offsets), edited.rows, removed, kept)


@functools.cache
def _phrases(javascript: bool, policy: bool) -> PhraseTable:
    return phrase_table((JAVASCRIPT if javascript else (), POLICY_PHRASES if policy else ()))
