r"""LaTeX as bytes: texts of MathML are unescaped and spelled, groups and scripts are put around them.

Whoever writes has room for MAX_BYTES, and for what a step writes beyond it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.htmlentities import entity_at, space_width
from tokmill.kernels.htmltree import FNV, FNV_PRIME, TEXT, Tree
from tokmill.kernels.htmlwriter import Page, step
from tokmill.kernels.jit import Bytes, Int, code_at, raw_step
from tokmill.kernels.mathsymbols import BEGINS, ENDS, PIECES_AT, Tables

MAX_BYTES = 80_000
ROOM = MAX_BYTES + 16_384  # a step writes no more than that beyond it

U64 = np.uint64


@step
def exact_hash(data: Bytes, at: Int, end: Int) -> np.uint64:
    """Of a name as it is."""
    value = FNV
    for k in range(at, end):
        value = (value ^ U64(data[k])) * FNV_PRIME
    return value


@raw_step
def is_letter(byte: Int) -> bool:
    return bool((byte | 0x20) >= 0x61 and (byte | 0x20) <= 0x7A)


@step
def unescape(page: Page, at: Int, end: Int, out: Bytes, to: Int, limit: Int) -> Int:
    """Text with its entities decoded, up to so many bytes and a character."""
    data = page.data
    while at < end and to < limit:
        byte = data[at]
        if byte != 0x26:
            out[to] = byte
            to += 1
            at += 1
            continue
        word, width, at = entity_at(data, at, end, page.keys, page.values, page.controls, page.tables)
        for _ in range(width):
            out[to] = np.uint8(word)
            word >>= U64(8)
            to += 1
    return to


@step
def collapse(out: Bytes, end: Int, keeps_edges: bool) -> Int:
    """White space of any kind as one space, in place; none at the edges unless they are kept."""
    to: Int = 0
    at: Int = 0
    is_space_before = False
    while at < end:
        width = space_width(out, at, end)
        if width:
            is_space_before = True
            at += width
            continue
        if is_space_before and (to > 0 or keeps_edges):
            out[to] = 0x20
            to += 1
        is_space_before = False
        out[to] = out[at]
        to += 1
        at += 1
    if is_space_before and keeps_edges:
        out[to] = 0x20
        to += 1
    return to


@step
def texts(page: Page, tree: Tree, node: Int, out: Bytes, limit: Int) -> Int:
    """Of all that an element holds, one after the other."""
    to: Int = 0
    for k in range(node + 1, np.int64(tree.last[node])):
        if tree.tag[k] == TEXT:
            to = unescape(page, np.int64(tree.start[k]), np.int64(tree.end[k]), out, to, limit)
    return to


@step
def copy(out: Bytes, to: Int, data: Bytes, at: Int, end: Int) -> Int:
    for k in range(end - at):
        out[to + k] = data[at + k]
    return to + (end - at)


@raw_step
def put_piece(out: Bytes, to: Int, tables: Tables, piece: Int) -> Int:
    at = np.int64(tables.numbers[PIECES_AT + piece, 0])
    return copy(out, to, tables.text, at, at + np.int64(tables.numbers[PIECES_AT + piece, 1]))


@raw_step
def put_byte(out: Bytes, to: Int, byte: Int) -> Int:
    out[to] = byte
    return to + 1


@step
def put_characters(
    out: Bytes, to: Int, text: Bytes, end: Int, commands: Bytes, characters: NDArray[np.int32]
) -> Int:
    """With commands for them, and a space where one would run into a letter."""
    at: Int = 0
    after_command = False
    while at < end and to < MAX_BYTES:
        code, width = code_at(text, at)
        row: Int = code
        if code >= 128:
            row = -1
            low: Int = 128
            high: Int = PIECES_AT
            while low < high:
                middle = (low + high) >> 1
                if characters[middle, 0] < code:
                    low = middle + 1
                else:
                    high = middle
            if low < PIECES_AT and characters[low, 0] == code:
                row = low
        if row < 0:
            to = copy(out, to, text, at, at + width)
            after_command = False
        else:
            size = np.int64(characters[row, 2])
            flags = np.int64(characters[row, 3])
            if size:
                if after_command and flags & BEGINS:
                    to = put_byte(out, to, 0x20)
                first = np.int64(characters[row, 1])
                to = copy(out, to, commands, first, first + size)
                after_command = flags & ENDS != 0
        at += width
    return to


@step
def put_in_text(out: Bytes, to: Int, text: Bytes, end: Int) -> Int:
    r"""Of \text{}."""
    for k in range(end):
        byte = np.int64(text[k])
        if byte == 0x5C:
            continue
        if (
            byte == 0x25
            or byte == 0x23
            or byte == 0x26
            or byte == 0x24
            or byte == 0x5F
            or byte == 0x7B
            or byte == 0x7D
        ):
            to = put_byte(out, to, 0x5C)
        to = put_byte(out, to, byte)
        if to >= MAX_BYTES:
            break
    return to


@step
def insert(out: Bytes, at: Int, to: Int, byte: Int) -> Int:
    """A byte before what was written since."""
    for k in range(to - at):
        out[to - k] = out[to - 1 - k]
    out[at] = byte
    return to + 1


@step
def is_base(text: Bytes, at: Int, end: Int) -> bool:
    """Can it be given an index: one character, a command with at most one plain argument, a plain group."""
    if at >= end:
        return False
    _, width = code_at(text, at)
    if at + width == end:
        return True
    if text[at] == 0x5C:
        at += 1
        first = at
        while at < end and is_letter(np.int64(text[at])):
            at += 1
        if at == first:
            return False
        if at == end:
            return True
    if text[at] != 0x7B or text[end - 1] != 0x7D or at >= end - 1:
        return False
    at += 1
    while at < end - 1 and text[at] != 0x7B and text[at] != 0x7D:
        at += 1
    return bool(at == end - 1)


@step
def put_script(out: Bytes, to: Int, text: Bytes, at: Int, end: Int, sign: Int) -> Int:
    """Primes stay as they are."""
    if at == end:
        return to
    is_prime = sign == 0x5E
    for k in range(at, end):
        is_prime = is_prime and text[k] == 0x27
    if is_prime:
        return copy(out, to, text, at, end)
    return put_group(out, to, text, at, end, sign)


@step
def put_group(out: Bytes, to: Int, text: Bytes, at: Int, end: Int, sign: Int) -> Int:
    to = put_byte(out, to, sign)
    to = put_byte(out, to, 0x7B)
    to = copy(out, to, text, at, end)
    return put_byte(out, to, 0x7D)


@step
def put_base(out: Bytes, to: Int, text: Bytes, at: Int, end: Int) -> Int:
    if is_base(text, at, end):
        return copy(out, to, text, at, end)
    to = put_byte(out, to, 0x7B)
    to = copy(out, to, text, at, end)
    return put_byte(out, to, 0x7D)


@step
def strip(text: Bytes, end: Int) -> Int:
    """Without white space at either end, in place."""
    first: Int = 0
    while first < end:
        width = space_width(text, first, end)
        if width == 0:
            break
        first += width
    behind = at = first
    while at < end:
        width = space_width(text, at, end)
        at += max(width, np.int64(1))
        behind = behind if width else at
    return copy(text, np.int64(0), text, first, behind)
