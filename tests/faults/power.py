"""What a disk may hold after a power cut, from the calls of a run that was not disturbed.

    log of calls ─ up to the cut ─┬─ names that were synced         there
                                  ├─ names and removals since       each kept or lost
                                  └─ bytes of each file             those that were synced; of the others
                                                                    some, or zeros

A name is safe when its directory was synced after it was made, changed or removed, and the bytes of a file
are when it was synced itself: nothing else is promised by POSIX. Some disks keep changes in order, some do
not: both are tried. Files that were removed are still at hand, because the shim gave each a second name when
it was created.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from faults.disk import Call, Ended, Mode

DIRECTORY = 0  # where a file has its inode


class Change(NamedTuple):
    """Of the names in one directory."""

    directory: str
    gone: str = ""
    there: str = ""
    inode: int = DIRECTORY


def kept_all(changes: int, chance: random.Random) -> list[bool]:
    return [True] * changes


def lost_all(changes: int, chance: random.Random) -> list[bool]:
    return [False] * changes


def kept_in_order(changes: int, chance: random.Random) -> list[bool]:
    """As a journal does: what came before a change that was kept was kept."""
    until = chance.randint(0, changes)
    return [number < until for number in range(changes)]


def kept_at_random(changes: int, chance: random.Random) -> list[bool]:
    return [chance.random() < 0.5 for _ in range(changes)]


Habit = Callable[[int, random.Random], list[bool]]
HABITS: list[Habit] = [kept_all, lost_all, kept_in_order, kept_at_random]


class Watched(Protocol):
    """What is done below `out`, with shim.c preloaded; `shadow` is where that puts second names."""

    out: Path
    shadow: Path

    def clear(self) -> None: ...

    def run(self, mode: Mode) -> Ended: ...


class Recording:
    """The calls of a run, and what it took the names of."""

    def __init__(self, disk: Watched) -> None:
        self._disk = disk
        shutil.rmtree(disk.shadow, ignore_errors=True)
        disk.shadow.mkdir()
        disk.clear()
        self._before: dict[str, int] = {}
        for path in sorted(disk.out.rglob("*")) if disk.out.exists() else []:
            inode = path.stat().st_ino if path.is_file() else DIRECTORY
            self._before[str(path)] = inode
            if inode:
                (disk.shadow / str(inode)).hardlink_to(path)
        self._before[str(disk.out)] = DIRECTORY  # its own name is not in a directory that is watched
        ended = disk.run(Mode.SHADOW)
        assert ended.status == 0, ended.said
        self.calls: list[Call] = ended.calls
        self._files = {
            int(path.name): path.read_bytes() for path in disk.shadow.iterdir()
        }  # before they are written to again, as a part of another run
        shutil.rmtree(disk.shadow)

    def cuts(self) -> list[int]:
        """How many calls had been done, for every change of a name and every sync."""
        return [number for number, call in enumerate(self.calls, 1) if call.kind != "write"]

    def leave(self, cut: int, habit: Habit, seed: int) -> None:
        """In `out`: what a disk of that habit has when the power goes after so many calls."""
        chance = random.Random(f"{cut} {habit.__name__} {seed}")
        now, safe = dict(self._before), dict(self._before)
        written = {inode: len(self._files[inode]) for inode in now.values() if inode}
        synced = dict(written)
        waiting: list[Change] = []
        for call in self.calls[:cut]:
            if call.kind == "write":
                inode, size = map(int, call.target.split())
                written[inode] = written.get(inode, 0) + size
                continue
            if call.kind == "fsync":
                if now.get(call.path) == DIRECTORY:
                    for change in waiting:
                        if change.directory == call.path:
                            _apply(change, safe)
                    waiting = [change for change in waiting if change.directory != call.path]
                else:
                    synced[int(call.target)] = written.get(int(call.target), 0)
                continue
            if call.path == str(self._disk.out):
                continue
            change = self._change(call, now)
            if call.kind == "create":
                inode, size = map(int, call.target.split())
                assert written.get(inode, 0) <= size, f"{call.path} was cut: no prefix of it is what it was"
                written[inode] = size
                if now.get(call.path) == inode:
                    continue  # opened again
            _apply(change, now)
            waiting.append(change)
        for change, is_kept in zip(waiting, habit(len(waiting), chance), strict=True):
            if is_kept:
                _apply(change, safe)
        shutil.rmtree(self._disk.out, ignore_errors=True)
        for name in sorted(safe):  # a directory before what is in it; what has none is lost with it
            path, inode = Path(name), safe[name]
            if not path.parent.is_dir() or (path != self._disk.out and self._disk.out not in path.parents):
                continue
            if not inode:
                path.mkdir()
            else:
                path.write_bytes(self._bytes(inode, written.get(inode, 0), synced.get(inode, 0), chance))

    def _bytes(self, inode: int, written: int, synced: int, chance: random.Random) -> bytes:
        data = self._files[inode][:written]
        assert len(data) == written
        there = chance.randint(synced, written)
        return data[:there] + chance.choice([b"", bytes(written - there)])

    def _change(self, call: Call, now: dict[str, int]) -> Change:
        name = call.target if call.kind in ("rename", "link") else call.path
        directory = name.rpartition("/")[0]
        if call.kind == "create":
            return Change(directory, there=name, inode=int(call.target.split()[0]))
        if call.kind == "mkdir":
            return Change(directory, there=name)
        if call.kind in ("rename", "link"):
            assert now[call.path] != DIRECTORY, "directories are not renamed"
            assert directory == call.path.rpartition("/")[0], "nor is a file to another directory"
            gone = call.path if call.kind == "rename" else ""
            return Change(directory, gone=gone, there=name, inode=now[call.path])
        assert call.kind in ("unlink", "rmdir"), call
        return Change(directory, gone=name)


def _apply(change: Change, names: dict[str, int]) -> None:
    if change.gone:
        for name in [name for name in names if name == change.gone or name.startswith(f"{change.gone}/")]:
            del names[name]
    if change.there:
        names[change.there] = change.inode
