"""Whole files that the processes of a node keep together, within a bound."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tokmill.errors import CorruptFile
from tokmill.storage.file_cache import FileCache


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class Origin:
    """Where files come from, and how often they were asked for."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []

    def read(self, data: bytes) -> Callable[[], Iterator[bytes]]:
        def pieces() -> Iterator[bytes]:
            self.asked.append(data)
            yield from (data[:3], data[3:])

        return pieces


def kept(directory: Path) -> set[str]:
    return {path.name for path in (directory / "files").iterdir() if len(path.name) == 64}


def bring(cache: FileCache, task: Path, data: bytes, origin: Origin) -> Path:
    target = task / "a" / sha256(data)[:8]
    cache.link(sha256(data), len(data), target, origin.read(data))
    return target


def test_a_file_is_brought_once_for_all_tasks(tmp_path: Path) -> None:
    cache, origin = FileCache(tmp_path), Origin()
    for _ in range(2):
        with cache.open_task() as task:
            assert bring(cache, task, b"some bytes", origin).read_bytes() == b"some bytes"
    assert origin.asked == [b"some bytes"]
    assert list((tmp_path / "tasks").iterdir()) == []


def test_processes_that_want_the_same_file_wait_for_who_brings_it(tmp_path: Path) -> None:
    origin = Origin()
    files = [str(number).encode() * 100 for number in range(5)]

    def work(number: int) -> list[bytes]:
        cache = FileCache(tmp_path)
        with cache.open_task() as task:
            return [bring(cache, task, data, origin).read_bytes() for data in files]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [files] * 8
    assert sorted(origin.asked) == sorted(files)


def test_what_was_used_longest_ago_is_evicted(tmp_path: Path) -> None:
    cache, origin = FileCache(tmp_path, max_bytes=250), Origin()
    first, second, third = (name * 100 for name in (b"a", b"b", b"c"))
    for tick, data in enumerate((first, second, first, third)):
        with cache.open_task() as task:
            bring(cache, task, data, origin)
        os.utime(tmp_path / "files" / sha256(data), ns=(tick, tick))
    assert kept(tmp_path) == {sha256(first), sha256(third)}


def test_what_a_task_reads_is_not_evicted_and_the_bound_holds_again_when_it_is_done(tmp_path: Path) -> None:
    cache, origin = FileCache(tmp_path, max_bytes=250), Origin()
    files = [bytes([letter]) * 100 for letter in b"abcd"]
    with cache.open_task() as task:
        links = [bring(cache, task, data, origin) for data in files]
        assert kept(tmp_path) == {sha256(data) for data in files}
        assert [link.read_bytes() for link in links] == files
    assert len(kept(tmp_path)) == 2


def test_what_a_task_writes_is_there_for_the_next_one(tmp_path: Path) -> None:
    cache, origin = FileCache(tmp_path), Origin()
    with cache.open_task() as task:
        (task / "made").write_bytes(b"made here")
        cache.add(sha256(b"made here"), task / "made")
    with cache.open_task() as task:
        assert bring(cache, task, b"made here", origin).read_bytes() == b"made here"
    assert origin.asked == []


def test_other_bytes_than_the_name_says_are_not_kept(tmp_path: Path) -> None:
    cache = FileCache(tmp_path)
    with cache.open_task() as task, pytest.raises(CorruptFile):
        cache.link(sha256(b"right"), 5, task / "file", lambda: [b"wrong"])
    assert kept(tmp_path) == set()


def test_a_task_that_was_killed_leaves_nothing_for_long(tmp_path: Path) -> None:
    code = (
        "import sys, os, signal; from pathlib import Path; from tokmill.storage.file_cache import FileCache\n"
        "with FileCache(Path(sys.argv[1])).open_task() as task:\n"
        "    (task / 'half').write_bytes(b'x'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    died = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert died.returncode == -signal.SIGKILL
    assert len(list((tmp_path / "tasks").iterdir())) == 2
    with FileCache(tmp_path).open_task() as task:
        assert {path.name.partition(".")[0] for path in (tmp_path / "tasks").iterdir()} == {task.name}


def test_what_a_killed_process_was_bringing_goes_when_it_is_old(tmp_path: Path) -> None:
    cache, origin = FileCache(tmp_path), Origin()
    old, new = (tmp_path / "files" / f".tmp-1-{name}" for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    with cache.open_task() as task:
        bring(cache, task, b"whole", origin)
    assert (old.exists(), new.exists()) == (False, True)


def test_a_process_whose_clock_is_hours_ahead_leaves_what_another_is_bringing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = FileCache(tmp_path)
    temporary = tmp_path / "files" / f".tmp-1-aa-1-{'0' * 64}"
    temporary.write_bytes(b"half")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 6 * 3600)
    with cache.open_task() as task:
        bring(cache, task, b"other", Origin())
    assert temporary.exists()
