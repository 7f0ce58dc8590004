"""Why a line is not a record: what the audit saw, or what the parser meant, in the words of the ledger."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import msgspec

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
