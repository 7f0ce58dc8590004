"""One run at a time in a directory, or below a URL.

    free                        taken ──────┐
    held, and its holder lives  RunLocked by the holder's name, or waited for
    held, and it has expired    taken over ─┴─> Lease ─ heartbeat, heartbeat, … ─ released ─> free

A holder of this machine lives as long as its process does: its pid, and when it began.
Of any other the heartbeat is watched; one that is not seen in time has expired: its run was killed.

    <directory>/.lock          the note of who holds it; touched every two seconds, removed at the end
        flock on the directory     the kernel's word comes first. Network file systems may keep it to one
                                   machine
        .tmp-<etag>-.lock          the right to remove the one note with that etag; taken as the note is, and
                                   given back. A slow run that found the note of the dead cannot remove that
                                   of who came in between
    <url>/claim.json           the same note; replaced every four seconds (If-Match), at the end by one that
                               nobody holds: an object cannot be deleted on a condition everywhere

The lease of a URL spares two runs the work that one of them would lose. It is not what keeps a publication
whole: that is the conditional write of the manifest, which holds whatever happens to the lease.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import msgspec
import psutil

from tokmill.errors import RunLocked, StorageError
from tokmill.storage.cloud import Loaded, wrong_etag
from tokmill.storage.disk import (
    TEMP_PREFIX,
    make_directory,
    read_regular,
    storage_error,
    temp_beside,
    unreadable,
)
from tokmill.storage.location import ObjectUrl
from tokmill.storage.objects import open_store

LOCK, CLAIM = ".lock", "claim.json"

# How long a note may be without its end where it could not be linked whole to its name.
_HALF_SECONDS = 2.0
_GLANCE_SECONDS = 0.02
# For who only looks: the clocks of two machines may differ a little.
_SEEN_SECONDS = 30
_NO_LOCKS_HERE = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
_NO_LINKS_HERE = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)

_held_here: set[str] = set()  # nonces of this process: an earlier note of it may have stayed behind


class Holder(msgspec.Struct, frozen=True):
    """The note. A process is known by its machine, its pid and when it began:
    pids come back, and so do names of hosts."""

    pid: int
    host: str  # for people
    began: int
    since: str
    machine: str = ""
    recipe: str = ""
    nonce: str = ""
    is_held: bool = True
    beat: int = 0
    unfinished: list[str] = []  # keys below which a writer may have left objects of no publication

    def __str__(self) -> str:
        recipe = f"recipe {self.recipe}, " if self.recipe else ""
        return f"{recipe}pid {self.pid} on {self.host}, since {self.since}"


class Place(Protocol):
    """Where a note lies, and how it is written on a condition:
    an etag is returned, or None where another was first."""

    doing: str  # what a run does there
    heartbeat_seconds: float
    expiry_seconds: float  # three heartbeats, and a little for the way there
    poll_seconds: float

    def load(self) -> Loaded | None: ...
    def last_beat(self) -> object | None: ...
    def take(self, note: bytes, before: Loaded | None) -> str | None: ...
    def renew(self, note: bytes, etag: str) -> str | None: ...
    def release(self, note: bytes, etag: str) -> None: ...

    # What not every place has
    def is_locked(self) -> bool:
        return False

    def unlock(self) -> None:
        return

    def close(self) -> None:
        return


class Lease:
    """Held. `check` raises where it was lost; `write_unfinished` notes what is half uploaded below a URL."""

    def __init__(self, place: Place, holder: Holder, etag: str) -> None:
        self._place, self._holder, self._etag = place, holder, etag
        self._writing = threading.Lock()
        self._is_lost = False
        self._beat_at = time.monotonic()

    @property
    def unfinished(self) -> list[str]:
        return self._holder.unfinished

    def check(self) -> None:
        if time.monotonic() - self._beat_at > self._place.expiry_seconds:
            self.heartbeat()  # this process was stopped: the next beat may come too late
        if self._is_lost:
            raise RunLocked(
                "another run has taken this place over, because this one was not heard of for too long",
                where=str(self._place),
                next=(
                    "look at what that run makes; the same command goes on from here if it is to be this one"
                ),
            )

    def write_unfinished(self, prefixes: list[str]) -> None:
        self._write(unfinished=sorted(set(prefixes)))
        self.check()

    def heartbeat(self) -> None:
        with contextlib.suppress(OSError, StorageError):  # out of reach: the next one tries again
            self._write()

    def release(self) -> None:
        free = Holder(0, "", 0, "", is_held=False, beat=self._holder.beat + 1, unfinished=self.unfinished)
        with self._writing, contextlib.suppress(OSError, StorageError):  # it will expire
            if not self._is_lost:
                self._place.release(msgspec.json.encode(free), self._etag)

    def _write(self, **changes: object) -> None:
        with self._writing:
            if self._is_lost:
                return
            holder = msgspec.structs.replace(self._holder, beat=self._holder.beat + 1, **changes)
            etag = self._place.renew(msgspec.json.encode(holder), self._etag)
            if etag is None:
                self._is_lost = True
            else:
                self._holder, self._etag = holder, etag
                self._beat_at = time.monotonic()


@contextlib.contextmanager
def open_lease(
    where: Path | ObjectUrl,
    recipe: str = "",
    *,
    wait: bool = False,
    say: Callable[[str], None] = lambda message: None,
) -> Iterator[Lease]:
    """Hold the place, or refuse by the name of who does; with `wait`, hold it when they are done."""
    pid, nonce = os.getpid(), secrets.token_hex(8)
    since = datetime.now(UTC).isoformat(" ", timespec="seconds").replace("+00:00", " UTC")
    mine = Holder(pid, socket.gethostname(), process_began(pid), since, this_machine(), recipe, nonce)
    place: Place = DirectoryPlace(where) if isinstance(where, Path) else ObjectPlace(where)
    stop = threading.Event()

    def keep_beating() -> None:
        while not stop.wait(place.heartbeat_seconds):
            lease.heartbeat()

    beating = threading.Thread(target=keep_beating, daemon=True)
    _held_here.add(nonce)
    try:
        lease = _acquire(place, mine, wait, say)
        beating.start()
        try:
            yield lease
        finally:
            stop.set()
            beating.join()
            lease.release()
    finally:
        _held_here.discard(nonce)
        place.close()


def find_holder(directory: Path) -> Holder | None:
    """Who works in the directory, as far as can be told without waiting; None: nobody."""
    note = directory / LOCK
    try:
        holder = _holder_of(Loaded(read_regular(note), ""))
        age = time.time() - note.stat().st_mtime
    except OSError:
        return None
    if holder is None:
        return None
    lives = _lives_here(holder)
    return holder if lives or (lives is None and age < _SEEN_SECONDS) else None


def _acquire(place: Place, mine: Holder, wait: bool, say: Callable[[str], None]) -> Lease:
    has_said = False
    while True:
        is_held = place.is_locked()
        before = place.load()
        holder = _holder_of(before)  # None where it cannot be read: that keeps nobody out
        was_held = holder is not None and holder.is_held
        is_held = is_held or (holder is not None and holder.is_held and _is_alive(holder, place))
        if not is_held:
            note = msgspec.structs.replace(mine, unfinished=holder.unfinished) if holder is not None else mine
            etag = place.take(msgspec.json.encode(note), before)
            if etag is None:
                continue  # somebody was quicker: look who
            if was_held:
                say(f"a run was killed here ({holder}); this one goes on where it stopped")
            return Lease(place, note, etag)
        name = f" ({holder})" if was_held else ""
        if not wait:
            raise RunLocked(
                f"another tokmill run {place.doing}{name}",
                where=str(place),
                next="wait for it to end (`--wait` does), or choose another `--out`",
            )
        if not has_said:
            say(f"waiting for another tokmill run in {place}{name}")
            has_said = True
        place.unlock()  # it may be ours, and theirs in name only
        time.sleep(place.poll_seconds)


def _holder_of(note: Loaded | None) -> Holder | None:
    try:
        return None if note is None else msgspec.json.decode(note.data, type=Holder)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


# Is the holder alive?


def _is_alive(holder: Holder, place: Place) -> bool:
    lives = _lives_here(holder)
    if lives is not None:
        return lives
    first = place.last_beat()
    until = time.monotonic() + place.expiry_seconds
    while time.monotonic() < until:
        time.sleep(place.poll_seconds)
        beat = place.last_beat()
        if beat != first:
            return beat is not None
    return False


def _lives_here(holder: Holder) -> bool | None:
    """None where this machine cannot be asked for the holder's pid."""
    is_here = holder.machine == this_machine() if holder.machine else holder.host == socket.gethostname()
    if not is_here:
        return None
    if holder.pid == os.getpid():
        return holder.nonce in _held_here
    return holder.began != 0 and process_began(holder.pid) == holder.began


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
    """Where a pid means what it means here: this start of the kernel, this container.
    Pods may share a host's name."""
    with contextlib.suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {pid_space()}"
    return socket.gethostname()


