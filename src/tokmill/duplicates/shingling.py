"""Texts as rows of words or characters, for near duplicates (shingles) and for passages (word forms).

    texts ─ NFKC, casefold (rows beyond ASCII) ─ words or characters ─> uint32 units per row   near duplicates
    Straße №5, e.g. étude      ->      strasse│no5│e│g│étude (decomposed)                      passages,
                                                                                               benchmarks

Texts are folded and split by kernels.shingles, a megabyte at a time:
batches bound the memory, and where they are cut changes nothing.

Word forms are tables for the kernels. Every code point is fully decomposed and casefolded on its own.
Letters, marks and digits make words, invisible format characters are as if they were not there, whatever else
there is separates. A letter of a script without spaces is a word with the marks on it. Digits stay as they
are: two tables with other figures share no passage. Decomposed, because then a text is folded by looking at
one code point after the other, and no place in it is lost; composed and decomposed spellings meet all the
same. Marks in another order than the canonical one do not.

Exact duplicates: equal byte by byte; with `exact: folded`, equal after NFKC, case folding and collapsing of
whitespace.

    texts ─ 128-bit hash, as they are and folded          in the cleaning pass, into `marks`
    marks of all shards ─ one range of hashes at a time ─ sort ─ groups of equal texts

Folding (version 1) never touches the text that is trained on. ASCII documents are folded and hashed in one
compiled pass, others in two; only text whose marks compose needs `unicodedata`. Splits, reviews and earlier
corpora go by the folded text, so that no looser copy leaks.
"""

from __future__ import annotations

import functools
import unicodedata
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.kernels import boundaries, hashing, shingles, windows, wordclasses
from tokmill.kernels import wordclasses as folding
from tokmill.kernels.jit import DIGIT, LETTER, MARK, SPACE, SPACELESS, TERMINAL, Bytes, Offsets
from tokmill.kernels.patterns import ABBREVIATIONS
from tokmill.kernels.windows import WordTable
from tokmill.kernels.wordclasses import COUNT, by_category, changes, fold, fold_table
from tokmill.kernels.words import pack
from tokmill.schema import large_strings, string_column

HASH_NORMALIZATION = "nfkc-casefold-collapse-1"
MARK_HASHES = f"{HASH_NORMALIZATION}, text-1"

# Documents folded at a time: bounds the copy of their bytes.
_BATCH_ROWS = 1024

Column = np.ndarray[Any, Any]


class Matches(NamedTuple):
    """Duplicate and survivor as indices into the rows that were compared."""

    duplicates: Column
    survivors: Column


def text_hashes(texts: Any) -> Column:
    """Hash texts byte by byte; uint64 (n, 2)."""
    state = np.zeros((len(texts), 2), np.uint64)
    hashing.mix_column(*string_column(texts), state)
    return state


def folded_hashes(texts: Any, is_ascii: Column, is_wanted: Column | None = None) -> Column:
    """Hash texts after folding; uint64 (n, 2). (0, 0) for a document without a visible character, and for one
    that is not wanted."""
    column = string_column(texts)
    wanted = np.ones(len(is_ascii), np.bool_) if is_wanted is None else is_wanted
    hashes = hashing.fold_hashes(column.data, column.offsets, wanted & is_ascii)
    wide = np.flatnonzero(wanted & ~is_ascii)
    for start in range(0, len(wide), _BATCH_ROWS):
        rows = wide[start : start + _BATCH_ROWS]
        chosen = string_column(texts.take(pa.array(rows)))
        hashes[rows] = hashing.fold_hashes(*_folded(chosen.data, chosen.offsets))
    return hashes


def match_equal(high: Column, low: Column, group: Column, ranks: Column | None = None) -> Matches:
    """Rows with equal (group, high, low): each one after the first, and that first.
    Rows come in stable order; `ranks` go before it, the least first."""
    ranks = np.zeros(len(high), np.int64) if ranks is None else ranks
    order = np.lexsort((np.arange(len(high)), ranks, low, high, group))
    same = np.zeros(len(order), np.bool_)
    if len(order) > 1:
        before, after = order[:-1], order[1:]
        same[1:] = (
            (high[before] == high[after]) & (low[before] == low[after]) & (group[before] == group[after])
        )
    first = np.maximum.accumulate(np.where(same, 0, np.arange(len(order))))
    return Matches(order[same], order[first[same]])


def partition_of(high: Column, partitions: int) -> Column:
    """Equal ranges of the 64-bit hash space, in integer arithmetic: the top 32 bits scaled to the count."""
    return ((high >> np.uint64(32)) * np.uint64(partitions)) >> np.uint64(32)


# Grows when the same text may get other words; the Unicode version grows by itself.
WORD_NORMALIZATION = f"nfkd-casefold-words-1 ({wordclasses.VERSION})"

_ZERO_WIDTH_SPACE = 0x200B  # a format character that separates words
_STOPS_WITHOUT_SPACE = "。！？｡．"


def fold_character(text: str) -> str:
    """Fully decomposed and casefolded: of one code point, what it is compared by."""
    for _ in range(2):
        text = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", text).casefold())
    return text


