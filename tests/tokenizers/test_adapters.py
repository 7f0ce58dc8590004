"""What the three kinds of tokenizer promise alike: ordinary text in, flat ids out, text back."""

from __future__ import annotations

import base64

import numpy as np
import pytest
import sentencepiece
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

import trained
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


def library_of(kind, path):
    """Its own way from ids to text, and its ids of control tokens."""
    if kind == "huggingface":
        library = tokenizers.Tokenizer.from_file(str(path))
        return lambda ids: library.decode(ids, skip_special_tokens=False), library.token_to_id
    if kind == "sentencepiece":
        library = sentencepiece.SentencePieceProcessor(model_file=str(path))
        return (
            library.decode,
            lambda token: id if library.is_control(id := library.piece_to_id(token)) else None,
        )
    lines = [line.split() for line in path.read_bytes().splitlines()]
    tokens = {int(rank): base64.b64decode(token) for token, rank in lines}
    return lambda ids: b"".join(tokens[id] for id in ids).decode(), {"<|endoftext|>": 50256}.get


ENDS = {"huggingface": "<|endoftext|>", "tiktoken": "<|endoftext|>", "sentencepiece": "</s>"}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_control_token_spelled_in_text_stays_text(tiny_files, kind):
    name, encoding = KINDS[kind]
    decode, control_id = library_of(kind, tiny_files / name)
    texts = [around for text in CONTROL for around in (text, f"a{text}b", f" {text} ", text * 3)]
    controls = {control_id(token) for token in CONTROL} - {None}
    assert controls
    found = trained.encode(tiny_files / name, texts, eos=ENDS[kind], encoding=encoding)
    assert not [ids for ids in found if controls & set(ids)]
    assert [decode(ids) for ids in found] == texts


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


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_very_long_run_of_blanks_is_encoded(tiny_files, kind):
    (name, encoding), text = KINDS[kind], " " * 1_000_000 + "x"
    (ids,) = trained.encode(tiny_files / name, [text], eos=ENDS[kind], encoding=encoding)
    assert library_of(kind, tiny_files / name)[0](ids) == text
