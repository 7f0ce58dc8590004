"""A file that is no model is an error with a sentence."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokmill.errors import CorruptFile
from tokmill.sources.extract.model import load_model

SHIPPED = files("tokmill.sources.extract").joinpath("model.npz")


def arrays() -> dict[str, Any]:
    with SHIPPED.open("rb") as file, np.load(file, allow_pickle=False) as loaded:
        return {name: loaded[name] for name in loaded.files}


def write(path: Path, **changed: Any) -> Path:
    np.savez(path, **{name: value for name, value in (arrays() | changed).items() if value is not None})
    return path


def test_the_shipped_model_loads_by_its_path_too(tmp_path: Path) -> None:
    assert load_model(write(tmp_path / "m.npz")).threshold == load_model().threshold


@pytest.mark.parametrize("part", ["first_words", "second_leaves", "class_hashes", "threshold"])
def test_a_model_without_a_part_is_told_with_its_name(tmp_path: Path, part: str) -> None:
    with pytest.raises(CorruptFile, match=f"no model of web pages: it has no .*{part}"):
        load_model(write(tmp_path / "m.npz", **{part: None}))


@pytest.mark.parametrize(
    "part", ["first_words", "first_values", "second_nodes", "second_leaves", "class_odds", "text_hashes"]
)
def test_a_model_of_wrong_sizes_is_refused(tmp_path: Path, part: str) -> None:
    with pytest.raises(CorruptFile, match=r"no model of web pages: .*(not there|shorter|longer)"):
        load_model(write(tmp_path / "m.npz", **{part: arrays()[part][:-1]}))


@pytest.mark.parametrize("content", [b"", b"PK\3\4", b"text", b"\x93NUMPY\1\0"])
def test_a_file_that_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.npz"
    path.write_bytes(content)
    with pytest.raises(CorruptFile, match="no model of web pages") as caught:
        load_model(path)
    assert caught.value.where == str(path)


def test_every_cut_of_a_model_is_refused(tmp_path: Path) -> None:
    whole, path = SHIPPED.read_bytes(), tmp_path / "m.npz"
    for cut in range(0, len(whole), 40_000):
        path.write_bytes(whole[:cut])
        load_model.cache_clear()
        with pytest.raises(CorruptFile):
            load_model(path)
