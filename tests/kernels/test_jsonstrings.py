r"""Strings between their quotes, read by the kernel and by Python's `json`, must be the same,
or be refused by both."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kernels.arrow_buffers import QUICK
from tokmill.kernels.jsonlines import audit_lines, unescape
from tokmill.schema import large_strings

PIECES = st.sampled_from(
    [
        "a",
        "plain text ",
        "é漢🥺",
        "\\n",
        '\\"',
        "\\\\",
        "\\/",
        "\\b\\f\\r\\t",
        "\\u0000",
        "\\u00e9",
        "\\u6F22",
        "\\uD83E\\uDD7A",
        "\\ud83e\\udd7a",
        "\\ud83e",
        "\\udd7a",
        "\\ud83e\\n",
        "\\ud83e\\u0041",
        "\\u12",
        "\\u00g0",
        "\\x41",
        "\\'",
        "\\",
        "\x1f",
        "\x7f",
        "\n",
        "\t",
    ]
)


def slow_unescape(strings: list[bytes]) -> list[str] | None:
    found = []
    for string in strings:
        try:
            found.append(str(json.loads(b'"' + string + b'"')))
            found[-1].encode()
        except (ValueError, UnicodeEncodeError):
            return None
    return found


def unescaped(strings: list[bytes]) -> list[str] | None:
    ends = np.cumsum([len(string) for string in strings], dtype=np.int64)
    firsts = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    found = unescape(np.frombuffer(b"".join(strings) or b"\0", np.uint8), firsts, ends)
    return None if found is None else [str(text) for text in large_strings(*found).to_pylist()]


@given(st.lists(st.lists(PIECES, max_size=12).map("".join).map(str.encode), min_size=1, max_size=5))
@example([b"\\", b"n"])  # the escape must not reach into the next string
@example([b"\\u00", b"e9"])
@example([b"\\ud83e", b"\\udd7a"])
@example([b"1234567\\", b"x"])
@QUICK
def test_strings_are_what_json_reads(strings: list[bytes]) -> None:
    assert unescaped(strings) == slow_unescape(strings)


@given(st.lists(st.text(max_size=40), min_size=1, max_size=6), st.booleans())
@QUICK
def test_what_json_writes_is_read_back(texts: list[str], ascii_only: bool) -> None:
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    assert unescaped([json.dumps(text, ensure_ascii=ascii_only)[1:-1].encode() for text in texts]) == texts


@pytest.mark.parametrize("size", [*range(25), 63, 64, 65])
def test_an_escape_is_found_at_any_place_of_a_word(size: int) -> None:
    for at in range(size + 1):
        string = b"x" * at + b"\\n" + b"y" * (size - at)
        assert unescaped([string, b"end"]) == ["x" * at + "\n" + "y" * (size - at), "end"]
        assert unescaped([b"x" * at + b"\x01" + b"y" * (size - at)]) is None


# -- where the strings are -------------------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text('ab"\\,:{}[]é\n', max_size=12),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["text", "t", "id"]), inner, max_size=3)
    ),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from(["text", "tex", "texts", "t", "a longer key", "id"]), VALUES)


@given(
    st.lists(OBJECTS, min_size=1, max_size=5), st.booleans(), st.sampled_from([(",", ":"), (" , ", " : ")])
)
@example([{"a longer key": "x", "text": "y"}, {"id": {"text": "inner"}}], True, (",", ":"))
@example(
    [{"id": ["text", "no value of a key"]}, {"text": ["in a list"]}, {"text": 1, "id": "x"}], True, (",", ":")
)
@QUICK
def test_the_strings_of_asked_keys_are_found(
    objects: list[dict[str, Any]], ascii_only: bool, separators: tuple[str, str]
) -> None:
    keys = ["text", "a longer key"]
    block = "".join(
        json.dumps(o, ensure_ascii=ascii_only, separators=separators) + "\n" for o in objects
    ).encode()
    strings = audit_lines(block, keys).strings
    assert strings.shape == (len(objects), len(keys), 2)
    for spans, record in zip(strings.tolist(), objects, strict=True):
        for (first, end), key in zip(spans, keys, strict=True):
            if isinstance(record.get(key), str):
                assert block[first - 1 : first] == block[end : end + 1] == b'"'
                assert unescaped([block[first:end]]) == [record[key]]
            else:
                assert (first, end) == (-1, -1)


def test_many_lines_keep_their_strings_when_the_room_for_them_grows() -> None:
    block = b'{"a":"x"}\n' * 5000
    strings = audit_lines(block, ["a"]).strings
    assert np.array_equal(strings[:, 0], np.arange(5000)[:, None] * 10 + [6, 7])
