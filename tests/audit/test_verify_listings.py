"""What commands without a recipe write is proven too:
corpora, selections, token caches, samples, cleaned shards."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokmill as mill
from mill import tokmill, write_problems
from written import json_sha256

TEMPLATE = "{question} {answer}"


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


DAMAGES: list[Callable[[Path], None]] = [flip, cut, Path.unlink]


def run(*arguments: str | Path) -> dict[str, Any]:
    done = tokmill(*arguments, "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def verify(*arguments: str | Path) -> tuple[int, dict[str, Any]]:
    done = tokmill("verify", *arguments, "--json")
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def problems_of(*arguments: str | Path) -> list[tuple[str, str]]:
    status, report = verify(*arguments)
    assert (status == 0) is (report["problems"] == [])
    return [(problem["where"], problem["what"]) for problem in report["problems"]]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of several shards and a selection of two of them, a sample, its tokens, and cleaned shards."""
    directory = tmp_path_factory.mktemp("shelf")
    problems = write_problems(directory / "problems.jsonl", 5000)
    made = run(
        *("materialize", "files", problems, "--name", "org/problems", "--template", TEMPLATE),
        *("--out", directory / "root", "--shard-megabytes", "1"),
    )
    manifests = directory / "root/manifests"
    Path(made["manifest"]).rename(manifests / "problems.json")
    run(
        "select", manifests / "problems.json", "--shards", "2", "--seed", "7", "--out", manifests / "two.json"
    )
    sizes = {"train": 30, "valid": 10}
    sample = mill.materialize_sample(
        problems, out=directory / "sample", k=40, seed=1, splits=sizes, template="{question} {answer}"
    ).path
    (directory / "mixture.yaml").write_text("datasets: [{name: sample, files: sample/manifest.jsonl}]\n")
    train = ("tokenizer", "train", "--manifest", directory / "mixture.yaml", "--vocab-size", "400")
    run(*train, "--model", "bpe", "--out", directory / "tok")
    (model,) = (directory / "tok").glob("*.model")
    mill.encode(sample, tokenizer=model, out=directory / "cache", workers=1)
    run("normalize", sample, "--out", directory / "clean")
    return directory


@pytest.fixture
def copy(shelf: Path, tmp_path: Path) -> Path:
    return shutil.copytree(shelf, tmp_path / "shelf")


def shards_in(manifest: Path) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = json.loads(manifest.read_bytes())["shards"]
    return listed


# -- corpora and selections ------------------------------------------------------------------------


def test_a_materialized_root_is_proven_and_counted(shelf: Path) -> None:
    status, report = verify(shelf / "root")
    assert (status, report["problems"]) == (0, [])
    shards = list((shelf / "root/corpora").rglob("*.zst"))
    assert (report["artifacts"], report["files"]) == (2, len(shards))  # no shard is counted twice
    assert report["bytes"] == sum(path.stat().st_size for path in shards)


@pytest.mark.parametrize("name", ["problems.json", "two.json"])
def test_one_manifest_is_proven_with_the_shards_that_it_lists(copy: Path, name: str) -> None:
    manifest = copy / "root/manifests" / name
    assert problems_of(manifest) == []
    listed = {shard["path"] for shard in shards_in(manifest)}
    for path in sorted((copy / "root/corpora").rglob("*.zst")):
        whole = path.read_bytes()
        flip(path)
        place = path.relative_to(copy / "root").as_posix()
        assert len(problems_of(manifest)) == (place in listed)
        path.write_bytes(whole)


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_damaged_shard_is_named(copy: Path, damage: Callable[[Path], None]) -> None:
    path = sorted((copy / "root/corpora").rglob("*.zst"))[1]
    damage(path)
    assert [where for where, _ in problems_of(copy / "root")] == [path.relative_to(copy / "root").as_posix()]


