"""Blocks of objects: the bytes that are asked for, never more of them than allowed, whoever else is there."""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.errors import CorruptFile, DiskFull, InputChanged, InputError, StorageError
from tokmill.storage import cached, disk
from tokmill.storage.cached import BlockArray, BlockCache
from tokmill.storage.location import ObjectFile, parse_url
from tokmill.storage.objects import open_store

BLOCK = 64


def put(data: bytes, url: str | None = None) -> ObjectFile:
    where = parse_url(url or f"memory://{uuid.uuid4().hex}/ids.bin")
    etag = open_store(where).upload(where.key, [data], len(data))
    return ObjectFile(where, len(data), etag)


def blocks_in(directory: Path) -> dict[str, int]:
    """Counted as `du` would: every file but the locks."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(directory)): path.stat().st_size
        for path in files
        if path.name != "lock" and not path.name.startswith("claim-")
    }


def array_of(cache: BlockCache, values: np.ndarray, offset: int = 0) -> BlockArray:
    file = put(b"\7" * offset + values.tobytes())
    return BlockArray(cache, file, values.dtype, offset, values.shape)


@given(
    rows=st.integers(1, 60),
    width=st.integers(1, 40),
    offset=st.integers(0, 70),
    dtype=st.sampled_from(["<u2", "<i4", "<i8"]),
    data=st.data(),
)
@settings(deadline=None, max_examples=60)
def test_an_array_over_blocks_gives_what_numpy_gives(
    rows: int,
    width: int,
    offset: int,
    dtype: str,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    cache = BlockCache(tmp_path_factory.mktemp("cache"), 3 * BLOCK, BLOCK)
    values = np.random.default_rng(rows).integers(0, 9999, (rows, width)).astype(dtype)
    table, flat = array_of(cache, values, offset), array_of(cache, values.reshape(-1), offset)
    some = np.array(data.draw(st.lists(st.integers(-rows, rows - 1), max_size=9)), np.int64)
    assert np.array_equal(table.take(some, 0), values[some])
    assert np.array_equal(table[int(some[0]) if len(some) else 0], values[some[0] if len(some) else 0])
    places = np.array(data.draw(st.lists(st.integers(0, values.size - 1), max_size=30)), np.int64)
    assert np.array_equal(flat[places], values.reshape(-1)[places])
    start, stop = (data.draw(st.integers(0, values.size + 3)) for _ in range(2))
    assert np.array_equal(flat[start:stop], values.reshape(-1)[start:stop])
    assert np.array_equal(np.asarray(table), values)
    assert np.array_equal(flat.reshape(-1, width).take(some, 0), values[some])
    assert np.array_equal(flat.view(np.uint8)[:], values.reshape(-1).view(np.uint8))
    assert sum(blocks_in(cache.directory).values()) <= 3 * BLOCK


def test_what_is_taken_can_be_written_and_what_is_viewed_cannot(tmp_path: Path) -> None:
    array = array_of(BlockCache(tmp_path, BLOCK, BLOCK), np.arange(40, dtype="<i4").reshape(10, 4))
    array.take(np.array([1, 2]))[...] = 1
    with pytest.raises(ValueError, match="read-only"):
        array[3][...] = 1
    with pytest.raises(IndexError):
        array[10]
    with pytest.raises(IndexError):
        array.take(np.array([0, 10]))


def test_the_block_that_was_read_longest_ago_goes_first(tmp_path: Path) -> None:
    values = np.arange(10 * BLOCK, dtype=np.uint8)
    array = array_of(BlockCache(tmp_path, 3 * BLOCK, BLOCK), values)
    for block in (0, 1, 2):
        array[block * BLOCK]
    for path, second in zip(sorted(tmp_path.rglob("0000000?")), (5, 1, 3), strict=True):
        os.utime(path, (second, second))
    array[3 * BLOCK]
    assert sorted(name[-1] for name in blocks_in(tmp_path)) == ["0", "2", "3"]
    (oldest,) = tmp_path.rglob("00000002")
    os.utime(oldest, (9, 9))
    array[0]  # which is a use of it, now
    array[4 * BLOCK]
    assert "2" not in {name[-1] for name in blocks_in(tmp_path)}
    assert "0" in {name[-1] for name in blocks_in(tmp_path)}


def test_the_bound_holds_after_every_read_and_through_another_cache_of_the_directory(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 255, 50 * BLOCK + 7).astype(np.uint8)
    arrays = [array_of(BlockCache(tmp_path, 7 * BLOCK, BLOCK), values) for _ in range(2)]
    draw = np.random.default_rng(1)
    for turn in range(200):
        at = int(draw.integers(0, len(values)))
        assert arrays[turn % 2][at] == values[at]
        assert sum(blocks_in(tmp_path).values()) <= 7 * BLOCK


def test_a_cache_smaller_than_a_block_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="do not hold one block of 4,194,304") as caught:
        BlockCache(tmp_path, 1000)
    assert caught.value.where == "cache_bytes"


def test_a_replaced_object_is_an_error_and_its_old_blocks_are_not_the_new_ones(tmp_path: Path) -> None:
    cache, values = BlockCache(tmp_path, 10 * BLOCK, BLOCK), np.arange(4 * BLOCK, dtype=np.uint8)
    file = put(values.tobytes())
    old = BlockArray(cache, file, np.uint8, 0, values.shape)
    assert old[1] == values[1]
    again = put(values[::-1].tobytes(), str(file.url))
    assert old[2] == values[2]  # of the version that was opened
    with pytest.raises(InputChanged, match="another one by now") as caught:
        old[2 * BLOCK]
    assert caught.value.where == str(file.url)
    new = BlockArray(cache, again, np.uint8, 0, values.shape)
    assert new[1] == values[::-1][1]


def test_an_array_beyond_the_end_of_its_object_is_an_error_that_names_it(tmp_path: Path) -> None:
    cache, file = BlockCache(tmp_path, BLOCK, BLOCK), put(b"x" * 10)
    with pytest.raises(CorruptFile, match="ends early: 10 bytes of at least 12") as caught:
        BlockArray(cache, file, "<i4", 0, (3,))
    assert caught.value.where == str(file.url)
    with pytest.raises(CorruptFile, match="no whole numbers of 4"):
        BlockArray(cache, file, np.uint8, 0, (10,)).view("<i4")


def test_a_block_that_is_cut_or_a_temp_file_is_not_taken_for_whole(tmp_path: Path) -> None:
    values = np.arange(4 * BLOCK, dtype=np.uint8)
    array = array_of(BlockCache(tmp_path, 2 * BLOCK, BLOCK), values)
    array[0]
    (block,) = tmp_path.rglob("00000000")
    block.write_bytes(b"cut")
    left = block.with_name(f"{disk.TEMP_PREFIX}1-ab-0-00000001")
    left.write_bytes(b"\xff" * BLOCK)
    assert array[0] == values[0]
    assert np.array_equal(array[:], values)
    assert not left.exists()
    assert sum(blocks_in(tmp_path).values()) <= 2 * BLOCK


@pytest.mark.parametrize("said", [b"", b"nonsense", b"-0000000000000000005\n", b"99999999999999999999\n"])
def test_a_wrong_count_is_counted_again(said: bytes, tmp_path: Path) -> None:
    values = np.arange(4 * BLOCK, dtype=np.uint8)
    array = array_of(BlockCache(tmp_path, 2 * BLOCK, BLOCK), values)
    array[0]
    (tmp_path / "blocks/lock").write_bytes(said)
    assert np.array_equal(array[:], values)
    assert sum(blocks_in(tmp_path).values()) <= 2 * BLOCK


def test_files_of_others_in_the_directory_are_left_alone(tmp_path: Path) -> None:
    mine = [tmp_path / name for name in ("thesis.txt", "blocks/notes.txt", "blocks/other/00000001")]
    for path in mine:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 1000)
    values = np.arange(9 * BLOCK, dtype=np.uint8)
    assert np.array_equal(array_of(BlockCache(tmp_path, BLOCK, BLOCK), values)[:], values)
    assert all(path.stat().st_size == 1000 for path in mine)


def test_names_in_the_cache_are_hashes(tmp_path: Path) -> None:
    array_of(BlockCache(tmp_path, BLOCK, BLOCK), np.arange(9, dtype=np.uint8))[0]
    (name,) = blocks_in(tmp_path)
    assert re.fullmatch(r"blocks/[0-9a-f]{32}/[0-9]{8}", name)


def test_a_full_disk_names_the_cache_and_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = array_of(BlockCache(tmp_path, BLOCK, BLOCK), np.arange(9, dtype=np.uint8))

    def full(descriptor: int, data: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DiskFull, match="no space left for a block of the cache") as caught:
        array[0]
    assert "cache_bytes" in caught.value.next
    monkeypatch.undo()
    assert array[8] == 8


def test_a_cache_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="cannot write") as caught:
        BlockCache(tmp_path / "file", cached.CACHE_BYTES)
    assert str(tmp_path / "file") in caught.value.where
