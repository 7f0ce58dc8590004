"""Features of a block in words that a user understands.

    link_share 823  ─>  "share of its characters in links: 82 %"
    around_1 1      ─>  "inside <article>: yes"
    score_before 96 ─>  "score of the block before it: +0.19"

A feature that has no words yet, because it is newer than this table, has its name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

from tokmill.kernels.htmlfeatures import _AROUND, _CLIP, _KINDS, CONTEXT_NAMES, NAMES

_NONE = -2  # of a neighbour that is not there


class Phrase(NamedTuple):
    words: str
    spelled: Callable[[int], str]  # its value


# -- values ----------------------------------------------------------------------------------------


def _number(value: int) -> str:
    if value == _NONE:
        return "none"
    return f"{value:,} or more" if value >= _CLIP else f"{value:,}"


def _share(value: int) -> str:
    """Of thousandths; less than nothing is a share of nothing."""
    return "none" if value < 0 else f"{value / 10:.0f} %"


def _tenths(value: int) -> str:
    return f"{value / 10:.1f}"


def _signed(value: int) -> str:
    return "none" if value == _NONE or value <= -_CLIP else f"{value:+,}"


def _is(value: int) -> str:
    return "none" if value == _NONE else "yes" if value else "no"


def _far(value: int) -> str:
    """Of distances, which begin at a thousand where there is nothing to be far from."""
    return "none" if value >= 1000 else f"{value:,}"


def _inner(value: int) -> str:
    return "not inside" if value < 0 else f"{value:,}"


def _levels(value: int) -> str:
    return "none" if value < 0 else f"{value:,}"


def _article(value: int) -> str:
    return ("none has it", "yes", "in none", "in another")[min(max(value, 0), 3)]


def _tenfold(value: int) -> str:
    return f"{10 * _CLIP:,} or more" if value >= _CLIP else f"about {10 * value:,}"


def _score(value: int) -> str:
    """Of 1/512; the least there is stands for no block."""
    return "none" if value <= -_CLIP else f"{value / 512:+.2f}"


def _kind(value: int) -> str:
    return _kinds()[value] if 0 <= value < len(_kinds()) else "none"


def _inline(value: int) -> str:
    return _kind(value) if value else "none"


@functools.cache
def _kinds() -> tuple[str, ...]:
    return ("another", *(f"<{group.split()[0]}>" for group in _KINDS.split("|")))


# -- words -----------------------------------------------------------------------------------------

_UNITS: dict[str, Callable[[int], str]] = {
    "number": _number, "share": _share, "tenths": _tenths, "signed": _signed, "is": _is, "far": _far,
    "inner": _inner, "tenfold": _tenfold, "score": _score, "kind": _kind, "inline": _inline,
    "levels": _levels, "article": _article,
}  # fmt: skip

# name, unit, words
_OWN = """
    chars                 number   characters of its text
    words                 number   words of its text
    link_share            share    share of its characters in links
    commas                number   commas, colons and semicolons
    stops                 number   ends of sentences in it
    digit_share           share    share of digits
    upper_share           share    share of capital letters
    links                 number   links in it
    bold_share            share    share of its characters in bold
    separators            number   bars, slashes, arrows and number signs
    copyright             number   copyright signs
    ends_sentence         is       ends as a sentence does
    longest_word          number   characters of its longest word
    lines                 number   lines broken in it
    word_odds             signed   words that main text has oftener, or less often
    mean_word_odds        signed   words that main text has oftener, for each of its words
    title_share           share    share of its words in the title of the page
    word_length           tenths   characters of a word
    stops_per_word        share    ends of sentences for each word
    repeats               number   blocks of the page with just its text
    kind                  kind     its element
    kind_of_parent        kind     the element around its own
    kind_of_grandparent   kind     the second element around its own
    kind_of_inline        inline   the inline element that it begins with
    depth                 number   elements around it
    odds                  signed   words of its class and id
    odds_of_parent        signed   words of the class around it
    odds_of_grandparent   signed   words of the second class around it
    least_odds            signed   words of classes around it, the worst of them
    greatest_odds         signed   words of classes around it, the best of them
    sum_of_odds           signed   words of classes around it, all of them
    is_hidden             is       the page hides it
    in_list               is       in a list
    in_table              is       in a table
    page_chars            tenfold  characters of the page
    page_blocks           number   blocks of the page
    page_link_share       share    share of the page's characters in links
    page_long_blocks      number   long blocks of the page
    page_longest          number   characters of the page's longest block
    position              share    how far down the page it is, by blocks
    chars_before          share    how far down the page it is, by characters
    chars_after           number   characters of the page after it
    since_h1              far      blocks since the main heading
    headings_h1           number   main headings before it
    since_long            far      blocks since a long one
    until_long            far      blocks until a long one
    since_heading         far      blocks since a heading
    alike                 number   blocks of the same element and class
    alike_link_share      share    share of characters in links of blocks like it
    alike_chars           number   characters of a block like it
    articles_around       number   <article> elements around it
    in_best               is       inside the element with the most prose of its own
    best_levels           inner    levels inside the element with the most prose of its own
    in_half               is       inside the element that holds half of the prose
    half_levels           inner    levels inside the element that holds half of the prose
    in_most               is       inside the element that holds most of the prose
    most_levels           inner    levels inside the element that holds most of the prose
    after_half            is       after the element that holds half of the prose
    best_score            number   prose in the element that has the most of its own
    articles              number   <article> elements of the page
    share_of_long         share    share of the page's prose in the element around it
    in_run                number   long blocks since the prose began
    chars_since_h1        number   characters since the main heading
    since_title           far      blocks since a heading that repeats the title
    articles_before       number   <article> elements before it
    share_of_alike        share    share of the page's prose in blocks like it
    in_first_article      is       inside the first <article>
    title_levels          levels   levels up to the element that also holds the title
    title_distance        signed   blocks after the title
    title_article         article  inside the <article> of the title
    heading_odds          signed   words of the heading above it
    heading_mark_odds     signed   words of the class of the heading above it
    heading_link_share    share    share of characters in links of the heading above it
    heading_kind          kind     element of the heading above it
    ellipses              number   ellipses in it
    article_share         share    share of the page's prose in the <article> around it
    branch_chars          levels   characters of what it lies in beside the title
    branch_link_share     share    share of characters in links of what it lies in beside the title
    branch_long_share     share    share of prose in what it lies in beside the title
    branch_alike          levels   elements like what it lies in beside the title
    branch_place          levels   which of the elements like it is what it lies in beside the title
    branch_kind           kind     element that it lies in beside the title
