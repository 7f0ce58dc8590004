"""JSON values and what a record makes of them: why a line is none, what becomes `meta`, what becomes a name.

A fault is what the audit saw or what the parser meant, in the words of the ledger. `meta` must be an object, however its
file spells it:

    {"k": 1}          as it is
    "{\\"k\\": 1}"      a string that spells an object, as Parquet files have it: the object
    [1, 2], "web"     {"meta": [1, 2]}, {"meta": "web"}: under the key that it had

An object takes one line, and a line of JSON with it is one that the mill reads back.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import msgspec
import numpy as np

from tokmill.kernels import jsonlines
from tokmill.storage.records import BadRecord

_NOT_JSON = re.compile(rb"(?:NaN|-?Infinity)\b")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def find_fault(line: bytes, flags: int, max_record_bytes: int) -> tuple[str, str] | None:
    """What is wrong with a line that the parser would accept."""
    if len(line) > max_record_bytes:
        return too_large(0, len(line), max_record_bytes)[1:3]
    if flags & jsonlines.INVALID_UTF8:
        try:
            line.decode()
        except UnicodeDecodeError as error:
            return "invalid_utf8", f"byte {error.start}: {error.reason}"
    if flags & jsonlines.TOO_DEEP:
        return "too_deep", f"nested deeper than {jsonlines.MAX_DEPTH} levels"
    if flags & (jsonlines.DUPLICATE_KEY | jsonlines.ESCAPED_KEY):
        duplicate = _duplicate_key(line)
        if duplicate:
            return "duplicate_key", duplicate
    return None


def _duplicate_key(line: bytes) -> str | None:
    found: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found.extend(key for key, count in Counter(key for key, _ in items).items() if count > 1)
        return dict(items)

    try:
        # numbers stay as they are written: Python refuses to convert more than 4,300 digits
        json.loads(line, object_pairs_hook=pairs, parse_int=str, parse_float=str)
    except (ValueError, RecursionError):
        return None  # not JSON at all: the parser says so
    return f"key {min(found)!r} occurs twice in one object" if found else None


def explain_error(line: bytes, error: Exception) -> tuple[str, str]:
    text = str(error)
    if isinstance(error, UnicodeDecodeError):
        return "invalid_utf8", f"byte {error.start} of a field: {error.reason}"
    if isinstance(error, RecursionError):
        return "too_deep", "nested deeper than the parser goes"
    if isinstance(error, msgspec.ValidationError):
        try:
            msgspec.json.decode(line, type=msgspec.Raw)
        except msgspec.DecodeError as deeper:
            text = str(deeper)  # the parser stopped at a wrong type, before the place where this is not JSON
        else:
            if "missing required field" in text:
                return "missing_field", text.replace("Object missing required field", "no field")
            if "got `null` - at `$." in text:
                return "missing_field", f"{text.rpartition(' - at ')[2]} is null"
            return "wrong_type", text
    surrogate = _SURROGATE.search(line)
    if surrogate and _has_lone_surrogate(line):
        return "lone_surrogate", f"byte {surrogate.start()}: half of a surrogate pair"
    literal = _NOT_JSON.search(line)
    if literal:
        return "invalid_json", f"byte {literal.start()}: {literal[0].decode()} is not JSON"
    return "invalid_json", text


def _has_lone_surrogate(line: bytes) -> bool:
    try:
        json.dumps(json.loads(line), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    except (ValueError, RecursionError):
        return False
    return False


def too_large(offset: int, size: int, max_record_bytes: int) -> BadRecord:
    return BadRecord(
        offset, "too_large", f"{size:,} bytes in one line; max_record_bytes is {max_record_bytes:,}"
    )


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
