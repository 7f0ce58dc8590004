"""Real tokenizer files where they are at hand, and tiny ones made here everywhere."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import sentencepiece

from tokmill.tokenizers.train import train_byte_bpe
from trained import rank_lines

TEXTS = ["the cat sat on the mat, and the other cat sat there too\n" * 3, "les chats étaient là, déjà"] * 20


@pytest.fixture(scope="session")
def tokenizer_files() -> Path:
    """Published tokenizer files, kept beside the repository and never in it."""
    directory = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "tokenizers"
    if not directory.is_dir():
        pytest.skip(f"no published tokenizer files in ../{directory.relative_to(directory.parents[2])}")
    return directory


@pytest.fixture(scope="session")
def tiny_files(tmp_path_factory) -> Path:
    """tokenizer.json, ranks.tiktoken and spm.model of a few hundred ids each."""
    directory = tmp_path_factory.mktemp("tokenizers")
    trained = train_byte_bpe(TEXTS, vocab_size=320, special_tokens=["<|endoftext|>", "<|pad|>"])
    (directory / "tokenizer.json").write_bytes(trained.data)
    tokens = [bytes([byte]) for byte in range(256)] + [b"th", b"the", b" the", b"at", b" cat"]
    (directory / "ranks.tiktoken").write_bytes(rank_lines(tokens))
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS),
        model_writer=model,
        vocab_size=360,
        model_type="bpe",
        byte_fallback=True,
        hard_vocab_limit=False,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        user_defined_symbols=["<|user|>"],
        minloglevel=2,
    )
    (directory / "spm.model").write_bytes(model.getvalue())
    return directory
