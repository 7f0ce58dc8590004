r"""Presentation MathML as LaTeX.

    <mfrac><mi>a</mi><msqrt><mi>α</mi></msqrt></mfrac>     \frac{a}{\sqrt{\alpha}}

    nodes ─ one walk ─┬─ <mi>, <mn>, <mo>, … ─ characters ────────────────┐
                      └─ <mfrac>, <mrow>, … ── a frame: opened, ──────────┼─> bytes
                                               children, closed ──────────┘

All elements of MathML Core (https://www.w3.org/TR/mathml-core/), and of MathML 3 `mfenced`, `menclose` and
`maction`. Characters that LaTeX has no command for stay as they are. What lies deeper than MAX_DEPTH is
written as its text; a formula of more than MAX_NODES nodes or MAX_BYTES, or with more than MAX_SCRIPTS at one
base, is none.

What stands before its children is written when a frame is opened; what changes their order (indices of a
root, what is set above or below) is taken apart when it is closed: a byte moves at most MAX_DEPTH times.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.htmlattributes import find_attribute
from tokmill.kernels.htmlentities import space_width
from tokmill.kernels.htmltree import TEXT, Tree, hash_name, is_space
from tokmill.kernels.htmlwriter import Page, step
from tokmill.kernels.jit import Bytes, Int, code_at, holds, put_code, raw_step
from tokmill.kernels.latexbytes import (
    MAX_BYTES,
    ROOM,
    collapse,
    copy,
    exact_hash,
    insert,
    is_base,
    is_letter,
    put_base,
    put_byte,
    put_characters,
    put_group,
    put_in_text,
    put_piece,
    put_script,
    strip,
    texts,
    unescape,
)
from tokmill.kernels.mathsymbols import (
    ACCENTS_AT,
    CLOSE,
    COLUMNALIGN,
    ENCLOSED,
    FENCED,
    FIRST,
    FRACTION,
    FUNCTIONS_AT,
    GROUP,
    HASHES_END,
    KINDS_AT,
    LABELED,
    LEFT,
    LIMITS_AT,
    LINEBREAK,
    LINETHICKNESS,
    MATHVARIANT,
    MI,
    MN,
    MO,
    MS,
    MTEXT,
    MULTI,
    NEWLINE,
    NORMAL,
    NOTATION,
    NOTATIONS_AT,
    NOTHING,
    NUMBERS_END,
    OPEN,
    OVER_KIND,
    OVERLINE,
    P_ALIGNED,
    P_ATOP,
    P_BEGIN,
    P_BMATRIX,
    P_BRACES,
    P_CASES,
    P_END,
    P_FRAC,
    P_MATRIX,
    P_NEWLINE,
    P_OPERATOR,
    P_OVERBRACE,
    P_OVERSET,
    P_PHANTOM,
    P_PMATRIX,
    P_QUAD,
    P_ROOT,
    P_SQRT,
    P_TEXT,
    P_UNDERBRACE,
    P_UNDERSET,
    P_VMATRIX,
    PHANTOM,
    PIECES_AT,
    PRESCRIPTS,
    RIGHT,
    ROOT,
    ROW,
    SEPARATORS,
    SLOTS,
    SPACE,
    SQRT,
    SUBSUP,
    SUP,
    TABLE,
    TR,
    UNDER,
    UNDEROVER,
    VARIANTS_AT,
    WIDTH,
    Tables,
)

MAX_DEPTH = 64
MAX_NODES = 5000
MAX_SCRIPTS = 64
_MAX_NAME = 64
_MAX_SEPARATORS = 16
_MAX_NOTATIONS = 8
_MAX_LOOK = 512  # bytes of a text that is compared with a single character

U64 = np.uint64

# Places of a frame.
_END, _AFTER, _MODE, _START, _CHILDREN, _PREVIOUS, _DEPTH, _CLOSERS, _MARKS, _COUNT = range(10)
_EXTRA, _CODE_1, _CODE_LAST, _FIRST_CHILD, _NODE = range(10, 15)
_FRAMES = 2 * MAX_DEPTH + 16
_ALL = 1 << 30
# Of a mark: what follows it stands before the base.
_BEFORE, _PLACE = -(1 << 62), (1 << 62) - 1


class Work(NamedTuple):
    """What a conversion needs beside the page."""

    kinds: Bytes  # of the formula's nodes
    frames: NDArray[np.int64]
    marks: NDArray[np.int64]  # where children begin
    out: Bytes
    spare: Bytes


def work() -> Work:
    return Work(
        np.empty(MAX_NODES + 1, np.uint8),
        np.empty((15, _FRAMES), np.int64),
        np.empty((MAX_SCRIPTS + 2) * _FRAMES, np.int64),
        np.empty(ROOM, np.uint8),
        np.empty(ROOM, np.uint8),
    )


# --- elements ---


@step
def _join(frames: NDArray[np.int64], top: Int, out: Bytes, start: Int, to: Int) -> Int:
    """A part of a row that was written: a space before it where a command would run into its first letter."""
    if to == start:
        return to
    previous = frames[_PREVIOUS, top]
    if previous >= 0 and is_letter(np.int64(out[start])):
        at = start - 1
        while at >= previous and is_letter(np.int64(out[at])):
            at -= 1
        if at >= previous and at < start - 1 and out[at] == 0x5C:
            to = insert(out, start, to, 0x20)
            start += 1
    frames[_PREVIOUS, top] = start
    return to


@step
def _kind_of(data: Bytes, at: Int, end: Int, tables: Tables) -> Int:
    """By the name of a start tag, without its prefix."""
    at += 1
    end = min(end, at + _MAX_NAME)
    first = at
    while at < end and data[at] != 0x3E and data[at] != 0x2F and not is_space(data[at]):
        at += 1
        if data[at - 1] == 0x3A:
            first = at
    value = hash_name(data, first, at)
    slot = np.int64(value >> U64(32)) & (SLOTS - 1)
    while tables.hashes[KINDS_AT + slot]:
        if tables.hashes[slot] == value:
            return np.int64(tables.hashes[KINDS_AT + slot])
        slot = (slot + 1) & (SLOTS - 1)
    return np.int64(ROW)


@step
def _attribute(data: Bytes, tree: Tree, node: Int, name: np.uint64) -> tuple[Int, Int]:
    return find_attribute(data, np.int64(tree.start[node]), np.int64(tree.end[node]), name)


@step
def _only_character(page: Page, tree: Tree, node: Int, spare: Bytes) -> Int:
    """Of an element's text; 0 where it has none, -1 where it has more."""
    end = texts(page, tree, node, spare, np.int64(_MAX_LOOK))
    at: Int = 0
    only: Int = 0
    while at < end:
        width = space_width(spare, at, end)
        if width == 0:
            if only:
                return np.int64(-1)
            only, width = code_at(spare, at)
        at += width
    return only


