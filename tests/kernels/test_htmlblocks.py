"""Blocks cut and counted a second way, one character at a time."""

from __future__ import annotations

import re
import unicodedata
from html import unescape

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tokmill.kernels import htmlblocks as hb
from tokmill.kernels.htmlblocks import Blocks, count, cut, odds_table, word_hash
from tokmill.kernels.htmltree import IN_LINK, TAGS, TEXT, TRAITS, WHITE, Tree, parse

BREAKING = {number for number in TAGS.values() if TRAITS[number] & 4} | {TAGS["button"]}
NEVER_SHOWN = {
    TAGS[name]
    for name in [
        "head",
        "title",
        "script",
        "style",
        "noscript",
        "template",
        "svg",
        "select",
        "option",
        "optgroup",
        "textarea",
        "iframe",
        "object",
        "canvas",
        "video",
        "audio",
        "noembed",
        "noframes",
        "map",
    ]
}
PIECES = st.one_of(
    st.builds(
        "<{}>".format,
        st.sampled_from(
            [
        "p", "div", "b", "strong", "i", "a", "span", "br", "ul", "li", "table", "tr",
        "td", "h1", "script", "head", "title", "button", "select", "svg", "hr",
    ]
        ),
    ),
    st.builds("</{}>".format, st.sampled_from([
        "p", "div", "b", "strong", "i", "a", "span", "ul", "li", "table", "h1",
        "title", "button",
    ])),
    st.sampled_from(
        ["Some words", "and more. ", "A, b; c: d!", "Really? ", "© 2024", "10 | 20 / 30 > 4 #", "&nbsp;",
         "&amp;", "&#160;", "&bogus", "é", "日本。", "什么？", " ", "\n", "kept", "dropped", "x.y",
         "f&uuml;r", "&#169;", "&copy 20", "&hellip;", "a&shy;b", "&ldquo;So.&rdquo;", "نعم، لا؟", "…",
         "....", "l’eau", "&#8203;", "&#xADx", "&#128512;", "&NotEqualTilde;", "हाँ।", "&#46;&period;.",
         "k&#101;pt", "&#1;"]
    ),
    st.text("aZ9.,! <&;é日#1", max_size=6),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=4),
)  # fmt: skip
SOUP = st.lists(PIECES, max_size=40).map("".join)
ODDS = {word_hash(b"kept"): 40, word_hash(b"dropped"): -30, word_hash(b"words"): 7}


def cut_slowly(tree: Tree) -> list[list[int]]:
    """Texts of each block: one block-level element around them, and nothing that breaks between."""
    blocks: list[list[int]] = []
    around: dict[int, int] = {0: 0}
    state = None  # of the block that goes on: its element, how many breaks there were before it
    breaks = lines = 0
    hidden_until = 0
    for node in range(1, tree.tag.size):
        tag, above = int(tree.tag[node]), int(tree.parent[node])
        around[node] = node if tag in BREAKING and tag != TEXT else around[above]
        if node < hidden_until:
            continue
        if tag == TEXT:
            goes_on = state == (around[node], breaks) and lines < 2
            is_white = bool(tree.flags[node] & WHITE)
            if not goes_on and not is_white:
                blocks.append([])
                state, goes_on = (around[node], breaks), True
            if goes_on:
                blocks[-1].append(node)
            lines = lines if is_white else 0
        elif tag in NEVER_SHOWN:
            hidden_until = int(tree.last[node])
        else:
            breaks += tag in BREAKING
            lines += tag == TAGS["br"]
    return blocks


def of_html(html: str) -> tuple[bytes, Tree, Blocks]:
    data = html.encode()
    tree = parse(np.frombuffer(data, np.uint8))
    return data, tree, cut(tree, np.zeros(tree.tag.size, np.uint8))


@settings(deadline=None, max_examples=300)
@given(SOUP)
def test_a_block_is_a_run_of_text_that_nothing_interrupts(html: str) -> None:
    _, tree, blocks = of_html(html)
    slow = cut_slowly(tree)
    assert [np.flatnonzero(blocks.of == number).tolist() for number in range(len(slow))] == slow
    assert blocks.first.tolist() == [texts[0] for texts in slow]
    assert blocks.end.tolist() == [texts[-1] + 1 for texts in slow]


