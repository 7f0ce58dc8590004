from __future__ import annotations

import errno
import hashlib
import itertools
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tokmill.errors import DiskFull, EmptyGlob, StorageError
from tokmill.storage import disk
from tokmill.storage.codecs import write_table
from tokmill.storage.disk import TEMP_PREFIX, Written, commit_bytes, open_commit
from tokmill.storage.patterns import find_files

TABLE = pa.table({"text": [hashlib.sha256(b"%d" % n).hexdigest() for n in range(12)]})  # hard to compress


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, check=False
    )


def interrupted(path: Path, data: bytes, fault: type[BaseException]) -> None:
    with open_commit(path) as file:
        file.write(data)
        raise fault


def test_success_leaves_exactly_the_final_file(tmp_path):
    with open_commit(tmp_path / "a.bin") as file:
        assert file.write(b"hello ") == 6
        assert file.write(b"world") == 5
        assert not (tmp_path / "a.bin").exists()
    assert names(tmp_path) == ["a.bin"]
    assert (tmp_path / "a.bin").read_bytes() == b"hello world"
    assert file.written == Written(11, hashlib.sha256(b"hello world").hexdigest())


def test_missing_directories_are_made(tmp_path):
    commit_bytes(tmp_path / "a" / "b" / "c.bin", b"x")
    assert (tmp_path / "a" / "b" / "c.bin").read_bytes() == b"x"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytearray(b"abc"),
        memoryview(b"abcdef")[2:4],
        np.arange(6, dtype=np.int32).reshape(2, 3),
        np.empty((0, 3), np.int32),
        pa.py_buffer(b"arrow"),
    ],
    ids=["empty", "bytearray", "slice", "matrix", "no rows", "arrow"],
)
def test_anything_with_a_contiguous_buffer_is_written_byte_for_byte(tmp_path, data):
    expected = memoryview(data).tobytes()
    assert commit_bytes(tmp_path / "a", data) == Written(len(expected), hashlib.sha256(expected).hexdigest())
    assert (tmp_path / "a").read_bytes() == expected


def test_more_than_one_piece_is_written_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "_WRITE_BYTES", 7)
    data = bytes(range(256))
    assert commit_bytes(tmp_path / "a", data).sha256 == hashlib.sha256(data).hexdigest()
    assert (tmp_path / "a").read_bytes() == data


@pytest.mark.parametrize("fault", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_exception_in_the_block_leaves_neither_temp_nor_final_file(tmp_path, fault):
    with pytest.raises(fault):
        interrupted(tmp_path / "a.bin", b"half", fault)
    assert names(tmp_path) == []


@pytest.mark.parametrize("fault", [ValueError, KeyboardInterrupt])
def test_an_exception_in_the_block_leaves_the_older_file_untouched(tmp_path, fault):
    commit_bytes(tmp_path / "a.bin", b"older")
    with pytest.raises(fault):
        interrupted(tmp_path / "a.bin", b"newer and longer", fault)
    assert names(tmp_path) == ["a.bin"]
    assert (tmp_path / "a.bin").read_bytes() == b"older"


def test_a_commit_replaces_the_older_file(tmp_path):
    commit_bytes(tmp_path / "a.bin", b"older and longer")
    commit_bytes(tmp_path / "a.bin", b"newer")
    assert names(tmp_path) == ["a.bin"]
    assert (tmp_path / "a.bin").read_bytes() == b"newer"


def test_two_commits_of_one_path_do_not_meet_in_a_temp_file(tmp_path):
    with open_commit(tmp_path / "a") as outer:
        outer.write(b"outer")
        with open_commit(tmp_path / "a") as inner:
            inner.write(b"inner")
        assert (tmp_path / "a").read_bytes() == b"inner"
    assert (tmp_path / "a").read_bytes() == b"outer"
    assert names(tmp_path) == ["a"]


def test_a_short_write_is_an_error_and_leaves_nothing(tmp_path, monkeypatch):
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, bytes(data)[:-1]))
    with pytest.raises(DiskFull) as caught:
        commit_bytes(tmp_path / "a.bin", b"hello")
    assert caught.value.where == str(tmp_path / "a.bin")
    assert names(tmp_path) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet", "a.txt"])
