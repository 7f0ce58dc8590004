from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernels.arrow_buffers import QUICK
from tokmill.kernels.jsonlines import (
    DUPLICATE_KEY,
    ESCAPED_KEY,
    INVALID_UTF8,
    MAX_LIVE_KEYS,
    TOO_DEEP,
    audit_lines,
)


def slow_lines(block: bytes) -> list[tuple[int, int]]:
    lines, start = [], 0
    for line in block.split(b"\n"):
        if line.strip(b" \t\r"):
            lines.append((start, start + len(line)))
        start += len(line) + 1
    return lines


def is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def has_duplicate_key(line: str) -> bool:
    found = False

    def check(pairs: list[tuple[str, Any]]) -> None:
        nonlocal found
        found |= len({key for key, _ in pairs}) != len(pairs)

    json.loads(line, object_pairs_hook=check)
    return found


def flags_of(line: bytes) -> int:
    audit = audit_lines(line)
    assert audit.flags.size == 1
    return int(audit.flags[0])


FRAGMENTS = st.sampled_from(
    [
        b"\n",
        b"\r\n",
        b" ",
        b"\t",
        b'"',
        b"\\",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b":",
        b'{"a":1}',
        b"\xc3\xa9",
        b"\xe2\x80\xa8",
    ]
)
BLOCKS = st.lists(FRAGMENTS | st.binary(max_size=12) | st.text(max_size=8).map(str.encode), max_size=40).map(
    b"".join
)


@QUICK
@given(BLOCKS)
def test_lines_end_at_newlines_only_and_blank_ones_have_no_row(block: bytes) -> None:
    audit = audit_lines(block)
    assert list(zip(audit.starts.tolist(), audit.ends.tolist(), strict=True)) == slow_lines(block)


@QUICK
@given(BLOCKS)
def test_utf8_is_valid_exactly_where_python_decodes_it(block: bytes) -> None:
    audit = audit_lines(block)
    valid = [is_utf8(block[a:b]) for a, b in zip(audit.starts, audit.ends, strict=True)]
    assert ((audit.flags & INVALID_UTF8) == 0).tolist() == valid


def test_every_short_byte_sequence_is_judged_as_python_judges_it() -> None:
    """All pairs of bytes, and three- and four-byte sequences at the borders of every range."""
    edges = [
        0x00,
        0x7F,
        0x80,
        0x8F,
        0x90,
        0x9F,
        0xA0,
        0xBF,
        0xC0,
        0xC1,
        0xC2,
        0xDF,
        0xE0,
        0xE1,
        0xEC,
        0xED,
        0xEE,
    ]
    edges += [0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF]
    lines = [bytes([a, b]) for a in range(256) for b in range(256)]
    lines += [bytes([a, b, c]) for a in edges for b in edges for c in edges]
    lines += [bytes([a, b, c, 0xBF]) for a in edges for b in edges for c in edges]
    lines = [b"pad" + line for line in lines if b"\n" not in line]
    flags = audit_lines(b"\n".join(lines)).flags
    assert [flag & INVALID_UTF8 == 0 for flag in flags.tolist()] == [is_utf8(line) for line in lines]


KEYS = st.sampled_from(
    ["a", "b", "text", "id", "a longer key", "a longer kez", "é", "日本", "", "{", "a:b", "],"]
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=12)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(st.tuples(KEYS, inner), max_size=5),
    ),
    max_leaves=20,
)


def dumps(value: Any, colon: str, comma: str, ascii_only: bool) -> str:
    """JSON in which a list of (key, value) is an object, with its equal keys."""
    if not isinstance(value, list):
        return json.dumps(value, ensure_ascii=ascii_only)
    items = [
        json.dumps(item[0], ensure_ascii=False) + colon + dumps(item[1], colon, comma, ascii_only)
        if isinstance(item, tuple)
        else dumps(item, colon, comma, ascii_only)
        for item in value
    ]
    is_object = bool(value) and isinstance(value[0], tuple)
    return ("{%s}" if is_object else "[%s]") % comma.join(items)


