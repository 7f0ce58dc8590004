"""Finding out what a tokenizer file is, pinning it, and choosing its end-of-document token."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys

import pytest
from sentencepiece import SentencePieceProcessor
from tokenizers import Tokenizer

from tokmill import tokenizer_check
from tokmill.errors import (
    CorruptFile,
    EosMissing,
    RecipeError,
    TokenizerError,
    TokenizerMismatch,
    VocabTooLarge,
)
from tokmill.tokenizers.vocabulary import check_dtype
from trained import eos_id


@pytest.mark.parametrize(
    ("file", "name", "kind"),
    [
        ("tokenizer.json", "my.json", "huggingface"),
        ("tokenizer.json", "my.JSON", "huggingface"),
        ("tokenizer.json", "blob", "huggingface"),
        ("ranks.tiktoken", "my.tiktoken", "tiktoken"),
        ("ranks.tiktoken", "blob", "tiktoken"),
        ("ranks.tiktoken", "tokenizer.model", "tiktoken"),
        ("spm.model", "tokenizer.model", "sentencepiece"),
        ("spm.model", "tokenizer.model.v2", "sentencepiece"),
        ("spm.model", "blob", "sentencepiece"),
    ],
)
def test_the_kind_is_found_by_name_or_content(tmp_path, tiny_files, file, name, kind):
    shutil.copy(tiny_files / file, tmp_path / name)
    checked = tokenizer_check(tmp_path / name, encoding="gpt2" if kind == "tiktoken" else None)
    assert checked.description.kind == kind
    assert checked.path == tmp_path / name
    assert checked.description.sha256 == hashlib.sha256((tiny_files / file).read_bytes()).hexdigest()


def test_a_file_of_no_known_kind_is_an_error_that_lists_them(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n")
    with pytest.raises(
        TokenizerError, match=r"vocab\.txt: neither.*\n  next: give a tokenizer\.json .*\.tiktoken.*\.model"
    ):
        tokenizer_check(tmp_path / "vocab.txt")


def test_a_name_that_lies_about_the_content_is_a_corrupt_file(tmp_path, tiny_files):
    shutil.copy(tiny_files / "spm.model", tmp_path / "x.tiktoken")
    shutil.copy(tiny_files / "tokenizer.json", tmp_path / "x.model")
    with pytest.raises(CorruptFile, match="line 1 is not"):
        tokenizer_check(tmp_path / "x.tiktoken", encoding="gpt2")
    with pytest.raises(CorruptFile, match="not a complete SentencePiece model"):
        tokenizer_check(tmp_path / "x.model")


def test_the_pinned_file_loads_and_another_does_not(tiny_files):
    path = tiny_files / "tokenizer.json"
    actual = hashlib.sha256(path.read_bytes()).hexdigest()
    assert tokenizer_check(path, sha256=actual.upper()).description.sha256 == actual
    with pytest.raises(
        TokenizerMismatch,
        match=rf"tokenizer\.json: sha256 is {actual}, but {'0' * 64} is pinned\n  next: restore",
    ):
        tokenizer_check(path, sha256="0" * 64)


def test_the_pin_is_checked_before_the_file_is_parsed(tmp_path):
    (tmp_path / "x.json").write_text("not json")
    with pytest.raises(TokenizerMismatch):
        tokenizer_check(tmp_path / "x.json", sha256="0" * 64)


def test_a_missing_file_is_an_error_that_says_what_to_check(tmp_path):
    with pytest.raises(
        TokenizerError, match=r"tok\.json: no such tokenizer file\n  next: check `tokenizer\.path`"
    ):
        tokenizer_check(tmp_path / "tok.json")


def test_an_encoding_for_another_kind_of_file_is_an_error(tiny_files):
    with pytest.raises(
        TokenizerError, match="encoding: gpt2 is for tiktoken rank files, and this is a huggingface"
    ):
        tokenizer_check(tiny_files / "tokenizer.json", encoding="gpt2")


def test_loading_one_kind_imports_no_other_library(tiny_files):
    code = (
        "import sys; from tokmill.tokenizers.load import load_tokenizer\n"
        "heavy = {'tokenizers', 'tiktoken', 'sentencepiece'}\n"
        "assert not heavy & set(sys.modules)\n"
        f"load_tokenizer({str(tiny_files / 'spm.model')!r})\n"
        "assert heavy & set(sys.modules) == {'sentencepiece'}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_end_of_a_document_is_named_or_numbered(tiny_files):
    assert eos_id(tiny_files / "tokenizer.json", "<|endoftext|>") == 0
    assert eos_id(tiny_files / "tokenizer.json", 1) == 1
    assert eos_id(tiny_files / "ranks.tiktoken", "<|endoftext|>", encoding="gpt2") == 50256
    assert eos_id(tiny_files / "spm.model", "</s>") == 2


def test_a_missing_end_token_is_an_error_that_offers_those_there_are(tiny_files):
    with pytest.raises(
        EosMissing, match=r"no token '</s>' in the vocabulary\n  next: set `eos` to one of <\|endoftext\|>$"
    ):
        eos_id(tiny_files / "tokenizer.json", "</s>")


@pytest.mark.parametrize("eos", [-1, 320])
def test_an_end_id_outside_the_vocabulary_is_an_error(tiny_files, eos):
    size = Tokenizer.from_file(str(tiny_files / "tokenizer.json")).get_vocab_size()
    with pytest.raises(EosMissing, match=rf"eos id {eos} is outside the vocabulary \(0 to {size - 1}\)"):
        eos_id(tiny_files / "tokenizer.json", eos)


def test_an_end_token_that_text_can_spell_is_an_error(tiny_files):
    model = tiny_files / "spm.model"
    user = SentencePieceProcessor(model_file=str(model)).piece_to_id("<|user|>")
    expected = (
        rf"'<\|user\|>' \(id {user}\) is also what ordinary text is encoded to.*\n  next: .*</s>, or set "
        rf"the id {user} as eos"
    )
    with pytest.raises(TokenizerError, match=expected):
        eos_id(model, "<|user|>")
    assert eos_id(model, user) == user


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(65_536, "uint16"), (200_019, "int32"), (1 << 31, "int32")]
)
def test_a_vocabulary_that_fits_is_accepted(vocab_size, dtype):
    check_dtype(vocab_size, dtype, "out/build")


def test_a_vocabulary_that_does_not_fit_is_an_error():
    with pytest.raises(VocabTooLarge) as caught:
        check_dtype(200_019, "uint16", "out/build")
    assert str(caught.value) == "out/build: vocab 200,019 does not fit uint16\n  next: set `dtype: int32`"
    with pytest.raises(VocabTooLarge):
        check_dtype(65_537, "uint16", "out/build")
    with pytest.raises(VocabTooLarge, match="use a smaller vocabulary"):
        check_dtype((1 << 31) + 1, "int32", "out/build")


def test_an_unknown_dtype_is_a_recipe_error():
    with pytest.raises(
        RecipeError,
        match=r"out/build: unknown dtype 'float32'\n  next: set `dtype: uint16` or `dtype: int32`",
    ):
        check_dtype(10, "float32", "out/build")