def test_a_page_of_very_many_blocks_has_several_judged_as_one() -> None:
    _, tree, blocks = of_html("<p>a" * 10_000)
    slow = cut_slowly(tree)
    assert len(slow) == 10_000
    # 40,000 bytes may have 689: 15 would be one, and where that is more than 8, four times as many are
    assert len(blocks.element) == 167
    assert blocks.of[[texts[0] for texts in slow]].tolist() == [number // 60 for number in range(10_000)]
    assert blocks.first.tolist() == [texts[0] for texts in slow[::60]]
    assert blocks.end.tolist() == [texts[-1] + 1 for texts in [*slow[59::60], slow[-1]]]


def letters(text: bytes) -> str:
    """Entities as the characters that they mean."""
    return unescape(text.decode())


def is_sign(c: str) -> bool:
    """No part of a word: marks and spaces of Latin-1 and general punctuation, and some of other scripts."""
    if c in "ªµº":
        return False
    return "\x80" <= c < "\xc0" or "\u2000" <= c < "\u2040" or c in "\u3000、。！，：；？،؛؟।"


def is_shown(c: str) -> bool:
    if c < "\x80" or not is_sign(c):
        return c > " "
    return unicodedata.category(c)[0] != "Z" and unicodedata.category(c) != "Cf"


def words_of(text: str) -> list[str]:
    joined = re.sub("[\xad\u200c-\u200f\u202a-\u202e]", "", text)
    plain = "".join(c if c.isascii() or not is_sign(c) else " " for c in joined)
    return re.findall(r"[0-9A-Za-z\x80-\U0010ffff]+", plain)


@settings(deadline=None, max_examples=300)
@given(SOUP)
@example("<p>&99é9&nbsp;")
def test_characters_marks_and_links_of_a_block_are_those_of_its_texts(html: str) -> None:
    data, tree, blocks = of_html(html)
    counts = count(np.frombuffer(data, np.uint8), tree, blocks, odds_table(ODDS))
    for block in range(len(blocks.element)):
        nodes = np.flatnonzero(blocks.of == block).tolist()
        chars = linked = commas = digits = upper = separators = rights = ellipses = count_ = odds = 0
        for node in nodes:
            text = letters(data[tree.start[node] : tree.end[node]])
            size = sum(map(is_shown, text))
            chars += size
            linked += size if tree.flags[node] & IN_LINK else 0
            commas += sum(c in ",;:、，：；،؛" for c in text)
            digits += sum(c in "0123456789" for c in text)
            upper += sum("A" <= c <= "Z" for c in text)
            separators += sum(c in "|/>#" for c in text)
            rights += text.count("©")
            ellipses += text.count("…") + len(re.findall(r"\.{3,}", text))
            for word in words_of(text):
                # a character of a script without spaces is about a word
                count_ += sum("\u3000" <= c < "\ue000" for c in word) or 1
                odds += ODDS.get(word_hash(word.encode().lower()), 0)
        names = [
            *(hb.CHARS, hb.LINK_CHARS, hb.COMMAS, hb.DIGITS, hb.UPPER, hb.SEPARATORS, hb.COPYRIGHT),
            *(hb.ELLIPSES, hb.WORDS, hb.ODDS),
        ]
        assert counts[block, names].tolist() == [
            *(chars, linked, commas, digits, upper, separators, rights, ellipses, count_, odds)
        ]


@pytest.mark.parametrize(
    ("html", "column", "expected"),
    [
        ("<p>One two three.", hb.WORDS, 3),
        ("<p>One two", hb.ENDS_SENTENCE, 0),
        ("<p>One. Two!", hb.STOPS, 2),
        ("<p>x.y is 3.5", hb.STOPS, 0),
        ("<p>日本語。", hb.STOPS, 1),
        ("<p>So.&rdquo; Yes.&nbsp;No.” &hellip;", hb.STOPS, 3),
        ("<p>&iquest;Qu&eacute;? S&iacute;&#46; &#169; 2024", hb.STOPS, 2),
        ("<p>f&uuml;r M&auml;nner", hb.WORDS, 2),
        ("<p>Donau&shy;dampf&#173;schiff", hb.LONGEST, 16),
        ("<p>more of it &hellip;", hb.ENDS_SENTENCE, 1),
        ("<title>F&uuml;r alle</title><p>Für uns", hb.TITLE_WORDS, 1),
        ("<p>日本語", hb.WORDS, 3),
        ("<p>a <b>bold</b> b", hb.BOLD_CHARS, 4),
        ("<p><a>x</a> <a>y</a>", hb.LINKS, 2),
        ("<p>a<br>b<br>c", hb.LINES, 2),
        ("<p>a incomprehensible b", hb.LONGEST, 16),
        ("<p>kept Kept dropped", hb.ODDS, 50),
        ("<title>Rivers of Asia</title><p>the rivers of home", hb.TITLE_WORDS, 2),
    ],
)
def test_what_is_counted_by_hand(html: str, column: int, expected: int) -> None:
    data, tree, blocks = of_html(html)
    counts = count(np.frombuffer(data, np.uint8), tree, blocks, odds_table(ODDS))
    assert counts[:, column].tolist() == [expected]


@settings(deadline=None, max_examples=50)
@given(
    st.dictionaries(st.integers(1, 2**64 - 1), st.integers(-99, 99), max_size=600), st.integers(1, 2**64 - 1)
)
def test_odds_are_found_by_their_hash(odds: dict[int, int], other: int) -> None:
    table = odds_table(odds)
    pairs = dict(zip(table.hashes.tolist(), table.values.tolist(), strict=True))
    assert {value: pairs[value] for value in odds} == odds
    assert other in odds or pairs.get(other, 0) == 0
    assert len(table.hashes) >= 2 * len(odds)


@pytest.mark.parametrize(
    ("html", "most"),
    [
        ("<p>a" * 50, 64),  # few blocks are all judged
        ("<p>a" * 2_000, 64 + 8_000 // 64),
        ("<p>a" * 250_000, 2_048 // 4),
        (f"<p>{'a ' * 40}" * 3_000, 2_048),
    ],
)
def test_pages_dense_in_blocks_are_judged_by_fewer_of_them(html: str, most: int) -> None:
    _, tree, blocks = of_html(html)
    texts = np.flatnonzero(tree.tag == TEXT)[1:]  # the first is the document
    assert len(blocks.element) <= most + 1
    # every text is in one, in order, and each has as many as any other but the last
    numbers = blocks.of[texts]
    assert (np.diff(numbers) >= 0).all()
    sizes = np.bincount(numbers)
    assert (sizes[:-1] == sizes[0]).all()
    assert 0 < sizes[-1] <= sizes[0]
    assert texts[np.cumsum(sizes) - sizes].tolist() == blocks.first.tolist()
