"""The split: decided by identity, in whole numbers."""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tokmill
from tokmill.schema import NO_SPLIT
from tokmill.stages.split.keys import TEST, TRAIN, VALID, Bound, formula_size, label_keys, shuffle_keys
from tokmill.stages.split.options import HashSplit
from tokmill.stages.split.quotas import Clusters, Quota, Singles, allot, count_singles, find_bounds
from tokmill.storage.digests import id_hashes
from written import load_manifest, load_tables

IDS = [f"doc-{number}" for number in range(20_000)]
NONE = Decimal(0)


# --- hash ---


def slow_hash(doc_id: str, valid: Decimal, test: Decimal = NONE) -> int:
    """sha256(doc_id)[:8] / 2^64 against the fractions, without a division."""
    first = int.from_bytes(hashlib.sha256(doc_id.encode()).digest()[:8], "big")
    if first < math.floor(Fraction(valid) * 2**64):
        return VALID
    return TEST if first < math.floor((Fraction(valid) + Fraction(test)) * 2**64) else TRAIN


def by_hash(ids: Any, valid: Decimal, test: Decimal = NONE) -> list[int]:
    keys = id_hashes(ids if isinstance(ids, (pa.Array, pa.ChunkedArray)) else pa.array(ids, pa.string()))
    bounds = HashSplit(by="document", valid_fraction=valid, test_fraction=test).bounds()
    labels: list[int] = label_keys(keys, np.arange(len(keys)), bounds, TRAIN).tolist()
    return labels


def splits_of(ids: list[str], valid: str, test: str = "0") -> list[str]:
    """The split of every document of a run, by the names in its manifest."""
    records = [{"id": doc_id, "text": f"text {number}"} for number, doc_id in enumerate(ids)]
    recipe = {
        "name": "one",
        "sources": [{"name": "s", "data": records}],
        "dedup": {"exact": False},
        "split": {"valid_fraction": valid, "test_fraction": test},
    }
    with tempfile.TemporaryDirectory() as place:
        out = tokmill.run(recipe, Path(place) / "out", workers=1, until="split").out / "split"
        manifest = load_manifest(out)
        numbers = [
            number for part in load_tables(out, "labels") for number in part.column("split").to_pylist()
        ]
    found = [manifest.facts["splits"][number] for number in numbers]
    assert len(found) == len(ids)
    assert {name: manifest.counts[name] for name in set(found)} == Counter(found)
    return found


def is_valid(ids: list[str], fraction: str) -> list[bool]:
    return [split == "valid" for split in splits_of(ids, fraction)]


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=80), max_size=20),
    st.decimals(0, Decimal("0.6"), places=6),
    st.decimals(0, Decimal("0.399999"), places=6),
)
@example(["", "a", "a" * 55, "a" * 56, "a" * 64, "é" * 100], Decimal("0.5"), Decimal("0.3"))
def test_every_label_is_what_hashlib_says(ids: list[str], valid: Decimal, test: Decimal) -> None:
    expected = [slow_hash(doc_id, valid, test) for doc_id in ids]
    assert by_hash(pa.array(ids, pa.large_string()), valid, test) == expected
    assert by_hash(pa.chunked_array([ids], pa.string()), valid, test) == expected


def test_the_threshold_is_exact_at_the_very_document_it_cuts() -> None:
    """A fraction that equals a document's own place leaves it in train; one step more takes it."""
    place = int.from_bytes(hashlib.sha256(b"edge").digest()[:8], "big")
    with localcontext(prec=100):  # 64 binary places take 64 decimal ones
        exact, above = Decimal(place) / 2**64, Decimal(place + 1) / 2**64
    assert Fraction(exact) == Fraction(place, 2**64)
    assert by_hash(["edge"], exact) == [TRAIN]
    assert by_hash(["edge"], above) == [VALID]
    assert by_hash(["edge"], exact, Decimal("1e-19")) == [TEST]


def test_nothing_is_held_out_at_zero_and_nearly_all_just_below_one() -> None:
    assert not any(is_valid(IDS, "0"))
    assert not any(is_valid(IDS, "1e-25"))
    assert all(is_valid(IDS, "0." + "9" * 25))