@step
def _element_at(tree: Tree, node: Int, number: Int) -> Int:
    """A child that is an element; -1 where there are fewer."""
    k = node + 1
    while k < tree.last[node]:
        if tree.tag[k] != TEXT:
            if number == 0:
                return np.int64(k)
            number -= 1
        k = np.int64(tree.last[k])
    return np.int64(-1)


@step
def _matrix_of(opening: Int, closing: Int) -> Int:
    """The environment of a table between fences; -1 for any other."""
    if opening == 0x28 and closing == 0x29:
        return np.int64(P_PMATRIX)
    if opening == 0x5B and closing == 0x5D:
        return np.int64(P_BMATRIX)
    if opening == 0x7C and closing == 0x7C:
        return np.int64(P_VMATRIX)
    if opening == 0x7B and closing == 0x7D:
        return np.int64(P_BRACES)
    return np.int64(-1)


@step
def _fenced_table(page: Page, tree: Tree, node: Int, root: Int, work: Work) -> tuple[Int, Int]:
    """The table that a row is nothing but, between fences, and its environment; -1 where it is another."""
    first = _element_at(tree, node, 0)
    if first < 0 or work.kinds[first - root] != MO:
        return np.int64(-1), np.int64(-1)
    second = _element_at(tree, node, 1)
    kind = work.kinds[second - root] if second >= 0 else 0
    third = _element_at(tree, node, 2)
    if (kind != TABLE and kind != GROUP) or (third >= 0 and _element_at(tree, node, 3) >= 0):
        return np.int64(-1), np.int64(-1)
    table = second
    while work.kinds[table - root] != TABLE:
        inner = _element_at(tree, table, 0)
        if inner < 0 or _element_at(tree, table, 1) >= 0:
            return np.int64(-1), np.int64(-1)
        table = inner
    opening = _only_character(page, tree, first, work.spare)
    is_operator = third >= 0 and work.kinds[third - root] == MO
    closing = _only_character(page, tree, third, work.spare) if is_operator else np.int64(0)
    if opening == 0x7B and closing == 0 and (third < 0 or is_operator):
        return table, np.int64(P_CASES)
    environment = _matrix_of(opening, closing)
    return (table, environment) if environment >= 0 else (np.int64(-1), np.int64(-1))


