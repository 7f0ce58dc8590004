"""The blocks of a web page, and what can be counted in each.

    <div>one <b>two</b> <p>three</p> four<br><br>five</div>

    block            0                 1         2         3
                     one two           three     four      five
    element          div               p         div       div        the block-level element it lies in

A block is a run of text that no block-level element and no empty line interrupts. Text that is never shown
(scripts, styles, the head, drawings, menus of a form) is in none: its number is -1.

`count` looks at every byte of the text once, and at an entity as at the character that it means; words of
classes, ids and texts are known by their hashes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.htmlentities import NAME_CODES, entity_at, html_entities
from tokmill.kernels.htmltree import FNV as _FNV
from tokmill.kernels.htmltree import FNV_PRIME as _FNV_PRIME
from tokmill.kernels.htmltree import (
    IN_LINK,
    TAGS,
    TEXT,
    TRAITS,
    WHITE,
    Tree,
    is_space,
    name_hash,
    next_attribute,
    parse,
)
from tokmill.kernels.jit import Bytes, Int, frozen, raw_kernel, raw_step

U64 = np.uint64
_BLOCK = 4  # of TRAITS
_BR = TAGS["br"]
# To judge a block takes 5 us, and a page has one in 800 bytes. Where there is more than one in so many bytes,
# several neighbours are judged as one, so that no page takes long. Of 1,405 real pages that is none. Pages of
# nothing but tags have little time left for it: where many are one already, four times as many are. A small
# page may have MIN_BLOCKS, and one more in MIN_BYTES; the densest real one has 99 in 6,945 bytes.
_BYTES_PER_BLOCK, _MAX_SMALL = 512, 2048
_MIN_BLOCKS, _MIN_BYTES = 64, 64
_SEVERAL, _COARSER = 8, 4
_NEVER_SHOWN = """
    head title script style noscript template svg select option optgroup textarea iframe object canvas video
    audio noembed noframes map datalist
