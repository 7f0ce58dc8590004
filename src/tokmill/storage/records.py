"""What is asked of a file of records, and what it answers.

A codec is asked for `Wanted` columns and yields `Batch`es in file order:

    read_batches(path, wanted, ...) -> Batch(table, bad, offsets), Batch(table, bad, offsets), …

`table` has one large_string column per wanted name. A record that cannot be used is not in `table`; it is in
`bad` with where it lies and why, so that rows + bad = records, always. `offsets` says where each row lies.

JSON values, and what a record makes of them: why a line is none, what becomes `meta`, what becomes a name.

A fault is what the audit saw or what the parser meant, in the words of the ledger.
`meta` must be an object, however its file spells it:

    {"k": 1}          as it is
    "{\\"k\\": 1}"      a string that spells an object, as Parquet files have it: the object
    [1, 2], "web"     {"meta": [1, 2]}, {"meta": "web"}: under the key that it had

An object takes one line, and a line of JSON with it is one that the mill reads back.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.kernels import jsonlines


class Kind(StrEnum):
    TEXT = "text"  # must be a string
    LINES = "text or list of texts"  # a list of strings is one text, with a line for each
    TERMS = "licence or list of licences"  # all of them, as one expression
    SCALAR = "scalar"  # a string, or a number or boolean written as one
    JSON = "json"  # any value, kept as its JSON
    NAME = "name"  # a string, or a number written as one; any other value is no name, and null
    OBJECT = "object"  # a JSON object, or a string that spells one; any other value as {"<key>": value}


_PATH = re.compile(r"([^.\[\]]+)((?:\.[^.\[\]]+|\[-?\d+\])+)")

_STEP = re.compile(r"\.([^.\[\]]+)|\[(-?\d+)\]")


def outer_of(key: str) -> str:
    """The field that a path like `a.b` or `a[0].b` begins with; any other key itself."""
    path = _PATH.fullmatch(key)
    return path[1] if path else key


def steps_of(key: str) -> list[tuple[str | None, str | int]]:
    """Of a path behind its field: the rest of it as one key, which it may be at each place; and the next
    member or element."""
    rest = key.removeprefix(outer_of(key))
    return [
        (rest[step.start() + 1 :] if step[1] else None, step[1] or int(step[2]))
        for step in _STEP.finditer(rest)
    ]


class Wanted(NamedTuple):
    """Read `key` of each record into column `name`;
    where a record has none, or a null, the first of `others`.

    What `others` hold is looked at in those records alone: of another record it may be anything.
    """

    name: str
    key: str
    kind: Kind
    required: bool
    others: tuple[str, ...] = ()
    for_paths: bool = False  # an object, wanted only for paths into it that name no column

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key, *self.others)


class BadRecord(NamedTuple):
    """`offset`: bytes into the decompressed file, or the row number in a file of columns."""

    offset: int
    reason: str
    detail: str
    file: str = ""  # where a reader takes records from several files at once
    id: str = ""  # that the record or its file gives


class Batch(NamedTuple):
    table: Any
    bad: list[BadRecord]
    offsets: NDArray[np.int64]  # where each row of the table lies, as in BadRecord


class Peek(NamedTuple):
    """What the beginning of a file shows."""

    keys: list[str]
    is_whole: bool  # there are no others: it was all of the file, or a file says which columns it has


class Span(NamedTuple):
    """A part of a file: bytes [start, end) of what it is decompressed to, of one of columns row groups or
    batches."""

    start: int = 0
    end: int | None = None


WHOLE = Span()


class Seam(NamedTuple):
    """Of a part of a file that had to guess where its first record begins: where it took it to be, None for
    nowhere in it; and where the first record of the next part begins, None for the end of the file."""

    begins: int | None
    ends: int | None
    is_broken: bool = False  # it could not be read from there, as may be where the guess was wrong


def no_rows(wanted: Sequence[Wanted], bad: list[BadRecord]) -> Batch:
    return Batch(string_table(wanted, [[] for _ in wanted]), bad, np.empty(0, np.int64))


def join_list(value: Any, kind: Kind) -> Any:
    """A list of strings as one; anything else as it is."""
    if not isinstance(value, list):
        return value
    if kind is Kind.LINES:
        return "\n".join(value)
    # AND binds closer than OR
    return (
        " AND ".join(f"({one})" if len(value) > 1 and " OR " in one.upper() else one for one in value) or None
    )


def string_table(wanted: Sequence[Wanted], columns: list[Any]) -> Any:
    """`columns`: lists of strings and None, or large_string arrays."""
    arrays = [
        pa.array(column, pa.large_string()) if isinstance(column, list) else column for column in columns
    ]
    return pa.table(arrays, names=[want.name for want in wanted])


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
    text = str(error).replace("`str | array`", "`str`")
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


def id_of_line(line: bytes, wanted: Sequence[Wanted]) -> str:
    """Return the id that an unusable line of JSON gives, or "": it is looked for up to where the line is
    damaged."""
    keys = next((want.keys for want in wanted if want.name == "id"), ())
    members = _members_before_damage(line) if keys else {}
    for key in keys:
        value = members.get(key)
        if value is None and outer_of(key) in members:
            with contextlib.suppress(ValueError):
                value = walk(members[outer_of(key)], steps_of(key))
        if value is not None and not isinstance(value, dict | list):
            return known_id(value if isinstance(value, str) else json.dumps(value))
    return ""


def known_id(id: str | bytes | None) -> str:
    """The id of an unusable record: "" where it has none, or the id is damaged itself."""
    try:
        found = id.decode() if isinstance(id, bytes) else id or ""
        return found if found.strip() and found.encode() else ""
    except UnicodeError:
        return ""


_BEFORE_KEY, _BEFORE_VALUE = re.compile(r"\s*[{,]\s*"), re.compile(r"\s*:\s*")


def _members_before_damage(line: bytes) -> dict[str, Any]:
    text, decoder = line.decode(errors="surrogateescape"), json.JSONDecoder()
    found: dict[str, Any] = {}
    place = 0
    with contextlib.suppress(ValueError, RecursionError):
        while before := _BEFORE_KEY.match(text, place):
            key, place = decoder.raw_decode(text, before.end())
            between = _BEFORE_VALUE.match(text, place)
            found[key], place = decoder.raw_decode(text, between.end() if between else len(text))
    return found


def walk(value: Any, steps: list[tuple[str | None, str | int]]) -> Any:
    """What a path leads to in a JSON value; None where it leads nowhere."""
    for rest, step in steps:
        if isinstance(step, int):
            if not isinstance(value, list):
                raise ValueError(f"{_kind_of(value)} where [{step}] needs a list")
            value = value[step] if -len(value) <= step < len(value) else None
        else:
            if not isinstance(value, dict):
                raise ValueError(f"{_kind_of(value)} where `{step}` needs an object")
            if rest in value:
                return value[rest]
            value = value.get(step)
        if value is None:
            return None
    return value


def _kind_of(value: Any) -> str:
    return {str: "a string", list: "a list", dict: "an object", bool: "a boolean"}.get(
        type(value), "a number"
    )


def too_large(offset: int, size: int, max_record_bytes: int, unit: str = "line") -> BadRecord:
    return BadRecord(
        offset, "too_large", f"{size:,} bytes in one {unit}; max_record_bytes is {max_record_bytes:,}"
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