@step
def _space_of(page: Page, tree: Tree, node: Int, out: Bytes, to: Int, tables: Tables) -> Int:
    """<mspace>: in em, ex (a half), px (a sixteenth) or pt (a twelfth)."""
    data = page.data
    at, end = _attribute(data, tree, node, LINEBREAK)
    if at >= 0 and exact_hash(data, at, end) == NEWLINE:
        to = put_byte(out, to, 0x5C)
        to = put_byte(out, to, 0x5C)
        return put_byte(out, to, 0x20)
    at, end = _attribute(data, tree, node, WIDTH)
    if at < 0:
        return to
    while at < end and is_space(data[at]):
        at += 1
    is_negative = at < end and data[at] == 0x2D
    at += is_negative
    value: Int = 0
    scale: Int = 1
    points = digits = 0
    while at < end and (data[at] == 0x2E or (data[at] >= 0x30 and data[at] <= 0x39)):
        if data[at] == 0x2E:
            points += 1
        else:
            digits += 1
            if scale < 10**9 and value < 10**9:
                value = 10 * value + np.int64(data[at] - 0x30)
                scale *= 10 if points else 1
        at += 1
    if digits == 0 or points > 1 or is_negative:
        return to
    while at < end and is_space(data[at]):
        at += 1
    unit: Int = 16
    if at + 1 < end:
        if data[at] == 0x65 and data[at + 1] == 0x6D:
            unit = 1
        elif data[at] == 0x65 and data[at + 1] == 0x78:
            unit = 2
        elif data[at] == 0x70 and data[at + 1] == 0x74:
            unit = 12
    if 10 * value >= 9 * unit * scale:
        return put_piece(out, to, tables, np.int64(P_QUAD))
    if value > 0:
        to = put_byte(out, to, 0x5C)
        to = put_byte(out, to, 0x3B if 4 * value >= unit * scale else 0x2C)
    return to


@step
def _token(page: Page, tree: Tree, node: Int, kind: Int, tables: Tables, work: Work, to: Int) -> Int:
    """<mi>, <mn>, <mo>, <mtext>, <ms>; of any other element its text."""
    data, out, spare = page.data, work.out, work.spare
    has_elements = kind == MTEXT and _element_at(tree, node, 0) >= 0
    end = texts(page, tree, node, spare, np.int64(MAX_BYTES))
    end = collapse(spare, end, kind == MTEXT and not has_elements)
    if kind == MTEXT or kind == MS:
        if kind == MTEXT and (end == 0 or (end == 1 and spare[0] == 0x20)):
            if tree.last[node] > node + 1:
                to = put_byte(out, to, 0x5C)
                to = put_byte(out, to, 0x20)
            return to
        to = put_piece(out, to, tables, np.int64(P_TEXT))
        if kind == MS:
            to = put_byte(out, to, 0x22)
        to = put_in_text(out, to, spare, end)
        if kind == MS:
            to = put_byte(out, to, 0x22)
        return put_byte(out, to, 0x7D)
    if kind != MI and kind != MN and kind != MO:
        return put_characters(out, to, spare, end, tables.text, tables.numbers)
    is_word = is_ascii = True
    for k in range(end):
        is_word = is_word and is_letter(np.int64(spare[k]))
        is_ascii = is_ascii and spare[k] < 0x80
    if (
        kind != MN
        and is_word
        and end > 1
        and holds(tables.hashes[FUNCTIONS_AT:LIMITS_AT], exact_hash(spare, np.int64(0), end))
    ):
        to = put_byte(out, to, 0x5C)
        return copy(out, to, spare, np.int64(0), end)
    piece: Int = -1
    if kind != MO:
        at, stop = _attribute(data, tree, node, MATHVARIANT)
        if at >= 0:
            value = exact_hash(data, at, stop)
            for k in range(VARIANTS_AT, NOTATIONS_AT, 2):
                if tables.hashes[k] == value:
                    piece = np.int64(tables.hashes[k + 1])
            if value == NORMAL and (kind == MN or not is_ascii):
                piece = -1
    if piece < 0 and kind != MN and is_word and end > 1:
        piece = P_OPERATOR
    if piece >= 0:
        to = put_piece(out, to, tables, piece)
    to = put_characters(out, to, spare, end, tables.text, tables.numbers)
    if piece >= 0:
        to = put_byte(out, to, 0x7D)
    return to


