"""The small model: its gradients are those of its loss, and it learns what can be learnt and nothing else."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import numpy as np
import pytest

from loader.builds import documents, write_split
from tokmill.loader import collate
from tokmill.loader.tiny import TinyModel, lowest_loss, overfit

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def batch_of(rows: int, width: int, ids: int = 40):
    draw = np.random.default_rng(1)
    return collate(draw.integers(3, ids, (rows, width)).tolist(), 0, mask="causal")


def test_gradients_are_those_of_the_loss():
    batch = batch_of(2, 6)
    model = TinyModel(40, 6, width=8)
    model.weights = {name: weight.astype(np.float64) for name, weight in model.weights.items()}
    arrays = batch["tokens"], batch["targets"], batch["attn_mask"]
    _, grads = model.loss(*arrays)
    draw = np.random.default_rng(2)
    for name, weight in model.weights.items():
        for _ in range(4):
            place = tuple(int(draw.integers(0, size)) for size in weight.shape)
            if name == "embed":
                place = (int(batch["tokens"][0, 2]), place[1])
            kept, slopes = weight[place], []
            for step in (1e-5, -1e-5):
                weight[place] = kept + step
                slopes.append(model.loss(*arrays)[0])
            weight[place] = kept
            assert grads[name][place] == pytest.approx((slopes[0] - slopes[1]) / 2e-5, abs=1e-6), name


def test_the_model_sees_what_the_mask_allows_and_nothing_else():
    batch = batch_of(1, 6)
    model = TinyModel(40, 6, width=8)
    before = model.logits(batch["tokens"], batch["attn_mask"])
    for moved in range(6):
        tokens = batch["tokens"].copy()
        tokens[0, moved] += 1
        after = model.logits(tokens, batch["attn_mask"])
        noticed = (before != after).any(axis=-1)[0]
        assert noticed.tolist() == [place >= moved for place in range(6)]


def test_one_batch_is_overfit():
    batch = batch_of(4, 16)
    losses = list(overfit(batch["tokens"], batch["targets"], batch["attn_mask"], steps=200, width=48))
    assert losses[0] > 2
    assert losses[-1] < 0.05


def test_what_cannot_be_known_is_not_learnt():
    batch = collate([[5, 6, 7], [5, 8, 7]], 0, mask="causal")
    arrays = batch["tokens"], batch["targets"], batch["attn_mask"]
    # after 5 come 6 and 8, equally often: ln 2 for two of four targets
    assert lowest_loss(*arrays) == pytest.approx(np.log(2) / 2)
    final = list(overfit(*arrays, steps=400, width=16))[-1]
    assert final == pytest.approx(np.log(2) / 2, abs=0.02)


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    docs = documents(120, longest=70)
    for split, part in (("train", docs[:96]), ("valid", docs[96:108]), ("test", docs[108:])):
        write_split(tmp_path / "mini" / split, "token_cache", part, part_tokens=5000)
    monkeypatch.setattr(sys, "argv", ["mini.py", str(tmp_path / "mini")])
    runpy.run_path(str(EXAMPLES / "mini.py"), run_name="__main__")
    assert capsys.readouterr().out.split("\n")[0] == "96 12 12 (8, 64) (12, 64)"
    monkeypatch.setattr(sys, "argv", ["overfit.py", str(tmp_path / "mini")])
    runpy.run_path(str(EXAMPLES / "overfit.py"), run_name="__main__")
    assert "step  300" in capsys.readouterr().out
