"""Every kind of source through `tokmill run` on real files: the same content twice and for any workers, and
counts that an independent one-liner confirms. Skipped where ../shared/data is absent."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from mill import SHARED, tokmill, write_recipe
from written import load_manifest, load_table

DATA = SHARED / "data"
pytestmark = pytest.mark.skipif(not DATA.exists(), reason="needs ../shared/data")


def milled(directory: Path, source: dict[str, Any], workers: int = 1) -> dict[str, Any]:
    """Counts, documents and digest of a run over one source, to the end of cleaning."""
    directory.mkdir(parents=True, exist_ok=True)
    recipe = write_recipe(
        directory, sources=[{"name": "s", **source}], tokenizer=None, builds=None, shards={"megabytes": 1}
    )
    out = mill.run(recipe, directory / f"out-{workers}", workers=workers, until="clean").out
    report = mill.verify(out)
    assert report.problems == []
    manifest = load_manifest(out / "ingest/s")
    tables = [load_table(out / "ingest/s" / entry.path) for entry in manifest.entries("documents")]
    documents = [row for table in tables for row in table.to_pylist()]
    return {
        "counts": manifest.counts,
        "documents": documents,
        "digest": report.digest,
        "facts": manifest.facts,
    }


SOURCES: dict[str, dict[str, Any]] = {
    "wikiextractor": {
        "files": str(DATA / "wikiextractor/en/AA/*"),
        "wikipedia": {},
        "license": "CC-BY-SA-3.0",
    },
    "stackexchange": {"files": str(DATA / "stackexchange/*.7z"), "stackexchange": {}},
    "europarl": {
        "files": str(DATA / "fr_en/europarl_2012.jsonl"),
        "parallel": {"source_key": "fr", "target_key": "en"},
    },
    "tatoeba": {"files": str(DATA / "fr_en/tatoeba_even.tsv"), "parallel": {}},
    "warc": {"files": str(DATA / "warc/*.warc.gz"), "warc": {}},
    "wet": {"files": str(DATA / "warc/*.wet"), "warc": {}},
    "gsm8k": {
        "files": str(DATA / "math/gsm8k/*.jsonl"),
        "template": "Problem: {question}\n\nSolution: {answer}",
    },
}


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("name", SOURCES)
def test_a_source_gives_the_same_content_for_one_and_three_workers(tmp_path: Path, name: str) -> None:
    one, three = milled(tmp_path, SOURCES[name], 1), milled(tmp_path, SOURCES[name], 3)
    assert one["digest"] == three["digest"]
    assert one["counts"]["kept"] > 0


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_wikiextractor_block_is_accounted_for(tmp_path: Path, language: str) -> None:
    files = sorted((DATA / f"wikiextractor/{language}/AA").iterdir())
    found = milled(tmp_path, {"files": [str(path) for path in files], "wikipedia": {}})
    blocks = sum(len(re.findall(rb"(?m)^<doc ", path.read_bytes())) for path in files)
    assert found["counts"]["in"] == blocks
    assert not [d for d in found["documents"] if "</doc>" in d["text"]]


def test_stackexchange_xml_and_7z_give_the_same_documents(tmp_path: Path) -> None:
    name = "coffee.stackexchange.com"
    xml = milled(
        tmp_path / "xml", {"files": str(DATA / f"stackexchange/{name}/Posts.xml"), "stackexchange": {}}
    )
    archive = milled(tmp_path / "7z", {"files": str(DATA / f"stackexchange/{name}.7z"), "stackexchange": {}})
    assert [d["text"] for d in xml["documents"]] == [d["text"] for d in archive["documents"]]
    raw = (DATA / f"stackexchange/{name}/Posts.xml").read_text("utf-8")
    answered = set(re.findall(r'PostTypeId="2" ParentId="(\d+)"', raw))
    questions = re.findall(r'<row Id="(\d+)" PostTypeId="1"', raw)
    assert xml["counts"]["kept"] <= len([q for q in questions if q in answered])
    assert xml["counts"]["kept"] > 100


def test_every_pair_is_accounted_for(tmp_path: Path) -> None:
    lines = (DATA / "fr_en/tatoeba_even.tsv").read_bytes().count(b"\n")
    found = milled(tmp_path, SOURCES["tatoeba"])
    assert found["counts"]["in"] in (lines, lines + 1)
    meta = json.loads(found["documents"][0]["meta"])
    assert found["documents"][0]["text"] == f"{meta['src_text']}\n{meta['tgt_text']}"


def test_gsm8k_is_read_in_full(tmp_path: Path) -> None:
    records = sum(path.read_bytes().count(b"\n") for path in (DATA / "math/gsm8k").glob("*.jsonl"))
    found = milled(tmp_path, SOURCES["gsm8k"])
    assert found["counts"]["kept"] == found["counts"]["in"]
    assert abs(found["counts"]["in"] - records) <= 2
    assert found["documents"][0]["text"].startswith("Problem: ")


def test_a_sample_of_a_stackexchange_dump_is_a_sample_of_its_threads(tmp_path: Path) -> None:
    source = {**SOURCES["stackexchange"], "sample": {"method": "reservoir", "k": 50}}
    found = milled(tmp_path, source)
    assert len(found["documents"]) == 50
    assert found["digest"] == milled(tmp_path, source, 2)["digest"]


def test_a_source_has_the_same_content_through_its_own_command(tmp_path: Path) -> None:
    commands = {
        "wikiextractor": ["--format", "wikipedia", "--license", "CC-BY-SA-3.0"],
        "stackexchange": ["--format", "stackexchange"],
        "europarl": ["--format", "parallel", "--option", "source_key=fr", "--option", "target_key=en"],
        "wet": ["--format", "warc"],
        "gsm8k": ["--template", r"Problem: {question}\n\nSolution: {answer}"],
    }
    for name, options in commands.items():
        through_run = milled(tmp_path / name, SOURCES[name])["facts"]["corpus_digest"]
        out = tmp_path / name / "command"
        done = tokmill(
            "ingest", "files", SOURCES[name]["files"], "--name", "s", *options, "--out", out, "--json"
        )
        assert done.returncode == 0, done.stdout
        assert mill.verify(out).problems == []
        assert load_manifest(out / "ingest/s").facts["corpus_digest"] == through_run


def test_two_sections_for_one_source_are_refused(tmp_path: Path) -> None:
    recipe = write_recipe(
        tmp_path,
        sources=[{"name": "s", "files": "a", "warc": {}, "wikipedia": {}}],
        tokenizer=None,
        builds=None,
    )
    done = tokmill("recipe", "check", recipe)
    assert done.returncode == 1
    assert "`wikipedia` already says what the files are" in done.stderr
