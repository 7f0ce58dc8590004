"""N-gram models by modified Kneser-Ney smoothing (Chen and Goodman 1998), as `lmplz` of kenlm makes them.

    ids of shards ─ count_ngrams ─> NgramCounts ─┐
    ids of shards ─ count_ngrams ─> NgramCounts ─┴─ join_ngrams ─ estimate ─> nodes of a LanguageModel

    grams    int32[m, order]   sorted by the last word, then the one before it, …; in front <s>, repeated
    counts   int64[m]          of a sentence

    count    below the highest order, words that stand before it; or how often, where it begins with <s>
    p(w | h) = (count - D(count)) / sum over h  +  gamma(h) p(w | h')      D1, D2, D3+ from counts of counts

Counts add up, so shards and their order do not matter. Sums are of whole numbers; what is left are +, -, *, /
and logarithms of single numbers, with the same bits on every machine. Nothing is pruned.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import CorruptFile, InputError
from tokmill.kernels.languagemodel import BEGIN, END, MAX_ORDER
from tokmill.scores.arrayfile import checked_arrays, load_arrays, write_arrays
from tokmill.scores.logarithm import LN10, log
from tokmill.storage.disk import Written

KIND = "ngram-counts"
ONE = 1 << 22  # a logarithm to the base 10
_LEAST = 1e-99  # a discount can be nothing, and then nothing is left for what was not seen
FALLBACK = (0.5, 1.0, 1.5)  # discounts where counts of counts give none: kenlm's, if it is asked for them

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]


class NgramCounts(NamedTuple):
    grams: NDArray[np.int32]
    counts: Numbers


class Nodes(NamedTuple):
    """All n-grams, order by order; node i of the first order is the word of id i."""

    sizes: list[int]  # of each order
    parents: NDArray[np.int32]  # the node without the first word; of a word alone, -1
    words: NDArray[np.int32]  # the first word
    probabilities: NDArray[np.int32]  # logarithms to the base 10, in ONE
    backoffs: NDArray[np.int32]
    discounts: list[tuple[float, float, float]]  # of each order


# --- counting ---


def count_ngrams(ids: NDArray[np.int32], order: int) -> NgramCounts:
    """Of sentences one after the other, each ending with END."""
    if not 1 <= order <= MAX_ORDER or (len(ids) and ids[-1] != END):
        raise ValueError(f"an order of {order}, or a sentence without an end")
    grams = np.full((len(ids), order), BEGIN, np.int32)
    grams[:, order - 1] = ids
    # how many words of its sentence stand before each
    starts = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(ids == END)[:-1] + 1])
    lengths = np.diff(np.append(starts, len(ids)))
    inside = np.arange(len(ids)) - np.repeat(starts, lengths) if len(ids) else np.zeros(0, np.int64)
    for back in range(1, order):
        has = np.flatnonzero(inside >= back)
        grams[has, order - 1 - back] = ids[has - back]
    return _summed(grams, np.ones(len(ids), np.int64))


def join_ngrams(shards: Iterable[NgramCounts]) -> NgramCounts:
    parts = list(shards)
    if not parts or len({part.grams.shape[1] for part in parts}) > 1:
        raise ValueError("n-grams of no shard, or of several orders")
    grams, counts = (np.concatenate([part[field] for part in parts]) for field in (0, 1))
    return _summed(grams, counts)


def _summed(grams: NDArray[np.int32], counts: Numbers) -> NgramCounts:
    order = np.lexsort(tuple(grams.T))
    grams, counts = grams[order], counts[order]
    is_new = np.ones(len(grams), np.bool_)
    is_new[1:] = (grams[1:] != grams[:-1]).any(axis=1)
    starts = np.flatnonzero(is_new)
    sums = np.add.reduceat(counts, starts) if len(starts) else counts
    return NgramCounts(np.ascontiguousarray(grams[starts]), sums)


def write_ngrams(path: Path, counts: NgramCounts) -> Written:
    arrays: dict[str, NDArray[Any]] = {"grams": counts.grams, "counts": counts.counts}
    return write_arrays(path, KIND, {}, arrays)


def load_ngrams(path: Path) -> NgramCounts:
    grams, counts = checked_arrays(load_arrays(path, KIND), path, {"grams": ("<i4", 2), "counts": ("<i8", 1)})
    is_sound = len(grams) == len(counts) and (grams >= 0).all() and (counts > 0).all()
    if is_sound and np.array_equal(_summed(grams, counts).grams, grams):
        return NgramCounts(grams, counts)
    raise CorruptFile("its n-grams are not in order, or not counted", where=str(path), next="make it again")


# --- estimating ---


def estimate(counted: NgramCounts, vocabulary: int) -> Nodes:
    """`vocabulary` ids there are, with <unk>, <s> and </s>."""
    grams, counts = counted
    if not len(grams):
        raise InputError("there is no text to train on", where="scores", next="give documents with words")
    if int(grams.max()) >= vocabulary:
        raise ValueError(f"an id of {int(grams.max())} in a vocabulary of {vocabulary}")
    tables = _tables(grams, counts, vocabulary)
    probabilities: list[Floats] = []
    backoffs: list[Floats] = []
    discounts: list[tuple[float, float, float]] = []
    contexts: list[Numbers] = []  # of each n-gram, the node of all its words but the last, in its order
    for number, table in enumerate(tables):
        own = _discounts(table.counts)
        discounts.append(own)
        discount = np.array([0.0, *own])[np.minimum(table.counts, 3)]
        if number == 0:
            context = np.zeros(vocabulary, np.int64)
        else:
            above = tables[number - 1]
            if number == 1:
                context = table.words.astype(np.int64)
            else:
                wanted = contexts[-1][table.parents] * vocabulary + table.words
                context = np.searchsorted(above.parents * vocabulary + above.words, wanted)
        contexts.append(context)
        size = len(tables[number - 1].counts) if number else 1
        # Of each context how many n-grams have one, two, and three or more: whole numbers, so in any order.
        denominators = _sum_by(context, table.counts, size).astype(np.float64)
        left = np.zeros(size)
        for least, amount in enumerate(own, 1):
            is_so = table.counts == least if least < 3 else table.counts >= 3
            left = left + amount * _sum_by(context, is_so.astype(np.int64), size)
        is_context = denominators > 0
        gamma = np.where(is_context, left / np.where(is_context, denominators, 1.0), 1.0)
        share = (table.counts - discount) / denominators[context]
        if number == 0:
            lower: Any = 1.0 / (vocabulary - 1)  # <unk> is a word, <s> is none
        else:
            lower = probabilities[-1][table.parents]
            backoffs.append(gamma)
        found = share + gamma[context] * lower
        if number == 0:
            found[BEGIN] = 1.0
        probabilities.append(np.minimum(found, 1.0))
    backoffs.append(np.ones(len(tables[-1].counts)))
    sizes = [len(table.counts) for table in tables]
    bases = np.cumsum([0, *sizes])
    parents = [np.full(vocabulary, -1), *(t.parents + bases[n] for n, t in enumerate(tables[1:]))]
    return Nodes(
        sizes,
        np.concatenate(parents).astype(np.int32),
        np.concatenate([table.words for table in tables]).astype(np.int32),
        in_units(log(np.maximum(np.concatenate(probabilities), _LEAST)) / LN10),
        in_units(log(np.maximum(np.concatenate(backoffs), _LEAST)) / LN10),
        discounts,
    )


class _Table(NamedTuple):
    """Of an order: which n-gram of the order below follows the first word; which word; how often."""

    parents: Numbers
    words: Numbers
    counts: Numbers


def _tables(grams: NDArray[np.int32], counts: Numbers, vocabulary: int) -> list[_Table]:
    """Rows are sorted from the last word on, so those that end alike stand together at every length."""
    rows, order = grams.shape
    is_new = np.zeros(rows, np.bool_)
    is_new[0] = True
    starts = []
    for length in range(1, order + 1):
        is_new = is_new.copy()
        is_new[1:] |= grams[1:, order - length] != grams[:-1, order - length]
        starts.append(np.flatnonzero(is_new))
    tables: list[_Table] = []
    below = np.zeros(rows, np.int64)  # of each row, its n-gram of the order below
    for length in range(1, order + 1):
        at = starts[length - 1]
        first = grams[at, order - length].astype(np.int64)
        is_begun = first == BEGIN
        how_often = np.add.reduceat(counts, at)
        if length < order:
            inner = np.searchsorted(starts[length], at)
            before = np.diff(np.append(inner, len(starts[length])))
            how_often = np.where(is_begun, how_often, before)
        # <s> behind a first word is padding
        is_there = np.ones(len(at), np.bool_) if length == 1 else grams[at, order - length + 1] != BEGIN
        groups = np.repeat(np.arange(len(at)), np.diff(np.append(at, rows)))
        if length == 1:
            words = np.arange(vocabulary)
            all_counts = np.zeros(vocabulary, np.int64)
            all_counts[first] = how_often
            all_counts[BEGIN] = 0
            tables.append(_Table(np.zeros(vocabulary, np.int64), words, all_counts))
            below = grams[:, order - 1].astype(np.int64)
        else:
            tables.append(_Table(below[at][is_there], first[is_there], how_often[is_there]))
            below = (np.cumsum(is_there) - 1)[groups]
    return tables


def _discounts(counts: Numbers) -> tuple[float, float, float]:
    """Equation 26 of Chen and Goodman."""
    n1, n2, n3, n4 = (int((counts == number).sum()) for number in (1, 2, 3, 4))
    if not (n1 and n2 and n3):
        return FALLBACK
    y = n1 / (n1 + 2 * n2)
    found = (1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
    is_sound = all(0 <= one <= number for number, one in enumerate(found, 1))
    return found if is_sound else FALLBACK


def _sum_by(places: Numbers, values: Numbers, size: int) -> Numbers:
    """np.bincount would add up in floats."""
    sums = np.zeros(size, np.int64)
    np.add.at(sums, places, values)
    return sums


def in_units(values: Floats) -> NDArray[np.int32]:
    return np.rint(values * ONE).astype(np.int32)