def pid_space() -> str:
    """Which processes a pid counts here: those of this container. Empty where the system cannot say."""
    with contextlib.suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return ""


# Below a URL


class ObjectPlace(Place):
    doing = "publishes here"
    heartbeat_seconds, expiry_seconds, poll_seconds = 4.0, 15.0, 0.5

    def __init__(self, url: ObjectUrl) -> None:
        self._store, self._url, self._key = open_store(url), url, url.child(CLAIM).key

    def __str__(self) -> str:
        return str(self._url)

    def load(self) -> Loaded | None:
        return self._store.load(self._key)

    def last_beat(self) -> object | None:
        meta = self._store.head(self._key)
        return meta and meta.etag

    def take(self, note: bytes, before: Loaded | None) -> str | None:
        etag = self._store.create(self._key, note) if before is None else self.renew(note, before.etag)
        if etag is not None:
            self._check_conditions()
        return etag

    def renew(self, note: bytes, etag: str) -> str | None:
        return self._store.replace(self._key, note, etag)

    def release(self, note: bytes, etag: str) -> None:
        self.renew(note, etag)

    def _check_conditions(self) -> None:
        """Two writes that must be refused. A server that accepts them cannot keep two runs apart."""
        pretends = (
            self._store.create(self._key, b"{}") is not None
            or self._store.replace(self._key, b"{}", wrong_etag(self._url.scheme)) is not None
        )
        if pretends:
            raise StorageError(
                "the store takes conditional writes and does not keep their condition",
                where=str(self._url),
                next=(
                    f"`tokmill doctor --storage {self._url}` tells more; publish to a store that does, or to "
                    "a directory"
                ),
            )


