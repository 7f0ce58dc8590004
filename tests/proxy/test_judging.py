"""Bits per byte and answers, against a second implementation of model, windows and sums."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="the extra `torch` is not installed")

import tokmill  # noqa: E402
from mill import small_corpus  # noqa: E402
from proxy.numpy_decoder import log_chances  # noqa: E402
from tokmill.errors import InputError  # noqa: E402
from tokmill.proxy.choices import answer_items, choice_nats  # noqa: E402
from tokmill.proxy.held_out import Texts  # noqa: E402
from tokmill.proxy.items import Item, load_items  # noqa: E402
from tokmill.proxy.judging import bits_per_byte, windows_of  # noqa: E402
from tokmill.proxy.model import Decoder  # noqa: E402
from tokmill.proxy.shapes import Shape  # noqa: E402
from tokmill.proxy.widths import draw_weights  # noqa: E402
from tokmill.tokenizers.load import load_tokenizer  # noqa: E402
from tokmill.tokenizers.protocol import Tokenizer  # noqa: E402

LENGTH = 12


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    directory = tmp_path_factory.mktemp("tokenizer")
    tokmill.run(small_corpus(directory, problems=30), directory / "out", workers=1, until="tokenizer")
    return load_tokenizer(directory / "out/tokenizer/tokenizer.json")


@pytest.fixture(scope="module")
def model() -> Decoder:
    made = Decoder(Shape(32, 2, 16), 300, LENGTH)
    draw_weights(made, 3)
    with torch.no_grad():  # far from the first weights, which find all tokens alike
        for name, weight in made.named_parameters():
            weight.mul_(3 if name == "embedding" else 1.5)
    return made


def slow_bits(model: Decoder, tokenizer: Tokenizer, text: str, context_id: int) -> float:
    """Token by token: each from the windows that the docstring draws, by the decoder of NumPy."""
    weights = {name: weight.detach().numpy() for name, weight in model.named_parameters()}
    ids = [context_id, *tokenizer.encode([text]).ids.tolist()]
    bits = 0.0
    for target in range(1, len(ids)):
        start = 0
        while target > start + LENGTH:  # not in this window: the next one
            start += LENGTH // 2
        chances = log_chances(weights, 16, ids[start:target])
        bits -= chances[-1, ids[target]] / math.log(2)
    return bits


TEXTS = (
    "Problem: 2 + 2?\n\nSolution: 4",
    "ça, 水",
    "The mill stands by the river, and it turns all day long.",
)


def test_bits_per_byte_are_those_of_an_independent_computation(model: Decoder, tokenizer: Tokenizer) -> None:
    slow = sum(slow_bits(model, tokenizer, text, 0) for text in TEXTS)
    size = sum(len(text.encode("utf-8")) for text in TEXTS)
    found = bits_per_byte(model, Texts("all", TEXTS, 3), tokenizer, {}, 0, "cpu")
    assert found == pytest.approx(slow / size, rel=1e-5)
    longest = tokenizer.encode([TEXTS[2]]).lengths[0]
    assert longest > 2 * LENGTH  # or there was one window only


def test_a_first_token_without_context_costs_a_guess(model: Decoder, tokenizer: Tokenizer) -> None:
    one = Texts("one", ("a",), 1)
    assert tokenizer.encode(["a"]).lengths.tolist() == [1]
    assert bits_per_byte(model, one, tokenizer, {}, None, "cpu") == pytest.approx(math.log2(300))


@settings(deadline=None)
@given(st.lists(st.integers(0, 60), max_size=6), st.integers(1, 12))
def test_windows_judge_every_token_once_with_half_a_length_before_it(lengths: list[int], length: int) -> None:
    seen: dict[tuple[int, int], int] = {}
    for window in windows_of(lengths, length):
        assert window.end - window.start <= length
        for target in range(window.judged, window.end + 1):
            key = window.sequence, target
            assert key not in seen
            seen[key] = target - window.start
    assert set(seen) == {(s, t) for s, count in enumerate(lengths) for t in range(1, count)}
    assert all(context >= min(target, length // 2) for (_, target), context in seen.items())


def write_items(path: Path, *items: object) -> Path:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return path


def test_choices_are_scored_by_their_own_tokens(model: Decoder, tokenizer: Tokenizer, tmp_path: Path) -> None:
    asked = [
        {"prompt": "Tom has", "choices": [" 3", " four apples", " x"], "answer": 1},
        {"prompt": "2+2=", "choices": ["4", "22"], "answer": "22"},
    ]
    items = load_items(write_items(tmp_path / "items.jsonl", *asked))
    found = answer_items(model, items, tokenizer, {}, 0, "cpu")
    right = by_bytes = bits = size = 0.0
    for item in asked:
        choices: list[str] = item["choices"]  # type: ignore[assignment]
        own = [
            slow_bits(model, tokenizer, str(item["prompt"]) + choice, 0)
            - slow_bits(model, tokenizer, str(item["prompt"]), 0)
            for choice in choices
        ]
        answer = (
            choices.index(item["answer"]) if isinstance(item["answer"], str) else int(str(item["answer"]))
        )
        right += int(np.argmin(own)) == answer
        by_bytes += int(np.argmin([one / len(c) for one, c in zip(own, choices, strict=True)])) == answer
        bits += own[answer]
        size += len(choices[answer])
    assert found["accuracy"] == right / 2
    assert found["accuracy_by_bytes"] == by_bytes / 2
    assert found["answer_bits_per_byte"] == pytest.approx(bits / size, rel=1e-4)


def test_a_choice_with_nothing_before_it_costs_a_guess_and_what_its_tokens_cost(
    model: Decoder, tokenizer: Tokenizer
) -> None:
    """Of an empty prompt, and of one whose end and the choice's beginning are one token."""
    merged = next(
        text for text in ("th", "he", "in", " t", "er") if len(tokenizer.encode([text]).ids.tolist()) == 1
    )
    items = [
        Item("", ("a", "a mill"), 0),
        Item(merged[0], (merged[1], f"{merged[1]} mill"), 0),
        Item("a", (" mill", " river"), 0),
    ]
    found = choice_nats(model, items, tokenizer, {}, None, "cpu")
    slow = []
    for item in items[:2]:  # all tokens are the choice's: what the document costs
        texts = [item.prompt + choice for choice in item.choices]
        slow.append([slow_bits_alone(model, tokenizer, text) * math.log(2) for text in texts])
    for own, expected in zip(found, slow, strict=False):
        assert own == pytest.approx(expected, rel=1e-5)
    assert found[0][0] == found[1][0] == pytest.approx(math.log(300))
    prompt = slow_bits_alone(model, tokenizer, "a")
    texts = ["a mill", "a river"]
    whole = [slow_bits_alone(model, tokenizer, text) for text in texts]
    (own,) = tokenizer.encode(["a"]).ids.tolist()
    assert all(
        tokenizer.encode([text]).ids.tolist()[0] == own for text in texts
    )  # a token of the prompt alone
    assert found[2] == pytest.approx([(one - prompt) * math.log(2) for one in whole], rel=1e-4)


