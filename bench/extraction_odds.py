"""Words of classes, ids and texts, and how much oftener they are with what belongs than with what does not.

    labelled pages ─ tally ─> host ─> word ─ how much of what it marks belongs ─> odds in 1/16 of log2

A host has one voice for a word, however many pages it has: a word of one site's template says nothing of
other sites.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.htmlblocks import Blocks
from tokmill.kernels.htmlclasses import mark_words
from tokmill.kernels.htmlcounts import text_words
from tokmill.kernels.htmltree import Tree
from tokmill.kernels.jit import Bytes

_STEPS = 16  # of a binary logarithm: what htmlodds.Odds is in
_LIMIT = 100  # an octet holds it: odds of 76 to 1
_MAX_WORDS = 100  # of a block, where it counts for the classes around it
# Votes for the mean of all words that are added to a word's own. Texts have many more words to be wrong in.
_CLASS_PRIOR, _TEXT_PRIOR = 2.0, 3.0

Votes = dict[int, list[float]]  # by the word's hash: what belongs, and all of it
Values = dict[int, int]  # by the word's hash


class Tally(NamedTuple):
    """Of one host."""

    classes: Votes
    texts: Votes


class WordOdds(NamedTuple):
    classes: Values
    texts: Values


class MinHosts(NamedTuple):
    """How many hosts must have a word."""

    classes: int
    texts: int


def add_page(
    tally: Tally,
    page: tuple[Bytes, Tree, Blocks],
    words: NDArray[np.int64],
    label: NDArray[np.float64],
) -> None:
    """A class has all words of the blocks below its element, a word of the text each block that it is in."""
    data, tree, blocks = page
    size = np.minimum(words, _MAX_WORDS) + 1.0
    there, belongs = np.zeros((2, len(tree.tag) + 1))
    np.add.at(there, blocks.first + 1, size)
    np.add.at(belongs, blocks.first + 1, size * label)
    there, belongs = np.cumsum(there), np.cumsum(belongs)
    hashes, node = mark_words(data, tree)
    whole = there[tree.last[node]] - there[node]
    part = belongs[tree.last[node]] - belongs[node]
    for word, wanted, every in zip(hashes.tolist(), part.tolist(), whole.tolist(), strict=True):
        if every > 0:
            votes = tally.classes.setdefault(word, [0, 0])
            votes[0] += wanted
            votes[1] += every
    hashes, block = text_words(data, tree, blocks)
    order = np.lexsort((block, hashes))
    hashes, block = hashes[order], block[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = (hashes[1:] != hashes[:-1]) | (block[1:] != block[:-1])
    wanted_blocks = label[block[is_first]]
    for word, wanted in zip(hashes[is_first].tolist(), wanted_blocks.tolist(), strict=True):
        votes = tally.texts.setdefault(word, [0, 0])
        votes[0] += wanted
        votes[1] += 1


def learn_odds(hosts: Iterable[Tally], min_hosts: MinHosts) -> WordOdds:
    tallies = list(hosts)
    return WordOdds(
        _odds([host.classes for host in tallies], min_hosts.classes, _CLASS_PRIOR),
        _odds([host.texts for host in tallies], min_hosts.texts, _TEXT_PRIOR),
    )


def _odds(hosts: list[Votes], min_hosts: int, prior: float) -> Values:
    sums: dict[int, float] = {}
    counts: dict[int, int] = {}
    for votes in hosts:
        for word, (part, whole) in votes.items():
            sums[word] = sums.get(word, 0) + part / whole
            counts[word] = counts.get(word, 0) + 1
    mean = sum(sums.values()) / sum(counts.values()) if counts else 0.0
    if not 0 < mean < 1:
        return {}
    odds = {}
    for word, count in counts.items():
        if count >= min_hosts:
            yes, no = sums[word] + prior * mean, count - sums[word] + prior * (1 - mean)
            value = round(_STEPS * (math.log2(yes / no) - math.log2(mean / (1 - mean))))
            if value:
                odds[word] = max(-_LIMIT, min(_LIMIT, value))
    return odds
