"""Two runs in one directory at once: the second is refused by the name of the first, or waits for it."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

import tokmill as mill
from faults.at_task import AtTask
from faults.disk import checked_digest
from mill import small_corpus, tokmill
from slurm_nodes import until
from tokmill.errors import RunLocked
from tokmill.storage import lease
from tokmill.storage.disk import TEMP_PREFIX
from tokmill.storage.lease import Holder, NoteFile, open_lease
from written import LOCK, began, leave_note

TESTS = Path(__file__).resolve().parents[1]

HOLD = """
import sys
from pathlib import Path
from tokmill.storage.lease import open_lease
with open_lease(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def tiny_corpus(directory: Path) -> Path:
    return small_corpus(directory, problems=20, tokenizer=None, builds=None)


@contextlib.contextmanager
def holder_of(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the directory until its stdin ends."""
    command = [sys.executable, "-c", HOLD, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_the_second_run_is_refused_by_the_name_of_the_first(tmp_path: Path) -> None:
    recipe, out = tiny_corpus(tmp_path), tmp_path / "out"
    with holder_of(out) as first:
        refused = tokmill("run", recipe, "--out", out)
        assert refused.returncode == 1
        assert f"RunLocked {out}" in refused.stderr
        assert f"(pid {first.pid} on {socket.gethostname()}, since 2" in refused.stderr
        first.communicate("")
    assert list(out.iterdir()) == [], "a lock was left, or the second run has written"
    assert tokmill("run", recipe, "--out", out).returncode == 0
    assert not (out / LOCK).exists()


def test_the_second_run_waits_when_it_is_told_to(tmp_path: Path) -> None:
    recipe, out = tiny_corpus(tmp_path), tmp_path / "out"
    main = "from tokmill.cli import main; main()"
    command = [sys.executable, "-c", main, "run", recipe, "--out", out, "--workers", "1", "--wait"]
    with holder_of(out) as first:
        second = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert second.stderr is not None
        assert f"waiting for another tokmill run in {out} (pid {first.pid}" in second.stderr.readline()
        assert second.poll() is None
        first.communicate("")
        assert second.wait(300) == 0
        second.stderr.close()
    checked_digest(out)


def test_the_lock_of_a_killed_run_is_recognised(tmp_path: Path) -> None:
    recipe, out = tiny_corpus(tmp_path), tmp_path / "out"
    with holder_of(out) as first:
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert (out / LOCK).exists()
    ran = tokmill("run", recipe, "--out", out)
    assert ran.returncode == 0, ran.stderr
    assert f"a run was killed here (pid {first.pid} on {socket.gethostname()}" in ran.stderr
    assert not (out / LOCK).exists()


@contextlib.contextmanager
def touching(note: Path) -> Iterator[None]:
    """As the process of another machine does while it lives."""
    stop = threading.Event()

    def touch() -> None:
        beats = 0
        while not stop.wait(0.1):
            beats += 1
            os.utime(note, ns=(beats, beats))

    beating = threading.Thread(target=touch)
    beating.start()
    try:
        yield
    finally:
        stop.set()
        beating.join()


def test_a_pid_that_came_back_is_another_process(tmp_path: Path) -> None:
    recipe, parent = tiny_corpus(tmp_path), os.getppid()
    note = leave_note(tmp_path / "out", parent, socket.gethostname(), began(parent) - 1)
    ran = tokmill("run", recipe, "--out", tmp_path / "out")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count(f"a run was killed here (pid {parent} on") == 1
    assert not note.exists()


def test_a_note_of_a_process_that_lives_is_believed_where_the_kernel_knows_no_lock(tmp_path: Path) -> None:
    recipe, parent = tiny_corpus(tmp_path), os.getppid()
    note = leave_note(tmp_path / "out", parent, socket.gethostname(), began(parent))
    before = note.read_bytes()
    refused = tokmill("run", recipe, "--out", tmp_path / "out")
    assert refused.returncode == 1
    assert f"RunLocked {tmp_path / 'out'}" in refused.stderr
    assert f"(pid {parent} on" in refused.stderr
    assert [*(tmp_path / "out").iterdir()] == [note], "two runs in one directory"
    assert note.read_bytes() == before, "the note of the other was removed"


def test_a_run_on_another_machine_lives_as_long_as_it_touches_its_note(tmp_path: Path) -> None:
    recipe, note = tiny_corpus(tmp_path), leave_note(tmp_path / "out", 1, "elsewhere", 1)
    with touching(note):
        refused = tokmill("run", recipe, "--out", tmp_path / "out")
    assert refused.returncode == 1
    assert "(pid 1 on elsewhere" in refused.stderr
    assert [*(tmp_path / "out").iterdir()] == [note], "two runs in one directory"
    ran = tokmill("run", recipe, "--out", tmp_path / "out")  # now it is silent
    assert ran.returncode == 0, ran.stderr
    assert "(pid 1 on elsewhere" in ran.stderr
    assert not note.exists()


def test_a_pid_of_a_container_with_our_name_is_not_looked_for_among_ours(tmp_path: Path) -> None:
    """Pods have the same pids, and may have the same name:
    what is not touched there is dead, whoever has its pid here."""
    recipe, pid, host = tiny_corpus(tmp_path), os.getpid(), socket.gethostname()
    note = leave_note(tmp_path / "out", pid, host, began(pid), machine="another boot pid:[1]")
    before = note.read_bytes()
    with touching(note):
        refused = tokmill("run", recipe, "--out", tmp_path / "out")
    assert refused.returncode == 1
    assert f"(pid {pid} on" in refused.stderr
    assert note.read_bytes() == before
    ran = tokmill("run", recipe, "--out", tmp_path / "out")
    assert ran.returncode == 0, ran.stderr
    assert not note.exists()


# Each as if on a machine of its own that shares a disk without locks;
# all at once, and nobody leaves before all have tried.
TOGETHER = """
import errno, fcntl, multiprocessing, sys
from pathlib import Path
from tokmill.errors import RunLocked
from tokmill.storage.lease import open_lease

def no_locks(descriptor, operation):
    raise OSError(errno.ENOLCK, "no locks here")

def compete(number, meeting, won):
    fcntl.flock = no_locks
    for directory in sorted(Path(sys.argv[1]).iterdir()):
        meeting.wait()
        try:
            with open_lease(directory):
                won[number] = True
                meeting.wait()
        except RunLocked:
            meeting.wait()
        if number == 0:
            print(sum(won), flush=True)
        meeting.wait()
        won[number] = False

fork = multiprocessing.get_context("fork")
meeting, won = fork.Barrier(4), fork.Array("b", 4, lock=False)
runs = [fork.Process(target=compete, args=(number, meeting, won)) for number in range(4)]
for run in runs: run.start()
for run in runs: run.join()
"""

DEAD = msgspec.json.encode(Holder(1, socket.gethostname(), 1, "2026-01-01 00:00:00 UTC"))


@pytest.mark.parametrize(
    ("left", "rounds"),
    [
        pytest.param(None, 300, id="no note"),
        pytest.param(DEAD, 100, id="the note of the dead"),
        pytest.param(b'{"pid": 1', 1, id="a note that cannot be read"),  # and is looked at for two seconds
        pytest.param(b'{"pid": 1', 20, id="twenty that cannot be read", marks=pytest.mark.slow_faults),
    ],
)
@pytest.mark.parametrize("has_links", [True, False])
def test_of_runs_that_start_together_without_a_kernels_lock_one_has_the_name(
    tmp_path: Path, left: bytes | None, rounds: int, has_links: bool
) -> None:
    for number in range(rounds):
        (tmp_path / f"{number:03}").mkdir()
        if left is not None:
            (tmp_path / f"{number:03}" / LOCK).write_bytes(left)
    without_links = (
        "import errno, os\ndef link(*names, **options): raise OSError(errno.EPERM, 'none')\nos.link = link\n"
    )
    script = TOGETHER if has_links else without_links + TOGETHER
    ran = subprocess.run(
        [sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=False, timeout=300
    )
    assert ran.stdout == "1\n" * rounds, ran.stderr
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []


# The first process of a container has pid 1, in every container.
NAMED = """
import os
from pathlib import Path
from tokmill.storage.disk import temp_beside
os.getpid = lambda: 1
print(temp_beside(Path("documents-00000.parquet")), temp_beside(Path("documents-00000.parquet")))
"""


def test_two_processes_with_one_pid_have_no_temp_name_in_common() -> None:
    said = [
        subprocess.run([sys.executable, "-c", NAMED], capture_output=True, text=True, check=True, timeout=300)
        for _ in range(2)
    ]
    names = [name for one in said for name in one.stdout.split()]
    assert len(set(names)) == 4
    assert all(name.startswith(f"{TEMP_PREFIX}1-") for name in names), "sweeps know them by this"


def test_a_note_that_takes_the_place_of_one_that_cannot_be_read_has_time_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where notes cannot be linked, what a run leaves is empty for a moment:
    just when the time of the last one is over."""
    note, now = tmp_path / LOCK, 0.0
    note.write_bytes(b'{"pid": 1')

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        if now > 1.5 * lease._HALF_SECONDS:
            note.write_bytes(DEAD)
        elif now > lease._HALF_SECONDS - seconds:
            note.write_bytes(b"")

    monkeypatch.setattr(lease, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now))
    found = NoteFile(note).load()
    assert found is not None
    assert found.data == DEAD


def test_a_note_that_cannot_be_read_keeps_nobody_out(tmp_path: Path) -> None:
    recipe, note = tiny_corpus(tmp_path), leave_note(tmp_path / "out", 1, "x", 1)
    note.write_bytes(b'{"pid": 1')
    ran = tokmill("run", recipe, "--out", tmp_path / "out")
    assert ran.returncode == 0, ran.stderr
    assert not note.exists()


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_note_that_cannot_be_read_at_the_end_is_removed_by_who_wrote_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_ours: bool
) -> None:
    def fail(path: Path) -> bytes:
        raise OSError(errno.EIO, "the disk", str(path))

    note = tmp_path / LOCK
    with open_lease(tmp_path):
        if not is_ours:
            note.unlink()
            note.write_bytes(DEAD)
        monkeypatch.setattr(Path, "read_bytes", fail)
    assert note.exists() != is_ours


