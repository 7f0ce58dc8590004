"""What a SentencePiece model file says about itself.

    ModelProto      1 pieces*    2 trainer_spec    3 normalizer_spec             messages: (field, length, bytes)
    piece           1 text       2 score           3 type: 1 normal 2 unknown 3 control 4 user 6 byte
    trainer_spec    3 model type: 1 unigram 2 bpe 3 word 4 char    10 character_coverage    35 byte_fallback
    normalizer_spec 1 name       3 add_dummy_prefix    4 remove_extra_whitespaces    2 table of the normalization

Read here and not with protobuf: these few fields are all that is needed, and the format of the wire never changes.
A field that is not in the file has the default of sentencepiece_model.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

_UNIGRAM, _NORMAL = 1, 1
_MODELS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
_UNKNOWN, _CONTROL = 2, 3
USER = 4


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
    (value,) = struct.unpack("<f", single)
    return next(
        short
        for digits in range(1, 17)
        if struct.pack("<f", short := float(f"{value:.{digits}g}")) == single or digits == 16
    )
