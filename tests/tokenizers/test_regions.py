"""Marked conversations become parts, ids and a mask: against the slow, obvious way."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.tokenizers.load import load_tokenizer
from tokmill.tokenizers.regions import encode_marked, marked_boundaries, strip_marks, without_marks

TEMPLATE, CONTENT, ANSWER, ENDING, GENERATED = map(chr, range(0xFDD0, 0xFDD5))
CONTROLS = {"<|a|>": 1000, "<|b|>": 1001}


def slow(tokenizer, text: str) -> tuple[list[int], list[int], int]:
    """Character by character: state and loss; then parts where either asks for a cut."""
    regions = re.split("([\ufdd0-\ufdd4])", text)
    states = [(TEMPLATE if len(regions) > 1 else ANSWER, regions[0])]
    states += list(zip(regions[1::2], regions[2::2], strict=True))
    atoms: list[tuple[str, int | None, int]] = []  # text, control, loss
    for number, (state, body) in enumerate(states):
        following = states[number + 1][0] if number + 1 < len(states) else ""
        pieces = re.split(r"(<\|a\|>|<\|b\|>)", body) if state in (TEMPLATE, ENDING, GENERATED) else [body]
        ends = state == ENDING and len(pieces) > 1
        loss = int(state in (ANSWER, GENERATED) or ends or (state == ENDING and following == ANSWER))
        for place, piece in enumerate(pieces):
            control = CONTROLS[piece] if place % 2 else None
            if piece:
                atoms.append((piece, control, loss))
            if control is not None and ends:
                loss = 0
    ids: list[int] = []
    mask: list[int] = []
    at = 0
    while at < len(atoms):
        whole, control, loss = atoms[at]
        at += 1
        while control is None and at < len(atoms) and atoms[at][1:] == (None, loss):
            whole += atoms[at][0]
            at += 1
        own = [control] if control is not None else tokenizer.encode([whole]).ids.tolist()
        ids += own
        mask += [loss] * len(own)
    said = [state for state, _ in states if state in (CONTENT, ANSWER, GENERATED)]
    return ids, mask, int(bool(said) and said[-1] != CONTENT)


@pytest.fixture(scope="session")
def tokenizer(tiny_files):
    return load_tokenizer(tiny_files / "tokenizer.json")


PIECES = ["<|a|>", "<|b|>", "<|", " the cat", "é", "\n", "x", TEMPLATE, CONTENT, ANSWER, ENDING, GENERATED]


@given(texts=st.lists(st.lists(st.sampled_from(PIECES), max_size=14).map("".join), max_size=5))
@settings(deadline=None, max_examples=300)
def test_controls_are_those_of_the_template_and_the_mask_is_that_of_the_regions(tokenizer, texts):
    column = pa.array(["left out" + ANSWER, *texts], pa.large_string()).slice(1)
    expected = [slow(tokenizer, text) for text in texts]
    for by in (tokenizer.encode_column, lambda some: tokenizer.encode(some.to_pylist())):
        found = encode_marked(column, by, CONTROLS)
        assert found.lengths.tolist() == [len(ids) for ids, _, _ in expected]
        assert found.ids.tolist() == [id for ids, _, _ in expected for id in ids]
        assert found.loss.tolist() == [one for _, mask, _ in expected for one in mask]
        assert found.end_loss.tolist() == [end for _, _, end in expected]
        assert found.text_bytes.tolist() == [len(without_marks(text).encode()) for text in texts]
    assert strip_marks(column).to_pylist() == [without_marks(text) for text in texts]


@given(text=st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
@settings(deadline=None, max_examples=100)
def test_the_boundaries_of_a_conversation_are_those_of_its_ids(tokenizer, text):
    found = marked_boundaries(tokenizer, text, CONTROLS)
    assert found.ids.tolist() == slow(tokenizer, text)[0]
    shown = without_marks(text).encode()
    assert len(found.bounds) == len(found.ids) + 1
    for id, begin, end in zip(found.ids.tolist(), found.bounds[:-1], found.bounds[1:], strict=True):
        if id in CONTROLS.values():
            assert CONTROLS[shown[begin:end].decode()] == id


def test_an_answer_begins_without_the_blank_that_a_model_puts_before_texts(tiny_files):
    tokenizer = load_tokenizer(tiny_files / "spm.model")
    text = pa.array([f"{TEMPLATE}<|a|>the\n{ANSWER}the cat{ENDING}<|b|>"], pa.large_string())
    found = encode_marked(text, tokenizer.encode_column, CONTROLS)
    whole = tokenizer.encode(["the\nthe cat"]).ids.tolist()
    assert found.ids.tolist() == [1000, *whole, 1001]
    assert found.loss.tolist()[-1] == 1
    assert found.loss.tolist()[0] == 0
