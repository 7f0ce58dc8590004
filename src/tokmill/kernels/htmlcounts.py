"""What can be counted in the text of each block of a web page.

Every byte of the text is looked at once, and an entity as the character that it means. Words are known by
their hashes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.htmlblocks import Blocks, one_page
from tokmill.kernels.htmlentities import NAME_CODES, entity_at, html_entities
from tokmill.kernels.htmlodds import Odds, odds_of, odds_table
from tokmill.kernels.htmltree import FNV as _FNV
from tokmill.kernels.htmltree import FNV_PRIME as _FNV_PRIME
from tokmill.kernels.htmltree import IN_LINK, TAGS, TEXT, Tree, is_space
from tokmill.kernels.jit import Bytes, Int, frozen, raw_kernel, raw_step

U64 = np.uint64
CHARS, WORDS, LINK_CHARS, COMMAS, STOPS, DIGITS, UPPER, LINKS = 0, 1, 2, 3, 4, 5, 6, 7
BOLD_CHARS, SEPARATORS, COPYRIGHT, ENDS_SENTENCE, LONGEST, LINES, ELLIPSES, ODDS, TITLE_WORDS = range(8, 17)
SAME = 17  # the hash of its words
COUNTS = 18


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


_TITLE, _A, _B, _STRONG, _BR = (TAGS[name] for name in ("title", "a", "b", "strong", "br"))


@raw_kernel(lambda: count(*one_page(), odds_table({})))
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
                    score += int(odds_of(odds_hashes, odds_values, word))
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
        if commas | stops | digits | upper | separators | rights | common | ellipses:  # a short text has none
            counts[block, COMMAS] += commas
            counts[block, STOPS] += stops
            counts[block, DIGITS] += digits
            counts[block, UPPER] += upper
            counts[block, SEPARATORS] += separators
            counts[block, COPYRIGHT] += rights
            counts[block, TITLE_WORDS] += common
            counts[block, ELLIPSES] += ellipses
        if chars:
            counts[block, ENDS_SENTENCE] = ends_sentence
        counts[block, LONGEST] = max(counts[block, LONGEST], longest)
        counts[block, ODDS] += score
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
