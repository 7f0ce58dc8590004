"""What every tokenizer can do, whatever library is behind it.

    texts ["ab c", "", "d"]  ──encode──▶  ids      int32  [ 7  3  9  4 ]       all documents, one after another
                                          lengths  int64  [ 3     0  1 ]       one per text

A text is always ordinary text: a literal `<|endoftext|>` or `</s>` in a document is spelled with ordinary
tokens and never becomes the control token. Nothing is added (no BOS, no EOS), cut or padded.

`encode` is the reference: the library that the file belongs to. `encode_column` gives the same ids for an Arrow
column, through gigatoken where that can do it (tokmill.tokenizers.fast). Both keep one core busy, because the mill
runs one process per core.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import InputError


class Encoded(NamedTuple):
    """The ids of many texts in one flat array, and how many belong to each."""

    ids: NDArray[np.int32]
    lengths: NDArray[np.int64]


class Boundaries(NamedTuple):
    """The ids of one text, and where each begins: token i is bytes [bounds[i], bounds[i + 1]) of it."""

    ids: NDArray[np.int32]
    bounds: NDArray[np.int64]


class Tokenizer(Protocol):
    """One tokenizer file, loaded."""

    @property
    def kind(self) -> str:
        """`huggingface`, `tiktoken` or `sentencepiece`."""

    @property
    def path(self) -> Path: ...

    @property
    def sha256(self) -> str:
        """Of the file's bytes, as they were loaded."""

    @property
    def vocab_size(self) -> int:
        """Every id, special tokens included, is below this."""

    @property
    def specials(self) -> Mapping[str, int]:
        """Control tokens by their spelling: what text may spell and never becomes."""

    @property
    def engine(self) -> str:
        """Library and version behind `encode_column`."""

    @property
    def is_fast(self) -> bool:
        """Whether that is another library than the one behind `encode`."""

    def encode(self, texts: Sequence[str]) -> Encoded: ...

    def encode_column(self, texts: Any) -> Encoded:
        """The same ids for a large_string column, straight from its buffers."""

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """The text of `ids`, control tokens spelled out."""

    def boundaries(self, text: str) -> Boundaries:
        """The ids that `encode` gives for `text`, and the bytes of it that each was read from."""

    def token_id(self, token: str) -> int | None:
        """The id of `token`, a special token or an ordinary piece as the file spells it."""


def encode_each(texts: Sequence[str], encode: Callable[[str], NDArray[np.integer]]) -> Encoded:
    """Encode text by text, and join.

    The three libraries' batch calls give threads, not speed: on one core they are within 5 % of this loop,
    and they hold every document's Python integers (36 bytes a token) until the batch ends.
    """
    pieces: list[NDArray[np.int32]] = []
    for number, text in enumerate(texts):
        try:
            pieces.append(encode(text).astype(np.int32, copy=False))
        except (TypeError, UnicodeEncodeError, RuntimeError):  # each library has its own for a lone surrogate
            _refuse_what_is_not_text(text, number)
            raise
    lengths = np.fromiter(map(len, pieces), dtype=np.int64, count=len(pieces))
    return Encoded(np.concatenate(pieces) if pieces else np.empty(0, dtype=np.int32), lengths)


def _refuse_what_is_not_text(text: object, number: int) -> None:
    if not isinstance(text, str):
        raise InputError(
            f"text {number} is {type(text).__name__}, not str",
            next="pass a sequence of str (of an Arrow column: .to_pylist())",
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"text {number} is not valid Unicode: lone surrogate U+{ord(text[error.start]):04X} "
            f"at character {error.start}",
            next="read the source again with tokmill, which quarantines such records",
        ) from None
