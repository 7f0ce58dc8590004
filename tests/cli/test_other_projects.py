"""What scripts of other projects type works as typed, or is told what there is in its place."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from cleaned import prose
from forked import run_forked
from mill import tokmill as typed_elsewhere
from written import load_lines


def tokmill(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_forked(list(arguments), {"TOKMILL_WORKERS": "1", **os.environ}, directory)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """a.jsonl and b.jsonl, of three documents each."""
    for name, first in (("a", 0), ("b", 10)):
        records = [{"id": f"{name}{n}", "text": prose(first + n)} for n in range(3)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    return tmp_path


def test_several_sources_are_normalized_into_one_directory_side_by_side(home: Path) -> None:
    first = ("normalize", "--input", "a.jsonl", "--source", "web", "--out-dir", "out")
    second = ("normalize", "--input=b.jsonl", "--source=books", "--out-dir=out")
    for words in (first, second, first):
        done = tokmill(home, *words)
        assert done.returncode == 0, done.stderr
    out = home / "out"
    for name, prefix, decisions in (("web", "a", ""), ("books", "b", "books.")):
        ids = [f"{prefix}{n}" for n in range(3)]
        shard = load_lines(out / f"{name}-00000.jsonl.zst")
        assert [document["doc_id"] for document in shard] == ids
        assert {document["source"] for document in shard} == {name}
        assert [row["doc_id"] for row in load_lines(out / f"{decisions}decisions.jsonl.zst")] == ids
    assert json.loads(tokmill(home, "verify", "out", "--json").stdout)["problems"] == []
    other = ("normalize", "--input", "b.jsonl", "--source", "web", "--out-dir", "out")
    refused = tokmill(home, *other)
    assert refused.returncode == 1
    assert "web-00000.manifest.json: holds a finished result" in refused.stderr
    replaced = tokmill(home, *other, "--replace")
    assert replaced.returncode == 0, replaced.stderr
    assert load_lines(out / "web-00000.jsonl.zst")[0]["doc_id"] == "b0"
    assert load_lines(out / "books-00000.jsonl.zst")[0]["doc_id"] == "b0"
    reported = tokmill(home, "report", "--input", "out")
    assert reported.returncode == 0, reported.stderr
    assert (out / "report.html").is_file()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["normalize", "a.jsonl", "--out", "out", "--log-file", "log.json"],
            "the log is lines of text: call it log.log. Figures as JSON: `--json > log.json`",
        ),
        (
            ["shard", "m.yaml", "--tokenizer", "m.yaml", "--log-file", "log.json"],
            "Figures as JSON: `--stats log.json`",
        ),
        (["normalize", "a.jsonl", "--out", "out", "--log-every", "100"], "progress is shown without it"),
        (["normalize", "a.jsonl", "--out", "out", "--zstd-level=19"], "packed at one level"),
        (
            ["filter", "--config", "sources.yaml", "--out", "out"],
            "`tokmill recipe import sources.yaml recipe.yaml`",
        ),
        (
            ["normalize", "wiki", "--out", "out"],
            "WikiExtractor wrote\n  next: say so with `--format wikipedia`",
        ),
    ],
)
def test_a_word_that_is_none_here_is_told_what_there_is_in_its_place(
    home: Path, words: list[str], told: str
) -> None:
    (home / "m.yaml").write_text("datasets: [{name: a, files: a.jsonl}]")
    write_extracted(home / "wiki")
    refused = tokmill(home, *words)
    assert refused.returncode in (1, 2)
    assert told in refused.stderr
    assert not (home / "log.json").exists()
    assert not list((home / "out").glob("*.zst"))


def write_extracted(directory: Path) -> None:
    for number, place in enumerate(("AA/wiki_00", "AA/wiki_01", "AB/wiki_00")):
        page = (
            f'<doc id="{number}" url="u" title="Page {number}">\nPage {number}\n\n{prose(number)}\n</doc>\n'
        )
        (directory / place).parent.mkdir(parents=True, exist_ok=True)
        (directory / place).write_text(page)


def test_a_directory_that_wikiextractor_wrote_is_read_as_it_is(tmp_path: Path) -> None:
    write_extracted(tmp_path / "wiki")
    done = tokmill(tmp_path, "normalize", "wiki", "--format", "wikipedia", "--out", "out", "--json")
    assert json.loads(done.stdout)["docs"] == 3, done.stderr
    recipe = {"name": "r", "sources": [{"name": "w", "files": "wiki", "wikipedia": {}}]}
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(recipe))
    run = tokmill(tmp_path, "run", "r.yaml", "--until", "ingest", "--json")
    assert run.returncode == 0, run.stdout


def test_one_config_of_several_sources_becomes_a_recipe_with_its_directory(home: Path) -> None:
    sources = [{"name": "web", "path": "a.jsonl"}, {"name": "books", "path": "b.jsonl"}]
    config = {"outputs": {"normalized_dir": "data/normalized"}, "sources": sources}
    (home / "sources.yaml").write_text(yaml.safe_dump(config))
    made = tokmill(home, "recipe", "import", "sources.yaml", "recipe.yaml")
    assert made.returncode == 0, made.stderr
    assert "tokmill run recipe.yaml --out data/normalized" in made.stdout + made.stderr
    recipe = yaml.safe_load((home / "recipe.yaml").read_text())
    assert [source["name"] for source in recipe["sources"]] == ["web", "books"]


def test_a_mixture_may_say_text_column_and_help_knows_its_keys(home: Path) -> None:
    records = [{"body": prose(n), "text": "not this"} for n in range(40)]
    (home / "c.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    (home / "m.yaml").write_text("datasets: [{name: c, files: c.jsonl, text_column: body}]")
    train = ("tokenizer", "train", "--manifest", "m.yaml", "--vocab-size", "300", "--model", "byte_bpe")
    made = tokmill(home, *train, "--out", "tok")
    assert made.returncode == 0, made.stderr
    cached = tokmill(home, "encode", "m.yaml", "--tokenizer", "tok", "--out", "-")
    lines = [json.loads(line) for line in cached.stdout.splitlines()]
    assert len(lines) == 40
    assert min(len(line["input_ids"]) for line in lines) > 20
    (home / "m.yaml").write_text("datasets: [{name: c, files: c.jsonl, text_column: body, text_field: text}]")
    assert "text_column" in tokmill(home, *train, "--out", "other").stderr
    told = typed_elsewhere("help", "max_records").stdout
    assert "key of a mixture file" in told
    assert "documents, from the beginning" in told
