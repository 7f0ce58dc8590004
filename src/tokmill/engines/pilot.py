"""What a job does: it takes orders from its mailbox, and has processes of its node carry them out.

    python -m tokmill.engines.pilot SPOOL BATCH PROCESSES IDLE_SECONDS     in an array, whose variables it has

    orders ──> one free process each (`processes`: forked, loaded ahead) ──> replies
                  └─ it dies: Lost, its order is known, and the job goes on

It ends by itself, with a Bye when nothing of it can write any more:

    no order for IDLE_SECONDS         nobody needs it
    End, or the spool is gone         the run is over: what is at work is broken off
    no pulse for ORPHAN_SECONDS       the driver was killed: likewise
    SIGTERM                           cancelled, preempted, out of time: likewise, and the orders are returned
    SIGUSR1                           what is at work is finished, and nothing else is begun
    a mailbox that was used           the job was requeued: its orders are with others by now

This process itself does no work, so it hears all of that at any time, and outlives what a task does to its
process. Its log has a line for every task that begins and ends.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections import deque
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from tokmill.artifacts.progress import LOGGER
from tokmill.engines.cluster import WorkerLost
from tokmill.engines.forking import forked_server
from tokmill.engines.mailbox import (
    Answer,
    Beat,
    Bye,
    End,
    FromJob,
    Garbled,
    Hello,
    Leaving,
    Lost,
    Mailbox,
    Order,
    Reader,
    Returned,
    ToJob,
    Word,
    append,
    read_pulse,
)
from tokmill.engines.own_process import spare_collector
from tokmill.engines.processes import Handle, Load, Prepare, Processes
from tokmill.errors import TokmillError

PREPARE = "prepare.json"  # of the spool: what tasks of this run use
ORPHAN_SECONDS = 60.0
BEAT_SECONDS = 10.0
# Between looks for an order: short after the last one, then longer, for a disk that all jobs share.
_NAPS = (0.002, 0.25)
_BUSY_NAP = 0.5
# A signal goes to all processes of a job: one that has died of it is not dead by its task.
_HELD_BACK_SECONDS = 1.0


class _TaskName(msgspec.Struct, frozen=True):
    function: str
    key: str


class _Named(msgspec.Struct, frozen=True):
    task: _TaskName


class Pilot:
    def __init__(self, spool: Path, mailbox: Mailbox, processes: int, idle_seconds: float) -> None:
        self._spool, self._mailbox = spool, mailbox
        self._orders: Reader[ToJob] = Reader(mailbox.orders, ToJob)
        self._outbox: list[msgspec.Struct] = []
        self._most = processes
        self._idle_seconds = idle_seconds
        self._processes = Processes(processes, _load_prepare(spool))
        self._waiting: deque[Order] = deque()
        self._at_work: dict[Handle, tuple[int, str, float]] = {}  # number, name, since when
        self._read = 0
        self._why = ""  # it ends
        self._is_leaving = self._has_said_so = False
        now = time.monotonic()
        self._busy_at = self._beat_at = self._pulse_at = now
        self._pulse = b""

    def work(self) -> None:
        # The handlers first: who says hello may be told to end.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._hear_term)
        signal.signal(signal.SIGUSR1, self._hear_usr1)
        _log_to(self._outbox)
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
        self._outbox.append(Hello(job, os.environ["SLURMD_NODENAME"], os.getpid()))
        nap = _NAPS[0]
        while not self._why:
            self._send()
            took = self._take_orders()
            self._begin()
            nap = _NAPS[0] if took else min(nap * 1.5, _NAPS[1])
            self._processes.hear(nap if len(self._at_work) < self._most else _BUSY_NAP)
            if self._hand_in():
                nap = _NAPS[0]
            self._look_around()
        self._leave()

    def _take_orders(self) -> bool:
        try:
            messages = self._orders.read()
        except FileNotFoundError:
            self._why = "the run is over"
            return False
        except (OSError, Garbled) as error:
            _tell(f"orders cannot be read: {error}")
            return False  # the disk may be back in a moment; else the driver is not heard any more
        for message in messages:
            if isinstance(message, End):
                self._why = "told to end"
            else:
                self._read += 1
                self._waiting.append(message)
        return bool(messages)

    def _begin(self) -> None:
        while self._waiting and not self._is_leaving and not self._why and len(self._at_work) < self._most:
            order = self._waiting.popleft()
            body = bytes(order.order)
            task = msgspec.json.decode(body, type=_Named).task
            name = f"{task.function} {task.key}"
            _tell(f"begin {name}")
            self._at_work[self._processes.submit(body)] = order.number, name, time.monotonic()

    def _hand_in(self) -> bool:
        over = [handle for handle in self._at_work if handle.is_over]
        for handle in over:
            number, name, since = self._at_work[handle]
            try:
                reply = self._processes.reply(handle)
            except WorkerLost:
                time.sleep(_HELD_BACK_SECONDS)
                if self._why:
                    continue  # returned with the others
                _tell(f"died  {name}")
                self._outbox.append(Lost(number))
            else:
                _tell(f"end   {name} ({time.monotonic() - since:.1f} s)")
                self._outbox.append(Answer(number, msgspec.Raw(reply)))
            del self._at_work[handle]
        if over or self._at_work:
            self._busy_at = time.monotonic()
        return bool(over)

    def _look_around(self) -> None:
        now = time.monotonic()
        if now - self._beat_at > BEAT_SECONDS:
            self._beat_at = now
            self._outbox.append(Beat())
            pulse = read_pulse(self._spool)
            if pulse and pulse != self._pulse:
                self._pulse, self._pulse_at = pulse, now
        if self._is_leaving and not self._has_said_so:
            self._has_said_so = True
            self._outbox.append(Leaving())
        if self._why:
            return
        if now - self._pulse_at > ORPHAN_SECONDS:
            self._why = "the driver is gone"
        elif not self._at_work and self._is_leaving:
            self._why = "told to take no more"
        elif now - self._busy_at > self._idle_seconds and not self._waiting:
            self._why = "nothing to do"

    def _leave(self) -> None:
        """First nothing is at work any more, then it is said so."""
        _tell(f"leaving: {self._why}")
        self._processes.cancel(list(self._at_work))
        numbers = [number for number, _, _ in self._at_work.values()]
        numbers += [order.number for order in self._waiting]
        if numbers:
            self._outbox.append(Returned(numbers))
        self._processes.close()
        self._outbox.append(Bye(self._read, self._why))
        self._send()

    def _send(self) -> None:
        if self._outbox:
            messages, self._outbox[:] = list(self._outbox), []
            append(self._mailbox.replies, messages)

    def _hear_term(self, number: int, frame: FrameType | None) -> None:
        self._why = self._why or "SIGTERM"

    def _hear_usr1(self, number: int, frame: FrameType | None) -> None:
        self._is_leaving = True


def _load_prepare(spool: Path) -> Prepare:
    first, later = msgspec.json.decode((spool / PREPARE).read_bytes(), type=tuple[list[Any], list[Any]])
    return Prepare([Load(*load) for load in first], [Load(*load) for load in later])


def _log_to(outbox: list[msgspec.Struct]) -> None:
    """What is logged here, or by a task, is in this job's log and in the driver's."""

    class Telling(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            counted: Any = getattr(record, "counted", None)
            message = record.getMessage()
            _tell(message)
            outbox.append(Word(record.name, record.levelno, message, list(counted) if counted else None))

    logger = logging.getLogger(LOGGER)
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logger.addHandler(Telling())


def _tell(message: str) -> None:
    print(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}", flush=True)


def main(arguments: list[str]) -> int:
    spare_collector()
    spool, batch, processes, idle_seconds = arguments
    mailbox = Mailbox(Path(spool), int(batch), int(os.environ["SLURM_ARRAY_TASK_ID"]))
    replies: Reader[FromJob] = Reader(mailbox.replies, FromJob)
    try:
        if replies.read():
            _tell("this job was requeued: its orders are with others")
            append(mailbox.replies, [Bye(1 << 62, "requeued")])
            return 0
        with forked_server():  # while this process has one thread, as a command does
            Pilot(Path(spool), mailbox, int(processes), float(idle_seconds)).work()
    except FileNotFoundError:
        _tell("the run is over")
        return 0
    except (TokmillError, OSError) as error:
        _tell(f"cannot go on: {error}")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
