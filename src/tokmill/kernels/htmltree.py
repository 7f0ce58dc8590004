"""The tree of a web page, in one pass over its bytes.

    <div><p>One<p>Two <b>x</b></div>

    node      0     1     2     3     4     5     6     7        0 is the document
    tag             div   p     #     p     #     b     #        # is text
    parent   -1     0     1     2     1     4     4     6
    last      8     8     4     4     8     6     8     8        one after its last descendant
    start           0     5     8     11    14    18    21       of the start tag, or of the text
    end             5     8     11    14    18    21    22

Elements nest as browsers nest them where it matters for text: void elements, elements whose end may be left
out, paragraphs that a block ends, tables that keep their cells apart, raw text, links that do not nest, end
tags that match nothing. Misnested formatting is not cloned; its end tag ends it for what follows. Comments,
declarations and end tags are no nodes. Entities are left as they are written.

Time is linear in the bytes, whatever they are: an end tag finds its element by a table of the last open
element of each name, and never by a search. Beyond MAX_DEPTH elements are siblings, as in browsers.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.jit import Bytes, Int, bytes_before, first_zero, frozen, load_word, raw_kernel, raw_step

MAX_DEPTH = 512

U64 = np.uint64
_LESS = U64(0x3C3C3C3C3C3C3C3C)

TEXT = 0
_NAMES = """
    html head body title meta link base script style noscript template div p span a b i em strong u s
    small big sub sup code tt kbd samp var font q cite abbr mark del ins time label br wbr hr img
    picture source video audio track iframe object embed param canvas svg math map area h1 h2 h3 h4 h5
    h6 ul ol li menu dl dt dd table caption colgroup col thead tbody tfoot tr td th pre blockquote
    figure figcaption article section main aside nav header footer hgroup address center details summary
    dialog form fieldset legend input button select option optgroup textarea output progress frame
    frameset noframes noembed xmp listing plaintext ruby rt rp rb bdi bdo data dfn annotation
    annotation-xml semantics mrow mi mn mo mtext mfrac msqrt mroot msup msub msubsup munder mover
    munderover mtable mtr mtd mspace mstyle mpadded mphantom menclose mfenced mmultiscripts merror ms
    amp-img tei
