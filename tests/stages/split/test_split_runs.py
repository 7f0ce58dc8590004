"""Splits through whole runs: the same labels however the corpus is cut and worked on,
and every document accounted for."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokmill as mill
from mill import write_recipe
from stages.test_split_rules import slow_hash
from tokmill import Recipe, load_recipe
from tokmill.errors import InputError, RecipeError
from tokmill.schema import NO_SPLIT
from written import Json, MegatronFile, load_manifest, load_table


def explain(run: Any, doc_id: str, source: str | None = None) -> Any:
    return mill.why(run, doc_id, source=source).documents


WORDS = [f"{a}{b}{c}" for a in "bdfgklmnprst" for b in "aeiou" for c in "lmnrst"]
EQUAL = ("!!! ???", "?! ?!")  # no word in them: no fingerprint finds these


def records(prefix: str, count: int, seed: int) -> list[Json]:
    """Texts of 40 to 90 words, of which a third are slightly edited copies;
    a few are the same without a word."""
    chance = random.Random(seed)
    texts: list[list[str]] = []
    for _ in range(count):
        if texts and chance.random() < 0.35:
            words = list(chance.choice(texts))
            words[chance.randrange(len(words))] = chance.choice(WORDS)
        else:
            words = chance.choices(WORDS, k=chance.randint(40, 90))
        texts.append(words)
    rows: list[Json] = [{"id": f"{prefix}{n}", "text": " ".join(words)} for n, words in enumerate(texts)]
    rows += [{"id": f"{prefix}-equal{n}", "text": EQUAL[n % 2]} for n in range(6)]
    for number, row in enumerate(rows):
        row["part"] = ["training", "dev", "held out", "training", "training"][number % 5]
        row["level"] = number % 7
    return rows


CORPUS = {"web": records("w", 130, 1), "math": records("m", 60, 2)}
SIZES = {name: len(rows) for name, rows in CORPUS.items()}
REPORT: Json = {"exact": False, "near": {"policy": "report", "ngram": 2, "threshold": 0.7}}
OFF = {"exact": False}


def run_split(
    directory: Path, split: Json, *, parts: int = 1, workers: int = 1, **sections: Any
) -> mill.RunResult:
    """Two sources, each in so many files."""
    for name, rows in CORPUS.items():
        size = -(-len(rows) // parts)
        for part in range(parts):
            path = directory / name / f"{part}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            lines = [json.dumps(row) for row in rows[part * size : (part + 1) * size]]
            path.write_text("\n".join(lines) + "\n")
    sources = [
        {
            "name": name,
            "domain": f"{name}-domain",
            "files": f"{name}/*.jsonl",
            "fields": {"meta": ["part", "level"]},
        }
        for name in CORPUS
    ]
    settings = {
        "sources": sources,
        "filters": None,
        "tokenizer": None,
        "builds": None,
        "dedup": OFF,
        **sections,
    }
    recipe = write_recipe(directory, **settings, split=split)
    return mill.run(recipe, directory / "out", workers=workers)


def read_labels(out: Path) -> Iterator[tuple[str, str, str | None]]:
    """(source, doc_id, split) of every document that reached the split."""
    names = dict(enumerate(manifest_of(out).facts["splits"]))
    labels = [
        load_table(path).column("split").to_pylist() for path in sorted(out.glob("split/labels-*.parquet"))
    ]
    verdicts = [load_table(path, ["kept"]) for path in sorted(out.glob("dedup/verdicts-*.parquet"))]
    number = 0
    for name in CORPUS:
        for path in sorted(out.glob(f"ingest/{name}/documents-*.parquet")):
            ids = load_table(path, ["doc_id"]).column("doc_id").to_pylist()
            kept = verdicts[number].column("kept").to_pylist() if verdicts else [True] * len(ids)
            for doc_id, label, is_kept in zip(ids, labels[number], kept, strict=True):
                assert is_kept or label == NO_SPLIT
                if is_kept:
                    yield name, doc_id, names.get(label)
            number += 1
    assert number == len(labels)


def labels_of(out: Path) -> dict[str, str | None]:
    return {doc_id: split for _, doc_id, split in read_labels(out)}


def manifest_of(out: Path) -> Any:
    return load_manifest(out / "split")


def check_counts(out: Path) -> Json:
    """The manifest counts what the labels say, and verify agrees."""
    manifest, found = manifest_of(out), list(read_labels(out))
    counts: Json = manifest.counts
    total = Counter(split for _, _, split in found)
    assert counts["in"] == len(found)
    assert counts["kept"] == len(found) - total[None]
    assert sum(counts["dropped"].values()) == total[None]
    for name in manifest.facts["splits"]:
        assert counts[name] == total[name]
    for source in CORPUS:
        own = Counter(split for name, _, split in found if name == source)
        assert counts["domains"][f"{source}-domain"] == {name: own[name] for name in manifest.facts["splits"]}
    assert mill.verify(out).problems == []
    return counts


def families(out: Path) -> list[set[str]]:
    """Documents that must not be parted: clusters of near duplicates, and equal texts."""
    names = {
        f"{path.parent.name}/{path.stem.removeprefix('documents-')}": load_table(path, ["doc_id"])
        for path in out.glob("ingest/*/documents-*.parquet")
    }
    found: dict[Any, set[str]] = {}
    for row in load_table(out / "dedup/clusters.parquet").to_pylist():
        found.setdefault(row["cluster"], set()).add(names[row["shard"]].column("doc_id")[row["row"]].as_py())
    for rows in CORPUS.values():
        for row in rows:
            found.setdefault(row["text"], set()).add(row["id"])
    return [family for family in found.values() if len(family) > 1]


METHODS: dict[str, tuple[Json, Json]] = {
    "hash": ({"valid_fraction": "0.2", "test_fraction": "0.1"}, OFF),
    "hash by cluster": ({"valid_fraction": "0.2", "test_fraction": "0.1", "by": "cluster"}, REPORT),
    "counts": ({"method": "counts", "counts": {"train": 96, "valid": 12, "test": 11}}, OFF),
    "counts, the rest": ({"method": "counts", "counts": {"valid": 40}}, OFF),
    "counts by cluster": (
        {"method": "counts", "counts": {"train": 90, "valid": 33, "test": 21}, "by": "cluster"},
        REPORT,
    ),
    "formula": ({"method": "formula", "test": True}, OFF),
    "formula by cluster": ({"method": "formula", "by": "cluster"}, REPORT),
    "field": (
        {
            "method": "field",
            "field": "part",
            "values": {"valid": ["dev"], "test": ["held out"]},
            "unknown": "train",
        },
        OFF,
    ),
    "sources": ({"method": "field", "field": "source", "values": {"train": ["web"], "valid": ["math"]}}, OFF),
}


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("method", METHODS)
def test_labels_are_the_same_for_any_cut_and_any_workers_and_a_second_run_does_nothing(
    tmp_path: Path, method: str
) -> None:
    split, dedup = METHODS[method]
    one = run_split(tmp_path / "one", split, dedup=dedup).out
    expected = list(read_labels(one))
    check_counts(one)
    assert sum(SIZES.values()) == len(expected)
    assert {split for _, _, split in expected} - {None} == set(manifest_of(one).facts["splits"])
    for parts, workers in ((5, 1), (3, 2)):
        again = run_split(tmp_path / f"{parts}", split, parts=parts, workers=workers, dedup=dedup)
        assert list(read_labels(again.out)) == expected
        check_counts(again.out)
    resumed = mill.run(tmp_path / "3" / "recipe.yaml", tmp_path / "3" / "out", workers=2)
    assert resumed.ran == []
    assert not list(one.glob("split/keys-*")), "scaffolding"


@pytest.mark.parametrize("method", ["counts", "counts by cluster", "formula by cluster", "hash by cluster"])
def test_labels_are_the_same_in_pieces_of_any_size(
    tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    split, dedup = METHODS[method]
    whole = run_split(tmp_path / "whole", split, parts=3, dedup=dedup).out
    for name, rows in (
        ("stages.split.selection.TEXTS_AT_ONCE", 11),
        ("stages.external.drawers._READ_ROWS", 5),
        ("stages.external.appended._GROUP_ROWS", 4),
        ("stages.split.quotas._LISTED_CLUSTERS", 3),
    ):
        monkeypatch.setattr(f"tokmill.{name}", rows)
    pieces = run_split(tmp_path / "pieces", split, parts=3, dedup=dedup).out
    assert list(read_labels(pieces)) == list(read_labels(whole))
    assert manifest_of(pieces).identity == manifest_of(whole).identity
    assert manifest_of(pieces).facts == manifest_of(whole).facts


def test_hash_labels_are_what_hashlib_says(tmp_path: Path) -> None:
    out = run_split(tmp_path, METHODS["hash"][0]).out
    for doc_id, split in labels_of(out).items():
        assert split == ["train", "valid", "test"][slow_hash(doc_id, Decimal("0.2"), Decimal("0.1"))]


def test_counts_are_exact_and_who_is_not_counted_is_told_why(tmp_path: Path) -> None:
    out = run_split(tmp_path, METHODS["counts"][0], parts=2).out
    counts = check_counts(out)
    assert (counts["train"], counts["valid"], counts["test"]) == (96, 12, 11)
    assert counts["dropped"] == {"not_counted": sum(SIZES.values()) - 119}
    assert manifest_of(out).facts["short"] == {"train": 0, "valid": 0, "test": 0}
    for doc_id, split in labels_of(out).items():
        (history,) = explain(out, doc_id)
        assert history.split == split
        assert history.outcome == (f"kept, {split}" if split else "dropped by split: not_counted")
    for path in out.glob("split/ledger-*.parquet"):
        for row in load_table(path).to_pylist():
            assert (row["stage"], row["verdict"], row["detail"]) == ("split", "drop", None)
            assert 0 < row["threshold"] <= row["value"] < 1


def test_another_seed_is_another_shuffle_and_leaves_a_split_by_hash_alone(tmp_path: Path) -> None:
    split = METHODS["counts, the rest"][0]
    first, second = (labels_of(run_split(tmp_path / f"{s}", split, seed=s).out) for s in (1, 2))
    assert first != second
    assert Counter(first.values()) == Counter(second.values())
    hashed = METHODS["hash"][0]
    one, other = (labels_of(run_split(tmp_path / f"h{s}", hashed, seed=s).out) for s in (1, 2))
    assert one == other


def test_the_order_of_documents_does_not_decide_a_shuffle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = METHODS["counts"][0]
    before = labels_of(run_split(tmp_path / "before", split).out)
    turned = {name: list(reversed(rows)) for name, rows in CORPUS.items()}
    monkeypatch.setitem(CORPUS, "web", turned["web"])
    monkeypatch.setitem(CORPUS, "math", turned["math"])
    assert labels_of(run_split(tmp_path / "after", split).out) == before


def test_the_formula_is_exact_in_every_domain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (1, 9, 10, 99, 100, 101, 200, 201, 230)
    for name in list(CORPUS):
        monkeypatch.delitem(CORPUS, name)
    for size in sizes:
        rows = [{"id": f"{size}.{n}", "text": f"text {n}", "part": "", "level": 0} for n in range(size)]
        monkeypatch.setitem(CORPUS, f"of{size}", rows)
    out = run_split(tmp_path, METHODS["formula"][0]).out
    counts = check_counts(out)
    for size in sizes:
        held = min(max(10, int(size * 0.05)), int(size * 0.1))
        expected = {"train": size - 2 * held, "valid": held, "test": held}
        assert counts["domains"][f"of{size}-domain"] == expected
        assert manifest_of(out).facts["asked"][f"of{size}-domain"] == {"valid": held, "test": held}


@pytest.mark.parametrize("method", [name for name in METHODS if "cluster" in name])
def test_no_family_of_near_duplicates_or_equal_texts_is_parted(tmp_path: Path, method: str) -> None:
    split, dedup = METHODS[method]
    out = run_split(tmp_path / "together", split, parts=3, dedup=dedup).out
    labels, found = labels_of(out), families(out)
    assert len(found) > 20
    assert [family for family in found if len({labels[doc_id] for doc_id in family}) > 1] == []
    apart = run_split(tmp_path / "apart", {**split, "by": "document"}, parts=3, dedup=dedup).out
    alone = labels_of(apart)
    assert [family for family in found if len({alone[doc_id] for doc_id in family}) > 1], "proves nothing"
    facts = manifest_of(out).facts
    assert facts["together"]["clusters"] > 20
    if split.get("method") == "counts":
        counts = check_counts(out)
        for name, asked in split["counts"].items():
            assert counts[name] == asked - facts["short"][name]
        for doc_id, label in labels.items():
            if label is None:
                (history,) = explain(out, doc_id)
                is_held = any(doc_id in family for family in found)
                why = "not_counted (held together with others)" if is_held else "not_counted"
                assert history.outcome == f"dropped by split: {why}"


def chains(count: int) -> list[Json]:
    """A ~ B ~ C, each with six other words of a hundred: similarity 0.78 with the next, 0.61 across."""
    chance, rows = random.Random(3), []
    for number in range(count):
        words = chance.choices(WORDS, k=100)
        for link in range(3):
            rows.append({"id": f"c{number}.{link}", "text": " ".join(words), "part": "", "level": 0})
            words = list(words)
            words[10 + 3 * link :: 16] = [f"x{link}{word}" for word in words[10 + 3 * link :: 16]]
    return rows


def test_both_ends_of_a_chain_are_held_together_when_its_middle_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CORPUS, "web", chains(30))
    near = {"near": {**REPORT["near"], "policy": "drop"}}
    counts = {"method": "counts", "counts": {"valid": 50}}
    together, apart = (
        labels_of(run_split(tmp_path / by, {**counts, "by": by}, parts=2, dedup=near).out)
        for by in ("cluster", "document")
    )
    assert not any(f"c{number}.1" in together for number in range(30))
    ends = [(f"c{number}.0", f"c{number}.2") for number in range(30)]
    assert all(together[one] == together[other] for one, other in ends)
    assert not all(apart[one] == apart[other] for one, other in ends)


def test_a_cluster_has_the_label_of_its_first_document(tmp_path: Path) -> None:
    split, dedup = METHODS["hash by cluster"]
    out = run_split(tmp_path, split, dedup=dedup).out
    order = [row["id"] for rows in CORPUS.values() for row in rows]
    labels, found = labels_of(out), families(out)
    single = {doc_id for doc_id in order if not any(doc_id in family for family in found)}
    alone = labels_of(run_split(tmp_path / "alone", {**split, "by": "document"}).out)
    assert all(labels[doc_id] == alone[doc_id] for doc_id in single)
    whole = [family for family in found if sum(bool(family & other) for other in found) == 1]
    assert len(whole) > 10
    for family in whole:
        first = min(family, key=order.index)
        assert {labels[doc_id] for doc_id in family} == {alone[first]}


def test_a_field_says_the_split_and_what_it_does_not_know_is_dropped_with_a_reason(tmp_path: Path) -> None:
    split = {
        "method": "field",
        "field": "level",
        "values": {"train": ["0", "1"], "valid": ["2"], "test": ["3"]},
    }
    with pytest.raises(InputError) as caught:
        run_split(tmp_path / "fail", split, parts=2)
    unknown = {
        str(level): sum(row["level"] == level for rows in CORPUS.values() for row in rows)
        for level in range(4, 7)
    }
    assert caught.value.what == (
        f"{sum(unknown.values())} of {sum(SIZES.values())} documents have no value of `level` that a split "
        "wants: "
        + ", ".join(f"{v} ({n})" for v, n in sorted(unknown.items(), key=lambda item: (-item[1], item[0])))
    )
    assert "unknown: drop" in caught.value.next
    out = run_split(tmp_path / "drop", {**split, "unknown": "drop"}, parts=2).out
    assert check_counts(out)["dropped"] == {"unknown_split": sum(unknown.values())}
    assert manifest_of(out).facts["unknown"] == sum(unknown.values())
    wanted = {0: "train", 1: "train", 2: "valid", 3: "test"}
    labels = labels_of(out)
    for rows in CORPUS.values():
        for row in rows:
            assert labels[row["id"]] == wanted.get(row["level"])
    (history,) = explain(out, "w4")
    assert history.outcome == "dropped by split: unknown_split (`level` is 4)"
    train = labels_of(run_split(tmp_path / "train", {**split, "unknown": "train"}).out)
    assert {doc_id: split or "train" for doc_id, split in labels.items()} == train


def test_bad_splits_stop_the_run_with_a_message(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        run_split(tmp_path / "many", {"method": "counts", "counts": {"train": 190, "valid": 12, "test": 12}})
    assert str(caught.value).startswith(
        f"split.counts: the counts ask for 214 documents, and there are {sum(SIZES.values())}\n"
    )
    for unknown in ("fail", "drop", "train"):
        split = {"method": "field", "field": "topic", "values": {"valid": ["dev"]}, "unknown": unknown}
        with pytest.raises(InputError) as caught:
            run_split(tmp_path / unknown, split)
        assert caught.value.what == f"none of {sum(SIZES.values())} documents has the field `topic`"
        assert "fields: {meta: [topic]}" in caught.value.next


def test_a_test_split_goes_through_to_its_build(tmp_path: Path) -> None:
    out = run_split(
        tmp_path,
        {"method": "counts", "counts": {"train": 50, "valid": 20, "test": 10}},
        tokenizer={"train": {"vocab_size": 300}, "eos": "<|endoftext|>"},
        builds=[{"name": "mega", "format": "megatron"}],
    ).out
    assert mill.verify(out).problems == []
    sizes = {"train": 50, "valid": 20, "test": 10}
    for split, count in sizes.items():
        assert len(MegatronFile(out / "build/mega" / split / "tokens")) == count


def test_reported_near_duplicates_all_stay(tmp_path: Path) -> None:
    dropping = {"exact": False, "near": {**REPORT["near"], "policy": "drop"}}
    outs = [
        run_split(tmp_path / name, {}, dedup=d).out for name, d in (("report", REPORT), ("drop", dropping))
    ]
    told, dropped = (load_manifest(out / "dedup") for out in outs)
    assert told.counts["dropped"] == {}
    assert told.counts["kept"] == told.counts["in"] == sum(SIZES.values())
    assert not told.entries("ledger")
    assert (told.facts["near"]["policy"], dropped.facts["near"]["policy"]) == ("report", "drop")
    assert told.facts["near"]["duplicates"] == dropped.counts["dropped"]["near_dup"] > 20
    one, other = (load_table(out / "dedup/clusters.parquet") for out in outs)
    assert all(one.column("kept").to_pylist())
    assert one.drop_columns("kept").equals(other.drop_columns("kept"))
    assert not all(other.column("kept").to_pylist())
    for path in outs[0].glob("dedup/verdicts-*.parquet"):
        table = load_table(path)
        assert np.asarray(table.column("kept")).all()
        assert table.column("reason").null_count == table.num_rows


# --- the section ---

SMALL = "name: small\nsources: [{name: a, files: a.txt}]\n"


def parse(text: str) -> Recipe:
    return load_recipe(f"{SMALL}{text}\n")


def mistakes(text: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        parse(text)
    return [line.partition(": ")[2] for line in caught.value.what.splitlines()[1:]]


@pytest.mark.parametrize(
    ("split", "told"),
    [
        ("{counts: {valid: 1}}", "split.counts: `counts` belongs to `method: counts`, not to `hash`"),
        (
            "{method: counts, counts: {valid: 1}, valid_fraction: 0.1}",
            "split.valid_fraction: `valid_fraction` belongs to `method: hash`, not to `counts`",
        ),
        (
            "{method: field, field: a, values: {valid: [x]}, by: cluster}",
            "split.by: `by` belongs to `method: hash | counts | formula`, not to `field`",
        ),
        (
            "{method: formula, unknown: drop}",
            "split.unknown: `unknown` belongs to `method: field`, not to `formula`",
        ),
        ("{method: counts}", "split.counts: `method: counts` needs `counts`"),
        ("{method: counts, counts: {train: 5}}", "split.counts: hold nothing out: give `valid` or `test`"),
        (
            "{method: counts, counts: {valid: -1}}",
            "split.counts.valid: input should be greater than or equal to 0 (got -1)",
        ),
        ("{method: field, values: {valid: [x]}}", "split.field: `method: field` needs `field`"),
        (
            "{method: field, field: a, values: {train: [x]}}",
            "split.values: hold nothing out: give the values of `valid` or `test`",
        ),
        (
            "{method: field, field: a, values: {train: [x], valid: [x]}}",
            "split.values.valid: x is a value of train too",
        ),
        (
            "{method: field, field: a, values: {valid: [1]}}",
            "split.values.valid[0]: input should be a valid string (got 1); put it in quotes",
        ),
        (
            "{valid_fraction: 0.7, test_fraction: 0.4}",
            "split.test_fraction: valid and test take 1.1 of 1: nothing is left to train on",
        ),
        (
            "{valid_fraction: 0.5, test_fraction: 0.5}",
            "split.test_fraction: valid and test take 1.0 of 1: nothing is left to train on",
        ),
        (
            "{method: shuffle}",
            'split.method: "shuffle" is not a choice; one of: hash, counts, formula, field',
        ),
        ("{by: cluster}", "split.by: `cluster` needs `dedup.near` (`policy: report` drops nothing)"),
        (
            "{method: field, field: source, values: {valid: [b]}}",
            "split.values.valid: no source is called b",
        ),
    ],
)
def test_mistakes_are_told_when_the_recipe_is_read(split: str, told: str) -> None:
    assert mistakes(f"split: {split}\n") == [told]


def test_clusters_of_single_sources_cannot_hold_a_corpus_together() -> None:
    (line,) = mistakes("dedup: {near: {}, scope: per-source}\nsplit: {by: cluster}\n")
    assert line.startswith("split.by: `cluster` needs `dedup.scope: global`")


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("method", METHODS)
def test_a_recipe_written_out_with_all_its_keys_is_the_same_recipe(method: str) -> None:
    split, dedup = METHODS[method]
    sources = [{"name": name, "files": "a.txt"} for name in CORPUS]
    recipe = Recipe.model_validate({"name": "a", "sources": sources, "dedup": dedup, "split": split})
    assert Recipe.model_validate(recipe.model_dump()) == recipe
    assert Recipe.model_validate(recipe.model_dump(mode="json")) == recipe


def test_only_what_can_change_a_label_is_in_the_settings() -> None:
    assert parse("seed: 3\n").split.settings(3) == {
        "method": "hash",
        "by": "document",
        "valid_fraction": "0.01",
        "test_fraction": "0",
    }
    formula = parse("split: {method: formula, test: true}\n").split
    assert formula.settings(3) == {"method": "formula", "by": "document", "test": True, "seed": 3}
