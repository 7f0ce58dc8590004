"""Curves are the same twice, killed or not; weights of every width learn alike."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")

import tokmill  # noqa: E402
from mill import small_corpus  # noqa: E402
from tokmill.errors import CorruptFile, InputError  # noqa: E402
from tokmill.loader.dataset import Dataset, open_dataset  # noqa: E402
from tokmill.proxy.model import Decoder  # noqa: E402
from tokmill.proxy.shapes import Shape  # noqa: E402
from tokmill.proxy.training import Schedule, Trained, Trainer  # noqa: E402
from tokmill.proxy.widths import draw_weights, groups_of  # noqa: E402

TINY = Shape(32, 2, 16)
TWELVE = Schedule(TINY, 12, 4, 64, 8e-3)


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("build")
    layouts: Any = [
        {"name": "rows", "format": "memmap"},
        {"name": "fitted", "format": "memmap", "pack": {"layout": "best_fit", "length": 512}},
        {"name": "mega", "format": "megatron"},
    ]
    tokmill.run(small_corpus(directory, problems=150, builds=layouts), directory / "out", workers=1)
    return directory / "out/build"


def trained(dataset: Dataset, schedule: Schedule = TWELVE, seed: int = 1, **run: Any) -> Trained:
    trainer = Trainer(dataset, schedule, seed=seed, vocab_size=dataset.facts.vocab_size or 300)
    return trainer.run(**run)


def test_two_runs_have_one_curve_and_another_seed_has_another(build: Path) -> None:
    dataset = open_dataset(build / "rows")
    first, second, other = trained(dataset), trained(dataset), trained(dataset, seed=2)
    assert first.losses == second.losses
    for name, weight in first.model.named_parameters():
        assert torch.equal(weight, second.model.get_parameter(name)), name
    assert len(first.losses) == 12
    assert first.losses != other.losses
    assert first.losses[-1] < first.losses[0] - 1
    assert first.epochs == pytest.approx(48 / len(dataset))


def test_a_training_that_was_killed_goes_on_with_the_same_curve(build: Path, tmp_path: Path) -> None:
    """By SIGKILL, in the middle of whatever it did; epochs end on the way."""
    schedule = Schedule(TINY, 60, 64, 64, 8e-3)
    whole = trained(open_dataset(build / "rows"), schedule)
    assert whole.epochs > 2
    checkpoint = tmp_path / "checkpoint"
    code = f"""
import sys, torch
torch.set_num_threads(1)
from pathlib import Path
from tokmill.loader.dataset import open_dataset
from tokmill.proxy.shapes import Shape
from tokmill.proxy.training import Schedule, Trainer
data = open_dataset({str(build / "rows")!r})
schedule = Schedule(Shape(32, 2, 16), 60, 64, 64, 8e-3)
trainer = Trainer(data, schedule, seed=1, vocab_size=data.facts.vocab_size)
def on_step(done, total):
    print(done, flush=True)
trainer.run(Path({str(checkpoint)!r}), every_seconds=0, on_step=on_step)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= 25:
            break
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.stdout.close()
    before = checkpoint.read_bytes()
    resumed = trained(open_dataset(build / "rows"), schedule, checkpoint=checkpoint)
    assert resumed.losses == whole.losses
    assert (resumed.tokens, resumed.learned) == (whole.tokens, whole.learned)
    for name, weight in whole.model.named_parameters():
        assert torch.equal(weight, resumed.model.get_parameter(name)), name
    assert before == checkpoint.read_bytes()  # it took less than the minute after which the next is written


def test_a_checkpoint_of_another_training_is_refused(build: Path, tmp_path: Path) -> None:
    dataset = open_dataset(build / "rows")
    trained(dataset, checkpoint=tmp_path / "a", every_seconds=0)
    with pytest.raises(CorruptFile, match="another training"):
        trained(dataset, Schedule(TINY, 13, 4, 64, 8e-3), checkpoint=tmp_path / "a")
    with pytest.raises(InputError, match="another order"):
        trained(dataset, seed=2, checkpoint=tmp_path / "a")


def test_rows_are_cut_into_pieces_without_losing_a_target(build: Path) -> None:
    dataset = open_dataset(build / "rows")
    whole, pieces = trained(dataset), trained(dataset, Schedule(TINY, 12, 4, 16, 8e-3))
    assert whole.tokens == pieces.tokens == 12 * 4 * 64
    assert whole.learned == pieces.learned == 12 * 4 * 63  # the last token of a row has none after it
    assert whole.losses != pieces.losses


def test_packed_rows_are_trained_with_masks_of_documents(build: Path) -> None:
    dataset = open_dataset(build / "fitted")
    masked = trained(dataset, Schedule(TINY, 12, 4, 512, 8e-3, mask="documents"))
    assert masked.losses[0] != trained(dataset, Schedule(TINY, 12, 4, 512, 8e-3)).losses[0]
    assert masked.losses[-1] < masked.losses[0] - 1
    in_pieces = trained(dataset, Schedule(TINY, 12, 4, 256, 8e-3, mask="documents"))
    assert in_pieces.tokens == masked.tokens


def test_documents_without_rows_are_cut_at_the_length(build: Path) -> None:
    done = trained(open_dataset(build / "mega"))
    assert done.losses[-1] < done.losses[0] - 1


def test_a_rate_that_is_too_high_is_told(build: Path) -> None:
    with pytest.raises(InputError, match="not a number from step"):
        trained(open_dataset(build / "rows"), Schedule(TINY, 12, 4, 64, float("inf")))


def test_the_rate_warms_up_and_comes_down() -> None:
    rates = [Schedule(TINY, 100, 1, 8, 1.0).rate_at(step) for step in range(100)]
    assert rates[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[-1] == pytest.approx(0.05, abs=0.001)


def moved(width: int, *, is_scaled: bool) -> float:
    """How far the logits of one batch move in three steps of AdamW, in the mean."""
    shape = Shape(width, 2, 16)
    model = Decoder(shape, 64, 16)
    draw_weights(model, 5)
    names = dict(model.named_parameters())
    groups = groups_of(list(names), shape)
    if is_scaled:
        chosen = [
            {"params": [names[name] for name in group.names], "lr": 0.01 * group.rate} for group in groups
        ]
    else:
        chosen = [{"params": list(names.values()), "lr": 0.01}]
    optimizer = torch.optim.AdamW(chosen, weight_decay=0)
    tokens = torch.randint(0, 64, (8, 17), generator=torch.Generator().manual_seed(1))
    scale = model.scale if is_scaled else 1.0

    def logits() -> Any:
        return model(tokens[:, :-1]) @ model.head_weights.T * scale

    with torch.no_grad():
        before = logits()
    for _ in range(3):
        loss = torch.nn.functional.cross_entropy(logits().reshape(-1, 64), tokens[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return float((logits() - before).abs().mean())


def test_logits_move_as_far_at_every_width() -> None:
    """The check of coordinates of Tensor Programs V: without the scaling they move farther and farther."""
    scaled = [moved(width, is_scaled=True) for width in (64, 128, 256, 512)]
    plain = [moved(width, is_scaled=False) for width in (64, 128, 256, 512)]
    assert max(scaled) / min(scaled) < 2, scaled
    assert plain[-1] / plain[0] > 3, plain
    assert np.all(np.diff(plain) > 0)
