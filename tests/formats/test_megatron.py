"""Megatron files: golden bytes, a reader that shares nothing with the writer, and every kind of damage."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.errors import CorruptFile, InputError, VocabTooLarge
from tokmill.formats.megatron import MegatronFile, write_aligned, write_index, write_megatron

# ids [1 2 3] and [65535], uint16, written out by hand
GOLDEN_BIN = bytes.fromhex("0100 0200 0300 ffff")
GOLDEN_IDX = bytes.fromhex(
    "4d4d49444944580000"  # MMIDIDX\0\0
    "0100000000000000"  # version 1
    "08"  # uint16
    "0200000000000000"  # 2 sequences
    "0300000000000000"  # document list of 3
    "03000000 01000000"  # lengths 3, 1
    "0000000000000000 0600000000000000"  # pointers 0, 6
    "0000000000000000 0100000000000000 0200000000000000"  # documents 0, 1, 2
)


def read_independently(prefix: Path) -> tuple[str, list[list[int]], list[int]]:
    """As the format's description has it, with nothing but open and struct."""
    with Path(f"{prefix}.idx").open("rb") as idx:
        assert idx.read(9) == b"MMIDIDX\x00\x00"
        (version,) = struct.unpack("<Q", idx.read(8))
        assert version == 1
        (code,) = struct.unpack("<B", idx.read(1))
        letter, size = {1: ("B", 1), 2: ("b", 1), 3: ("h", 2), 4: ("i", 4), 5: ("q", 8), 8: ("H", 2)}[code]
        n_sequences, n_documents = struct.unpack("<QQ", idx.read(16))
        lengths = struct.unpack(f"<{n_sequences}i", idx.read(4 * n_sequences))
        pointers = struct.unpack(f"<{n_sequences}q", idx.read(8 * n_sequences))
        documents = struct.unpack(f"<{n_documents}q", idx.read(8 * n_documents))
        assert idx.read() == b""
    sequences = []
    with Path(f"{prefix}.bin").open("rb") as ids:
        for pointer, length in zip(pointers, lengths, strict=True):
            ids.seek(pointer)
            sequences.append(list(struct.unpack(f"<{length}{letter}", ids.read(length * size))))
    return letter, sequences, list(documents)


def write_tiny(directory: Path) -> Path:
    prefix = directory / "tiny"
    write_megatron(prefix, [np.array([1, 2]), np.array([3, 65535])], np.array([3, 1]), dtype="uint16")
    return prefix


def test_a_tiny_pair_has_exactly_these_bytes(tmp_path):
    prefix = write_tiny(tmp_path)
    assert Path(f"{prefix}.bin").read_bytes() == GOLDEN_BIN
    assert Path(f"{prefix}.idx").read_bytes() == GOLDEN_IDX


