"""Every call that reads a file of ours, failing: survived, or told in one clear error;
never a wrong byte, never a wrong word.

EIO      one read, opening or look at a file fails; the next would not
stuck    a file that cannot be read, now or later
EINTR    a signal came in between                     survived
short    a read returns half of what was asked for    survived
ENOMEM   no memory to read into, or no room for a map
flip     a read returns a bit that is not on disk: for `verify`, which is asked what the disk has
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from faults.disk import Call, Disk, Ended, Mode, checked_digest, leftovers, open_disk, unsafe_receipts
from faults.test_disk import SMALL

PARTS = 8
KINDS = {
    Mode.R_EIO: ("read", "open", "stat"),
    Mode.R_STUCK: ("read", "open"),
    Mode.R_EINTR: ("read", "open"),
    Mode.R_SHORT: ("read",),
    Mode.R_ENOMEM: ("read", "open", "mmap"),
    Mode.R_FLIP: ("read",),
}
SURVIVED = (Mode.R_EINTR, Mode.R_SHORT)
OF_A_RUN = [mode for mode in KINDS if mode is not Mode.R_FLIP]
# What a second reading finds whole is whole.
OF_VERIFY = list(KINDS)
# what is found before any work is told at its place in the recipe or the command
_ERROR = re.compile(r"^[A-Z]\w+ (?:\S+, --out: )?(\S+): .+\n  next: .+", re.MULTILINE)


class Read(NamedTuple):
    """The disk, and what the undisturbed commands read of it."""

    disk: Disk
    run: list[Call]
    verify: list[Call]


def record(disk: Disk) -> Read:
    disk.clear()
    run = disk.run(Mode.READS)
    assert run.status == 0, run.said
    verify = disk.verify()
    assert verify.status == 0, verify.said
    return Read(disk, run.calls, verify.calls)


@pytest.fixture(scope="module")
def small() -> Iterator[Read]:
    with open_disk(**SMALL) as disk:
        yield record(disk)


@pytest.fixture(scope="module")
def whole() -> Iterator[Read]:
    with open_disk() as disk:
        yield record(disk)


def failing_calls(calls: list[Call], mode: Mode) -> list[int]:
    return [number for number, call in enumerate(calls, 1) if call.kind in KINDS[mode]]


def one_of_each(disk: Disk, calls: list[Call], mode: Mode) -> list[int]:
    """The first call of each kind to each kind of file: shards, processes and partitions are numbered."""
    found: dict[tuple[str, str], int] = {}
    for number in failing_calls(calls, mode):
        call = calls[number - 1]
        place = re.sub(r"-[0-9a-f]{8}-\d+-|\d+", "N", call.path.removeprefix(str(disk.out)))
        found.setdefault((call.kind, place), number)
    return sorted(found.values())


def few(numbers: list[int], count: int) -> list[int]:
    """As far from each other as they can be."""
    return sorted({numbers[len(numbers) * (2 * part + 1) // (2 * count)] for part in range(count)})


def what_goes_wrong_in_a_run(disk: Disk, mode: Mode, at: int) -> str:
    ended = disk.disturbed(mode, at)
    if not ended.status and (disk.out / ".lock").exists():
        return "left its note"
    if ended.status:
        wrong = of_an_error(disk, mode, ended)
        if wrong:
            return wrong
        again = disk.run()
        if again.status:
            return f"did not resume: {again.said}"
    return "" if checked_digest(disk.out) == disk.digest else "other content"


def of_an_error(disk: Disk, mode: Mode, ended: Ended) -> str:
    if mode in SURVIVED:
        return f"not survived: {ended.status} {ended.said[-1500:]}"
    told = _ERROR.findall(ended.said)
    if ended.status != 1 or len(told) != 1 or "Traceback" in ended.said:
        return f"no clean error: exit status {ended.status}: {ended.said[-3000:]}"
    if not told[0].startswith(str(disk.out)):
        return f"names no file of the run: {ended.said}"
    failed = [call for call in ended.calls if call.result != "ok"]
    if failed[0].kind in ("read", "mmap") and "cannot write" in ended.said:
        return f"tells of writing where it read: {ended.said}"
    if unsafe := unsafe_receipts(disk.out, disk.steps):
        return f"vouched for what is not there: {unsafe}"
    half = [name for name in leftovers(disk.out) if ".tmp-" in name and "journal" not in name]
    return f"left {half}" if half else ""


def what_goes_wrong_in_verify(disk: Disk, mode: Mode, at: int) -> str:
    """Of a finished run. One fault is not two: only what cannot be read the second time either is told."""
    ended = disk.verify(mode, at)
    if mode is not Mode.R_STUCK:
        return (
            ""
            if ended.status == 0 and "all proven" in ended.said
            else f"status {ended.status}: {ended.said[-3000:]}"
        )
    if ended.status != 1 or "Traceback" in ended.said:
        return f"status {ended.status}: {ended.said[-3000:]}"
    (failed, *_) = (call for call in ended.calls if call.result == "EIO")
    if (
        failed.path.removeprefix(f"{disk.out}/") not in ended.said
        or "cannot be read (Input/output error)" not in ended.said
    ):
        return f"does not say that {failed.path} cannot be read: {ended.said}"
    slander = [
        word for word in ("damaged", "truncated", "missing", "extra file", "cut") if word in ended.said
    ]
    return f"calls it {slander}: {ended.said}" if slander else ""


def faults(
    read: Read, calls: list[Call], mode: Mode, numbers: list[int], look: Callable[[Disk, Mode, int], str]
) -> list[str]:
    found = []
    for at in numbers:
        try:
            wrong = look(read.disk, mode, at)
        except AssertionError as error:
            wrong = str(error)
        if wrong:
            found.append(f"{mode.name} at call {at}, {calls[at - 1]}: {wrong}")
    return found


@pytest.mark.parametrize("mode", KINDS, ids=lambda mode: mode.name)
def test_a_fault_meets_a_call_that_can_have_it(small: Read, mode: Mode) -> None:
    """Threads change the order of calls: what stands at the number may be any."""
    others = [number for number, call in enumerate(small.run, 1) if call.kind not in KINDS[mode]]
    ended = small.disk.disturbed(mode, others[len(others) // 2])
    met = next(call for call in ended.calls if call.result != "ok")
    assert met.kind in KINDS[mode]


@pytest.mark.parametrize("mode", OF_A_RUN, ids=lambda mode: mode.name)
def test_a_read_that_fails_is_survived_or_told_and_the_next_run_goes_on(small: Read, mode: Mode) -> None:
    numbers = one_of_each(small.disk, small.run, mode)
    chosen = []
    for kind in KINDS[mode]:
        chosen += few([number for number in numbers if small.run[number - 1].kind == kind], 2)
    assert faults(small, small.run, mode, chosen, what_goes_wrong_in_a_run) == []


@pytest.mark.slow_faults
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("mode", OF_A_RUN, ids=lambda mode: mode.name)
def test_any_read_that_fails_is_survived_or_told_and_the_next_run_goes_on(
    small: Read, mode: Mode, part: int
) -> None:
    numbers = failing_calls(small.run, mode)[part::PARTS]
    assert faults(small, small.run, mode, numbers, what_goes_wrong_in_a_run) == []


@pytest.mark.slow_faults
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("mode", OF_A_RUN, ids=lambda mode: mode.name)
def test_a_read_of_any_kind_of_file_that_fails_is_survived_or_told(
    whole: Read, mode: Mode, part: int
) -> None:
    numbers = one_of_each(whole.disk, whole.run, mode)[part::PARTS]
    assert faults(whole, whole.run, mode, numbers, what_goes_wrong_in_a_run) == []


@pytest.fixture
def finished(small: Read) -> Read:
    small.disk.clear()
    assert small.disk.run().status == 0
    return small


@pytest.mark.parametrize("mode", OF_VERIFY, ids=lambda mode: mode.name)
def test_verify_reads_again_before_it_calls_a_file_damaged(finished: Read, mode: Mode) -> None:
    numbers = few(one_of_each(finished.disk, finished.verify, mode), 20)
    assert faults(finished, finished.verify, mode, numbers, what_goes_wrong_in_verify) == []


@pytest.mark.slow_faults
@pytest.mark.parametrize("mode", OF_VERIFY, ids=lambda mode: mode.name)
def test_verify_reads_anything_again_before_it_calls_it_damaged(finished: Read, mode: Mode) -> None:
    numbers = failing_calls(finished.verify, mode)
    assert faults(finished, finished.verify, mode, numbers, what_goes_wrong_in_verify) == []
