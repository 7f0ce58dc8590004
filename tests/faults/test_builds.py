"""A build in many tasks that is killed, damaged or has no room, at any of them: the next run is the same."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from forked import run_forked
from mill import small_corpus
from tokmill.artifacts.step import Made, Task, TaskFunction
from tokmill.errors import DiskFull
from tokmill.formats import index as row_index
from tokmill.stages import registry
from tokmill.stages.build import cutting

BUILDS: list[dict[str, Any]] = [
    {"name": "one", "format": "memmap", "pack": {"layout": "concat", "length": 64}},
    {"name": "parts", "format": "npy", "rows_per_shard": 48, "pack": {"layout": "concat", "length": 64}},
    {"name": "lists", "format": "megatron"},
]
Act = Callable[[], None]
FRAME_ROWS = 16
KILLED_RUN = """
import sys
from pathlib import Path
from faults.test_builds import die_in
die_in(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
"""
TASKS = ("build.plan", "build.index", "build.files", "build.places", "build.join")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_corpus(tmp_path_factory.mktemp("cut"), problems=600, builds=BUILDS)


@pytest.fixture(scope="module")
def expected(recipe: Path, few_rows_a_frame: None) -> dict[str, str]:
    """What one task for each split writes."""
    return contents(mill.run(recipe, recipe.parent / "expected", workers=1).out)


@pytest.fixture(autouse=True)
def _cut_small(monkeypatch: pytest.MonkeyPatch, expected: dict[str, str]) -> None:
    cut_small(monkeypatch)


def cut_small(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cutting, "_ONE_TASK_WEIGHT", 0)
    patch.setattr(cutting, "_STRETCH_TOKENS", 4000)


@pytest.fixture(scope="module")
def few_rows_a_frame() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_index, "FRAME_ROWS", FRAME_ROWS)
        yield


def contents(out: Path) -> dict[str, str]:
    return {
        path.relative_to(out).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted((out / "build").rglob("*"))
        if path.is_file() and path.name not in ("manifest.json", "meta.json")
    }


class Spoiled:
    """One of the functions that a task calls: at a write of it, something happens, once."""

    def __init__(
        self, patch: pytest.MonkeyPatch, function: str, act: Callable[[], None], at: int = 2
    ) -> None:
        self._real, self._act, self._at, self._patch = registry.FUNCTIONS[function], act, at, patch
        self.performed: list[str] = []
        for name, known in list(registry.FUNCTIONS.items()):
            chosen = self._perform if name == function else known.perform
            patch.setitem(registry.FUNCTIONS, name, TaskFunction(known.options, self._noted(name, chosen)))

    def _noted(self, name: str, perform: Callable[[Task], Made]) -> Callable[[Task], Made]:
        def noted(task: Task) -> Made:
            self.performed.append(name)
            return perform(task)

        return noted

    def _perform(self, task: Task) -> Made:
        write, calls = os.write, 0

        def spoiled(descriptor: int, data: Any) -> int:
            nonlocal calls
            calls += 1
            if calls == self._at and self._at:
                self._at = 0
                written = write(descriptor, bytes(data)[: len(data) // 2])  # half of it is there
                self._act()
                return written
            return write(descriptor, data)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tokmill.storage.disk.os.write", spoiled)
            return self._real.perform(task)


def no_room() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def spoiled_run(recipe: Path, out: Path, function: str, act: Act) -> None:
    with pytest.MonkeyPatch.context() as patch:
        Spoiled(patch, function, act)
        mill.run(recipe, out, workers=1)


def killed_run(recipe: Path, out: Path, function: str) -> int:
    """In a process of its own that is killed at the second write of such a task; its status.

    Not forked from the one that tests, which may have threads of other tests.
    """
    arguments = [str(recipe), str(out), function]
    return run_forked(arguments, dict(os.environ), code=KILLED_RUN).returncode


def die_in(recipe: Path, out: Path, function: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        cut_small(patch)
        patch.setattr(row_index, "FRAME_ROWS", FRAME_ROWS)
        spoiled_run(recipe, out, function, lambda: os.kill(os.getpid(), signal.SIGKILL))


@pytest.mark.parametrize("function", TASKS)
def test_a_run_that_was_killed_in_a_task_goes_on_to_the_same_bytes(
    recipe: Path, expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    out = tmp_path / "out"
    assert killed_run(recipe, out, function) == -signal.SIGKILL
    assert not list((out / "build").glob("*/manifest.json"))
    again = Spoiled(monkeypatch, function, no_room, at=0)
    mill.run(recipe, out, workers=1)
    assert contents(out) == expected
    assert mill.verify(out).problems == []
    assert not list(out.rglob(".tmp-*"))
    if function != "build.plan":  # of three builds, two splits each: the one at least that it came from
        assert again.performed.count("build.plan") < 2 * len(BUILDS), "receipts of what was done before hold"


@pytest.mark.parametrize("function", TASKS)
def test_a_task_without_room_is_told_and_leaves_nothing_half_written(
    recipe: Path, expected: dict[str, str], tmp_path: Path, function: str
) -> None:
    out = tmp_path / "out"
    with pytest.raises(DiskFull):
        spoiled_run(recipe, out, function, no_room)
    assert not list(out.rglob(".tmp-*"))
    there = contents(out)
    ours = {name: digest for name, digest in there.items() if name in expected}
    assert ours == {name: expected[name] for name in ours}, "what has its name is whole"
    mill.run(recipe, out, workers=1)
    assert contents(out) == expected


def test_a_short_write_of_a_large_piece_is_an_error(
    recipe: Path, expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though a thread hashes it meanwhile."""
    monkeypatch.setattr("tokmill.storage.disk._HASHED_APART", 1)
    with pytest.raises(DiskFull):
        spoiled_run(recipe, tmp_path / "out", "build.files", lambda: None)
    mill.run(recipe, tmp_path / "out", workers=1)
    assert contents(tmp_path / "out") == expected


@pytest.mark.parametrize(
    ("pattern", "function"),  # a file, and a task that has no room after it was written
    [
        ("one/plan-train-00000.bin", "build.places"),
        ("parts/train.index-00001.part", "build.join"),
        ("one/train/*.mmap", "build.places"),
    ],
)
def test_what_was_cut_or_damaged_between_two_runs_is_made_again(
    recipe: Path, expected: dict[str, str], tmp_path: Path, pattern: str, function: str
) -> None:
    out = tmp_path / "out"
    name = pattern.partition("/")[0]
    alone = recipe.with_name(f"{name}.yaml")  # builds of one run are written side by side, in any order
    builds = [build for build in BUILDS if build["name"] == name]
    alone.write_text(json.dumps({**json.loads(recipe.read_text()), "builds": builds}))
    whole, recipe = recipe, alone
    with pytest.raises(DiskFull):
        spoiled_run(recipe, out, function, no_room)
    (path,) = (out / "build").glob(pattern)
    data = path.read_bytes()
    for damage in (data[: len(data) // 2], data[:-1] + bytes([data[-1] ^ 1])):
        path.write_bytes(damage)
        with pytest.raises(DiskFull):
            spoiled_run(recipe, out, function, no_room)
        assert path.read_bytes() == data
    mill.run(whole, out, workers=1)
    assert contents(out) == expected