def test_the_receipt_names_both_files_with_their_bytes(tmp_path):
    written = write_megatron(tmp_path / "a.b", [np.arange(4)], np.array([4]), dtype="int32")
    assert {name: receipt.bytes for name, receipt in written.items()} == {
        "a.b.bin": 16,
        "a.b.idx": 34 + 12 + 16,
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.b.bin", "a.b.idx"]


LIMITS = {
    "uint8": (0, 255),
    "uint16": (0, 65535),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
}


@st.composite
def sequences_and_dtype(draw: st.DrawFn) -> tuple[list[list[int]], str, int]:
    dtype = draw(st.sampled_from(sorted(LIMITS)))
    low, high = LIMITS[dtype]
    ids = st.integers(low, high) | st.sampled_from([low, high])
    return draw(st.lists(st.lists(ids, max_size=9), max_size=9)), dtype, draw(st.integers(1, 7))


@given(case=sequences_and_dtype())
@settings(deadline=None, max_examples=60)
def test_what_is_written_is_read_by_ours_and_by_an_independent_reader(case, tmp_path_factory):
    sequences, dtype, chunk_size = case
    prefix = tmp_path_factory.mktemp("megatron") / "x"
    flat = np.array([id for sequence in sequences for id in sequence], dtype=np.int64)
    chunks = [flat[start : start + chunk_size] for start in range(0, len(flat), chunk_size)]
    write_megatron(prefix, chunks, np.array([len(sequence) for sequence in sequences]), dtype=dtype)

    _, independent, documents = read_independently(prefix)
    assert independent == sequences
    assert documents == list(range(len(sequences) + 1))

    ours = MegatronFile(prefix)
    ours.check()
    assert len(ours) == len(sequences)
    assert ours.dtype == np.dtype(dtype)
    assert [ours.sequence(number).tolist() for number in range(len(ours))] == sequences
    assert ours.documents.tolist() == documents


def test_an_empty_dataset_is_a_dataset(tmp_path):
    write_megatron(tmp_path / "none", [], np.empty(0, dtype=np.int64), dtype="int32")
    file = MegatronFile(tmp_path / "none")
    file.check()
    assert len(file) == 0
    assert file.documents.tolist() == [0]
    assert read_independently(tmp_path / "none")[1:] == ([], [0])


def test_a_sequence_is_a_read_only_view(tmp_path):
    sequence = MegatronFile(write_tiny(tmp_path)).sequence(0)
    with pytest.raises(ValueError, match="read-only"):
        sequence[0] = 9
    assert MegatronFile(tmp_path / "tiny").sequence(-1).tolist() == [65535]


def test_more_indices_than_one_block_are_written_and_checked_alike(tmp_path, monkeypatch):
    monkeypatch.setattr("tokmill.formats.megatron._BLOCK", 3)
    lengths = np.array([2, 0, 5, 1, 1, 3, 0])
    write_megatron(tmp_path / "x", [np.arange(12)], lengths, dtype="int32")
    MegatronFile(tmp_path / "x").check()
    _, sequences, documents = read_independently(tmp_path / "x")
    assert [len(sequence) for sequence in sequences] == lengths.tolist()
    assert [id for sequence in sequences for id in sequence] == list(range(12))
    assert documents == list(range(8))


def test_pointers_pass_two_to_the_31_bytes(tmp_path, monkeypatch):
    """The ids are counted but not stored: the index alone is looked at."""

    class Counted:
        size = 3 * 400_000_000

    monkeypatch.setattr("tokmill.formats.megatron.cast_ids", lambda ids, dtype, where: b"")
    lengths = np.full(3, 400_000_000, dtype=np.int32)
    write_megatron(tmp_path / "x", [Counted()], lengths, dtype="int32")
    assert MegatronFile(tmp_path / "x").pointers.tolist() == [0, 1_600_000_000, 3_200_000_000]


@pytest.mark.parametrize(
    ("id", "dtype", "message"),
    [
        (65_536, "uint16", "id 65,536 does not fit uint16\n  next: set `dtype: int32`"),
        (-1, "uint16", "id -1 does not fit uint16\n  next: make the tokens again"),
        (1 << 31, "int32", "id 2,147,483,648 does not fit int32"),
    ],
)
def test_an_id_that_does_not_fit_is_an_error_and_leaves_no_file(tmp_path, id, dtype, message):
    with pytest.raises(VocabTooLarge, match=rf"x\.bin: {message}"):
        write_megatron(tmp_path / "x", [np.array([1, id, 2])], np.array([3]), dtype=dtype)
    assert list(tmp_path.iterdir()) == []


def test_a_document_longer_than_the_format_allows_is_an_error(tmp_path):
    with pytest.raises(
        InputError, match=r"document 1 has 2,147,483,648 tokens, and the format ends at 2,147,483,647"
    ):
        write_megatron(tmp_path / "x", [], np.array([1, 1 << 31]), dtype="int32")


@pytest.mark.parametrize("lengths", [[2], [4], []])
def test_lengths_that_do_not_add_up_are_our_bug_and_leave_no_file(tmp_path, lengths):
    with pytest.raises(AssertionError, match="3 tokens came"):
        write_megatron(tmp_path / "x", [np.arange(3)], np.array(lengths, dtype=np.int64), dtype="int32")
    assert list(tmp_path.iterdir()) == []


def damage(prefix: Path, suffix: str, at: int, what: bytes) -> None:
    path = Path(f"{prefix}{suffix}")
    data = bytearray(path.read_bytes())
    data[at : at + len(what)] = what
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("at", "what", "message"),
    [
        (0, b"PARQUET", "does not begin with"),
        (9, b"\x02", "format version 2"),
        (17, b"\x09", "unknown dtype code 9"),
        (18, b"\x07", "the header describes"),
        (26, b"\x00", "the document list is empty"),
        (34, b"\xff\xff\xff\xff", "sequence 0 has a negative length"),
        (34, b"\x04", "sequence 1 does not begin where the one before ends"),
        (42, b"\x02", "sequence 0 does not begin"),
        (50, b"\x04", "sequence 1 does not begin"),
        (58, b"\x01", "documents do not run from sequence 0 to 2"),
        (74, b"\x05", "documents do not run from sequence 0 to 2"),
        (66, b"\xff" * 8, "document indices go backwards"),
    ],
)
def test_a_damaged_index_is_an_error_that_names_the_fault(tmp_path, at, what, message):
    prefix = write_tiny(tmp_path)
    damage(prefix, ".idx", at, what)
    with pytest.raises(CorruptFile, match=rf"tiny\.idx: .*{message}.*(\n|.)*next: copy the file again"):
        MegatronFile(prefix).check()


