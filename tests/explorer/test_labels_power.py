"""The power goes while labels are saved: none that was acknowledged is lost, whatever the disk keeps.

… write ─┊─ fsync ─┊─ acknowledged ─ … ─ write ─┊─ fsync ─┊─ rename ─┊─ fsync of the directory ─ …    ┊ here
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.disk import Call, Ended, Mode, compile_shim, open_scratch
from faults.power import HABITS, Recording
from tokmill.explorer.labels import Label, LabelStore

TURNS = 60
PROCESS = Path(__file__).with_name("labelling_process.py")


class LabelDisk:
    """One process that saves labels below `out`."""

    def __init__(self, scratch: Path) -> None:
        self.out, self.shadow = scratch / "out", scratch / "calls.tsv.d"
        self._log, self._library = scratch / "calls.tsv", compile_shim(scratch)

    def clear(self) -> None:
        shutil.rmtree(self.out, ignore_errors=True)

    def run(self, mode: Mode) -> Ended:
        self._log.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, PROCESS, self.out, self._log, str(int(mode)), str(TURNS)],
            env={
                **os.environ,
                "LD_PRELOAD": str(self._library),
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        calls = [Call(*line.split("\t")) for line in self._log.read_text().splitlines()]
        return Ended(done.returncode, done.stdout, calls)


@pytest.fixture(scope="module")
def recorded() -> Iterator[tuple[LabelDisk, Recording]]:
    with open_scratch() as scratch:
        disk = LabelDisk(scratch)
        yield disk, Recording(disk)


def acknowledged(calls: list[Call]) -> list[tuple[str, str | None]]:
    """Documents and their labels, None: taken back; in order."""
    names = [
        Path(call.path).name for call in calls if call.kind == "create" and "/acknowledged/" in call.path
    ]
    parts = [name.split("=") for name in names]
    return [(doc_id, None if label == "None" else label) for _, doc_id, label in parts]


def test_the_disk_is_watched(recorded: tuple[LabelDisk, Recording]) -> None:
    calls = recorded[1].calls
    assert len(acknowledged(calls)) == TURNS
    assert {"create", "write", "fsync", "rename"} <= {call.kind for call in calls}


@pytest.mark.parametrize("habit", HABITS, ids=lambda habit: habit.__name__)
def test_what_was_acknowledged_is_there_after_a_power_cut(
    recorded: tuple[LabelDisk, Recording], habit: object
) -> None:
    disk, recording = recorded
    every = acknowledged(recording.calls)
    for cut in recording.cuts():
        before = acknowledged(recording.calls[:cut])
        recording.leave(cut, habit, seed=3)  # type: ignore[arg-type]
        path = disk.out / "labels.jsonl"
        expected: dict[str, str | None] = dict(before)
        found = {one.doc_id: one.label for one in LabelStore(path).load()}
        # the one that was being saved may be there or not
        may: dict[str, str | None] = dict(every[len(before) : len(before) + 1])
        for doc_id, label in expected.items():
            assert found.get(doc_id) in (label, may.get(doc_id, label)), (cut, recording.calls[cut - 1])
        assert set(found) <= set(expected) | set(may)
        if cut % 7 == 0:  # and it goes on
            LabelStore(path).save(Label("one more", "se", "good"))
            after = {one.doc_id: one.label for one in LabelStore(path).load()}
            assert after == {**found, "one more": "good"}
