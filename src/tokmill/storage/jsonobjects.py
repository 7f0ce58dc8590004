"""JSON values as what a record carries: `meta`, which must be an object however its file spells it, and names.

    {"k": 1}          as it is
    "{\\"k\\": 1}"      a string that spells an object, as Parquet files have it: the object
    [1, 2], "web"     {"meta": [1, 2]}, {"meta": "web"}: under the key that it had

An object takes one line, and a line of JSON with it is one that the mill reads back.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from tokmill.kernels import jsonlines
from tokmill.storage.badlines import find_fault

_OBJECT = msgspec.json.Decoder(dict[str, Any])


def as_object(spelled: str, key: str) -> str:
    """The JSON of a value as that of an object, in one line."""
    if spelled.startswith("{"):
        return spelled
    if spelled.startswith('"'):
        return objects_of([msgspec.json.decode(spelled, type=str)], key)[0] or "{}"
    return _wrapped(spelled, key)


def as_name(spelled: str | None) -> str | None:
    """The JSON of a string or a number as a name."""
    value = None if spelled is None else msgspec.json.decode(spelled)
    if value is None or isinstance(value, dict | list):
        return None
    return value if isinstance(value, str) else spelled


def objects_of(texts: list[str | None], key: str) -> list[str | None]:
    """Each string that spells a JSON object, as strictly as lines are read; any other as a member of one."""
    lines = [text for text in texts if text is not None]
    if not _are_objects(lines):  # one of them is none: find out which
        texts = [None if text is None else _in_one_line(text, key) for text in texts]
    return texts


def _in_one_line(text: str, key: str) -> str:
    if _are_objects([text]):
        return text
    joined = text.replace("\r", " ").replace("\n", " ").strip()  # within a string both would be escaped
    if _are_objects([joined]):
        return joined
    return _wrapped(msgspec.json.encode(text).decode(), key)


def _are_objects(lines: list[str]) -> bool:
    """Every one from { to }, and as many objects as lines: then there is one in each."""
    if not all(line.startswith("{") and line.endswith("}") for line in lines):
        return False
    data = "\n".join(lines).encode()
    try:
        count = len(_OBJECT.decode_lines(data))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    starts, ends, flags, _ = jsonlines.audit_lines(data) if data else jsonlines.audit_lines(b"\n")
    return count == len(lines) == len(starts) and not any(
        find_fault(data[starts[row] : ends[row]], int(flags[row]), len(data))
        for row in np.flatnonzero(flags).tolist()
    )


def _wrapped(spelled: str, key: str) -> str:
    return f"{{{msgspec.json.encode(key).decode()}:{spelled}}}"
