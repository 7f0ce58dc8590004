"""What bounds of the recipe leave of a source, told from some of the documents: beside the documents that the
run writes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import tokmill as mill
from mill import write_recipe
from tokmill.errors import InputError
from tokmill.pipeline.estimation.estimate import estimate_run
from tokmill.pipeline.estimation.figures import Estimate, Interval
from tokmill.recipe.file import read_recipe

DOCUMENTS = 3000


def write_lines(path: Path, documents: int = DOCUMENTS, copies: int = 0) -> None:
    """Texts of 3 to 30 words; of each hundred the first `copies` are there again, at the end of the file."""
    chance, name = random.Random(path.name), path.name.removesuffix(".jsonl")
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [
        f"{name} {number} " + " ".join(chance.choice(("mill", "river", "böök")) for _ in range(words))
        for number, words in enumerate(chance.choices(range(3, 31), k=documents))
    ]
    texts += [text for number, text in enumerate(texts) if number % 100 < copies]
    lines = [json.dumps({"id": f"{name}-{n}", "text": text, "kind": n % 5}) for n, text in enumerate(texts)]
    path.write_text("\n".join(lines) + "\n")


def recipe_of(directory: Path, sources: list[dict[str, Any]], **sections: Any) -> Path:
    fields = {"id": "id", "meta": ["kind"]}
    whole = [
        {"files": f"{source['name']}.jsonl", "domain": source["name"], "fields": fields, **source}
        for source in sources
    ]
    for source in whole:
        if not list(directory.glob(str(source["files"]))):
            write_lines(directory / str(source["files"]))
    plain: dict[str, Any] = {"filters": None, "tokenizer": None, "builds": None, "pack": None}
    return write_recipe(directory, sources=whole, **{**plain, "dedup": {"exact": False}, **sections})


def estimated(recipe: Path, share: float, **asked: int) -> Estimate:
    whole = read_recipe(recipe).recipe
    assert whole is not None
    names = [source.files for source in whole.sources]
    size = sum(
        path.stat().st_size for one in names for glob in one or () for path in recipe.parent.glob(str(glob))
    )
    return estimate_run(whole, recipe.parent, text_bytes=int(size * share), **asked)


def documents_of(out: Path) -> dict[str, int]:
    """Rows of the documents that each source wrote."""
    return {
        path.name: sum(pq.read_metadata(shard).num_rows for shard in path.glob("documents-*.parquet"))
        for path in sorted((out / "ingest").iterdir())
    }


def text_bytes_of(out: Path, name: str) -> int:
    texts = [
        pq.read_table(path, columns=["text"])["text"] for path in out.glob(f"ingest/{name}/doc*.parquet")
    ]
    return sum(pc.sum(pc.binary_length(text)).as_py() for text in texts)


def test_what_a_bound_lets_in_is_known_where_the_files_are_read(tmp_path: Path) -> None:
    sources: list[dict[str, Any]] = [
        {"name": "unreached", "limit": {"docs": 4000}},
        {"name": "reached", "limit": {"docs": 1000}},
        {"name": "of_bytes", "limit": {"tokens": 20_000}},
        {"name": "hashed", "sample": {"method": "hash", "fraction": "0.3"}},
        {"name": "head", "sample": {"method": "head", "k": 700}},
        {"name": "all_of_it", "sample": {"method": "reservoir", "k": 5000}},
        {"name": "drawn", "sample": {"method": "reservoir", "k": 900}},
        {"name": "buffered", "sample": {"method": "shuffle_buffer", "k": 5000, "buffer": 100}},
        {"name": "drawn_short", "sample": {"method": "reservoir", "k": 900}, "limit": {"docs": 600}},
        {"name": "picked_short", "sample": {"method": "reservoir", "k": 900}, "limit": {"chars": 50_000}},
        # a source that is read for what another left of its limit
        {"name": "first", "limit": {"docs": 5000}, "fallback": "second"},
        {"name": "second"},
        {"name": "picked", "sample": {"method": "reservoir", "k": 500}, "limit": {"docs": 800}}
        | {"fallback": "after_picked"},
        {"name": "after_picked"},
        {"name": "enough", "limit": {"docs": 200}, "fallback": "not_needed"},
        {"name": "not_needed"},
    ]
    recipe = recipe_of(tmp_path / "in", sources)
    found = estimated(recipe, 0.1)
    assert 0.09 < found.share < 0.11
    out = mill.run(recipe, workers=1, until="ingest").out
    actual = documents_of(out)
    assert (actual["unreached"], actual["second"], actual["after_picked"]) == (DOCUMENTS, 2000, 300)
    told = {name: one.documents for name, one in found.sources.items()}
    # picks are known in whole documents of the share: what they leave is known so nearly
    assert told.pop("after_picked") == pytest.approx(actual.pop("after_picked"), abs=1 / found.share)
    assert told.pop("picked_short") == pytest.approx(actual.pop("picked_short"), rel=0.1)
    assert told == pytest.approx(actual)
    assert found.sources["second"].text_bytes == pytest.approx(text_bytes_of(out, "second"))
    del found.sources["after_picked"]
    for name, one in found.sources.items():
        assert one.kept.contains(documents_of(out)[name])


def test_a_hash_sample_of_files_that_are_read_in_part_has_an_interval(tmp_path: Path) -> None:
    names = [f"source{number}" for number in range(8)]
    for name in names:
        for part in range(30):
            write_lines(tmp_path / "in" / name / f"{name}-{part:02d}.jsonl", 20)
    sample = {"method": "hash", "fraction": "0.3"}
    recipe = recipe_of(
        tmp_path / "in", [{"name": name, "files": f"{name}/*.jsonl", "sample": sample} for name in names]
    )
    found = estimated(recipe, 0.1, read_bytes=10_000)
    actual = documents_of(mill.run(recipe, workers=1, until="ingest").out)
    assert all(one.documents != actual[name] for name, one in found.sources.items())
    held = [one.kept.contains(actual[name]) for name, one in found.sources.items()]
    assert sum(held) >= 7
    assert sum(one.kept.high - one.kept.low for one in found.sources.values()) < 8 * 180


def test_copies_are_found_where_records_have_no_ids(tmp_path: Path) -> None:
    path = tmp_path / "in/plain.jsonl"
    write_lines(path, copies=10)
    texts = [json.loads(line)["text"] for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    recipe = recipe_of(tmp_path / "in", [{"name": "plain", "fields": {}}], dedup={"exact": True})
    (found,) = estimated(recipe, 0.25).sources.values()
    assert (len(texts), len(set(texts))) == (DOCUMENTS * 11 // 10, DOCUMENTS)
    assert found.kept.value == pytest.approx(DOCUMENTS, rel=0.05)
    assert found.kept.contains(DOCUMENTS)
    assert found.dropped == {"dedup: exact_dup": pytest.approx(0.1 * DOCUMENTS, rel=0.5)}


TOKENIZER = {"train": {"model": "byte_bpe", "vocab_size": 300, "sample_megabytes": 1}, "eos": "<e>"}


def test_a_split_by_numbers_of_all_documents_is_told_as_it_is(tmp_path: Path) -> None:
    write_lines(tmp_path / "in/some.jsonl", 100)
    split: dict[str, Any] = {"method": "counts", "counts": {"train": 30, "valid": 10}}
    (found,) = estimated(recipe_of(tmp_path / "in", [{"name": "some"}], split=split), 1).sources.values()
    assert found.kept == Interval(40, 40, 40)
    assert found.dropped == {"split: not_counted": 60}
    split["counts"] = {"train": 90, "valid": 11}
    with pytest.raises(InputError, match="the counts ask for 101 documents, and there are 100"):
        estimated(recipe_of(tmp_path / "in", [{"name": "some"}], split=split), 1)


@pytest.mark.parametrize(
    "split",
    [
        {"method": "counts", "counts": {"train": 1000, "valid": 200}},
        {"method": "counts", "counts": {"train": 5300, "valid": 700}},  # each document has its place
        {
            "method": "field",
            "field": "kind",
            "values": {"train": ["0", "1"], "valid": ["2"]},
            "unknown": "drop",
        },
    ],
    ids=["counted", "all_counted", "by_field"],
)
def test_documents_that_the_split_drops_are_not_told_as_kept(tmp_path: Path, split: dict[str, Any]) -> None:
    for name in ("some", "more"):
        write_lines(tmp_path / f"in/{name}.jsonl", copies=10 if name == "more" else 0)
    sources = [{"name": "some"}, {"name": "more"}]
    recipe = recipe_of(tmp_path / "in", sources, split=split, dedup={"exact": True}, tokenizer=TOKENIZER)
    found = estimated(recipe, 0.5)
    out = mill.run(recipe, workers=1).out
    lengths = {
        name: [
            rows
            for path in out.glob(f"tokens/*/{name}/lengths-*.parquet")
            for rows in pq.read_table(path, columns=["tokens"])["tokens"].to_pylist()
        ]
        for name in ("some", "more")
    }
    kept = {name: len(rows) for name, rows in lengths.items()}
    ledger = [
        pq.read_table(path, columns=["source", "reason"]) for path in out.glob("split/ledger-*.parquet")
    ]
    lost = [row for table in ledger for row in table.to_pylist()]
    for name, one in found.sources.items():
        assert one.kept.value == pytest.approx(kept[name], rel=0.05)
        assert one.kept.contains(kept[name])
        told = {step: count for step, count in one.dropped.items() if step.startswith("split: ")}
        own = [row["reason"] for row in lost if row["source"] == name]
        assert {f"split: {reason}" for reason in own} <= set(told)
        assert sum(told.values()) == pytest.approx(len(own), rel=0.05, abs=40)
        assert one.tokens.value == pytest.approx(sum(lengths[name]), rel=0.05)
    if split["method"] == "counts":
        total = sum(one.kept.value for one in found.sources.values())
        assert total == pytest.approx(sum(split["counts"].values()), rel=0.01)
    actual = {
        split: sum(
            sum(pq.read_table(path, columns=["tokens"])["tokens"].to_pylist())
            for path in (out / "tokens" / split).rglob("lengths-*.parquet")
        )
        for split in ("train", "valid")
    }
    assert {name: one.value for name, one in found.tokens.items()} == pytest.approx(actual, rel=0.06)
