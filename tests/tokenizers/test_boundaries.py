"""Bounds of tokens: without a gap, of the ids that the tokenizer gives, whatever the text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokmill.tokenizers.fast import encode_with_controls
from tokmill.tokenizers.load import load_tokenizer
from tokmill.tokenizers.protocol import boundaries, by_bytes, characters_between, spelled_boundaries

FILES = ["tokenizer.json", "ranks.tiktoken", "spm.model"]
TEXTS = st.text(st.sampled_from("the cat\n é日👩\u200d\u0301<|pad|>sat<|user|>\0"), max_size=40)


def load(directory: Path, name: str):
    return load_tokenizer(directory / name, encoding="cl100k_base" if name.endswith("tiktoken") else None)


@pytest.mark.parametrize("name", FILES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=TEXTS)
def test_characters_of_all_tokens_are_the_text(tiny_files: Path, name: str, text: str) -> None:
    tokenizer = load(tiny_files, name)
    found, data = tokenizer.boundaries(text), text.encode()
    assert found.ids.tolist() == tokenizer.encode([text]).ids.tolist()
    assert (np.diff(found.bounds) >= 0).all()
    assert len(found.bounds) == len(found.ids) + 1
    if len(found.ids):
        spans = [
            characters_between(data, *pair) for pair in zip(found.bounds[:-1], found.bounds[1:], strict=True)
        ]
        assert "".join(text[span.start : span.end] for span in spans) == text
    if tokenizer.kind != "sentencepiece":
        spelled = spelled_boundaries(tiny_files / name, tokenizer.kind, found.ids, text, {})
        assert spelled is not None
        assert spelled.bounds.tolist() == found.bounds.tolist()


@pytest.mark.parametrize(("name", "control"), [("tokenizer.json", "<|pad|>"), ("spm.model", "</s>")])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(parts=st.lists(st.sampled_from(["the cat", "<|pad|>", "</s>", " é", "", "<|pad", "日"]), max_size=8))
def test_control_tokens_are_found_where_a_build_finds_them(
    tiny_files: Path, name: str, control: str, parts: list[str]
) -> None:
    tokenizer, text = load(tiny_files, name), "".join(parts)
    number = tokenizer.token_id(control)
    assert number is not None
    controls = {control: number}
    found = boundaries(tokenizer, text, controls)
    column = pa.array([text], pa.large_string())
    expected = encode_with_controls(column, lambda texts: tokenizer.encode(texts.to_pylist()), controls)
    assert found.ids.tolist() == expected.ids.tolist()
    data = text.encode()
    for id, first, stop in zip(found.ids, found.bounds[:-1], found.bounds[1:], strict=True):
        if id == number and name == "tokenizer.json":
            assert data[first:stop] == control.encode()


def test_a_part_of_a_character_has_its_bytes_and_the_first_part_has_the_character() -> None:
    text = "aé日".encode()
    assert characters_between(text, 0, 2) == (0, 2, True)  # a and the first byte of é
    assert characters_between(text, 2, 3) == (2, 2, True)
    assert characters_between(text, 3, 6) == (2, 3, False)


def test_ids_that_do_not_spell_the_text_are_not_told() -> None:
    ids = np.array([1, 2], np.int32)
    assert by_bytes(ids, [b"a", b"b"], b"abc") is None
    assert by_bytes(ids, [b"b", b"a"], b"ab") is None
    prefixed = by_bytes(ids, [b" a", b"b"], b"ab")
    assert prefixed is not None
    assert prefixed.bounds.tolist() == [0, 1, 2]
