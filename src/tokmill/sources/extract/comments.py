"""Comments of readers below a text.

    <section id=comments> <h3>2 comments</h3>               left out: no comment
      <li class=comment> <cite>Ann</cite> <p>I was there, too.</p> <a>Reply</a> ...
                         left out         kept            left out

Nothing is learned here: a container says so by a word of its class or id. The element that holds the best
block of the page is none, whatever its class (`comments-open` says that readers may write some).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.htmlclasses import mark_words
from tokmill.kernels.htmlfeatures import NAMES
from tokmill.kernels.htmlodds import word_hash
from tokmill.sources.extract.page import Page, Verdicts, in_sight

_WORDS = b"comment comments commentlist commentlists commenttext commentbody disqus kommentar kommentare"
_WORDS += b" commentaire commentaires comentario comentarios commento commenti reacties"
_HASHES = np.array([word_hash(word) for word in _WORDS.split()], np.uint64)
# A text and not a name, a date or a number of votes: thousandths of its characters, and words.
_MAX_LINK_SHARE, _MAX_DIGIT_SHARE, _MIN_WORDS = 500, 200, 5
_COLUMNS = (
    "link_share",
    "digit_share",
    "words",
    "ends_sentence",
    "is_hidden",
    "around_7",
    "around_12",
    "kind",
)
_HEADINGS = range(6, 10)


def kept_blocks(page: Page, verdicts: Verdicts, *, main_text: bool, comments: bool) -> NDArray[np.uint8]:
    """As a source asks: the main text, with comments or without; or all that the page shows."""
    if not main_text:
        return in_sight(verdicts)
    if not comments:
        return verdicts.keep
    return verdicts.keep | comment_blocks(page, verdicts).astype(np.uint8)


def comment_blocks(page: Page, verdicts: Verdicts) -> NDArray[np.bool_]:
    """[block]: is it the text of a comment?"""
    is_comment = np.zeros(len(verdicts.second), np.bool_)
    if not len(is_comment):
        return is_comment
    first, last = page.blocks.first, page.tree.last
    hashes, owners = mark_words(page.data, page.tree)
    nodes = np.unique(owners[np.isin(hashes, _HASHES)])
    best = first[int(np.argmax(verdicts.second))]
    nodes = nodes[(best < nodes) | (best >= last[nodes])]
    depth = np.zeros(len(first) + 1, np.int64)
    np.add.at(depth, np.searchsorted(first, nodes), 1)
    np.add.at(depth, np.searchsorted(first, last[nodes]), -1)
    links, digits, words, ends, hidden, form, button, kind = (
        verdicts.features[:, NAMES.index(name)] for name in _COLUMNS
    )
    is_text = (links < _MAX_LINK_SHARE) & (digits < _MAX_DIGIT_SHARE) & ((words >= _MIN_WORDS) | (ends != 0))
    is_shown = (hidden == 0) & (form == 0) & (button == 0) & ~np.isin(kind, _HEADINGS)
    is_comment[:] = (np.cumsum(depth[:-1]) > 0) & is_text & is_shown
    return is_comment
