"""Every compression that a file of records may have, packed by other libraries than those that unpack it."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import random
from collections.abc import Callable

import polars as pl
import pyarrow as pa
import pytest
import zstandard

from sources.ingested import ingest
from tokmill.errors import CorruptFile, InputError, TokmillError

ROWS = [{"id": f"d{n}", "text": f"text {n}: " + "words “é” " * (n % 50)} for n in range(2000)]


def _lz4(data: bytes) -> bytes:
    """As frames, not as the bare blocks that pyarrow.compress makes."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


PACK: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".lz4": _lz4,
}
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
CONTENT = {
    ".jsonl": LINES,
    ".ndjson": LINES,
    ".json": json.dumps(ROWS, indent=1).encode(),
    ".csv": pl.DataFrame(ROWS).write_csv().encode(),
    ".tsv": pl.DataFrame(ROWS).write_csv(separator="\t").encode(),
}


@pytest.mark.parametrize("packing", PACK)
@pytest.mark.parametrize("kind", CONTENT)
def test_records_come_back_of_every_kind_in_every_compression(tmp_path, kind, packing):
    (tmp_path / f"a{kind}{packing}").write_bytes(PACK[packing](CONTENT[kind]))
    found = ingest(tmp_path, f"a{kind}{packing}")
    assert [(row["doc_id"], row["text"]) for row in found.documents] == [
        (row["id"], row["text"]) for row in ROWS
    ]


@pytest.mark.parametrize("packing", PACK)
def test_texts_come_back_in_every_compression(tmp_path, packing):
    (tmp_path / f"a.txt{packing}").write_bytes(PACK[packing]("one\ntwo é\n".encode()))
    assert [row["text"] for row in ingest(tmp_path, f"a.txt{packing}", unit="line").documents] == [
        "one",
        "two é",
    ]


@pytest.mark.parametrize("packing", [packing for packing in PACK if packing])
def test_frames_one_behind_the_other_are_one_file(tmp_path, packing):
    half = LINES.index(b"\n", len(LINES) // 2) - 7
    (tmp_path / f"a.jsonl{packing}").write_bytes(PACK[packing](LINES[:half]) + PACK[packing](LINES[half:]))
    assert len(ingest(tmp_path, f"a.jsonl{packing}").documents) == len(ROWS)


def test_padding_behind_a_stream_of_xz_is_no_data(tmp_path):
    first, second = lzma.compress(LINES[:1000]), lzma.compress(LINES[1000:])
    for before, behind in ((0, 4), (4, 0), (8, 8), (3 << 20, 3 << 20)):
        data = first + bytes(before) + second + bytes(behind)
        (tmp_path / "a.jsonl.xz").write_bytes(data)
        assert len(ingest(tmp_path, "a.jsonl.xz").documents) == len(ROWS)
        (tmp_path / "a.jsonl.xz").write_bytes(data + b"\0" * 3)
        with pytest.raises(CorruptFile, match="padding"):
            ingest(tmp_path, "a.jsonl.xz")
    (tmp_path / "a.jsonl.bz2").write_bytes(bz2.compress(LINES) + bytes(8))
    with pytest.raises(CorruptFile):
        ingest(tmp_path, "a.jsonl.bz2")


@pytest.mark.parametrize("packing", [packing for packing in PACK if packing])
def test_a_truncated_file_is_an_error_not_a_short_one(tmp_path, packing):
    data = PACK[packing](LINES)
    for cut in (0, len(data) // 2, len(data) - 5, len(data) - 1):
        (tmp_path / f"a.jsonl{packing}").write_bytes(data[:cut])
        with pytest.raises(TokmillError) as caught:
            ingest(tmp_path, f"a.jsonl{packing}")
        assert isinstance(caught.value, CorruptFile) or cut == 0


@pytest.mark.parametrize("packing", [packing for packing in PACK if packing])
def test_damage_is_an_error(tmp_path, packing):
    data = bytearray(PACK[packing](LINES))
    data[len(data) // 2] ^= 0x55
    (tmp_path / f"a.jsonl{packing}").write_bytes(data)
    with pytest.raises(CorruptFile, match=r"decompressed|truncated"):
        ingest(tmp_path, f"a.jsonl{packing}")


def test_zstd_with_a_long_window_is_read(tmp_path):
    """As `zstd --long=31` writes them; a decompressor that is not told accepts 128 MiB."""
    noise = random.Random(1).randbytes(150 << 10).hex()
    lines = [json.dumps({"id": str(n), "text": noise}) + "\n" for n in range(3)]
    params = zstandard.ZstdCompressionParameters(
        window_log=31, enable_ldm=True, format=zstandard.FORMAT_ZSTD1, write_content_size=False
    )
    compressor = zstandard.ZstdCompressor(compression_params=params).compressobj()
    data = b"".join(compressor.compress(line.encode()) for line in lines) + compressor.flush()
    assert zstandard.get_frame_parameters(data).window_size == 1 << 31
    (tmp_path / "a.jsonl.zst").write_bytes(data)
    assert [row["text"] for row in ingest(tmp_path, "a.jsonl.zst").documents] == [noise] * 3


def test_a_window_above_the_bound_is_an_error_that_says_what_to_do(tmp_path):
    # the header of a frame whose window is 4 GiB, and a block that repeats one byte
    frame = b"\x28\xb5\x2f\xfd\0" + bytes([22 << 3]) + (1 << 17 << 3 | 0b011).to_bytes(3, "little") + b"a"
    (tmp_path / "a.jsonl.zst").write_bytes(frame)
    with pytest.raises(InputError, match=r"(?s)2 GiB.*pack it with a smaller one: `zstd -19`"):
        ingest(tmp_path, "a.jsonl.zst")
