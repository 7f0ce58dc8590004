"""One part of tokmill on a column in memory: nothing is read from a recipe, and nothing is written.

    measure(texts)            the numbers that rules ask for, by name
    detect_language(texts)    a code and a score for each
    near_duplicates(texts)    which ones repeat another, and which one
    normalize_urls(urls)      URLs in the one form that deduplication and blocklists compare
    redact(texts)             e-mail addresses, IP addresses, phone numbers and secrets replaced by constants
    pack(lengths, length)     which tokens of which document go into which row

Texts are a list, a NumPy array, an Arrow array or a pandas or Polars column; null is a text without letters,
and stays null. Texts that come back are of the kind that was given. Defaults are those of a recipe.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.artifacts.cells import short_repr
from tokmill.clean import measures
from tokmill.clean.language import DetectorName, detect_languages
from tokmill.clean.redaction import redact_texts
from tokmill.clean.urls import normalize_urls as urls_in_one_form
from tokmill.duplicates.near import NearOptions, choose_bands, find_near_duplicates
from tokmill.errors import InputError
from tokmill.kernels.redaction import KINDS
from tokmill.packing.plan import Layout, Plan, Tail, plan_layout


@short_repr
class Languages(NamedTuple):
    """`codes` as the detector writes them ("en", "zh"; "und":
    no letters), and how sure it is, from 0 to 1."""

    codes: Any
    scores: NDArray[np.float64]


@short_repr
class NearDuplicates(NamedTuple):
    """One value per text."""

    kept: NDArray[np.bool_]
    survivor: NDArray[np.int64]  # the text that it is dropped for; itself where it is kept
    similarity: NDArray[np.float64]  # with the survivor; 1 where it is kept
    cluster: NDArray[np.int64]  # the first text of its cluster; itself where it is alone


def measure(texts: Any, names: Collection[str] | None = None) -> dict[str, NDArray[Any]]:
    """Counts (int64) and shares (float64) by name; without names all of a text,
    which are those of docs/measures.md but `parse_error_share`."""
    for name in names or ():
        if name not in measures.MEASURES:
            what, advice = measures.unknown_measure(name)
            raise InputError(what, where="names", next=advice)
    return measures.measure(_arrow(texts), list(measures.MEASURES if names is None else names))


def detect_language(texts: Any, *, detector: DetectorName = "fasttext") -> Languages:
    """The language of each text, and how sure the detector is. Needs the extra `language`."""
    found = detect_languages(_arrow(texts), detector)
    return Languages(_like(texts, found.codes.cast(pa.string())), found.scores)


def near_duplicates(
    texts: Any,
    *,
    threshold: float = 0.8,
    ngram: int = 5,
    unit: Literal["word", "char"] = "word",
    verify: Literal["exact", "signature"] = "exact",
) -> NearDuplicates:
    """The first of several is kept; a text is dropped only for one that is kept and similar enough itself."""
    bands, rows = choose_bands(threshold)
    options = NearOptions(
        threshold=Decimal(str(threshold)), unit=unit, ngram=ngram, bands=bands, rows=rows, verify=verify
    )
    found = find_near_duplicates(_arrow(texts).fill_null(""), options)
    kept = found.survivor < 0
    survivor = np.where(kept, np.arange(len(kept)), found.survivor)
    return NearDuplicates(kept, survivor, np.where(kept, 1.0, found.similarity), found.component)


def normalize_urls(urls: Any) -> Any:
    """The URLs in one form (docs/urls.md); null for what is none. For comparing, and not for fetching."""
    return _like(urls, urls_in_one_form(_arrow(urls)))


def redact(texts: Any, kinds: Sequence[str] = KINDS) -> Any:
    """The texts again, with what was found replaced."""
    column = _arrow(texts)
    found = redact_texts(column, kinds)
    if len(found.rows):
        is_changed = np.zeros(len(column), np.bool_)
        is_changed[found.rows] = True
        column = pc.replace_with_mask(column, pa.array(is_changed), found.texts.cast(column.type))
    return _like(texts, column)


def pack(
    lengths: Any,
    length: int,
    *,
    layout: Layout = "concat",
    tail: Tail = "drop",
    groups: Any = None,
) -> Plan:
    """A plan of rows of `length` tokens for documents of these `lengths`;
    `plan.spans()` lists where each goes."""
    counts = _counts(lengths)
    if counts is None:
        raise InputError(
            "are no counts of tokens", where="lengths", next="give a number of tokens for each document"
        )
    of_groups = None if groups is None else _numbered(groups)
    if of_groups is not None and of_groups.shape != counts.shape:
        raise InputError(
            f"{of_groups.size:,} for {counts.size:,} documents", where="groups", next="give one for each"
        )
    return plan_layout(layout, counts, length, of_groups, tail)


def _counts(lengths: Any) -> NDArray[np.int64] | None:
    """Whole numbers however they are held, also as 3.0; None: one of them is none, or below 0."""
    try:
        values = np.asarray(lengths)
        if values.ndim != 1 or (values.size and values.dtype.kind not in "iufO"):
            return None
        with np.errstate(invalid="ignore"):  # NaN becomes a number, which it is not equal to
            counts = values.astype(np.int64)
    except (TypeError, ValueError, OverflowError):
        return None
    return counts if ((counts == values) & (counts >= 0)).all() else None


def _numbered(groups: Any) -> NDArray[np.integer]:
    """Names, and what else there is, by numbers."""
    try:
        values = np.asarray(groups)
        if values.dtype.kind in "iu" and not (values < 0).any():
            return values
        return np.unique(values, return_inverse=True)[1]
    except (TypeError, ValueError) as error:
        raise InputError(
            f"cannot be told apart ({error})", where="groups", next="give every document a name, or a number"
        ) from None


def _arrow(texts: Any) -> Any:
    if isinstance(texts, str):
        raise InputError("one text is given", where="texts", next="give a list of texts")
    try:
        if not isinstance(texts, (pa.Array, pa.ChunkedArray)):
            texts = pa.array(texts.to_arrow() if hasattr(texts, "to_arrow") else texts, from_pandas=True)
        column = texts.cast(pa.large_string())
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise InputError(f"are no texts: {error}", where="texts", next="give a list of str") from None
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column


def _like(given: Any, column: Any) -> Any:
    """A column as what was given: a list for a list, an array for an array."""
    if isinstance(given, (pa.Array, pa.ChunkedArray)):
        return column
    if isinstance(given, np.ndarray):
        return column.to_numpy(zero_copy_only=False)
    kind = type(given).__module__.partition(".")[0]
    if kind == "pandas":
        return type(given)(column.to_pylist(), index=given.index, name=given.name)
    if kind == "polars":
        return type(given)(given.name, column.to_pylist())
    return column.to_pylist()