@raw_step
def _is_plain(data: Bytes, tree: Tree, node: Int, kind: Int) -> bool:
    """Is it <mi>, <mn> or <mo> without attributes and of one letter or digit, which stands for itself?"""
    if (kind != MI and kind != MN and kind != MO) or tree.last[node] != node + 2:
        return False
    if tree.tag[node + 1] != TEXT or tree.end[node + 1] - tree.start[node + 1] != 1:
        return False
    byte = np.int64(data[tree.start[node + 1]])
    return bool(tree.end[node] - tree.start[node] == 4 and (is_letter(byte) or 0x30 <= byte <= 0x39))


@step
def _accent(tables: Tables, code: Int, is_over: Int) -> Int:
    for k in range(ACCENTS_AT, NUMBERS_END):
        if tables.numbers[k, 0] == code and tables.numbers[k, 1] == is_over:
            return np.int64(tables.numbers[k, 2])
    return np.int64(-1)


@step
def _starts_with(text: Bytes, at: Int, end: Int, tables: Tables, piece: Int, size: Int) -> bool:
    first = np.int64(tables.numbers[PIECES_AT + piece, 0])
    if end - at < size:
        return False
    is_same = True
    for k in range(size):
        is_same = is_same and text[at + k] == tables.text[first + k]
    return is_same


@step
def _close_limits(
    page: Page, tree: Tree, top: Int, tables: Tables, work: Work, ends: tuple[Int, Int, Int]
) -> Int:
    """<munder>, <mover> and <munderover>, whose parts lie in `spare` up to `ends`."""
    frames, out, spare = work.frames, work.out, work.spare
    to = frames[_START, top]
    mode = frames[_MODE, top]
    base, second, third = ends
    zero = np.int64(0)
    below, below_end = (base, second) if mode != OVER_KIND else (zero, zero)
    above, above_end = (base, second) if mode == OVER_KIND else (second, third)
    if mode == UNDER:
        above, above_end = zero, zero
    is_operator = _starts_with(spare, zero, base, tables, np.int64(P_OPERATOR), np.int64(13))
    if is_operator or (
        base > 0 and base <= 16 and holds(tables.hashes[LIMITS_AT:VARIANTS_AT], exact_hash(spare, zero, base))
    ):
        to = put_base(out, to, spare, zero, base)
        to = put_script(out, to, spare, below, below_end, np.int64(0x5F))
        return put_script(out, to, spare, above, above_end, np.int64(0x5E))
    has_brace = _starts_with(spare, zero, base, tables, np.int64(P_UNDERBRACE), np.int64(11)) or _starts_with(
        spare, zero, base, tables, np.int64(P_OVERBRACE), np.int64(10)
    )
    under: Int = -1
    over: Int = -1
    if mode != OVER_KIND:
        under = _accent(tables, frames[_CODE_1, top], np.int64(0))
    if mode != UNDER:
        code = frames[_CODE_LAST, top]
        over = _accent(tables, code, np.int64(1))
        if code == 0xAF or code == 0x304:  # a bar over more than one character
            first = frames[_FIRST_CHILD, top]
            if first >= 0 and _only_character(page, tree, first, out[ROOM - 2 * _MAX_LOOK :]) < 0:
                over = OVERLINE
    if over >= 0:
        to = put_piece(out, to, tables, over)
    elif above_end > above and not has_brace:
        to = put_piece(out, to, tables, np.int64(P_OVERSET))
        to = copy(out, to, spare, above, above_end)
        to = put_byte(out, to, 0x7D)
        to = put_byte(out, to, 0x7B)
    if under >= 0:
        to = put_piece(out, to, tables, under)
    elif below_end > below and not has_brace:
        to = put_piece(out, to, tables, np.int64(P_UNDERSET))
        to = copy(out, to, spare, below, below_end)
        to = put_byte(out, to, 0x7D)
        to = put_byte(out, to, 0x7B)
    to = copy(out, to, spare, zero, base)
    if under >= 0 or (below_end > below and not has_brace):
        to = put_byte(out, to, 0x7D)
    elif below_end > below:
        to = put_group(out, to, spare, below, below_end, np.int64(0x5F))
    if over >= 0 or (above_end > above and not has_brace):
        to = put_byte(out, to, 0x7D)
    elif above_end > above:
        to = put_group(out, to, spare, above, above_end, np.int64(0x5E))
    return to


