"""`tokmill export`: the texts of a finished run, and a run over them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import tokmill
from mill import tokmill as command
from stages.test_texts import FORMATS, MEGA, MIXTURE, corpus, expected_texts, read_texts, recipe
from tokmill.errors import InputError, StorageError
from written import load_lines, load_manifest, load_tables

FIELDS = ("text", "source", "domain", "doc_id", "license_tag", "created_at", "meta")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without a build; not to be changed."""
    directory = tmp_path_factory.mktemp("run")
    corpus(directory)
    asked = recipe(directory, builds=None, filters=[{"measure": "words", "min": 3}])
    return tokmill.run(asked, directory / "out", workers=1).out


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_is_the_build_of_texts_that_the_recipe_could_have_asked_for(
    run: Path, format: Any, tmp_path: Path
) -> None:
    made = tokmill.export(run, out=tmp_path / "texts", format=format, measures=True, workers=1)
    builds = [{"name": "same", "format": format, "content": "text", "measures": True}]
    asked = recipe(run.parent, builds=builds, filters=[{"measure": "words", "min": 3}])
    built = load_manifest(tokmill.run(asked, tmp_path / "out", workers=1).out / "texts/same")
    exported = load_manifest(tmp_path / "texts")
    assert exported.identity == built.identity
    assert exported.facts == built.facts
    for split, records in expected_texts(run).items():
        found = read_texts(tmp_path / "texts", split)
        assert [{k: v for k, v in record.items() if k != "measures"} for record in found] == records
        assert all(record["measures"]["words"] >= 3 for record in found)
    assert made.as_json()["documents"] == exported.counts["kept"]
    assert tokmill.verify(tmp_path / "texts").ok
    assert not (tmp_path / "texts/.work").exists()


def test_an_export_of_a_mixture_has_its_order(tmp_path: Path) -> None:
    corpus(tmp_path)
    builds = [{"name": "same", "format": "parquet", "content": "text"}, MEGA]
    out = tokmill.run(recipe(tmp_path, **MIXTURE, builds=builds), tmp_path / "out", workers=1).out
    tokmill.export(out, out=tmp_path / "texts", format="parquet", workers=1)
    assert load_manifest(tmp_path / "texts").identity == load_manifest(out / "texts/same").identity


# -- there and back --------------------------------------------------------------------------------


def again(texts: Path, suffix: str, **sections: Any) -> dict[str, Any]:
    """A recipe that reads an export: each source by what its records say."""
    sources = [
        {
            "name": name,
            "domain": name,
            "files": [f"{texts}/{split}/*{suffix}" for split in ("train", "valid")],
            "where": {"source": name},
        }
        for name in ("web", "math")
    ]
    return {
        "name": "again",
        "sources": sources,
        "split": {"valid_fraction": "0.2"},
        "dedup": {"exact": False},
        **sections,
    }


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_a_run_over_an_export_has_the_same_documents_and_one_corpus_digest(
    run: Path, format: Any, tmp_path: Path
) -> None:
    first = tokmill.export(run, out=tmp_path / "one", format=format, workers=1)
    second = tokmill.run(again(tmp_path / "one", FORMATS[format]), tmp_path / "out", workers=1).out
    back = tokmill.export(second, out=tmp_path / "two", format=format, workers=1)
    assert first.as_json()["corpus_digest"] == back.as_json()["corpus_digest"]
    # by json and pyarrow alone: what was exported, and what the second run has
    exported = [record for split in ("train", "valid") for record in read_texts(tmp_path / "one", split)]
    ingested = [
        row
        for source in ("web", "math")
        for table in load_tables(second / "ingest" / source, "documents")
        for row in table.to_pylist()
    ]
    for row in ingested:
        row["meta"] = json.loads(row["meta"]) if row["meta"] else None
    plain = [{name: record.get(name) for name in FIELDS} for record in exported]
    key = lambda record: (record["source"], record["doc_id"])  # noqa: E731
    assert sorted(ingested, key=key) == sorted(plain, key=key)
    assert len(ingested) == first.documents > 50
    for split in ("train", "valid"):
        assert read_texts(tmp_path / "two", split) == read_texts(tmp_path / "one", split)


def test_the_digest_of_an_export_of_one_source_is_that_of_the_ingest_step_that_reads_it(
    tmp_path: Path,
) -> None:
    corpus(tmp_path)
    sources = recipe(tmp_path)["sources"][:1]
    out = tokmill.run(recipe(tmp_path, sources=sources, builds=None), tmp_path / "out", workers=1).out
    made = tokmill.export(out, out=tmp_path / "texts", workers=1)
    read = again(tmp_path / "texts", ".jsonl.zst")
    read["sources"] = [{k: v for k, v in read["sources"][0].items() if k != "where"}]
    second = tokmill.run(read, tmp_path / "second", until="ingest", workers=1).out
    digest = load_manifest(second / "ingest/web").facts["corpus_digest"]
    assert made.as_json()["corpus_digest"] == digest


