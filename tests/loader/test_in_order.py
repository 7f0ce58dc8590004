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
        # a pair of megatron says nothing of itself (docs/loader.md)
        assert open_dataset(tmp_path / split).is_in_order == (format != "megatron")
    copied = open_dataset(tmp_path / "train")
    if format != "megatron":
        assert Batches(copied, 4).order.shuffle == "none"
        first = next(iter(Batches(copied, 1)))["tokens"][0]
        assert first.tolist() == copied[0]["ids"].tolist()
    shutil.copytree(old / "build" / format / "train", tmp_path / "old")
    assert Batches(open_dataset(tmp_path / "old"), 4).order.shuffle == "epoch"


@pytest.mark.parametrize("format", [name for name in FORMATS if name != "megatron"])
def test_only_the_rest_of_a_run_says_so(runs: tuple[Path, Path], format: str) -> None:
    name = DESCRIPTION.get(format, "meta.json")
    old, rest = (json.loads((run / "build" / format / "train" / name).read_text()) for run in runs)
    assert rest["is_in_order"] is True
    assert "is_in_order" not in old
    assert (
        "is_in_order" not in json.loads((runs[0] / "build" / format / "manifest.json").read_text())["config"]
    )