@step
def _close_scripts(top: Int, marks: Int, tables: Tables, work: Work, size: Int) -> Int:
    """<mmultiscripts>: pairs behind the base, and pairs before it from the last to the first; its children
    lie in `spare`."""
    frames, out, spare = work.frames, work.out, work.spare
    start = frames[_START, top]
    first = frames[_MARKS, top]
    children = marks - first
    to: Int = start
    if children == 0:
        return to
    divide = children
    for k in range(1, children):
        if work.marks[first + k] < 0 and divide == children:
            divide = k
    # -- behind: the base grows, to the left where a brace opens before it
    begin = start + divide // 2
    end = (work.marks[first + 1] & _PLACE) - start if children > 1 else size
    to = copy(out, begin, spare, np.int64(0), end)
    k = 1
    while k < divide:
        if not is_base(out, begin, to):
            begin -= 1
            out[begin] = 0x7B
            to = put_byte(out, to, 0x7D)
        for sign in (0x5F, 0x5E):
            if k < divide:
                at = (work.marks[first + k] & _PLACE) - start
                end = (work.marks[first + k + 1] & _PLACE) - start if k + 1 < children else size
                to = put_script(out, to, spare, at, end, np.int64(sign))
            k += 1
    to = copy(out, start, out, begin, to)
    # -- before: written behind it, and then moved
    base_end = to
    count = 0
    for k in range(divide, children):
        count += work.marks[first + k] >= 0
    pair = (count + 1) // 2 - 1
    while pair >= 0:
        to = put_byte(out, to, 0x7B)
        to = put_byte(out, to, 0x7D)
        number = 0
        for k in range(divide, children):
            if work.marks[first + k] < 0:
                continue
            if number // 2 == pair:
                at = work.marks[first + k] - start
                end = (work.marks[first + k + 1] & _PLACE) - start if k + 1 < children else size
                to = put_script(out, to, spare, at, end, np.int64(0x5E if number & 1 else 0x5F))
            number += 1
        pair -= 1
    if to > base_end:
        size = copy(spare, np.int64(0), out, start, to)
        moved = copy(out, start, spare, base_end - start, size)
        copy(out, moved, spare, np.int64(0), base_end - start)
    return to


@step
def _close(page: Page, tree: Tree, top: Int, marks: Int, tables: Tables, work: Work, to: Int) -> Int:
    """What stands behind the children of a frame, or is made of them."""
    frames, out, spare = work.frames, work.out, work.spare
    mode, children = frames[_MODE, top], frames[_CHILDREN, top]
    start = frames[_START, top]
    if mode == FRACTION:
        if children == 0 or children == 1:
            if frames[_EXTRA, top]:
                to = put_piece(out, to, tables, np.int64(P_ATOP))
            else:
                to = put_byte(out, to, 0x7D)
                to = put_byte(out, to, 0x7B)
        to = put_byte(out, to, 0x7D)
    elif mode == TABLE:
        to = put_piece(out, to, tables, np.int64(P_END))
        to = put_piece(out, to, tables, frames[_EXTRA, top])
        to = put_byte(out, to, 0x7D)
    elif mode == FENCED:
        first = to
        at, end = _attribute(page.data, tree, frames[_NODE, top], CLOSE)
        spare[0] = 0x29
        size = np.int64(1) if at < 0 else unescape(page, at, end, spare, np.int64(0), np.int64(MAX_BYTES))
        to = put_characters(out, to, spare, size, tables.text, tables.numbers)
        to = _join(frames, top, out, first, to)
    elif mode == MULTI:
        size = copy(spare, np.int64(0), out, start, to)
        to = _close_scripts(top, marks, tables, work, size)
    elif mode >= ROOT and mode <= UNDEROVER:
        size = copy(spare, np.int64(0), out, start, to)
        first = frames[_MARKS, top]
        base = work.marks[first + 1] - start if marks > first + 1 else size
        second = work.marks[first + 2] - start if marks > first + 2 else size
        if mode >= UNDER:
            return _close_limits(page, tree, top, tables, work, (base, second, size))
        to = start
        if mode == ROOT:
            to = put_piece(out, to, tables, np.int64(P_ROOT))
            to = copy(out, to, spare, base, size)
            to = put_byte(out, to, 0x5D)
            to = put_byte(out, to, 0x7B)
            to = copy(out, to, spare, np.int64(0), base)
            return put_byte(out, to, 0x7D)
        to = put_base(out, to, spare, np.int64(0), base)
        to = put_script(out, to, spare, base, second, np.int64(0x5E if mode == SUP else 0x5F))
        to = put_script(out, to, spare, second, size, np.int64(0x5E))
    for _ in range(frames[_CLOSERS, top]):
        to = put_byte(out, to, 0x7D)
    return to