def slow_bits_alone(model: Decoder, tokenizer: Tokenizer, text: str) -> float:
    """After nothing: the first token is a guess, and stands before the others."""
    first, *rest = tokenizer.encode([text]).ids.tolist()
    weights = {name: weight.detach().numpy() for name, weight in model.named_parameters()}
    bits, ids = math.log2(300), [first, *rest]
    assert len(ids) <= LENGTH + 1, "one window"
    for target in range(1, len(ids)):
        bits -= log_chances(weights, 16, ids[:target])[-1, ids[target]] / math.log(2)
    return bits


@pytest.mark.parametrize(
    ("item", "told"),
    [
        ({"prompt": "a", "choices": ["b", "c"], "answer": 2}, "number 2, and it has 2 choices"),
        ({"prompt": "a", "choices": ["b", "c"], "answer": -1}, "number -1"),
        ({"prompt": "a", "choices": ["b", "c"], "answer": "d"}, "'d' is none of its choices"),
        ({"prompt": "a", "choices": ["b"], "answer": 0}, "fewer than two choices"),
        ({"prompt": "a", "choices": ["b", ""], "answer": 0}, "an empty one"),
        ({"prompt": "a", "choices": ["b", "b"], "answer": 0}, "the same choice twice"),
        ({"question": "a", "choices": ["b", "c"], "answer": 0}, "is no item"),
        ("words", "is no item"),
    ],
)
def test_an_item_that_lies_is_told_with_its_line(item: object, told: str, tmp_path: Path) -> None:
    path = write_items(tmp_path / "i.jsonl", {"prompt": "a", "choices": ["b", "c"], "answer": 0}, item)
    with pytest.raises(InputError, match=told) as error:
        load_items(path)
    assert error.value.where.endswith("i.jsonl line 2")
    assert error.value.next


def test_a_file_without_items_is_told(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("\n")
    with pytest.raises(InputError, match="has no items"):
        load_items(tmp_path / "none.jsonl")