def test_no_lock_is_left_by_a_run_that_fails(tmp_path: Path) -> None:
    recipe = tiny_corpus(tmp_path)
    (tmp_path / "problems.jsonl").write_text("{\n" * 50)
    failed = tokmill("run", recipe, "--out", tmp_path / "out")
    assert failed.returncode == 1
    assert not (tmp_path / "out" / LOCK).exists()


def test_of_two_runs_that_start_together_one_works_and_both_end_well(tmp_path: Path) -> None:
    recipe, out = tiny_corpus(tmp_path), tmp_path / "out"
    main = "from tokmill.cli import main; main()"
    command = [sys.executable, "-c", main, "run", recipe, "--out", out, "--workers", "1", "--wait", "--json"]
    pair = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    ran = [msgspec.json.decode(process.communicate(timeout=300)[0]) for process in pair]
    assert [process.returncode for process in pair] == [0, 0]
    assert sorted(len(result["ran"]) for result in ran) == [0, len(ran[0]["steps"])]
    checked_digest(out)
    assert not (out / LOCK).exists()


def in_memory() -> dict[str, object]:
    sources = [
        {
            "name": name,
            "data": [{"id": f"{name}{n}", "text": f"The {name} mill turns {n} times."} for n in range(9)],
        }
        for name in ("first", "second")
    ]
    return {"name": "memory", "sources": sources}