@step
def write_latex(page: Page, tree: Tree, root: Int, tables: Tables, work: Work) -> Int:
    """The LaTeX of a <math> into `out`; its bytes, or -1 where it is too much."""
    data, tag, last = page.data, tree.tag, tree.last
    kinds, frames, places, out, spare = work.kinds, work.frames, work.marks, work.out, work.spare
    if last[root] - root > MAX_NODES:
        return np.int64(-1)
    for k in range(root, np.int64(last[root])):
        if tag[k] != TEXT:
            kinds[k - root] = _kind_of(data, np.int64(tree.start[k]), np.int64(tree.end[k]), tables)
    to: Int = 0
    top: Int = -1
    marks: Int = 0
    node: Int = root
    depth: Int = 0
    after = np.int64(last[root])
    position: Int = root
    while True:
        if to >= MAX_BYTES:
            return np.int64(-1)
        if top >= 0:
            mode = frames[_MODE, top]
            if position >= frames[_END, top]:
                start = frames[_START, top]
                if mode == ROW or mode == TR:  # a call takes as long as the rest of a small formula
                    for _ in range(frames[_CLOSERS, top]):
                        to = put_byte(out, to, 0x7D)
                else:
                    to = _close(page, tree, top, marks, tables, work, to)
                position, marks = frames[_AFTER, top], frames[_MARKS, top]
                top -= 1
                if top < 0:
                    return to
                to = _end_child(frames, top, out, start, to)
                continue
            if tag[position] == TEXT:
                if mode == ROW:
                    start = to
                    size = unescape(
                        page, np.int64(tree.start[position]), np.int64(tree.end[position]), spare,
                        np.int64(0), np.int64(MAX_BYTES),
                    )  # fmt: skip
                    to = put_characters(out, to, spare, strip(spare, size), tables.text, tables.numbers)
                    to = _join(frames, top, out, start, to)
                position += 1
                continue
            # -- the next child, and what stands before it
            node, after = position, np.int64(last[position])
            depth = frames[_DEPTH, top] + 1
            number = frames[_CHILDREN, top]
            if mode == FRACTION:
                if number == 1:
                    if frames[_EXTRA, top]:
                        to = put_piece(out, to, tables, np.int64(P_ATOP))
                    else:
                        to = put_byte(out, to, 0x7D)
                        to = put_byte(out, to, 0x7B)
            elif mode == TABLE:
                if number:
                    to = put_piece(out, to, tables, np.int64(P_NEWLINE))
                kind = kinds[node - root]
                if kind == TR or kind == LABELED:
                    top += 1
                    frames[_MODE, top], frames[_END, top], frames[_AFTER, top] = TR, after, after
                    frames[_START, top], frames[_PREVIOUS, top], frames[_COUNT, top] = to, -1, _ALL
                    frames[_CHILDREN, top] = -1 if kind == LABELED else 0
                    frames[_DEPTH, top], frames[_CLOSERS, top], frames[_MARKS, top] = depth, 0, marks
                    position += 1
                    continue
                depth += 1
            elif mode == TR:
                if number < 0:  # the label of a row
                    frames[_CHILDREN, top] = 0
                    position = after
                    continue
                if number:
                    to = put_byte(out, to, 0x20)
                    to = put_byte(out, to, 0x26)
                    to = put_byte(out, to, 0x20)
            elif mode == FENCED:
                if number and frames[_EXTRA, top]:
                    start = to
                    place = frames[_MARKS, top] + min(number, frames[_EXTRA, top]) - 1
                    size = put_code(spare, np.int64(0), places[place])
                    to = put_characters(out, to, spare, size, tables.text, tables.numbers)
                    to = put_byte(out, to, 0x20)
                    to = _join(frames, top, out, start, to)
            elif mode == MULTI:
                if marks - frames[_MARKS, top] > MAX_SCRIPTS:
                    return np.int64(-1)
                places[marks] = to | (_BEFORE if number and kinds[node - root] == PRESCRIPTS else 0)
                marks += 1
            elif mode >= ROOT and mode <= UNDEROVER:
                if number < frames[_COUNT, top]:
                    places[marks] = to
                    marks += 1
                if mode >= UNDER:
                    kind = kinds[node - root]
                    code: Int = 0
                    if kind == MO or kind == MI or kind == MTEXT:
                        code = _only_character(page, tree, node, spare)
                    if number == 0:
                        frames[_FIRST_CHILD, top] = node
                    if number == 1:
                        frames[_CODE_1, top] = code
                    if number >= frames[_COUNT, top] - 1:
                        frames[_CODE_LAST, top] = code
        # -- an element: its text, or a frame
        start = to
        position = after
        kind = np.int64(kinds[node - root])
        while kind == FIRST and depth <= MAX_DEPTH:
            node = _element_at(tree, node, np.int64(0))
            if node < 0:
                break
            depth += 1
            kind = np.int64(kinds[node - root])
        is_leaf = True
        if node < 0 or (depth <= MAX_DEPTH and (kind == NOTHING or kind == PRESCRIPTS)):
            pass
        elif depth > MAX_DEPTH:
            to = _token(page, tree, node, np.int64(ROW), tables, work, to)
        elif _is_plain(data, tree, node, kind):  # most tokens; a call takes as long as all of it
            to = put_byte(out, to, np.int64(data[tree.start[node + 1]]))
        elif kind <= MS and kind >= MI:
            to = _token(page, tree, node, kind, tables, work, to)
        elif kind == SPACE:
            to = _space_of(page, tree, node, out, to, tables)
        else:
            is_leaf = False
        if is_leaf:
            if top < 0:
                return to
            to = _end_child(frames, top, out, start, to)
            continue
        top += 1
        frames[_NODE, top], frames[_END, top], frames[_AFTER, top] = node, last[node], after
        frames[_START, top], frames[_DEPTH, top], frames[_MARKS, top] = start, depth, marks
        frames[_CHILDREN, top], frames[_PREVIOUS, top], frames[_CLOSERS, top] = 0, -1, 0
        frames[_COUNT, top], frames[_EXTRA, top] = 0, 0
        frames[_CODE_1, top], frames[_CODE_LAST, top], frames[_FIRST_CHILD, top] = 0, 0, -1
        position = node + 1
        table: Int = -1
        environment: Int = P_MATRIX
        if kind == FRACTION:
            frames[_COUNT, top] = 2
            at, end = _attribute(data, tree, node, LINETHICKNESS)
            frames[_EXTRA, top] = at >= 0 and _is_zero(data, at, end)
            if frames[_EXTRA, top]:
                to = put_byte(out, to, 0x7B)
            else:
                to = put_piece(out, to, tables, np.int64(P_FRAC))
        elif kind >= ROOT and kind <= UNDEROVER:
            frames[_COUNT, top] = 3 if kind == SUBSUP or kind == UNDEROVER else 2
        elif kind == MULTI:
            frames[_COUNT, top] = _ALL
        elif kind == TABLE:
            table = node
            at, end = _attribute(data, tree, node, COLUMNALIGN)
            if at >= 0 and _is_right_left(data, at, end):
                environment = P_ALIGNED
        elif kind == FENCED:
            table, environment, to = _open_fenced(page, tree, node, root, tables, work, top, marks, to)
            marks += frames[_EXTRA, top] if table < 0 else 0
        else:
            if kind == SQRT or kind == PHANTOM:
                to = put_piece(out, to, tables, np.int64(P_SQRT if kind == SQRT else P_PHANTOM))
                frames[_CLOSERS, top] = 1
            elif kind == ENCLOSED:
                to = _open_enclosed(page, tree, node, tables, work, top, marks, to)
            kind = np.int64(ROW)
            table, environment = _fenced_table(page, tree, node, root, work)
        frames[_MODE, top] = kind
        if table >= 0:
            frames[_MODE, top], frames[_END, top], frames[_COUNT, top] = TABLE, last[table], _ALL
            frames[_EXTRA, top] = environment
            to = put_piece(out, to, tables, np.int64(P_BEGIN))
            to = put_piece(out, to, tables, environment)
            to = put_byte(out, to, 0x7D)
            to = put_byte(out, to, 0x20)
            position = table + 1


