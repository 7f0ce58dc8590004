"""The decoder gives what its definition says, computed another way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from proxy.numpy_decoder import log_chances  # noqa: E402
from tokmill.proxy.model import Decoder  # noqa: E402
from tokmill.proxy.shapes import SIZES, Shape  # noqa: E402
from tokmill.proxy.vocabulary import loss_and_gradients, loss_to_compile, nats_of_each, total_nats  # noqa: E402
from tokmill.proxy.widths import draw_weights  # noqa: E402

SMALL = Shape(64, 2, 32)


def made(shape: Shape = SMALL, vocab_size: int = 50, seed: int = 1, *, is_tied: bool = True) -> Decoder:
    model = Decoder(shape, vocab_size, 32, is_tied=is_tied)
    draw_weights(model, seed)
    with torch.no_grad():  # gains of 1 would hide that they are left out
        for name, weight in model.named_parameters():
            if name.endswith("gain"):
                weight.add_(torch.linspace(-0.3, 0.3, len(weight)))
    return model


def weights_of(model: Decoder) -> dict[str, np.ndarray]:
    return {name: weight.detach().numpy() for name, weight in model.named_parameters()}


def nats(model: Decoder, tokens: list[int], targets: list[int], allowed: object = None) -> np.ndarray:
    with torch.no_grad():
        places = model(torch.tensor([tokens]), allowed)
        return nats_of_each(places, model.head_weights, torch.tensor([targets]), model.scale)[0].numpy()


@pytest.mark.parametrize("is_tied", [True, False])
def test_every_chance_is_that_of_an_independent_forward_pass(is_tied: bool) -> None:
    model = made(is_tied=is_tied)
    ids = np.random.default_rng(3).integers(0, 50, 20).tolist()
    slow = log_chances(weights_of(model), 32, ids[:-1])
    expected = [-slow[at, target] for at, target in enumerate(ids[1:])]
    np.testing.assert_allclose(nats(model, ids[:-1], ids[1:]), expected, rtol=2e-5, atol=2e-5)


def test_with_a_mask_of_documents_a_place_sees_only_its_own() -> None:
    model = made()
    ids = np.random.default_rng(4).integers(0, 50, 17).tolist()
    starts = [0, 5, 11]
    document = np.searchsorted(starts, np.arange(16), side="right")
    allowed = (document[:, None] == document[None, :]) & np.tri(16, dtype=bool)
    slow = log_chances(weights_of(model), 32, ids[:-1], starts)
    expected = [-slow[at, target] for at, target in enumerate(ids[1:])]
    found = nats(model, ids[:-1], ids[1:], torch.from_numpy(allowed)[None])
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def test_no_place_sees_what_comes_later() -> None:
    model = made()
    ids = np.random.default_rng(5).integers(0, 50, 16).tolist()
    before = nats(model, ids, ids)
    ids[10] = (ids[10] + 1) % 50
    after = nats(model, ids, [*ids[:10], (ids[10] - 1) % 50, *ids[11:]])
    np.testing.assert_array_equal(before[:10], after[:10])
    assert (before[10:] != after[10:]).all()


@pytest.mark.parametrize("act", [loss_and_gradients, loss_to_compile])
def test_the_loss_in_chunks_has_the_value_and_the_gradients_of_the_plain_one(
    act: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tokmill.proxy.vocabulary._LOGITS", {"cpu": 7 * 40}
    )  # several, and the last one shorter
    draw = torch.Generator().manual_seed(2)
    places = torch.randn(3, 8, 16, generator=draw, requires_grad=True)
    head = torch.randn(40, 16, generator=draw, requires_grad=True)
    targets = torch.randint(0, 40, (3, 8), generator=draw)
    targets[1, 2:5] = -100
    ours = total_nats(places, head, targets, 0.7, torch.float32, act)
    (ours / 5).backward()
    got = places.grad.clone(), head.grad.clone()
    places.grad = head.grad = None
    logits = (places @ head.T * 0.7).reshape(-1, 40)
    plain = torch.nn.functional.cross_entropy(logits, targets.reshape(-1), ignore_index=-100, reduction="sum")
    (plain / 5).backward()
    torch.testing.assert_close(ours, plain)
    torch.testing.assert_close(got[0], places.grad)
    torch.testing.assert_close(got[1], head.grad)


@pytest.mark.parametrize("size", SIZES)
def test_sizes_have_the_weights_that_their_names_say(size: str) -> None:
    shape = SIZES[size]
    model = Decoder(shape, 10, 8)
    counted = sum(weight.numel() for weight in model.parameters()) - 10 * shape.width
    assert counted == shape.weights()
    assert counted == pytest.approx(float(size[:-1]) * 1e6, rel=0.15)


def test_a_seed_begins_two_vocabularies_with_the_same_hidden_matrices() -> None:
    one, other, else_ = made(vocab_size=50), made(vocab_size=70), made(vocab_size=50, seed=2)
    torch.testing.assert_close(one.blocks[1].qkv.weight, other.blocks[1].qkv.weight, rtol=0, atol=0)
    assert not torch.equal(one.blocks[1].qkv.weight, else_.blocks[1].qkv.weight)
    assert not torch.equal(one.blocks[0].qkv.weight, one.blocks[1].qkv.weight)
