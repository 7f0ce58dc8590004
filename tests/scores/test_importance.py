"""Log-importance weights: counts that add up, logs that are right, and a sample that the theory foretells."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.test_importance import grams_of, slow_bucket
from scores.reviews import column, documents
from tokmill.errors import CorruptFile, InputError
from tokmill.scores.arrayfile import write_arrays
from tokmill.scores.importance import (
    IMPORTANCE,
    Counts,
    Hash,
    ImportanceOptions,
    ImportanceScorer,
    count_texts,
    fit_importance,
    join_counts,
    load_counts,
    load_importance,
    write_counts,
    write_importance,
)

TARGET = [row["text"] for row in documents(60) if row["label"] == 0]
RAW = [row["text"] for row in documents(100)]


def slow_weight(text: str, buckets: int, sha256: bool) -> float:
    shares = []
    for texts in (TARGET, RAW):
        counts = [0] * buckets
        for one in texts:
            for gram in grams_of(one):
                counts[slow_bucket(gram, buckets, sha256)] += 1
        shares.append([count / sum(counts) + 1e-8 for count in counts])
    own = [slow_bucket(gram, buckets, sha256) for gram in grams_of(text)]
    return sum(math.log(shares[0][bucket]) - math.log(shares[1][bucket]) for bucket in own)


@pytest.mark.parametrize("hash", ["fast", "sha256"])
@pytest.mark.parametrize("output", ["sum", "mean"])
def test_weights_are_those_of_the_slow_way_and_pieces_add_up(hash: Hash, output: Any, tmp_path: Path) -> None:
    model = fit_importance(count_texts(column(TARGET), 500, hash), count_texts(column(RAW), 500, hash))
    write_importance(tmp_path / "m", model)
    scorer = IMPORTANCE.open(ImportanceOptions(output=output), [tmp_path / "m"])
    texts = [*RAW[:6], "never seen WORDS", ""]
    scores = scorer.score(column(texts))
    for text, score in zip(texts, scores.tolist(), strict=True):
        slow = slow_weight(text, 500, hash == "sha256")
        divisor = max(len(grams_of(text)), 1) if output == "mean" else 1
        assert score == pytest.approx(slow / divisor, abs=1e-5)
        pieces = scorer.explain(text)
        assert sum(piece.contribution for piece in pieces) == pytest.approx(score, abs=1e-9)
        assert {piece.piece for piece in pieces} <= {" ".join(gram) for gram in grams_of(text)}


@settings(deadline=None, max_examples=20)
@given(st.permutations(range(len(RAW))), st.lists(st.integers(0, len(RAW)), max_size=3))
def test_shards_and_their_order_do_not_change_the_counts(order: list[int], cuts: list[int]) -> None:
    bounds = [0, *sorted(cuts), len(RAW)]
    parts = [column([RAW[k] for k in order[low:high]]) for low, high in itertools.pairwise(bounds)]
    joined = join_counts([count_texts(part, 100) for part in parts])
    whole = count_texts(column(RAW), 100)
    assert (joined.counts.tolist(), joined.texts) == (whole.counts.tolist(), whole.texts)


def test_the_model_file_is_the_same_on_every_machine(tmp_path: Path) -> None:
    model = fit_importance(count_texts(column(TARGET)), count_texts(column(RAW)))
    assert write_importance(tmp_path / "m", model).sha256 == GOLDEN
    again = load_importance(tmp_path / "m")
    assert again.sha256 == GOLDEN
    assert ImportanceScorer(again, ImportanceOptions()).score(column(RAW))[:2].tolist() == (
        ImportanceScorer(model, ImportanceOptions()).score(column(RAW))[:2].tolist()
    )


# --- bad input ---


def test_an_empty_target_is_told() -> None:
    with pytest.raises(InputError, match=r"no words in the target texts \(1 of them\)"):
        fit_importance(count_texts(column([" "])), count_texts(column(RAW)))


def test_counts_are_read_back_and_two_kinds_of_buckets_do_not_mix(tmp_path: Path) -> None:
    counts = count_texts(column(RAW), 50, "sha256")
    write_counts(tmp_path / "c", counts)
    again = load_counts(tmp_path / "c")
    assert (again.counts.tolist(), again.texts, again.hash) == (counts.counts.tolist(), len(RAW), "sha256")
    with pytest.raises(ValueError, match="different buckets"):
        fit_importance(counts, count_texts(column(RAW), 50))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"logs": np.zeros(3, np.int32)}, "not those of its counts"),
        ({"logs": np.full(3, np.nan)}, "has arrays"),
        ({"target": np.array([1, 2])}, "different sizes"),
        ({"target": np.array([-1, 2, 3])}, "out of bounds"),
        ({"raw": np.array([0, 0, 0])}, "not those of its counts"),
        ({"texts": [1]}, "different sizes"),
        ({"hash": "md5"}, "md5"),
    ],
)
def test_a_model_that_does_not_hold_together_is_told(
    tmp_path: Path, change: dict[str, Any], why: str
) -> None:
    target, raw = np.array([1, 2, 3]), np.array([3, 2, 1])
    facts: dict[str, Any] = {"texts": [1, 1], "hash": "fast"}
    logs = fit_importance(Counts(target, 1, "fast"), Counts(raw, 1, "fast")).logs
    arrays: dict[str, Any] = {"target": target, "raw": raw, "logs": logs}
    write_arrays(tmp_path / "whole", "importance", facts, arrays)
    assert load_importance(tmp_path / "whole").raw.texts == 1
    for key, value in change.items():
        (arrays if key in arrays else facts)[key] = value
    write_arrays(tmp_path / "m", "importance", facts, arrays)
    with pytest.raises(CorruptFile, match=why):
        load_importance(tmp_path / "m")


GOLDEN = "3f006d145ff507fb90a1eb334349c12a42dbd5adc32d82ef7a9d725fe84e2291"
