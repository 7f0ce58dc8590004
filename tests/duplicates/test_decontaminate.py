"""Benchmark items planted in texts are found where they are; what only looks like one is not."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplicates.deduped import Deduped, dedup
from kernels.test_windows import slow_words
from mill import SHARED
from tokmill.duplicates.decontaminate import (
    Hits,
    Items,
    find_contamination,
    ngram_index,
)
from tokmill.errors import EmptyGlob, InputError, RecipeError
from written import ZstdFile

ANY = settings(deadline=None, max_examples=200)
QUESTION = (
    "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May. "
    "How many clips did Natalia sell altogether in April and May?"
)


def texts_of(texts: list[str]) -> Any:
    return pa.array(texts, pa.large_string())


class Hit(NamedTuple):
    row: int
    item: int  # from 0
    text: str
    grams: int
    share: float


def look(
    tmp_path: Path, texts: list[str], items: list[str], policy: str = "report", **section: Any
) -> tuple[list[Hit], Deduped]:
    """A run whose documents are held against a benchmark of these items: what it wrote of every hit."""
    path = tmp_path / "bench.jsonl"
    path.write_text("".join(json.dumps({"q": item}) + "\n" for item in items))
    against = {"files": str(path), "fields": ["q"], "policy": policy, **section}
    found = dedup(texts, against=against)
    hits = []
    for told in found.contamination:
        text = texts[told["row"]].encode()[told["start"] : told["end"]].decode()
        item = int(told["item"].removeprefix("bench.jsonl:")) - 1
        hits.append(Hit(told["row"], item, text, told["grams"], told["share"]))
    return hits, found


def items_of(texts: list[str]) -> Items:
    count = len(texts)
    return Items(texts_of(texts), ["bench.jsonl"], np.zeros(count, np.int64), np.arange(1, count + 1))


def rows_of(hits: Hits) -> list[tuple[Any, ...]]:
    return list(zip(*(column.tolist() for column in hits), strict=True))


def slow_hits(texts: list[str], items: list[str], n: int, min_words: int) -> list[tuple[Any, ...]]:
    found = []
    for row, text in enumerate(texts):
        words = slow_words(text)
        for number, item in enumerate(items):
            theirs = [word for word, _, _ in slow_words(item)]
            size = n if len(theirs) >= n else len(theirs)
            if size < min_words:
                continue
            grams = {tuple(theirs[k : k + size]) for k in range(len(theirs) - size + 1)}
            places = [
                k
                for k in range(len(words) - size + 1)
                if tuple(word for word, _, _ in words[k : k + size]) in grams
            ]
            share = len({tuple(word for word, _, _ in words[k : k + size]) for k in places}) / len(grams)
            runs: list[list[int]] = []
            for k in places:
                if runs and k <= runs[-1][-1] + size:
                    runs[-1].append(k)
                else:
                    runs.append([k])
            found += [
                (row, number, words[run[0]][1], words[run[-1] + size - 1][2], len(run), share) for run in runs
            ]
    return found


WORDS = st.lists(
    st.sampled_from(["a", "B", "b", "c", "É", "e\u0301", "日", "㏂", "9", "—"]), max_size=14
).map(" ".join)


@ANY
@given(
    st.lists(WORDS, max_size=5),
    st.lists(st.lists(WORDS, max_size=4).map(" ".join), max_size=4),
    st.sampled_from([(3, 1), (4, 2), (5, 5)]),
)
def test_hits_are_all_places_where_n_words_of_an_item_stand(
    items: list[str], texts: list[str], sizes: tuple[int, int]
) -> None:
    hits = find_contamination(texts_of(texts), ngram_index(items_of(items), *sizes))
    assert rows_of(hits) == slow_hits(texts, items, *sizes)


@ANY
@given(st.lists(st.lists(st.sampled_from("abcd"), max_size=20).map(" ".join), max_size=8), st.integers(1, 4))
def test_hits_do_not_depend_on_how_texts_are_batched(texts: list[str], step: int) -> None:
    index = ngram_index(items_of(["a b c d", "a a a b c"]), 3, 3)
    found = []
    for start in range(0, len(texts), step):
        part = rows_of(find_contamination(texts_of(texts[start : start + step]), index))
        found += [(row + start, *rest) for row, *rest in part]
    assert found == rows_of(find_contamination(texts_of(texts), index))


def test_an_item_in_other_case_layout_and_punctuation_is_found_whole(tmp_path: Path) -> None:
    disguised = (
        "NATALIA sold\n  clips—to 48 of her friends, in April; and then" + QUESTION.partition("and then")[2]
    )
    texts = ["Nothing here.", f"Some web page. {disguised} And more of it.", "The end."]
    (hit,), found = look(tmp_path, texts, [QUESTION], policy="drop")
    assert (hit.row, hit.item, hit.text, hit.share) == (1, 0, disguised.rstrip("?"), 1.0)
    assert found.is_dropped == [False, True, False]


def test_a_word_changed_in_the_middle_of_every_gram_is_no_hit(tmp_path: Path) -> None:
    words = QUESTION.split()
    near = " ".join("other" if k % 13 == 6 else word for k, word in enumerate(words))
    one = " ".join("other" if k == 15 else word for k, word in enumerate(words))
    other_figure = QUESTION.replace("48", "47")
    hits, _ = look(tmp_path, [near, one, other_figure], [QUESTION])
    assert [(hit.row, hit.text) for hit in hits] == [
        (1, " ".join(words[:15])),
        (1, " ".join(words[16:])[:-1]),
        (2, other_figure.removeprefix("Natalia sold clips to 47 ").rstrip("?")),
    ]
    assert 0 < hits[0].share < 0.5, "two parts of one item have one share"
    assert hits[0].share == hits[1].share


def test_twelve_words_of_an_item_are_no_hit_and_thirteen_are(tmp_path: Path) -> None:
    words = QUESTION.split()
    texts = [" ".join(words[3:15]), " ".join(words[3:16])]
    hits, found = look(tmp_path, texts, [QUESTION], policy="drop")
    assert [(hit.row, hit.grams) for hit in hits] == [(1, 1)]
    assert found.is_dropped == [False, True]
    hits, found = look(tmp_path, texts, [QUESTION], policy="drop", min_share="0.5")
    assert [(hit.row, hit.grams) for hit in hits] == [(1, 1)]
    assert found.is_dropped == [False, False]


def test_a_short_item_counts_as_a_whole_and_a_very_short_one_is_said_not_to_be_used(tmp_path: Path) -> None:
    items = ["What is the capital city of Burkina Faso?", "What is 2 + 2?", QUESTION, ""]
    texts = [
        "what is the capital city of burkina faso? Well",
        "what is the capital city of burkina and 2 + 2?",
        QUESTION,
    ]
    hits, found = look(tmp_path, texts, items)
    assert found.facts["against"]["unused_items"] == 2
    assert [(hit.row, hit.item, hit.text, hit.grams) for hit in hits] == [
        (0, 0, "what is the capital city of burkina faso", 1),
        (2, 2, QUESTION.rstrip("?"), 19),
    ]


def test_a_smaller_ngram_than_eight_looks_for_items_of_as_many_words(tmp_path: Path) -> None:
    items = ["one two three four five six", "seven eight nine ten eleven", "twelve and thirteen here"]
    texts = [f"So {item}, it says." for item in items]
    _, done = look(tmp_path, texts, items, "drop", ngram=5)
    assert done.is_dropped == [True, True, False]
    assert done.facts["against"]["unused_items"] == 1


def test_items_that_are_longer_than_an_ngram_and_not_looked_for_are_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        look(tmp_path, ["a text"], ["an item"], ngram=5, min_words=6)
    assert "dedup.against.min_words" in str(caught.value)
    assert "6 is above ngram 5" in str(caught.value)


def test_nine_words_of_a_short_item_of_ten_are_no_hit(tmp_path: Path) -> None:
    item = "one two three four five six seven eight nine ten"
    texts = [item[:-4], item.replace("ten", "eleven"), f"zero {item} eleven"]
    hits, _ = look(tmp_path, texts, [item])
    assert [(hit.row, hit.text) for hit in hits] == [(2, item)]


def test_grams_that_many_items_share_are_reported_for_each_of_them(tmp_path: Path) -> None:
    hits, _ = look(tmp_path, [QUESTION], [f"{k} {QUESTION}" for k in range(50)])
    assert [hit.item for hit in hits] == list(range(50))
    assert {hit.share for hit in hits} == {19 / 20}


def test_no_items_and_no_texts_have_no_hits() -> None:
    assert not len(find_contamination(texts_of([QUESTION]), ngram_index(items_of([]))).rows)
    assert not len(find_contamination(texts_of([]), ngram_index(items_of([QUESTION]))).rows)


# --- files ---

RECORDS = [
    {"question": "Què és això?", "answer": 7, "choices": ["a b", "c"]},
    {"question": "second", "other": {"x": ["deep", None, 1.5]}},
    {"answer": "third"},
]


def items_in(texts: list[str], files: list[Path | str], fields: list[str]) -> list[tuple[int, str]]:
    """The documents that hold all of an item, each with its name."""
    against = {"files": [str(path) for path in files], "fields": fields, "policy": "report", "min_words": 1}
    found = dedup(texts, against=against).contamination
    return [(hit["row"], hit["item"]) for hit in found if hit["share"] == 1]


def test_items_come_from_json_lines_with_lists_and_numbers(tmp_path: Path) -> None:
    path = tmp_path / "b.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    whole = ["Què és això?\na b c\n7", "second\ndeep 1.5", "third"]
    parts = ["Què és això?\na b\n7", "second\ndeep 5", "fourth"]
    found = items_in([*whole, *parts], [path], ["question", "choices", "answer", "other"])
    assert found == [(0, "b.jsonl:1"), (1, "b.jsonl:2"), (2, "b.jsonl:3")]


def test_items_come_from_several_files_under_one_folder(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    pq.write_table(pa.table({"q": ["first", "second"], "n": [1, 2]}), tmp_path / "one/test.parquet")
    (tmp_path / "two/test.tsv").write_text("id\tq\tn\nx\tthird\t3\r\ny\tfourth\n")
    with gzip.open(tmp_path / "two/bare.tsv.gz", "wt") as file:
        file.write("ignored\tfifth\t5\n")
    texts = ["first 1", "second 2", "third 3", "fourth", "fifth 5", "x third", "first 2"]
    assert items_in(texts, [f"{tmp_path}/*/test.*"], ["q", "n"]) == [
        (0, "one/test.parquet:1"),
        (1, "one/test.parquet:2"),
        (2, "two/test.tsv:1"),
        (3, "two/test.tsv:2"),
    ]
    assert items_in(texts, [tmp_path / "two/bare.tsv.gz"], ["2", "3"]) == [(4, "bare.tsv.gz:1")]


def test_a_field_that_no_record_has_is_an_error_that_lists_the_others(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text('{"question": "x"}\n')
    (tmp_path / "b.tsv").write_text("question\tanswer\nx\ty\n")
    for name in ("b.jsonl", "b.tsv"):
        with pytest.raises(InputError, match=r"(?s)no field `prompt`.*it has question"):
            items_in(["x"], [tmp_path / name], ["prompt"])


def test_a_bad_record_of_a_benchmark_is_an_error_not_an_item_less(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_text('{"q": "x"}\n{"q": \n')
    with pytest.raises(InputError, match=r"(?s)offset 11.*an item that is not read is not looked for"):
        items_in(["x"], [tmp_path / "b.jsonl"], ["q"])
    (tmp_path / "b.tsv").write_bytes(b"q\n\xff\n")
    with pytest.raises(InputError, match="offset 2: not UTF-8"):
        items_in(["x"], [tmp_path / "b.tsv"], ["q"])


def test_no_files_or_no_fields_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EmptyGlob) as caught:
        items_in(["x"], [tmp_path / "b.jsonl"], ["q"])
    assert caught.value.where.endswith(f"dedup.against.files: {tmp_path / 'b.jsonl'}")
    with pytest.raises(RecipeError, match=r"dedup\.against\.fields"):
        items_in(["x"], [tmp_path / "b.jsonl"], [])


# --- real benchmarks in real text ---

MATH = SHARED / "data/math"
needs_shared = pytest.mark.skipif(
    not (MATH.exists() and (SHARED / "bench").exists()),
    reason="needs ../shared/data/math and ../shared/bench",
)


@needs_shared
@pytest.mark.parametrize(
    ("file", "fields"),
    [("gsm8k/test.jsonl", ["question", "answer"]), ("MATH/test_0000-1499.jsonl", ["question"])],
)
def test_real_items_planted_in_web_pages_are_found_with_item_and_span(file: str, fields: list[str]) -> None:
    path = MATH / file
    records = [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]
    items = ["\n".join(record[field] for field in fields) for record in records]
    with ZstdFile(SHARED / "bench/web.jsonl.zst") as lines:
        pages = [json.loads(line)["text"] for line, _ in zip(lines, range(200), strict=False)]
    chosen = [item for item in range(0, len(items), 7) if len(slow_words(items[item])) >= 8][: len(pages)]
    texts, spans = [], []
    for page, item in zip(pages, chosen, strict=False):
        middle = page.find("\n", len(page) // 2) + 1
        words = slow_words(items[item])
        start = len((page[:middle] + "\n").encode())
        spans.append((start + words[0][1], start + words[-1][2]))
        texts.append(f"{page[:middle]}\n{items[item]}\n{page[middle:]}")
    against = {"files": str(path), "fields": fields, "policy": "report"}
    before = dedup(pages, against=against).contamination
    assert len(before) <= 5, "web pages hold next to none of it by themselves"
    hits = dedup(texts, against=against).contamination
    of_item = {(hit["row"], hit["item"]): hit for hit in hits}
    for row, item in enumerate(chosen):
        hit = of_item[row, f"{path.name}:{item + 1}"]
        assert hit["share"] == 1.0, hit["item"]
        # Words of the page right beside it may be those of the item:
        # a full match is at least the planted bytes.
        assert hit["start"] <= spans[row][0]
        assert hit["end"] >= spans[row][1]
