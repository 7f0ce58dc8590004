"""The rest of a run is to be seen as it lies, wherever its splits are copied to."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from mill import small_corpus
from tokmill.loader import Batches, open_dataset

# mds, litdata and levanter too: what they bring of their own is written by us
FORMATS = (
    *("memmap", "npy", "parquet", "nanogpt", "llmc", "olmo", "nanotron", "mds", "litdata", "arrow"),
    *("levanter", "token_cache", "megatron"),
)
BUILDS: list[dict[str, Any]] = [{"name": name, "format": name} for name in FORMATS]
DESCRIPTION = {"token_cache": "ENCODE.meta.json"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One, and its rest."""
    directory = tmp_path_factory.mktemp("order")
    recipe = small_corpus(directory / "old", problems=20, builds=BUILDS)
    old = mill.run(recipe, workers=1).out
    state = Batches(open_dataset(old / "build/memmap", "train"), 4, 1).state_dict()
    recipe = small_corpus(directory / "new", problems=20, builds=BUILDS, mixture={"tokens": 3000})
    mill.continue_(
        old / "build/memmap", at={**state, "position": 8}, recipe=recipe, out=directory / "rest", workers=1
    )
    return old, directory / "rest"


@pytest.mark.parametrize("format", FORMATS)
def test_a_split_that_is_copied_alone_is_not_shuffled(
    runs: tuple[Path, Path], format: str, tmp_path: Path
) -> None:
    old, rest = runs
    for split in ("train", "valid"):
        shutil.copytree(rest / "build" / format / split, tmp_path / split)
        assert open_dataset(rest / "build" / format, split).is_in_order
        assert open_dataset(tmp_path / split).is_in_order
    copied = open_dataset(tmp_path / "train")
    assert Batches(copied, 4).order.shuffle == "none"
    first = copied[0]["ids"].tolist()
    if copied.facts.seq_len is not None:
        assert next(iter(Batches(copied, 1)))["tokens"][0].tolist() == first
    shutil.copytree(old / "build" / format / "train", tmp_path / "old")
    assert Batches(open_dataset(tmp_path / "old"), 4).order.shuffle == "epoch"


@pytest.mark.parametrize("format", FORMATS)
def test_only_the_rest_of_a_run_says_so(runs: tuple[Path, Path], format: str) -> None:
    name = DESCRIPTION.get(format, "meta.json")
    paths = [run / "build" / format / "train" / name for run in runs]
    if format == "megatron":  # which has no description but this
        assert not paths[0].exists()
        assert json.loads(paths[1].read_text()) == {"format": "megatron", "is_in_order": True}
        assert "train/meta.json" in (runs[1] / "build/megatron/manifest.json").read_text()
        return
    old, rest = (json.loads(path.read_text()) for path in paths)
    assert rest["is_in_order"] is True
    assert "is_in_order" not in old
    assert (
        "is_in_order" not in json.loads((runs[0] / "build" / format / "manifest.json").read_text())["config"]
    )