@QUICK
@given(
    st.lists(JSON, min_size=1, max_size=6),
    st.sampled_from([":", ": ", " : "]),
    st.sampled_from([",", ", "]),
    st.booleans(),
)
def test_equal_keys_are_found_in_the_object_that_has_them(
    values: list[Any], colon: str, comma: str, ascii_only: bool
) -> None:
    lines = [dumps(value, colon, comma, ascii_only) for value in values]
    flags = audit_lines("\n".join(lines).encode()).flags
    assert flags.tolist() == [DUPLICATE_KEY if has_duplicate_key(line) else 0 for line in lines]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"a":1,"a":2}', DUPLICATE_KEY),
        (b'{"a":1,"b":{"a":2}}', 0),
        (b'{"b":{"a":2},"a":1}', 0),
        (b'{"b":{"c":2},"b":1}', DUPLICATE_KEY),
        (b'[{"a":1},{"a":2}]', 0),
        (b'{"x":[{"a":1},{"a":2,"a":3}]}', DUPLICATE_KEY),
        (b'{"a":"a","b":"b"}', 0),
        (b'["a","a"]', 0),
        (b'{"a":["b","b"],"b":1}', 0),
        (b'{"a":"{\\"b\\":1,\\"b\\":2}"}', 0),
        (b'{"a":"\\\\","b":"\\\\","c":1}', 0),
        (b'{"a":"\\\\","a":1}', DUPLICATE_KEY),
        (b'{"a b":1,"a\\u0020b":2}', ESCAPED_KEY),
        (b'{"a":1,"a":2,"\\n":3}', DUPLICATE_KEY | ESCAPED_KEY),
        (b'{"":1,"":2}', DUPLICATE_KEY),
        (b'{"a":"\xff","a":1}', INVALID_UTF8 | DUPLICATE_KEY),
        (b'{"a":"\xed\xa0\x80"}', INVALID_UTF8),
        (b'{"12345678":1,"123456789":2,"1234567890123456":3}', 0),
        (b'{"12345678abcdefgh":1,"12345678abcdefgh":2}', DUPLICATE_KEY),
        (b"[" * 64 + b"]" * 64, 0),
        (b"[" * 65 + b"]" * 65, TOO_DEEP),
        (b'{"a":' * 64 + b"1" + b"}" * 64, 0),
        (b'{"a":' * 65 + b"1" + b"}" * 65, TOO_DEEP),
        (b'"' + b"[" * 100 + b'"', 0),
        (b"[" + b"[]," * 100 + b"[]]", 0),
        (b"[" * 63 + b'{"a":{},"a":1}' + b"]" * 63, TOO_DEEP),
        (b"[" * 63 + b'{"a":1,"a":1}' + b"]" * 63, DUPLICATE_KEY),
    ],
)
def test_flags_of(line: bytes, expected: int) -> None:
    assert flags_of(line) == expected
    assert flags_of(b"  " + line + b"\r\n") == expected


def test_more_keys_than_are_remembered_send_the_line_to_the_slow_check() -> None:
    def line(count: int) -> bytes:
        return json.dumps({f"key {n}": n for n in range(count)}).encode()

    assert flags_of(line(MAX_LIVE_KEYS)) == 0
    assert flags_of(line(MAX_LIVE_KEYS + 1)) == ESCAPED_KEY
    assert flags_of(line(MAX_LIVE_KEYS)[:-1] + b',"key 0":1}') == ESCAPED_KEY
    assert flags_of(line(MAX_LIVE_KEYS - 1)[:-1] + b',"key 0":1}') == DUPLICATE_KEY


def test_keys_are_forgotten_with_their_object() -> None:
    nested = b'{"n":[' + b",".join(b'{"a":1,"b":2}' for _ in range(MAX_LIVE_KEYS)) + b"]}"
    assert flags_of(nested) == 0


def test_a_block_of_many_tiny_lines_keeps_them_all() -> None:
    block = b'1\n\n{"a":1,"a":2}\n' * 5000
    audit = audit_lines(block)
    assert audit.flags.tolist() == [0, DUPLICATE_KEY] * 5000
    assert list(zip(audit.starts.tolist(), audit.ends.tolist(), strict=True)) == slow_lines(block)


@QUICK
@given(st.lists(FRAGMENTS, max_size=60).map(b"".join), st.integers(0, 20))
@example(b'{"', 0)
@example(b'{"a\\', 0)
@example(b"]}]}", 0)
@example(b'{]"a":1,}', 0)
@example(b'{"a"', 3)
def test_what_follows_a_line_never_changes_its_flags(line: bytes, extra: int) -> None:
    """Garbage included: the walk of a line neither runs on into the next one nor leaves anything behind."""
    line = line.replace(b"\n", b"")
    if not line.strip(b" \t\r"):
        return
    alone = flags_of(line)
    assert audit_lines(line + b"\n" + b'"}],{"' * extra).flags[0] == alone
    assert audit_lines(b'{"a":[{"b\n' * 3 + line).flags[-1] == alone


@pytest.mark.parametrize("block", [b"", b"\n", b" \t\r\n\n  "])
def test_a_block_without_lines_has_no_rows(block: bytes) -> None:
    assert audit_lines(block).starts.size == 0


def test_any_buffer_will_do() -> None:
    for block in (b"{}\n", bytearray(b"{}\n"), memoryview(b"{}\n"), np.frombuffer(b"{}\n", np.uint8)):
        assert audit_lines(block).ends.tolist() == [2]
