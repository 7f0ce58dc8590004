"""Tables of code points that are made once per version, and kept beside the compiled kernels.

    table-<function>-<Python>-<stamp>     zlib.crc32 of the rest:4 · head · \\n · bytes of each array
    head                                  [[dtype, shape], …]        a number is an array without a shape

The stamp is of all that decides: the text of the module and of those of this folder that it imports from, and
the version of Unicode. A file that is cut, or damaged, is made again; where nothing can be kept the table is
made by each process, in 0.05 to 0.1 s instead of hundredths.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sys
import unicodedata
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from tokmill.kernels.jit import source_stamp

Table = TypeVar("Table")


def cached_table(function: Callable[[], Table]) -> Callable[[], Table]:
    """Of a function that returns an array, or a named tuple of arrays and numbers; they are read-only."""

    @functools.cache
    @functools.wraps(function)
    def load() -> Table:
        path = table_path(function)
        if path is None:
            return function()
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            found: Table = _unpacked(path.read_bytes(), function)
            return found
        made = function()
        _keep(path, _packed(made))
        return made

    return load


def table_path(function: Callable[[], object]) -> Path | None:
    """None where compiled kernels are not kept either."""
    stamp = source_stamp(function.__module__)
    kernels = [
        value for value in vars(sys.modules[function.__module__]).values() if hasattr(value, "first_call")
    ]
    places = [kernel.stats.cache_path for kernel in kernels[:1]]  # of the module: it must have one
    if not stamp or not places or not places[0]:
        return None
    told = f"{stamp} {unicodedata.unidata_version} {sys.byteorder}"
    digest = hashlib.sha256(told.encode()).hexdigest()[:16]
    return Path(places[0]) / f"{_series(function.__name__)}-{digest}"


def _series(name: str) -> str:
    return f"table-{name.strip('_')}-{sys.implementation.cache_tag}"


def _packed(table: Any) -> bytes:
    arrays = [np.asarray(part) for part in (table if isinstance(table, tuple) else (table,))]
    head = json.dumps([[array.dtype.str, array.shape] for array in arrays]).encode() + b"\n"
    rest = head + b"".join(array.tobytes() for array in arrays)
    return zlib.crc32(rest).to_bytes(4, "little") + rest


def _unpacked(data: bytes, function: Callable[[], Any]) -> Any:
    rest = memoryview(data)[4:]
    if zlib.crc32(rest) != int.from_bytes(data[:4], "little"):
        raise ValueError("other bytes than were written")
    at = data.index(b"\n", 4) + 1
    parts: list[Any] = []
    for dtype, shape in json.loads(data[4:at]):
        count = int(np.prod(shape, dtype=np.int64))
        array = np.frombuffer(data, dtype, count, at).reshape(shape)
        at += array.nbytes
        parts.append(array if shape else array.item())
    kind = function.__annotations__["return"]
    made: Any = getattr(sys.modules[function.__module__], kind, None)  # a name: annotations are not evaluated
    return made(*parts) if made is not None else parts[0]


def _keep(path: Path, data: bytes) -> None:
    """Instead of those of other versions; where it cannot be written it is made again next time."""
    temp = path.with_name(f"{path.name}.{os.getpid()}")
    with contextlib.suppress(OSError):
        temp.write_bytes(data)
        temp.replace(path)
        for former in path.parent.glob(f"{path.name.rpartition('-')[0]}-*"):
            if former != path:
                former.unlink()