def test_a_full_disk_at_any_write_names_the_file_and_leaves_nothing(tmp_path, monkeypatch, name, number):
    monkeypatch.setattr(disk, "_WRITE_BYTES", 64)
    write, writes = os.write, itertools.count()

    def counted(descriptor: int, data: bytes) -> int:
        next(writes)
        return write(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", counted)
        write_table(tmp_path / "elsewhere" / name, TABLE)
    needed = next(writes)
    assert needed > 1

    for allowed in range(needed):
        left = itertools.count(allowed, -1)

        def limited(descriptor: int, data: bytes, left=left) -> int:
            if next(left) == 0:
                raise OSError(number, os.strerror(number))
            return write(descriptor, data)

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", limited)
            with pytest.raises(DiskFull, match="nothing half-written") as caught:
                write_table(tmp_path / name, TABLE)
        assert caught.value.where == str(tmp_path / name)
        assert names(tmp_path) == ["elsewhere"]


def test_a_full_disk_leaves_the_older_file_untouched(tmp_path, monkeypatch):
    commit_bytes(tmp_path / "a", b"older")

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DiskFull):
        commit_bytes(tmp_path / "a", b"newer")
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"older"


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize(("number", "kind"), [(errno.ENOSPC, DiskFull), (errno.EIO, StorageError)])
def test_a_fault_after_the_last_write_leaves_nothing_either(tmp_path, monkeypatch, step, number, kind):
    def fail(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(kind) as caught:
            commit_bytes(tmp_path / "a", b"all of it")
    assert caught.value.where == str(tmp_path / "a")
    assert names(tmp_path) == []


LIMITED = """
import resource, signal, sys
from pathlib import Path
from tokmill.errors import DiskFull
from tokmill.storage.disk import open_commit
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
piece = bytes(int(sys.argv[2]))
try:
    with open_commit(Path(sys.argv[1])) as file:
        for _ in range(200_000 // len(piece)):
            file.write(piece)
except DiskFull as error:
    print(error.where)
"""


def write_until(path: Path, is_enough: Callable[[], bool]) -> None:
    with open_commit(path) as file:
        while not is_enough():
            file.write(b"12345")
            time.sleep(0.001)


@pytest.mark.parametrize("fails", [0, 1, 2])
def test_an_error_of_a_sync_on_the_way_is_an_error_of_the_file(tmp_path, monkeypatch, fails):
    """The system tells it once: the last sync would say that all is well."""
    monkeypatch.setattr(disk, "_SYNCED_APART", 4)
    synced, real = [], os.fsync

    def fsync(descriptor):
        synced.append(descriptor)
        if len(synced) == fails + 1:
            raise OSError(errno.EIO, "the disk")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageError):
        write_until(tmp_path / "a.bin", lambda: len(synced) > fails)
    monkeypatch.undo()
    assert names(tmp_path) == []


def test_what_is_synced_on_the_way_is_what_was_written(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "_SYNCED_APART", 1)
    pieces = [bytes([number]) * number for number in range(200)]
    with open_commit(tmp_path / "a.bin") as file:
        for piece in pieces:
            file.write(piece)
    whole = b"".join(pieces)
    assert (tmp_path / "a.bin").read_bytes() == whole
    assert file.written == Written(len(whole), hashlib.sha256(whole).hexdigest())


@pytest.mark.parametrize("piece", [4096, 10_000, 200_000], ids=["to the byte", "short write", "one write"])
def test_a_file_that_the_system_does_not_let_grow_is_a_full_disk(tmp_path, piece):
    done = run(LIMITED, tmp_path / "a.bin", piece)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{tmp_path / 'a.bin'}\n"
    assert names(tmp_path) == []


def test_bytes_are_safe_before_the_name_and_the_name_before_we_go_on(tmp_path, monkeypatch):
    events: list[tuple[object, ...]] = []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        events.append(("fsync", status.st_ino, 0 if stat.S_ISDIR(status.st_mode) else status.st_size))
        fsync(descriptor)

    def watched_replace(source: Path, target: Path) -> None:
        events.append(("rename", Path(source).stat().st_ino, Path(target).name))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    with open_commit(tmp_path / "a.bin") as file:
        file.write(b"one")
        file.write(b"two")
        assert events == []
    written = (tmp_path / "a.bin").stat().st_ino
    assert events == [
        ("fsync", written, 6),
        ("rename", written, "a.bin"),
        ("fsync", tmp_path.stat().st_ino, 0),
    ]


def test_a_parent_that_is_a_file_is_told_with_what_to_do(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    path = tmp_path / "file" / "sub" / "a.bin"
    with pytest.raises(StorageError, match=r"cannot write here \(Not a directory\)") as caught:
        commit_bytes(path, b"x")
    assert caught.value.where == str(path)
    assert "--out" in caught.value.next


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_place_that_cannot_be_written_is_told_with_what_to_do(tmp_path, monkeypatch, number):
    def refuse(*arguments: object) -> int:
        raise OSError(number, os.strerror(number), str(arguments[0]))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(StorageError) as caught:
            commit_bytes(tmp_path / "a.bin", b"x")
    assert str(caught.value) == (
        f"{tmp_path / 'a.bin'}: cannot write here ({os.strerror(number)})\n"
        "  next: choose a directory that can be written to (`--out`)"
    )


def test_a_name_that_is_a_directory_stays_one(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(StorageError, match="cannot write"):
        commit_bytes(tmp_path / "a", b"x")
    assert names(tmp_path) == ["a"]


KILLED = """
import os, signal, sys
from pathlib import Path
from tokmill.storage.disk import open_commit

def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[2] == "before the rename":
    os.replace = die
with open_commit(Path(sys.argv[1])) as file:
    file.write(bytes(1 << 20))
    if sys.argv[2] == "while writing":
        die()
"""


@pytest.mark.parametrize("moment", ["while writing", "before the rename"])
def test_a_killed_process_leaves_no_final_file_and_nothing_that_a_pattern_finds(tmp_path, moment):
    done = run(KILLED, tmp_path / "a.jsonl", moment)
    assert done.returncode == -signal.SIGKILL
    assert [name for name in names(tmp_path) if not name.startswith(TEMP_PREFIX)] == []
    with pytest.raises(EmptyGlob):
        find_files("*", tmp_path)
    commit_bytes(tmp_path / "a.jsonl", b"again")
    assert [file.name for file in find_files("*", tmp_path)] == ["a.jsonl"]
