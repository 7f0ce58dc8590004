"""What the three kinds of tokenizer promise alike: ordinary text in, flat ids out, text back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.errors import InputError
from tokmill.tokenizers.load import load_tokenizer

KINDS = {
    "huggingface": ("tokenizer.json", None),
    "tiktoken": ("ranks.tiktoken", "gpt2"),
    "sentencepiece": ("spm.model", None),
}


@pytest.fixture(scope="session", params=sorted(KINDS))
def tokenizer(request, tiny_files):
    name, encoding = KINDS[request.param]
    loaded = load_tokenizer(tiny_files / name, encoding=encoding)
    assert loaded.kind == request.param
    return loaded


CONTROL = ["<|endoftext|>", "<|pad|>", "</s>", "<s>", "<unk>", "<|fim_prefix|>", "<0x0A>"]
TEXT = st.lists(
    st.text(max_size=12) | st.sampled_from([*CONTROL, " the cat", "  ", "\n\n", "\0"]), max_size=6
).map("".join)


@given(texts=st.lists(TEXT, max_size=6))
@settings(deadline=None, max_examples=80)
def test_text_comes_back_and_ids_stay_below_the_vocabulary(tokenizer, texts):
    encoded = tokenizer.encode(texts)
    assert encoded.ids.dtype == np.int32
    assert encoded.lengths.dtype == np.int64
    assert len(encoded.lengths) == len(texts)
    assert int(encoded.lengths.sum()) == len(encoded.ids)
    assert encoded.ids.size == 0 or 0 <= encoded.ids.min() <= encoded.ids.max() < tokenizer.vocab_size
    pieces = np.split(encoded.ids, np.cumsum(encoded.lengths))[:-1]
    assert [tokenizer.decode(piece) for piece in pieces] == texts


@given(texts=st.lists(TEXT, max_size=5))
@settings(deadline=None, max_examples=40)
def test_a_text_is_encoded_the_same_alone_and_in_company(tokenizer, texts):
    together = tokenizer.encode(texts)
    alone = [tokenizer.encode([text]).ids for text in texts]
    assert together.ids.tolist() == [id for ids in alone for id in ids.tolist()]
    assert together.lengths.tolist() == [len(ids) for ids in alone]


@pytest.mark.parametrize("text", CONTROL)
def test_a_control_token_spelled_in_text_stays_text(tokenizer, text):
    for around in (text, f"a{text}b", f" {text} ", text * 3):
        ids = tokenizer.encode([around]).ids
        assert tokenizer.token_id(text) not in ids.tolist()
        assert tokenizer.decode(ids) == around


def test_no_texts_and_empty_texts_are_encoded(tokenizer):
    none = tokenizer.encode([])
    assert (none.ids.tolist(), none.lengths.tolist()) == ([], [])
    assert (none.ids.dtype, none.lengths.dtype) == (np.int32, np.int64)
    assert tokenizer.encode(["", ""]).lengths.tolist() == [0, 0]
    assert tokenizer.decode([]) == ""


def test_a_token_that_does_not_exist_has_no_id(tokenizer):
    assert tokenizer.token_id("no such token, surely") is None


def test_a_lone_surrogate_is_an_error_that_says_where(tokenizer):
    with pytest.raises(
        InputError, match=r"text 1 is not valid Unicode: lone surrogate U\+D800 at character 2\n  next:"
    ):
        tokenizer.encode(["fine", "ab\ud800"])


def test_something_else_than_text_is_an_error(tokenizer):
    with pytest.raises(InputError, match="text 0 is int, not str"):
        tokenizer.encode([7])


def test_a_very_long_run_of_blanks_is_encoded(tokenizer):
    text = " " * 1_000_000 + "x"
    assert tokenizer.decode(tokenizer.encode([text]).ids) == text
