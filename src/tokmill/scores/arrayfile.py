"""Arrays and facts in one file: the models that are trained here, and what they are trained from.

    tokmill\\n | uint32 version 1 | uint32 bytes of the header | header, JSON, spaces up to a multiple of 8
    array | array | …                        each as the header says, zeros up to a multiple of 8
    32 bytes                                 sha256 of all that is before them

    header   {"arrays":[["weights","<i2",[236035,1]],…],"facts":{…},"kind":"linear"}       keys in order

Equal arrays and facts are equal bytes, so the sha256 of the file is the identity of the model. A file that is
cut, longer than its header says, of another kind or changed in one bit is a CorruptFile. It holds no code.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.errors import CorruptFile
from tokmill.storage.disk import Written, load_bytes, open_commit

_MAGIC, _VERSION, _START = b"tokmill\n", 1, struct.Struct("<8sII")
_TYPES = ("|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f4", "<f8")
_DIGEST = 32


class _Header(msgspec.Struct, forbid_unknown_fields=True):
    arrays: list[tuple[str, str, list[int]]]
    facts: msgspec.Raw
    kind: str


class ArrayFile(NamedTuple):
    arrays: dict[str, NDArray[Any]]
    facts: bytes  # JSON
    sha256: str  # of the file


def write_arrays(path: Path, kind: str, facts: object, arrays: Mapping[str, NDArray[Any]]) -> Written:
    """Whole, or not at all. Facts are a msgspec.Struct, or of dicts, lists, strings and numbers."""
    placed = {name: _little(array) for name, array in arrays.items()}
    described = [(name, array.dtype.str, list(array.shape)) for name, array in placed.items()]
    plain = msgspec.json.encode({"arrays": described, "facts": facts, "kind": kind}, order="deterministic")
    header = plain + b" " * (-len(plain) % 8)
    digest = hashlib.sha256()
    with open_commit(path) as file:
        for piece in (
            _START.pack(_MAGIC, _VERSION, len(header)),
            header,
            *(
                part
                for array in placed.values()
                for part in (array.reshape(-1).view(np.uint8).data, bytes(-array.nbytes % 8))
            ),
        ):
            digest.update(piece)
            file.write(piece)
        file.write(digest.digest())
    return file.written


def load_arrays(path: Path, kind: str) -> ArrayFile:
    data = load_bytes(path)

    def corrupt(why: str) -> CorruptFile:
        return CorruptFile(f"no {kind} file of tokmill: {why}", where=str(path), next="copy or make it again")

    if len(data) < _START.size + _DIGEST:
        raise corrupt("it is too short")
    magic, version, size = _START.unpack_from(data)
    if magic != _MAGIC:
        raise corrupt("it begins otherwise")
    if version != _VERSION:
        raise corrupt(f"it is of version {version}, and this tokmill reads {_VERSION}")
    if hashlib.sha256(memoryview(data)[:-_DIGEST]).digest() != data[-_DIGEST:]:
        raise corrupt("it is cut or damaged (its sha256 is another)")
    try:
        header = msgspec.json.decode(data[_START.size : _START.size + size], type=_Header)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise corrupt(f"its header cannot be read ({error})") from None
    if header.kind != kind:
        raise corrupt(f"it is a {header.kind} file")
    arrays: dict[str, NDArray[Any]] = {}
    at = _START.size + size
    for name, dtype, shape in header.arrays:
        if dtype not in _TYPES or min(shape, default=0) < 0 or name in arrays:
            raise corrupt(f"it tells of an array {name} of {shape} {dtype}")
        count = math.prod(shape)
        length = count * np.dtype(dtype).itemsize
        if at + length > len(data) - _DIGEST:
            raise corrupt(f"it tells of more than it has, from {name} on")
        arrays[name] = np.frombuffer(data, dtype, count, at).reshape(shape)
        at += length + -length % 8
    if at != len(data) - _DIGEST:
        raise corrupt("it has more than it tells of")
    return ArrayFile(arrays, bytes(header.facts), hashlib.sha256(data).hexdigest())


def checked_arrays(
    file: ArrayFile, path: Path, wanted: Mapping[str, tuple[str, int]]
) -> tuple[NDArray[Any], ...]:
    """The arrays of these names, if they are all there is, each of its type and number of dimensions."""
    found = {name: (array.dtype.str, array.ndim) for name, array in file.arrays.items()}
    if found != dict(wanted):
        raise CorruptFile(f"has arrays {found}, not {dict(wanted)}", where=str(path), next="make it again")
    return tuple(file.arrays[name] for name in wanted)


def _little(array: NDArray[Any]) -> NDArray[Any]:
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    if little.dtype.str not in _TYPES:
        raise TypeError(f"no file has an array of {array.dtype}")
    return little
