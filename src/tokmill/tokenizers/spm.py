"""SentencePiece `.model` files (unigram and BPE).

SentencePiece never reads a CONTROL piece out of text: a literal `</s>` is spelled `</` `s` `>`. What the model
declares as *user defined* is, by SentencePiece's own definition, ordinary text with a piece of its own;
`resolve_eos` refuses such a piece as the end of a document.

`decode` gives back the normalized text: with an NFKC model or one without byte fallback that is not the input.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray

from tokmill.errors import CorruptFile
from tokmill.kernels.literals import literal_table
from tokmill.tokenizers.boundaries import by_offsets
from tokmill.tokenizers.fast import Fast, encode_column, open_fast
from tokmill.tokenizers.protocol import Boundaries, Encoded, encode_each
from tokmill.tokenizers.spm_bpe import for_gigatoken
from tokmill.tokenizers.spm_model import wire_fields

# fields of SentencePieceText, and of a piece in it
_PIECES = 2
_ID_BEGIN_END = (2, 4, 5)


class SentencePieceTokenizer:
    kind = "sentencepiece"

    def __init__(self, path: Path, sha256: str, data: bytes) -> None:
        self.path, self.sha256 = path, sha256
        self._data = data
        try:
            self._model = sentencepiece.SentencePieceProcessor()
            self._model.LoadFromSerializedProto(data)
            self.vocab_size = int(self._model.get_piece_size())
        except (RuntimeError, UnicodeDecodeError) as error:  # the message of the first may not be UTF-8
            raise CorruptFile(
                "not a complete SentencePiece model",
                where=str(path),
                next="fetch the file again and pin its sha256",
            ) from error

    def encode(self, texts: Sequence[str]) -> Encoded:
        return encode_each(texts, self._encode_one)

    @cached_property
    def specials(self) -> dict[str, int]:
        """Control pieces, and those for bytes and the unknown: a text that spells one does not become it."""
        model = self._model
        return {
            model.id_to_piece(id): id
            for id in range(self.vocab_size)
            if model.is_control(id) or model.is_unknown(id) or model.is_byte(id)
        }

    @cached_property
    def _fast(self) -> Fast | None:
        found = for_gigatoken(self._model, self._data)
        if found is None:
            return None
        plain, symbols = found
        routed = literal_table(symbols) if symbols else None
        return open_fast(lambda rs: rs.load_hf_json(plain), self.encode, routed_literals=routed)

    @property
    def engine(self) -> str:
        return self._fast.name if self._fast else f"sentencepiece {sentencepiece.__version__}"

    @property
    def is_fast(self) -> bool:
        return self._fast is not None

    def encode_column(self, texts: Any) -> Encoded:
        return encode_column(texts, self._fast, self.encode)

    def _encode_one(self, text: str) -> NDArray[np.int32]:
        # out_type="numpy" (sentencepiece 0.2.2) is 6 % faster; this is the older form
        ids = self._model.encode(text, out_type=int, add_bos=False, add_eos=False, enable_sampling=False)
        return np.array(ids, dtype=np.int32)

    def boundaries(self, text: str) -> Boundaries:
        """By SentencePiece's own offsets, which are bytes of the text before it was normalized."""
        coded = self._model.encode_as_serialized_proto(
            text, add_bos=False, add_eos=False, enable_sampling=False
        )
        pieces = [dict(wire_fields(bytes(value))) for field, value in wire_fields(coded) if field == _PIECES]
        whole = np.array([[piece.get(at, 0) for at in _ID_BEGIN_END] for piece in pieces], np.int64)
        ids, begins, ends = whole.reshape(-1, 3).T
        is_byte = np.array([self._model.is_byte(int(id)) for id in ids], np.bool_)
        offsets = np.stack([begins, ends], axis=1)
        return by_offsets(ids.astype(np.int32), offsets, is_byte, len(text.encode()))

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        return str(self._model.decode(np.asarray(ids, dtype=np.int64).tolist()))

    def token_id(self, token: str) -> int | None:
        found = int(self._model.piece_to_id(token))
        # an unknown piece is answered with the id of <unk>
        return found if self._model.id_to_piece(found) == token else None
