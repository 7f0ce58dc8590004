"""Every call to a disk that can fail, failing: an error that names the file,
and nothing vouched for that is not safe.

EIO      at every call, fsync among them        one call fails, the next would not
ENOSPC   at every open, write and mkdir         and at every later one, as on a disk that is full
short    at every write                         half of the bytes, and no error to tell
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from faults.disk import Call, Disk, Ended, Mode, checked_digest, leftovers, open_disk, unsafe_receipts

PARTS = 8
QUICK = {Mode.EIO: 1, Mode.ENOSPC: 1, Mode.SHORT: 3, Mode.KILL: 1}  # calls of each kind
KINDS = {
    Mode.EIO: ("open", "write", "fsync", "rename", "link", "mkdir", "unlink", "rmdir"),
    Mode.ENOSPC: ("open", "write", "link", "mkdir"),
    Mode.SHORT: ("write",),
}
ONE_SOURCE = {
    "name": "problems",
    "domain": "math",
    "files": "problems.jsonl",
    "fields": {"id": "id"},
    "template": "Problem: {question}\n\nSolution: {answer}",
}
SMALL: dict[str, Any] = {
    "problems": 24,
    "sources": [ONE_SOURCE],
    "dedup": {"partitions": 1},
    "mixture": None,
    "split": {"valid_fraction": 0},
    "builds": [
        {"name": name, "format": name} for name in ("memmap", "megatron", "npy", "parquet", "token_cache")
    ],
}
_ERROR = re.compile(r"^(StorageError|DiskFull) (\S+): .+\n  next: .+", re.MULTILINE)


@pytest.fixture(scope="module")
def disk() -> Iterator[Disk]:
    with open_disk(**SMALL) as found:
        yield found


@pytest.fixture(scope="module")
def rebuilt(disk: Disk) -> Iterator[Disk]:
    """Over a run of an older recipe, with a source, a mixture and builds that are no more,
    and another filter."""
    notes = {"name": "notes", "domain": "prose", "files": "notes.txt", "unit": "paragraph"}
    older = {
        "sources": [ONE_SOURCE, notes],
        "filters": [{"measure": "chars", "min": 20, "reason": "too_short"}],
        "mixture": {"blocks": 10},
        "builds": [*SMALL["builds"], {"name": "former", "format": "memmap"}],
    }
    with open_disk(older, **SMALL) as found:
        assert found.digest == disk.digest, "what was there before must not matter"
        yield found


def failing_calls(disk: Disk, mode: Mode) -> list[int]:
    return [number for number, call in enumerate(disk.calls, 1) if call.kind in KINDS[mode]]


def few_of_each_kind(disk: Disk, mode: Mode, numbers: list[int]) -> list[int]:
    """Of these calls some of every kind, as far from each other as they can be."""
    found, few = [], QUICK[mode]
    for kind in sorted({disk.calls[number - 1].kind for number in numbers}):
        alike = [number for number in numbers if disk.calls[number - 1].kind == kind]
        found += sorted({alike[len(alike) * (2 * part + 1) // (2 * few)] for part in range(few)})
    return found


def what_goes_wrong(disk: Disk, mode: Mode, at: int) -> str:
    ended = disk.disturbed(mode, at)
    if mode is Mode.KILL:
        wrong = "" if ended.status == -9 else f"not killed: {ended.said}"
    else:
        wrong = _of_an_error(disk, ended) if ended.status else _of_a_success(disk, ended)
    if wrong:
        return wrong
    again = disk.run()
    if again.status != 0:
        return f"did not resume: {again.said}"
    return "" if checked_digest(disk.out) == disk.digest else "other content after it resumed"


def _of_an_error(disk: Disk, ended: Ended) -> str:
    told = _ERROR.search(ended.said)
    if ended.status != 1 or told is None or "Traceback" in ended.said:
        return f"no clean error: exit status {ended.status}: {ended.said[-1500:]}"
    if not told[2].startswith(str(disk.out)):
        return f"names no file of the run: {ended.said}"
    if unsafe := unsafe_receipts(disk.out, disk.steps):
        return f"vouched for what is not there: {unsafe}"
    if half := [name for name in leftovers(disk.out) if ".tmp-" in name and "journal" not in name]:
        # what could not be removed is removed by the next run; all else is gone at once
        failed = [call for call in ended.calls if call.result != "ok"]
        if not any(call.kind == "unlink" for call in failed):
            return f"left {half}"
    return ""


def _of_a_success(disk: Disk, ended: Ended) -> str:
    """Only what no byte depends on may fail unseen: the journal, the end of the note beside the lock,
    a first write of that note that Python's own file object has completed, and the cache beside the run."""
    failed = [call for call in ended.calls if call.result != "ok"]
    strangers = [
        call
        for call in failed
        if not call.path.endswith(("journal.json", "/.lock")) and not _is_note_completed(call)
        if f"{disk.out}.cache/" not in f"{call.path}/ {call.target}/"
    ]
    if strangers:
        return f"no error for {strangers}"
    if any(call.kind == "unlink" for call in failed):
        (disk.out / ".lock").unlink()  # could not be removed, and was not
    return "" if checked_digest(disk.out) == disk.digest else "other content, and no error"


def _is_note_completed(call: Call) -> bool:
    return call.result == "short" and call.path.endswith("-.lock")


def faults(disk: Disk, mode: Mode, numbers: list[int]) -> list[str]:
    found = []
    for at in numbers:
        try:
            wrong = what_goes_wrong(disk, mode, at)
        except AssertionError as error:
            wrong = str(error)
        if wrong:
            found.append(f"{mode.name} at call {at}, {disk.calls[at - 1]}: {wrong}")
    return found


@pytest.mark.parametrize("mode", KINDS, ids=lambda mode: mode.name)
def test_a_call_that_fails_is_told_and_the_next_run_goes_on(disk: Disk, mode: Mode) -> None:
    numbers = failing_calls(disk, mode)
    assert len(numbers) > 100
    few = few_of_each_kind(disk, mode, numbers)
    assert {disk.calls[number - 1].kind for number in few} == set(KINDS[mode])
    assert faults(disk, mode, few) == []


@pytest.mark.slow_faults
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("mode", KINDS, ids=lambda mode: mode.name)
def test_any_call_that_fails_is_told_and_the_next_run_goes_on(disk: Disk, mode: Mode, part: int) -> None:
    assert faults(disk, mode, failing_calls(disk, mode)[part::PARTS]) == []


def replacing_calls(disk: Disk) -> list[int]:
    """What only a run over an older one does: its manifests put aside, its files removed."""
    return [
        number
        for number, call in enumerate(disk.calls, 1)
        if call.kind in ("unlink", "rmdir") or call.target.endswith("/manifest.stale.json")
        if "/receipts" not in call.path
    ]


@pytest.mark.parametrize("mode", [Mode.EIO, Mode.KILL], ids=lambda mode: mode.name)
def test_a_rebuild_that_fails_is_told_and_the_next_run_goes_on(rebuilt: Disk, mode: Mode) -> None:
    numbers = replacing_calls(rebuilt)
    assert len(numbers) > 40
    assert faults(rebuilt, mode, few_of_each_kind(rebuilt, mode, numbers)) == []


@pytest.mark.slow_faults
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("mode", [Mode.EIO, Mode.KILL], ids=lambda mode: mode.name)
def test_a_rebuild_that_fails_anywhere_is_told_and_the_next_run_goes_on(
    rebuilt: Disk, mode: Mode, part: int
) -> None:
    assert faults(rebuilt, mode, replacing_calls(rebuilt)[part::PARTS]) == []
