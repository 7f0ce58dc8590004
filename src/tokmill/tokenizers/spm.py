"""SentencePiece `.model` files (unigram and BPE):
what a file says of itself, its ids, and the same model for gigatoken.

ModelProto      1 pieces*    2 trainer_spec    3 normalizer_spec             messages: (field, length, bytes)
piece           1 text       2 score           3 type: 1 normal 2 unknown 3 control 4 user 6 byte
trainer_spec    3 model type: 1 unigram 2 bpe 3 word 4 char    10 character_coverage    35 byte_fallback
normalizer_spec 1 name       3 add_dummy_prefix    4 remove_extra_whitespaces    2 table of the normalization

    for_gigatoken   pieces ─ vocab, merges        dummy prefix ─ Prepend "▁"        blank ─ Replace by "▁"

Read here and not with protobuf: these few fields are all that is needed, and the format of the wire never
changes. A field that is not in the file has the default of sentencepiece_model.proto.

SentencePiece never reads a CONTROL piece out of text: a literal `</s>` is spelled `</` `s` `>`. What the
model declares as *user defined* is, by SentencePiece's own definition, ordinary text with a piece of its own;
`resolve_eos` refuses such a piece as the end of a document. `decode` gives back the normalized text: with an
NFKC model or one without byte fallback that is not the input.

Models that gigatoken can hold, by measurement against sentencepiece 0.2.2: BPE with byte fallback that leaves
the text as it is. Normalizing by a charsmap goes by graphemes there, and removing whitespace takes more than
blanks, so such models stay with the reference. So do those with symbols that hold whitespace. A merge is
listed for every split of a piece into two pieces, best score first: that is the order in which SentencePiece
merges. Control, unknown and byte pieces get none, because text never becomes them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import sentencepiece
from numpy.typing import NDArray

from tokmill.errors import CorruptFile
from tokmill.kernels.patterns import literal_table
from tokmill.tokenizers.fast import Fast, LibraryTokenizer, load_fast, open_fast
from tokmill.tokenizers.protocol import Boundaries, by_offsets

_UNIGRAM, _NORMAL = 1, 1
_MODELS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
_UNKNOWN, _CONTROL = 2, 3
USER = 4


# --- the file ---


class SpmModel(NamedTuple):
    model: str
    vocab_size: int
    controls: dict[str, int]
    user_symbols: dict[str, int]
    unknown_id: int | None
    character_coverage: float
    byte_fallback: bool
    normalization: str
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool


def read_spm_model(data: bytes) -> SpmModel:
    """Of a file that SentencePiece has loaded, and which therefore is sound."""
    pieces: list[tuple[str, int]] = []
    trainer: dict[int, int | bytes] = {}
    normalizer: dict[int, int | bytes] = {}
    for field, value in wire_fields(data):
        if not isinstance(value, bytes):
            continue
        if field == 1:
            piece = dict(wire_fields(value))
            text = piece.get(1, b"")
            pieces.append(
                (bytes(text).decode() if isinstance(text, bytes) else "", _whole(piece, 3, _NORMAL))
            )
        elif field == 2:
            trainer = dict(wire_fields(value))
        elif field == 3:
            normalizer = dict(wire_fields(value))
    coverage = trainer.get(10)
    unknown = [id for id, (_, kind) in enumerate(pieces) if kind == _UNKNOWN]
    return SpmModel(
        model=_MODELS.get(_whole(trainer, 3, _UNIGRAM), "unknown"),
        vocab_size=len(pieces),
        controls={text: id for id, (text, kind) in enumerate(pieces) if kind == _CONTROL},
        user_symbols={text: id for id, (text, kind) in enumerate(pieces) if kind == USER},
        unknown_id=unknown[0] if unknown else None,
        character_coverage=_decimal(coverage) if isinstance(coverage, bytes) else 0.9995,
        byte_fallback=bool(_whole(trainer, 35, 0)),
        normalization=_normalization(normalizer),
        add_dummy_prefix=bool(_whole(normalizer, 3, 1)),
        remove_extra_whitespaces=bool(_whole(normalizer, 4, 1)),
    )


def _normalization(normalizer: dict[int, int | bytes]) -> str:
    """By its name; a model may have a table of its own, without a name or under that of none."""
    name, table = normalizer.get(1, b""), normalizer.get(2, b"")
    told = name.decode() if isinstance(name, bytes) and name else "identity"
    return "custom" if table and told == "identity" else told


def wire_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) in order of the wire: integers, or bytes of what has a length or a fixed size."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        size = {1: 8, 5: 4}.get(kind)
        if size is None:
            size, at = _varint(data, at)
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7


def _whole(fields: dict[int, int | bytes], number: int, default: int) -> int:
    value = fields.get(number, default)
    return value if isinstance(value, int) else default


def _decimal(single: bytes) -> float:
    """The shortest decimal that is this single-precision number: 0.9995, not 0.9994999766349792."""
    return float(str(np.frombuffer(single, "<f4")[0]))


# --- for gigatoken ---


def for_gigatoken(model: Any, data: bytes) -> tuple[bytes, list[str]] | None:
    """The file, and the symbols whose documents it must not be given; None for a model it cannot hold."""
    spec = read_spm_model(data)
    ids = range(spec.vocab_size)
    if (
        spec.model != "bpe"
        or not spec.byte_fallback
        or spec.normalization != "identity"
        or spec.remove_extra_whitespaces
        or any(model.is_unused(id) for id in ids)
        or any("▁" in symbol or any(map(str.isspace, symbol)) for symbol in spec.user_symbols)
    ):
        return None
    normalizers: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    if spec.add_dummy_prefix:
        normalizers.insert(0, {"type": "Prepend", "prepend": "▁"})
    config: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "unk_token": model.id_to_piece(model.unk_id()),
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": {model.id_to_piece(id): id for id in ids},
            "merges": _merges(model),
        },
    }
    return msgspec.json.encode(config), list(spec.user_symbols)


def _merges(model: Any) -> list[list[str]]:
    scores = {
        model.id_to_piece(id): model.get_score(id)
        for id in range(model.get_piece_size())
        if not (model.is_control(id) or model.is_unknown(id) or model.is_byte(id))
    }
    merges = [
        (-score, whole[:cut], whole[cut:])
        for whole, score in scores.items()
        for cut in range(1, len(whole))
        if whole[:cut] in scores and whole[cut:] in scores
    ]
    merges.sort(key=lambda merge: (merge[0], -len(merge[1])))  # stable: ties stay in order of ids
    return [[left, right] for _, left, right in merges]


# --- the tokenizer ---

# fields of SentencePieceText, and of a piece in it
_PIECES = 2
_ID_BEGIN_END = (2, 4, 5)


class SentencePieceTokenizer(LibraryTokenizer):
    kind, library = "sentencepiece", f"sentencepiece {sentencepiece.__version__}"

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

    @cached_property
    def specials(self) -> dict[str, int]:
        """Control pieces, and those for bytes and the unknown: a text that spells one does not become it."""
        model = self._model
        return {
            model.id_to_piece(id): id
            for id in range(self.vocab_size)
            if model.is_control(id) or model.is_unknown(id) or model.is_byte(id)
        }

    @functools.cached_property
    def _for_fast(self) -> tuple[bytes, list[str]] | None:
        return for_gigatoken(self._model, self._data)

    def _load_fast(self) -> Any:
        found = self._for_fast
        return None if found is None else load_fast(lambda rs: rs.load_hf_json(found[0]))

    def _open_fast(self) -> Fast | None:
        if self._for_fast is None:
            return None
        symbols = self._for_fast[1]
        routed = literal_table(symbols) if symbols else None
        return open_fast(self._fast_model, self.encode, routed_literals=routed)

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