def test_every_shorter_index_is_an_error(tmp_path):
    prefix = write_tiny(tmp_path)
    for size in range(len(GOLDEN_IDX)):
        Path(f"{prefix}.idx").write_bytes(GOLDEN_IDX[:size])
        with pytest.raises(CorruptFile, match=r"shorter than a header|the header describes"):
            MegatronFile(prefix)


@pytest.mark.parametrize("data", [GOLDEN_BIN[:-1], GOLDEN_BIN[:-2], GOLDEN_BIN + b"\0\0", b""])
def test_a_bin_of_another_size_is_an_error(tmp_path, data):
    prefix = write_tiny(tmp_path)
    Path(f"{prefix}.bin").write_bytes(data)
    with pytest.raises(CorruptFile, match=rf"tiny\.bin: {len(data)} bytes, but the index describes 8"):
        MegatronFile(prefix).check()


def test_a_sequence_beyond_the_end_of_the_file_is_an_error_even_without_check(tmp_path):
    prefix = write_tiny(tmp_path)
    Path(f"{prefix}.bin").write_bytes(GOLDEN_BIN[:-1])
    with pytest.raises(CorruptFile, match="sequence 1 lies beyond the end"):
        MegatronFile(prefix).sequence(1)


@pytest.mark.parametrize("suffix", [".bin", ".idx"])
def test_half_a_pair_is_an_error(tmp_path, suffix):
    prefix = write_tiny(tmp_path)
    Path(f"{prefix}{suffix}").unlink()
    with pytest.raises(InputError, match=rf"tiny\{suffix}: no such file\n  next: give the path without"):
        MegatronFile(prefix)


def test_the_index_of_three_billion_tokens_has_the_right_pointers(tmp_path):
    """Synthetic lengths, no tokens: 1.2 million documents whose bytes pass 2^31 and whose tokens pass
    2^31."""
    lengths = np.random.default_rng(3).integers(1, 5001, 1_200_000).astype(np.int32)
    assert int(lengths.sum(dtype=np.int64)) > 3_000_000_000 - 50_000_000
    lengths[-1] += 3_000_000_000 - int(lengths.sum(dtype=np.int64)) + 7_000_000
    path = tmp_path / "tokens.idx"
    written = write_index(path, lengths, "int32")
    data = path.read_bytes()
    assert (written.bytes, len(data)) == (34 + 12 * len(lengths) + 8 * (len(lengths) + 1),) * 2
    magic, version, code, sequences, documents = struct.unpack("<9sQBQQ", data[:34])
    assert (magic, version, code) == (b"MMIDIDX\0\0", 1, 4)
    assert (sequences, documents) == (len(lengths), len(lengths) + 1)
    pointers = np.frombuffer(data, "<i8", sequences, 34 + 4 * sequences)
    # Python's own integers, which cannot wrap
    before = list(itertools.accumulate(lengths.tolist(), initial=0))
    for number in range(0, sequences, 10_007):
        assert int(pointers[number]) == 4 * before[number]
    assert int(pointers[-1]) + 4 * int(lengths[-1]) == 4 * 3_007_000_000
    assert np.array_equal(np.frombuffer(data, "<i8", documents, 34 + 12 * sequences), np.arange(documents))


def test_values_that_go_with_the_tokens_lie_beside_them_and_line_up(tmp_path):
    prefix = write_tiny(tmp_path)
    tokens = MegatronFile(prefix)
    total = int(tokens.lengths.sum())
    mask = np.arange(total) % 2
    write_aligned(prefix, "loss_mask", [mask[:2].astype(np.uint8), mask[2:].astype(np.uint8)], dtype="uint8")
    found = tokens.aligned("loss_mask")
    found.check()
    dtype, sequences, _ = read_independently(prefix.with_name(f"{prefix.name}.loss_mask"))
    assert dtype == "B"
    assert [value for sequence in sequences for value in sequence] == mask.tolist()
    for number in range(len(tokens)):
        assert len(found.sequence(number)) == len(tokens.sequence(number))


def test_values_that_do_not_line_up_are_an_error(tmp_path):
    prefix = write_tiny(tmp_path)
    with pytest.raises(InputError, match="1 values for"):
        write_aligned(prefix, "loss_mask", [np.ones(1, np.uint8)], dtype="uint8")
    assert not list(tmp_path.glob("*loss_mask*"))
    other = prefix.with_name(f"{prefix.name}.weights")
    write_megatron(other, [np.ones(2, np.int32)], np.array([2]), dtype="int32")
    with pytest.raises(CorruptFile, match="its lengths are not those of"):
        MegatronFile(prefix).aligned("weights")
