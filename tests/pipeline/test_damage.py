"""Damage has a way out: `verify` names the command that mends, and `run` makes the damaged step again,
and no other."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

import tokmill
from tokmill.artifacts.directory import damaged_file, open_artifact

RECIPE = {
    "name": "damage",
    "sources": [{"name": "notes", "files": "notes.jsonl"}],
    "split": {"valid_fraction": 0.1},
    "tokenizer": {"train": {"vocab_size": 300}, "eos": "<eos>"},
    "pack": {"length": 16},
    "builds": [{"name": "rows", "format": "memmap"}],
}
DAMAGED = {
    "ingest/notes": "documents-*.parquet",
    "clean/notes": "marks-*.parquet",
    "tokens": "train/*/*.bin",
    "build/rows": "train/input_ids.mmap",
}


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"id": f"n{n}", "text": f"Of mill {n} and its {n * n} sacks."}) for n in range(80)]
    (tmp_path / "notes.jsonl").write_text("\n".join(lines), encoding="utf-8")
    tokmill.run(RECIPE, tmp_path / "out", workers=1)
    return tmp_path / "out"


def flip(path: Path) -> str:
    """One bit in the middle; the size stays. Returns the digest of before."""
    data = bytearray(path.read_bytes())
    digest = hashlib.sha256(data).hexdigest()
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    return digest


@pytest.mark.parametrize("step", DAMAGED)
@pytest.mark.parametrize("verify", [False, True])
def test_a_flipped_bit_is_noticed_and_only_that_step_is_made_again(
    out: Path, step: str, verify: bool
) -> None:
    path = next((out / step).glob(DAMAGED[step]))
    digest = flip(path)
    verified = tokmill.verify(out)
    assert not verified.ok
    assert f"`tokmill run RECIPE --out {out} --verify`" in verified.next
    result = tokmill.run(RECIPE, out, workers=1, verify=verify)
    assert result.ran == [step]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
    assert tokmill.verify(out).ok


@pytest.mark.parametrize("step", DAMAGED)
def test_a_missing_file_is_noticed_and_only_that_step_is_made_again(out: Path, step: str) -> None:
    path = next((out / step).glob(DAMAGED[step]))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.unlink()
    assert tokmill.run(RECIPE, out, workers=1).ran == [step]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
    assert tokmill.verify(out).ok


def test_what_is_too_large_to_read_each_time_is_read_when_asked_for(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokmill.pipeline.session.SAMPLED_BYTES", 0)
    flip(out / "build/rows/train/input_ids.mmap")
    assert tokmill.run(RECIPE, out, workers=1).ran == []
    assert tokmill.run(RECIPE, out, workers=1, verify=True).ran == ["build/rows"]
    assert tokmill.verify(out).ok


def test_no_file_is_too_large_for_the_sample(out: Path) -> None:
    damaged = out / "build/rows/train/input_ids.mmap"
    flip(damaged)
    artifact = open_artifact(out / "build/rows")
    assert artifact is not None
    drawn = [damaged_file(artifact, damaged.stat().st_size // 4) for _ in range(400)]
    assert set(drawn) == {None, "train/input_ids.mmap"}  # neither has a chance of 1 in 10**20 to be missing


def test_a_file_that_nobody_lists_is_not_mended_by_running(out: Path) -> None:
    (out / "build/rows/notes.txt").write_text("mine", encoding="utf-8")
    assert "move these files elsewhere" in tokmill.verify(out).next
