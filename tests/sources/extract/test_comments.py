"""Comments of readers: left out unless they are asked for, and told apart from what is around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tokmill.sources.extract.comments import comment_blocks, kept_blocks
from tokmill.sources.extract.engines import open_engine
from tokmill.sources.extract.page import find_blocks, in_sight, judge, parse_page
from tokmill.sources.extract.reasons import explain

PARAGRAPH = "A river is a stream of water that flows to the sea, to a lake or into another river. " * 4
WRITTEN = [
    "I swam in it as a child, and it was clear.",
    "Nonsense!",
    "The bridge was built by my grandfather",
]
AROUND = ["3 comments", "Ann", "3 March 2014, 10:22", "Reply", "Leave a comment of your own", "Post it now"]


def page_of(marks: str, body: str = "") -> str:
    items = "".join(
        f"<li><cite>{AROUND[1]}</cite><div>{AROUND[2]}</div><p>{text}</p>"
        f"<div><a href=/r>{AROUND[3]}</a></div></li>"
        for text in WRITTEN
    )
    form = f"<form><label>{AROUND[4]}</label><button>{AROUND[5]}</button></form>"
    return (
        f"<html><head><title>Rivers</title></head><body {body}><article {body}><h1>Rivers</h1>"
        f"<p>{PARAGRAPH}</p><p>{PARAGRAPH}</p></article>"
        f"<section {marks}><h3>{AROUND[0]}</h3><ol>{items}</ol>{form}</section></body></html>"
    )


def read_by(html: str, *, main_text: bool = True, **options: Any) -> str:
    return open_engine(options, main_text=main_text)(html, *parse_page(html.encode()))


@pytest.mark.parametrize(
    "marks", ["id=comments", "class='post-comments wide'", "id=disqus_thread", "class=commentList"]
)
def test_comments_are_kept_where_they_are_asked_for(marks: str) -> None:
    html = page_of(marks)
    with_comments = read_by(html, comments=True)
    assert all(text in with_comments for text in WRITTEN)
    assert with_comments.count(PARAGRAPH.strip()) == 2
    assert not any(text in with_comments for text in AROUND)
    without = read_by(html)
    assert without.count(PARAGRAPH.strip()) == 2
    assert not any(text in without for text in WRITTEN)
    # what is kept without them is kept with them
    assert set(without.split("\n")) <= set(with_comments.split("\n"))


def test_a_page_whose_own_class_speaks_of_comments_is_no_comment() -> None:
    page = find_blocks(*parse_page(page_of("class=talk", "class='single comments-open'").encode()))
    assert not comment_blocks(page, judge(page)).any()


def test_all_that_a_page_shows_has_its_comments_anyway() -> None:
    page = find_blocks(*parse_page(page_of("id=comments").encode()))
    verdicts = judge(page)
    for comments in (False, True):
        kept = kept_blocks(page, verdicts, main_text=False, comments=comments)
        assert kept.tolist() == in_sight(verdicts).tolist()
    assert all(text in read_by(page_of("id=comments"), main_text=False) for text in WRITTEN)


def test_an_empty_page_has_no_comments() -> None:
    page = find_blocks(*parse_page(b""))
    assert comment_blocks(page, judge(page)).tolist() == []
    assert read_by("", comments=True) == ""


def test_why_a_comment_is_kept_is_told() -> None:
    page = find_blocks(*parse_page(page_of("id=comments").encode()))
    verdicts = judge(page)
    told = {block.text: block for block in explain(page, verdicts, comments=True).blocks}
    assert {told[text].verdict for text in WRITTEN} == {"kept"}
    assert {told[text].because for text in WRITTEN} == {"a comment of a reader, and those are asked for"}
    assert told["Ann"].verdict == "left out"
    untold = {block.text: block for block in explain(page, verdicts).blocks}
    assert {untold[text].verdict for text in WRITTEN} == {"left out"}
    assert untold[PARAGRAPH.strip()].because == told[PARAGRAPH.strip()].because == "above the threshold"


def test_blocks_of_comments_are_those_below_a_marked_element() -> None:
    html = page_of("id=comments") + f"<div class=talk><p>{WRITTEN[0]}</p></div>"
    page = find_blocks(*parse_page(html.encode()))
    at = np.flatnonzero(comment_blocks(page, judge(page)))
    texts = [block.text for block in explain(page, judge(page)).blocks]
    assert [texts[number] for number in at] == WRITTEN