"""
TAGS: dict[str, int] = {name: number for number, name in enumerate(_NAMES.split(), 1)}
# Names that are not in the table: by their hash, so that an end tag most likely ends its own element.
_FIRST_OTHER = 240
_OTHERS = 15

_VOID = 1  # has no content
_RAW = 2  # its content is text, up to its end tag
_BLOCK = 4  # text before and after it are two blocks
_ENDS_P = 8
_BARRIER = 16  # end tags within it end nothing outside
_FORMAT = 32  # ends by itself, and not what is open within it
_HEAD = 64  # may stand in <head>


_HAVE = {
    _VOID: "area base br col embed hr img input link meta param source track wbr frame amp-img",
    _RAW: "script style title textarea iframe noembed noframes xmp plaintext",
    _BLOCK: """
        html body div p h1 h2 h3 h4 h5 h6 ul ol li menu dl dt dd table caption thead tbody tfoot tr td th pre
        blockquote figure figcaption article section main aside nav header footer hgroup address center
        details summary dialog form fieldset legend option optgroup select textarea hr listing xmp frameset
    """,
    _ENDS_P: """
        div p h1 h2 h3 h4 h5 h6 ul ol menu dl pre blockquote figure figcaption article section main aside nav
        header footer hgroup address center details summary dialog form fieldset hr listing xmp table
    """,
    _BARRIER: "table td th caption template object button",
    _FORMAT: "a b i em strong u s small big tt code font",
    _HEAD: "title meta link base script style noscript template",
}


def _traits() -> NDArray[np.uint8]:
    traits = np.zeros(256, np.uint8)
    for bit, names in _HAVE.items():
        for name in names.split():
            traits[TAGS[name]] |= bit
    return traits


TRAITS = frozen(_traits(), np.uint8)
_SLOTS = 1024
# FNV-1a in 64 bits (public domain, Fowler, Noll and Vo): names of tags, attributes and classes, and words.
FNV, FNV_PRIME = U64(0xCBF29CE484222325), U64(0x100000001B3)


def name_hash(name: str | bytes) -> int:
    """Of a name in lower case; `hash_name` in Python."""
    value = int(FNV)
    for byte in name.encode() if isinstance(name, str) else name:
        value = (value ^ byte) * int(FNV_PRIME) & 0xFFFFFFFFFFFFFFFF
    return value


def _slots() -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    hashes, tags = np.zeros(_SLOTS, np.uint64), np.zeros(_SLOTS, np.uint8)
    for name, tag in TAGS.items():
        value = name_hash(name)
        slot = value >> 32 & _SLOTS - 1
        while tags[slot]:
            slot = (slot + 1) & _SLOTS - 1
        hashes[slot], tags[slot] = value, tag
    return frozen(hashes, np.uint64), frozen(tags, np.uint8)


_HASHES, _TAG_OF = _slots()


def name_table() -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """Hashes of the names of tags, and the number of each: what `parse_into` asks."""
    return _HASHES, _TAG_OF


_A, _P, _LI, _UL, _OL, _MENU = (TAGS[name] for name in ["a", "p", "li", "ul", "ol", "menu"])
_DL, _DT, _DD, _SELECT, _OPTION = (TAGS[name] for name in ["dl", "dt", "dd", "select", "option"])
_TABLE, _TR, _TD, _TH, _CAPTION = (TAGS[name] for name in ["table", "tr", "td", "th", "caption"])
_THEAD, _TBODY, _TFOOT, _COLGROUP = (TAGS[name] for name in ["thead", "tbody", "tfoot", "colgroup"])
_H1, _H6, _HTML, _HEAD_TAG, _BODY = (TAGS[name] for name in ["h1", "h6", "html", "head", "body"])
_SVG, _MATH, _TITLE, _PLAINTEXT = (TAGS[name] for name in ["svg", "math", "title", "plaintext"])

IN_LINK = 1  # of a text: within <a>
WHITE = 2  # nothing but white space


class Tree(NamedTuple):
    tag: NDArray[np.uint8]
    parent: NDArray[np.int32]
    last: NDArray[np.int32]
    start: NDArray[np.int32]
    end: NDArray[np.int32]
    flags: NDArray[np.uint8]


def parse(data: Bytes) -> Tree:
    """Of UTF-8; at most 2 GB."""
    data = frozen(data, np.uint8)
    room = 2 * int(np.count_nonzero(data == 0x3C)) + 2
    tag, flags = np.empty(room, np.uint8), np.zeros(room, np.uint8)
    parent, last, start, end = np.empty((4, room), np.int32)
    nodes = parse_into(
        data,
        TRAITS,
        _HASHES,
        _TAG_OF,
        np.zeros((6, MAX_DEPTH + 1), np.int32),
        np.zeros((2, 256), np.int32),
        tag,
        parent,
        last,
        start,
        end,
        flags,
    )
    return Tree(*(frozen(one[:nodes], one.dtype.type) for one in (tag, parent, last, start, end, flags)))


@raw_step
def is_space(byte: Int) -> bool:
    return bool(byte == 0x20 or (byte >= 0x09 and byte <= 0x0D and byte != 0x0B))


@raw_step
def hash_name(data: Bytes, at: Int, end: Int) -> np.uint64:
    """Of a name in any case."""
    value = FNV
    for k in range(at, end):
        byte = np.int64(data[k])
        value = (value ^ U64(byte | 0x20 if byte >= 0x41 and byte <= 0x5A else byte)) * FNV_PRIME
    return value


@raw_step
def _is_letter(byte: Int) -> bool:
    return bool((byte | 0x20) >= 0x61 and (byte | 0x20) <= 0x7A)


@raw_step
def next_attribute(data: Bytes, at: Int, end: Int) -> tuple[Int, Int, Int, Int, Int]:
    """Where the name and the value of the attribute at or after `at` lie, and where to go on. After the last
    one the name is empty, and `at` is at the ">", or at `end`."""
    while at < end and (is_space(data[at]) or data[at] == 0x2F):
        at += 1
    name = at
    if at >= end or data[at] == 0x3E:
        return name, name, at, at, at
    at += 1  # a "=" here is part of the name
    while at < end:
        byte = data[at]
        if byte == 0x3D or byte == 0x3E or byte == 0x2F or is_space(byte):
            break
        at += 1
    name_end = at
    while at < end and is_space(data[at]):
        at += 1
    if at >= end or data[at] != 0x3D:
        return name, name_end, name_end, name_end, at
    at += 1
    while at < end and is_space(data[at]):
        at += 1
    if at < end and (data[at] == 0x22 or data[at] == 0x27):
        quote = data[at]
        at += 1
        value = at
        while at < end and data[at] != quote:
            at += 1
        return name, name_end, value, at, min(at + 1, end)
    value = at
    while at < end and data[at] != 0x3E and not is_space(data[at]):
        at += 1
    return name, name_end, value, at, at


@raw_kernel(lambda: parse(np.frombuffer(b"<p>a", np.uint8)))
def parse_into(
    data: Bytes,
    traits: Bytes,
    hashes: NDArray[np.uint64],
    tag_of: Bytes,
    opened: NDArray[np.int32],
    names: NDArray[np.int32],
    tag: Bytes,
    parent: NDArray[np.int32],
    last: NDArray[np.int32],
    start: NDArray[np.int32],
    end: NDArray[np.int32],
    flags: Bytes,
) -> Int:
    open_node, open_tag = opened[0], opened[1]
    open_before = opened[2]  # the one of the same name before it
    open_barrier, open_block = opened[3], opened[4]  # the last one, itself included
    is_ended = opened[5]  # formatting that ended before what it holds
    top = names[0]  # where the last open element of a name is; 0: none is open
    skipped = names[1]  # deeper than MAX_DEPTH, and not ended
    size = data.size
    tag[0], parent[0], last[0], start[0], end[0] = 0, -1, 0, 0, 0
    nodes: Int = 1
    depth: Int = 0
    at: Int = 0
    text: Int = 0  # where the text began that goes on here
    while at <= size:
        # -- text up to the next "<" that begins something
        while at < size and data[at] != 0x3C:
            if size - at >= 8:
                marks = first_zero(load_word(data, at) ^ _LESS)
                if marks == U64(0):
                    at += 8
                    continue
                at += bytes_before(marks)
                break
            at += 1
        follower: Int = data[at + 1] if at + 1 < size else 0
        is_end = follower == 0x2F
        second: Int = data[at + 2] if at + 2 < size else 0
        is_tag = _is_letter(second if is_end else follower)
        if at < size and not (is_tag or is_end or follower == 0x21 or follower == 0x3F):
            at += 1
            continue
        if at > text:
            white: Int = WHITE
            for k in range(text, at):
                if not is_space(data[k]):
                    white = 0
                    break
            head: Int = top[_HEAD_TAG]
            if not white and head and depth == head:  # text stands in the body
                top[_HEAD_TAG] = open_before[head]
                last[open_node[head]] = nodes
                depth -= 1
            tag[nodes], parent[nodes], start[nodes], end[nodes] = TEXT, open_node[depth], text, at
            flags[nodes] = white | (IN_LINK if top[_A] else 0)
            last[nodes] = nodes + 1
            nodes += 1
        if at >= size:
            break
        begin = at
        if not is_tag:
            if follower == 0x21 and second == 0x2D and at + 3 < size and data[at + 3] == 0x2D:
                at += 4
                if at < size and data[at] == 0x3E:
                    at += 1
                elif at + 1 < size and data[at] == 0x2D and data[at + 1] == 0x3E:
                    at += 2
                else:
                    while at < size:  # "-->", or the "--!>" of a slip
                        if data[at] == 0x3E:
                            dash = at - 1 if data[at - 1] != 0x21 else at - 2
                            if data[dash] == 0x2D and data[dash - 1] == 0x2D and dash > begin + 4:
                                break
                        at += 1
                    at += 1
            else:
                while at < size and data[at] != 0x3E:
                    at += 1
                at += 1
            at = min(at, size)
            text = at
            continue

        # -- the name, and the end of the tag
        at += 2 if is_end else 1
        value = FNV
        while at < size:
            byte: Int = data[at]
            if byte == 0x3E or byte == 0x2F or is_space(byte):
                break
            if byte >= 0x41 and byte <= 0x5A:
                byte |= 0x20
            value = (value ^ U64(byte)) * FNV_PRIME
            at += 1
        slot = np.int64(value >> U64(32)) & (_SLOTS - 1)
        name: Int = 0
        while tag_of[slot]:
            if hashes[slot] == value:
                name = tag_of[slot]
                break
            slot = (slot + 1) & (_SLOTS - 1)
        if name == 0:
            name = _FIRST_OTHER + np.int64(value >> U64(40)) % _OTHERS
        while at < size and data[at] != 0x3E:
            _, _, _, _, at = next_attribute(data, at, size)
        if at >= size:
            text = size
            break  # the tag does not end: it is none
        closes_itself = data[at - 1] == 0x2F
        at += 1
        text = at
        trait: Int = traits[name]
        pop: Int = depth + 1

        if is_end:
            if name == _HTML or name == _BODY:
                continue
            if depth == MAX_DEPTH and skipped[name]:
                skipped[name] -= 1
                continue
            where: Int = top[name]
            if name >= _H1 and name <= _H6:
                for other in range(_H1, _H6 + 1):
                    where = max(where, top[other])
            if where == 0:
                continue
            if name == _TABLE:
                pop = where
            elif (
                name == _TR
                or name == _TD
                or name == _TH
                or name == _CAPTION
                or name == _THEAD
                or name == _TBODY
                or name == _TFOOT
            ):
                if where > top[_TABLE]:
                    pop = where
            elif where >= open_barrier[depth]:
                pop = where
                if trait & _FORMAT and open_block[depth] > where:
                    is_ended[where] = 1
                    top[name] = open_before[where]
                    pop = depth + 1
        else:
            # -- what this start tag ends
            barrier: Int = open_barrier[depth]
            if top[_HEAD_TAG] > barrier and not trait & _HEAD:
                pop = min(pop, top[_HEAD_TAG])
            if trait & _ENDS_P and top[_P] > barrier:
                pop = min(pop, top[_P])
            if name == _LI:
                if top[_LI] > max(max(top[_UL], top[_OL]), max(top[_MENU], barrier)):
                    pop = min(pop, top[_LI])
            elif name == _DT or name == _DD:
                where = max(top[_DT], top[_DD])
                if where > max(top[_DL], barrier):
                    pop = min(pop, where)
            elif name == _OPTION:
                if top[_OPTION] > max(top[_SELECT], barrier):
                    pop = min(pop, top[_OPTION])
            elif name == _TD or name == _TH:
                where = max(top[_TD], top[_TH])
                if where > max(top[_TABLE], top[_TR]):
                    pop = min(pop, where)
            elif name == _TR or name == _TBODY or name == _THEAD or name == _TFOOT:
                table: Int = top[_TABLE]
                for other in (_TD, _TH, _TR, _CAPTION, _COLGROUP):
                    if top[other] > table:
                        # the first of them since the table began
                        where = top[other]
                        while open_before[where] > table:
                            where = open_before[where]
                        pop = min(pop, where)
                if name != _TR:
                    for other in (_TBODY, _THEAD, _TFOOT):
                        if top[other] > table:
                            pop = min(pop, top[other])
            elif name == _A:
                if top[_A] > barrier:
                    if open_block[depth] > top[_A]:
                        is_ended[top[_A]] = 1
                        top[_A] = open_before[top[_A]]
                    else:
                        pop = min(pop, top[_A])
            elif name >= _H1 and name <= _H6:
                if open_tag[depth] >= _H1 and open_tag[depth] <= _H6:
                    pop = min(pop, depth)
            elif (name == _HTML or name == _BODY) and top[name]:
                continue

        while depth >= pop:
            if is_ended[depth]:
                is_ended[depth] = 0
            else:
                top[open_tag[depth]] = open_before[depth]
            last[open_node[depth]] = nodes
            depth -= 1
        if is_end:
            continue
        tag[nodes], parent[nodes], start[nodes], end[nodes] = name, open_node[depth], begin, at
        last[nodes] = nodes + 1
        flags[nodes] = IN_LINK if top[_A] else 0
        nodes += 1
        is_foreign = top[_SVG] > 0 or top[_MATH] > 0
        if trait & _VOID or (closes_itself and (is_foreign or name == _SVG or name == _MATH)):
            continue
        if trait & _RAW and not (is_foreign and name == _TITLE):
            # -- raw text, up to the end tag of the same name
            first = at
            length: Int = 0
            while begin + 1 + length < size and (
                _is_letter(data[begin + 1 + length]) or data[begin + 1 + length] == 0x2D
            ):
                length += 1
            stop: Int = size
            while at < size:
                if data[at] != 0x3C:
                    if size - at >= 8:
                        marks = first_zero(load_word(data, at) ^ _LESS)
                        at += 8 if marks == U64(0) else bytes_before(marks)
                    else:
                        at += 1
                    continue
                if at + 2 + length <= size and data[at + 1] == 0x2F and name != _PLAINTEXT:
                    is_same = True
                    for k in range(length):
                        if (data[at + 2 + k] | 0x20) != (data[begin + 1 + k] | 0x20):
                            is_same = False
                            break
                    after: Int = data[at + 2 + length] if at + 2 + length < size else 0x3E
                    if is_same and (after == 0x3E or after == 0x2F or is_space(after)):
                        stop = at
                        break
                at += 1
            at = min(at, size)
            stop = min(stop, at)
            if stop > first:
                tag[nodes], parent[nodes], start[nodes], end[nodes] = TEXT, nodes - 1, first, stop
                last[nodes] = nodes + 1
                flags[nodes] = 0
                nodes += 1
                last[nodes - 2] = nodes
            while at < size and data[at] != 0x3E:
                at += 1
            at = min(at + 1, size)
            text = at
            continue
        if depth == MAX_DEPTH:
            skipped[name] += 1
            continue
        depth += 1
        open_node[depth], open_tag[depth], open_before[depth] = nodes - 1, name, top[name]
        open_barrier[depth] = depth if trait & _BARRIER else open_barrier[depth - 1]
        open_block[depth] = depth if trait & _BLOCK else open_block[depth - 1]
        top[name] = depth
    while depth > 0:
        last[open_node[depth]] = nodes
        depth -= 1
    last[0] = nodes
    return nodes
