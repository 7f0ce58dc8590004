"""What a model is asked of each block of a web page: whole numbers, a row for each block.

    blocks ─┬─ its own text     characters, links, punctuation, odds of its words
            ├─ its element      name, names around it, odds of classes and ids
            ├─ its containers   how much text and how many links they hold
            ├─ its neighbours   the blocks before and after it
            ├─ its branch       seen from the container that holds the title, too: what it lies in there
            └─ the page         where it lies, what else has its class, where most of the text is

`context` adds what a first judgement of all blocks says of those around each. Sums over a container are
differences of running sums over the blocks, so that depth costs nothing. What comes down from the elements
around, and where their blocks begin and end, is known for those on the path to a block alone: eight numbers
of each node, and six sums to each, took 22 ms/MB on pages of nothing but tags.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.htmlblocks import Blocks, one_page
from tokmill.kernels.htmlclasses import HIDDEN, Marks, mark
from tokmill.kernels.htmlcounts import (
    BOLD_CHARS,
    CHARS,
    COMMAS,
    COPYRIGHT,
    DIGITS,
    ELLIPSES,
    ENDS_SENTENCE,
    LINES,
    LINK_CHARS,
    LINKS,
    LONGEST,
    ODDS,
    SAME,
    SEPARATORS,
    STOPS,
    TITLE_WORDS,
    UPPER,
    WORDS,
    count,
)
from tokmill.kernels.htmlodds import odds_table
from tokmill.kernels.htmltree import MAX_DEPTH, TAGS, Tree
from tokmill.kernels.jit import Bytes, Int, frozen, mix64, raw_kernel, raw_step

U64 = np.uint64

_KINDS = """
    div | p | li | td | th | h1 | h2 | h3 | h4 h5 h6 | pre listing xmp | blockquote | figcaption caption | dt
    | dd | section | article | main | header hgroup | footer | nav | aside | button
    | form fieldset legend label input | address | center | details summary dialog | body html | ul ol menu dl
    | table thead tbody tfoot tr | figure | a | b strong | i em cite | span | time | small | code tt kbd samp
    | font | abbr mark q | sub sup
"""
_AROUND = """
    article | main | aside | nav | header hgroup | footer | form fieldset | figure | table | ul ol menu
    | blockquote | button label | dl | pre | section | a | details
"""


def _numbers(groups: str) -> NDArray[np.uint8]:
    numbers = np.zeros(256, np.uint8)
    for number, names in enumerate(groups.split("|"), 1):
        for name in names.split():
            numbers[TAGS[name]] = number
    return numbers


_KIND = frozen(_numbers(_KINDS), np.uint8)
_ROLE = frozen(_numbers(_AROUND), np.uint8)
_ROLES = 17
_LINK_KIND = 31
CELLS = (4, 5)  # the kinds of <td> and <th>
_ARTICLE_ROLE, _MAIN_ROLE, _LIST_ROLE, _TABLE_ROLE = 1, 2, 10, 9
_HIDDEN_BIT = 20

_CLIP = 4000
_LONG = 80  # characters of a block that is likely prose, if few of them are links
_PROBES = 16
_MAX_LEVELS = 16
_OF_PATH = 8  # numbers of an element on the path to a block
_MAX_TABLE = 1 << 18  # places for what is alike: 15 MB; a page has a few hundred that are not

_OF_BLOCK = """
    chars words link_share commas stops digit_share upper_share links bold_share separators copyright
    ends_sentence longest_word lines word_odds mean_word_odds title_share word_length stops_per_word repeats
"""
_OF_ELEMENT = """
    kind kind_of_parent kind_of_grandparent kind_of_inline depth odds odds_of_parent odds_of_grandparent
    least_odds greatest_odds sum_of_odds is_hidden in_list in_table
"""
_OF_CONTAINER = "chars link_share blocks long_chars share_of_page commas linked_starts alike place"
_OF_NEIGHBOUR = "chars link_share kind odds ends_sentence levels"
_OF_PAGE = """
    page_chars page_blocks page_link_share page_long_blocks page_longest position chars_before chars_after
    since_h1 headings_h1 since_long until_long since_heading alike alike_link_share alike_chars
    articles_around in_best best_levels in_half half_levels in_most most_levels after_half best_score articles
    share_of_long in_run chars_since_h1 since_title articles_before share_of_alike in_first_article
    title_levels title_distance title_article heading_odds heading_mark_odds heading_link_share heading_kind
    ellipses article_share branch_chars branch_link_share branch_long_share branch_alike branch_place
    branch_kind
