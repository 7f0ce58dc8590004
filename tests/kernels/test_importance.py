"""Grams of DSIR against regular expressions and hashlib."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.slow_ngrams import MASK, fnv, mixed
from tokmill.kernels.importance import count_grams, sum_grams, token_spans
from tokmill.schema import string_column

# Python's own pattern is the oracle where both have the same letters: not of marks that combine.
TEXTS = st.lists(
    st.one_of(st.text("aBc_ 9.-'\n\x1c\x00é«» 　、東京–😀", max_size=60), st.text("ab ", max_size=200)),
    max_size=4,
)


def tokens_of(text: str) -> list[str]:
    return [re.sub("[A-Z]", lambda c: c[0].lower(), token) for token in re.findall(r"\w+|[^\w\s]+", text)]


def grams_of(text: str) -> list[tuple[str, ...]]:
    tokens = tokens_of(text)
    return [*((token,) for token in tokens), *itertools.pairwise(tokens)]


def slow_bucket(gram: tuple[str, ...], buckets: int, sha256: bool) -> int:
    if sha256:
        return int(hashlib.sha256(" ".join(gram).encode()).hexdigest(), 16) % buckets
    hashes = [mixed(fnv(token.encode(), 0xCBF29CE484222325)) for token in gram]
    hashed = hashes[0] if len(hashes) == 1 else mixed((hashes[0] * 0x9E3779B97F4A7C15 + hashes[1]) & MASK)
    return (hashed >> 32) * buckets >> 32


@settings(deadline=None, max_examples=200)
@given(TEXTS, st.sampled_from([1, 7, 10_000, 1 << 24]), st.booleans())
def test_counts_and_sums_are_those_of_the_slow_way(texts: list[str], buckets: int, sha256: bool) -> None:
    column = string_column(pa.array(texts, pa.large_string()))
    expected = Counter(slow_bucket(gram, buckets, sha256) for text in texts for gram in grams_of(text))
    counts = count_grams(column.data, column.offsets, buckets, sha256=sha256)
    assert {place: int(counts[place]) for place in np.flatnonzero(counts).tolist()} == expected
    table = (np.arange(min(buckets, 10_000)) * 7919 % 1001 - 500).astype(np.int32)
    found = sum_grams(column.data, column.offsets, table, sha256=sha256)
    for row, text in enumerate(texts):
        own = [slow_bucket(gram, len(table), sha256) for gram in grams_of(text)]
        assert (int(found.sums[row]), int(found.grams[row])) == (sum(int(table[b]) for b in own), len(own))


@given(st.text(max_size=40))
def test_spans_cover_all_that_is_not_a_space(text: str) -> None:
    data = text.encode()
    spans = token_spans(data)
    assert "".join(data[start:stop].decode() for start, stop in spans) == re.sub(r"\s+", "", text)
    assert spans == sorted(spans)


def test_long_grams_and_those_of_every_length_have_their_own_digest() -> None:
    """Padding of SHA-256: 55, 56, 63, 64 and 119 bytes are where it turns."""
    texts = ["x" * size for size in range(130)]
    column = string_column(pa.array(texts, pa.large_string()))
    counts = count_grams(column.data, column.offsets, 1 << 24, sha256=True)
    expected = Counter(slow_bucket((text,), 1 << 24, True) for text in texts[1:])
    assert {place: int(counts[place]) for place in np.flatnonzero(counts).tolist()} == expected