@step
def _end_child(frames: NDArray[np.int64], top: Int, out: Bytes, start: Int, to: Int) -> Int:
    """A child that is written: those beyond the ones that have a place join the last."""
    if frames[_CHILDREN, top] >= frames[_COUNT, top]:
        to = _join(frames, top, out, start, to)
    else:
        frames[_PREVIOUS, top] = start if to > start else -1
    frames[_CHILDREN, top] += 1
    return to


@step
def _is_zero(data: Bytes, at: Int, end: Int) -> bool:
    """A thickness: 0, 0.0pt."""
    first = at
    while at < end and data[at] == 0x30:
        at += 1
    if at == first:
        return False
    if at + 1 < end and data[at] == 0x2E and data[at + 1] == 0x30:
        at += 1
        while at < end and data[at] == 0x30:
            at += 1
    while at < end and is_space(data[at]):
        at += 1
    while at < end and ((data[at] >= 0x61 and data[at] <= 0x7A) or data[at] == 0x25):
        at += 1
    return bool(at == end)


@step
def _is_right_left(data: Bytes, at: Int, end: Int) -> bool:
    """Columns of `columnalign`: the first two."""
    if end - at < 10 or exact_hash(data, at, at + 5) != RIGHT:
        return False
    at += 5
    first = at
    while at < end and is_space(data[at]):
        at += 1
    return bool(at > first and end - at >= 4 and exact_hash(data, at, at + 4) == LEFT)


