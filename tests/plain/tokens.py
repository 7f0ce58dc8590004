"""Texts to ids, by the library that the tokenizer's file belongs to (docs/tokenizing.md).

A document's ids are those of its text, with `bos` before and `eos` behind them. What looks like a special
token is ordinary text, unless the recipe names it under `control`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers

Encode = Callable[[str], list[int]]


def open_tokenizer(path: Path) -> tuple[Encode, Callable[[str], int], int]:
    """How a text is encoded as plain text, the id of a token, and the size of the vocabulary."""
    if path.suffix == ".model":
        model = sentencepiece.SentencePieceProcessor(model_file=str(path))
        return model.encode, model.piece_to_id, model.vocab_size()
    return _hugging_face(path)


def _hugging_face(path: Path) -> tuple[Encode, Callable[[str], int], int]:
    """Without its special tokens, which would be found in text."""
    model: Any = tokenizers.Tokenizer.from_file(str(path))
    model.no_truncation()
    model.no_padding()
    model.encode_special_tokens = True  # as the text that they are spelled in
    size = model.get_vocab_size(with_added_tokens=True)
    return lambda text: model.encode(text, add_special_tokens=False).ids, model.token_to_id, size


def encode_document(
    text: str, encode: Encode, eos: int, bos: int | None = None, control: dict[str, int] | None = None
) -> list[int]:
    ids = [] if bos is None else [bos]
    literals = sorted(control or {}, key=len, reverse=True)  # leftmost, then longest
    parts = re.split("(" + "|".join(map(re.escape, literals)) + ")", text) if literals else [text]
    for number, part in enumerate(parts):
        if number % 2:
            assert control is not None
            ids.append(control[part])
        elif part:
            ids += encode(part)
    return [*ids, eos]
