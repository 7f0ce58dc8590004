"""Near duplicates: fingerprints and Jaccard against plain Python,
and verdicts that must hold on any corpus."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from decimal import Decimal
from itertools import combinations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duplicates.deduped import dedup
from duplicates.pairs_in_memory import all_pairs
from mill import SHARED
from plain import near as slow
from tokmill import near_duplicates
from tokmill.duplicates import near, shingling
from tokmill.duplicates.near import (
    NearOptions,
    compare_pairs,
    signatures,
    unique_pairs,
    verify_pairs,
)
from tokmill.errors import TokmillError
from tokmill.kernels.minhash import EMPTY, band_keys

QUICK = settings(deadline=None, max_examples=100)
PIECES = [
    "one",
    "Two ",
    " three",
    ", ",
    ". ",
    "Ünlü",
    "ﬁ",
    "e\u0301",
    "日本",
    "ไทย",
    "7",
    "2024",
    "٣",
    "\n",
    "😀",
]
TEXTS = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=20).map("".join),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=15),
)
WORDS = [f"{first}{second}" for first in "abcdefghijklmnopqrst" for second in "abcdefghijklmnopqrst"]


def column(texts: list[str]) -> Any:
    return pa.array(texts, pa.large_string())


def prose(words: int, seed: int) -> list[str]:
    return random.Random(seed).choices(WORDS, k=words)


def edited(words: list[str], edits: int, seed: int) -> list[str]:
    """`edits` words replaced by others that occur nowhere else."""
    words = list(words)
    for index, place in enumerate(random.Random(seed).sample(range(len(words)), edits)):
        words[place] = f"edit{chr(97 + seed % 26)}{chr(97 + index % 26)}{chr(97 + index // 26)}"
    return words


def dropped(texts: list[str], **options: Any) -> dict[int, int]:
    found = near_duplicates(texts, **options)
    return {int(doc): int(found.survivor[doc]) for doc in np.flatnonzero(~found.kept)}


@pytest.mark.parametrize("kind", ["word", "char"])
@QUICK
@given(st.lists(TEXTS, max_size=5), st.sampled_from([1, 2, 5]), st.integers(0, 2))
def test_signatures_are_those_of_plain_python(kind: Any, texts: list[str], n: int, margin: int) -> None:
    options = NearOptions(unit=kind, ngram=n, bands=4, rows=4)
    array = column([*["around 1 É"] * margin, *texts, *["around"] * margin]).slice(margin, len(texts))
    found = signatures(array, options)
    rows = [slow.units(text, kind, keep_digits=False) for text in texts]
    assert found.values.tolist() == [slow.sketch(row, n, 16) for row in rows]
    assert found.shingles.tolist() == [max(len(row) - n + 1, 1) if row else 0 for row in rows]


def exact_jaccard(left: Any, right: Any, options: NearOptions) -> Any:
    texts, rows = pa.concat_arrays([left, right]), np.arange(len(left))
    return compare_pairs(rows, rows + len(left), options, lambda docs: texts.take(pa.array(docs)))


@pytest.mark.parametrize("kind", ["word", "char"])
@QUICK
@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=4), st.sampled_from([1, 2, 5]))
def test_exact_jaccard_is_that_of_python_sets(kind: Any, pairs: list[tuple[str, str]], n: int) -> None:
    left, right = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    found = exact_jaccard(column(left), column(right), NearOptions(unit=kind, ngram=n))
    assert found.tolist() == [slow.jaccard(one, other, n, kind) for one, other in pairs]


def test_neither_batches_nor_slices_change_a_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = column([" ".join(prose(size, size)) + (" é" if size % 3 else " e\u0301") for size in range(80)])
    whole = signatures(texts, NearOptions())
    monkeypatch.setattr(shingling, "_BATCH_BYTES", 100)
    assert np.array_equal(signatures(texts, NearOptions()).values, whole.values)
    assert np.array_equal(signatures(texts.slice(33, 20), NearOptions()).values, whole.values[33:53])
    chunked = pa.chunked_array([texts.slice(0, 31), texts.slice(31)])
    assert np.array_equal(signatures(chunked, NearOptions()).values, whole.values)
    assert exact_jaccard(texts, texts, NearOptions()).tolist() == [1.0] * 80


def test_a_column_without_rows_has_no_signatures() -> None:
    assert signatures(column([]), NearOptions()).values.shape == (0, 112)
    assert dropped([]) == {}


def test_short_texts_match_when_their_words_are_equal_and_only_then() -> None:
    assert dropped(["Hello, world!", "hello   WORLD", "hello there world", "hello"]) == {1: 0}
    assert dropped(["日本語", "日本", "日本語。"]) == {2: 0}


def test_a_text_without_words_has_no_signature_and_is_never_a_candidate() -> None:
    texts = ["", "…", "🙂 🙂", " \n", "—", "…"]
    found = signatures(column(texts), NearOptions())
    assert (found.values == EMPTY).all()
    assert found.shingles.tolist() == [0] * len(texts)
    assert not band_keys(found.values, 14, 8).any()
    assert not found.digests.any()
    assert dropped(texts) == {}


# --- bands ---


@pytest.mark.parametrize(
    ("threshold", "permutations", "chosen"),
    [
        (0.8, 112, (14, 8)),
        (0.7, 112, (22, 5)),
        (0.9, 112, (9, 12)),
        (0.5, 112, (37, 3)),
        (1.0, 112, (1, 112)),
    ],
)
def test_a_threshold_chooses_the_most_rows_that_find_enough(
    threshold: float, permutations: int, chosen: tuple[int, int]
) -> None:
    assert near.choose_bands(threshold, permutations) == chosen


@QUICK
@given(st.floats(0.05, 1.0), st.integers(1, 300))
def test_chosen_bands_fit_and_one_more_row_would_find_too_little(threshold: float, permutations: int) -> None:
    bands, rows = near.choose_bands(threshold, permutations)
    assert 1 <= bands * rows <= permutations
    if rows > 1:
        assert near.found_share(threshold, bands, rows) >= near.MIN_FOUND
    for more in range(rows + 1, permutations + 1):
        assert near.found_share(threshold, permutations // more, more) < near.MIN_FOUND


@pytest.mark.parametrize("threshold", [float("nan"), 0, 1.5])
def test_a_threshold_that_is_no_similarity_is_told(threshold: float) -> None:
    with pytest.raises(TokmillError, match=f"a threshold of {threshold}"):
        near_duplicates(["some text"], threshold=threshold)


def test_the_curve_rises_from_nothing_to_everything() -> None:
    curve = near.probability_curve(14, 8)
    assert curve[0] == (0.0, 0.0)
    assert curve[-1] == (1.0, 1.0)
    assert [share for _, share in curve] == sorted(share for _, share in curve)
    assert round(dict(curve)[0.8], 2) == 0.92


# --- verification ---


def loaders(
    texts: list[str], options: NearOptions
) -> tuple[Callable[..., Any], Callable[..., Any], list[int]]:
    values = signatures(column(texts), options).values
    asked: list[int] = []

    def load_values(docs: Any) -> Any:
        assert (np.diff(docs) > 0).all(), "ascending, without repeats"
        return values[docs]

    def load_texts(docs: Any) -> Any:
        assert (np.diff(docs) > 0).all(), "ascending, without repeats"
        asked.extend(docs.tolist())
        return column(texts).take(pa.array(docs))

    return load_values, load_texts, asked


def family(seed: int) -> list[str]:
    """A text and versions of it, from near to far."""
    origin = prose(300, seed)
    return [" ".join(edited(origin, edits, edits)) for edits in (0, *range(0, 60, 3))]


@pytest.mark.parametrize("threshold", ["0.6", "0.8", "0.9"])
def test_edges_are_the_pairs_whose_jaccard_reaches_the_threshold(threshold: str) -> None:
    options, texts = NearOptions(threshold=Decimal(threshold)), family(7)
    load_values, load_texts, asked = loaders(texts, options)
    a, b = (np.array(ends) for ends in zip(*combinations(range(len(texts)), 2), strict=True))
    found = verify_pairs(a, b, options, load_values, load_texts)
    truth = {
        (one, other)
        for one, other in combinations(range(len(texts)), 2)
        if slow.jaccard(texts[one], texts[other], 5) >= float(threshold)
    }
    assert set(zip(found.a.tolist(), found.b.tolist(), strict=True)) == truth
    for one, other, similarity, is_exact in zip(*(part.tolist() for part in found), strict=True):
        exact = slow.jaccard(texts[one], texts[other], 5)
        assert similarity == exact if is_exact else abs(similarity - exact) < 0.15
    assert asked
    assert not found.is_exact.all()


def test_with_signatures_alone_no_text_is_asked_for() -> None:
    options, texts = NearOptions(verify="signature"), family(3)
    load_values, load_texts, asked = loaders(texts, options)
    a, b = np.zeros(len(texts) - 1, np.int64), np.arange(1, len(texts))
    found = verify_pairs(a, b, options, load_values, load_texts)
    assert asked == []
    assert not found.is_exact.any()
    assert (found.similarity >= 0.8).all()
    values = signatures(column(texts), options).values
    expected = near.estimate(values[a], values[b])
    assert found.b.tolist() == b[expected >= 0.8].tolist()


def test_an_estimate_is_the_share_of_equal_positions_and_the_least_leaves_digits_out() -> None:
    a = np.array([[2, 4, 7, 9]], np.uint32)
    b = np.array([[2, 5, 7, 8]], np.uint32)
    assert near.estimate(a, b).tolist() == [0.5]
    assert near.estimate_least(a, b).tolist() == [0.25]


# --- whole corpora ---


CORPORA = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 12), st.integers(0, 3)), min_size=1, max_size=14
)


def corpus(plan: list[tuple[int, int, int]]) -> list[str]:
    return [" ".join(edited(prose(120, origin), edits, seed)) for origin, edits, seed in plan]


@settings(deadline=None, max_examples=60)
@given(CORPORA)
def test_verdicts_hold_what_is_promised_on_any_corpus(plan: list[tuple[int, int, int]]) -> None:
    texts = corpus(plan)
    gone = dropped(texts)
    kept = [doc for doc in range(len(texts)) if doc not in gone]
    for document, survivor in gone.items():
        assert survivor in kept
        assert survivor < document, "first keeps the earliest"
        assert slow.jaccard(texts[document], texts[survivor], 5) >= 0.8 - 0.05
    for one, other in combinations(kept, 2):
        assert slow.jaccard(texts[one], texts[other], 5) < 0.9 + 0.05, "both kept, and all but the same"
    again = [texts[doc] for doc in kept]
    assert all(
        slow.jaccard(again[document], again[survivor], 5) < 0.9
        for document, survivor in dropped(again).items()
    ), "deduplicating the output drops nothing at threshold + 0.1"


@settings(deadline=None, max_examples=30)
@given(CORPORA, st.integers(1, 5))
def test_verdicts_do_not_depend_on_how_keys_are_partitioned(
    plan: list[tuple[int, int, int]], partitions: int
) -> None:
    texts, options = column(corpus(plan)), NearOptions()
    values, _, digests = signatures(texts, options)
    keys = band_keys(values, 14, 8)
    documents = np.repeat(np.arange(len(values)), 14)
    flat, all_digests = keys.ravel(), digests[documents]
    by_band = [all_pairs(keys[:, band], np.arange(len(values)), digests=digests) for band in range(14)]
    by_hash = [
        all_pairs(flat[home], documents[home], digests=all_digests[home])
        for home in (flat % np.uint64(partitions) == partition for partition in range(partitions))
    ]
    one, other = (
        unique_pairs(*(np.concatenate(ends) for ends in zip(*found, strict=True)))
        for found in (by_band, by_hash)
    )
    assert one.a.tolist() == other.a.tolist()
    assert one.b.tolist() == other.b.tolist()


def test_a_chain_of_versions_keeps_its_far_ends() -> None:
    origin = prose(400, 1)
    half = edited(origin, 6, 2)
    far = edited(half, 6, 3)
    texts = [" ".join(words) for words in (origin, half, far)]
    assert slow.jaccard(texts[0], texts[1], 5) > 0.8 > slow.jaccard(texts[0], texts[2], 5)
    assert slow.jaccard(texts[1], texts[2], 5) > 0.8
    assert dropped(texts) == {1: 0}


def test_character_shingles_find_a_text_with_a_few_letters_changed_in_many_words() -> None:
    origin = " ".join(prose(300, 8))
    typos = "".join(c + ("x" if index % 60 == 0 else "") for index, c in enumerate(origin))
    assert dropped([origin, typos]) == {}
    assert dropped([origin, typos], unit="char", ngram=5) == {1: 0}


# --- what must not collapse ---


LICENCE = (
    "Licensed under the Example Licence, Version 2.0; you may not use this file except in compliance with "
    "it. You may obtain a copy at the address below. Unless required by applicable law or agreed to in "
    "writing, software distributed under it is distributed on an as is basis, without warranties or "
    "conditions of any kind, either express or implied. See it for the specific language governing "
    "permissions and limitations under it."
)


def test_at_a_threshold_of_one_only_equal_sets_are_dropped() -> None:
    """One word of 1,500 is another: in a fifth of such pairs or more, all positions agree."""
    first = prose(1500, 1)
    others = [edited(first, 1, seed) for seed in range(26)]
    texts = [" ".join(words) for words in (first, *others)]
    values = signatures(column(texts), NearOptions()).values
    assert (values[1:] == values[0]).all(axis=1).sum() > 3
    found = dedup([*texts, texts[0].upper() + "!"], near={"threshold": "1"})
    assert [number for number, gone in enumerate(found.is_dropped) if gone] == [27]
    assert found.verdicts[27]["similarity"] == 1


def test_files_under_one_licence_header_do_not_collapse() -> None:
    assert dropped([f"{LICENCE}\n\n{' '.join(prose(60, seed))}" for seed in range(60)]) == {}


def test_tables_of_one_form_with_other_numbers_do_not_collapse() -> None:
    def table(seed: int) -> str:
        draw = random.Random(seed)
        rows = [
            f"| {name} | {draw.randrange(10, 99)} | {draw.randrange(100, 999)} | {draw.randrange(10, 99)} % |"
            for name in ("North", "South", "East", "West", "Centre") * 8
        ]
        return "| Region | Stations | Riders | Share |\n" + "\n".join(rows)

    assert dropped([table(seed) for seed in range(60)]) == {}


def test_form_letters_with_other_dates_and_sums_do_not_collapse() -> None:
    """Digits are zeros to the fingerprint: here all fingerprints are alike, and the texts decide."""

    def letter(seed: int) -> str:
        draw = random.Random(seed)
        clause = " ".join(prose(4, 11))
        return " ".join(f"{clause} {draw.randrange(10, 99)} {' '.join(prose(5, k))}" for k in range(25))

    texts = [letter(seed) for seed in range(40)]
    values = signatures(column(texts), NearOptions()).values
    assert (values == values[0]).all()
    assert dropped(texts) == {}
    assert len(dropped(texts, verify="signature")) == 39
    assert dropped([*texts, texts[7]]) == {40: 7}


def test_tables_of_one_form_with_other_names_do_not_collapse() -> None:
    texts = [
        "\n".join(
            f"{name} was born in {place} and lives there"
            for name, place in zip(*[iter(prose(60, seed))] * 2, strict=True)
        )
        for seed in range(50)
    ]
    assert dropped(texts) == {}


def test_books_that_share_a_chapter_do_not_collapse_and_editions_of_one_do() -> None:
    chapter = prose(6_000, 100)
    books = [prose(40_000, seed)[:20_000] + chapter + prose(40_000, seed)[20_000:] for seed in range(3)]
    books.append(edited(books[1], 300, 1))
    assert dropped([" ".join(words) for words in books]) == {3: 1}


# --- real text ---

GOLD = SHARED / "data/neardup"


@pytest.mark.skipif(not GOLD.exists(), reason="needs ../shared/data")
@pytest.mark.parametrize("name", ["django_docs_versions", "wiki_controlled"])
def test_the_gold_pairs_are_resolved_as_promised(name: str) -> None:
    lines = (GOLD / f"{name}.docs.jsonl").read_text(encoding="utf-8").split("\n")
    records = [json.loads(line) for line in lines if line]
    number = {record["id"]: index for index, record in enumerate(records)}
    rows = [line.split("\t") for line in (GOLD / f"{name}.pairs.tsv").read_text().splitlines()[1:]]
    a, b = (np.array([number[row[end]] for row in rows]) for end in (0, 1))
    gold = np.array([float(row[2]) for row in rows])
    kept = near_duplicates([record["text"] for record in records]).kept
    alike = gold >= 0.85
    assert np.mean(~(kept[a] & kept[b])[alike]) >= 0.98
    nearest_kept, nearest = np.zeros(len(records)), np.zeros(len(records))
    for one, other in ((a, b), (b, a)):
        np.maximum.at(nearest, one, gold)
        np.maximum.at(nearest_kept, one[kept[other]], gold[kept[other]])
    assert np.mean(nearest_kept[~kept] >= 0.75) >= 0.995
    assert kept[nearest < 0.5].all()
