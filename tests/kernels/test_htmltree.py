"""The tree of a page: its shape, and its texts beside those of a parser that browsers would agree with."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from resiliparse.parse.html import HTMLTree, NodeType

from tokmill.kernels.htmltree import IN_LINK, MAX_DEPTH, TAGS, TEXT, TRAITS, WHITE, Tree, parse

DATA = Path(__file__).parents[3] / "shared" / "data" / "extraction"
NAMES = {number: name for name, number in TAGS.items()}
BLOCKS = {name for name, number in TAGS.items() if TRAITS[number] & 4}
RAW = ("script", "style", "title", "textarea", "iframe", "noembed", "noframes", "xmp", "plaintext")


def tree_of(html: str | bytes) -> tuple[bytes, Tree]:
    data = html.encode() if isinstance(html, str) else html
    return data, parse(np.frombuffer(data, np.uint8))


def nested(html: str | bytes) -> str:
    """As div(p(One)p(Two b(x)))."""
    data, tree = tree_of(html)

    def of(node: int) -> str:
        if node and tree.tag[node] == TEXT:
            return data[tree.start[node] : tree.end[node]].decode()
        inner, child = "", node + 1
        while child < tree.last[node]:
            inner += of(child)
            child = int(tree.last[child])
        return f"{NAMES.get(int(tree.tag[node]), '?')}({inner})" if node else inner

    return of(0)


SHAPES = {
    "the module's": ("<div><p>One<p>Two <b>x</b></div>", "div(p(One)p(Two b(x)))"),
    "a block ends p": ("<p>a<div>b</div>c", "p(a)div(b)c"),
    "inline does not": ("<p>a<span>b</span>c", "p(aspan(b)c)"),
    "p in a button": ("<p>a<button><p>b</button>c", "p(abutton(p(b))c)"),
    "items": ("<ul><li>a<li>b<ul><li>c</ul><li>d</ul>", "ul(li(a)li(bul(li(c)))li(d))"),
    "terms": ("<dl><dt>a<dd>b<dt>c</dl>", "dl(dt(a)dd(b)dt(c))"),
    "options": ("<select><option>a<option>b</select>", "select(option(a)option(b))"),
    "cells": ("<table><tr><td>a<td>b<tr><th>c</table>d", "table(tr(td(a)td(b))tr(th(c)))d"),
    "sections": (
        "<table><thead><tr><td>a<tbody><tr><td>b</table>",
        "table(thead(tr(td(a)))tbody(tr(td(b))))",
    ),
    "a table in a cell": (
        "<table><tr><td>a<table><tr><td>b</table>c<td>d</table>",
        "table(tr(td(atable(tr(td(b)))c)td(d)))",
    ),
    "an end tag in a cell": ("<div><table><tr><td>a</div>b</table>c</div>d", "div(table(tr(td(ab)))c)d"),
    "a link ends a link": ("<a>a<a>b</a>c", "a(a)a(b)c"),
    "formatting over blocks": ("<b><p>a</b>b</p>c", "b(p(ab)c)"),
    "crossed": ("<b>a<i>b</b>c</i>d", "b(ai(b))cd"),
    "headings": ("<h1>a<h2>b</h1>c", "h1(a)h2(b)c"),
    "raw": ("<script>if (a<b) '</p>'</script>b", "script(if (a<b) '</p>')b"),
    "raw, another case": ("<TITLE>a<b>c</tItLe >d", "title(a<b>c)d"),
    "raw without end": ("<textarea>a<b>c</textare>", "textarea(a<b>c</textare>)"),
    "plaintext": ("<plaintext>a</plaintext>", "plaintext(a</plaintext>)"),
    "void": ("a<br>b<img src=x>c<hr/>d<wbr></br>e", "abr()bimg()chr()dwbr()e"),
    "comments": ("a<!-- <b> -->b<!-->c<!--->d<!x>e<?php ?>f</ x>g<![CDATA[x]]>h", "abcdefgh"),
    "a comment with a slip": ("a<!-- b --!>c", "ac"),
    "a comment of dashes": ("a<!----->b<!---->c<!--!>--x-->d", "abcd"),
    "a comment without end": ("a<!-- b", "a"),
    "a tag without end": ("a<b class='x", "a"),
    "a quote without end": ("a<b class='x>b</b>c", "a"),
    "a greater in quotes": ("a<b title='>' x=\">\">b</b>c", "ab(b)c"),
    "less than": ("1 < 2 <3 <<b>x</b> <", "1 < 2 <3 <b(x) <"),
    "upper case": ("<DIV><P CLASS=x>a</P></DIV>", "div(p(a))"),
    "html and body again": ("<html><body>a<html><body>b</body>c</html>d", "html(body(abcd))"),
    "end tags of nothing": ("a</b></p></table>b", "ab"),
    "drawings": ("<svg><path/><g>a</g></svg>b<svg/>c", "svg(?()?(a))bsvg()c"),
    "no self closing elsewhere": ("<div/>a", "div(a)"),
    "head": ("<html><head><title>a</title><meta x><p>b", "html(head(title(a)meta())p(b))"),
    "text ends the head": ("<head><title>a</title> b<p>c</head>d", "head(title(a)) bp(cd)"),
    "a template in the head": (
        "<head><template><div>a</div></template></head>b",
        "head(template(div(a)))b",
    ),
    "a head in the body": ("<body>a<head>b</head>c", "body(ahead()bc)"),
    "NUL": ("a\0<b>\0</b\0>c", "a\0b(\0c)"),
    "spaces in tags": ("<p\n>a</p\t>b< p>c", "p(a)b< p>c"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_elements_nest_as_the_module_says(name: str) -> None:
    html, expected = SHAPES[name]
    assert nested(html) == expected


def test_bytes_that_are_no_utf8_are_text_like_any() -> None:
    data, tree = tree_of(b"\xff<b>\xc3</b>\xe2\x82<\xf0p>")
    assert [data[a:b] for a, b, t in zip(tree.start, tree.end, tree.tag, strict=True) if t == TEXT][1:] == [
        b"\xff", b"\xc3", b"\xe2\x82<\xf0p>",
    ]  # fmt: skip


def test_beyond_the_greatest_depth_elements_are_siblings() -> None:
    deep = MAX_DEPTH + 100
    _, tree = tree_of("<div>" * deep + "a" + "</div>" * 100 + "b" + "</div>" * MAX_DEPTH + "c")
    depth = np.zeros(tree.tag.size, int)
    for node in range(1, tree.tag.size):
        depth[node] = depth[tree.parent[node]] + 1
    assert depth[tree.tag == TEXT].tolist()[1:] == [MAX_DEPTH + 1, MAX_DEPTH + 1, 1]
    assert depth.max() == MAX_DEPTH + 1


# -- the shape of any tree -------------------------------------------------------------------------

SOUP = st.lists(
    st.one_of(
        st.builds(
            "<{}{}>".format, st.sampled_from(sorted(TAGS)), st.sampled_from(["", " a=b", "/", " c='d>'"])
        ),
        st.builds("</{}>".format, st.sampled_from(sorted(TAGS))),
        st.sampled_from(
            ["<!--", "-->", "--!>", "<!", "<?", "</", "<", ">", "'", '"', "=", "&amp;", "\0", " ", "a", "é"]
        ),
        st.sampled_from(
            [
                "<p>",
                "<div>",
                "</div>",
                "<b>",
                "</b>",
                "<a>",
                "</a>",
                "<table>",
                "<tr>",
                "<td>",
                "</table>",
                "<li>",
                "<ul>",
                "</ul>",
            ]
        ),
        st.text(max_size=4),
    ),
    max_size=60,
).map("".join)


def check_shape(tree: Tree, size: int) -> None:
    nodes = tree.tag.size
    assert (tree.parent[0], tree.last[0]) == (-1, nodes)
    for node in range(1, nodes):
        above = int(tree.parent[node])
        assert 0 <= above < node < tree.last[node] <= tree.last[above]
        assert node == above + 1 or tree.last[node - 1] >= node  # children follow each other
        assert 0 <= tree.start[node] < tree.end[node] <= size
        assert tree.tag[above] != TEXT or above == 0
        if node > 1:
            assert tree.start[node] >= tree.end[node - 1]  # in the order of the page, none twice


@settings(deadline=None, max_examples=300)
@given(SOUP)
def test_any_soup_is_a_tree_in_the_order_of_its_bytes(html: str) -> None:
    data, tree = tree_of(html)
    check_shape(tree, len(data))
    for node in range(1, tree.tag.size):
        piece = data[tree.start[node] : tree.end[node]]
        if tree.tag[node] == TEXT:
            assert bool(tree.flags[node] & WHITE) == (piece.strip(b" \t\n\f\r") == b"") or (
                NAMES.get(int(tree.tag[tree.parent[node]])) in RAW
            )
        else:
            name = re.match(rb"<([a-zA-Z][^\s/>]*)", piece)
            assert name is not None
            assert TAGS.get(name[1].decode().lower(), 240) == tree.tag[node] or tree.tag[node] >= 240
            assert piece.endswith(b">")


TOKEN = re.compile(
    rb"(?P<comment><!--(?:-?>|.*?(?:--!?>|\Z)))|(?P<bogus><(?:[!?]|/(?![a-zA-Z]))[^>]*(?:>|\Z))"
    rb"|(?P<end></[a-zA-Z][^\s/>]*)|(?P<start><[a-zA-Z][^\s/>]*)",
    re.DOTALL,
)
ATTRIBUTE = re.compile(
    rb"[ \t\n\f\r/]*(?:(?P<end>>)|(?:[^>][^=>/ \t\n\f\r]*(?:[ \t\n\f\r]*=[ \t\n\f\r]*"
    rb"(?:\"[^\"]*(?:\"|\Z)|'[^']*(?:'|\Z)|[^> \t\n\f\r]*))?))",
    re.DOTALL,
)


def texts_by_tokens(data: bytes) -> bytes:
    """All text of a page without foreign or raw elements, by regular expressions."""
    found, at = b"", 0
    while match := TOKEN.search(data, at):
        found += data[at : match.start()]
        at = match.end()
        if match["end"] or match["start"]:
            while True:
                attribute = ATTRIBUTE.match(data, at)
                if attribute is None or attribute.end() == at:
                    return found  # the tag does not end
                at = attribute.end()
                if attribute["end"]:
                    break
    return found + data[at:]


@settings(deadline=None, max_examples=300)
@given(SOUP)
def test_every_byte_of_text_is_in_one_node(html: str) -> None:
    html = re.sub(rf"(?i)<({'|'.join(RAW)})", "<z", html)
    data, tree = tree_of(html)
    is_text = tree.tag == TEXT
    is_text[0] = False
    pieces = [data[a:b] for a, b in zip(tree.start[is_text], tree.end[is_text], strict=True)]
    assert b"".join(pieces) == texts_by_tokens(data)


# -- beside a parser of others ---------------------------------------------------------------------

HIDDEN = {"head", "script", "style", "title", "template", "noscript", "svg", "math", "iframe", "textarea",
          "select", "object", "noframes", "noembed", "plaintext", "xmp"}  # fmt: skip


def own_texts(html: str) -> list[tuple[str, str]]:
    """(block-level name, text) in the order of the page."""
    data, tree = tree_of(html)
    owner, hidden = [0] * tree.tag.size, [False] * tree.tag.size
    found: list[tuple[int, str, bytes]] = []
    for node in range(1, tree.tag.size):
        above, name = int(tree.parent[node]), NAMES.get(int(tree.tag[node]), "")
        hidden[node] = hidden[above] or name in HIDDEN
        owner[node] = node if name in BLOCKS else owner[above]
        if tree.tag[node] == TEXT and not hidden[node]:
            found.append((owner[node], NAMES.get(int(tree.tag[owner[node]]), ""),
                          data[tree.start[node] : tree.end[node]]))  # fmt: skip
    return joined((key, name, unescape(text.decode())) for key, name, text in found)


def joined(found: Iterator[tuple[int, str, str]]) -> list[tuple[str, str]]:
    rows: list[tuple[int, str, str]] = []
    for key, name, text in found:
        if rows and rows[-1][0] == key:
            rows[-1] = (key, name, rows[-1][2] + text)
        elif text.strip():
            rows.append((key, name, text))
    return [("" if name in ("html", "body") else name, " ".join(text.split())) for _, name, text in rows]


def their_texts(html: str) -> list[tuple[str, str]]:
    parsed = HTMLTree.parse(html)
    found: list[tuple[int, str, str]] = []
    numbers = iter(range(1 << 30))
    stack = [(parsed.document.first_child, 0, "")]
    while stack:
        node, owner, name = stack.pop()
        if node is None:
            continue
        stack.append((node.next, owner, name))
        if node.type == NodeType.TEXT:
            found.append((owner, name, node.value))
        elif node.type == NodeType.ELEMENT and node.tag not in HIDDEN:
            is_block = node.tag in BLOCKS
            number = next(numbers) + 1 if is_block else owner
            stack.append((node.first_child, number, node.tag if is_block else name))
    return joined(iter(found))


ALIKE = [
    "<p>a<p>b<div>c</div>d", "<ul><li>a<li>b<ul><li>c</ul></ul>", "<dl><dt>a<dd>b<dt>c</dl>",
    "<table><tr><td>a<td>b<tr><td>c</table>d", "<table><tr><td>a<table><tr><td>b</table>c</table>d",
    "<b><p>a</b>b</p>c", "<b>a<i>b</b>c</i>d", "<a>a<a>b</a>c", "<h1>a<h2>b</h2>c", "<DIV>a<P>b</DIV>c",
    "<html><head><title>t</title>a<p>b", "<p>a<!-- x --!>b<!--->c<!-->d", "1 < 2 <3",
    "<p>a<button><p>b</button>c",
    "<div><table><tr><td>a</div>b</table>c</div>d", "<p>a</p></p>b", "<body>a<body>b</body>c</html>d",
    "<blockquote><p>a<ul><li>b</blockquote>c", "<script>a</script>b<style>c</style>d",
    "<details><summary>a</summary>b</details>c", "<pre>a<p>b</pre>c", "<section><h2>a</h2>b</section>c",
]  # fmt: skip


@pytest.mark.parametrize("html", ALIKE)
def test_texts_lie_in_the_blocks_where_another_parser_has_them(html: str) -> None:
    assert own_texts(html) == their_texts(html)


def real_pages() -> Iterator[str]:
    for path in sorted(DATA.glob("*.jsonl.zst")):
        with path.open("rb") as file:
            lines = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), encoding="utf-8")
            for number, line in enumerate(lines):
                if number % 8 == 0:
                    yield json.loads(line)["html"]


@pytest.mark.skipif(not DATA.is_dir(), reason="the shared test data is not here")
def test_texts_of_real_pages_lie_in_the_blocks_where_another_parser_has_them() -> None:
    """Not all do: text that stands in a table and in no cell is put before the table by browsers, formatting
    that is not ended is opened again there, a form in a form is none, and what they escape twice in a script
    we do not."""
    alike = total = pages = equal = 0
    for html in real_pages():
        own, theirs = own_texts(html), their_texts(html)
        total += len(theirs)
        alike += len(theirs) - len(set(theirs) - set(own))
        pages += 1
        equal += own == theirs
        assert tree_of(html)[1].tag.size > 1
    print(f"{equal} of {pages} pages alike, {alike} of {total} texts")
    assert alike >= 0.99 * total
    assert equal >= 0.8 * pages


def test_texts_within_links_are_marked() -> None:
    data, tree = tree_of("a<a>b<b>c</b></a>d<a>e<a>f<p>g</a>h</p>i")
    linked = [data[tree.start[n] : tree.end[n]] for n in range(1, tree.tag.size)
              if tree.tag[n] == TEXT and tree.flags[n] & IN_LINK]  # fmt: skip
    assert linked == [b"b", b"c", b"e", b"f", b"g"]
