"""One run at a time works in a directory.

    flock on the directory     the kernel's word: whoever holds it lives, and a dead process holds nothing
    <directory>/.lock          who that is; touched every two seconds, removed at the end

The note gives the holder a name. It also speaks where the kernel's word does not reach, on network file systems that
keep locks to one machine: there a note that is still touched is a run that lives, and one of this machine is asked
for by its pid and the time it began. A note that neither is was left by a run that was killed, and is replaced.

    written beside it, then linked to its name: of two runs that start together one has the name, whole, and the other
    looks again
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import psutil

from tokmill.errors import RunLocked
from tokmill.storage.commit import storage_error, temp_beside

LOCK = ".lock"

_BEAT_SECONDS = 2.0
# Three beats, and a second for the file system between two machines.
_SILENT_SECONDS = 7.0
_POLL_SECONDS = 0.2
_NO_LOCKS_HERE = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_NO_LINKS_HERE = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)


class Holder(msgspec.Struct, frozen=True):
    """A process is known by its machine, its pid and when it began: a pid alone comes back, and so does a host's name."""

    pid: int
    host: str  # for people
    began: int
    since: str
    machine: str = ""

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}, since {self.since}"


@contextlib.contextmanager
def open_lock(
    directory: Path, *, wait: bool = False, say: Callable[[str], None] = lambda message: None
) -> Iterator[None]:
    """Hold the directory, or refuse by the name of who does; with `wait`, hold it when they are done."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise storage_error(error, directory) from error
    try:
        _acquire(descriptor, directory, wait, say)
        with _beating(directory / LOCK):
            yield
    finally:
        os.close(descriptor)


def process_began(pid: int) -> int:
    """0 where there is no such process. On Linux in ticks since the machine started: no clock moves it."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        if Path("/proc/self/stat").exists():
            return int(stat.read_text().rpartition(")")[2].split()[19])
        return round(psutil.Process(pid).create_time() * 100)
    except (OSError, IndexError, psutil.Error):
        return 0


@functools.cache
def this_machine() -> str:
    """Where a pid means what it means here: this start of the kernel, this container. Pods may share a host's name."""
    with contextlib.suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {pid_space()}"
    return socket.gethostname()


def pid_space() -> str:
    """Which processes a pid counts here: those of this container. Empty where the system cannot say."""
    with contextlib.suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return ""


def is_here(holder: Holder) -> bool:
    """Whether this machine can be asked for the holder's pid."""
    return holder.machine == this_machine() if holder.machine else holder.host == socket.gethostname()


def _acquire(descriptor: int, directory: Path, wait: bool, say: Callable[[str], None]) -> None:
    has_said = False
    while True:
        is_held = not _flock(descriptor)
        holder = _read_note(directory / LOCK)
        if not is_held and holder is not None:
            is_held = _is_alive(holder, directory / LOCK)
        if not is_held:
            if not _leave_note(directory / LOCK, replaces=holder):
                continue
            if holder is not None:
                say(f"a run was killed here ({holder}); this one goes on where it stopped")
            return
        name = f" ({holder})" if holder is not None else ""
        if not wait:
            raise RunLocked(
                f"another tokmill run works in this directory{name}",
                where=str(directory),
                next="wait for it to end (--wait does), or choose another --out",
            )
        if not has_said:
            say(f"waiting for another tokmill run in {directory}{name}")
            has_said = True
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # it may be ours, and theirs in name only
        time.sleep(_POLL_SECONDS)


def _flock(descriptor: int) -> bool:
    """Whether the kernel lets us."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            raise
    return True


def _is_alive(holder: Holder, note: Path) -> bool:
    if is_here(holder):
        is_us = holder.pid == os.getpid()  # an earlier run of this process, which could not remove its note
        return not is_us and holder.began != 0 and process_began(holder.pid) == holder.began
    first = _last_beat(note)
    until = time.monotonic() + _SILENT_SECONDS
    while time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
        beat = _last_beat(note)
        if beat != first:
            return beat is not None
    return False


def _last_beat(note: Path) -> int | None:
    try:
        with note.open("rb") as file:  # opened anew: a network file system asks its server only then
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return None


def _read_note(note: Path) -> Holder | None:
    try:
        return msgspec.json.decode(note.read_bytes(), type=Holder)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _leave_note(note: Path, replaces: Holder | None) -> bool:
    """Whether we were the first to: a note that is there by now is another's, unless it is the one to be replaced."""
    since = datetime.now(UTC).isoformat(" ", timespec="seconds").replace("+00:00", " UTC")
    pid = os.getpid()
    holder = Holder(pid, socket.gethostname(), process_began(pid), since, this_machine())
    temp = temp_beside(note)
    try:
        try:
            temp.write_bytes(msgspec.json.encode(holder) + b"\n")
            if _read_note(note) == replaces:  # None: absent, or in no state to keep anybody out
                note.unlink(missing_ok=True)
            return _link(temp, note)
        finally:
            temp.unlink(missing_ok=True)
    except OSError as error:
        raise storage_error(error, note) from error


def _link(temp: Path, note: Path) -> bool:
    try:
        note.hardlink_to(temp)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS_HERE:
            raise
        temp.replace(note)
    return True


@contextlib.contextmanager
def _beating(note: Path) -> Iterator[None]:
    stop = threading.Event()
    beating = threading.Thread(target=_beat, args=(note, stop), daemon=True)
    beating.start()
    try:
        yield
    finally:
        stop.set()
        beating.join()
        with contextlib.suppress(OSError):
            note.unlink(missing_ok=True)


def _beat(note: Path, stop: threading.Event) -> None:
    with contextlib.suppress(OSError):  # the note is gone: so is whoever could ask
        while not stop.wait(_BEAT_SECONDS):
            os.utime(note)