@pytest.mark.parametrize("fraction", ["0.001", "0.01", "0.1", "0.5", "0.9"])
def test_the_share_that_is_held_out_is_the_fraction_within_chance(fraction: str) -> None:
    share = float(fraction)
    spread = math.sqrt(len(IDS) * share * (1 - share))
    assert abs(sum(is_valid(IDS, fraction)) - len(IDS) * share) < 4 * spread


def test_a_larger_fraction_only_adds_to_what_is_held_out() -> None:
    smaller, larger = is_valid(IDS, "0.05"), is_valid(IDS, "0.06")
    assert all(after for before, after in zip(smaller, larger, strict=True) if before)
    assert sum(larger) > sum(smaller)


def test_a_test_split_takes_from_train_alone() -> None:
    before, after = splits_of(IDS, "0.1"), splits_of(IDS, "0.1", "0.2")
    moved = {(one, other) for one, other in zip(before, after, strict=True)}
    assert moved == {("train", "train"), ("train", "test"), ("valid", "valid")}


def test_documents_that_are_added_move_none_to_the_other_side() -> None:
    before, more = IDS[5_000:], IDS[:5_000]
    alone = splits_of(before, "0.3", "0.3")
    assert set(alone) == {"train", "valid", "test"}
    assert splits_of([*more, *before], "0.3", "0.3")[len(more) :] == alone


def test_equal_ids_are_on_the_same_side() -> None:
    ids = IDS[:200]
    found = splits_of([*ids, *ids, *reversed(ids)], "0.5")
    assert set(found) == {"train", "valid"}
    assert found[:200] == found[200:400] == found[:399:-1]


def test_a_column_without_rows_has_no_labels() -> None:
    assert by_hash([], Decimal("0.5")) == []
    assert by_hash(pa.chunked_array([], pa.string()), Decimal("0.5")) == []


# --- keys of a shuffle ---


def texts_of(count: int) -> Any:
    return np.arange(2 * count, dtype=np.uint64).reshape(count, 2)


def test_the_keys_of_a_shuffle_are_the_same_on_every_machine() -> None:
    keys = shuffle_keys(pa.array(["a", "", "é"]), texts_of(3), "wiki", 42)
    assert [f"{key:016x}" for key in keys.tolist()] == [
        "088fc0832807b7d0",
        "5a9e87d1fde948c9",
        "33894c1636e7bb13",
    ]


def test_seed_source_id_and_text_each_make_another_key() -> None:
    ids = pa.array(IDS[:1000])
    other_ids, texts = pa.array(IDS[1000:2000]), texts_of(1000)
    drawn = [
        shuffle_keys(ids, texts, "wiki", 1),
        shuffle_keys(ids, texts, "wiki", 2),
        shuffle_keys(ids, texts, "web", 1),
        shuffle_keys(other_ids, texts, "wiki", 1),
        shuffle_keys(ids, texts + np.uint64(10_000), "wiki", 1),
    ]
    assert len(np.unique(np.concatenate(drawn))) == 5000
    for keys in drawn:
        assert abs(int((keys < np.uint64(1 << 62)).sum()) - 250) < 4 * math.sqrt(1000 * 3 / 16)


def test_a_key_does_not_depend_on_where_the_document_lies() -> None:
    texts = texts_of(1000)
    whole = shuffle_keys(pa.array(IDS[:1000]), texts, "wiki", 1)
    assert whole[300:].tolist() == shuffle_keys(pa.array(IDS[300:1000]), texts[300:], "wiki", 1).tolist()


# --- how many ---


@pytest.mark.parametrize(
    ("documents", "size"),
    [
        *[(0, 0), (1, 0), (9, 0), (10, 1), (19, 1), (99, 9), (100, 10), (101, 10), (200, 10), (201, 10)],
        *[(219, 10), (220, 11), (1000, 50), (10**9 + 19, 5 * 10**7)],
    ],
)
def test_the_formula_is_rounded_down(documents: int, size: int) -> None:
    assert formula_size(documents) == size


@given(st.integers(0, 10**12))
def test_the_formula_never_takes_more_than_a_tenth_nor_less_than_it_says(documents: int) -> None:
    size = formula_size(documents)
    assert 10 * size <= documents
    exact = min(max(Fraction(10), Fraction(documents, 20)), Fraction(documents, 10))
    assert size == math.floor(exact)