"""


def _hidden_tags() -> NDArray[np.uint8]:
    hidden = np.zeros(256, np.uint8)
    for name in _NEVER_SHOWN.split():
        if name in TAGS:
            hidden[TAGS[name]] = 1
    return hidden


def _breaking_tags() -> NDArray[np.uint8]:
    breaking: NDArray[np.uint8] = (TRAITS & _BLOCK != 0).astype(np.uint8)
    breaking[TAGS["button"]] = 1
    return breaking


_HIDDEN = frozen(_hidden_tags(), np.uint8)
_BREAKING = frozen(_breaking_tags(), np.uint8)


class Blocks(NamedTuple):
    of: NDArray[np.int32]  # [node]: the block of a text, or -1
    element: NDArray[np.int32]  # [block]
    first: NDArray[np.int32]  # [block]: its first text
    end: NDArray[np.int32]  # [block]: one after its last
    around: NDArray[np.int32]  # [node]: the block-level element that it is, or lies in


def cut(tree: Tree, shown: NDArray[np.uint8]) -> Blocks:
    """`shown`: nodes that stand for text though they are none, as formulas do; with all that they hold."""
    nodes, size = len(tree.tag), int(tree.end.max(initial=0))
    of, element, first, end, around = np.empty((5, nodes), np.int32)
    blocks = int(_cut(*tree, _HIDDEN, _BREAKING, frozen(shown, np.uint8), of, element, first, end, around))
    small = min(_MIN_BLOCKS + size // _MIN_BYTES, _MAX_SMALL)
    several = -(-blocks // max(small, size // _BYTES_PER_BLOCK))
    several *= _COARSER if several > _SEVERAL else 1
    if several > 1:
        of //= several  # -1 stays -1
        ends = np.append(end[several - 1 : blocks : several], end[blocks - 1])
        element, first, end = element[:blocks:several], first[:blocks:several], ends
        blocks = len(element)
    cut_to = [frozen(one[:blocks], np.int32) for one in (element, first, end)]
    return Blocks(frozen(of, np.int32), cut_to[0], cut_to[1], cut_to[2], frozen(around, np.int32))


def _one() -> tuple[Bytes, Tree, Blocks]:
    data = frozen(np.frombuffer(b"<p class=a>a", np.uint8), np.uint8)
    tree = parse(data)
    return data, tree, cut(tree, np.zeros(len(tree.tag), np.uint8))


@raw_kernel(_one)
def _cut(
    tag: Bytes,
    parent: NDArray[np.int32],
    last: NDArray[np.int32],
    start: NDArray[np.int32],
    end_of: NDArray[np.int32],
    flags: Bytes,
    hidden: Bytes,
    breaking: Bytes,
    shown: Bytes,
    of: NDArray[np.int32],
    element: NDArray[np.int32],
    first: NDArray[np.int32],
    end: NDArray[np.int32],
    around: NDArray[np.int32],
) -> Int:
    blocks: Int = 0
    epoch = held = 0  # how many breaks there were, and how many when the block began
    lines = 0  # <br> since the last text
    around[0] = 0
    of[0] = -1
    node: Int = 1
    while node < tag.size:
        of[node] = -1
        inside = around[parent[node]]
        is_shown = shown[node] != 0
        if tag[node] == TEXT or is_shown:
            around[node] = inside
            is_white = not is_shown and (flags[node] & WHITE) != 0
            goes_on = blocks > 0 and held == epoch and element[blocks - 1] == inside and lines < 2
            if not is_white and not goes_on:
                element[blocks], first[blocks] = inside, node
                held = epoch
                blocks += 1
                goes_on = True
            if not is_white:
                lines = 0
            if goes_on:
                of[node] = blocks - 1
                end[blocks - 1] = last[node]
            if is_shown:  # with all that it holds
                for within in range(node + 1, last[node]):
                    of[within] = blocks - 1
                    around[within] = inside
                node = last[node]
                continue
            node += 1
            continue
        if hidden[tag[node]]:
            for within in range(node, last[node]):
                of[within] = -1
                around[within] = inside
            node = last[node]
            continue
        around[node] = node if breaking[tag[node]] else inside
        epoch += breaking[tag[node]]
        lines += tag[node] == _BR
        node += 1
    return blocks


# -- what is counted -------------------------------------------------------------------------------

CHARS, WORDS, LINK_CHARS, COMMAS, STOPS, DIGITS, UPPER, LINKS = 0, 1, 2, 3, 4, 5, 6, 7
BOLD_CHARS, SEPARATORS, COPYRIGHT, ENDS_SENTENCE, LONGEST, LINES, ELLIPSES, ODDS, TITLE_WORDS = range(8, 17)
SAME = 17  # the hash of its words
COUNTS = 18


class Odds(NamedTuple):
    """By the hash of a word, how much more often it is in what is kept than in what is not, in 1/16 of a
    binary logarithm; a table of a power of two, 0 where there is none."""

    hashes: NDArray[np.uint64]
    values: NDArray[np.int32]


def word_hash(word: bytes) -> int:
    """Of a word in lower case."""
    return name_hash(word) | 1


def odds_table(odds: dict[int, int]) -> Odds:
    size = 256
    while size < 2 * len(odds):
        size *= 2
    hashes, values = np.zeros(size, np.uint64), np.zeros(size, np.int32)
    for value, number in sorted(odds.items()):
        slot = value >> 32 & size - 1
        while hashes[slot]:
            slot = (slot + 1) & size - 1
        hashes[slot], values[slot] = value, number
    return Odds(frozen(hashes, np.uint64), frozen(values, np.int32))


@raw_step
def _odds(hashes: NDArray[np.uint64], values: NDArray[np.int32], value: np.uint64) -> Int:
    mask = hashes.size - 1
    slot = np.int64(value >> U64(32)) & mask
    while hashes[slot]:
        if hashes[slot] == value:
            return np.int64(values[slot])
        slot = (slot + 1) & mask
    return np.int64(0)


def count(data: Bytes, tree: Tree, blocks: Blocks, odds: Odds) -> NDArray[np.int32]:
    """[block, COUNTS]"""
    counts = np.zeros((len(blocks.element), COUNTS), np.int32)
    _counted(data, tree, blocks, odds, counts, np.zeros(1, np.uint64), np.zeros(1, np.int64), False)
    return counts


def text_words(data: Bytes, tree: Tree, blocks: Blocks) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The hashes of all words, and the block of each: what odds are learned from."""
    counts = np.zeros((len(blocks.element), COUNTS), np.int32)
    room = len(data) // 2 + 16
    hashes, owner = np.zeros(room, np.uint64), np.full(room, -1, np.int64)
    _counted(data, tree, blocks, odds_table({}), counts, hashes, owner, True)
    return hashes[owner >= 0], owner[owner >= 0]


