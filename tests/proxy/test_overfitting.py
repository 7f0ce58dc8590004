"""`tokmill check --train`: what is in order is learnt by heart, and what is not is not."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")

import tokmill  # noqa: E402
from mill import small_corpus  # noqa: E402
from mill import tokmill as command  # noqa: E402
from tokmill.loader.tiny import lowest_loss  # noqa: E402
from tokmill.proxy.overfitting import overfit  # noqa: E402


def last_loss(tokens: Any, targets: Any, allowed: Any, steps: int = 250) -> float:
    return list(overfit(np.array(tokens), np.array(targets), np.array(allowed), steps=steps))[-1]


def causal(rows: int, length: int) -> np.ndarray:
    return np.broadcast_to(np.tri(length, dtype=bool), (rows, length, length)).copy()


def test_a_batch_is_learnt_by_heart_twice_with_one_curve() -> None:
    ids = np.random.default_rng(1).integers(1000, 1100, (4, 25))
    batch = ids[:, :-1], ids[:, 1:], causal(4, 24)
    losses = list(overfit(*batch, steps=200))
    assert losses[-1] < lowest_loss(*batch) + 0.05
    assert losses[:20] == list(itertools.islice(overfit(*batch, steps=200), 20))


def test_equal_tokens_at_the_beginning_of_a_row_can_be_counted() -> None:
    tokens = [[5, 5, 5, 5, 5, 5]]
    targets = [[5, 5, 5, 5, 5, 7]]
    assert last_loss(tokens, targets, causal(1, 6)) < 0.05


def test_what_depends_on_hidden_tokens_is_not_learnt() -> None:
    """Targets of the second place depend on the first, which the mask hides: a chance of one half, ln 2."""
    tokens, targets = [[1, 3], [2, 3]], [[-100, 4], [-100, 5]]
    hidden = np.broadcast_to(np.eye(2, dtype=bool), (2, 2, 2))
    assert last_loss(tokens, targets, hidden) == pytest.approx(np.log(2), abs=0.01)
    assert last_loss(tokens, targets, causal(2, 2)) < 0.05


def test_check_trains_the_decoder_where_it_is_asked_for(tmp_path: Path) -> None:
    tokmill.run(small_corpus(tmp_path), tmp_path / "out", workers=1)
    build = tmp_path / "out/build/rows"
    checked = tokmill.check(build, train=True)
    assert checked.ok, [one for one in checked.findings if not one.ok]
    told = [one.detail for one in checked.findings if one.check == "overfit"]
    assert len(told) == 2
    assert all(detail.split(" (")[0].endswith("of AdamW by a decoder in PyTorch") for detail in told)
    plain = [one.detail for one in tokmill.check(build).findings if one.check == "overfit"]
    assert not any("PyTorch" in detail for detail in plain)
    too_few = tokmill.check(build, train=True, steps=3)
    assert not too_few.ok
    done = command("check", build, "--train", "--steps", "3")
    assert done.returncode == 1
    assert done.stdout.count("by a decoder in PyTorch") == 2


@pytest.mark.slow_training
def test_the_command_trains_it_too(tmp_path: Path) -> None:
    tokmill.run(small_corpus(tmp_path), tmp_path / "out", workers=1)
    done = command("check", tmp_path / "out/build/rows", "--train")
    assert done.returncode == 0
    assert done.stdout.count("by a decoder in PyTorch") == 2
