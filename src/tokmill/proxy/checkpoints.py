"""Weights, and how far a training came, in one file that is whole or not there.

    file      bytes of the header, 8, little-endian │ header, JSON, spaces up to a multiple of 8 │ tensors
    header    {"__metadata__": {"tokmill": "<JSON>"},
               "<name>": {"dtype": "F32", "shape": [..], "data_offsets": [begin, end]}, …}

That is the format of safetensors (github.com/huggingface/safetensors), written and read here in a few lines:
whatever reads those files reads these. There is no code in it, as there is in a pickle. A checkpoint has the
weights by their names, `first:` and `second:` for both moments of AdamW, and in its metadata the state of the
loader, the steps and the losses so far.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.errors import CorruptFile
from tokmill.storage.disk import Written, load_bytes, open_commit

_TYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F64": np.dtype("<f8"), "I64": np.dtype("<i8")}
_NAMES = {dtype: name for name, dtype in _TYPES.items()}
_MAX_HEADER_BYTES = 100_000_000  # as the others have it


class Stored(NamedTuple):
    arrays: dict[str, NDArray[Any]]
    notes: dict[str, Any]


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]], notes: Mapping[str, Any]) -> Written:
    """Through the commit protocol: the one before stays until this one is on the disk."""
    header: dict[str, Any] = {"__metadata__": {"tokmill": json.dumps(notes, sort_keys=True)}}
    at = 0
    for name in sorted(arrays):
        array = arrays[name]
        header[name] = {
            "dtype": _NAMES[array.dtype.newbyteorder("<")],
            "shape": list(array.shape),
            "data_offsets": [at, at + array.nbytes],
        }
        at += array.nbytes
    encoded = msgspec.json.encode(header)
    encoded += b" " * (-len(encoded) % 8)
    with open_commit(path) as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for name in sorted(arrays):
            file.write(np.ascontiguousarray(arrays[name]).astype(arrays[name].dtype.newbyteorder("<")).data)
    return file.written


def load_arrays(path: Path) -> Stored:
    data = load_bytes(path)
    try:
        (length,) = struct.unpack_from("<Q", data)
        if length > min(_MAX_HEADER_BYTES, len(data) - 8):
            raise ValueError("its header is longer than the file")
        header = msgspec.json.decode(data[8 : 8 + length])
        notes = json.loads(header.pop("__metadata__", {}).get("tokmill", "{}"))
        arrays = {name: _array(data, 8 + length, told) for name, told in header.items()}
    except (struct.error, ValueError, KeyError, TypeError, AttributeError, msgspec.DecodeError) as error:
        raise CorruptFile(
            f"is no checkpoint, or a damaged one ({error})",
            where=str(path),
            next="delete the file: what it is of is trained again",
        ) from error
    return Stored(arrays, notes)


def _array(data: bytes, start: int, told: Mapping[str, Any]) -> NDArray[Any]:
    dtype = _TYPES[told["dtype"]]
    begin, end = told["data_offsets"]
    shape = tuple(told["shape"])
    if not 0 <= begin <= end <= len(data) - start or end - begin != dtype.itemsize * int(np.prod(shape)):
        raise ValueError("a tensor lies outside of the file, or is not as large as its shape")
    whole: NDArray[Any] = np.frombuffer(data[start + begin : start + end], dtype).reshape(shape)
    return whole.copy()
