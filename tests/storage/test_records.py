from __future__ import annotations

import bz2
import gzip
import hashlib
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from storage.scratch import BOM, QUICK, blocks_of, slow_lines, write_as
from tokmill.errors import CorruptFile, StorageError
from tokmill.storage.blocks import Block, Oversize, plain_sha256, read_blocks, read_exactly
from tokmill.storage.location import open_binary

SUFFIXES = [".jsonl", ".jsonl.gz", ".jsonl.zst"]
LIMIT = 1 << 20

FRAGMENTS = st.sampled_from([b"\n", b"\n\n", b"\r\n", b"a", b"bb", b"x" * 11, BOM, "\u2028".encode(), b"\0"])
CONTENTS = st.builds(
    lambda start, parts: start + b"".join(parts),
    st.sampled_from([b"", b"", BOM]),
    st.lists(FRAGMENTS | st.binary(max_size=4), max_size=25),
)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("streams")


def read(path: Path, limit: int = LIMIT, start: int = 0, end: int | None = None) -> list[Block | Oversize]:
    return list(read_blocks(path, max_record_bytes=limit, start=start, end=end))


def lines_of(content: bytes, pieces: list[Block | Oversize], limit: int) -> list[tuple[int, int]]:
    """(offset, bytes) of every line, read or skipped,
    after checking that the pieces tell the truth about them."""
    found: list[tuple[int, int]] = []
    for piece in pieces:
        if isinstance(piece, Oversize):
            assert piece.bytes > limit
            found.append(tuple(piece))
        else:
            assert piece.data
            assert content[piece.offset : piece.offset + len(piece.data)] == piece.data
            found += [(piece.offset + at, len(line)) for at, line in slow_lines_inside(piece.data)]
    return found


def slow_lines_inside(data: bytes) -> list[tuple[int, bytes]]:
    """As `slow_lines`, but three bytes of a BOM are only a BOM at the start of a file."""
    return [(at - 1, line) for at, line in slow_lines(b"\n" + data)[1:]]


def expected_lines(content: bytes) -> list[tuple[int, int]]:
    return [(offset, len(line)) for offset, line in slow_lines(content)]


@QUICK
@given(CONTENTS, st.integers(3, 40), st.integers(1, 30), st.sampled_from(SUFFIXES))
@example(
    b"aaaaaa" + BOM + b"b\n", 6, 5, ".jsonl"
)  # three bytes that look like a BOM where a line is being skipped
@example(b"a" * 12, 4, 3, ".jsonl.gz")  # an oversize line that ends with the file, on a block boundary
def test_blocks_hold_each_line_once_where_it_lies(scratch, content, block_bytes, limit, suffix):
    path = write_as(scratch / f"whole{suffix}", content)
    with blocks_of(block_bytes):
        assert lines_of(content, read(path, limit), limit) == expected_lines(content)


@QUICK
@given(CONTENTS, st.integers(3, 40), st.integers(1, 30), st.sets(st.integers(1, 80), max_size=6))
@example(b"a\n\nb\n", 8, 5, {2, 3})  # a range that holds nothing but a blank line
@example(BOM + b"a\nb\n", 8, 5, {1, 2, 3, 4})
@example(b"a" * 20 + b"\nb", 4, 5, {2, 4, 19, 21})
def test_ranges_of_any_cut_hold_each_line_once(scratch, content, block_bytes, limit, cuts):
    path = write_as(scratch / "ranges.jsonl", content)
    edges = [0, *sorted(cuts), None]
    found = []
    with blocks_of(block_bytes):
        for start, end in itertools.pairwise(edges):
            lines = lines_of(content, read(path, limit, start, end), limit)
            first = len(BOM) if content.startswith(BOM) else 0  # the first line starts before its BOM
            assert all(
                start <= (0 if offset == first else offset) < (end or len(content) + 1) for offset, _ in lines
            )
            found += lines
    assert found == expected_lines(content)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("content", "offset"),
    [
        (b"L\nb\nc\n", 0),
        (b"a\nL\nc\n", 2),
        (b"a\nb\nL\n", 4),
        (b"a\nb\nL", 4),
        (b"L", 0),
        (b"\n\nL\n\n", 2),
        (BOM + b"L\nb\n", 3),
    ],
    ids=["first", "middle", "last", "no newline", "alone", "between blanks", "after a BOM"],
)
def test_an_oversize_line_is_reported_once_with_its_place_and_size(tmp_path, suffix, content, offset):
    content = content.replace(b"L", b"L" * 1000)
    path = write_as(tmp_path / f"a{suffix}", content)
    with blocks_of(64):
        pieces = read(path, limit=100)
    assert [piece for piece in pieces if isinstance(piece, Oversize)] == [Oversize(offset, 1000)]
    kept = b"".join(piece.data for piece in pieces if isinstance(piece, Block))
    assert kept.split() == [line for line in content.removeprefix(BOM).split() if len(line) == 1]