"""
_CONTAINER = """
    chars          number  characters in {}
    link_share     share   share of characters in links in {}
    blocks         number  blocks in {}
    long_chars     number  characters of prose in {}
    share_of_page  share   share of the page's characters in {}
    commas         number  commas, colons and semicolons in {}
    linked_starts  share   share of blocks that begin with a link in {}
    alike          number  elements of the same kind and class as {}
    place          number  which of the elements like it is {}
"""
_NEIGHBOUR = """
    chars          number  characters of {}
    link_share     share   share of characters in links of {}
    kind           kind    element of {}
    odds           signed  words of classes around {}
    ends_sentence  is      a sentence ends with {}
    levels         signed  levels deeper is {}
"""
_CONTEXT = """
    score        score  its score in a first judgement
    before       score  score of the block before it
    before_2     score  score of the second block before it
    before_3     score  score of the third block before it
    after        score  score of the block after it
    after_2      score  score of the second block after it
    after_3      score  score of the third block after it
    near         score  scores of the blocks next to it
    wide         score  scores of the blocks near it
    container_1  score  scores in the element around it
    container_2  score  scores in the second element around it
    container_3  score  scores in the third element around it
    container_4  score  scores in the fourth element around it
    page         score  scores of the page
    greatest     score  greatest score of the page
    alike        score  scores of blocks of the same element and class
    above        score  scores of the blocks before it, all of them
    below        score  scores of the blocks after it, all of them
    share_above  share  share of the page's good blocks before it
    best_block   signed blocks after the best one
"""
_LEVELS = (
    *("the element around it", "the second element around it"),
    *("the third element around it", "the fourth element around it"),
)
_SIDES = {
    "before": "the block before it",
    "before_2": "the second block before it",
    "after": "the block after it",
    "after_2": "the second block after it",
}


def _rows(table: str) -> list[tuple[str, str, str]]:
    rows = (line.split(maxsplit=2) for line in table.strip().splitlines())
    return [(name, unit, words) for name, unit, words in rows]


@functools.cache
def phrases() -> dict[str, Phrase]:
    """By the names of features and of their context."""
    found = {name: Phrase(words, _UNITS[unit]) for name, unit, words in _rows(_OWN)}
    for number, group in enumerate(_AROUND.split("|"), 1):
        found[f"around_{number}"] = Phrase(f"inside <{group.split()[0]}>", _is)
    for level, place in enumerate(_LEVELS, 1):
        for name, unit, words in _rows(_CONTAINER):
            found[f"container_{level}_{name}"] = Phrase(words.format(place), _UNITS[unit])
    for side, place in _SIDES.items():
        for name, unit, words in _rows(_NEIGHBOUR):
            found[f"{side}_{name}"] = Phrase(words.format(place), _UNITS[unit])
    found |= {f"score_{name}": Phrase(words, _UNITS[unit]) for name, unit, words in _rows(_CONTEXT)}
    return {
        name: found.get(name, Phrase(name.replace("_", " "), _number)) for name in (*NAMES, *CONTEXT_NAMES)
    }


# What a feature is of, by how its name begins; of its text where none of them fits.
GROUPS = {
    "its text": (),
    "its element and classes": (
        *("kind", "depth", "odds", "least_odds", "greatest_odds", "sum_of_odds", "is_", "around_"),
    ),
    "its containers": ("container_", "in_", "articles_around", "article_share", "branch_"),
    "blocks next to it": ("before_", "after_"),
    "the page, and its place there": (
        *("page_", "position", "chars_", "since_", "until_", "headings_", "alike", "best_", "half_", "most_"),
        *("articles", "share_of_", "after_half", "title_levels", "title_distance", "title_article"),
        "heading_",
    ),
    "scores": ("score_",),
}  # fmt: skip


@functools.cache
def group_of(name: str) -> str:
    """The longest beginning counts."""
    fitting = [
        (len(begin), group) for group, begins in GROUPS.items() for begin in begins if name.startswith(begin)
    ]
    return max(fitting, default=(0, "its text"))[1]


def say(name: str, value: int) -> str:
    """A feature with its value: "share of its characters in links: 82 %"."""
    words, spelled = phrases()[name]
    return f"{words}: {spelled(value)}"