@functools.cache
def word_table() -> WordTable:
    """Built in some 0.2 s, once per process, from `unicodedata` of the running Python."""
    bits = wordclasses.class_table()
    kinds = np.full(COUNT, windows.SEPARATOR, np.uint8)
    for bit, kind in (
        (LETTER | DIGIT, windows.PART),
        (SPACELESS, windows.WHOLE),
        (MARK, windows.MARK),
    ):
        kinds[bits & bit != 0] = kind
    # Soft hyphens, joiners, marks of direction: invisible, and in one copy of a text but not in another.
    kinds[by_category(lambda category: category == "Cf") != 0] = windows.IGNORED
    kinds[_ZERO_WIDTH_SPACE] = windows.SEPARATOR
    starts = np.full(COUNT, -1, np.int32)
    pool = bytearray()
    for code, folded in changes(fold_character):
        starts[code] = len(pool)
        pool.append(len(folded))
        for character in folded:
            encoded = character.encode()
            pool += bytes([kinds[ord(character)], len(encoded)]) + encoded
    kinds[starts >= 0] = windows.FOLDS
    return WordTable(kinds, starts, np.frombuffer(bytes(pool), np.uint8))


@functools.cache
def boundary_kinds() -> NDArray[np.uint8]:
    """What each code point is to the end of a sentence or line, for kernels.boundaries."""
    bits, words = wordclasses.class_table(), word_table()
    kinds = np.full(COUNT, boundaries.OTHER, np.uint8)
    kinds[bits & TERMINAL != 0] = boundaries.STOP
    kinds[bits & SPACE != 0] = boundaries.SPACE
    kinds[np.isin(words.kinds, (windows.PART, windows.WHOLE, windows.MARK))] = boundaries.WORD
    for code in np.flatnonzero(words.starts >= 0).tolist():
        if any(
            words.kinds[ord(c)] not in (windows.SEPARATOR, windows.IGNORED) for c in fold_character(chr(code))
        ):
            kinds[code] = boundaries.WORD
    of_words = np.flatnonzero(kinds == boundaries.WORD).tolist()
    kinds[[code for code in of_words if chr(code).islower()]] = boundaries.LOWER
    kinds[by_category(lambda category: category in ("Pe", "Pf")) != 0] = boundaries.CLOSER
    kinds[[ord(c) for c in "'\""]] = boundaries.CLOSER
    kinds[[ord(c) for c in _STOPS_WITHOUT_SPACE]] = boundaries.FULL_STOP_OF_NO_SPACE
    kinds[ord("a") : ord("z") + 1], kinds[ord("A") : ord("Z") + 1] = boundaries.LOWER, boundaries.WORD
    kinds[ord("0") : ord("9") + 1] = boundaries.WORD
    return kinds


@functools.cache
def abbreviations() -> NDArray[np.uint64]:
    return pack(tuple(word for word in ABBREVIATIONS if len(word.encode()) <= 8))


Shingle = Literal["word", "char"]

# Text shingled at a time: its units stay in the second-level cache.
_BATCH_BYTES = 1 << 20


@functools.cache
def unit_kinds() -> NDArray[np.uint8]:
    """What each code point does to words, for kernels.shingles."""
    bits = wordclasses.class_table()
    kinds = np.full(len(bits), shingles.SEPARATOR, np.uint8)
    for bit, kind in (
        (LETTER, shingles.PART),
        (SPACELESS, shingles.WHOLE),
        (MARK, shingles.MARK),
        (DIGIT, shingles.DIGIT),
    ):
        kinds[bits & bit != 0] = kind
    kinds.flags.writeable = False
    return kinds


def unit_batches(
    texts: Any, shingle: Shingle, *, keep_digits: bool
) -> Iterator[tuple[int, shingles.UnitRows]]:
    """Units of about a megabyte of text at a time, and the number of the first row."""
    make = shingles.word_units if shingle == "word" else shingles.char_units
    column = string_column(texts)
    for start, stop in windows.row_batches(column.offsets, _BATCH_BYTES):
        data, offsets = _folded(column.data, column.offsets[start : stop + 1])
        yield start, make(data, offsets, unit_kinds(), keep_digits=keep_digits)


def all_units(texts: Any, shingle: Shingle, *, keep_digits: bool) -> shingles.UnitRows:
    parts = [part for _, part in unit_batches(texts, shingle, keep_digits=keep_digits)]
    if len(parts) == 1:
        return parts[0]
    lengths = [np.zeros(1, np.int64), *(np.diff(part.offsets) for part in parts)]
    units = np.concatenate([np.empty(0, np.uint32), *(part.units for part in parts)])
    numbers = np.concatenate([np.empty(0, np.uint32), *(part.numbers for part in parts)])
    return shingles.UnitRows(units, np.cumsum(np.concatenate(lengths)), numbers)


def _folded(data: Bytes, offsets: Offsets) -> tuple[Bytes, Offsets]:
    """The kernels fold ASCII as they go: text of nothing else is not copied."""
    if data[offsets[0] : offsets[-1]].max(initial=0) < 128:
        return data, offsets
    folded = folding.fold_rows(data, offsets, fold_table())
    if folded.is_exact.all():
        return folded.data, folded.offsets
    # Marks compose or change places in some rows: those through `unicodedata`, one by one.
    slow = ~folded.is_exact
    rows = large_strings(data, offsets).filter(pa.array(slow)).to_pylist()
    column = string_column(
        pc.replace_with_mask(
            large_strings(folded.data, folded.offsets),
            pa.array(slow),
            pa.array([fold(text) for text in rows], pa.large_string()),
        )
    )
    return column.data, column.offsets
