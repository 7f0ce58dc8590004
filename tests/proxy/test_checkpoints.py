"""Weights on the disk: whole or not there, without a pickle, readable by others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tokmill.errors import CorruptFile
from tokmill.proxy.checkpoints import load_arrays, write_arrays

ARRAYS = {
    "b.weight": np.arange(12, dtype=np.float32).reshape(3, 4) / 7,
    "a.gain": np.array([1.5], np.float32),
    "losses": np.array([3.25, 1e-300], np.float64),
    "none": np.zeros((0, 4), np.float32),
}


def test_what_was_written_comes_back_with_its_notes(tmp_path: Path) -> None:
    write_arrays(tmp_path / "a", ARRAYS, {"steps": 3, "loader": {"seed": 2**62}})
    stored = load_arrays(tmp_path / "a")
    assert stored.notes == {"steps": 3, "loader": {"seed": 2**62}}
    assert set(stored.arrays) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert stored.arrays[name].dtype == array.dtype
        np.testing.assert_array_equal(stored.arrays[name], array)


def test_another_reader_of_the_format_finds_the_same(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    write_arrays(tmp_path / "a", ARRAYS, {"steps": 3})
    theirs = safetensors.load_file(tmp_path / "a")
    assert set(theirs) == set(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(theirs[name], array)
    safetensors.save_file({"x": ARRAYS["b.weight"]}, tmp_path / "b")
    np.testing.assert_array_equal(load_arrays(tmp_path / "b").arrays["x"], ARRAYS["b.weight"])


def test_a_file_that_is_cut_or_lies_is_told_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_arrays(path, ARRAYS, {})
    whole = path.read_bytes()
    for cut in (0, 4, 40, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(CorruptFile, match="trained again"):
            load_arrays(path)
    header = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])
    for lie in ({"data_offsets": [0, 1 << 40]}, {"shape": [3, 5]}, {"dtype": "PICKLE"}, {"data_offsets": 3}):
        told = json.dumps({**header, "b.weight": {**header["b.weight"], **lie}}).encode()
        path.write_bytes(len(told).to_bytes(8, "little") + told + bytes(1000))
        with pytest.raises(CorruptFile):
            load_arrays(path)