# -- what is there already -------------------------------------------------------------------------


def test_a_finished_export_is_left_alone_and_another_is_refused_unless_it_may_be_replaced(
    run: Path, tmp_path: Path
) -> None:
    texts = tmp_path / "texts"
    assert tokmill.export(run, out=texts, workers=1).is_new
    before = {path: path.stat().st_mtime_ns for path in texts.rglob("*")}
    assert not tokmill.export(run, out=texts, workers=1).is_new
    assert {path: path.stat().st_mtime_ns for path in texts.rglob("*")} == before
    with pytest.raises(InputError, match=r"`format` changed jsonl → parquet.*\n.*--replace"):
        tokmill.export(run, out=texts, format="parquet", workers=1)
    (texts / "mine.txt").write_text("mine")
    tokmill.export(run, out=texts, format="parquet", replace=True, workers=1)
    assert {path.suffix for path in (texts / "train").iterdir()} == {".parquet"}
    assert (texts / "mine.txt").read_text() == "mine"


def test_an_export_with_a_file_missing_is_made_again(run: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    tokmill.export(run, out=texts, workers=1)
    before = load_manifest(texts).identity
    next((texts / "train").iterdir()).unlink()
    assert tokmill.export(run, out=texts, workers=1).is_new
    assert load_manifest(texts).identity == before
    assert tokmill.verify(texts).ok


def test_an_export_that_was_cut_short_goes_on_where_it_was(run: Path, tmp_path: Path) -> None:
    """A kill while files were moved: some are in place, there is no manifest, and `.work` has the rest."""
    texts = tmp_path / "texts"
    tokmill.export(run, out=texts, workers=1)
    whole = load_manifest(texts)
    work = texts / ".work/texts"
    (work / "train").mkdir(parents=True)
    (work.parent / ".writing").touch()
    shutil.move(texts / "manifest.json", work / "manifest.json")
    moved = next((texts / "train").iterdir())
    shutil.move(moved, work / "train" / moved.name)
    tokmill.export(run, out=texts, workers=1)
    assert load_manifest(texts).digest == whole.digest
    assert tokmill.verify(texts).ok
    assert not (texts / ".work").exists()


def test_an_export_goes_neither_into_the_run_nor_over_something_else(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="lies in the run itself"):
        tokmill.export(run, out=run / "exported")
    other = shutil.copytree(run / "split", tmp_path / "split")
    with pytest.raises(InputError, match=r"holds split, which is no export"):
        tokmill.export(run, out=other)
    with pytest.raises(StorageError, match="is not the directory of a finished run"):
        tokmill.export(tmp_path, out=tmp_path / "texts")
    with pytest.raises(InputError, match="format: 'xml' is not a choice"):
        tokmill.export(run, out=tmp_path / "texts", format="xml")  # type: ignore[arg-type]
    assert not (tmp_path / "texts").exists()


def test_a_run_that_ended_before_the_split_has_nothing_to_export(tmp_path: Path) -> None:
    corpus(tmp_path, documents=3)
    out = tokmill.run(recipe(tmp_path, builds=None), tmp_path / "out", until="clean", workers=1).out
    with pytest.raises(StorageError, match="the run ended before the split"):
        tokmill.export(out, out=tmp_path / "texts")


@pytest.mark.usefixtures("forked_workers")
def test_any_number_of_workers_exports_the_same(run: Path, tmp_path: Path) -> None:
    one = tokmill.export(run, out=tmp_path / "one", workers=1)
    three = tokmill.export(run, out=tmp_path / "three", workers=3)
    assert one.manifest.digest == three.manifest.digest


def test_the_command_says_how_many_documents_are_where(run: Path, tmp_path: Path) -> None:
    done = command("export", run, "--out", tmp_path / "texts", "--format", "jsonl")
    assert done.returncode == 0, done.stderr
    counts = {split: len(rows) for split, rows in expected_texts(run).items()}
    splits = f"(train {counts['train']}, valid {counts['valid']})"
    assert f"{sum(counts.values())} documents {splits} in 4 files" in done.stdout.replace("\n", " ")
    assert "already" in command("export", run, "--out", tmp_path / "texts").stdout
    files = sorted((tmp_path / "texts/train").iterdir())
    assert sum(len(load_lines(path)) for path in files) == counts["train"]


def test_parquet_has_one_schema_and_needs_no_reader_of_ours(run: Path, tmp_path: Path) -> None:
    tokmill.export(run, out=tmp_path / "texts", format="parquet", workers=1)
    table = pq.read_table(tmp_path / "texts/train")
    assert table.column_names == [*FIELDS, "split", "language"]
