"""Rank files: the encodings tiktoken knows, the ids of GPT-2, and every malformed line."""

from __future__ import annotations

import base64

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from tiktoken_ext import openai_public

from tokmill import tokenizer_check
from tokmill.errors import CorruptFile, TokenizerError
from tokmill.tokenizers.encodings import ENCODINGS
from tokmill.tokenizers.load import load_tokenizer
from trained import encode, eos_id

TEXTS = [
    "Hello, wörld!  It's 2024…\n\n\tdef f(x): return x**2  # 漢字 🙂 e\u0301",
    "I'LL we'Ve  \r\n \r\n  DON'T 12345678 ǅ ʰ\u0301 \u2028 end   ",
    "<|endoftext|> <|endofprompt|><|fim_prefix|>",
    "",
]
OPENAI = [name for name in ENCODINGS if not name.startswith("llama")]
WRITTEN = TEXTS[:-1]  # a run drops what is empty


@pytest.fixture(scope="module")
def published(monkeypatch_module):
    """tiktoken's own constants; its loaders, which may use the network, are replaced."""
    for loader in ("load_tiktoken_bpe", "data_gym_to_mergeable_bpe_ranks"):
        monkeypatch_module.setattr(openai_public, loader, lambda *_, **arguments: arguments)
    return {name: getattr(openai_public, name)() for name in OPENAI}


@pytest.fixture(scope="module")
def monkeypatch_module():
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.mark.parametrize("name", OPENAI)
def test_special_tokens_and_hashes_are_the_published_ones(published, name):
    theirs = dict(published[name]["special_tokens"])
    if name == "o200k_harmony":
        assert theirs.pop("<|reserved_200018|>") == theirs["<|endofprompt|>"]  # one id, two names
    assert ENCODINGS[name].fixed == theirs
    if name != "gpt2":  # published as vocab.bpe, with the ranks of r50k_base
        assert ENCODINGS[name].sha256 == published[name]["mergeable_ranks"]["expected_hash"]


@pytest.mark.parametrize("name", OPENAI)
@given(text=st.text(max_size=60) | st.text(alphabet="aB1 '\n\r\tsé漢_.", max_size=40))
@settings(deadline=None, max_examples=60)
def test_text_is_split_as_the_published_pattern_splits_it(published, name, text):
    assert regex.findall(ENCODINGS[name].pattern, text) == regex.findall(published[name]["pat_str"], text)


@pytest.mark.parametrize(
    ("name", "vocab_size", "end"),
    [("r50k_base", 50257, 50256), ("cl100k_base", 100277, 100257), ("o200k_base", 200019, 199999)],
)
def test_published_files_are_recognised_by_their_hash(tokenizer_files, name, vocab_size, end):
    path = tokenizer_files / "tiktoken" / f"{name}.tiktoken"
    found = tokenizer_check(path).description
    assert (found.model, found.vocab_size, found.specials["<|endoftext|>"]) == (name, vocab_size, end)
    lines = [line.split() for line in path.read_bytes().splitlines()]
    tokens = {int(rank): base64.b64decode(token) for token, rank in lines}
    for text, ids in zip(WRITTEN, encode(path, WRITTEN, eos="<|endoftext|>"), strict=True):
        assert max(ids) < end
        assert b"".join(tokens[id] for id in ids).decode() == text
    tokenizer = load_tokenizer(path)
    assert tokenizer.decode(tokenizer.encode(TEXTS).ids) == "".join(TEXTS)
    assert tokenizer.decode([end]) == "<|endoftext|>"


def test_r50k_gives_the_ids_of_gpt2(tokenizer_files):
    ours, gpt2 = tokenizer_files / "tiktoken/r50k_base.tiktoken", tokenizer_files / "hf/gpt2-tokenizer.json"
    end = "<|endoftext|>"
    assert encode(ours, WRITTEN, eos=end, encoding="gpt2") == encode(gpt2, WRITTEN, eos=end)
    sizes = [tokenizer_check(ours, encoding="gpt2"), tokenizer_check(gpt2)]
    assert len({checked.description.vocab_size for checked in sizes}) == 1


def test_harmony_is_o200k_with_more_control_tokens(tokenizer_files):
    path = tokenizer_files / "tiktoken" / "o200k_base.tiktoken"
    harmony = tokenizer_check(path, encoding="o200k_harmony").description
    assert harmony.vocab_size == 201_088
    assert (harmony.specials["<|start|>"], harmony.specials["<|endofprompt|>"]) == (200_006, 200_018)
    texts, end = [*WRITTEN, "<|start|>assistant<|channel|>final<|message|>hi<|return|>"], "<|endoftext|>"
    assert encode(path, texts, eos=end, encoding="o200k_harmony") == encode(path, texts, eos=end)


