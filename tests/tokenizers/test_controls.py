"""Control tokens that a recipe asks for: read where they stand, and nothing else is."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.errors import TokenizerError
from tokmill.tokenizers.fast import encode_with_controls
from tokmill.tokenizers.load import load_tokenizer, resolve_controls

CONTROLS = {"<|a|>": 1000, "<|a|>b": 1001, "é": 1002}


def slow(tokenizer, text: str) -> list[int]:
    """Cut by a regular expression that tries the longer first; parts one by one."""
    parts = re.split(r"(<\|a\|>b|<\|a\|>|é)", text)
    ids: list[int] = []
    for part in parts:
        ids += [CONTROLS[part]] if part in CONTROLS else tokenizer.encode([part]).ids.tolist()
    return ids


@pytest.fixture(scope="session", params=["tokenizer.json", "spm.model"])
def tokenizer(request, tiny_files):
    return load_tokenizer(tiny_files / request.param)


@given(
    texts=st.lists(
        st.lists(st.sampled_from(["<|a|>", "b", "é", " the cat", "<|", "|>", "\n", "x"]), max_size=8).map(
            "".join
        ),
        max_size=6,
    )
)
@settings(deadline=None, max_examples=150)
def test_controls_are_read_where_they_stand(tokenizer, texts):
    column = pa.array(["left out", *texts], pa.large_string()).slice(1)
    expected = [slow(tokenizer, text) for text in texts]
    for encode in (tokenizer.encode_column, lambda some: tokenizer.encode(some.to_pylist())):
        found = encode_with_controls(column, encode, CONTROLS)
        assert found.lengths.tolist() == [len(ids) for ids in expected]
        assert found.ids.tolist() == [id for ids in expected for id in ids]


def test_without_controls_all_text_is_ordinary(tokenizer):
    text = "a<|endoftext|>b</s>"
    found = encode_with_controls(pa.array([text], pa.large_string()), tokenizer.encode_column, {})
    assert found.ids.tolist() == tokenizer.encode([text]).ids.tolist()


def test_a_dummy_prefix_stands_before_every_part(tiny_files):
    tokenizer = load_tokenizer(tiny_files / "spm.model")
    end = resolve_controls(tokenizer, ["</s>"])
    ids = encode_with_controls(pa.array(["the</s>the"], pa.large_string()), tokenizer.encode_column, end).ids
    the = tokenizer.encode(["the"]).ids.tolist()
    assert ids.tolist() == [*the, end["</s>"], *the]


def test_harmony_messages_are_read_when_asked_for(tokenizer_files):
    path = tokenizer_files / "tiktoken" / "o200k_base.tiktoken"
    tokenizer = load_tokenizer(path, encoding="o200k_harmony")
    names = ["<|start|>", "<|message|>", "<|end|>", "<|return|>", "<|channel|>", "<|constrain|>", "<|call|>"]
    controls = resolve_controls(tokenizer, names)
    assert list(controls.values()) == [200006, 200008, 200007, 200002, 200005, 200003, 200012]
    text = "<|start|>user<|message|>hi <|endoftext|><|end|>"
    ids = encode_with_controls(
        pa.array([text], pa.large_string()), tokenizer.encode_column, controls
    ).ids.tolist()
    assert [id for id in ids if id >= 199998] == [200006, 200008, 200007], "<|endoftext|> was not asked for"
    assert tokenizer.decode(ids) == text


def test_an_unknown_control_is_an_error_that_lists_the_known(tiny_files):
    tokenizer = load_tokenizer(tiny_files / "tokenizer.json")
    for name in ("<|im_start|>", ""):
        with pytest.raises(
            TokenizerError, match=r"no control token .*\n  next: choose from <\|endoftext\|>, <\|pad\|>"
        ):
            resolve_controls(tokenizer, ["<|pad|>", name])


def test_an_ordinary_token_is_no_control(tiny_files):
    tokenizer = load_tokenizer(tiny_files / "tokenizer.json")
    with pytest.raises(
        TokenizerError, match=r"'the' \(id \d+\) is an ordinary token.*\n  next: leave 'the' out"
    ):
        resolve_controls(tokenizer, ["the"])
