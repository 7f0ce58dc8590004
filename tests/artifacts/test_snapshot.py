"""A corpus that travels: shards with a manifest, chosen from, and read back only when every byte is right."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from mill import NOTES, tokmill, write_problems, write_recipe
from written import Json, ZstdFile, file_sha256, load_lines, load_manifest

TEMPLATE = "{question} {answer}"


def materialize(directory: Path, root: str = "root", *more: str) -> Path:
    """Of problems.jsonl below `directory`, in shards of a megabyte; the path of the manifest."""
    done = tokmill(
        *("materialize", "files", directory / "problems.jsonl", "--name", "org/problems"),
        *("--template", TEMPLATE, "--out", directory / root, "--shard-megabytes", "1", "--json", *more),
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return Path(json.loads(done.stdout)["manifest"])


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("shelf")
    write_problems(directory / "problems.jsonl", 9000)
    materialize(directory)
    return directory


@pytest.fixture
def corpus(shelf: Path, tmp_path: Path) -> Path:
    shutil.copytree(shelf, tmp_path / "shelf")
    return tmp_path / "shelf"


def manifest_in(directory: Path) -> Path:
    (path,) = (directory / "root/manifests").glob("*.json")
    return path


def recipe_for(directory: Path, manifest: Path, **corpus: Any) -> Path:
    source = {"name": "problems", "corpus": {"manifest": str(manifest), **corpus}}
    return write_recipe(directory, sources=[source], tokenizer=None, builds=None)


def load_snapshot(path: Path) -> Json:
    found: Json = json.loads(path.read_bytes())
    return found


def test_shards_and_manifest_lie_where_the_layout_says(corpus: Path) -> None:
    path = manifest_in(corpus)
    container = load_snapshot(path)
    revision = container["revision"]
    assert path.name == f"org--problems_{revision}.json"
    folder = corpus / "root/corpora/org--problems" / revision
    files = sorted(folder.iterdir())
    assert [f"corpora/org--problems/{revision}/{f.name}" for f in files] == [
        shard["path"] for shard in container["shards"]
    ]
    assert len(files) > 1
    for file, shard in zip(files, container["shards"], strict=True):
        with ZstdFile(file) as plain:
            content = hashlib.sha256(plain.read()).hexdigest()
        assert (file_sha256(file), content) == (shard["sha256"], shard["content_sha256"])
    with (corpus / "problems.jsonl").open() as lines:
        expected = [TEMPLATE.format(**json.loads(line)) for line in lines]
    assert [record["text"] for file in files for record in load_lines(file)] == expected
    assert container["invariants"]["rows"] == len(expected)
    assert container["invariants"]["chars"] == sum(map(len, expected))
    assert container["invariants"]["tokens"] == sum(-(-len(text) // 4) for text in expected)
    assert not list((corpus / "root").glob(".*"))
    assert str(corpus) not in path.read_text()


def test_the_same_files_give_the_same_manifest_for_any_number_of_workers(corpus: Path) -> None:
    again = materialize(corpus, "again", "--workers", "3")
    assert again.read_bytes() == manifest_in(corpus).read_bytes()


def test_what_was_normalized_and_found_is_in_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "notes.jsonl").write_text(json.dumps({"text": NOTES, "lang": "en"}) + "\n")
    command = [
        *("materialize", "files", tmp_path / "notes.jsonl", "--name", "notes", "--out", tmp_path / "root"),
        *("--unicode", "NFC", "--where", "lang=en", "--json"),
    ]
    done = tokmill(*command)
    assert "max_nul_fraction" in done.stdout  # one NUL in so few characters is too many
    (tmp_path / "notes.jsonl").write_text(
        json.dumps({"text": NOTES * 50 + "x" * 40_000, "lang": "en"}) + "\n"
    )
    about = json.loads(tokmill(*command).stdout)["about"]
    assert about["nul_chars"] == 50
    assert about["normalization"]["unicode"] == "NFC"
    assert about["language"] == {
        "asked": {"lang": "en"},
        "applied": {"lang": True},
        "english_filter_applied": True,
    }


def test_a_recipe_reads_a_container_and_refuses_a_shard_with_another_byte(corpus: Path) -> None:
    recipe = recipe_for(corpus, manifest_in(corpus))
    result = mill.run(recipe, workers=1)
    assert result.artifacts["ingest/problems"].manifest.counts["kept"] == 9000
    shard = corpus / "root" / load_snapshot(manifest_in(corpus))["shards"][1]["path"]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    refused = tokmill("run", recipe)
    assert refused.returncode == 1
    assert "the manifest lists this shard with sha256" in refused.stderr
    assert shard.name in refused.stderr
    shard.unlink()
    assert "a shard of the snapshot is missing" in tokmill("run", recipe).stderr


def test_a_container_elsewhere_is_found_by_its_root(corpus: Path) -> None:
    committed = corpus / "committed.json"
    shutil.move(manifest_in(corpus), committed)
    assert "set `corpus.root`" in tokmill("run", recipe_for(corpus, committed)).stderr
    recipe = recipe_for(corpus, committed, root=str(corpus / "root"))
    assert tokmill("run", recipe, "--until", "ingest").returncode == 0


def test_an_edited_manifest_is_refused(corpus: Path) -> None:
    path = manifest_in(corpus)
    path.write_text(path.read_text().replace('"rows": 9000', '"rows": 9001'))
    refused = tokmill("run", recipe_for(corpus, path))
    assert refused.returncode == 1
    assert "it was edited" in refused.stderr
    path.write_text("[]")
    assert "not a manifest of a snapshot" in tokmill("select", path, "--out", corpus / "x.json").stderr


def test_a_selection_is_the_same_for_a_seed_and_holds_what_was_asked(corpus: Path) -> None:
    path = manifest_in(corpus)
    container = load_snapshot(path)
    half = container["invariants"]["tokens"] // 2
    chosen = []
    for number, seed in enumerate((7, 7, 8)):
        target = corpus / f"root/manifests/some-{number}.json"
        done = tokmill("select", path, "--tokens", str(half), "--seed", str(seed), "--out", target, "--json")
        assert done.returncode == 0, done.stdout
        chosen.append(load_snapshot(target))
    assert chosen[0] == chosen[1]
    assert chosen[0]["about"]["of"]["digest"] == container["digest"]
    for selection in chosen:
        assert half <= selection["invariants"]["tokens"] < container["invariants"]["tokens"]
        assert [s for s in container["shards"] if s in selection["shards"]] == selection["shards"]
    recipe = recipe_for(corpus, corpus / "root/manifests/some-0.json")
    assert tokmill("run", recipe, "--until", "ingest").returncode == 0
    kept = load_manifest(corpus / "out/small/ingest/problems").counts["kept"]
    assert kept == chosen[0]["invariants"]["rows"]


def test_a_selection_by_name_and_what_it_cannot_find(corpus: Path) -> None:
    path, target = manifest_in(corpus), corpus / "root/manifests/first.json"
    assert tokmill("select", path, "--shard", "*-00000.*", "--out", target).returncode == 0
    assert [Path(s["path"]).name for s in load_snapshot(target)["shards"]] == ["train-00000.jsonl.zst"]
    nothing = tokmill("select", path, "--shard", "valid-*", "--out", target)
    assert "none of 4 shards" in nothing.stderr
    too_many = tokmill("select", path, "--rows", "9001", "--out", target)
    assert "9,001 rows are requested, and the matching shards hold 9,000" in too_many.stderr
    shard = corpus / "root" / load_snapshot(path)["shards"][0]["path"]
    shard.write_bytes(shard.read_bytes() + b"x")
    assert "but it is" in tokmill("select", path, "--shards", "1", "--out", target).stderr