def test_a_run_of_blanks_that_exhausts_the_compiled_regex_is_encoded_all_the_same(tokenizer_files):
    tokenizer = load_tokenizer(tokenizer_files / "tiktoken" / "o200k_base.tiktoken")
    with pytest.raises(ValueError, match="Max stack size exceeded"):
        tokenizer._bpe.encode_to_numpy(" " * 1_000_000, disallowed_special=())
    ids = tokenizer.encode([" " * 1_000_000 + "<|endoftext|>"]).ids
    assert tokenizer.decode(ids) == " " * 1_000_000 + "<|endoftext|>"
    assert 199_999 not in ids


@given(text=st.text(max_size=80))
@settings(deadline=None, max_examples=60)
def test_the_way_round_the_compiled_regex_gives_the_same_ids(tiny_files, text):
    tokenizer = load_tokenizer(tiny_files / "ranks.tiktoken", encoding="o200k_base")
    assert tokenizer._bpe._encode_only_native_bpe(text) == tokenizer.encode([text]).ids.tolist()


def test_an_ordinary_token_is_found_by_its_text(tiny_files):
    path = tiny_files / "ranks.tiktoken"
    assert encode(path, [" the"], eos="<|endoftext|>", encoding="gpt2") == [[258]]
    with pytest.raises(TokenizerError, match=r"' the' \(id 258\) is also what ordinary text is encoded to"):
        eos_id(path, " the", encoding="gpt2")
    assert tokenizer_check(path, encoding="gpt2").description.vocab_size == 50257


def test_an_unknown_file_needs_its_encoding(tiny_files):
    with pytest.raises(
        TokenizerError,
        match=r"not a published file\n  next: set `encoding` to one of r50k_base, gpt2, .*o200k",
    ):
        tokenizer_check(tiny_files / "ranks.tiktoken")


def test_an_unknown_encoding_is_an_error_that_lists_the_known(tiny_files):
    with pytest.raises(TokenizerError, match=r"unknown encoding 'gpt5'\n  next: choose one of r50k_base, "):
        tokenizer_check(tiny_files / "ranks.tiktoken", encoding="gpt5")


def test_a_published_file_cannot_be_used_as_another_encoding(tokenizer_files):
    path = tokenizer_files / "tiktoken" / "o200k_base.tiktoken"
    with pytest.raises(
        TokenizerError,
        match=r"the ranks of o200k_base, not of cl100k_base\n  next: .*o200k_base, o200k_harmony",
    ):
        tokenizer_check(path, encoding="cl100k_base")


def test_ranks_that_take_the_id_of_a_control_token_are_an_error(tmp_path, tiny_files):
    path = tmp_path / "x.tiktoken"
    path.write_bytes((tiny_files / "ranks.tiktoken").read_bytes() + b"enp6enp6 50256\n")
    with pytest.raises(
        TokenizerError, match=r"rank 50256 is the token b'zzzzzz', and gpt2 keeps that id for <\|endoftext\|>"
    ):
        tokenizer_check(path, encoding="gpt2")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"", "line 262 is not `base64 rank`: b''"),
        (b"enp6", "line 262 is not `base64 rank`"),
        (b"enp6 300 1", "line 262 is not `base64 rank`"),
        (b"enp 300", "line 262 is not `base64 rank`"),
        (b"en!6 300", "line 262 is not `base64 rank`"),
        (b"enp6 -300", "line 262 is not `base64 rank`"),
        (b"enp6 3_00", "line 262 is not `base64 rank`"),
        (b"enp6 300\r", "line 262 is not `base64 rank`"),
        (b" 300", "line 262 is not `base64 rank`"),
        (b"dGg= 300", "line 262 repeats an earlier token or rank"),
        (b"enp6 260", "line 262 repeats an earlier token or rank"),
    ],
)
def test_a_malformed_line_is_an_error_that_names_it(tmp_path, tiny_files, line, message):
    path = tmp_path / "x.tiktoken"
    path.write_bytes((tiny_files / "ranks.tiktoken").read_bytes() + line + b"\n" + b"cXE= 301\n")
    with pytest.raises(CorruptFile, match=rf"x\.tiktoken: {message}.*\n  next: fetch the file again"):
        tokenizer_check(path, encoding="gpt2")


def test_a_cut_file_is_an_error_that_names_the_missing_byte(tmp_path, tiny_files):
    path = tmp_path / "x.tiktoken"
    path.write_bytes(b"\n".join((tiny_files / "ranks.tiktoken").read_bytes().split(b"\n")[:200]) + b"\n")
    with pytest.raises(CorruptFile, match="200 lines, but no token for the byte 0xc8"):
        tokenizer_check(path, encoding="gpt2")


def test_an_empty_file_is_an_error(tmp_path):
    (tmp_path / "x.tiktoken").write_bytes(b"")
    with pytest.raises(CorruptFile, match="line 1 is not"):
        tokenizer_check(tmp_path / "x.tiktoken", encoding="gpt2")
