"""Train a tokenizer from text: one way in for all kinds of model.

    unigram, bpe   SentencePiece                           spm_<vocabulary>_<model>.model
    byte_bpe       Hugging Face, BPE on the bytes          tokenizer.json

Same texts and options, same bytes: whatever the number of threads, the hash seed or the order of the texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from tokmill.tokenizers.train_bytes import train_byte_bpe
from tokmill.tokenizers.train_sentencepiece import SentencePieceOptions, train_sentencepiece
from tokmill.tokenizers.trained import Trained


class ByteLevelOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A byte-level vocabulary may stay smaller than asked for: it has every byte, so it spells everything."""

    model: str
    vocab_size: int
    min_frequency: int = 2


def settle_options(asked: dict[str, Any]) -> dict[str, Any]:
    """All options of the model, those that were not asked for by their defaults."""
    kind = ByteLevelOptions if asked["model"] == "byte_bpe" else SentencePieceOptions
    settled: dict[str, Any] = msgspec.to_builtins(msgspec.convert(asked, kind, strict=False))
    return settled


def train_tokenizer(
    texts: Iterable[str], options: dict[str, Any], *, eos: str, control: Sequence[str] = ()
) -> tuple[str, Trained]:
    """The name of the file and what is in it; `options` as `settle_options` gives them."""
    if options["model"] == "byte_bpe":
        settled = msgspec.convert(options, ByteLevelOptions)
        trained = train_byte_bpe(
            texts,
            vocab_size=settled.vocab_size,
            special_tokens=[eos, *control],
            min_frequency=settled.min_frequency,
        )
        return "tokenizer.json", trained
    trained = train_sentencepiece(
        texts, msgspec.convert(options, SentencePieceOptions), eos=eos, control=control
    )
    return f"spm_{trained.vocab_size}_{options['model']}.model", trained
