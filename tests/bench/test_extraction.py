"""The measures of extraction, on pages small enough to count by hand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

BENCH = Path(__file__).resolve().parents[2] / "bench"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


measures = load("extraction_measures")
pages = load("extraction_pages")


def test_shingles_are_counted_as_often_as_they_occur() -> None:
    # gold: abcd bcde; predicted: abcd bcda cdab dabc abcd
    gold, predicted = "a b c d e", "a b c d a b c d"
    assert measures.overlap(gold, predicted) == pytest.approx((1 / 6, 4 / 6, 1 / 6))


def test_a_text_of_fewer_than_four_words_is_one_shingle() -> None:
    assert measures.shingles("One, two!") == {("One", "two"): 1}
    assert measures.overlap("One two", "One two three") == pytest.approx((0, 1 / 2, 1 / 2))
    assert measures.overlap("", "") == (0, 0, 0)


def test_a_page_without_a_prediction_has_recall_and_no_precision() -> None:
    found = [measures.overlap("a b c d", "a b c d"), measures.overlap("a b c d e", "")]
    assert measures.article_figures(found) == {"pages": 2, "precision": 1.0, "recall": 0.5, "f1": 2 / 3}


def test_f1_is_of_the_means_and_not_the_mean() -> None:
    found = [measures.Overlap(0.5, 0.5, 0.0), measures.Overlap(0.25, 0.0, 0.75)]
    figures = measures.article_figures(found)
    assert (figures["precision"], figures["recall"]) == (0.75, 0.625)
    assert figures["f1"] == pytest.approx(2 * 0.75 * 0.625 / 1.375)


def test_segments_are_found_across_line_ends_and_counted_over_all_pages() -> None:
    first = measures.find_segments(["one two", "three"], ["menu", "foot"], "One: one\n two. Menu, menu")
    assert first == (1, 1, 1, 1)
    second = measures.find_segments(["x"], ["y", "z"], "x")
    assert second == (1, 0, 0, 2)
    assert measures.segment_figures([first, second]) == {
        "pages": 2, "precision": 2 / 3, "recall": 2 / 3, "f1": 4 / 6, "accuracy": 5 / 7,
    }  # fmt: skip


def test_blocks_of_markdown_are_code_tables_and_formulas() -> None:
    text = (
        "A price of $5 or $6, and $x_1 + y$ as `$no$`.\n\n```python\nif a:\n    $b$\n```\n\n"
        "| name | it is |\n| --- | --- |\n| `a` | **b** c |\n| d |  |\n\n"
        "$$\n\\frac{1}{2}\n$$\n\nand \\(q\\)\n"
    )
    code, tables, formulas = measures.markdown_blocks(text)
    assert code == ["if a:\n    $b$"]
    assert tables == ["name | it is\na | b c\nd"]
    assert formulas == ["x_1+y", "\\frac{1}{2}", "q"]


def test_gold_is_written_as_what_it_is_compared_with() -> None:
    gold = measures.gold_blocks(
        ["\n\tx = 1  \n"], [[["name", "it\n is"], ["", ""], ["d", ""]]], ["\\displaystyle a + b", "$c$"]
    )
    assert gold == (["        x = 1"], ["name | it is\nd"], ["a+b", "c"])


def test_each_gold_block_is_compared_with_the_likest() -> None:
    assert measures.best_similarities(["abcd", "xy"], ["abcf", "zzzzzzzz", "abcdefgh"]) == [0.75, 0.0]
    assert measures.best_similarities(["abcd"], []) == [0.0]
    assert len(measures.best_similarities(["a"] * 100, ["a"])) == measures.MAX_ITEMS


def test_sites_weigh_the_same_in_the_mean_of_sites() -> None:
    figures = measures.structure_figures([("a", [1.0, 1.0]), ("a", [1.0]), ("b", [0.0]), ("c", [])])
    assert figures == {"pages": 3, "items": 4, "similarity": 0.75, "site_similarity": 0.5}


def test_lines_of_code_count_with_their_indentation() -> None:
    assert measures.code_lines(["if it:\n    pass\n}"], "text\nif it:\npass\n") == (1, 2)


def slow_distance(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        above, row = row, [i]
        for j, y in enumerate(b, 1):
            row.append(min(row[-1] + 1, above[j] + 1, above[j - 1] + (x != y)))
    return row[-1]


@given(st.text("abc", max_size=80), st.text("abc", max_size=80))
def test_edit_distance_is_the_table_of_all_prefixes(a: str, b: str) -> None:
    assert measures.edit_distance(a, b) == slow_distance(a, b)


def test_a_host_is_what_someone_registers() -> None:
    urls = {
        "https://www.example.com/a?b": "example.com",
        "http://news.example.co.uk:80/": "example.co.uk",
        "http://blog.example.de": "example.de",
        "archiv.example.de/x": "example.de",
        "http://127.0.0.1/": "127.0.0.1",
        "http://t.co/1": "t.co",
    }
    assert {url: pages.host_of(url) for url in urls} == urls


def test_folds_are_five_and_stay_as_they_are() -> None:
    hosts = ("example.com", "example.de", "example.co.uk")
    assert [pages.fold_of(host) for host in hosts] == [4, 0, 2]
    counts = [0] * pages.FOLDS
    for number in range(1000):
        counts[pages.fold_of(f"{number}.org")] += 1
    assert sum(counts) == 1000
    assert min(counts) > 150


def test_a_language_is_the_declared_one_or_else_detected() -> None:
    german = "Das ist ein ganz gewöhnlicher Satz in deutscher Sprache, der lang genug ist."
    rows = [
        {"html": '<!doctype html><html class="no" lang="en-US">', "text": german},
        {"html": "<html><body>", "with": [german, "Und noch einer."]},
    ]
    assert pages.languages_of(rows) == ["en", "de"]
