"""What a driver and a job on another node say to each other, and the place where they do: a spool.

    pulse                     another one every few seconds while the driver lives
    prepare.json              what tasks of this run use
    0003-0007 orders          driver ──> job     lines of JSON, appended
    0003-0007 replies         job ──> driver     likewise

    Order(number, order) · End()                                             orders
    Hello(job, node) · Word(…) · Answer(number, reply) · Lost(number)        replies
    Returned(numbers) · Logged(text) · Beat() · Leaving() · Bye(why)

A spool is a directory that all nodes share (`disk_spool`) or a prefix of an object store (`store_spool`).
Either way one process writes each box and one reads it, a mailbox is never used twice, and nothing is listed:
a box is asked for what comes next.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from tokmill.errors import TokmillError
from tokmill.storage.traffic import in_context

PREPARE = "prepare.json"
# Seconds between looks: few after the last news, then more, for a disk that all jobs share.
NAPS = (0.002, 0.25)


class Order(msgspec.Struct, frozen=True, tag=True):
    number: int
    order: msgspec.Raw


class End(msgspec.Struct, frozen=True, tag=True):
    """What is at work is broken off, and the job ends."""


class Hello(msgspec.Struct, frozen=True, tag=True):
    job: str
    node: str
    token: str = ""  # of this start of the job: two of them at once do not say the same


class Word(msgspec.Struct, frozen=True, tag=True):
    logger: str
    level: int
    message: str
    counted: list[int | str] | None = None


class Logged(msgspec.Struct, frozen=True, tag=True):
    """Lines of the job's log, where the driver cannot read it."""

    text: str


class Answer(msgspec.Struct, frozen=True, tag=True):
    number: int
    reply: msgspec.Raw
    traffic: dict[str, Any] = {}  # with the store of this spool, since it was last told


class Lost(msgspec.Struct, frozen=True, tag=True):
    """The process that had this order died; the job goes on."""

    number: int


class Returned(msgspec.Struct, frozen=True, tag=True):
    """Orders that were not carried out: the job was told to end."""

    numbers: list[int]


class Beat(msgspec.Struct, frozen=True, tag=True):
    """Nothing new: the job lives, and the disk can be written."""

    traffic: dict[str, Any] = {}


class Leaving(msgspec.Struct, frozen=True, tag=True):
    """It takes no more orders."""


class Bye(msgspec.Struct, frozen=True, tag=True):
    """Nothing of this job can write any more."""

    why: str
    traffic: dict[str, Any] = {}


ToJob = Order | End
FromJob = Hello | Word | Logged | Answer | Lost | Returned | Beat | Leaving | Bye
T = TypeVar("T")


class Garbled(Exception):
    """A whole line is not what a line can be: a disk was full, or somebody else has written there."""


class Gone(Exception):
    """The spool is not there any more: the run is over."""


class Box(Protocol[T]):
    """One way of a mailbox: one end appends, the other reads. Both raise TokmillError where the place cannot
    be reached, which may pass."""

    def append(self, messages: Iterable[msgspec.Struct]) -> None: ...
    def read(self) -> list[T]: ...  # all that is new. Raises Garbled, and Gone
    def look(self) -> list[T]: ...  # likewise, where it is time to: looks may cost money
    def hurry(self) -> None: ...  # something is to be expected


class Mailbox(NamedTuple):
    orders: Box[ToJob]
    replies: Box[FromJob]


Found = list[T] | Exception  # that came of a look: not every box is as well as the others


class Spool(Protocol):
    address: str  # for the command line of a job: open_spool
    pulse_seconds: float
    beat_seconds: float  # a job says at least so often that it lives
    orphan_seconds: float  # without a pulse: the driver is gone
    pending_nap: float  # between looks at the boxes of jobs that have not begun, for each of them
    carries_logs: bool  # what jobs print is on their nodes, and is told to the driver

    def make(self, batch: int, index: int) -> Mailbox: ...  # of a job that is to be submitted
    def mailbox(self, batch: int, index: int) -> Mailbox: ...  # as the job has it
    def look(self, boxes: Sequence[Box[FromJob]]) -> list[Found[FromJob]]: ...
    def send(self, letters: Sequence[tuple[Box[ToJob], Sequence[ToJob]]]) -> None: ...
    def write_prepare(self, data: bytes) -> None: ...
    def load_prepare(self) -> bytes: ...
    def write_pulse(self, beat: int) -> None: ...
    def read_pulse(self) -> bytes: ...  # raises Gone
    def remove(self) -> None: ...


class Pulse:
    """Beats from now on, whatever the driver is doing, until it is stopped or its process is gone."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._stopped = threading.Event()
        self._beat = 1
        spool.write_pulse(self._beat)
        self._thread = threading.Thread(target=in_context(self._beat_on), name="pulse", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _beat_on(self) -> None:
        while not self._stopped.wait(self._spool.pulse_seconds):
            self._beat += 1
            with contextlib.suppress(TokmillError):  # a disk that is full, a store that is away: the next one
                self._spool.write_pulse(self._beat)


def tried(box: Box[T]) -> Found[T]:
    try:
        return box.look()
    except (TokmillError, Garbled, Gone) as error:
        return error


def encode_lines(messages: Iterable[msgspec.Struct]) -> bytes:
    return b"".join(msgspec.json.encode(message) + b"\n" for message in messages)


def decode_lines(lines: bytes, decoder: msgspec.json.Decoder[T], where: object) -> list[T]:
    try:
        return [decoder.decode(line) for line in lines.split(b"\n") if line]
    except msgspec.MsgspecError as error:
        raise Garbled(f"{where}: {error}") from error
