"""A selection says by itself what its texts are and how they will be divided,
and builds go by it wherever it lies."""

from __future__ import annotations

import hashlib
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from mill import SHARED, tokmill, write_problems

O200K = SHARED / "data" / "tokenizers" / "tiktoken" / "o200k_base.tiktoken"


def run(*arguments: str | Path) -> dict[str, Any]:
    done = tokmill(*arguments, "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    report: dict[str, Any] = json.loads(done.stdout)
    return report


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus on a volume, and in a repository its manifest, a selection of one shard, and a tokenizer."""
    directory = tmp_path_factory.mktemp("shelf")
    records = [
        json.loads(line) for line in write_problems(directory / "p.jsonl", 4000).read_text().splitlines()
    ]
    lines = [
        json.dumps({"id": f"p{n}", "text": f"{r['question']} {r['answer']}", "language": "en"})
        for n, r in enumerate(records)
    ]
    (directory / "texts.jsonl").write_text("\n".join(lines) + "\n")
    made = run(
        *("materialize", "files", directory / "texts.jsonl", "--name", "texts", "--where", "language=en"),
        *("--unicode", "NFC", "--out", directory / "volume", "--shard-megabytes", "1"),
    )
    repository = directory / "repository"
    repository.mkdir()
    shutil.move(made["manifest"], repository / "texts.json")
    run(
        *("select", repository / "texts.json", "--shards", "1", "--seed", "3", "--valid-fraction", "0.10"),
        *("--root", directory / "volume", "--out", repository / "some.json"),
    )
    (directory / "m.yaml").write_text("datasets: [{name: texts, files: texts.jsonl}]\n")
    options = ("--model", "byte_bpe", "--vocab-size", "300", "--out", directory / "tok")
    run("tokenizer", "train", "--manifest", directory / "m.yaml", *options)
    return directory


def documents_of(shelf: Path) -> list[dict[str, Any]]:
    (shard,) = json.loads((shelf / "repository/some.json").read_bytes())["shards"]
    with zstandard.ZstdDecompressor().stream_reader(
        (shelf / "volume" / shard["path"]).read_bytes()
    ) as reader:
        return [json.loads(line) for line in reader.readall().splitlines()]


def sequences_in(index: Path) -> int:
    """Of a Megatron .idx: magic, version, dtype, then how many."""
    head = index.read_bytes()[:34]
    assert head[:9] == b"MMIDIDX\x00\x00"
    return int(struct.unpack("<Q", head[18:26])[0])


def test_a_selection_carries_its_parent_split_rule_normalization_and_language(shelf: Path) -> None:
    about = json.loads((shelf / "repository/some.json").read_bytes())["about"]
    parent = shelf / "repository/texts.json"
    whole = json.loads(parent.read_bytes())
    assert about["of"] == {
        "kind": "container",
        "digest": whole["digest"],
        "shards": len(whole["shards"]),
        "name": "texts.json",
        "sha256": hashlib.sha256(parent.read_bytes()).hexdigest(),
    }
    assert about["split"] == {
        "method": "hash",
        "by": "document",
        "valid_fraction": "0.1",
        "test_fraction": "0",
    }
    assert about["normalization"]["unicode"] == "NFC"
    assert about["language"] == {
        "asked": {"language": "en"},
        "applied": {"language": True},
        "english_filter_applied": True,
    }
    fewer = shelf / "fewer.json"
    run(
        *(
            "select",
            shelf / "repository/some.json",
            "--rows",
            "5",
            "--root",
            shelf / "volume",
            "--out",
            fewer,
        ),
    )
    inherited = json.loads(fewer.read_bytes())["about"]
    assert {key: inherited[key] for key in ("split", "normalization", "language")} == {
        key: about[key] for key in ("split", "normalization", "language")
    }
    assert inherited["of"]["name"] == "some.json"


def test_a_build_finds_corpora_by_its_root_and_holds_out_what_the_selection_says(
    shelf: Path, tmp_path: Path
) -> None:
    command = (
        "build",
        "megatron",
        "--manifest",
        shelf / "repository/some.json",
        "--out",
        tmp_path / "mega",
    )
    model = ("--tokenizer", shelf / "tok/tokenizer.json")
    lost = tokmill(*command, *model)
    assert (lost.returncode, "--root" in lost.stderr) == (1, True)
    run(*command, *model, "--root", shelf / "volume")
    ids = [document["doc_id"] for document in documents_of(shelf)]
    held_out = sum(
        int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") * 10 < 1 << 64 for name in ids
    )
    assert 0 < held_out < len(ids) / 5
    assert sequences_in(tmp_path / "mega/valid/tokens.idx") == held_out
    assert sequences_in(tmp_path / "mega/train/tokens.idx") == len(ids) - held_out
    other = tokmill(*command, *model, "--root", shelf / "volume", "--valid-fraction", "0.2")
    assert other.returncode == 1
    assert "made for valid_fraction 0.1, not 0.2" in other.stderr


def test_pack_and_encode_take_the_root_too(shelf: Path, tmp_path: Path) -> None:
    manifest, volume = shelf / "repository/some.json", ("--root", shelf / "volume")
    model = shelf / "tok/tokenizer.json"
    rows = ("--tokenizer", model, "--length", "64", "--out", tmp_path / "rows")
    assert run("pack", "--manifest", manifest, *rows, *volume)["counts"]["in"] == len(documents_of(shelf))
    run("encode", manifest, "--tokenizer", model, "--out", tmp_path / "cache", *volume)
    lengths = [
        np.load(part)["lengths"] for part in sorted((tmp_path / "cache/token_cache").glob("part-*.npz"))
    ]
    assert sum(map(len, lengths)) == len(documents_of(shelf))
    wrong = tokmill("encode", shelf / "m.yaml", "--tokenizer", model, "--out", tmp_path / "x", *volume)
    assert (wrong.returncode, "give no root" in wrong.stderr) == (1, True)


def test_a_share_that_is_none_is_refused_when_selecting(shelf: Path) -> None:
    for share in ("1", "-0.1", "a tenth"):
        refused = tokmill(
            *("select", shelf / "repository/texts.json", "--shards", "1", "--root", shelf / "volume"),
            *("--valid-fraction", share, "--out", shelf / "never.json"),
        )
        assert (refused.returncode, "--valid-fraction" in refused.stderr) == (1, True)
    assert not (shelf / "never.json").exists()


@pytest.mark.skipif(not O200K.exists(), reason="no o200k_base.tiktoken here")
def test_the_ranks_of_o200k_have_201088_ids_as_harmony(shelf: Path, tmp_path: Path) -> None:
    made = run(
        *("build", "megatron", "--manifest", shelf / "repository/some.json", "--root", shelf / "volume"),
        *("--tokenizer", O200K, "--encoding", "o200k_harmony", "--out", tmp_path / "mega"),
    )
    assert made["facts"]["tokenizer"]["vocab_size"] == 201_088
    assert made["facts"]["tokenizer"]["encoding"] == "o200k_harmony"
