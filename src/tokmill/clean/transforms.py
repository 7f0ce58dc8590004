"""Texts as functions of other people give them back (`transforms` of a recipe)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokmill.artifacts.plugins import Plugin
from tokmill.kernels.hashing import blank_rows
from tokmill.kernels.patterns import find_literals, literal_table
from tokmill.schema import one_piece, string_column
from tokmill.tokenizers.regions import RESERVED


def transform_texts(
    plugin: Plugin, columns: Mapping[str, Any], *, is_chat: bool
) -> tuple[Any, np.ndarray[Any, Any]]:
    """The texts as somebody else's function gives them back, and the rows that are others now."""

    def texts(answer: Any, rows: int) -> Any:
        with plugin.blamed():
            given = (
                list(answer) if isinstance(answer, list) else answer
            )  # as it is now, if it was changed in place
            column = one_piece(given) if isinstance(given, pa.Array | pa.ChunkedArray) else pa.array(given)
            strings = column.cast(pa.large_string()) if _is_text(column.type) else column
        if len(strings) != rows or strings.null_count or not pa.types.is_large_string(strings.type):
            told = f"{len(strings)} of {strings.type}, {strings.null_count} of them null"
            raise plugin.fault(
                f"returned {told}; {rows} texts are needed", 'return one str per document, "" to leave none'
            )
        return strings

    edited = plugin.ask(columns, texts)
    rows = np.flatnonzero(np.asarray(pc.not_equal(edited, columns["text"])))
    if is_chat:
        _refuse_other_marks(plugin, columns, edited, rows)
    return edited, rows


def _refuse_other_marks(
    plugin: Plugin, columns: Mapping[str, Any], edited: Any, rows: np.ndarray[Any, Any]
) -> None:
    """What is template, said or answered in a conversation stands in its marks. A text of which nothing is
    left needs none."""
    rows = rows[~blank_rows(*string_column(edited.take(pa.array(rows)))[:2])]
    before, after = (_marks_of(texts.take(pa.array(rows))) for texts in (columns["text"], edited))
    common = min(len(before), len(after))
    differ = np.flatnonzero((before[:common] != after[:common]).any(axis=1))
    if len(before) == len(after) and not len(differ):
        return
    at = int(differ[0]) if len(differ) else common
    row = min(int(marks[at, 0]) for marks in (before, after) if at < len(marks))
    has, had = (np.count_nonzero(marks[:, 0] == row) for marks in (after, before))
    doc_id = columns["doc_id"][int(rows[row])].as_py() if "doc_id" in columns else f"row {rows[row]}"
    did = "put a mark of conversations into" if has > had else "took marks of conversations out of"
    raise plugin.fault(
        f"{did} {doc_id!r}", "leave the characters U+FDD0 to U+FDEF where they are, and write none"
    )


def _marks_of(texts: Any) -> np.ndarray[Any, Any]:
    """Row and mark, in their order."""
    column = string_column(texts)
    found = find_literals(column.data, column.offsets, literal_table(tuple(RESERVED)))
    return np.column_stack([found.rows, found.literals])


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