# --- exact numbers ---


class Doc(NamedTuple):
    key: int
    group: int
    name: int  # documents of one name are held together; negative: on its own


def slow_labels(docs: list[Doc], quotas: list[Quota], rest: int) -> list[int]:
    """Unit by unit in order of the first document's key;
    a unit that does not fit is left for the next split."""
    units: dict[int, list[int]] = {}
    for number, doc in enumerate(docs):
        units.setdefault(doc.name if doc.name >= 0 else -1 - number, []).append(number)
    waiting = sorted(units.values(), key=lambda unit: (docs[unit[0]].key, len(unit) == 1, unit[0]))
    labels = [rest] * len(docs)
    for split, sizes in quotas:
        left, passed = list(sizes), []
        for unit in waiting:
            needed = [sum(docs[number].group == group for number in unit) for group in range(len(left))]
            if all(need <= room for need, room in zip(needed, left, strict=True)):
                left = [room - need for need, room in zip(needed, left, strict=True)]
                for number in unit:
                    labels[number] = split
            else:
                passed.append(unit)
        waiting = passed
    return labels


def clusters_of(docs: list[Doc], groups: int) -> tuple[Clusters, list[list[int]]]:
    """Documents with one name, in order of the key of the first; and who they are."""
    units: dict[int, list[int]] = {}
    for number, doc in enumerate(docs):
        if doc.name >= 0:
            units.setdefault(doc.name, []).append(number)
    held = sorted((unit for unit in units.values() if len(unit) > 1), key=lambda u: (docs[u[0]].key, u[0]))
    counts = [
        [sum(docs[number].group == group for number in unit) for group in range(groups)] for unit in held
    ]
    keys = np.array([docs[unit[0]].key for unit in held], np.uint64)
    return Clusters(keys, np.array(counts, np.uint32).reshape(len(held), groups)), held


def labels_of(docs: list[Doc], quotas: list[Quota], rest: int) -> tuple[list[int], list[list[int]]]:
    """As the stage does it: clusters, bounds, and shards of three documents of a group that are read one by
    one."""
    n_groups = len(quotas[0].sizes)
    clusters, held = clusters_of(docs, n_groups)
    in_clusters = {number for unit in held for number in unit}

    def read() -> Iterator[Singles]:
        for start in range(0, len(docs), 3):
            for group in range(n_groups):
                numbers = [
                    number
                    for number in range(start, min(start + 3, len(docs)))
                    if docs[number].group == group and number not in in_clusters
                ]
                keys = np.array([docs[number].key for number in numbers], np.uint64)
                yield Singles(group, np.array(numbers, np.int64), keys)

    counted = count_singles(read, n_groups, clusters.keys)
    found = allot(counted, clusters, quotas)
    bounds = find_bounds(read, counted, found.ends, quotas)
    labels = [rest] * len(docs)
    for number, doc in enumerate(docs):
        key = np.array([doc.key], np.uint64)
        labels[number] = int(label_keys(key, np.array([number]), bounds[doc.group], rest)[0])
    for unit, label in zip(held, found.clusters.tolist(), strict=True):
        for number in unit:
            labels[number] = rest if label == NO_SPLIT else label
    return labels, found.short


KEYS = st.integers(0, 30) | st.integers(0, 30).map(lambda key: (key << 59) + key)
documents = st.lists(st.builds(Doc, KEYS, st.integers(0, 1), st.integers(-6, 6)), max_size=40)
sizes = st.lists(st.integers(0, 15), min_size=2, max_size=2)


