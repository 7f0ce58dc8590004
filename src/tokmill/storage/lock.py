"""One run at a time works in a directory.

    flock on the directory     the kernel's word: whoever holds it lives, and a dead process holds nothing
    <directory>/.lock          who that is; touched every two seconds, removed at the end

The note gives the holder a name. It also speaks where the kernel's word does not reach, on network file systems that
keep locks to one machine: there a note that is still touched is a run that lives, and one of this machine is asked
for by its pid and the time it began. A note that neither is was left by a run that was killed, and is replaced.

    .lock                  written beside it, then linked to its name: of runs that start together one has the name
    .tmp-<digest>-.lock    the right to remove the one note with that digest; taken as the note is, and given back. A
                           slow run that found the note of the dead cannot remove the note of who came in between
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
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
from tokmill.storage.commit import TEMP_PREFIX, make_directory, storage_error, temp_beside
from tokmill.storage.reading import unreadable

LOCK = ".lock"

_BEAT_SECONDS = 2.0
# Three beats, and a second for the file system between two machines.
_SILENT_SECONDS = 7.0
_POLL_SECONDS = 0.2
# How long a note may be without its end where it could not be linked whole to its name.
_HALF_SECONDS = 2.0
_GLANCE_SECONDS = 0.02
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
        make_directory(directory)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise storage_error(error, directory) from error
    try:
        _acquire(descriptor, directory / LOCK, wait, say)
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


def _is_this_process(holder: Holder) -> bool:
    return is_here(holder) and holder.pid == os.getpid()


def _acquire(descriptor: int, note: Path, wait: bool, say: Callable[[str], None]) -> None:
    has_said = False
    while True:
        is_held = not _flock(descriptor, note.parent)
        left = _read_note(note)
        holder = _holder_of(left)
        if not is_held and holder is not None:
            is_held = _is_alive(holder, note)
        if not is_held:
            if not _leave_note(note, left):
                continue
            if holder is not None:
                say(f"a run was killed here ({holder}); this one goes on where it stopped")
            return
        name = f" ({holder})" if holder is not None else ""
        if not wait:
            raise RunLocked(
                f"another tokmill run works in this directory{name}",
                where=str(note.parent),
                next="wait for it to end (`--wait` does), or choose another `--out`",
            )
        if not has_said:
            say(f"waiting for another tokmill run in {note.parent}{name}")
            has_said = True
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # it may be ours, and theirs in name only
        time.sleep(_POLL_SECONDS)


def _flock(descriptor: int, directory: Path) -> bool:
    """Whether the kernel lets us."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS_HERE:
            raise storage_error(error, directory) from error
    return True


def _is_alive(holder: Holder, note: Path) -> bool:
    if _is_this_process(holder):
        return False  # an earlier run of this process, which could not remove its note
    if is_here(holder):
        return holder.began != 0 and process_began(holder.pid) == holder.began
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


def _read_note(note: Path) -> bytes | None:
    """None where there is none. One that cannot be read is looked at again: it may be in the middle of being written.

    So may one that has just taken its place: each has its own time.
    """
    seen: bytes | None = None
    until = 0.0
    while True:
        try:
            left = note.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise unreadable(error, note) from error
        if left != seen:
            seen, until = left, time.monotonic() + _HALF_SECONDS
        if _holder_of(left) is not None or time.monotonic() > until:
            return left
        time.sleep(_GLANCE_SECONDS)


def _holder_of(left: bytes | None) -> Holder | None:
    try:
        return msgspec.json.decode(left or b"", type=Holder)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _leave_note(note: Path, left: bytes | None) -> bool:
    """Whether the name is ours now. `left`: the note of the dead that was found there."""
    try:
        return _write_note(note) if left is None else _replace_note(note, left)
    except OSError as error:
        raise storage_error(error, note) from error


def _replace_note(note: Path, left: bytes) -> bool:
    right = note.with_name(f"{TEMP_PREFIX}{hashlib.sha256(left).hexdigest()[:16]}-{LOCK}")
    other = _read_note(right)
    holder = _holder_of(other)
    if holder is not None and _is_alive(holder, right):
        time.sleep(_GLANCE_SECONDS)
        return False
    if not _leave_note(right, other):  # who was killed with the right in hand is replaced in the same way
        return False
    try:
        if note.read_bytes() != left:
            return False
        note.unlink()
        return _write_note(note)
    except FileNotFoundError:
        return False
    finally:
        right.unlink(missing_ok=True)


def _write_note(note: Path) -> bool:
    """Whether we were the first to."""
    since = datetime.now(UTC).isoformat(" ", timespec="seconds").replace("+00:00", " UTC")
    pid = os.getpid()
    holder = Holder(pid, socket.gethostname(), process_began(pid), since, this_machine())
    temp, written = temp_beside(note), msgspec.json.encode(holder) + b"\n"
    try:
        temp.write_bytes(written)
        try:
            note.hardlink_to(temp)
        except OSError as error:
            if error.errno not in _NO_LINKS_HERE:
                raise
            with note.open("xb", buffering=0) as file:
                file.write(written)
    except FileExistsError:
        return False
    finally:
        temp.unlink(missing_ok=True)
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
            holder = _holder_of(_read_again(note))
            # or we were silent for so long that another has it
            if holder is not None and _is_this_process(holder):
                note.unlink(missing_ok=True)


def _read_again(note: Path) -> bytes:
    """A disk may err once; the note of a run that has ended should not stay for that."""
    try:
        return note.read_bytes()
    except OSError:
        return note.read_bytes()


def _beat(note: Path, stop: threading.Event) -> None:
    with contextlib.suppress(OSError):  # the note is gone: so is whoever could ask
        while not stop.wait(_BEAT_SECONDS):
            os.utime(note)