@step
def _open_fenced(
    page: Page,
    tree: Tree,
    node: Int,
    root: Int,
    tables: Tables,
    work: Work,
    top: Int,
    marks: Int,
    to: Int,
) -> tuple[Int, Int, Int]:
    """<mfenced>: the table and the environment that it is, or -1 and what opens it, written."""
    data, out, spare = page.data, work.out, work.spare
    zero = np.int64(0)
    at, end = _attribute(data, tree, node, CLOSE)
    spare[0] = 0x29
    size = np.int64(1) if at < 0 else unescape(page, at, end, spare, zero, np.int64(MAX_BYTES))
    closing = np.int64(spare[0]) if size == 1 else zero
    at, end = _attribute(data, tree, node, OPEN)
    spare[0] = 0x28
    size = np.int64(1) if at < 0 else unescape(page, at, end, spare, zero, np.int64(MAX_BYTES))
    opening = np.int64(spare[0]) if size == 1 else zero
    only = _element_at(tree, node, zero)
    if only >= 0 and work.kinds[only - root] == TABLE and _element_at(tree, node, np.int64(1)) < 0:
        environment = _matrix_of(opening, closing)
        if environment >= 0:
            return only, environment, to
    first = to
    to = put_characters(out, to, spare, size, tables.text, tables.numbers)
    to = _join(work.frames, top, out, first, to)
    at, end = _attribute(data, tree, node, SEPARATORS)
    spare[0] = 0x2C
    size = np.int64(1) if at < 0 else unescape(page, at, end, spare, zero, np.int64(_MAX_LOOK))
    at, count = zero, zero
    while at < size and count < _MAX_SEPARATORS:
        code, width = code_at(spare, at)
        at += width
        if code != 0x20:
            work.marks[marks + count] = code
            count += 1
    work.frames[_EXTRA, top] = count
    return np.int64(-1), np.int64(-1), to


@step
def _open_enclosed(
    page: Page, tree: Tree, node: Int, tables: Tables, work: Work, top: Int, marks: Int, to: Int
) -> Int:
    """<menclose>: the last notation is the outermost."""
    data = page.data
    at, end = _attribute(data, tree, node, NOTATION)
    count: Int = 0
    while at >= 0 and at < end and count < _MAX_NOTATIONS:
        while at < end and is_space(data[at]):
            at += 1
        first = at
        while at < end and not is_space(data[at]):
            at += 1
        value = exact_hash(data, first, at)
        for k in range(NOTATIONS_AT, HASHES_END, 2):
            if tables.hashes[k] == value and at > first:
                work.marks[marks + count] = np.int64(tables.hashes[k + 1])
                count += 1
    for k in range(count):
        to = put_piece(work.out, to, tables, work.marks[marks + count - 1 - k])
    work.frames[_CLOSERS, top] = count
    return to
