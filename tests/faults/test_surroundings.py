"""What a command stands on, taken away: its streams, its directory, the memory that processes share.

Each ends as it would have, or in one clear error. Commands that need a descriptor closed or a directory gone
are started by a shell, as a user would; the others are forked.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import tokmill as mill
from faults.disk import checked_digest, open_scratch
from forked import IS_LINUX, MAIN, start_forked
from mill import small_corpus

FULL = Path("/dev/full")
TOKMILL = shlex.join([sys.executable, "-c", MAIN])
NO_NAMESPACE = "needs Linux and the right to make a mount namespace"
COMMANDS = [
    "verify {out}",
    "verify {out} --json",
    "run {recipe} --out {out} --workers 1",
    "run {recipe} --out {out} --workers 1 --json",
    "why {out} --reason too_short",
    "status {out} --json",
    "--help",
    "run --help",
    "--version",
]


class Made(NamedTuple):
    recipe: Path
    out: Path
    digest: str

    def spell(self, command: str) -> list[str]:
        return command.format(recipe=self.recipe, out=self.out).split()


class Ended(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture(scope="module")
def made() -> Iterator[Made]:
    if not IS_LINUX:
        pytest.skip("passes descriptors as Linux does")
    with open_scratch() as scratch:
        recipe = small_corpus(scratch / "corpus")
        out = mill.run(recipe, scratch / "out", workers=1).out
        yield Made(recipe, out, checked_digest(out))


def forked(
    made: Made, command: str, scratch: Path, out: Path | None = None, err: Path | None = None
) -> Ended:
    """With these files for its streams, or some that can be read afterwards."""
    paths = [out or scratch / "out.txt", err or scratch / "err.txt"]
    with paths[0].open("wb") as first, paths[1].open("wb") as second:
        started = start_forked(
            [MAIN, *made.spell(command)], os.environ, scratch, first.fileno(), second.fileno()
        )
        status = started.wait()
    return Ended(status, *("" if path == FULL else path.read_text() for path in paths))


def shell(script: str, scratch: Path) -> Ended:
    done = subprocess.run(
        ["bash", "-c", script], cwd=scratch, capture_output=True, text=True, check=False, timeout=300
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def is_one_clear_error(ended: Ended, kind: str) -> bool:
    *_, what, next = ended.err.splitlines()
    return (
        ended.status == 1
        and what.startswith(f"{kind} ")
        and next.startswith("  next: ")
        and "Traceback" not in ended.err
        and ended.err.count("  next: ") == 1
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_result_that_finds_no_room_is_told_on_stderr(made: Made, tmp_path: Path, command: str) -> None:
    ended = forked(made, command, tmp_path, out=FULL)
    assert is_one_clear_error(ended, "OutputLost"), ended
    assert "standard output: the result cannot be written (No space left on device)" in ended.err
    assert checked_digest(made.out) == made.digest


@pytest.mark.parametrize(
    "command", ["verify {out}", "run {recipe} --out {out} --workers 1 --json", "status {out}"]
)
def test_words_that_find_no_room_stop_nothing(made: Made, tmp_path: Path, command: str) -> None:
    usual = forked(made, command, tmp_path)
    ended = forked(made, command, tmp_path, err=FULL)
    assert ended.status == usual.status
    assert len(ended.out.splitlines()) == len(usual.out.splitlines())


def test_a_run_whose_words_find_no_room_is_done_all_the_same(made: Made, tmp_path: Path) -> None:
    ended = forked(made, f"run {{recipe}} --out {tmp_path}/out --workers 1", tmp_path, err=FULL)
    assert ended.status == 0
    assert checked_digest(tmp_path / "out") == made.digest


def test_a_usage_error_that_finds_no_room_keeps_its_status(made: Made, tmp_path: Path) -> None:
    assert forked(made, "verify", tmp_path, err=FULL).status == 2
    assert forked(made, "verify nowhere", tmp_path, err=FULL).status == 1


@pytest.mark.parametrize(("closed", "workers"), [(">&-", 2), ("2>&-", 1), (">&- 2>&- <&-", 2)])
def test_a_run_whose_streams_are_closed_is_done(
    made: Made, tmp_path: Path, closed: str, workers: int
) -> None:
    """A file of the run that got the number of a closed stream would have words in it."""
    ended = shell(f"{TOKMILL} run {made.recipe} --out out --workers {workers} {closed}", tmp_path)
    assert ended.status == 0, ended
    assert "Traceback" not in ended.err
    assert checked_digest(tmp_path / "out") == made.digest


def test_verify_says_by_its_status_what_it_cannot_print(made: Made, tmp_path: Path) -> None:
    assert shell(f"{TOKMILL} verify {made.out} >&- 2>&-", tmp_path).status == 0
    assert shell(f"{TOKMILL} verify {tmp_path} >&- 2>&-", tmp_path).status == 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_enough_ends_the_command_quietly(
    made: Made, tmp_path: Path, unbuffered: str
) -> None:
    """`| head -1`, and a reader that is gone before anything is printed."""
    command = f"PYTHONUNBUFFERED={unbuffered} {TOKMILL} run --help"
    ended = shell(f"{{ {command}; echo $? >status; }} | :", tmp_path)
    assert ended.err == ""
    assert (tmp_path / "status").read_text().strip() in ("0", "1")


@pytest.mark.parametrize("verb", ["verify", "status"])
def test_a_directory_that_is_gone_is_not_needed_for_absolute_paths(
    made: Made, tmp_path: Path, verb: str
) -> None:
    ended = shell(f"mkdir gone; cd gone; rmdir ../gone; {TOKMILL} {verb} {made.out}", tmp_path)
    assert ended.status == 0, ended


@pytest.mark.parametrize(
    "command",
    [
        "run ../recipe.yaml --out out --workers 1",
        "doctor",
        "dedup --input {corpus}/problems.jsonl --text question --out {corpus}/unique",
    ],
)
def test_a_directory_that_is_gone_is_told(made: Made, tmp_path: Path, command: str) -> None:
    spelled = command.format(corpus=made.recipe.parent)
    shutil.copy(made.recipe, tmp_path)
    ended = shell(f"mkdir gone; cd gone; rmdir ../gone; {TOKMILL} {spelled}", tmp_path)
    assert is_one_clear_error(ended, "StorageError"), ended
    assert "the directory in which this command was started is gone" in ended.err


@pytest.fixture
def namespace() -> str:
    """How a shell begins that may mount what nobody else sees. Only new mounts:
    to change one changes it for all."""
    if (
        shutil.which("unshare") is None
        or subprocess.run(["unshare", "-m", "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip(NO_NAMESPACE)
    return "set -e; mount --make-rprivate /; "


def within(script: str, scratch: Path) -> Ended:
    return shell(f"unshare -m bash -c {shlex.quote(script)}", scratch)


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A directory that is there without /dev/shm."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.mark.parametrize("mount", ["mount -t tmpfs -o ro none /dev/shm", "mkdir dev; mount --bind dev /dev"])
def test_a_machine_without_shared_memory_has_workers_all_the_same(
    made: Made, on_disk: Path, namespace: str, mount: str
) -> None:
    corpus = small_corpus(on_disk / "corpus")
    ended = within(f"{namespace}{mount}; {TOKMILL} run {corpus} --out {on_disk}/out --workers 2", on_disk)
    assert ended.status == 0, ended
    assert checked_digest(on_disk / "out") == made.digest
    environment = json.loads((on_disk / "out/manifest.json").read_bytes())["environment"]
    assert environment["workers"] == 2


def test_a_machine_without_room_for_temporary_files_is_told(
    made: Made, tmp_path: Path, namespace: str
) -> None:
    mounts = "; ".join(
        f"[ ! -d {place} ] || mount -t tmpfs -o ro none {place}" for place in ("/var/tmp", "/usr/tmp", "/tmp")
    )
    ended = within(
        f"{namespace}mkdir -p /run/none; mount -t tmpfs -o ro none /run/none; cd /run/none; {mounts}; "
        f"{TOKMILL} doctor",
        tmp_path,
    )
    assert is_one_clear_error(ended, "StorageError"), ended
    assert "set TMPDIR" in ended.err
