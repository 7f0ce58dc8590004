"""llm.c's shards: the bytes that its write_datafile writes, for GPT-2 and for Llama 3."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from few_tokens import FewTokens
from tokmill.errors import CorruptFile
from tokmill.formats import find_format, llmc

LLMC = find_format("llmc")
DOCUMENTS = [[3, 1, 4, 7], [7], [15, 50_256, 65, 35, 7]]
FLAT = [id for document in DOCUMENTS for id in document]


@pytest.mark.parametrize(
    ("dtype", "magic", "version", "code"), [("uint16", 20240520, 1, "H"), ("int32", 20240801, 7, "I")]
)
def test_a_shard_is_256_int32_and_the_ids(dtype, magic, version, code, tmp_path):
    LLMC.write(tmp_path, FewTokens(DOCUMENTS, dtype))
    golden = struct.pack("<256i", magic, version, len(FLAT), *[0] * 253) + struct.pack(
        f"<{len(FLAT)}{code}", *FLAT
    )
    assert (tmp_path / "train_000000.bin").read_bytes() == golden


def test_shards_are_full_but_the_last_and_a_document_goes_on_in_the_next(tmp_path):
    documents = [np.ones(llmc.SHARD_TOKENS - 2, np.uint16), [2, 3, 4, 7]]
    LLMC.write(tmp_path, FewTokens(documents, "uint16", split="valid"))
    first, second = (np.memmap(tmp_path / f"val_{n:06d}.bin", np.uint16, "r", 1024) for n in (0, 1))
    assert (len(first), second.tolist(), first[-2:].tolist()) == (10**8, [4, 7], [2, 3])
    assert LLMC.open_store(tmp_path, None).view(1).tolist() == [2, 3, 4, 7]


@pytest.mark.parametrize(("at", "value"), [(0, 20240522), (4, 2), (8, 9), (512, 1)])
def test_a_header_that_is_another_is_an_error(at, value, tmp_path):
    LLMC.write(tmp_path, FewTokens(DOCUMENTS, "uint16"))
    path = tmp_path / "train_000000.bin"
    data = bytearray(path.read_bytes())
    data[at : at + 4] = struct.pack("<i", value)
    path.write_bytes(data)
    with pytest.raises(CorruptFile, match=r"train_000000.bin: does not begin with the header"):
        LLMC.open_store(tmp_path, None)


def test_without_documents_there_is_no_shard(tmp_path):
    """llm.c refuses one without tokens."""
    LLMC.write(tmp_path, FewTokens([], "uint16"))
    assert not list(tmp_path.glob("*.bin"))
    assert LLMC.open_store(tmp_path, None).size == 0
