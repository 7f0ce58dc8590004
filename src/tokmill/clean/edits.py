"""Text as it will be trained on: NUL removal, newlines, Unicode form. Only what changes is written again.

    texts ─ measure (one compiled pass) ─ which rows need what? ─ edit those rows alone ─> Edits

One more compiled pass finds the rows that may not be in the recipe's Unicode form;
only those reach `unicodedata`.
"""

from __future__ import annotations

import unicodedata
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from tokmill.kernels import wordclasses as folding
from tokmill.kernels.characters import edit_text, measure_text
from tokmill.kernels.wordclasses import form_classes
from tokmill.schema import large_strings, string_column


class NormalizeOptions(msgspec.Struct, frozen=True):
    """`normalize` of a recipe."""

    unicode: Literal["none", "NFC", "NFKC"] = "none"
    nul: Literal["strip", "keep"] = "strip"
    newlines: Literal["keep", "lf"] = "keep"


class Edits(NamedTuple):
    """`rows` changed to `texts`; `reasons` says why, row by row, with how often (0: not counted)."""

    rows: np.ndarray[Any, np.dtype[np.int64]]
    texts: Any
    reasons: list[tuple[str, np.ndarray[Any, Any], np.ndarray[Any, Any]]]


class Normalized(NamedTuple):
    texts: Any  # all rows, edited ones included
    edits: Edits
    chars: np.ndarray[Any, np.dtype[np.int64]]
    is_ascii: np.ndarray[Any, np.dtype[np.bool_]]
    nuls: int  # found, whether stripped or not
    chars_in: int


def normalize_texts(texts: Any, rules: NormalizeOptions) -> Normalized:
    column = string_column(texts)
    found = measure_text(column.data, column.offsets)
    has_nul = (found.nuls > 0) & (rules.nul == "strip")
    has_cr = (found.carriage_returns > 0) & (rules.newlines == "lf")
    other_form = _not_in_form(texts, rules.unicode)
    rows = np.flatnonzero(has_nul | has_cr | other_form)
    if not len(rows):
        edits = Edits(rows, pa.array([], pa.large_string()), [])
        return Normalized(
            texts, edits, found.chars, found.is_ascii, int(found.nuls.sum()), int(found.chars.sum())
        )

    chosen = string_column(texts.take(pa.array(rows)))
    edited = large_strings(
        *edit_text(
            chosen.data, chosen.offsets, strip_nul=rules.nul == "strip", lf_newlines=rules.newlines == "lf"
        )
    )
    if rules.unicode != "none":
        edited = pa.array(
            [unicodedata.normalize(rules.unicode, t) for t in edited.to_pylist()], pa.large_string()
        )
    whole = apply_edits(texts, rows, edited)
    again = string_column(edited)
    remeasured = measure_text(again.data, again.offsets)
    chars, is_ascii = found.chars.copy(), found.is_ascii.copy()
    chars[rows], is_ascii[rows] = remeasured.chars, remeasured.is_ascii
    reasons = [
        ("nul_stripped", np.flatnonzero(has_nul), found.nuls[has_nul]),
        ("newlines_to_lf", np.flatnonzero(has_cr), found.carriage_returns[has_cr]),
        (
            f"unicode_{rules.unicode.lower()}",
            np.flatnonzero(other_form),
            np.zeros(int(other_form.sum()), np.int64),
        ),
    ]
    edits = Edits(rows, edited, [reason for reason in reasons if len(reason[1])])
    return Normalized(whole, edits, chars, is_ascii, int(found.nuls.sum()), int(found.chars.sum()))


def apply_edits(
    texts: Any, rows: np.ndarray[Any, Any], edited: Any, wanted: np.ndarray[Any, Any] | None = None
) -> Any:
    """The texts that cleaning left: the originals with the edited rows in their place;
    of all rows, or of some."""
    if not len(rows):
        return texts if wanted is None else texts.take(pa.array(wanted))
    order = np.arange(len(texts), dtype=np.int64)
    order[rows] = len(texts) + np.arange(len(rows))
    if wanted is None:
        return pa.concat_arrays([texts, edited]).take(pa.array(order))
    places = order[wanted]  # of a few rows no more than those is copied
    is_edited = places >= len(texts)
    taken = [texts.take(pa.array(places[~is_edited])), edited.take(pa.array(places[is_edited] - len(texts)))]
    back = np.empty(len(places), np.int64)
    back[np.argsort(is_edited, kind="stable")] = np.arange(len(places))
    return pa.concat_arrays(taken).take(pa.array(back))


def _not_in_form(texts: Any, form: Literal["none", "NFC", "NFKC"]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    out = np.zeros(len(texts), np.bool_)
    if form != "none":
        column = string_column(texts)
        rows = np.flatnonzero(folding.suspects(column.data, column.offsets, form_classes(form)))
        suspected = texts.take(pa.array(rows)).to_pylist()  # few: text that might not be in the form
        out[rows] = [not unicodedata.is_normalized(form, text) for text in suspected]
    return out
