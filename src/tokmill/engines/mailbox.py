"""What a driver and a job on another node say to each other: two files of a shared disk, and a pulse.

    <spool>/pulse                 {"beat": 17}, written in its place every five seconds while the driver lives
    <spool>/0003-0007.orders      driver ──> job     one JSON object per line, appended, closed
    <spool>/0003-0007.replies     job ──> driver     likewise

    Order(number, order) · End()                                             orders
    Hello(job, node, pid) · Word(…) · Answer(number, reply) · Lost(number)   replies
    Returned(numbers) · Beat() · Leaving() · Bye(read)

Network file systems keep two promises: who opens a file sees what was closed before, and a line that has its
end is whole. They do not say when a directory shows a new name, or when a missing file stops being missing.
So the driver makes both files before the job is submitted: nobody ever lists a directory, or looks for a file
that is not there yet. One process writes each file; a mailbox is never used twice.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from tokmill.storage.disk import storage_error

PULSE_SECONDS = 5.0
_PULSE = "pulse"
_PULSE_BYTES = 32


class Order(msgspec.Struct, frozen=True, tag=True):
    number: int
    order: msgspec.Raw


class End(msgspec.Struct, frozen=True, tag=True):
    """What is at work is broken off, and the job ends."""


class Hello(msgspec.Struct, frozen=True, tag=True):
    job: str
    node: str
    pid: int


class Word(msgspec.Struct, frozen=True, tag=True):
    logger: str
    level: int
    message: str
    counted: list[int | str] | None = None


class Answer(msgspec.Struct, frozen=True, tag=True):
    number: int
    reply: msgspec.Raw


class Lost(msgspec.Struct, frozen=True, tag=True):
    """The process that had this order died; the job goes on."""

    number: int


class Returned(msgspec.Struct, frozen=True, tag=True):
    """Orders that were not carried out: the job was told to end."""

    numbers: list[int]


class Beat(msgspec.Struct, frozen=True, tag=True):
    """Nothing new: the job lives, and the disk can be written."""


class Leaving(msgspec.Struct, frozen=True, tag=True):
    """It takes no more orders."""


class Bye(msgspec.Struct, frozen=True, tag=True):
    """Nothing of this job can write any more. Orders after the first `read` were not seen."""

    read: int
    why: str


ToJob = Order | End
FromJob = Hello | Word | Answer | Lost | Returned | Beat | Leaving | Bye
T = TypeVar("T")


class Garbled(Exception):
    """A whole line is not what a line can be: a disk was full, or somebody else has written there."""


class Mailbox:
    """The paths of one job's files."""

    def __init__(self, spool: Path, batch: int, index: int) -> None:
        stem = f"{batch:04}-{index:04}"
        self.orders, self.replies = spool / f"{stem}.orders", spool / f"{stem}.replies"

    def make(self) -> None:
        for path in (self.orders, self.replies):
            with _telling(path):
                path.touch(exist_ok=False)


def append(path: Path, messages: Iterable[msgspec.Struct]) -> None:
    """Whole lines, to a file that is there. Closed afterwards: that is what others wait for."""
    lines = b"".join(msgspec.json.encode(message) + b"\n" for message in messages)
    with _telling(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            while lines:
                lines = lines[os.write(descriptor, lines) :]
        finally:
            os.close(descriptor)


class Reader(Generic[T]):
    """What is new in a file whenever it is asked. It is opened each time: that is what makes a network file
    system look."""

    def __init__(self, path: Path, kinds: object) -> None:
        self._path = path
        self._decoder = msgspec.json.Decoder(kinds)
        self._offset = 0

    def read(self) -> list[T]:
        with self._path.open("rb", buffering=0) as stream:
            stream.seek(self._offset)
            data = stream.readall()
        whole, end, _ = (data or b"").rpartition(b"\n")
        try:
            messages: list[T] = [self._decoder.decode(line) for line in whole.split(b"\n") if line]
        except msgspec.MsgspecError as error:
            raise Garbled(f"{self._path}: {error}") from error
        self._offset += len(whole) + len(end)
        return messages


# --- the pulse of the driver ---


class Pulse:
    """Beats from now on, whatever the driver is doing, until it is stopped or its process is gone."""

    def __init__(self, spool: Path) -> None:
        self._path = spool / _PULSE
        self._stopped = threading.Event()
        self._beat = 0
        with _telling(self._path):
            self._write()
        self._thread = threading.Thread(target=self._beat_on, name="pulse", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _beat_on(self) -> None:
        while not self._stopped.wait(PULSE_SECONDS):
            with contextlib.suppress(OSError):  # of a disk that is full, or away for a moment: the next one
                self._write()

    def _write(self) -> None:
        """In its place, not by a rename: a client may go on with the old file of a name for a minute."""
        self._beat += 1
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            os.pwrite(descriptor, f'{{"beat": {self._beat}}}'.encode().ljust(_PULSE_BYTES), 0)
        finally:
            os.close(descriptor)


def read_pulse(spool: Path) -> bytes:
    """Another one than before: the driver lives. None where the spool is gone."""
    try:
        return (spool / _PULSE).read_bytes()
    except OSError:
        return b""


@contextlib.contextmanager
def _telling(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise storage_error(error, path) from error