def _counted(
    data: Bytes,
    tree: Tree,
    blocks: Blocks,
    odds: Odds,
    counts: NDArray[np.int32],
    words: NDArray[np.uint64],
    owner: NDArray[np.int64],
    keeps_words: bool,
) -> None:
    names, controls = html_entities()
    _count(
        frozen(data, np.uint8), tree.tag, tree.parent, tree.last, tree.start, tree.end, tree.flags, blocks.of,
        odds.hashes, odds.values, names.keys, names.values, controls, NAME_CODES, np.zeros(256, np.uint64),
        counts, words, owner, keeps_words,
    )  # fmt: skip


_TITLE, _A, _B, _STRONG, _H1 = (TAGS[name] for name in ("title", "a", "b", "strong", "h1"))


@raw_kernel(lambda: count(*_one(), odds_table({})))
def _count(
    data: Bytes,
    tag: Bytes,
    parent: NDArray[np.int32],
    last: NDArray[np.int32],
    start: NDArray[np.int32],
    end: NDArray[np.int32],
    flags: Bytes,
    of: NDArray[np.int32],
    odds_hashes: NDArray[np.uint64],
    odds_values: NDArray[np.int32],
    entity_keys: NDArray[np.uint64],
    entity_values: NDArray[np.uint64],
    controls: NDArray[np.int32],
    codes: Bytes,
    title: NDArray[np.uint64],
    counts: NDArray[np.int32],
    words: NDArray[np.uint64],
    owner: NDArray[np.int64],
    keeps_words: bool,
) -> None:
    """The title comes before all blocks; its words are remembered."""
    has_title = False
    used: Int = 0
    bold_until: Int = 0
    for node in range(1, tag.size):
        if tag[node] == _B or tag[node] == _STRONG:
            bold_until = max(bold_until, np.int64(last[node]))
        if tag[node] == _A and node + 1 < tag.size and of[node + 1] >= 0:
            counts[of[node + 1], LINKS] += 1
        if tag[node] == _BR and node + 1 < tag.size and of[node + 1] >= 0:
            counts[of[node + 1], LINES] += 1
        if tag[node] != TEXT:
            continue
        block = np.int64(of[node])
        is_title = not has_title and tag[parent[node]] == _TITLE
        if block < 0 and not is_title:
            continue
        has_title = has_title or is_title
        chars = commas = stops = digits = upper = separators = rights = longest = count = score = common = 0
        same = U64(0)
        ends_sentence = ellipses = dots = 0
        at: Int = start[node]
        stop: Int = end[node]
        value = _FNV
        length = 0
        letters = U64(0)  # what is left of an entity: its bytes, how many, and where the text goes on
        left: Int = 0
        after: Int = 0
        while at <= stop:
            code: Int = data[at] if at < stop else 0x20
            if code == 0x26 and left == 0:
                letters, left, after = entity_at(data, at, stop, entity_keys, entity_values, controls, codes)
                if left == 0:  # no character
                    at = after
                    continue
            if left:
                code = np.int64(letters & U64(0xFF))
            width: Int = 1
            is_word = False
            was_dots, dots = dots, 0
            if code >= 0x80:
                second: Int = data[at + 1] if at + 1 < stop else 0
                third: Int = data[at + 2] if at + 2 < stop else 0
                if left:
                    second = np.int64(letters >> U64(8) & U64(0xFF))
                    third = np.int64(letters >> U64(16) & U64(0xFF))
                sign = _sign(code, second, third)
                if sign:
                    width = 2 if code < 0xE0 else 3
                    chars += int(sign > _SPACE)
                    rights += int(sign == _RIGHTS)
                    if sign == _COMMA:
                        commas += 1
                        ends_sentence = 0
                    elif sign == _STOP:
                        stops += 1
                        ends_sentence = 1
                    elif sign == _ELLIPSIS:
                        ellipses += 1
                        ends_sentence = 1
                    elif sign == _NOTHING:  # a word goes on
                        is_word = True
                        length -= 1
                else:
                    is_word = True
                    chars += code & 0xC0 != 0x80
                    ends_sentence = 0
                    if code >= 0xE3 and code <= 0xED:  # scripts without spaces: a character is about a word
                        count += 1
                        length = -1000
                    value = (value ^ U64(code)) * _FNV_PRIME
            elif code > 0x20:
                chars += 1
                lower = code | 0x20
                if lower >= 0x61 and lower <= 0x7A:
                    is_word = True
                    upper += int(code < 0x60)
                    value = (value ^ U64(lower)) * _FNV_PRIME
                    ends_sentence = 0
                elif code >= 0x30 and code <= 0x39:
                    is_word = True
                    digits += 1
                    value = (value ^ U64(code)) * _FNV_PRIME
                    ends_sentence = 0
                elif code == 0x2C or code == 0x3B or code == 0x3A:
                    commas += 1
                    ends_sentence = 0
                elif code == 0x2E or code == 0x21 or code == 0x3F:
                    after_it = at + 1 if left == 0 else after
                    follower: Int = data[after_it] if after_it < stop else 0x20
                    stops += is_space(follower) or _begins_end(follower)
                    ends_sentence = 1
                    if code == 0x2E:
                        dots = was_dots + 1
                        ellipses += dots == 3
                elif code == 0x7C or code == 0x2F or code == 0x3E or code == 0x23:
                    separators += 1
                    ends_sentence = 0
            if is_word:
                length += 1
            elif value != _FNV:
                count += length > 0
                longest = max(longest, length)
                word = value | U64(1)
                same = (same ^ word) * _FNV_PRIME
                if is_title:
                    for probe in range(8):
                        slot = (np.int64(word >> U64(32)) + probe) & 255
                        if title[slot] == U64(0) or title[slot] == word:
                            title[slot] = word
                            break
                else:
                    score += int(_odds(odds_hashes, odds_values, word))
                    for probe in range(8):
                        slot = (np.int64(word >> U64(32)) + probe) & 255
                        if title[slot] == word:
                            common += 1
                            break
                        if title[slot] == U64(0):
                            break
                if keeps_words and block >= 0 and used < words.size:
                    words[used], owner[used] = word, block
                    used += 1
                value = _FNV
                length = 0
            if left:
                left -= width
                letters >>= U64(8 * width)
                if left == 0:
                    at = after
            else:
                at += width
        if block < 0:
            continue
        counts[block, CHARS] += chars
        counts[block, WORDS] += count
        if flags[node] & IN_LINK:
            counts[block, LINK_CHARS] += chars
        if node < bold_until:
            counts[block, BOLD_CHARS] += chars
        counts[block, COMMAS] += commas
        counts[block, STOPS] += stops
        counts[block, DIGITS] += digits
        counts[block, UPPER] += upper
        counts[block, SEPARATORS] += separators
        counts[block, COPYRIGHT] += rights
        if chars:
            counts[block, ENDS_SENTENCE] = ends_sentence
        counts[block, LONGEST] = max(counts[block, LONGEST], longest)
        counts[block, ODDS] += score
        counts[block, TITLE_WORDS] += common
        counts[block, ELLIPSES] += ellipses
        counts[block, SAME] = np.int64(counts[block, SAME]) * 31 + np.int64(same >> U64(40))


