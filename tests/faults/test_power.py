"""The power goes: what was not synced is lost, what was removed may be back.
The next run ends with the same content.

… write ─┊─ fsync ─┊─ rename ─┊─ fsync of the directory ─ … ─┊─ unlink ─┊─ rmdir …      ┊ the power goes here
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

import tokmill as mill
from faults.disk import Call, Disk, checked_digest, open_disk
from faults.power import HABITS, Habit, Recording, kept_all, kept_at_random
from faults.test_disk import ONE_SOURCE, SMALL

QUICK, WHOLE, PARTS = 6, 800, 8


@pytest.fixture(scope="module")
def recorded() -> Iterator[tuple[Disk, Recording]]:
    with open_disk() as disk:
        yield disk, Recording(disk)


@pytest.fixture(scope="module")
def rebuilt() -> Iterator[tuple[Disk, Recording]]:
    """Over a run of an older recipe, with a source, a mixture and a build that are no more,
    and another filter."""
    notes = {"name": "notes", "domain": "prose", "files": "notes.txt", "unit": "paragraph"}
    older = {
        "sources": [ONE_SOURCE, notes],
        "filters": [{"measure": "chars", "min": 20, "reason": "too_short"}],
        "mixture": {"blocks": 10},
        "builds": [*SMALL["builds"], {"name": "former", "format": "memmap"}],
    }
    with open_disk(older, **SMALL) as disk:
        yield disk, Recording(disk)


def what_goes_wrong(disk: Disk) -> str:
    again = disk.run()
    if again.status != 0:
        return f"did not go on: {again.said[-2000:]}"
    return "" if checked_digest(disk.out) == disk.digest else "other content"


def faults(recorded: tuple[Disk, Recording], cuts: list[int], seed: int) -> list[str]:
    disk, recording = recorded
    found = []
    for number, cut in enumerate(cuts):
        habit = HABITS[-1 - number % len(HABITS)]
        recording.leave(cut, habit, seed)
        try:
            wrong = what_goes_wrong(disk)
        except AssertionError as error:
            wrong = str(error)
        if wrong:
            found.append(f"{habit.__name__} after call {cut}, {recording.calls[cut - 1]}: {wrong}")
    return found


def sweeps(recording: Recording) -> list[int]:
    """Where a step ends: what was only needed for it is gone, and so is what says that it is to go."""
    return [cut for cut in recording.cuts() if _is_end_of_sweep(recording.calls[cut - 1])]


def _is_end_of_sweep(call: Call) -> bool:
    return call.kind == "rmdir" and call.path.endswith("/receipts")


def few(cuts: list[int], count: int, seed: int) -> list[int]:
    return sorted(random.Random(seed).sample(cuts, count))


def test_the_next_run_after_a_power_cut_ends_with_the_same_content(recorded: tuple[Disk, Recording]) -> None:
    cuts = recorded[1].cuts()
    assert len(cuts) > 1000
    assert faults(recorded, few(cuts, 4, 1), seed=1) == []


@pytest.mark.slow_faults
def test_nothing_that_was_removed_is_back_for_good_after_a_power_cut(
    recorded: tuple[Disk, Recording],
) -> None:
    disk, recording = recorded
    cuts = sweeps(recording)
    assert len(cuts) == len(disk.steps) - 1, "each step, and not the run, is swept"
    found = []
    for cut in few(cuts, QUICK, 2):
        recording.leave(cut, kept_at_random, 2)
        assert disk.run().status == 0
        found += [f"after call {cut}: {problem}" for problem in mill.verify(disk.out).problems]
    assert found == []


@pytest.mark.slow_faults
def test_a_power_cut_while_a_finished_build_is_described_again_leaves_nothing(
    recorded: tuple[Disk, Recording],
) -> None:
    """What a run knows at its end (which other builds there are)
    goes into the manifests of builds that are done."""
    disk, recording = recorded
    written = [
        (cut, call)
        for cut, call in enumerate(recording.calls, 1)
        if call.kind == "fsync" and call.path.endswith("-manifest.json")
    ]
    folders = [call.path.rpartition("/")[0] for _, call in written]
    again = [cut for number, (cut, _) in enumerate(written) if folders[number] in folders[:number]]
    assert again
    for cut in again:
        recording.leave(cut, kept_all, 9)
        assert what_goes_wrong(disk) == ""


@pytest.mark.slow_faults
def test_a_rebuild_that_a_power_cut_ended_ends_with_the_same_content(rebuilt: tuple[Disk, Recording]) -> None:
    assert faults(rebuilt, few(rebuilt[1].cuts(), QUICK, 3), seed=3) == []


@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.__name__)
def test_a_run_that_has_ended_is_safe(recorded: tuple[Disk, Recording], habit: Habit) -> None:
    disk, recording = recorded
    recording.leave(len(recording.calls), habit, seed=4)
    report = mill.verify(disk.out)
    assert report.problems == []
    assert report.digest == disk.digest


@pytest.mark.slow_faults
@pytest.mark.parametrize("part", range(PARTS))
def test_the_next_run_after_any_power_cut_ends_with_the_same_content(
    recorded: tuple[Disk, Recording], part: int
) -> None:
    assert faults(recorded, few(recorded[1].cuts(), WHOLE, 5)[part::PARTS], seed=6) == []


@pytest.mark.slow_faults
@pytest.mark.parametrize("part", range(PARTS))
def test_a_rebuild_that_any_power_cut_ended_ends_with_the_same_content(
    rebuilt: tuple[Disk, Recording], part: int
) -> None:
    cuts = rebuilt[1].cuts()
    assert faults(rebuilt, few(cuts, min(WHOLE, len(cuts)), 7)[part::PARTS], seed=8) == []