@settings(deadline=None, max_examples=500)
@given(documents, sizes, sizes, st.sampled_from([TRAIN, NO_SPLIT]))
@example([Doc(0, 0, -1)] * 5 + [Doc(0, 1, -1)] * 3, [3, 2], [1, 2], TRAIN)  # ties: by position
@example([Doc(5, 0, 1), Doc(1, 1, 1), Doc(3, 0, -1), Doc(7, 1, -1)], [1, 1], [2, 2], TRAIN)
def test_splits_are_filled_as_if_one_walked_from_document_to_document(
    docs: list[Doc], valid: list[int], test: list[int], rest: int
) -> None:
    quotas = [Quota(VALID, valid), Quota(TEST, test)]
    labels, short = labels_of(docs, quotas, rest)
    assert labels == slow_labels(docs, quotas, rest)
    for quota, missing in zip(quotas, short, strict=True):
        for group, (size, gap) in enumerate(zip(quota.sizes, missing, strict=True)):
            taken = sum(
                label == quota.split and doc.group == group for label, doc in zip(labels, docs, strict=True)
            )
            assert taken == size - gap
            assert gap >= 0
    for name in {doc.name for doc in docs if doc.name >= 0}:
        assert len({label for label, doc in zip(labels, docs, strict=True) if doc.name == name}) == 1


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.integers(0, 40), min_size=10, max_size=40), st.integers(0, 5), st.integers(0, 5), st.randoms()
)
def test_without_clusters_the_numbers_are_exact_and_order_decides_only_ties(
    keys: list[int], valid: int, test: int, chance: Any
) -> None:
    quotas = [Quota(VALID, [valid]), Quota(TEST, [test])]
    labels, short = labels_of([Doc(key, 0, -1) for key in keys], quotas, TRAIN)
    assert (labels.count(VALID), labels.count(TEST), short) == (valid, test, [[0], [0]])
    shuffled = chance.sample(keys, len(keys))
    others, _ = labels_of([Doc(key, 0, -1) for key in shuffled], quotas, TRAIN)
    assert sorted(zip(keys, labels, strict=True)) == sorted(zip(shuffled, others, strict=True))


def test_a_cluster_that_does_not_fit_is_passed_over_and_the_gap_is_told() -> None:
    docs = [Doc(1, 0, 0), Doc(9, 0, 0), Doc(9, 0, 0), Doc(2, 0, 1), Doc(8, 0, 1)]
    labels, short = labels_of(docs, [Quota(VALID, [2])], TRAIN)
    assert labels == [TRAIN, TRAIN, TRAIN, VALID, VALID]  # the three come first, but are too many
    assert short == [[0]]
    assert labels_of(docs, [Quota(VALID, [4])], TRAIN) == ([VALID, VALID, VALID, TRAIN, TRAIN], [[1]])
    assert labels_of(docs, [Quota(VALID, [1])], NO_SPLIT) == ([NO_SPLIT] * 5, [[1]])


def test_a_bound_at_the_end_takes_all_and_one_at_the_start_nobody() -> None:
    keys = np.array([5, 0, 2**64 - 1], np.uint64)
    numbers = np.arange(3)
    assert label_keys(keys, numbers, [Bound(VALID, None)], TRAIN).tolist() == [VALID] * 3
    assert label_keys(keys, numbers, [Bound(VALID, 0)], TRAIN).tolist() == [TRAIN] * 3
    assert label_keys(keys, numbers, [Bound(VALID, 5, 1)], TRAIN).tolist() == [VALID, VALID, TRAIN]
    assert label_keys(keys, numbers, [], NO_SPLIT).tolist() == [NO_SPLIT] * 3


# --- field ---


def test_values_are_compared_as_they_are_spelled_in_json() -> None:
    values: list[Any] = [None, "dev", 3, True, 1.5, ["a"], "", "3", "x"]
    records = [{"text": "text"}, *({"text": "text", "s": value} for value in values)]
    recipe = {
        "name": "one",
        "sources": [{"name": "s", "data": records, "fields": {"meta": ["s"]}}],
        "dedup": {"exact": False},
        "split": {
            "method": "field",
            "field": "s",
            "values": {"train": ["3"], "valid": ["dev", "true"], "test": ["1.5", '["a"]']},
            "unknown": "drop",
        },
    }
    with tempfile.TemporaryDirectory() as place:
        out = tokmill.run(recipe, Path(place) / "out", workers=1, until="split").out / "split"
        names = [*load_manifest(out).facts["splits"]]
        (labels,) = (part.column("split").to_pylist() for part in load_tables(out, "labels"))
        left_out = [row["row"] for part in load_tables(out, "ledger") for row in part.to_pylist()]
    found = [names[label] if label != NO_SPLIT else None for label in labels]
    assert found == [None, None, "valid", "train", "valid", "test", "test", None, "train", None]
    assert left_out == [row for row, split in enumerate(found) if split is None]
