"""Memmap rows: round trips, exact bytes, and damage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.errors import CorruptFile, InputError, VocabTooLarge
from tokmill.formats.memmap import MemmapRows, write_memmap

META = {
    "tokenizer_path": "tok.json",
    "tokenizer_sha256": "ab",
    "eos_id": 7,
    "created_at": None,
    "counts": {"b": 1, "a": 2},
}


def test_rows_and_their_description_have_exactly_these_bytes(tmp_path):
    rows = [np.array([1, 2, 3]), np.array([[4, 5]]), np.array([6, 65535, 8, 9, 10])]
    written = write_memmap(tmp_path, rows, seq_len=5, dtype="uint16", meta=META)
    assert (tmp_path / "input_ids.mmap").read_bytes() == bytes.fromhex(
        "0100020003000400050006 00ffff080009000a00"
    )
    assert (tmp_path / "meta.json").read_text() == (
        "{\n"
        '  "counts": {\n'
        '    "a": 2,\n'
        '    "b": 1\n'
        "  },\n"
        '  "created_at": null,\n'
        '  "dtype": "uint16",\n'
        '  "eos_id": 7,\n'
        '  "n_seqs": 2,\n'
        '  "seq_len": 5,\n'
        '  "tokenizer_path": "tok.json",\n'
        '  "tokenizer_sha256": "ab"\n'
        "}\n"
    )
    assert {name: receipt.bytes for name, receipt in written.items()} == {
        path.name: path.stat().st_size for path in tmp_path.iterdir()
    }


@given(
    ids=st.lists(st.integers(0, 65535), max_size=40),
    seq_len=st.integers(1, 6),
    dtype=st.sampled_from(["uint16", "int32"]),
    chunk=st.integers(1, 9),
)
@settings(deadline=None, max_examples=60)
def test_rows_come_back_as_they_went(ids, seq_len, dtype, chunk, tmp_path_factory):
    directory = tmp_path_factory.mktemp("rows")
    whole = np.array(ids[: len(ids) // seq_len * seq_len], dtype=np.int32)
    pieces = [whole[start : start + chunk] for start in range(0, len(whole), chunk)]
    write_memmap(directory, pieces, seq_len=seq_len, dtype=dtype, meta=META)
    raw = np.frombuffer((directory / "input_ids.mmap").read_bytes(), dtype=f"<{np.dtype(dtype).str[1:]}")
    assert raw.tolist() == whole.tolist()
    rows = MemmapRows(directory)
    assert rows.ids.shape == (len(whole) // seq_len, seq_len)
    assert rows.ids.dtype == np.dtype(dtype)
    assert rows.ids.reshape(-1).tolist() == whole.tolist()
    assert len(rows) == rows.meta["n_seqs"]
    assert rows.meta["counts"] == META["counts"]


@pytest.mark.parametrize("n_rows", [0, 1])
def test_rows_are_read_only_and_an_empty_build_is_a_build(tmp_path, n_rows):
    write_memmap(tmp_path, [np.zeros((n_rows, 4), dtype=np.int32)], seq_len=4, dtype="int32", meta=META)
    rows = MemmapRows(tmp_path)
    assert rows.ids.shape == (n_rows, 4)
    assert not rows.ids.flags.writeable


def test_a_row_outlives_what_opened_it(tmp_path):
    write_memmap(tmp_path, [np.arange(6)], seq_len=3, dtype="int32", meta=META)
    row = MemmapRows(tmp_path).ids[1]
    assert row.tolist() == [3, 4, 5]


def test_an_id_that_does_not_fit_is_an_error_and_leaves_no_file(tmp_path):
    with pytest.raises(
        VocabTooLarge, match=r"input_ids\.mmap: id 70,000 does not fit uint16\n  next: set `dtype: int32`"
    ):
        write_memmap(tmp_path, [np.array([1, 70_000])], seq_len=2, dtype="uint16", meta=META)
    assert list(tmp_path.iterdir()) == []


def test_half_a_row_is_our_bug_and_leaves_no_file(tmp_path):
    with pytest.raises(AssertionError, match="5 tokens are no whole rows of 2"):
        write_memmap(tmp_path, [np.arange(5)], seq_len=2, dtype="int32", meta=META)
    assert list(tmp_path.iterdir()) == []


def test_the_counted_facts_cannot_be_given(tmp_path):
    with pytest.raises(AssertionError, match=r"\['n_seqs'\] are counted here"):
        write_memmap(tmp_path, [], seq_len=2, dtype="int32", meta={"n_seqs": 4})


@pytest.mark.parametrize("change", [b"", b"\0", b"\0\0\0\0\0\0\0\0\0"])
def test_rows_of_another_size_are_an_error(tmp_path, change):
    write_memmap(tmp_path, [np.arange(4)], seq_len=2, dtype="uint16", meta=META)
    (tmp_path / "input_ids.mmap").write_bytes(change)
    expected = (
        rf"input_ids\.mmap: {len(change)} bytes, but meta\.json describes 8 \(2 x 2 x 2\)\n  next: copy"
    )
    with pytest.raises(CorruptFile, match=expected):
        MemmapRows(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"seq_len": 2', "not the description of memmap rows"),
        ('{"seq_len": 2, "dtype": "uint16"}', "n_seqs"),
        ('{"seq_len": 2, "n_seqs": 2, "dtype": "float32"}', "dtype 'float32' is not one of uint16, int32"),
        ('{"seq_len": -2, "n_seqs": -2, "dtype": "uint16"}', "not the description of memmap rows"),
    ],
)
def test_a_damaged_description_is_an_error(tmp_path, text, message):
    write_memmap(tmp_path, [np.arange(4)], seq_len=2, dtype="uint16", meta=META)
    (tmp_path / "meta.json").write_text(text)
    with pytest.raises(CorruptFile, match=rf"meta\.json: .*{message}"):
        MemmapRows(tmp_path)


@pytest.mark.parametrize("name", ["meta.json", "input_ids.mmap"])
def test_a_missing_file_is_an_error_that_says_which(tmp_path, name):
    write_memmap(tmp_path, [np.arange(4)], seq_len=2, dtype="uint16", meta=META)
    (tmp_path / name).unlink()
    with pytest.raises(InputError, match=rf"{name}: no such file\n  next: give the directory of a finished"):
        MemmapRows(tmp_path)