def test_what_no_manifest_lists_is_an_extra_file_and_what_is_not_ours_is_left_alone(copy: Path) -> None:
    (copy / "root/README.md").write_text("ours")
    assert problems_of(copy / "root") == []
    (copy / "root/corpora/stranger.jsonl.zst").write_bytes(b"x")
    assert problems_of(copy / "root") == [
        ("corpora/stranger.jsonl.zst", "extra file: no manifest lists it"),
    ]


def test_a_manifest_that_lies_elsewhere_is_proven_by_its_root(copy: Path) -> None:
    committed = copy / "repository/two.json"
    committed.parent.mkdir()
    (copy / "root/manifests/two.json").rename(committed)
    refused = tokmill("verify", committed)
    assert refused.returncode == 1
    assert "--root" in refused.stderr
    assert problems_of(committed, "--root", copy / "root") == []
    assert problems_of(committed.parent, "--root", copy / "root") == []
    listed = shards_in(committed)
    flip(copy / "root" / listed[0]["path"])
    found = problems_of(committed, "--root", copy / "root")
    assert found == [(str(copy / "root" / listed[0]["path"]), found[0][1])]


def test_an_edited_manifest_is_found_and_so_is_one_that_was_sealed_again(copy: Path) -> None:
    manifest = copy / "root/manifests/problems.json"
    whole = manifest.read_text()
    body = json.loads(whole)
    body["shards"][0]["rows"] += 1
    body["invariants"]["rows"] += 1
    manifest.write_text(json.dumps(body))
    assert any("edited" in what for _, what in problems_of(copy / "root"))
    del body["digest"]
    manifest.write_text(json.dumps({**body, "digest": json_sha256(body)}))
    ((where, what),) = problems_of(manifest)
    assert where == str(copy / "root" / body["shards"][0]["path"])
    assert "documents and other content than the manifest says" in what


def test_a_selection_that_lists_what_its_parent_does_not_is_found(copy: Path) -> None:
    """A shard of the right bytes under another name, in a manifest that was sealed again."""
    manifest = copy / "root/manifests/two.json"
    body = json.loads(manifest.read_text())
    del body["digest"]
    first = body["shards"][0]
    moved = f"corpora/{Path(first['path']).name}"
    shutil.copy(copy / "root" / first["path"], copy / "root" / moved)
    first["path"] = moved
    manifest.write_text(json.dumps({**body, "digest": json_sha256(body)}))
    assert problems_of(copy / "root") == [
        ("manifests/two.json", f"lists {moved}, which problems.json, of which it is, does not")
    ]


def test_a_selection_is_proven_where_its_parent_was_replaced_and_its_shards_are_there(copy: Path) -> None:
    parent = copy / "root/manifests/problems.json"
    body = json.loads(parent.read_text())
    del body["digest"]
    body["about"]["nul_chars"] = 1
    parent.write_text(json.dumps({**body, "digest": json_sha256(body)}))
    assert problems_of(copy / "root") == []


def test_a_command_that_was_cut_short_is_told_apart(copy: Path) -> None:
    left = copy / "root/.materialize-org--problems/run/ingest/manifest.json"
    left.parent.mkdir(parents=True)
    left.write_text("{")
    assert [where for where, _ in problems_of(copy / "root")] == [".materialize-org--problems"]


# -- token caches ----------------------------------------------------------------------------------


def test_a_token_cache_is_proven(shelf: Path) -> None:
    status, report = verify(shelf / "cache")
    assert (status, report["problems"]) == (0, [])
    parts = sorted((shelf / "cache/token_cache").glob("*.npz"))
    assert (report["artifacts"], report["files"]) == (1, len(parts))
    assert report["bytes"] == sum(part.stat().st_size for part in parts)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_or_missing_part_is_named(copy: Path, damage: Callable[[Path], None]) -> None:
    damage(copy / "cache/token_cache/part-00000.npz")
    assert [where for where, _ in problems_of(copy / "cache")] == ["token_cache/part-00000.npz"]