"""
NAMES = (
    *_OF_BLOCK.split(),
    *_OF_ELEMENT.split(),
    *(f"around_{number}" for number in range(1, _ROLES + 1)),
    *(f"container_{level}_{name}" for level in range(1, 5) for name in _OF_CONTAINER.split()),
    *(
        f"{side}_{name}"
        for side in ("before", "before_2", "after", "after_2")
        for name in _OF_NEIGHBOUR.split()
    ),
    *_OF_PAGE.split(),
)
_OF_CONTEXT = """
    score before before_2 before_3 after after_2 after_3 near wide container_1 container_2 container_3
    container_4 page greatest alike above below share_above best_block
"""
CONTEXT_NAMES = tuple(f"score_{name}" for name in _OF_CONTEXT.split())


def features(tree: Tree, blocks: Blocks, counts: NDArray[np.int32], marks: Marks) -> NDArray[np.int32]:
    """[block, NAMES]"""
    nodes, size = len(tree.tag), len(blocks.element)
    table = np.zeros((2, _table_size(nodes)), np.int64)
    made = np.zeros((size, len(NAMES)), np.int32)
    _features(
        tree.tag, tree.parent, tree.last, blocks.element, blocks.first, frozen(counts, np.int32), *marks,
        blocks.around, _KIND, _ROLE, np.empty((nodes, 4), np.int32), np.empty(nodes, np.int32),
        np.zeros((_OF_PATH, MAX_DEPTH + 3), np.int32), np.empty((_OF_PATH, size), np.int32),
        np.zeros((5, size + 1), np.int32), np.zeros(nodes, np.int64), np.zeros((3, size), np.int64), table[0],
        np.zeros((5, table.shape[1]), np.int64), table[1], made,
    )  # fmt: skip
    return made


def context(
    tree: Tree, blocks: Blocks, counts: NDArray[np.int32], marks: Marks, scores: NDArray[np.int32]
) -> NDArray[np.int32]:
    """[block, CONTEXT_NAMES], of the scores of a first judgement."""
    nodes, size = len(tree.tag), len(blocks.element)
    made = np.zeros((size, len(CONTEXT_NAMES)), np.int32)
    slots = _table_size(nodes)
    order = np.argsort(blocks.element, kind="stable")  # an element's blocks may lie around those of others
    _context(
        tree.parent, tree.last, blocks.element, frozen(counts, np.int32), marks.signature, blocks.around,
        frozen(scores, np.int32), frozen(order, np.int64), np.zeros((2, size + 1), np.int64),
        np.zeros((2, size + 1), np.int64), np.zeros(slots, np.int64), np.zeros((2, slots), np.int64), made,
    )  # fmt: skip
    return made


def _table_size(entries: int) -> int:
    return min(1 << max(4, (2 * entries).bit_length()), _MAX_TABLE)


@raw_step
def _clip(value: Int) -> Int:
    return min(max(value, -_CLIP), _CLIP)


@raw_step
def _put(row: NDArray[np.int32], k: Int, value: Int) -> Int:
    """The next feature of a row; the place of the one after it."""
    row[k] = _clip(value)
    return k + 1


@raw_step
def _share(part: Int, whole: Int) -> Int:
    """In thousandths; -1 of nothing."""
    if whole <= 0:
        return np.int64(-1)
    return np.int64(1000 * part // whole)


@raw_step
def _place(table: NDArray[np.int64], key: Int) -> Int:
    """Where the key is, or where it was put now; -1 where too many have the same place."""
    mask = table.size - 1
    slot = np.int64(mix64(U64(key)) >> U64(20)) & mask
    for _ in range(_PROBES):
        if table[slot] == 0:
            table[slot] = key
        if table[slot] == key:
            return slot
        slot = (slot + 1) & mask
    return np.int64(-1)


@raw_step
def _key(signature: NDArray[np.uint32], parent: NDArray[np.int32], node: Int) -> Int:
    above = parent[node]
    upper = U64(signature[above]) if above >= 0 else U64(0)
    return np.int64((mix64(U64(signature[node]) << U64(32) | upper) >> U64(1)) | U64(1))


@raw_step
def _depth(parent: NDArray[np.int32], node: Int) -> Int:
    """Elements around it."""
    depth: Int = 0
    while node > 0:
        node = parent[node]
        depth += 1
    return depth


def _first() -> object:
    data, tree, blocks = one_page()
    counts, marks = count(data, tree, blocks, odds_table({})), mark(data, tree, odds_table({}))
    features(tree, blocks, counts, marks)
    return context(tree, blocks, counts, marks, np.zeros(len(blocks.element), np.int32))


@raw_kernel(_first)
def _features(
    tag: Bytes,
    parent: NDArray[np.int32],
    last: NDArray[np.int32],
    element: NDArray[np.int32],
    first: NDArray[np.int32],
    counts: NDArray[np.int32],
    odds: NDArray[np.int32],
    signature: NDArray[np.uint32],
    marks: Bytes,
    around: NDArray[np.int32],
    kind: Bytes,
    role: Bytes,
    on_path: NDArray[np.int32],
    entered: NDArray[np.int32],
    path: NDArray[np.int32],
    state: NDArray[np.int32],
    sums: NDArray[np.int32],
    score: NDArray[np.int64],
    far: NDArray[np.int64],
    keys: NDArray[np.int64],
    tallies: NDArray[np.int64],
    texts: NDArray[np.int64],
    made: NDArray[np.int32],
) -> None:
    nodes = tag.size
    blocks = element.size
    chars_to, links_to, long_to, commas_to, starts_to = sums[0], sums[1], sums[2], sums[3], sums[4]
    since_long, until_long, repeats = far[0], far[1], far[2]

    # -- what goes up from the blocks: running sums
    page_chars = page_links = page_long = page_long_blocks = page_longest = 0
    for block in range(blocks):
        chars = int(counts[block, CHARS])
        linked = int(counts[block, LINK_CHARS])
        is_long = chars >= _LONG and 3 * linked < chars
        chars_to[block + 1] = chars_to[block] + chars
        links_to[block + 1] = links_to[block] + linked
        commas_to[block + 1] = commas_to[block] + counts[block, COMMAS]
        starts_to[block + 1] = starts_to[block] + (kind[tag[parent[first[block]]]] == _LINK_KIND)
        long_to[block + 1] = long_to[block] + (chars if is_long else 0)
        page_chars += chars
        page_links += linked
        if is_long:
            page_long += chars
            page_long_blocks += 1
            page_longest = max(page_longest, chars)

    # -- what comes down from the elements around; and the smallest that hold half and most of the prose
    begins, ends = on_path[:, 0], on_path[:, 1]  # the blocks of an element that is around one
    place, slots = on_path[:, 2], on_path[:, 3]  # among those alike, and where they are counted
    roles, least, greatest, total, article = state[0], state[1], state[2], state[3], state[4]
    articles_around, depth, inline_roles = state[5], state[6], state[7]
    path_node, path_around = path[6], path[7]
    half = most = top = entries = 0
    begins[0] = 0
    for block in range(blocks + 1):
        where = int(first[block]) if block < blocks else nodes
        while top >= 0 and last[path_node[top]] <= where:
            node = path_node[top]
            ends[node] = block
            held = long_to[block] - long_to[begins[node]]
            if page_long > 0:
                half = max(half, node if 2 * held >= page_long else 0)
                most = max(most, node if 10 * held >= 9 * page_long else 0)
            top -= 1
        if block == blocks:
            break
        if page_long > 0:
            held = long_to[block + 1] - long_to[block]
            half = max(half, where if 2 * held >= page_long else 0)
            most = max(most, where if 10 * held >= 9 * page_long else 0)
        known, node = top, parent[where]
        while node != path_node[known]:
            node = parent[node]
            top += 1
        node = parent[where]
        for at in range(top, known, -1):
            path_node[at] = node
            node = parent[node]
        for at in range(known + 1, top + 1):
            node = path_node[at]
            entered[entries] = node
            entries += 1
            begins[node] = block
            own = odds[node]
            path[0, at] = path[0, at - 1]
            if role[tag[node]]:
                path[0, at] |= 1 << int(role[tag[node]])
            if marks[node] & HIDDEN:
                path[0, at] |= 1 << _HIDDEN_BIT
            path[1, at] = min(path[1, at - 1], own)
            path[2, at] = max(path[2, at - 1], own)
            path[3, at] = path[3, at - 1] + own
            is_article = role[tag[node]] == _ARTICLE_ROLE
            path[4, at] = node if is_article else path[4, at - 1]
            path[5, at] = path[5, at - 1] + is_article
            path_around[at] = at if around[node] == node else path_around[at - 1]
        inline_roles[block] = path[0, top]
        depth[block] = path_around[top]
        for at in range(6):
            state[at, block] = path[at, depth[block]]

    # -- how many elements are alike
    articles = entry = 0
    place[0] = slots[0] = 0
    held_key: Int = 0
    held_slot = -1
    for node in range(1, nodes):
        articles += role[tag[node]] == _ARTICLE_ROLE
        slot = -1
        if around[node] == node:
            key = _key(signature, parent, node)
            if key != held_key:  # the next is often like the one before it
                held_key, held_slot = key, int(_place(keys, key))
            slot = held_slot
            if slot >= 0:
                tallies[4, slot] += 1
        if entry < entries and entered[entry] == node:
            entry += 1
            slots[node], place[node] = slot, tallies[4, slot] if slot >= 0 else 0

    # -- the element that holds the most prose of its own
    for block in range(blocks):
        chars = int(counts[block, CHARS])
        if chars >= 25:
            free = 1000 - _share(counts[block, LINK_CHARS], chars)
            worth = (10 + 10 * min(int(counts[block, COMMAS]), 20) + min(chars // 10, 30)) * free // 1000
            inner = around[parent[element[block]]] if element[block] > 0 else 0
            score[inner] += 2 * worth
            if inner > 0:
                score[around[parent[inner]]] += worth
    best = 0
    best_score = int(score[0])
    for block in range(blocks):
        inner = around[parent[element[block]]] if element[block] > 0 else 0
        for _ in range(2):
            if score[inner] > best_score or (score[inner] == best_score and inner < best):
                best, best_score = int(inner), int(score[inner])
            inner = around[parent[inner]] if inner > 0 else 0
    best_depth, half_depth, most_depth = _depth(parent, best), _depth(parent, half), _depth(parent, most)

    # -- how much text is in those alike, and how many texts are
    for block in range(blocks):
        slot = slots[element[block]]
        if slot >= 0:
            chars = int(counts[block, CHARS])
            tallies[0, slot] += 1
            tallies[1, slot] += chars
            tallies[2, slot] += counts[block, LINK_CHARS]
            if chars >= _LONG and 3 * counts[block, LINK_CHARS] < chars:
                tallies[3, slot] += chars
    for turn in range(2):
        for block in range(blocks):
            text = int(counts[block, SAME]) | (1 << 40)
            mask = texts.size // 2 - 1  # keys below, how often above
            slot = int(mix64(U64(text)) >> U64(20)) & mask
            for _ in range(_PROBES):
                if turn == 0 and texts[slot] == 0:
                    texts[slot] = text
                if texts[slot] == text:
                    if turn == 0:
                        texts[mask + 1 + slot] += 1
                    else:
                        repeats[block] = texts[mask + 1 + slot]
                    break
                slot = (slot + 1) & mask

    # -- the heading that says what the page's title says
    title_block = -1
    best_title = 0
    for block in range(blocks):
        own_kind = int(kind[tag[element[block]]])
        words = int(counts[block, WORDS])
        if 6 <= own_kind <= 9 and 2 * counts[block, TITLE_WORDS] >= words > 0:
            worth = 4 * min(words, 12) * int(counts[block, TITLE_WORDS]) // words + (10 - own_kind)
            if worth > best_title:
                best_title, title_block = worth, block
    title = int(element[title_block]) if title_block >= 0 else -1
    title_article = int(article[title_block]) if title_block >= 0 else 0

    # -- how far the next long block is
    distance = 1000
    for block in range(blocks):
        distance += 1
        since_long[block] = distance
        if counts[block, CHARS] >= _LONG and 3 * counts[block, LINK_CHARS] < counts[block, CHARS]:
            distance = 0
    distance = 1000
    for block in range(blocks - 1, -1, -1):
        distance += 1
        until_long[block] = distance
        if counts[block, CHARS] >= _LONG and 3 * counts[block, LINK_CHARS] < counts[block, CHARS]:
            distance = 0

    chars_before = 0
    since_h1 = 1000
    since_heading = 1000
    headings = 0
    run = chars_since_h1 = articles_before = 0
    since_title = 1000
    heading = -1
    walked = article_end = 0
    for block in range(blocks):
        e = int(element[block])
        chars = int(counts[block, CHARS])
        linked = int(counts[block, LINK_CHARS])
        words = int(counts[block, WORDS])
        own_kind = int(kind[tag[e]])
        row = made[block]
        k: Int = 0
        k = _put(row, k, chars)
        k = _put(row, k, words)
        k = _put(row, k, _share(linked, chars))
        k = _put(row, k, int(counts[block, COMMAS]))
        k = _put(row, k, int(counts[block, STOPS]))
        k = _put(row, k, _share(counts[block, DIGITS], chars))
        k = _put(row, k, _share(counts[block, UPPER], chars))
        k = _put(row, k, int(counts[block, LINKS]))
        k = _put(row, k, _share(counts[block, BOLD_CHARS], chars))
        k = _put(row, k, int(counts[block, SEPARATORS]))
        k = _put(row, k, int(counts[block, COPYRIGHT]))
        k = _put(row, k, int(counts[block, ENDS_SENTENCE]))
        k = _put(row, k, int(counts[block, LONGEST]))
        k = _put(row, k, int(counts[block, LINES]))
        k = _put(row, k, int(counts[block, ODDS]))
        k = _put(row, k, int(counts[block, ODDS]) * 16 // max(words, 1))
        k = _put(row, k, _share(counts[block, TITLE_WORDS], words))
        k = _put(row, k, 10 * chars // max(words, 1))
        k = _put(row, k, _share(counts[block, STOPS], words))
        k = _put(row, k, repeats[block])
        inline = parent[first[block]]
        up = around[parent[e]] if e > 0 else 0
        upper = around[parent[up]] if up > 0 else 0
        k = _put(row, k, own_kind)
        k = _put(row, k, int(kind[tag[up]]))
        k = _put(row, k, int(kind[tag[upper]]))
        k = _put(row, k, int(kind[tag[inline]]) if inline != e else 0)
        k = _put(row, k, depth[block])
        k = _put(row, k, int(odds[e]))
        k = _put(row, k, int(odds[up]))
        k = _put(row, k, int(odds[upper]))
        k = _put(row, k, least[block])
        k = _put(row, k, greatest[block])
        k = _put(row, k, total[block])
        k = _put(row, k, (inline_roles[block] >> _HIDDEN_BIT) & 1)
        k = _put(row, k, (roles[block] >> _LIST_ROLE) & 1)
        k = _put(row, k, (roles[block] >> _TABLE_ROLE) & 1)
        for number in range(1, _ROLES + 1):
            row[k] = (inline_roles[block] >> number) & 1
            k += 1
        container: Int = e
        for _ in range(4):
            container = around[parent[container]] if container > 0 else 0
            begin, stop = begins[container], ends[container]
            held = chars_to[stop] - chars_to[begin]
            k = _put(row, k, held)
            k = _put(row, k, _share(links_to[stop] - links_to[begin], held))
            k = _put(row, k, stop - begin)
            k = _put(row, k, long_to[stop] - long_to[begin])
            k = _put(row, k, _share(held, page_chars))
            k = _put(row, k, commas_to[stop] - commas_to[begin])
            k = _put(row, k, _share(starts_to[stop] - starts_to[begin], stop - begin))
            k = _put(row, k, tallies[4, slots[container]] if slots[container] >= 0 else 0)
            k = _put(row, k, place[container])
        for step in (-1, -2, 1, 2):
            other = block + step
            if 0 <= other < blocks:
                near = element[other]
                size = int(counts[other, CHARS])
                row[k] = _clip(size)
                row[k + 1] = _share(counts[other, LINK_CHARS], size)
                row[k + 2] = kind[tag[near]]
                row[k + 3] = _clip(total[other])
                row[k + 4] = counts[other, ENDS_SENTENCE]
                row[k + 5] = _clip(depth[other] - depth[block])
            else:
                for gap in range(6):
                    row[k + gap] = -2
            k += 6
        is_h1 = own_kind == 6
        slot = slots[e]
        while articles and walked <= e:
            articles_before += role[tag[walked]] == _ARTICLE_ROLE
            if role[tag[walked]] == _ARTICLE_ROLE and article_end == 0:
                article_end = int(last[walked])
            walked += 1
        is_in_best = best <= e < last[best]
        is_in_half = half <= e < last[half]
        is_in_most = most <= e < last[most]
        run = run + 1 if is_in_half and chars >= _LONG else (run if is_in_half else 0)
        k = _put(row, k, page_chars // 10)
        k = _put(row, k, int(blocks))
        k = _put(row, k, _share(page_links, page_chars))
        k = _put(row, k, int(page_long_blocks))
        k = _put(row, k, int(page_longest))
        k = _put(row, k, int(1000 * block // blocks))
        k = _put(row, k, _share(chars_before, page_chars))
        k = _put(row, k, page_chars - chars_before - chars)
        k = _put(row, k, int(since_h1))
        k = _put(row, k, int(headings))
        k = _put(row, k, since_long[block])
        k = _put(row, k, until_long[block])
        k = _put(row, k, int(since_heading))
        k = _put(row, k, tallies[0, slot] if slot >= 0 else -1)
        k = _put(row, k, _share(tallies[2, slot], tallies[1, slot]) if slot >= 0 else -1)
        k = _put(row, k, tallies[1, slot] // max(tallies[0, slot], 1) if slot >= 0 else -1)
        begin, stop = begins[up], ends[up]
        k = _put(row, k, articles_around[block])
        k = _put(row, k, int(is_in_best))
        k = _put(row, k, depth[block] - best_depth if is_in_best else -1)
        k = _put(row, k, int(is_in_half))
        k = _put(row, k, depth[block] - half_depth if is_in_half else -1)
        k = _put(row, k, int(is_in_most))
        k = _put(row, k, depth[block] - most_depth if is_in_most else -1)
        k = _put(row, k, int(e >= last[half]))
        k = _put(row, k, best_score)
        k = _put(row, k, int(articles))
        k = _put(row, k, _share(long_to[stop] - long_to[begin], page_long))
        k = _put(row, k, int(run))
        k = _put(row, k, int(chars_since_h1))
        k = _put(row, k, int(since_title))
        k = _put(row, k, int(articles_before))
        k = _put(row, k, _share(tallies[3, slot], page_long) if slot >= 0 else -1)
        k = _put(row, k, int(articles_before > 0 and e < article_end))
        # how far up the container is that holds the title, too
        levels = branch = -1
        if title >= 0:
            container = e
            levels = 0
            while levels < _MAX_LEVELS and not (container <= title < last[container]):
                branch = int(container)
                container = around[parent[container]] if container > 0 else 0
                levels += 1
        k = _put(row, k, levels)
        k = _put(row, k, block - title_block if title_block >= 0 else -_CLIP)
        own_article = int(article[block])
        is_same = own_article == title_article
        k = _put(row, k, 0 if title_article == 0 else (1 if is_same else (2 if own_article == 0 else 3)))
        if heading >= 0:
            k = _put(row, k, int(counts[heading, ODDS]) * 16 // max(int(counts[heading, WORDS]), 1))
            k = _put(row, k, int(odds[element[heading]]))
            k = _put(row, k, _share(counts[heading, LINK_CHARS], counts[heading, CHARS]))
            k = _put(row, k, int(kind[tag[element[heading]]]))
        else:
            for _ in range(4):
                k = _put(row, k, -_CLIP)
        k = _put(row, k, int(counts[block, ELLIPSES]))
        if own_article > 0:
            held = long_to[ends[own_article]] - long_to[begins[own_article]]
            k = _put(row, k, _share(held, page_long))
        else:
            k = _put(row, k, -1)
        if branch >= 0:
            begin, stop = begins[branch], ends[branch]
            held = chars_to[stop] - chars_to[begin]
            k = _put(row, k, held)
            k = _put(row, k, _share(links_to[stop] - links_to[begin], held))
            k = _put(row, k, _share(long_to[stop] - long_to[begin], held))
            k = _put(row, k, tallies[4, slots[branch]] if slots[branch] >= 0 else 0)
            k = _put(row, k, place[branch])
            k = _put(row, k, int(kind[tag[branch]]))
        else:
            for _ in range(6):
                k = _put(row, k, -1)
        chars_before += chars
        since_h1 = 0 if is_h1 else since_h1 + 1
        chars_since_h1 = 0 if is_h1 else chars_since_h1 + chars
        is_heading = 6 <= own_kind <= 9
        since_title += 1
        if is_heading and words >= 3 and 10 * counts[block, TITLE_WORDS] >= 8 * words:
            since_title = 0
        headings += is_h1
        since_heading = 0 if is_heading else since_heading + 1
        if is_heading:
            heading = block


@raw_step
def _rank(element: NDArray[np.int32], order: NDArray[np.int64], node: Int) -> Int:
    """How many blocks lie in elements before the node."""
    low: Int = 0
    high: Int = order.size
    while low < high:
        middle = (low + high) >> 1
        if element[order[middle]] < node:
            low = middle + 1
        else:
            high = middle
    return low


@raw_kernel(_first)
def _context(
    parent: NDArray[np.int32],
    last: NDArray[np.int32],
    element: NDArray[np.int32],
    counts: NDArray[np.int32],
    signature: NDArray[np.uint32],
    around: NDArray[np.int32],
    scores: NDArray[np.int32],
    order: NDArray[np.int64],
    sums: NDArray[np.int64],
    runs: NDArray[np.int64],
    keys: NDArray[np.int64],
    tallies: NDArray[np.int64],
    made: NDArray[np.int32],
) -> None:
    blocks = element.size
    weight_to, score_to = sums[0], sums[1]  # running sums in the order of elements
    run_weight, run_score = runs[0], runs[1]
    page_weight = page_score = above = 0
    greatest = int(-_CLIP)
    best_block = 0
    for block in range(blocks):
        weight = min(int(counts[block, CHARS]), 1000) + 10
        own = weight * int(_clip(scores[block]))
        run_weight[block + 1] = run_weight[block] + weight
        run_score[block + 1] = run_score[block] + own
        page_weight += weight
        page_score += own
        if scores[block] > greatest and counts[block, CHARS] >= _LONG:
            greatest = int(scores[block])
            best_block = block
        slot = _place(keys, _key(signature, parent, element[block]))
        if slot >= 0:
            tallies[0, slot] += weight
            tallies[1, slot] += own
    for rank in range(blocks):
        block = order[rank]
        weight_to[rank + 1] = weight_to[rank] + (run_weight[block + 1] - run_weight[block])
        score_to[rank + 1] = score_to[rank] + (run_score[block + 1] - run_score[block])
    kept = 0
    for block in range(blocks):
        kept += scores[block] > 0
    for block in range(blocks):
        row = made[block]
        row[0] = _clip(scores[block])
        k = 1
        for step in (-1, -2, -3, 1, 2, 3):
            other = block + step
            row[k] = _clip(scores[other]) if 0 <= other < blocks else -_CLIP
            k += 1
        for reach in (3, 10):
            low, high = max(block - reach, 0), min(block + reach + 1, blocks)
            row[k] = (run_score[high] - run_score[low]) // (run_weight[high] - run_weight[low])
            k += 1
        container: Int = int(element[block])
        for _ in range(4):
            container = around[parent[container]] if container > 0 else 0
            begin = _rank(element, order, container)
            stop = _rank(element, order, last[container])
            held = weight_to[stop] - weight_to[begin]
            row[k] = (score_to[stop] - score_to[begin]) // max(held, 1)
            k += 1
        row[k] = page_score // max(page_weight, 1)
        row[k + 1] = greatest
        slot = _place(keys, _key(signature, parent, element[block]))
        row[k + 2] = tallies[1, slot] // max(tallies[0, slot], 1) if slot >= 0 else 0
        row[k + 3] = run_score[block] // max(run_weight[block], 1)
        row[k + 4] = (run_score[blocks] - run_score[block + 1]) // max(
            run_weight[blocks] - run_weight[block + 1], 1
        )
        row[k + 5] = _share(above, kept)
        row[k + 6] = _clip(block - best_block)
        above += scores[block] > 0
