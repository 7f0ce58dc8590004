"""What a tokenizer file is said to be."""

from __future__ import annotations

import hashlib

import pytest

from tokmill import tokenizer_check
from tokmill.errors import TokenizerMismatch


def test_the_three_kinds_are_described_alike(tiny_files):
    byte_level = tokenizer_check(tiny_files / "tokenizer.json").description
    assert byte_level.kind == "huggingface"
    assert byte_level.model == "byte-level BPE"
    assert byte_level.specials == {"<|endoftext|>": 0, "<|pad|>": 1}
    assert (byte_level.byte_fallback, byte_level.normalization) == (True, "identity")
    ranks = tokenizer_check(tiny_files / "ranks.tiktoken", encoding="gpt2").description
    assert (ranks.kind, ranks.model, ranks.unknown_id) == ("tiktoken", "gpt2", None)
    assert ranks.specials == {"<|endoftext|>": 50256}
    pieces = tokenizer_check(tiny_files / "spm.model").description
    assert (pieces.kind, pieces.model, pieces.unknown_id) == ("sentencepiece", "bpe", 0)
    assert pieces.specials == {"<s>": 1, "</s>": 2}
    assert (pieces.byte_fallback, pieces.normalization) == (True, "identity")
    assert (pieces.add_dummy_prefix, pieces.remove_extra_whitespaces) == (True, False)
    assert pieces.character_coverage == 0.9995


def test_the_pinned_file_passes_and_another_does_not(tiny_files):
    path = tiny_files / "spm.model"
    actual = hashlib.sha256(path.read_bytes()).hexdigest()
    assert tokenizer_check(path, sha256=actual).description.sha256 == actual
    with pytest.raises(TokenizerMismatch, match=f"sha256 is {actual}"):
        tokenizer_check(path, sha256="0" * 64)


@pytest.mark.parametrize(
    ("name", "model", "byte_fallback", "normalization", "specials"),
    [
        ("hf/gpt2-tokenizer.json", "byte-level BPE", True, "identity", {"<|endoftext|>": 50256}),
        ("hf/gpt-neox-20b-style-tokenizer.json", "byte-level BPE", True, "NFC", None),
        ("sentencepiece/spm_test_model.model", "unigram", False, "nfkc", {"<s>": 1, "</s>": 2}),
        ("sentencepiece/mistral_instruct_tokenizer_240216.model.v2", "bpe", True, "identity", None),
        ("tiktoken/cl100k_base.tiktoken", "cl100k_base", True, "identity", None),
    ],
)
def test_published_files_are_what_they_are_known_to_be(
    tokenizer_files, name, model, byte_fallback, normalization, specials
):
    found = tokenizer_check(tokenizer_files / name).description
    assert (found.model, found.byte_fallback) == (model, byte_fallback)
    assert found.normalization == normalization
    assert specials is None or found.specials == specials
