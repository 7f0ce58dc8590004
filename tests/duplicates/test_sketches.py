"""Sketches against Python sets: the estimate is right on average, its error is the one that is told, and
bands find the share of similar texts that they were chosen for."""

from __future__ import annotations

import math
import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plain.near import jaccard
from tokmill.duplicates.sketches import (
    MIN_FOUND,
    POSITIONS,
    choose_few_bands,
    estimate_similarity,
    sketch,
    sketch_options,
    standard_error,
)

OPTIONS = sketch_options(Decimal("0.8"), "word", 5)


def texts_of_similarity(wanted: float, count: int, seed: int) -> list[tuple[str, str]]:
    """Pairs that share their first words and then go apart: of n-grams in common there are as many as wanted,
    more or less."""
    draw = random.Random(seed)
    pairs = []
    for _ in range(count):
        words = draw.randint(600, 1400)
        common = round(words * 2 * wanted / (1 + wanted))
        same = [f"w{draw.randrange(10**6)}" for _ in range(common)]
        ends = [[f"w{draw.randrange(10**6)}" for _ in range(words - common)] for _ in range(2)]
        pairs.append((" ".join(same + ends[0]), " ".join(same + ends[1])))
    return pairs


@pytest.mark.parametrize("wanted", [0.3, 0.6, 0.8, 0.95])
def test_an_estimate_is_right_on_average_and_as_uncertain_as_is_told(wanted: float) -> None:
    pairs = texts_of_similarity(wanted, 300, seed=int(wanted * 100))
    exact = np.array([jaccard(one, other, 5) for one, other in pairs])
    left, right = (sketch(pa.array(side, pa.large_string()), OPTIONS) for side in zip(*pairs, strict=True))
    each = np.arange(len(pairs))
    off = estimate_similarity(left.bits, each, right.bits, each) - exact
    error = standard_error(float(exact.mean()))
    assert abs(off.mean()) < 4 * error / math.sqrt(len(pairs))
    assert 0.85 * error < off.std() < 1.15 * error


@pytest.mark.parametrize(
    "threshold", ["0.1", "0.2", "0.3", "0.31", "0.5", "0.6", "0.7", "0.75", "0.8", "0.85", "0.9", "0.95", "1"]
)
def test_bands_find_what_they_were_chosen_for(threshold: str) -> None:
    bands, rows = choose_few_bands(float(threshold))
    assert bands * rows <= POSITIONS
    assert 1 - (1 - float(threshold) ** rows) ** bands >= MIN_FOUND
    options = sketch_options(Decimal(threshold), "word", 5)
    pairs = texts_of_similarity(float(threshold), 200, seed=5)
    left, right = (sketch(pa.array(side, pa.large_string()), options) for side in zip(*pairs, strict=True))
    found = (left.keys == right.keys).any(axis=1).mean()
    assert found > MIN_FOUND - 4 * math.sqrt(MIN_FOUND * (1 - MIN_FOUND) / len(pairs))


words = st.lists(
    st.sampled_from(["mill", "MILL", "7", "８", "straße", "水", "cafe\u0301", "—", "\n"]), max_size=40
)


@given(words)
@settings(max_examples=60, deadline=None)
def test_a_text_is_its_own_and_one_without_words_is_nobodys(parts: list[str]) -> None:
    text = " ".join(parts)
    made = sketch(
        pa.array([text, f"{text} ", "unlike it in every word that there is"], pa.large_string()), OPTIONS
    )
    assert (made.bits[0] == made.bits[1]).all()
    has_words = any(part not in ("—", "\n") for part in parts)
    assert (made.keys[0] != 0).all() == has_words
    assert (made.keys[0] == made.keys[1]).all()


def test_digits_count_as_they_are_written() -> None:
    """A form letter with other figures is another text, as in an exact comparison."""
    form = (
        "on day {} of month {} the sum of {} was paid to account {} by order of {} and booked as {} that day "
    )
    draw = random.Random(3)
    one, other = (
        "".join(form.format(*(draw.randrange(99) for _ in range(6))) for _ in range(20)) for _ in "ab"
    )
    made = sketch(pa.array([one, other], pa.large_string()), OPTIONS)
    estimated = float(estimate_similarity(made.bits, np.array([0]), made.bits, np.array([1]))[0])
    assert abs(estimated - jaccard(one, other, 5)) < 0.2
    assert estimated < 0.6
