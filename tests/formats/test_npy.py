"""Shards of rows: golden bytes, NumPy alone as the reader, rebuilds and damage."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.errors import CorruptFile, InputError, VocabTooLarge
from tokmill.formats.npy import NpyRows, npy_header, write_npy


def write_tiny(directory: Path, n_seqs: int = 3) -> Path:
    rows = np.arange(2 * n_seqs).reshape(n_seqs, 2)
    write_npy(directory, [rows], n_seqs=n_seqs, seq_len=2, rows_per_shard=2, meta={"eos_id": 7})
    return directory


def numpy_alone(directory: Path) -> list[np.ndarray]:
    return [np.load(path) for path in sorted(directory.glob("*.npy"))]


def test_a_tiny_build_has_exactly_these_bytes(tmp_path):
    write_tiny(tmp_path)
    facts = "{'descr': '<i4', 'fortran_order': False, 'shape': (%d, 2), }"
    header = {n: b"\x93NUMPY\x01\x00\x76\x00" + (facts % n).encode().ljust(117) + b"\n" for n in (1, 2)}
    golden = {
        "shard_00000.npy": header[2] + bytes.fromhex("00000000 01000000 02000000 03000000"),
        "shard_00001.npy": header[1] + bytes.fromhex("04000000 05000000"),
        "meta.json": b'{\n  "dtype": "int32",\n  "eos_id": 7,\n  "n_seqs": 3,\n  "n_shards": 2,\n'
        b'  "rows_per_shard": 2,\n  "seq_len": 2\n}\n',
    }
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == golden


@pytest.mark.parametrize("shape", [(0, 5), (1, 2), (8192, 2048), (10**9, 131072), (10**12, 10**6)])
def test_headers_are_those_of_numpy(shape):
    theirs = io.BytesIO()
    np.lib.format.write_array_header_1_0(theirs, {"descr": "<i4", "fortran_order": False, "shape": shape})
    assert npy_header(shape) == theirs.getvalue()


@given(
    n_seqs=st.integers(0, 20),
    seq_len=st.integers(1, 5),
    rows_per_shard=st.integers(1, 7),
    chunk=st.integers(1, 30),
)
@settings(deadline=None, max_examples=60)
def test_what_is_written_is_read_by_ours_and_by_numpy_alone(
    n_seqs, seq_len, rows_per_shard, chunk, tmp_path_factory
):
    directory = tmp_path_factory.mktemp("npy") / "rows"
    flat = np.arange(n_seqs * seq_len)
    pieces = [flat[start : start + chunk] for start in range(0, len(flat), chunk)]
    written = write_npy(
        directory, pieces, n_seqs=n_seqs, seq_len=seq_len, rows_per_shard=rows_per_shard, meta={}
    )
    assert {name: receipt.bytes for name, receipt in written.items()} == {
        path.name: path.stat().st_size for path in directory.iterdir()
    }
    expected = flat.reshape(n_seqs, seq_len)
    theirs, ours = numpy_alone(directory), NpyRows(directory)
    assert all(shard.dtype == np.int32 and len(shard) == rows_per_shard for shard in theirs[:-1])
    nothing = np.empty((0, seq_len))
    assert np.array_equal(np.concatenate([nothing, *theirs]), expected)
    mapped = [ours.shard(number) for number in range(ours.n_shards)]
    assert np.array_equal(np.concatenate([nothing, *mapped]), expected)
    assert (len(ours), ours.seq_len, ours.n_shards) == (n_seqs, seq_len, len(theirs))


def test_a_shorter_rebuild_leaves_no_stale_shard(tmp_path):
    write_tiny(tmp_path, n_seqs=9)
    assert len(numpy_alone(tmp_path)) == 5
    write_tiny(tmp_path, n_seqs=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["meta.json", "shard_00000.npy"]
    write_tiny(tmp_path, n_seqs=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["meta.json"]
    assert len(NpyRows(tmp_path)) == 0


def test_a_build_that_fails_halfway_does_not_exist(tmp_path):
    write_tiny(tmp_path)

    def rows():
        yield np.arange(5)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_npy(tmp_path, rows(), n_seqs=3, seq_len=2, rows_per_shard=2, meta={})
    with pytest.raises(
        InputError, match=r"meta.json: no such file\n  next: give the directory of a finished npy build"
    ):
        NpyRows(tmp_path)
    assert not list(tmp_path.glob(".tmp-*"))


@pytest.mark.parametrize("count", [5, 7])
def test_too_few_or_too_many_ids_are_our_bug(tmp_path, count):
    with pytest.raises(AssertionError, match=r"1 ids are missing|more ids came than 3 rows of 2"):
        write_npy(tmp_path, [np.arange(count)], n_seqs=3, seq_len=2, meta={})


def test_an_id_that_does_not_fit_is_an_error(tmp_path):
    with pytest.raises(VocabTooLarge, match="id 2,147,483,648 does not fit int32"):
        write_npy(tmp_path, [np.array([0, 1 << 31])], n_seqs=1, seq_len=2, meta={})


def test_shards_are_read_only_maps(tmp_path):
    shard = NpyRows(write_tiny(tmp_path)).shard(0)
    assert isinstance(shard, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        shard[0, 0] = 1


def test_damage_is_an_error_that_names_the_file(tmp_path):
    shard = write_tiny(tmp_path) / "shard_00001.npy"
    whole = shard.read_bytes()
    for damaged, message in (
        (whole[:-1], "135 bytes, but its header describes 136"),
        (whole + b"\0", "137 bytes, but"),
        (whole[:100], "does not begin as 1 rows of 2 int32 do"),
        (whole.replace(b"<i4", b"<i8"), "does not begin as"),
        (whole.replace(b"(1, 2)", b"(2, 2)"), "does not begin as"),
    ):
        shard.write_bytes(damaged)
        with pytest.raises(CorruptFile, match=rf"shard_00001.npy: {message}(.|\n)*next: copy the file again"):
            NpyRows(tmp_path).shard(1)
    shard.unlink()
    with pytest.raises(CorruptFile, match=r"shard_00001.npy: no such file, and meta.json tells of 2 shards"):
        NpyRows(tmp_path).shard(1)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("n_seqs", -1, "not the description"),
        ("seq_len", None, "not the description"),
        ("n_shards", 7, "7 shards cannot hold 3 rows"),
    ],
)
def test_a_description_that_cannot_be_is_an_error(tmp_path, key, value, message):
    path = write_tiny(tmp_path) / "meta.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(CorruptFile, match=rf"meta.json: {message}"):
        NpyRows(tmp_path)
