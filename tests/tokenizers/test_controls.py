"""Control tokens that a recipe asks for: read where they stand, and nothing else is."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor

from tokmill.errors import RecipeError, TokenizerError
from tokmill.tokenizers.fast import encode_with_controls
from tokmill.tokenizers.load import load_tokenizer
from trained import encode

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
    for by in (tokenizer.encode_column, lambda some: tokenizer.encode(some.to_pylist())):
        found = encode_with_controls(column, by, CONTROLS)
        assert found.lengths.tolist() == [len(ids) for ids in expected]
        assert found.ids.tolist() == [id for ids in expected for id in ids]


def test_without_controls_all_text_is_ordinary(tokenizer):
    text = "a<|endoftext|>b</s>"
    found = encode_with_controls(pa.array([text], pa.large_string()), tokenizer.encode_column, {})
    assert found.ids.tolist() == tokenizer.encode([text]).ids.tolist()


def test_a_dummy_prefix_stands_before_every_part(tiny_files):
    path = tiny_files / "spm.model"
    raw = SentencePieceProcessor(model_file=str(path))
    the, begin = raw.encode("the"), raw.piece_to_id("<s>")
    assert encode(path, ["the<s>the"], eos="</s>", control=["<s>"]) == [[*the, begin, *the]]


def test_harmony_messages_are_read_when_asked_for(tokenizer_files):
    path = tokenizer_files / "tiktoken" / "o200k_base.tiktoken"
    names = ["<|start|>", "<|message|>", "<|end|>", "<|return|>", "<|channel|>", "<|constrain|>", "<|call|>"]
    numbers = [200006, 200008, 200007, 200002, 200005, 200003, 200012]
    harmony = {"eos": "<|endoftext|>", "encoding": "o200k_harmony"}
    asked = encode(
        path, ["".join(names), "<|start|>user<|message|>hi <|endoftext|><|end|>"], control=names, **harmony
    )
    assert asked[0] == numbers
    user, hi = encode(path, ["user", "hi <|endoftext|>"], **harmony)
    assert asked[1] == [200006, *user, 200008, *hi, 200007]
    assert 199999 not in hi, "<|endoftext|> was not asked for"


def test_an_unknown_control_is_an_error_that_lists_the_known(tiny_files):
    with pytest.raises(
        TokenizerError, match=r"no control token .*\n  next: choose from <\|endoftext\|>, <\|pad\|>"
    ):
        encode(tiny_files / "tokenizer.json", ["x"], eos="<|endoftext|>", control=["<|pad|>", "<|im_start|>"])
    with pytest.raises(RecipeError, match=r"tokenizer\.control\[1\]: "):
        encode(tiny_files / "tokenizer.json", ["x"], eos="<|endoftext|>", control=["<|pad|>", ""])


def test_an_ordinary_token_is_no_control(tiny_files):
    with pytest.raises(
        TokenizerError, match=r"'the' \(id \d+\) is an ordinary token.*\n  next: leave 'the' out"
    ):
        encode(tiny_files / "tokenizer.json", ["x"], eos="<|endoftext|>", control=["the"])
