"""Lines that recur on the pages of a site, against the plainest way to find and cut them."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from duplicates import slow_templates
from tokmill.clean.urls import normalize_urls
from tokmill.duplicates.templates import (
    TemplateOptions,
    count_pages,
    fewest_pages,
    hosts_of,
    site_lines,
    strip_lines,
)
from tokmill.schema import large_strings

ANY = settings(deadline=None, max_examples=200)

PIECES = [
    *("Home", "About us", "12 comments", "3 comments", "é٣x", "}", "---", "7", "\ufdd1mark", "x" * 40),
    *(" ", "\t", "    ", "\r", "\u3000", "", "", "```", "~~~~", "``` py", "# Title", "> quote", "- ", "1. "),
]
TEXTS = st.lists(st.lists(st.sampled_from(PIECES), max_size=3).map("".join), max_size=9).map("\n".join)


def keys_by_line(texts: list[str], seeds: list[int], max_chars: int) -> list[dict[int, int]]:
    column = pa.array(texts, pa.large_string())
    wanted = np.ones(len(texts), np.bool_)
    lines = site_lines(column, np.array(seeds, np.uint64), wanted, max_chars)
    found: list[dict[int, int]] = [{} for _ in texts]
    for row, start, key in zip(*(part.tolist() for part in lines), strict=True):
        found[row][texts[row].encode()[:start].count(b"\n")] = key
    return found


@ANY
@given(st.lists(st.tuples(TEXTS, st.integers(0, 1)), max_size=6), st.sampled_from([5, 30, 300]))
@example([("``` a`b\nHome\n```\nHome", 0)], 300)
@example([("\t* Home\n \t Home\n    12) Home", 0)], 300)
def test_lines_are_the_same_where_a_slow_reader_says_so(pages: list[tuple[str, int]], max_chars: int) -> None:
    texts, seeds = [text for text, _ in pages], [seed for _, seed in pages]
    found = keys_by_line(texts, seeds, max_chars)
    expected = [slow_templates.blocks(text, max_chars) for text in texts]
    assert [set(one) for one in found] == [set(one) for one in expected]
    pairs = {
        (found[row][line], (seeds[row], said))
        for row, one in enumerate(expected)
        for line, said in one.items()
    }
    assert len({key for key, _ in pairs}) == len({said for _, said in pairs}) == len(pairs)


@ANY
@given(st.lists(TEXTS, min_size=1, max_size=8), st.sets(st.sampled_from(["Home", "0 comments", "About us"])))
@example(["a\n\nHome\n\nb\n\nHome", "Home", "\n\nHome\n\na\r\nHome", "a\nHome\n\n\nb\n"], {"Home"})
def test_a_text_loses_these_lines_and_the_blank_ones_that_would_meet(
    texts: list[str], gone: set[str]
) -> None:
    column = pa.array(texts, pa.large_string())
    lines = site_lines(column, np.zeros(len(texts), np.uint64), np.ones(len(texts), np.bool_), 300)
    said = [slow_templates.blocks(text) for text in texts]
    recurs = np.array(
        [
            said[row][texts[row].encode()[:start].count(b"\n")] in gone
            for row, start in zip(lines.rows.tolist(), lines.starts.tolist(), strict=True)
        ],
        np.bool_,
    )
    cut = strip_lines(column, lines, recurs)
    left = list(texts)
    for row, text in zip(cut.rows.tolist(), large_strings(cut.data, cut.offsets).to_pylist(), strict=True):
        left[row] = text
    numbers = [{number for number, one in each.items() if one in gone} for each in said]
    expected = [
        slow_templates.without(text, own) if own else text for text, own in zip(texts, numbers, strict=True)
    ]
    assert left == expected
    # the same, by the spans
    by_span = [text.encode() for text in texts]
    for row, start, end in reversed(list(zip(*(part.tolist() for part in cut[-3:]), strict=True))):
        by_span[row] = by_span[row][:start] + by_span[row][end:]
    assert [text.decode() for text in by_span] == expected
    for at, row in enumerate(cut.rows.tolist()):
        assert cut.chars[at] == len(texts[row]) - len(left[row])
        assert cut.is_filled[at] == bool(left[row].strip())
    pages = np.arange(int(recurs.sum()))[::-1].copy()
    fewest = fewest_pages(cut, lines.rows[recurs], lines.starts[recurs], pages) if len(pages) else []
    spans = list(zip(*(part.tolist() for part in cut[-3:]), strict=True))
    places = list(zip(lines.rows[recurs].tolist(), lines.starts[recurs].tolist(), strict=True))
    assert list(fewest) == [
        min(
            page
            for page, (row, at) in zip(pages.tolist(), places, strict=True)
            if (row == of) and start <= at < end
        )
        for of, start, end in spans
    ]


@ANY
@given(st.lists(TEXTS, max_size=8))
def test_a_page_counts_a_line_once(texts: list[str]) -> None:
    column = pa.array(texts, pa.large_string())
    lines = site_lines(column, np.zeros(len(texts), np.uint64), np.ones(len(texts), np.bool_), 300)
    keys, pages, rows = count_pages(lines)
    of_key = keys_by_line(texts, [0] * len(texts), 300)
    expected = [{*one.values()} for one in of_key]
    assert keys.tolist() == sorted({key for one in expected for key in one})
    assert pages.tolist() == [sum(key in one for one in expected) for key in keys.tolist()]
    assert rows.tolist() == [next(n for n, one in enumerate(expected) if key in one) for key in keys.tolist()]


@pytest.mark.parametrize(
    ("share", "host_pages", "needed"),
    [
        ("0.2", 49, 10),
        ("0.2", 50, 10),
        ("0.2", 51, 11),
        ("0.1", 1000, 100),
        ("0.1", 1001, 101),
        ("1", 70, 70),
    ],
)
def test_a_share_is_a_whole_number_of_pages_and_never_fewer(share: str, host_pages: int, needed: int) -> None:
    options = TemplateOptions(min_share=Decimal(share))
    assert options.pages_needed(np.array([host_pages])).tolist() == [needed]


def test_a_host_is_that_of_the_one_form() -> None:
    urls = [
        "http://www.A.com/x",
        "https://a.com",
        "https://b.a.com/",
        "http://a.com:8080/y?z",
        "no url",
        None,
    ]
    hosts = hosts_of(normalize_urls(pa.array(urls, pa.large_string())))
    assert hosts.names.to_pylist() == ["a.com", "a.com", "b.a.com", "a.com:8080", None, None]
    assert hosts.is_known.tolist() == [True, True, True, True, False, False]
    assert hosts.keys[0] == hosts.keys[1]
    assert len(set(hosts.keys[:4].tolist())) == 3
