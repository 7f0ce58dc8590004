"""What attributes of a start tag say of code and tables: languages, line numbers, spans of cells.

    <div class="highlight-python3 notranslate"><pre>    python3
    <code class="language-c++ hljs">                    c++
    <td class="gutter">, <span class="linenos">         line numbers
    <td colspan=2 rowspan="3">                          2 and 3

At most MAX_TAG bytes of a tag are looked at, so that any number of looks at it takes time by the node.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.htmltree import TAGS, TEXT, Tree, hash_name, is_space, name_hash, next_attribute
from tokmill.kernels.htmlwriter import step
from tokmill.kernels.jit import Bytes, Int, frozen

MAX_TAG = 4096
_MAX_TAG_AROUND = 512  # of elements around code, each of which may hold any number of it
# So many bytes of those are looked at in all, and one for each BYTES_PER_LOOK of the page: 100,000 <pre> in
# an element with many classes took a second. Of 766 real pages none has more than 0.07 looks per byte.
BYTES_PER_LOOK, LOOKS = 4, 1 << 16
_MAX_LANGUAGE = 24
_MAX_DIGITS = 9

U64 = np.uint64


def _hashes(names: str) -> NDArray[np.uint64]:
    return frozen(np.array([name_hash(name) for name in names.split()], np.uint64), np.uint64)


CLASS, HREF, ROLE, START, VALUE = (
    U64(name_hash(name)) for name in ["class", "href", "role", "start", "value"]
)
COLSPAN, ROWSPAN = U64(name_hash("colspan")), U64(name_hash("rowspan"))
_DATA_LANG, _DATA_LANGUAGE = U64(name_hash("data-lang")), U64(name_hash("data-language"))
PRESENTATION, NO_ROLE = U64(name_hash("presentation")), U64(name_hash("none"))

# Columns of line numbers that highlighters write, and the classes of a single number.
GUTTERS = _hashes(
    "linenos gutter lineno linenumber linenumbers line-number line-numbers blob-num rouge-gutter "
    "hljs-ln-numbers"
)
NUMBERS = _hashes(
    "linenos lineno ln lnt linenumber line-number linenumbers line-numbers blob-num hljs-ln-numbers gutter"
)
_CODE_CELL = U64(name_hash("code"))
# Classes after which the language stands by itself, Pandoc's, highlight.js's and SyntaxHighlighter's; and
# names that are none.
_BEFORE = 3
LANGUAGE_CLASSES = _hashes(
    "sourcecode hljs brush: "
    "none default nohighlight plaintext hljs highlight wrapper notranslate codehilite shiki numberlines"
)
LANGUAGE_PREFIXES = frozen(
    np.frombuffer(b"language-\0lang-\0highlight-source-\0highlight-\0brush:\0", np.uint8), np.uint8
)
_CODE, _PRE = TAGS["code"], TAGS["pre"]


@step
def find_attribute(data: Bytes, start: Int, end: Int, name: np.uint64) -> tuple[Int, Int]:
    """Where its value lies in the tag; -1 where there is none."""
    return find_in_tag(data, start, min(end, start + MAX_TAG), name)


@step
def find_in_tag(data: Bytes, start: Int, end: Int, name: np.uint64) -> tuple[Int, Int]:
    """The same of all bytes that are given."""
    at = start + 1
    while at < end and data[at] != 0x3E and data[at] != 0x2F and not is_space(data[at]):
        at += 1
    while at < end and data[at] != 0x3E:
        first, last, value, value_end, at = next_attribute(data, at, end)
        if last > first and hash_name(data, first, last) == name:
            return value, value_end
    return -1, -1


@step
def find_two_in_tag(
    data: Bytes, start: Int, end: Int, name: np.uint64, other: np.uint64
) -> tuple[Int, Int, Int, Int]:
    """Of two names in one walk."""
    at = start + 1
    found: Int = -1
    found_end: Int = -1
    other_at: Int = -1
    other_end: Int = -1
    while at < end and data[at] != 0x3E and data[at] != 0x2F and not is_space(data[at]):
        at += 1
    while at < end and data[at] != 0x3E:
        first, last, value, value_end, at = next_attribute(data, at, end)
        if last > first:
            hashed = hash_name(data, first, last)
            if hashed == name and found < 0:
                found, found_end = value, value_end
            elif hashed == other and other_at < 0:
                other_at, other_end = value, value_end
    return found, found_end, other_at, other_end


@step
def number_of(data: Bytes, start: Int, end: Int, name: np.uint64) -> Int:
    """The digits that an attribute begins with; -1 where there are none."""
    at, stop = find_attribute(data, start, end, name)
    first, number = at, np.int64(0)
    while at >= 0 and at < stop and at - first < _MAX_DIGITS and data[at] >= 0x30 and data[at] <= 0x39:
        number = 10 * number + np.int64(data[at] - 0x30)
        at += 1
    return number if at > first else -1


@step
def has_class(data: Bytes, start: Int, end: Int, names: NDArray[np.uint64]) -> bool:
    """One of those whose hashes are given."""
    at, stop = find_attribute(data, start, end, CLASS)
    while at >= 0 and at < stop:
        first = at
        while at < stop and not is_space(data[at]):
            at += 1
        value = hash_name(data, first, at)
        for k in range(names.size):
            if names[k] == value:
                return True
        at += 1
    return False


@step
def is_line_number(data: Bytes, tree: Tree, node: Int, numbers: NDArray[np.uint64]) -> bool:
    """An element of <pre> with the class of line numbers, and a number or nothing in it."""
    after = np.int64(tree.last[node])
    if after - node > 4 or not has_class(data, np.int64(tree.start[node]), np.int64(tree.end[node]), numbers):
        return False
    for k in range(node + 1, after):
        if tree.tag[k] == TEXT:
            first, stop = np.int64(tree.start[k]), np.int64(tree.end[k])
            if stop - first > 32:
                return False
            for at in range(first, stop):
                byte = data[at]
                if byte > 0x3A and byte != 0x7C and byte != 0xC2 and byte != 0xA0:
                    return False
    return True


@step
def is_code_cell(data: Bytes, tree: Tree, node: Int) -> bool:
    """A <td class=code> that holds lines without a <pre>."""
    at, stop = find_attribute(data, np.int64(tree.start[node]), np.int64(tree.end[node]), CLASS)
    if at < 0 or hash_name(data, at, stop) != _CODE_CELL:
        return False
    has_code = False
    for k in range(node + 1, min(np.int64(tree.last[node]), node + 64)):
        if tree.tag[k] == _PRE:
            return False
        has_code |= tree.tag[k] == _CODE
    return has_code


@step
def language_of(
    data: Bytes, tree: Tree, node: Int, names: NDArray[np.uint64], prefixes: Bytes, allowed: Int
) -> tuple[Int, Int, Int]:
    """Of a <pre>: where its name stands, in its own tag, in that of its <code>, or in those around it; and
    how many bytes of those around it were looked at, of which `allowed` may be.

    `names`: classes before it, _BEFORE of them, and then those that are none.
    """
    where = node
    looked: Int = 0
    for turn in range(8):
        if turn == 1:
            if node + 1 >= tree.last[node] or tree.tag[node + 1] != _CODE:
                continue
            where = node + 1
        elif turn > 1:
            where = np.int64(tree.parent[node if turn == 2 else where])
            if where <= 0:
                break
        start, end = np.int64(tree.start[where]), np.int64(tree.end[where])
        if turn > 1:
            end = min(end, start + _MAX_TAG_AROUND)
            if looked + end - start > allowed:
                break
            looked += end - start
        at, stop = find_attribute(data, start, end, CLASS)
        is_next = False
        has_attribute = False
        if at < 0:
            at = stop = end
        while True:
            # -- each class, and behind the last what `data-lang` says
            if at >= stop:
                if has_attribute:
                    break
                at, stop = find_attribute(data, start, end, _DATA_LANG)
                if at < 0:
                    at, stop = find_attribute(data, start, end, _DATA_LANGUAGE)
                if at < 0:
                    break
                has_attribute = is_next = True
            token = at
            while at < stop and not is_space(data[at]):
                at += 1
            token_end = at
            at += 1
            first = token_end
            prefix: Int = 0
            while prefix < prefixes.size and first == token_end:
                length: Int = 0
                is_same = True
                while prefixes[prefix + length]:
                    if token + length >= token_end or data[token + length] != prefixes[prefix + length]:
                        is_same = False
                    length += 1
                prefix += length + 1
                if is_same:
                    first = token + length
            if first == token_end and is_next:
                first = token
            value = hash_name(data, token, token_end)
            is_next = False
            for k in range(_BEFORE):
                is_next |= value == names[k]
            # -- what looks like a name, up to a semicolon or a brace
            behind = first
            while behind < token_end:
                byte = np.int64(data[behind])
                is_letter = (byte | 0x20) >= 0x61 and (byte | 0x20) <= 0x7A
                is_digit = byte >= 0x30 and byte <= 0x39
                if not (
                    is_letter or is_digit or byte == 0x2B or byte == 0x23 or byte == 0x2D or byte == 0x5F
                ):
                    break
                behind += 1
            if behind == first or behind - first > _MAX_LANGUAGE:
                continue
            if behind < token_end and data[behind] != 0x3B and data[behind] != 0x7B and data[behind] != 0x2C:
                continue
            value = hash_name(data, first, behind)
            is_none = False
            for k in range(_BEFORE, names.size):
                is_none |= value == names[k]
            if not is_none:
                return first, behind, looked
    return -1, -1, looked
