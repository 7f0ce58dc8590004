"""One step after the other on a device: the same losses and weights twice. On a GPU attention and products
have ways to be quick that are not: the warning of PyTorch that they are taken must be an error."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tokmill.proxy.learning import Learner, can_compile, deterministic  # noqa: E402
from tokmill.proxy.schedule import Schedule  # noqa: E402
from tokmill.proxy.shapes import SIZES  # noqa: E402

DEVICES = ["cpu", *(["cuda", "cuda compiled"] if torch.cuda.is_available() else [])]


def learned(device: str, *, is_compiled: bool) -> tuple[list[float], list[bytes]]:
    rows, length, steps = (4, 64, 4) if device == "cpu" else (64, 512, 30)
    schedule = Schedule(SIZES["0.2M" if device == "cpu" else "8M"], steps, rows, length, 0.002)
    learner = Learner(schedule, seed=3, vocab_size=4096, device=device, is_compiled=is_compiled)
    draw = np.random.Generator(np.random.PCG64(7))
    losses = []
    with deterministic(device):
        for step in range(steps):
            ids = torch.from_numpy(np.minimum(draw.zipf(1.3, (rows, length + 1)), 4095)).to(device)
            loss = learner.learn(step, ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), None, rows * length)
            losses.append(float(loss))
    return losses, [one.detach().float().cpu().numpy().tobytes() for one in learner.model.parameters()]


@pytest.mark.parametrize("where", DEVICES)
def test_losses_and_weights_are_the_same_twice(where: str) -> None:
    device, _, compiled = where.partition(" ")
    if compiled and not can_compile(device):
        pytest.skip("needs Triton")
    first, again = (learned(device, is_compiled=bool(compiled)) for _ in range(2))
    assert first == again
    assert first[0][0] > first[0][-1]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_is_not_the_same_twice_is_refused(device: str) -> None:
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    with deterministic(device):
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
    after = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    assert before == after