_NOTHING, _SPACE, _RIGHTS, _COMMA, _STOP, _ELLIPSIS, _MARK = range(1, 8)


@raw_step
def _sign(first: Int, second: Int, third: Int) -> Int:
    """What the two or three bytes of a character say that is no letter; 0 of any other.

    U+0080 to U+00BF but for those that stand in words (ª µ º), U+2000 to U+203F; commas and ends of sentences
    of Arabic, Hindi, Chinese and Japanese. Soft hyphens and what joins letters or turns their direction are
    nothing.
    """
    if second < 0x80 or (first >= 0xE0 and third < 0x80):
        return 0
    if first == 0xC2:
        if second == 0xA0:
            return _SPACE
        if second == 0xA9:
            return _RIGHTS
        if second == 0xAD:
            return _NOTHING
        return 0 if second == 0xAA or second == 0xB5 or second == 0xBA else _MARK
    if first == 0xE2 and second == 0x80:
        if third == 0xA6:
            return _ELLIPSIS
        if third <= 0x8B or third == 0xA8 or third == 0xA9 or third == 0xAF:
            return _SPACE
        return _NOTHING if third <= 0x8F or 0xAA <= third <= 0xAE else _MARK
    if first == 0xE3 and second == 0x80:
        if third == 0x82:
            return _STOP
        return _COMMA if third == 0x81 else (_SPACE if third == 0x80 else 0)
    if first == 0xEF and second == 0xBC:
        if third == 0x81 or third == 0x9F:
            return _STOP
        return _COMMA if third == 0x8C or third == 0x9A or third == 0x9B else 0
    if first == 0xD8:
        if second == 0x9F:
            return _STOP
        return _COMMA if second == 0x8C or second == 0x9B else 0
    return _STOP if first == 0xE0 and second == 0xA5 and third == 0xA4 else 0


