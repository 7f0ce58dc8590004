"""Texts of blocks counted a second way, one character at a time."""

from __future__ import annotations

import re
import unicodedata
from html import unescape

import numpy as np
import pytest
from hypothesis import example, given, settings

from kernels.html_soup import SOUP
from tokmill.kernels import htmlcounts as hc
from tokmill.kernels.htmlblocks import Blocks, cut
from tokmill.kernels.htmlcounts import count
from tokmill.kernels.htmlodds import odds_table, word_hash
from tokmill.kernels.htmltree import IN_LINK, Tree, parse

ODDS = {word_hash(b"kept"): 40, word_hash(b"dropped"): -30, word_hash(b"words"): 7}


def of_html(html: str) -> tuple[bytes, Tree, Blocks]:
    data = html.encode()
    tree = parse(np.frombuffer(data, np.uint8))
    return data, tree, cut(tree, np.zeros(tree.tag.size, np.uint8))


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
            *(hc.CHARS, hc.LINK_CHARS, hc.COMMAS, hc.DIGITS, hc.UPPER, hc.SEPARATORS, hc.COPYRIGHT),
            *(hc.ELLIPSES, hc.WORDS, hc.ODDS),
        ]
        assert counts[block, names].tolist() == [
            *(chars, linked, commas, digits, upper, separators, rights, ellipses, count_, odds)
        ]


@pytest.mark.parametrize(
    ("html", "column", "expected"),
    [
        ("<p>One two three.", hc.WORDS, 3),
        ("<p>One two", hc.ENDS_SENTENCE, 0),
        ("<p>One. Two!", hc.STOPS, 2),
        ("<p>x.y is 3.5", hc.STOPS, 0),
        ("<p>日本語。", hc.STOPS, 1),
        ("<p>So.&rdquo; Yes.&nbsp;No.” &hellip;", hc.STOPS, 3),
        ("<p>&iquest;Qu&eacute;? S&iacute;&#46; &#169; 2024", hc.STOPS, 2),
        ("<p>f&uuml;r M&auml;nner", hc.WORDS, 2),
        ("<p>Donau&shy;dampf&#173;schiff", hc.LONGEST, 16),
        ("<p>more of it &hellip;", hc.ENDS_SENTENCE, 1),
        ("<title>F&uuml;r alle</title><p>Für uns", hc.TITLE_WORDS, 1),
        ("<p>日本語", hc.WORDS, 3),
        ("<p>a <b>bold</b> b", hc.BOLD_CHARS, 4),
        ("<p><a>x</a> <a>y</a>", hc.LINKS, 2),
        ("<p>a<br>b<br>c", hc.LINES, 2),
        ("<p>a incomprehensible b", hc.LONGEST, 16),
        ("<p>kept Kept dropped", hc.ODDS, 50),
        ("<title>Rivers of Asia</title><p>the rivers of home", hc.TITLE_WORDS, 2),
    ],
)
def test_what_is_counted_by_hand(html: str, column: int, expected: int) -> None:
    data, tree, blocks = of_html(html)
    counts = count(np.frombuffer(data, np.uint8), tree, blocks, odds_table(ODDS))
    assert counts[:, column].tolist() == [expected]