def test_a_second_run_or_plan_leaves_the_records_that_the_first_has_from_memory(tmp_path: Path) -> None:
    out = tmp_path / "out"
    planned: list[mill.Plan] = []

    def meddle() -> None:
        with pytest.raises(RunLocked):
            mill.run(in_memory(), out, workers=1)
        planned.append(mill.plan(in_memory(), out))

    mill.run(in_memory(), out, workers=1, progress=AtTask(1, meddle))
    assert list(planned[0].steps) == list(mill.plan(in_memory(), out).steps)
    assert not any(mill.plan(in_memory(), out).steps.values()), "what is up to date is not known again"
    mill.run(in_memory(), tmp_path / "fresh", workers=1)
    assert checked_digest(out) == checked_digest(tmp_path / "fresh")


def test_a_plan_leaves_nothing_behind(tmp_path: Path) -> None:
    mill.plan(in_memory(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


# A run as on a machine of its own that shares a disk without locks; after its first task it does something.
ELSEWHERE = """
import errno, fcntl, os, signal, sys, time
from pathlib import Path
from faults.at_task import AtTask
from tokmill.storage import lease

def no_locks(descriptor, operation):
    raise OSError(errno.ENOLCK, "no locks here")

fcntl.flock = no_locks
machine, recipe, out, act = sys.argv[1:]
lease.this_machine = lambda: machine

def stop():
    os.kill(os.getpid(), signal.SIGSTOP)

def pause():
    Path(f"{out}.paused").touch()
    while Path(f"{out}.paused").exists():
        time.sleep(0.05)

import tokmill
from tokmill.errors import TokmillError
try:
    tokmill.run(recipe, out, workers=1, wait=True, progress=AtTask(1, {"stop": stop, "pause": pause}[act]))
except TokmillError as error:
    sys.exit(f"{type(error).__name__} {error}")
"""


def started_elsewhere(machine: str, recipe: Path, out: Path, act: str) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-c", ELSEWHERE, machine, str(recipe), str(out), act]
    return subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )


@pytest.mark.parametrize("is_over", [False, True])
def test_a_run_that_was_stopped_for_so_long_that_another_took_over_ends(
    tmp_path: Path, is_over: bool
) -> None:
    recipe, out = tiny_corpus(tmp_path), tmp_path / "out"
    paused = tmp_path / "out.paused"
    with started_elsewhere("one", recipe, out, "stop") as first:
        os.waitid(os.P_PID, first.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        with started_elsewhere("another", recipe, out, "pause") as second:
            try:
                until(paused.exists, "the second does not take over", 120)
                if is_over:
                    paused.unlink()
                    assert second.wait() == 0
                first.send_signal(signal.SIGCONT)
                said = first.communicate()[1]
                paused.unlink(missing_ok=True)
                assert second.wait() == 0
            finally:
                first.kill()
                second.kill()
    assert first.returncode == 1, "it went on, with another run in its directory"
    assert f"RunLocked {out}: another run has taken this place over" in said
    mill.run(recipe, tmp_path / "fresh", workers=1)
    (out / "journal.json").unlink(missing_ok=True)  # of the first, which ended badly
    assert checked_digest(out) == checked_digest(tmp_path / "fresh")


def test_a_run_goes_on_while_its_note_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> bytes:
        raise OSError(errno.EIO, "the disk", str(path))

    with open_lease(tmp_path) as held:
        before = (tmp_path / LOCK).stat().st_mtime_ns
        monkeypatch.setattr(Path, "read_bytes", fail)
        held.heartbeat()
        held.check()
        assert (tmp_path / LOCK).stat().st_mtime_ns > before, (
            "who looks from elsewhere would take it for dead"
        )
