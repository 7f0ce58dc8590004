"""What the start tags of a web page say: words of classes and ids by their odds, and what is hidden.

<div class="post-body hentry" id=main style="display: none">
            ^^^^ ^^^^ ^^^^^^      ^^^^        ^^^^^^^^^^^^^
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.htmlblocks import one_page
from tokmill.kernels.htmlodds import Odds, odds_of, odds_table
from tokmill.kernels.htmltree import FNV as _FNV
from tokmill.kernels.htmltree import FNV_PRIME as _FNV_PRIME
from tokmill.kernels.htmltree import TEXT, Tree, is_space, next_attribute
from tokmill.kernels.jit import Bytes, Int, frozen, raw_kernel

U64 = np.uint64
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


@raw_kernel(lambda: mark(*one_page()[:2], odds_table({})))
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
                            total += odds_of(odds_hashes, odds_values, hashed)
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
