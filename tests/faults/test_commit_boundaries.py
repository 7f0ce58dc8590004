"""Killed at a commit boundary, any of them: the next run ends with the content of one that was never
disturbed.

… write ─ fsync ─┊─ rename ─┊─ fsync of the directory ─ … ─┊─ unlink ─┊─ rmdir …        ┊ killed here
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from faults.disk import Call, Disk, Mode, checked_digest, open_disk, unsafe_receipts

PARTS = 8
QUICK = 2  # of each kind of call


@pytest.fixture(scope="module")
def disk() -> Iterator[Disk]:
    with open_disk() as found:
        yield found


def boundaries(disk: Disk) -> list[int]:
    """Numbers of the calls after which what is on disk has another meaning. The journal has none."""
    return [
        number
        for number, call in enumerate(disk.calls, 1)
        if call.kind in ("rename", "link", "unlink", "rmdir", "mkdir") or _is_directory_sync(call)
        if "journal.json" not in call.path
    ]


def _is_directory_sync(call: Call) -> bool:
    return call.kind == "fsync" and "/.tmp-" not in call.path


def what_goes_wrong(disk: Disk, at: int) -> str:
    """Of a run that is killed before call `at` and then run again; nothing, if all is well."""
    disk.clear()
    killed = disk.run(Mode.KILL, at)
    if killed.status != -9:
        return f"not killed: {killed.status} {killed.said}"
    if unsafe := unsafe_receipts(disk.out, disk.steps):
        return f"vouched for what is not there: {unsafe}"
    again = disk.run()
    if again.status != 0:
        return f"did not resume: {again.said}"
    return "" if checked_digest(disk.out) == disk.digest else "other content"


def faults(disk: Disk, numbers: list[int]) -> list[str]:
    found = []
    for at in numbers:
        try:
            wrong = what_goes_wrong(disk, at)
        except AssertionError as error:
            wrong = str(error)
        if wrong:
            found.append(f"killed before call {at}, {disk.calls[at - 1]}: {wrong}")
    return found


def test_a_file_is_safe_before_its_receipt_and_every_receipt_before_the_manifest(disk: Disk) -> None:
    """Of the undisturbed run: written, synced, named, the name synced;
    and evidence only after what it vouches for."""
    synced, named, safe = set[str](), dict[str, str](), set[str]()
    evidence = 0
    for call in disk.calls:
        if "journal.json" in call.path:
            continue
        if call.kind == "fsync":
            if "/.tmp-" in call.path:
                synced.add(call.path)
            else:
                safe |= {name for name, parent in named.items() if parent == call.path}
        elif call.kind == "rename" and "/.tmp-" in call.path:
            assert call.path in synced, f"{call.target} has its name before its bytes are safe"
            parent, _, name = call.target.rpartition("/")
            if parent.endswith("/receipts") or name == "manifest.json":
                step = parent.removesuffix("/receipts")
                unsafe = [other for other in named if other.startswith(f"{step}/") and other not in safe]
                assert unsafe == [], f"{call.target} vouches for what may be lost"
                evidence += 1
            named[call.target] = parent
    assert evidence > 60


def test_a_run_killed_at_some_boundaries_ends_with_the_same_content(disk: Disk) -> None:
    numbers = boundaries(disk)
    assert len(numbers) > 400
    few = []
    for kind in ("rename", "link", "unlink", "rmdir", "mkdir", "fsync"):
        alike = [number for number in numbers if disk.calls[number - 1].kind == kind]
        few += sorted({alike[len(alike) * (2 * part + 1) // (2 * QUICK)] for part in range(QUICK)})
    assert faults(disk, few) == []


@pytest.mark.slow_faults
@pytest.mark.parametrize("part", range(PARTS))
def test_a_run_killed_at_any_boundary_ends_with_the_same_content(disk: Disk, part: int) -> None:
    assert faults(disk, boundaries(disk)[part::PARTS]) == []
