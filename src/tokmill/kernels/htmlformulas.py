r"""Formulas of a page, as LaTeX: where they are, and what of the page is another picture of them.

    <math> with <annotation encoding="application/x-tex">     its text; KaTeX, MathJax 3, Wikipedia
    <math> without                                            converted (`mathml`)
    <script type="math/tex; mode=display">                    its text; MathJax 2, which draws spans before it
    <img class="latex" alt="x^2">                             its `alt`; Wikipedia, WordPress, Sphinx
    <span class="math">\(x^2\)</span>                         what the signs enclose; Sphinx, Pandoc

A formula covers the outermost of the elements that a renderer made around it, so that neither its drawing nor
its words for a screen reader are written beside it. Start tags of all of these have marks; most pages hold
none, and are searched for the marks alone. Formulas that a page writes as text, `$$x$$`, are text.

Time is linear in the bytes: what a tag says of the formulas in it is remembered, and texts of elements that
hold others of their kind are read up to LOOKS_PER_BYTE for each byte of the page.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.htmlattributes import CLASS, MAX_TAG, find_attribute, find_in_tag, find_two_in_tag
from tokmill.kernels.htmlentities import html_entities, space_width
from tokmill.kernels.htmlmarks import NO_FORMULAS, Formulas, marked_nodes
from tokmill.kernels.htmltree import (
    FNV,
    FNV_PRIME,
    MAX_DEPTH,
    TAGS,
    TEXT,
    TRAITS,
    WHITE,
    Tree,
    is_space,
    name_hash,
    name_table,
    parse,
    parse_into,
)
from tokmill.kernels.htmlwriter import Page, page_of, step
from tokmill.kernels.jit import Bytes, Int, Offsets, frozen, raw_kernel, raw_step
from tokmill.kernels.latexbytes import MAX_BYTES, unescape
from tokmill.kernels.mathml import Work, work, write_latex
from tokmill.kernels.mathsymbols import TABLES, Tables

MAX_LATEX = 20_000  # bytes: more is no formula
LOOKS_PER_BYTE, LOOKS = 2, 1 << 16
_MAX_ABOVE = 12  # elements around a formula that are looked at
_MAX_ANNOTATIONS = 8  # within one
_MAX_PARTS = 64  # nodes of a formula that is text
_PLAIN_TAG = len("<math>")
_MAX_WHITE = 16  # texts between the drawing of a formula and its script

U64 = np.uint64

# Classes of what renderers put around a formula.
_AROUND, _DRAWN, _DISPLAY, _IMAGE, _PREVIEW, _MATH_CLASS = 1, 2, 4, 8, 16, 32
_CLASSES = {
    _AROUND: """
        katex katex-display katex-mathml katex-block MathJax MathJax_Display MathJax_SVG MathJax_SVG_Display
        MathJax_CHTML MathJax_MathML MJXc-display MJX_Assistive_MathML mjx-chtml mjx-math mjx-full-width
        mwe-math-element mwe-math-mathml-inline mwe-math-mathml-display mwe-math-mathml-a11y
        mwe-math-element-inline mwe-math-element-block
    """,
    _DRAWN: "MathJax MathJax_Display MathJax_SVG MathJax_SVG_Display MathJax_CHTML MJXc-display mjx-chtml",
    _DISPLAY: """
        katex-display MathJax_Display MathJax_SVG_Display MJXc-display mwe-math-mathml-display
        mwe-math-fallback-image-display mwe-math-element-block
    """,
    _IMAGE: """
        latex tex math mathjax mathtex latexit texrender math-image mwe-math-fallback-image-inline
        mwe-math-fallback-image-display
    """,
    _PREVIEW: "MathJax_Preview",
    _MATH_CLASS: "math",
}
_SLOTS = 128
_KNOWN, _IS_SHOWN = 128, 64  # of an element around a formula: it was looked at; it says that it is displayed

_MATH, _SCRIPT, _IMG, _ANNOTATION, _DIV = (
    TAGS[name] for name in ["math", "script", "img", "annotation", "div"]
)
_ALT, _ALTTEXT, _TYPE, _ENCODING, _DISPLAY_NAME, _MODE = (
    U64(name_hash(name)) for name in ["alt", "alttext", "type", "encoding", "display", "mode"]
)


def _class_table() -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    bits: dict[str, int] = {}
    for bit, names in _CLASSES.items():
        for name in names.split():
            bits[name] = bits.get(name, 0) | bit
    hashes, values = np.zeros(_SLOTS, np.uint64), np.zeros(_SLOTS, np.uint8)
    for name, value in bits.items():
        slot = name_hash(name) >> 32 & _SLOTS - 1
        while values[slot]:
            slot = (slot + 1) & _SLOTS - 1
        hashes[slot], values[slot] = name_hash(name), value
    return frozen(hashes, np.uint64), frozen(values, np.uint8)


# Texts that are looked for, each behind the number of its bytes.
_TEXTS = [
    "math/tex", "math/mml", "math/", "mode=display", "tex", "ltx_Math", "block", "display", "true", "mjx-",
    "% <![CDATA[", "%]]>", "{\\displaystyle", "{\\textstyle", "{\\scriptstyle",
]  # fmt: skip
_T_TEX, _T_MML, _T_MATH, _T_MODE, _T_ENCODING, _T_LTX, _T_BLOCK, _T_DISPLAY, _T_TRUE, _T_MJX = range(10)
_T_CDATA, _T_CDATA_END, _T_DISPLAYSTYLE = 10, 11, 12
_WIDTH = 16


def _text_table() -> NDArray[np.uint8]:
    table = np.zeros((len(_TEXTS), _WIDTH), np.uint8)
    for row, text in enumerate(_TEXTS):
        table[row, 0] = len(text)
        table[row, 1 : 1 + len(text)] = list(text.encode())
    return table


class _Search(NamedTuple):
    """What is looked for, and what was learned."""

    hashes: NDArray[np.uint64]  # of classes
    bits: Bytes
    texts: NDArray[np.uint8]
    around: Bytes  # [node]: _KNOWN and what its tag says, 0 before it was looked at
    inner: Tree  # of a <script> of MathML; `inner_into` is the same memory


class _Inner(NamedTuple):
    """Where `parse_into` writes the tree of a <script>."""

    traits: Bytes
    hashes: NDArray[np.uint64]
    tag_of: Bytes
    opened: NDArray[np.int32]
    names: NDArray[np.int32]
    tag: Bytes
    parent: NDArray[np.int32]
    last: NDArray[np.int32]
    start: NDArray[np.int32]
    end: NDArray[np.int32]
    flags: Bytes


_HASHES, _BITS = _class_table()
_TEXT_TABLE = frozen(_text_table(), np.uint8)


def find_formulas(data: Bytes, tree: Tree) -> Formulas:
    nodes = marked_nodes(data, tree)
    return _found(data, tree, nodes) if nodes.size else NO_FORMULAS


def _found(data: Bytes, tree: Tree, nodes: NDArray[np.int32]) -> Formulas:
    size = tree.tag.size
    has_scripts = bool((tree.tag[nodes] == _SCRIPT).any())
    room = 2 * int(np.count_nonzero(data == 0x3C)) + 2 if has_scripts else 2
    tag, flags = np.empty(room, np.uint8), np.zeros(room, np.uint8)
    parent, last, start, end = np.empty((4, room), np.int32)
    inner = Tree(*(frozen(one, one.dtype.type) for one in (tag, parent, last, start, end, flags)))
    opened, names = np.zeros((6, MAX_DEPTH + 1), np.int32), np.zeros((2, 256), np.int32)
    into = _Inner(TRAITS, *name_table(), opened, names, tag, parent, last, start, end, flags)
    rows = np.empty((3, nodes.size), np.int32)
    offsets = np.zeros(nodes.size + 1, np.int64)
    search = _Search(_HASHES, _BITS, _TEXT_TABLE, np.zeros(size, np.uint8), inner)
    # a character may become a command of a dozen; what is not written takes no memory
    latex = np.empty(12 * data.size + 2 * MAX_LATEX, np.uint8)
    count = int(
        _find(
            page_of(data, html_entities()), tree, frozen(nodes, np.int32), search, into, TABLES, work(),
            rows, offsets, latex,
        )
    )  # fmt: skip
    if count == 0:
        return NO_FORMULAS
    return Formulas(
        frozen(rows[0, :count], np.int32),
        frozen(rows[1, :count], np.int32),
        frozen(latex[: offsets[count]].copy(), np.uint8),
        frozen(offsets[: count + 1], np.int64),
        frozen(rows[2, :count].astype(np.uint8), np.uint8),
    )


# --- what tags say ---


@step
def _classes(search: _Search, data: Bytes, start: Int, end: Int) -> Int:
    """The bits of all classes of a tag."""
    at, stop = find_in_tag(data, start, end, CLASS)
    return _bits(search, data, at, stop)


@step
def _bits(search: _Search, data: Bytes, at: Int, stop: Int) -> Int:
    """Of the classes in a value."""
    bits: Int = 0
    while at >= 0 and at < stop:
        value = FNV
        while at < stop and not is_space(data[at]):
            value = (value ^ U64(data[at])) * FNV_PRIME
            at += 1
        at += 1
        slot = np.int64(value >> U64(32)) & (_SLOTS - 1)
        while search.bits[slot]:
            if search.hashes[slot] == value:
                bits |= np.int64(search.bits[slot])
                break
            slot = (slot + 1) & (_SLOTS - 1)
    return bits


@step
def _begins(data: Bytes, at: Int, end: Int, texts: NDArray[np.uint8], text: Int) -> bool:
    size = np.int64(texts[text, 0])
    if end - at < size:
        return False
    is_same = True
    for k in range(size):
        is_same = is_same and data[at + k] == texts[text, 1 + k]
    return is_same


@raw_step
def _is(data: Bytes, at: Int, end: Int, texts: NDArray[np.uint8], text: Int) -> bool:
    return bool(at >= 0 and end - at == texts[text, 0] and _begins(data, at, end, texts, text))


@step
def _has(data: Bytes, at: Int, end: Int, texts: NDArray[np.uint8], text: Int, from_kind: bool) -> bool:
    """Somewhere in a value, or at its beginning; of a kind in any case and without spaces."""
    size = np.int64(texts[text, 0])
    while at >= 0 and at < end:
        k = at
        matched: Int = 0
        while k < end and matched < size:
            byte = np.int64(data[k])
            if from_kind:
                if byte == 0x20:
                    k += 1
                    continue
                byte = byte | 0x20 if byte >= 0x41 and byte <= 0x5A else byte
            if byte != texts[text, 1 + matched]:
                break
            matched += 1
            k += 1
        if matched == size:
            return True
        at += 1
    return False


@step
def _begins_kind(data: Bytes, at: Int, end: Int, texts: NDArray[np.uint8], text: Int) -> bool:
    """`type` of a script, in any case and without spaces."""
    size = np.int64(texts[text, 0])
    matched: Int = 0
    while at >= 0 and at < end and matched < size:
        byte = np.int64(data[at])
        at += 1
        if byte == 0x20:
            continue
        if (byte | 0x20 if byte >= 0x41 and byte <= 0x5A else byte) != texts[text, 1 + matched]:
            return False
        matched += 1
    return bool(matched == size)


@step
def _around(search: _Search, data: Bytes, tree: Tree, node: Int) -> Int:
    """What a tag says of the formulas in it, looked up once."""
    start = np.int64(tree.start[node])
    end = min(np.int64(tree.end[node]), start + MAX_TAG)
    bits = _classes(search, data, start, end)
    known: Int = _KNOWN | (bits & (_AROUND | _MATH_CLASS))
    is_mjx = _begins(data, start + 1, end, search.texts, np.int64(_T_MJX))
    if is_mjx:
        known |= _AROUND
        at, stop = find_attribute(data, start, end, _DISPLAY_NAME)
        if _is(data, at, stop, search.texts, np.int64(_T_TRUE)):
            known |= _IS_SHOWN
    if known & _AROUND and bits & _DISPLAY:
        known |= _IS_SHOWN
    search.around[node] = known
    return known


@raw_step
def _outermost(search: _Search, data: Bytes, tree: Tree, node: Int, after: Int) -> tuple[Int, bool]:
    """The last of the elements around it that a renderer made, and does one of them say that it is
    displayed?"""
    outermost, is_display = node, False
    above = np.int64(tree.parent[node])
    for _ in range(_MAX_ABOVE):
        if above < max(after, np.int64(1)):
            break
        known: Int = np.int64(search.around[above])
        if known == 0:
            known = _around(search, data, tree, above)
        if known & _AROUND:
            outermost = above
            is_display = is_display or known & _IS_SHOWN != 0
        above = np.int64(tree.parent[above])
    return outermost, is_display


# --- LaTeX ---


@step
def _strip(text: Bytes, at: Int, end: Int) -> tuple[Int, Int]:
    while at < end:
        width = space_width(text, at, end)
        if width == 0:
            break
        at += width
    while end > at:
        first = end - 1
        while first > at and text[first] & 0xC0 == 0x80:
            first -= 1
        if space_width(text, first, end) != end - first:
            break
        end = first
    return at, end


@step
def _enclosed(text: Bytes, at: Int, end: Int) -> Int:
    r"""1 for \(…\), 2 for \[…\] and $$…$$, 0 for any other."""
    if end - at < 4:
        return np.int64(0)
    first, second, third, fourth = text[at], text[at + 1], text[end - 2], text[end - 1]
    if first == 0x5C and third == 0x5C:
        if second == 0x28 and fourth == 0x29:
            return np.int64(1)
        if second == 0x5B and fourth == 0x5D:
            return np.int64(2)
    if first == 0x24 and second == 0x24 and third == 0x24 and fourth == 0x24:
        return np.int64(2)
    return np.int64(0)


@step
def _has_sign(text: Bytes, at: Int, end: Int) -> bool:
    r"""Another \(, \[ or $$ in it; a \\ hides nothing and is none."""
    before: Int = 0
    while at < end:
        byte = np.int64(text[at])
        if byte == 0x5C and at + 1 < end and text[at + 1] == 0x5C:
            at += 2
            continue
        if before == 0x5C and (byte == 0x28 or byte == 0x29 or byte == 0x5B or byte == 0x5D):
            return True
        if before == 0x24 and byte == 0x24:
            return True
        before = byte
        at += 1
    return False


@step
def _unstyled(text: Bytes, at: Int, end: Int, texts: NDArray[np.uint8]) -> tuple[Int, Int]:
    r"""What {\displaystyle …} holds, if its braces are balanced."""
    if end - at < 2 or text[end - 1] != 0x7D:
        return at, end
    for style in range(_T_DISPLAYSTYLE, _T_DISPLAYSTYLE + 3):
        if not _begins(text, at, end, texts, np.int64(style)):
            continue
        first = at + np.int64(texts[style, 0])
        byte = np.int64(text[first])
        lower = byte | 0x20
        if (
            (lower >= 0x61 and lower <= 0x7A)
            or (byte >= 0x30 and byte <= 0x39)
            or byte == 0x5F
            or byte >= 0x80
        ):
            continue
        while first < end - 1:
            width = space_width(text, first, end - 1)
            if width == 0:
                break
            first += width
        depth: Int = 0
        k = first
        while k < end - 1 and depth >= 0:
            if text[k] == 0x5C:
                k += 1
            elif text[k] == 0x7B:
                depth += 1
            elif text[k] == 0x7D:
                depth -= 1
            k += 1
        if depth == 0:
            return first, end - 1
    return at, end


@step
def _clean(text: Bytes, size: Int, out: Bytes, is_display: bool, texts: NDArray[np.uint8]) -> Int:
    """Without comments and empty lines, and on one line unless it is displayed."""
    is_clean = True  # as most short ones are: no space, sign of a dollar or a comment, command, brace
    for k in range(size):
        byte = text[k]
        is_clean = is_clean and 0x25 < byte < 0x80 and byte != 0x5C and byte != 0x7B and byte != 0x7D
        out[k] = byte
    if is_clean:
        return size
    at, end = _strip(text, np.int64(0), size)
    if _begins(text, at, end, texts, np.int64(_T_CDATA)):
        at += np.int64(texts[_T_CDATA, 0])
    width: Int = np.int64(texts[_T_CDATA_END, 0])
    if end - at >= width and _begins(text, end - width, end, texts, np.int64(_T_CDATA_END)):
        end -= width
    at, end = _strip(text, at, end)
    at, end = _unstyled(text, at, end, texts)
    if _enclosed(text, at, end):
        at += 2
        end -= 2
    elif end - at > 2 and text[at] == 0x24 and text[end - 1] == 0x24 and text[end - 2] != 0x5C:
        has_another = False
        for k in range(at + 1, end - 1):
            has_another |= text[k] == 0x24
        if not has_another:
            at += 1
            end -= 1
    to: Int = 0
    has_space = is_new = is_comment = False
    begin = at
    while at < end:
        byte = text[at]
        if byte == 0x0A:
            is_new, is_comment = True, False
            at += 1
            begin = at
            continue
        if byte == 0x25 and (at == begin or text[at - 1] != 0x5C):
            is_comment = True
        width = space_width(text, at, end)
        if width or is_comment:
            has_space = bool(has_space or width > 0)
            at += max(width, np.int64(1))
            continue
        if to > 0 and (is_new or has_space):
            out[to] = 0x0A if is_new and is_display else 0x20
            to += 1
        has_space = is_new = False
        out[to] = byte
        to += 1
        at += 1
    return to


# --- formulas ---


@step
def _text_of(page: Page, tree: Tree, node: Int, out: Bytes, is_raw: bool) -> Int:
    """Of all texts in an element; -1 where they are too many."""
    to: Int = 0
    for k in range(node + 1, np.int64(tree.last[node])):
        if tree.tag[k] == TEXT:
            start, end = np.int64(tree.start[k]), np.int64(tree.end[k])
            if is_raw:
                if to + end - start > MAX_BYTES:
                    return np.int64(-1)
                for at in range(start, end):
                    out[to] = page.data[at]
                    to += 1
            else:
                to = unescape(page, start, end, out, to, np.int64(MAX_BYTES))
            if to >= MAX_BYTES:
                return np.int64(-1)
    return to


@step
def _value(page: Page, at: Int, end: Int, out: Bytes) -> Int:
    """Of an attribute; -1 where it is missing or too long."""
    if at < 0:
        return np.int64(-1)
    size = unescape(page, at, end, out, np.int64(0), np.int64(MAX_BYTES))
    return size if size < MAX_BYTES else np.int64(-1)


@step
def _math(page: Page, tree: Tree, node: Int, texts: NDArray[np.uint8], tables: Tables, work: Work) -> Int:
    """The LaTeX of a <math> into `out`; -1 where it has none."""
    data, last = page.data, np.int64(tree.last[node])
    annotations = 0
    for k in range(node, last):
        if tree.tag[k] == _ANNOTATION and annotations < _MAX_ANNOTATIONS:
            annotations += 1
            at, end = find_attribute(data, np.int64(tree.start[k]), np.int64(tree.end[k]), _ENCODING)
            if _has(data, at, end, texts, np.int64(_T_ENCODING), True):
                return _text_of(page, tree, k, work.out, False)
    start, end = np.int64(tree.start[node]), np.int64(tree.end[node])
    if end - start > _PLAIN_TAG:
        at, stop = find_attribute(data, start, end, CLASS)
        if _has(data, at, stop, texts, np.int64(_T_LTX), False):
            at, stop = find_attribute(data, start, end, _ALTTEXT)
            if at >= 0:
                return _value(page, at, stop, work.out)
    return write_latex(page, tree, node, tables, work)


@step
def _script_of_mathml(
    page: Page, tree: Tree, node: Int, search: _Search, into: _Inner, tables: Tables, work: Work
) -> tuple[Int, bool]:
    """The LaTeX of the <math> that is the text of a <script>, and does it say that it is displayed?"""
    first, end = np.int64(tree.start[node + 1]), np.int64(tree.end[node + 1])
    inner = Page(page.data[first:end], page.keys, page.values, page.controls, page.tables)
    into.names[:] = 0
    into.opened[5] = 0
    into.flags[0] = 0
    nodes = parse_into(
        inner.data, into.traits, into.hashes, into.tag_of, into.opened, into.names, into.tag, into.parent,
        into.last, into.start, into.end, into.flags,
    )  # fmt: skip
    for k in range(1, nodes):
        if search.inner.tag[k] == _MATH:
            at, stop = find_attribute(
                inner.data, np.int64(into.start[k]), np.int64(into.end[k]), _DISPLAY_NAME
            )
            is_display = _is(inner.data, at, stop, search.texts, np.int64(_T_BLOCK))
            return write_latex(inner, search.inner, k, tables, work), is_display
    return np.int64(-1), False


@raw_kernel(lambda: _found(*_one_page()))
def _find(
    page: Page,
    tree: Tree,
    nodes: NDArray[np.int32],
    search: _Search,
    into: _Inner,
    tables: Tables,
    work: Work,
    rows: NDArray[np.int32],
    offsets: Offsets,
    latex: Bytes,
) -> Int:
    data, tag, texts = page.data, tree.tag, search.texts
    count: Int = 0
    until: Int = 0  # nodes before it need no look
    after: Int = 0  # formulas cover nodes before it
    looks: Int = LOOKS + LOOKS_PER_BYTE * data.size  # at texts of elements that may hold others of their kind
    for number in range(nodes.size):
        node = np.int64(nodes[number])
        if node < until:
            continue
        kind = tag[node]
        start, end = np.int64(tree.start[node]), np.int64(tree.end[node])
        last = np.int64(tree.last[node])
        where: Int = node
        size: Int = -1  # of its LaTeX in `out`
        is_display = False
        if kind == _MATH:
            until = last
            size = _math(page, tree, node, texts, tables, work)
            if size < 0:
                continue
            if end - start > _PLAIN_TAG:
                at, stop = find_attribute(data, start, end, _DISPLAY_NAME)
                is_display = _is(data, at, stop, texts, np.int64(_T_BLOCK))
                at, stop = find_attribute(data, start, end, _MODE)
                is_display = is_display or _is(data, at, stop, texts, np.int64(_T_DISPLAY))
            where, is_shown = _outermost(search, data, tree, node, after)
            is_display = is_display or is_shown
        elif kind == _SCRIPT:
            at, stop = find_attribute(data, start, end, _TYPE)
            is_display = _has(data, at, stop, texts, np.int64(_T_MODE), True)
            if _begins_kind(data, at, stop, texts, np.int64(_T_TEX)):
                size = _text_of(page, tree, node, work.out, True)
            elif _begins_kind(data, at, stop, texts, np.int64(_T_MML)) and last == node + 2:
                size, is_shown = _script_of_mathml(page, tree, node, search, into, tables, work)
                is_display = is_display or is_shown
        elif kind == _IMG:
            end = min(end, start + MAX_LATEX)
            classes, classes_end, at, stop = find_two_in_tag(data, start, end, CLASS, _ALT)
            bits = _bits(search, data, classes, classes_end)
            if bits & _IMAGE and at >= 0 and stop < end:
                size = _value(page, at, stop, work.out)
                first, stop = _strip(work.out, np.int64(0), size)
                if first >= stop:
                    continue
                where, is_shown = _outermost(search, data, tree, node, after)
                above = np.int64(tree.parent[node])
                is_display = is_shown or bits & _DISPLAY != 0
                if above > 0 and tag[above] == _DIV:
                    known: Int = np.int64(search.around[above])
                    if known == 0:
                        known = _around(search, data, tree, above)
                    is_display = is_display or known & _MATH_CLASS != 0
        else:
            bits = _classes(search, data, start, min(end, start + MAX_TAG))
            if bits & _PREVIEW:
                size = 0
            elif bits & _DRAWN:
                follower = last
                while follower < tag.size and follower < last + _MAX_WHITE and tree.flags[follower] & WHITE:
                    follower += 1
                if follower < tag.size and tag[follower] == _SCRIPT:
                    at, stop = find_attribute(
                        data, np.int64(tree.start[follower]), np.int64(tree.end[follower]), _TYPE
                    )
                    if _begins_kind(data, at, stop, texts, np.int64(_T_MATH)):
                        size = 0
            elif bits & _MATH_CLASS:
                length = np.int64(tree.end[last - 1]) - start
                if last - node > _MAX_PARTS or length > MAX_LATEX or length > looks:
                    continue
                looks -= length
                is_text = True
                for k in range(node, last):
                    is_text = is_text and tag[k] != _MATH and tag[k] != _SCRIPT and tag[k] != _IMG
                if not is_text:
                    continue
                first, stop = _strip(work.out, np.int64(0), _text_of(page, tree, node, work.out, False))
                sign = _enclosed(work.out, first, stop)
                if sign and not _has_sign(work.out, first + 2, stop - 2):
                    is_display = sign == 2
                    size = 0
                    for k in range(first + 2, stop - 2):
                        work.out[size] = work.out[k]
                        size += 1
        if size < 0:
            continue
        size = _clean(work.out, size, work.spare, is_display, texts)
        to = offsets[count]
        if size > MAX_LATEX or to + size > latex.size:
            continue
        for k in range(size):
            latex[to + k] = work.spare[k]
        until = after = np.int64(tree.last[where])
        rows[0, count], rows[1, count], rows[2, count] = where, until, is_display
        count += 1
        offsets[count] = to + size
    return count


def _one_page() -> tuple[Bytes, Tree, NDArray[np.int32]]:
    data = frozen(np.frombuffer(b"<math><mi>a", np.uint8), np.uint8)
    return data, parse(data), np.ones(1, np.int32)
