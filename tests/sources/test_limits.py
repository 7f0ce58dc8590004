"""Limits, samples and fallbacks of a source, through whole runs."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokmill as mill
from mill import tokmill, write_problems, write_recipe
from tokmill.errors import InputError, RecipeError, TokmillError
from tokmill.pipeline.plan import plan_steps
from tokmill.recipe.file import load_recipe
from tokmill.stages.sampling import shuffle_buffer
from written import load_lines, load_manifest, load_table, load_tables

SOURCE = {
    "name": "problems",
    "files": "*.jsonl",
    "template": "{question} {answer}",
    "fields": {"id": "id", "meta": ["weight"]},
}


@pytest.fixture(scope="module")
def fallbacks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("fallbacks")
    (directory / "a.jsonl").write_text('{"text": "a text"}\n')
    return directory


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


@pytest.mark.parametrize(
    "absent",
    [
        {"files": "gone/*.jsonl"},
        {"files": "link.jsonl"},
        {"corpus": {"manifest": "gone.json"}},
        {"directory": {"path": "gone"}},
        {"files": "gone/*.xml", "stackexchange": {}},
        {"hub": {"dataset": "owner/name", "split": "train"}},
    ],
    ids=str,
)
def test_a_fallback_that_cannot_be_read_stops_a_run_only_where_it_is_needed(
    tmp_path: Path, absent: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "nowhere.jsonl")
    lines = "".join(json.dumps({"text": f"text {n}"}) + "\n" for n in range(9))
    (tmp_path / "a.jsonl").write_text(lines)
    first = {"name": "first", "files": "a.jsonl", "limit": {"docs": 5}, "fallback": "second"}
    found = ingested(tmp_path, first, {"name": "second", **absent})
    assert (len(found["first"]), found["second"]) == (5, [])
    write_recipe(tmp_path, sources=[first, {"name": "second", **absent}], tokenizer=None, builds=None)
    again = tokmill("run", tmp_path / "recipe.yaml", "--out", tmp_path / "out", "--until", "clean")
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("source second cannot be read") == 1
    assert "it is needed only if first has less than its limit" in again.stderr
    told = tokmill("plan", tmp_path / "recipe.yaml", "--estimate", "--json")
    assert told.returncode == 0, told.stdout
    with pytest.raises(TokmillError):
        ingested(tmp_path, {**first, "limit": {"docs": 10}}, {"name": "second", **absent})
    with pytest.raises(TokmillError):
        ingested(tmp_path, {**first, "fallback": None}, {"name": "second", **absent}, out="alone")


@given(weights=st.lists(st.sampled_from([0, 0, 1, 2]), min_size=4, max_size=4).filter(any))
def test_a_step_needs_only_steps_that_there_are_whatever_has_no_weight(
    weights: list[int], fallbacks: Path
) -> None:
    names = ["a", "b", "c", "d"]
    sources = [
        {"name": name, "files": "a.jsonl", "limit": {"docs": 5}, **({"fallback": other} if other else {})}
        for name, other in zip(names, ["b", "d", "d", None], strict=True)
    ]
    recipe = {
        "name": "fallbacks",
        "sources": sources,
        "tokenizer": {"train": {"vocab_size": 300}, "eos": "<e>"},
        "mixture": {"sources": {"default": dict(zip(names, map(str, weights), strict=True))}},
    }
    has = dict(zip(names, weights, strict=True))
    is_refused = any(has[source["name"]] == 0 < has[source.get("fallback", "a")] for source in sources[:3])
    try:
        steps = plan_steps(load_recipe(json.dumps(recipe, indent=1)), fallbacks, fallbacks / "out")
    except RecipeError:
        assert is_refused
    else:
        assert not is_refused
        planned = {step.name for step in steps}
        assert all(planned.issuperset(step.needs) for step in steps)
        assert {f"ingest/{name}" in planned for name in names if has[name]} == {True}


# ids of six records, with four lines that are none: one behind the first, three behind the last
MIXED = ["a0", None, "b1", "a2", "b3", "a4", "a5", None, None, None]


def write_mixed(path: Path) -> Path:
    lines = [json.dumps({"id": id, "kind": id[0], "text": "x" * 10}) if id else "{broken" for id in MIXED]
    data = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def recounted(directory: Path, **source: Any) -> tuple[list[str], Counter[str], dict[str, Any]]:
    """Ids of what is kept, verdicts by reason, and what the manifest says of both."""
    recipe = {"name": "one", "sources": [{"name": "s", "max_bad_fraction": 1, **source}]}
    step = mill.run(recipe, directory / "out", workers=1, until="ingest/s").out / "ingest/s"
    ledger = [row for table in load_tables(step, "ledger") for row in table.to_pylist()]
    kept = [id for table in load_tables(step, "documents") for id in table.column("doc_id").to_pylist()]
    return kept, Counter(row["reason"] for row in ledger), load_manifest(step).counts


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
@pytest.mark.parametrize(
    ("given", "kept", "left_out"),
    [
        ({"limit": {"docs": 1}}, ["a0"], {}),
        ({"limit": {"docs": 2}}, ["a0", "b1"], {"invalid_json": 1}),
        ({"limit": {"chars": 25}}, ["a0", "b1"], {"invalid_json": 1}),
        ({"limit": {"docs": 6}}, ["a0", "b1", "a2", "b3", "a4", "a5"], {"invalid_json": 1}),
        ({"limit": {"docs": 7}}, ["a0", "b1", "a2", "b3", "a4", "a5"], {"invalid_json": 4}),
        ({"limit": {"docs": 2}, "where": {"kind": "a"}}, ["a0", "a2"], {"invalid_json": 1, "other_kind": 1}),
        (
            {"limit": {"chars": 25}, "where": {"kind": "a"}},
            ["a0", "a2"],
            {"invalid_json": 1, "other_kind": 2},
        ),
        ({"sample": {"method": "head", "k": 1}}, ["a0"], {}),
    ],
)
def test_what_lies_behind_the_end_of_a_limit_is_not_counted(
    tmp_path: Path, name: str, given: dict[str, Any], kept: list[str], left_out: dict[str, int]
) -> None:
    found, reasons, counts = recounted(tmp_path, files=str(write_mixed(tmp_path / name)), **given)
    assert (found, reasons) == (kept, left_out)
    assert counts["in"] == len(kept) + sum(left_out.values())
    assert {**counts["quarantined"], **counts["dropped"]} == left_out


def test_a_document_larger_than_the_limit_is_told_whatever_was_left_out_before_it(tmp_path: Path) -> None:
    files = str(write_mixed(tmp_path / "a.jsonl"))
    for source in ({}, {"where": {"kind": "b"}}):
        with pytest.raises(InputError, match="its first document is larger than its `limit`"):
            recounted(tmp_path, files=files, limit={"chars": 9}, **source)
    found, _, _ = recounted(tmp_path, files=files, limit={"chars": 10}, where={"kind": "b"})
    assert found == ["b1"]


def test_a_bad_record_behind_the_end_of_a_limit_stops_no_run(tmp_path: Path) -> None:
    files = str(write_mixed(tmp_path / "a.jsonl"))
    for policy in ({"on_bad_record": "fail"}, {"max_bad_fraction": 0}):
        found, _, counts = recounted(tmp_path, files=files, limit={"docs": 1}, **policy)
        assert (found, counts["in"]) == (["a0"], 1)
    with pytest.raises(InputError, match="invalid_json"):
        recounted(tmp_path, files=files, limit={"docs": 2}, on_bad_record="fail")


def test_fields_of_records_behind_the_end_of_a_limit_are_not_counted(tmp_path: Path) -> None:
    records = [
        {"id": n, "text": "x", "en": "one", "fr": "!" if n == 3 else "un", "kind": "ab"[n % 2]}
        | ({"lic": "MIT"} if n < 6 else {})
        | ({"more": n} if n != 2 else {})
        for n in range(100)
    ]
    lines = [json.dumps(record) + "\n" for record in records]
    (tmp_path / "a.jsonl").write_text("".join([*lines[:1], "{broken\n", *lines[1:]]))
    source = {"files": str(tmp_path / "a.jsonl"), "fields": {"license": "lic", "meta": ["more"]}}
    pairs = {"parallel": {"source_key": "en", "target_key": "fr"}}
    for asked, end in (({}, 5), ({"where": {"kind": "a"}}, 9), (pairs, 6), ({"limit": {"chars": 5}}, 5)):
        recounted(tmp_path, **{**source, "limit": {"docs": 5}, **asked})
        manifest = load_manifest(tmp_path / "out/ingest/s")
        presence = manifest.facts["presence"]
        read = records[: manifest.counts["in"] - 1]  # one of them is bad
        assert len(read) == end
        assert presence["records"] == end
        assert presence["fields.license"] == sum("lic" in record for record in read)
        assert presence["fields.meta.more"] == sum("more" in record for record in read)


@pytest.mark.parametrize("sample", [None, {"method": "shuffle_buffer", "k": 20, "buffer": 6}])
def test_what_is_broken_in_a_file_behind_the_end_of_a_limit_stops_no_run(
    tmp_path: Path, sample: dict[str, Any] | None
) -> None:
    lines = [json.dumps({"id": str(number), "text": "x"}) + "\n" for number in range(110)]
    (tmp_path / "a.jsonl").write_text("".join(lines[:10]))  # so few that two more files are read at once
    (tmp_path / "b.jsonl").write_text("".join(lines[10:]))
    (tmp_path / "c.jsonl").write_text(lines[0] + "{broken\n")
    (tmp_path / "d.json").write_text("[" + lines[0])
    bounds = {"sample": sample} if sample else {"limit": {"docs": 25}}
    for broken, told in (("c.jsonl", "invalid_json"), ("d.json", "array does not end")):
        files = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl", broken)]
        found, _, counts = recounted(tmp_path, files=files, **bounds, on_bad_record="fail")
        assert counts["in"] == 25
        assert {int(id) for id in found} <= set(range(25))
        beyond = {"sample": {**sample, "k": 107}} if sample else {"limit": {"docs": 112}}
        with pytest.raises(InputError, match=told):
            recounted(tmp_path, files=files, **beyond, on_bad_record="fail")


def test_a_file_that_could_not_be_read_ahead_ends_no_source(tmp_path: Path) -> None:
    """It is read when its turn comes, in this run or the next, and the files behind it after it."""
    lines = [json.dumps({"id": str(number), "text": "x"}) for number in range(80)]
    for number in range(8):
        (tmp_path / f"{number}.box").write_text("\n".join(lines[10 * number : 10 * number + 10]))
    (tmp_path / "hooks.py").write_text(
        "import json, pathlib\n"
        "def read(path):\n"
        "    path = pathlib.Path(path)\n"
        "    if path.stem == '3' and not (path.parent / 'key').exists():\n"
        "        raise PermissionError('no key')\n"
        "    yield from map(json.loads, path.read_text().splitlines())\n"
    )
    source = {
        "name": "s",
        "files": "*.box",
        "reader": "hooks.py:read",
        "fields": {"id": "id"},
        "limit": {"docs": 75},
    }
    recipe = write_recipe(tmp_path, sources=[source], tokenizer=None, builds=None)
    with pytest.raises(InputError, match="no key"):
        mill.run(recipe, tmp_path / "out", workers=1, until="ingest")
    (tmp_path / "key").touch()
    mill.run(recipe, tmp_path / "out", workers=1, until="ingest")
    tables = load_tables(tmp_path / "out/ingest/s", "documents")
    ids = [doc_id for table in tables for doc_id in table.column("doc_id").to_pylist()]
    assert ids == [str(number) for number in range(75)]


def test_a_hash_sample_counts_what_it_left_before_the_end_of_a_limit(tmp_path: Path) -> None:
    ids = [str(number) for number in range(400)]
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"id": id, "text": "x"}) + "\n" for id in ids))
    sample = {"method": "hash", "fraction": "0.25"}
    sampled, _, _ = recounted(tmp_path, files=str(file), sample=sample)
    found, _, counts = recounted(tmp_path, files=str(file), sample=sample, limit={"docs": 20})
    assert found == sampled[:20]
    assert counts["in"] == ids.index(found[-1]) + 1
    assert counts["dropped"] == {"not_sampled": counts["in"] - 20}


def test_mails_behind_the_end_of_a_limit_are_not_counted(tmp_path: Path) -> None:
    mails = ["Message-ID: <1@x>\n\nHello", "no header", "Message-ID: <2@x>\n\n", "Message-ID: <3@x>\n\nBye"]
    text = "".join(f"From a Thu Jan  1 00:00:00 1970\n{mail}\n\n" for mail in [*mails, *mails])
    (tmp_path / "a.mbox").write_text(text)
    source = {"files": str(tmp_path / "a.mbox"), "mbox": {}}
    found, reasons, counts = recounted(tmp_path, **source, limit={"docs": 2})
    assert (found, reasons, counts["in"]) == (["1@x", "3@x"], {"bad_header": 1, "no_text": 1}, 4)
    found, reasons, counts = recounted(tmp_path, **source, limit={"docs": 3})
    assert (len(found), reasons, counts["in"]) == (3, {"bad_header": 1, "no_text": 1}, 5)


def test_a_fallback_may_have_no_document_that_is_small_enough(tmp_path: Path) -> None:
    for name, sizes in (("first", [10, 10]), ("second", [10, 3])):
        lines = [json.dumps({"id": f"{name}-{n}", "text": "x" * n}) + "\n" for n in sizes]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))
    first = {"name": "first", "files": "first.jsonl", "limit": {"chars": 25}, "fallback": "second"}
    found = ingested(tmp_path, first, {"name": "second", "files": "second.jsonl"})
    assert found == {"first": ["first-10", "first-10"], "second": []}
    with pytest.raises(InputError, match="its first document is larger than its `limit`"):
        ingested(tmp_path, {**first, "fallback": None, "limit": {"chars": 9}}, out="small")


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