@raw_step
def _begins_end(code: Int) -> bool:
    """Of a quotation mark, or of an entity: most are quotation marks or spaces, too."""
    return bool(code == 0x22 or code == 0x27 or code == 0x26 or code == 0xC2 or code == 0xE2)


# -- words of classes and ids ----------------------------------------------------------------------

_CLASS, _ID, _ROLE, _ITEMPROP, _STYLE, _HIDDEN_NAME, _ARIA = range(1, 8)
HIDDEN, HAS_CLASS = 1, 2


class Marks(NamedTuple):
    odds: NDArray[np.int32]  # [node]: of the words of class, id, role and itemprop, the sum
    signature: NDArray[np.uint32]  # [node]: name and class as written
    flags: NDArray[np.uint8]  # [node]


def mark(data: Bytes, tree: Tree, odds: Odds) -> Marks:
    nodes = len(tree.tag)
    sums, signature, flags = np.zeros(nodes, np.int32), np.zeros(nodes, np.uint32), np.zeros(nodes, np.uint8)
    _mark(
        frozen(data, np.uint8), tree.tag, tree.start, tree.end, *odds, sums, signature, flags,
        np.zeros(1, np.uint64), np.zeros(1, np.int64), False,
    )  # fmt: skip
    return Marks(frozen(sums, np.int32), frozen(signature, np.uint32), frozen(flags, np.uint8))


