"""Arrays in a file: the same bytes, and every damage told."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokmill.errors import CorruptFile
from tokmill.scores.arrayfile import checked_arrays, load_arrays, write_arrays

ARRAYS = {"a": np.arange(5, dtype=np.uint16), "none": np.zeros((0, 3), np.int64), "b": np.ones((2, 3))}


def put(path: Path, header: bytes, body: bytes = b"", version: int = 1) -> Path:
    """A file by hand, with a right digest."""
    data = struct.pack("<8sII", b"tokmill\n", version, len(header)) + header + body
    path.write_bytes(data + hashlib.sha256(data).digest())
    return path


def test_what_was_written_is_read_and_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    written = write_arrays(tmp_path / "one", "toy", {"z": 1, "a": [2]}, ARRAYS)
    again = write_arrays(tmp_path / "two", "toy", {"a": [2], "z": 1}, ARRAYS)
    file = load_arrays(tmp_path / "one", "toy")
    assert written == again
    assert file.sha256 == written.sha256 == hashlib.sha256((tmp_path / "two").read_bytes()).hexdigest()
    assert json.loads(file.facts) == {"a": [2], "z": 1}
    for name, array in ARRAYS.items():
        assert file.arrays[name].tolist() == array.tolist()
        assert file.arrays[name].dtype == array.dtype
    with pytest.raises(CorruptFile, match="has arrays"):
        checked_arrays(file, tmp_path / "one", {"a": ("<u2", 1)})


def test_the_bytes_are_those_that_are_drawn(tmp_path: Path) -> None:
    write_arrays(tmp_path / "one", "toy", {"n": 1}, {"a": np.array([1, 2, 3], ">u2")})
    header = b'{"arrays":[["a","<u2",[3]]],"facts":{"n":1},"kind":"toy"}'
    header += b" " * (-len(header) % 8)
    expected = put(tmp_path / "by-hand", header, b"\1\0\2\0\3\0\0\0").read_bytes()
    assert (tmp_path / "one").read_bytes() == expected


def test_a_cut_at_any_byte_and_a_flip_of_any_byte_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "one"
    write_arrays(path, "toy", {}, ARRAYS)
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place])
        with pytest.raises(CorruptFile, match="one: no toy file"):
            load_arrays(path, "toy")
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(CorruptFile, match="one: no toy file"):
            load_arrays(path, "toy")


@pytest.mark.parametrize(
    ("arrays", "body", "why"),
    [
        ([["a", "<u2", [4]]], b"", "more than it has"),
        ([["a", "<u8", [1 << 62, 4]]], bytes(8), "more than it has"),
        ([["a", "<u2", [4]]], bytes(16), "more than it tells of"),
        ([["a", "|O", [1]]], bytes(8), "an array a"),
        ([["a", "<u2", [-4]]], bytes(8), "an array a"),
        ([["a", "<u8", [1]], ["a", "<u8", [1]]], bytes(16), "an array a"),
        ([["a", "<u8"]], bytes(8), "header"),
    ],
)
def test_a_header_that_lies_is_an_error_though_the_digest_is_right(
    tmp_path: Path, arrays: list[Any], body: bytes, why: str
) -> None:
    header = json.dumps({"kind": "toy", "facts": {}, "arrays": arrays}).encode()
    path = put(tmp_path / "lies", header + b" " * (-len(header) % 8), body)
    with pytest.raises(CorruptFile, match=why):
        load_arrays(path, "toy")


def test_another_kind_another_version_and_a_pickle_are_errors(tmp_path: Path) -> None:
    write_arrays(tmp_path / "other", "other", {}, {})
    put(tmp_path / "later", b"{}", version=2)
    (tmp_path / "pickle").write_bytes(b"\x80\x04\x95" + bytes(100))
    for name, why in (
        ("other", "a other file"),
        ("later", "version 2"),
        ("pickle", "begins otherwise"),
    ):
        with pytest.raises(CorruptFile, match=why):
            load_arrays(tmp_path / name, "toy")


def test_a_type_that_no_file_has_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_arrays(tmp_path / "one", "toy", {}, {"a": np.array(["text"])})
    assert not list(tmp_path.iterdir())