# In a directory


class NoteFile(Place):
    """A note on a disk. It is written beside its name and then linked to it:
    of runs that start together one has it."""

    doing = "works in this directory"
    heartbeat_seconds, expiry_seconds, poll_seconds = 2.0, 7.0, 0.2

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written = -1  # open while it is ours, so that no other file gets its inode

    def __str__(self) -> str:
        return str(self._path.parent)

    def load(self) -> Loaded | None:
        """One that cannot be decoded is looked at again: it may be in the middle of being written.

        So may one that has just taken its place: each has its own time.
        """
        seen: bytes | None = None
        until = 0.0
        while True:
            try:
                data = read_regular(self._path)
            except FileNotFoundError:
                return None
            except OSError as error:
                raise unreadable(error, self._path) from error
            if data != seen:
                seen, until = data, time.monotonic() + _HALF_SECONDS
            note = Loaded(data, _etag(data))
            if _holder_of(note) is not None or time.monotonic() > until:
                return note
            time.sleep(_GLANCE_SECONDS)

    def last_beat(self) -> object | None:
        try:
            with self._path.open(
                "rb"
            ) as file:  # opened anew: a network file system asks its server only then
                return os.fstat(file.fileno()).st_mtime_ns
        except OSError:
            return None

    def take(self, note: bytes, before: Loaded | None) -> str | None:
        try:
            is_ours = self._create(note) if before is None else self._take_over(note, before)
        except OSError as error:
            raise storage_error(error, self._path) from error
        return _etag(note) if is_ours else None

    def renew(self, note: bytes, etag: str) -> str | None:
        """Touched: what it says stays. Where there is none, who took it over is done by now."""
        try:
            if not self._is_ours(etag):
                return None
            os.utime(self._written)
        except FileNotFoundError:
            return None
        return etag

    def release(self, note: bytes, etag: str) -> None:
        if self._is_ours(etag):  # or we were silent for so long that another has it
            self._path.unlink(missing_ok=True)

    def _is_ours(self, etag: str) -> bool:
        for _ in range(2):  # a disk may err once
            with contextlib.suppress(OSError):
                return _etag(read_regular(self._path)) == etag
        # a note that cannot be read should not stay for that
        return self._written >= 0 and os.path.samestat(os.fstat(self._written), self._path.stat())

    def _take_over(self, note: bytes, before: Loaded) -> bool:
        right = NoteFile(self._path.with_name(f"{TEMP_PREFIX}{before.etag}-{LOCK}"))
        other = right.load()
        holder = _holder_of(other)
        if holder is not None and _is_alive(holder, right):
            time.sleep(_GLANCE_SECONDS)
            return False
        if (
            right.take(note, other) is None
        ):  # who was killed with the right in hand is replaced in the same way
            return False
        try:
            if read_regular(self._path) != before.data:
                return False
            self._path.unlink()
            return self._create(note)
        except FileNotFoundError:
            return False
        finally:
            right._path.unlink(missing_ok=True)
            right.close()

    def _create(self, note: bytes) -> bool:
        """Whether we were the first to."""
        temp = temp_beside(self._path)
        try:
            written = _write_new(temp, note)
            try:
                self._path.hardlink_to(temp)
            except OSError as error:
                os.close(written)
                if error.errno not in _NO_LINKS_HERE:
                    raise
                written = _write_new(self._path, note)
        except FileExistsError:
            return False
        finally:
            temp.unlink(missing_ok=True)
        self._written = written  # kept open: it says which file is ours, whether or not that can be read
        return True

    def close(self) -> None:
        if self._written >= 0:
            os.close(self._written)


class DirectoryPlace(NoteFile):
    """With the kernel's word before the note's: whoever has the lock lives, and a dead process has none."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / LOCK)
        try:
            make_directory(directory)
            self._descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise storage_error(error, directory) from error

    def is_locked(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError as error:
            if error.errno not in _NO_LOCKS_HERE:
                raise storage_error(error, self._path.parent) from error
        return False

    def unlock(self) -> None:
        with contextlib.suppress(OSError):
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        super().close()
        os.close(self._descriptor)


def _write_new(path: Path, note: bytes) -> int:
    """An open file that was not there before, with all of the note in it."""
    with path.open("xb") as file:
        file.write(note)
        file.flush()
        return os.dup(file.fileno())


def _etag(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