def test_an_extra_part_and_a_description_that_lies_are_found(copy: Path) -> None:
    part = copy / "cache/token_cache/part-00000.npz"
    shutil.copy(part, part.with_name("part-00001.npz"))
    assert problems_of(copy / "cache") == [
        ("token_cache/part-00001.npz", "extra file: no manifest lists it"),
    ]
    part.with_name("part-00001.npz").unlink()
    meta = copy / "cache/ENCODE.meta.json"
    told = json.loads(meta.read_text())
    with np.load(part) as arrays:
        assert len(arrays["ids"]) == told["tokens"]
        top = int(arrays["ids"].max())
    meta.write_text(json.dumps({**told, "vocab_size": top}))
    assert problems_of(copy / "cache") == [
        ("ENCODE.meta.json", f"a part has ids outside of the vocabulary of {top:,}")
    ]
    meta.write_text(json.dumps({**told, "tokens": told["tokens"] + 1}))
    assert [where for where, _ in problems_of(copy / "cache")] == ["ENCODE.meta.json"]
    meta.write_text("{")
    assert [where for where, _ in problems_of(copy / "cache")] == ["ENCODE.meta.json"]


# -- samples, cleaned shards, and everything at once -----------------------------------------------


def test_a_sample_is_proven_by_its_description(copy: Path) -> None:
    assert problems_of(copy / "sample") == []
    lines = copy / "sample/manifest.jsonl"
    meta = copy / "sample/MANIFEST.meta.json"
    moved = lines.read_bytes().replace(b'"split": "train"', b'"split": "valid"', 1)
    lines.write_bytes(moved)
    assert [where for where, _ in problems_of(copy / "sample")] == ["manifest.jsonl"]
    told = json.loads(meta.read_text())
    meta.write_text(json.dumps({**told, "sha256": hashlib.sha256(moved).hexdigest()}))
    (problem,) = problems_of(copy / "sample")
    assert "{'train': 30, 'valid': 10}" in problem[1]


def test_shards_of_normalize_are_proven_by_their_manifests(copy: Path) -> None:
    assert problems_of(copy / "clean") == []
    (shard,) = (path for path in (copy / "clean").glob("*.zst") if path.name != "decisions.jsonl.zst")
    flip(shard)
    assert [where for where, _ in problems_of(copy / "clean")] == [shard.name]
    cut(copy / "clean/decisions.jsonl.zst")
    assert [where for where, _ in problems_of(copy / "clean")] == [shard.name]


def test_a_directory_of_all_kinds_is_proven_at_once(shelf: Path, copy: Path) -> None:
    status, report = verify(shelf)
    assert (status, report["problems"]) == (0, [])
    assert report["artifacts"] == 5
    assert verify(copy)[1]["digest"] == report["digest"]
    lines = (copy / "sample/manifest.jsonl").read_bytes()
    (copy / "sample/manifest.jsonl").write_bytes(lines + b"\n")
    assert [where for where, _ in problems_of(copy)] == ["sample/manifest.jsonl"]


def test_what_cannot_be_proven_is_told_what_can(shelf: Path, tmp_path: Path) -> None:
    ((where, what),) = problems_of(shelf / "tok")
    assert where == "."
    for name in ("manifest.json", "manifests/*.json", "ENCODE.meta.json", "MANIFEST.meta.json"):
        assert name in what
    (tmp_path / "notes.json").write_text("{}")
    refused = tokmill("verify", tmp_path / "notes.json")
    assert (refused.returncode, "not a manifest of a snapshot" in refused.stderr) == (1, True)
    assert tokmill("verify", tmp_path / "nowhere").returncode == 1
    for name in ("cache/ENCODE.meta.json", "sample/manifest.jsonl", "sample/MANIFEST.meta.json"):
        assert problems_of(shelf / name) == []  # the directory is meant
