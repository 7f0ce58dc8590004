"""What libraries do with bad input, and what the mill does instead.
A library that changes its mind fails here."""

from __future__ import annotations

import contextlib
import io
import json

import pyarrow as pa
import pytest
import zstandard

from sources.ingested import ingest
from storage.scratch import write_as
from tokmill.errors import CorruptFile, InputError
from tokmill.storage import jsonl
from tokmill.storage.blocks import plain_sha256

TABLE = pa.table({"text": [f"the text of document {n}, and {n * n}" for n in range(50)]})


def test_zstandard_returns_short_data_on_a_truncated_frame_where_our_reader_raises(tmp_path):
    path, whole = (
        tmp_path / "a.jsonl.zst",
        "".join(f"{json.dumps(row)}\n" for row in TABLE.to_pylist()).encode(),
    )
    frame = write_as(path, whole).read_bytes()
    path.write_bytes(frame[:-1])
    theirs = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(frame[:-1])).read()
    assert whole.startswith(theirs)  # as if it were all
    path.write_bytes(frame[: len(frame) // 2])
    assert len(zstandard.ZstdDecompressor().stream_reader(io.BytesIO(path.read_bytes())).read()) < len(whole)
    with pytest.raises(CorruptFile, match="truncated") as caught:
        ingest(tmp_path, path.name)
    assert caught.value.where.endswith(str(path))


def test_every_frame_that_we_write_has_a_checksum(tmp_path):
    jsonl.write_jsonl(tmp_path / "a.jsonl.zst", TABLE)
    assert zstandard.get_frame_parameters((tmp_path / "a.jsonl.zst").read_bytes()).has_checksum


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_a_flipped_bit_is_an_error_and_never_other_text(tmp_path, suffix, mask):
    path = tmp_path / f"a.jsonl{suffix}"
    jsonl.write_jsonl(path, TABLE)
    good, digest = path.read_bytes(), plain_sha256(path)
    silent = []
    for at in range(len(good)):
        path.write_bytes(good[:at] + bytes([good[at] ^ mask]) + good[at + 1 :])
        with contextlib.suppress(CorruptFile, InputError):  # a window that is larger than any we read
            assert plain_sha256(path) == digest
            silent.append(at)
    # a few bits mean nothing: the time in a gzip header, padding, the window of a zstd frame
    assert len(silent) < len(good) / 20


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"])
def test_str_splitlines_splits_where_our_readers_do_not(tmp_path, separator):
    text = f"one{separator}two"
    assert text.splitlines() == ["one", "two"]
    (tmp_path / "a.txt").write_text(f"{text}\n", encoding="utf-8")
    for unit in ("line", "paragraph"):
        found = ingest(tmp_path, "a.txt", unit=unit)
        assert ([row["text"] for row in found.documents], found.bad) == ([text], [])


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_a_separator_that_json_leaves_unescaped_stays_inside_its_record(tmp_path, separator):
    line = json.dumps({"text": f"one{separator}two"}, ensure_ascii=False)
    assert len(line.splitlines()) == 2
    (tmp_path / "a.jsonl").write_text(f"{line}\n", encoding="utf-8")
    found = ingest(tmp_path, "a.jsonl")
    assert ([row["text"] for row in found.documents], found.bad) == ([f"one{separator}two"], [])


@pytest.mark.parametrize(
    ("line", "accepted", "reason"),
    [
        ('{"text":"a","x":NaN}', lambda value: value["x"] != value["x"], "invalid_json"),
        ('{"text":"a","x":-Infinity}', lambda value: value["x"] == float("-inf"), "invalid_json"),
        ('{"text":"a","text":"b"}', lambda value: value == {"text": "b"}, "duplicate_key"),
        ('{"text":"\\ud800"}', lambda value: len(value["text"]) == 1, "lone_surrogate"),
    ],
)
def test_json_accepts_what_we_do_not(tmp_path, line, accepted, reason):
    assert accepted(json.loads(line))
    (tmp_path / "a.jsonl").write_text(f"{line}\n")
    found = ingest(tmp_path, "a.jsonl")
    assert found.documents == []
    assert [record.reason for record in found.bad] == [reason]