def mark_words(data: Bytes, tree: Tree) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The hashes of all words, and the node of each: what odds are learned from."""
    nodes = len(tree.tag)
    room = len(data) // 2 + 16
    hashes, owner = np.zeros(room, np.uint64), np.full(room, -1, np.int64)
    _mark(
        frozen(data, np.uint8), tree.tag, tree.start, tree.end, *odds_table({}), np.zeros(nodes, np.int32),
        np.zeros(nodes, np.uint32), np.zeros(nodes, np.uint8), hashes, owner, True,
    )  # fmt: skip
    return hashes[owner >= 0], owner[owner >= 0]


@raw_kernel(lambda: mark(*_one()[:2], odds_table({})))
def _mark(
    data: Bytes,
    tag: Bytes,
    start: NDArray[np.int32],
    end: NDArray[np.int32],
    odds_hashes: NDArray[np.uint64],
    odds_values: NDArray[np.int32],
    sums: NDArray[np.int32],
    signature: NDArray[np.uint32],
    flags: Bytes,
    words: NDArray[np.uint64],
    owner: NDArray[np.int64],
    keeps_words: bool,
) -> None:
    used: Int = 0
    for node in range(1, tag.size):
        if tag[node] == TEXT:
            continue
        at: Int = start[node] + 1
        stop: Int = end[node]
        while at < stop and data[at] != 0x3E and data[at] != 0x2F and not is_space(data[at]):
            at += 1
        own = (_FNV ^ U64(tag[node])) * _FNV_PRIME
        total: Int = 0
        is_plain = at >= stop or data[at] == 0x3E  # most tags of pages of nothing but tags are
        while not is_plain:
            name, name_end, value, value_end, at = next_attribute(data, at, stop)
            size = name_end - name
            if size == 0:
                break
            first = data[name] | 0x20
            kind = 0
            if size == 5 and first == 0x63 and (data[name + 1] | 0x20) == 0x6C:  # class
                kind = _CLASS
            elif size == 2 and first == 0x69 and (data[name + 1] | 0x20) == 0x64:  # id
                kind = _ID
            elif size == 4 and first == 0x72 and (data[name + 1] | 0x20) == 0x6F:  # role
                kind = _ROLE
            elif size == 8 and first == 0x69 and (data[name + 1] | 0x20) == 0x74:  # itemprop
                kind = _ITEMPROP
            elif size == 5 and first == 0x73 and (data[name + 1] | 0x20) == 0x74:  # style
                kind = _STYLE
            elif size == 6 and first == 0x68 and (data[name + 1] | 0x20) == 0x69:  # hidden
                kind = _HIDDEN_NAME
            elif size == 11 and first == 0x61 and (data[name + 5] | 0x20) == 0x68:  # aria-hidden
                kind = _ARIA
            if kind == 0:
                continue
            if kind == _HIDDEN_NAME or (kind == _ARIA and value < value_end and data[value] == 0x74):
                flags[node] |= HIDDEN
            elif kind == _STYLE:
                for k in range(value, value_end - 3):  # display: none, visibility: hidden
                    if (
                        data[k] == 0x6E
                        and data[k + 1] == 0x6F
                        and data[k + 2] == 0x6E
                        and data[k + 3] == 0x65
                        and k > value + 7
                        and (data[k - 1] == 0x3A or data[k - 2] == 0x3A)
                        and (data[k - 2] == 0x79 or data[k - 3] == 0x79)
                    ):
                        flags[node] |= HIDDEN
            else:
                if kind == _CLASS:
                    flags[node] |= HAS_CLASS
                    # the first two names without digits: others are numbers of posts, columns and categories
                    token = U64(0)
                    taken = 0
                    has_digit = False
                    for k in range(value, value_end + 1):
                        code: Int = data[k] if k < value_end else 0x20
                        if not is_space(code):
                            has_digit = bool(has_digit or 0x30 <= code <= 0x39)
                            token = (token ^ U64(code)) * _FNV_PRIME
                            continue
                        if token and not has_digit and taken < 2:
                            own = (own ^ token) * _FNV_PRIME
                            taken += 1
                        token = U64(0)
                        has_digit = False
                # words: letters; a capital after a small letter begins another
                salt = U64(kind if kind >= _ROLE else 0)
                word = _FNV ^ salt
                length = 0
                was_small = False
                for k in range(value, value_end + 1):
                    code = data[k] if k < value_end else 0x20
                    lower = code | 0x20
                    is_letter = lower >= 0x61 and lower <= 0x7A
                    is_capital = is_letter and code < 0x60
                    if length and (not is_letter or (is_capital and was_small)):
                        if length > 1:
                            hashed = word | U64(1)
                            total += _odds(odds_hashes, odds_values, hashed)
                            if keeps_words and used < words.size:
                                words[used], owner[used] = hashed, node
                                used += 1
                        word = _FNV ^ salt
                        length = 0
                    if is_letter:
                        word = (word ^ U64(lower)) * _FNV_PRIME
                        length += 1
                    was_small = is_letter and not is_capital
        sums[node] = min(max(total, -4096), 4096)
        signature[node] = np.uint32(own >> U64(32))