HUGE = """
import re, sys
from pathlib import Path
from tokmill.storage.codecs import read_batches
from tokmill.storage.records import Kind, Wanted

def peak_bytes():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) << 10

def read(path, unit):
    wanted = [Wanted("text", "text", Kind.TEXT, True)]
    for batch in read_batches(Path(path), wanted, unit=unit, max_record_bytes=1 << 20):
        yield from batch.table.column("text").to_pylist()
        yield from (f"{record.reason} at {record.offset}" for record in batch.bad)

small, *large = sys.argv[1:]
list(read(small, "line"))
before = peak_bytes()
for argument in large:
    unit, path = argument.split(":")
    print(unit, *read(path, unit))
print(peak_bytes() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to see the peak of memory")
def test_an_oversize_line_is_never_in_memory_whole(tmp_path):
    size = 200 << 20
    write_as(tmp_path / "small.jsonl", b'{"text":"warm"}\n')
    plain, packed, text = tmp_path / "a.jsonl", tmp_path / "a.jsonl.zst", tmp_path / "a.txt"
    for path in (plain, text):
        with path.open("wb") as file:
            file.write(b'{"text":"before"}\n')
            file.truncate(18 + size)  # a hole: one line of 200 MB, without its newline
            file.seek(0, 2)
            file.write(b'\n{"text":"after"}\n')
    with packed.open("wb") as file, zstandard.ZstdCompressor(level=1).stream_writer(file) as writer:
        writer.write(b'{"text":"before"}\n')
        for _ in range(size >> 20):
            writer.write(bytes(1 << 20))
        writer.write(b'\n{"text":"after"}\n')
    done = subprocess.run(
        [sys.executable, "-c", HUGE, tmp_path / "small.jsonl", f"line:{plain}", f"line:{packed}"]
        + [f"{unit}:{text}" for unit in ("line", "paragraph", "document")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    *told, growth = done.stdout.splitlines()
    assert told == [
        "line before too_large at 18 after",
        "line before too_large at 18 after",
        'line {"text":"before"} too_large at 18 {"text":"after"}',
        "paragraph too_large at 0",  # no blank line anywhere: one paragraph
        "document too_large at 0",
    ]
    assert int(growth) < size / 4


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_bom_is_no_part_of_the_first_line_but_counts_in_offsets(tmp_path, suffix):
    path = write_as(tmp_path / f"a{suffix}", BOM + b"a\n" + BOM + b"b\n")
    assert read(path) == [Block(3, b"a\n" + BOM + b"b\n")]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("content", [b"", BOM])
def test_a_file_without_text_has_no_blocks(tmp_path, suffix, content):
    assert read(write_as(tmp_path / f"a{suffix}", content)) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_file_of_only_newlines_is_all_there(tmp_path, suffix):
    path = write_as(tmp_path / f"a{suffix}", b"\n" * 50)
    with blocks_of(8):
        assert b"".join(block.data for block in read(path)) == b"\n" * 50


def test_carriage_returns_stay_with_their_lines(tmp_path):
    path = write_as(tmp_path / "a.jsonl", b"a\r\nb\rc\r\n")
    with blocks_of(4):
        assert read(path) == [Block(0, b"a\r\n"), Block(3, b"b\rc\r\n")]


def test_gzip_members_and_zstd_frames_follow_each_other_as_one_text(tmp_path):
    parts = [b"one\ntw", b"", b"o\nthree\n", b"four"]
    packer = zstandard.ZstdCompressor()
    (tmp_path / "a.gz").write_bytes(b"".join(gzip.compress(part) for part in parts))
    (tmp_path / "a.zst").write_bytes(b"".join(packer.compress(part) for part in parts))
    for name in ("a.gz", "a.zst"):
        with blocks_of(5):
            joined = b"".join(block.data for block in read(tmp_path / name))
        assert joined == b"".join(parts)


def test_a_skippable_zstd_frame_is_skipped(tmp_path):
    skippable = bytes.fromhex("502a4d18") + (4).to_bytes(4, "little") + b"note"
    (tmp_path / "a.zst").write_bytes(skippable + zstandard.ZstdCompressor().compress(b"text\n"))
    assert read(tmp_path / "a.zst") == [Block(0, b"text\n")]


def packed(suffix: str) -> bytes:
    content = b"".join(b'{"text":"document %d"}\n' % n for n in range(20))
    if suffix == ".gz":
        return gzip.compress(content, mtime=0)
    return zstandard.ZstdCompressor(write_checksum=suffix == ".checked.zst").compress(content)


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".checked.zst"])
def test_truncation_at_every_byte_is_an_error_that_names_the_file(tmp_path, suffix):
    path, whole = tmp_path / f"a{suffix}", packed(suffix)
    path.write_bytes(whole)
    assert len(read(path)) == 1
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptFile) as caught:
            read(path)
        assert caught.value.where == str(path)
        assert "again" in caught.value.next


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("garbage", [b"g", b"garb", b"garbage after the end " * 10])
def test_garbage_after_the_last_frame_is_an_error(tmp_path, suffix, garbage):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(packed(suffix) + garbage)
    with pytest.raises(CorruptFile) as caught:
        read(path)
    assert caught.value.where == str(path)


def test_zero_padding_after_a_gzip_member_is_no_garbage(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"text\n") + bytes(512))
    assert read(path) == [Block(0, b"text\n")]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("content", [b'{"text":"plain"}\n', b"x", bytes(100)], ids=["json", "byte", "zeros"])
def test_data_of_another_format_than_the_suffix_says_is_an_error(tmp_path, suffix, content):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(content)
    with pytest.raises(CorruptFile) as caught:
        read(path)
    assert caught.value.where == str(path)


def test_a_gzip_member_of_another_method_is_an_error(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(b"\x1f\x8b\x07" + gzip.compress(b"text")[3:])
    with pytest.raises(CorruptFile):
        read(path)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_plain_sha256_is_that_of_the_decompressed_content(tmp_path, suffix):
    content = bytes(range(256)) * 10
    path = write_as(tmp_path / f"a{suffix}", content)
    with blocks_of(100):
        assert plain_sha256(path) == hashlib.sha256(content).hexdigest()


def test_plain_sha256_of_a_truncated_file_is_an_error(tmp_path):
    (tmp_path / "a.zst").write_bytes(packed(".zst")[:-1])
    with pytest.raises(CorruptFile):
        plain_sha256(tmp_path / "a.zst")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_missing_file_is_named(tmp_path, suffix):
    with pytest.raises(StorageError, match=r"cannot be read \(No such file or directory\)") as caught:
        read(tmp_path / f"none{suffix}")
    assert caught.value.where == str(tmp_path / f"none{suffix}")


@pytest.mark.skipif(
    not Path("/proc/self/mem").exists(), reason="needs a file that cannot be read at its start"
)
def test_a_disk_that_does_not_answer_is_a_storage_error(tmp_path):
    path = Path("/proc/self/mem")  # its first page belongs to nobody
    with open_binary(path) as stream, pytest.raises(StorageError, match="Input/output error") as caught:
        read_exactly(stream, 10, path)
    assert caught.value.where == str(path)


def test_a_reader_that_is_left_early_closes_its_file(tmp_path):
    for suffix in SUFFIXES:
        path = write_as(tmp_path / f"a{suffix}", b"a\nb\n" * 100)
        with blocks_of(8):
            pieces = read_blocks(path, max_record_bytes=LIMIT)
            assert next(pieces) == Block(0, b"a\nb\na\nb\n")
            pieces.close()  # an open file would warn, and warnings are errors


# -- bzip2 -----------------------------------------------------------------------------------------


BZ2_PARTS = [b"one\ntw", b"", b"o\nthree\n", b"x" * 3_000_000, b"\nfour"]


def test_bzip2_streams_follow_each_other_as_one_text(tmp_path):
    path = tmp_path / "a.bz2"
    path.write_bytes(b"".join(bz2.compress(part) for part in BZ2_PARTS))
    for block_bytes in (5000, 1 << 20):
        with blocks_of(block_bytes):
            assert plain_sha256(path) == hashlib.sha256(b"".join(BZ2_PARTS)).hexdigest()


def test_truncated_bzip2_is_an_error_that_names_the_file(tmp_path):
    path, ends, whole = tmp_path / "a.bz2", {0}, b""
    for part in (b"one\n", b"two\n"):
        whole += bz2.compress(part)
        ends.add(len(whole))
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        if length and length in ends:
            assert read(path) == [Block(0, b"one\n")]  # a whole stream: nothing tells that there was another
            continue
        with pytest.raises(CorruptFile, match="truncated") as caught:
            read(path)
        assert caught.value.where == str(path)


@pytest.mark.parametrize("garbage", [b"garbage after the end", bytes(512), bz2.compress(b"two\n")[1:]])
def test_what_follows_a_bzip2_stream_is_another_or_an_error(tmp_path, garbage):
    path = tmp_path / "a.bz2"
    path.write_bytes(bz2.compress(b"one\n") + garbage)
    with pytest.raises(CorruptFile, match="cannot be decompressed") as caught:
        read(path)
    assert caught.value.where == str(path)


def test_damaged_bzip2_is_an_error_that_names_the_file(tmp_path):
    path, whole = tmp_path / "a.bz2", bytearray(bz2.compress(b"".join(b"line %d\n" % n for n in range(500))))
    whole[len(whole) // 2] ^= 0xFF
    path.write_bytes(whole)
    with pytest.raises(CorruptFile) as caught:
        read(path)
    assert caught.value.where == str(path)
