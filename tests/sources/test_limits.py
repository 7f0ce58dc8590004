"""Limits, samples and fallbacks of a source, through whole runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from mill import tokmill, write_problems, write_recipe
from tokmill.stages.sampling import shuffle_buffer
from written import load_lines, load_manifest, load_table

SOURCE = {
    "name": "problems",
    "files": "*.jsonl",
    "template": "{question} {answer}",
    "fields": {"id": "id", "meta": ["weight"]},
}


def ingested(
    directory: Path, *sources: dict[str, Any], workers: int = 1, out: str = "out"
) -> dict[str, list[str]]:
    """doc_ids of every source after ingest, in order; the run is verified."""
    recipe = write_recipe(
        directory, sources=list(sources), tokenizer=None, builds=None, shards={"megabytes": 1}
    )
    result = mill.run(recipe, directory / out, workers=workers, until="clean")
    assert mill.verify(result.out).problems == []
    found = {}
    for source in sources:
        artifact = result.artifacts[f"ingest/{source['name']}"]
        entries = artifact.manifest.entries("documents")
        found[source["name"]] = [
            i for e in entries for i in load_table(artifact.path(e)).column("doc_id").to_pylist()
        ]
    return found


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    for part in range(4):
        path = write_problems(tmp_path / f"part-{part}.jsonl", 500, seed=part)
        records = [json.loads(line) for line in path.read_text().splitlines()]
        marked = [{**r, "id": f"{part}-{n}", "weight": 1 + n % 3} for n, r in enumerate(records)]
        path.write_text("".join(json.dumps(record) + "\n" for record in marked))
    return tmp_path


def everything(corpus: Path) -> list[str]:
    return ingested(corpus, SOURCE, out="all")["problems"]


@pytest.mark.parametrize("docs", [1, 499, 500, 501, 1300, 2000, 5000])
def test_a_limit_of_documents_takes_the_first_ones(corpus: Path, docs: int) -> None:
    found = ingested(corpus, {**SOURCE, "limit": {"docs": docs}})["problems"]
    assert found == everything(corpus)[:docs]
    facts = load_manifest(corpus / "out/ingest/problems").facts
    assert facts["scanned"]["is_complete"] == (docs >= 2000)


def test_a_limit_of_bytes_stops_before_it_would_be_passed(corpus: Path) -> None:
    whole = load_all(corpus)
    for limit in ({"chars": 100_000}, {"tokens": 25_000}):
        found = ingested(corpus, {**SOURCE, "limit": limit})["problems"]
        sizes = [len(text) for _, text in whole]
        assert sum(sizes[: len(found)]) <= 100_000 < sum(sizes[: len(found) + 1])


def test_a_document_that_does_not_fit_ends_the_source_whatever_comes_after_it(tmp_path: Path) -> None:
    sizes = {"a.jsonl": [10, 10, 1000, 5], "b.jsonl": [5]}
    for name, lengths in sizes.items():
        lines = [json.dumps({"id": f"{name}-{n}", "text": "x" * n}) for n in lengths]
        (tmp_path / name).write_text("\n".join(lines))
    source = {"name": "sizes", "files": "*.jsonl", "limit": {"chars": 30}}
    assert ingested(tmp_path, source)["sizes"] == ["a.jsonl-10", "a.jsonl-10"]


def load_all(corpus: Path) -> list[tuple[str, str]]:
    everything(corpus)
    directory = corpus / "all/ingest/problems"
    tables = [load_table(directory / e.path) for e in load_manifest(directory).entries("documents")]
    return [(r["doc_id"], r["text"]) for table in tables for r in table.to_pylist()]


@pytest.mark.usefixtures("forked_workers")
def test_a_limit_does_not_depend_on_workers(corpus: Path) -> None:
    limited = {**SOURCE, "limit": {"docs": 777}}
    assert ingested(corpus, limited, out="one") == ingested(corpus, limited, workers=3, out="three")
    assert mill.verify(corpus / "one").digest == mill.verify(corpus / "three").digest


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("method", ["reservoir", "weighted"])
def test_a_fixed_sample_has_k_documents_in_order_and_is_the_same_for_any_workers(
    corpus: Path, method: str
) -> None:
    sampled = {
        **SOURCE,
        "sample": {"method": method, "k": 300, **({"weight": "weight"} if method == "weighted" else {})},
    }
    found = ingested(corpus, sampled, out="one")["problems"]
    order = {doc_id: number for number, doc_id in enumerate(everything(corpus))}
    assert len(found) == 300
    assert [order[i] for i in found] == sorted(order[i] for i in found)
    parts = [order[i] // 500 for i in found]
    assert all(40 < parts.count(part) < 115 for part in range(4)), "a sample must come from the whole source"
    ingested(corpus, sampled, workers=3, out="three")
    assert mill.verify(corpus / "one").digest == mill.verify(corpus / "three").digest
    counts = load_manifest(corpus / "one/ingest/problems").counts
    assert (counts["in"], counts["kept"], counts["dropped"]) == (2000, 300, {"not_sampled": 1700})


def test_a_sample_larger_than_the_source_is_the_source(corpus: Path) -> None:
    sampled = {**SOURCE, "sample": {"method": "reservoir", "k": 99_999}}
    assert ingested(corpus, sampled)["problems"] == everything(corpus)


def test_a_limit_after_a_sample_cuts_the_sample(corpus: Path) -> None:
    sampled = {**SOURCE, "sample": {"method": "reservoir", "k": 300}}
    whole = ingested(corpus, sampled, out="whole")["problems"]
    assert ingested(corpus, {**sampled, "limit": {"docs": 120}})["problems"] == whole[:120]


def test_a_hash_sample_stays_when_the_source_grows(corpus: Path) -> None:
    sampled = {**SOURCE, "sample": {"method": "hash", "fraction": "0.25"}}
    before = ingested(corpus, sampled, out="before")["problems"]
    write_problems(corpus / "part-9.jsonl", 500, seed=9)
    after = ingested(corpus, sampled, out="after")["problems"]
    assert after[: len(before)] == before
    assert 400 < len(before) < 600
    assert 500 < len(after) < 750


def test_head_is_recorded_as_what_it_is(corpus: Path) -> None:
    found = ingested(corpus, {**SOURCE, "sample": {"method": "head", "k": 100}})["problems"]
    assert found == everything(corpus)[:100]
    manifest = load_manifest(corpus / "out/ingest/problems")
    assert manifest.config["sample"]["method"] == "head"
    scanned = manifest.facts["scanned"]
    assert (scanned["chunks"], scanned["of"], scanned["is_complete"]) == (1, 4, False)
    assert 0 < scanned["fraction"] < 0.3


@pytest.mark.usefixtures("forked_workers")
def test_a_shuffle_buffer_reads_only_as_far_as_it_reaches_for_any_number_of_workers(corpus: Path) -> None:
    sampled = {**SOURCE, "sample": {"method": "shuffle_buffer", "k": 600, "buffer": 101}}
    found = ingested(corpus, sampled, out="one")["problems"]
    order = {doc_id: number for number, doc_id in enumerate(everything(corpus))}
    assert [order[i] for i in found] == shuffle_buffer(2000, 600, 101, seed=7).tolist()
    ingested(corpus, sampled, workers=3, out="three")
    assert mill.verify(corpus / "one").digest == mill.verify(corpus / "three").digest
    manifest = load_manifest(corpus / "one/ingest/problems")
    assert (manifest.counts["in"], manifest.counts["dropped"]) == (700, {"not_sampled": 100})
    scanned = manifest.facts["scanned"]
    assert not scanned["is_complete"]
    assert (scanned["records"], scanned["chunks"]) == (700, 2)
    assert 0.25 < scanned["fraction"] <= 0.51


@pytest.mark.parametrize(("limit", "expected"), [(300, 0), (500, 0), (700, 200), (5000, 500)])
def test_a_fallback_is_read_only_as_far_as_the_first_source_fell_short(
    tmp_path: Path, limit: int, expected: int
) -> None:
    write_problems(tmp_path / "a/problems.jsonl", 500, seed=1)
    write_problems(tmp_path / "b/problems.jsonl", 500, seed=2)
    unweighted = {**SOURCE, "fields": {"id": "id"}}
    first = {
        **unweighted,
        "name": "first",
        "files": "a/*.jsonl",
        "limit": {"docs": limit},
        "fallback": "second",
    }
    second = {**unweighted, "name": "second", "files": "b/*.jsonl"}
    found = ingested(tmp_path, first, second)
    assert (len(found["first"]), len(found["second"])) == (min(limit, 500), expected)


def test_changing_the_sample_rebuilds_and_says_which_field(corpus: Path) -> None:
    ingested(corpus, {**SOURCE, "sample": {"method": "reservoir", "k": 300}})
    recipe = write_recipe(
        corpus,
        sources=[{**SOURCE, "sample": {"method": "reservoir", "k": 301}}],
        tokenizer=None,
        builds=None,
        shards={"megabytes": 1},
    )
    said = tokmill("plan", recipe, "--out", corpus / "out").stdout
    assert "`sources.problems.sample.k` changed 300 → 301" in said


def test_the_sample_command_writes_what_a_recipe_would_take(corpus: Path) -> None:
    through_run = ingested(corpus, {**SOURCE, "sample": {"method": "reservoir", "k": 100}})["problems"]
    arguments = [
        "--k",
        "100",
        "--seed",
        "7",
        "--template",
        "{question} {answer}",
        "--out",
        corpus / "some.jsonl.zst",
    ]
    done = tokmill("sample", corpus / "part-*.jsonl", *arguments, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["scanned"]["is_complete"]
    assert [row["doc_id"] for row in load_lines(corpus / "some.jsonl.zst")] == through_run
    head = tokmill("sample", corpus / "part-*.jsonl", "--method", "head", *arguments)
    assert "not a random sample" in head.stdout
    assert not list(corpus.glob(".tmp-*"))
