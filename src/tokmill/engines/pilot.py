"""What a job does: it takes orders from its mailbox, and has processes of its node carry them out.

    python -m tokmill.engines.pilot SPOOL BATCH PROCESSES IDLE_SECONDS     in an array, whose variables it has

SPOOL is a directory that all nodes share, or the URL of a prefix of an object store.

    orders ──> one free process each (`processes`: forked, loaded ahead) ──> replies
                  └─ it dies: Lost, its order is known, and the job goes on

It ends by itself, with a Bye when nothing of it can write any more:

    no order for IDLE_SECONDS         nobody needs it
    End, or the spool is gone         the run is over: what is at work is broken off
    no pulse for so many seconds      the driver was killed: likewise
    replies cannot be written         for as long: likewise
    SIGTERM                           cancelled, preempted, out of time: likewise, and the orders are returned
    SIGUSR1                           what is at work is finished, and nothing else is begun
    a mailbox that was used           the job was requeued: its orders are with others by now

This process itself does no work, so it hears all of that at any time, and outlives what a task does to its
process. Its log has a line for every task that begins and ends; where the driver cannot read it, it is told.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
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
from tokmill.engines.disk_spool import DiskSpool
from tokmill.engines.forking import forked_server
from tokmill.engines.mailbox import (
    NAPS,
    Answer,
    Beat,
    Bye,
    End,
    Garbled,
    Gone,
    Hello,
    Leaving,
    Logged,
    Lost,
    Mailbox,
    Order,
    Returned,
    Spool,
    Word,
)
from tokmill.engines.orders import name_in
from tokmill.engines.own_process import spare_collector
from tokmill.engines.processes import Handle, Load, Prepare, Processes
from tokmill.engines.store_spool import StoreSpool, Taken
from tokmill.errors import TokmillError
from tokmill.storage.location import is_url, parse_url
from tokmill.storage.traffic import Traffic, counting

_BUSY_NAP = 0.5
_SEND_NAP = 2.0  # after replies could not be written
# A signal goes to all processes of a job: one that has died of it is not dead by its task.
_HELD_BACK_SECONDS = 1.0


class Pilot:
    def __init__(
        self, spool: Spool, mailbox: Mailbox, processes: int, idle_seconds: float, traffic: Traffic
    ) -> None:
        self._spool, self._mailbox = spool, mailbox
        self._outbox: list[msgspec.Struct] = []
        self._unsent: list[msgspec.Struct] = []  # was tried
        self._traffic, self._told = traffic, dict[str, Any]()
        self._most = processes
        self._idle_seconds = idle_seconds
        self._processes = Processes(processes, _load_prepare(spool))
        self._waiting: deque[Order] = deque()
        self._at_work: dict[Handle, tuple[int, str, float]] = {}  # number, name, since when
        self._why = ""  # it ends
        self._is_leaving = self._has_said_so = False
        now = time.monotonic()
        self._busy_at = self._sent_at = self._look_at = self._pulse_at = now
        self._send_at = 0.0
        self._pulse = b""

    def work(self) -> None:
        # The handlers first: who says hello may be told to end.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._hear_term)
        signal.signal(signal.SIGUSR1, self._hear_usr1)
        _log_to(self._outbox)
        job = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
        hello = Hello(job, os.environ["SLURMD_NODENAME"], secrets.token_hex(8))
        self._mailbox.replies.append([hello])
        nap = NAPS[0]
        while not self._why:
            self._send()
            took = self._take_orders()
            self._begin()
            nap = NAPS[0] if took else min(nap * 1.5, NAPS[1])
            self._processes.hear(nap if len(self._at_work) < self._most else _BUSY_NAP)
            if self._hand_in():
                nap = NAPS[0]
            self._look_around()
        self._leave()

    def _take_orders(self) -> bool:
        try:
            messages = self._mailbox.orders.look()
        except Gone:
            self._why = "the run is over"
            return False
        except (TokmillError, Garbled) as error:
            _tell(f"orders cannot be read: {error}")
            return False  # the disk may be back in a moment; else the driver is not heard any more
        for message in messages:
            if isinstance(message, End):
                self._why = "told to end"
            else:
                self._waiting.append(message)
        return bool(messages)

    def _begin(self) -> None:
        while self._waiting and not self._is_leaving and not self._why and len(self._at_work) < self._most:
            order = self._waiting.popleft()
            body = bytes(order.order)
            task = name_in(body)
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
                self._outbox.append(Answer(number, msgspec.Raw(reply), self._untold()))
            del self._at_work[handle]
        if over or self._at_work:
            self._busy_at = time.monotonic()
        if over:
            self._mailbox.orders.hurry()
        return bool(over)

    def _look_around(self) -> None:
        now = time.monotonic()
        if now - self._sent_at > self._spool.beat_seconds and not (self._outbox or self._unsent):
            self._outbox.append(Beat(self._untold()))
        if now - self._look_at > self._spool.beat_seconds:
            self._look_at = now
            self._look_for_driver()
        if self._is_leaving and not self._has_said_so:
            self._has_said_so = True
            self._outbox.append(Leaving())
        if self._why:
            return
        if now - self._pulse_at > self._spool.orphan_seconds:
            self._why = "the driver is gone"
        elif now - self._sent_at > self._spool.beat_seconds + self._spool.orphan_seconds:
            self._why = "replies cannot be written"
        elif not self._at_work and self._is_leaving:
            self._why = "told to take no more"
        elif now - self._busy_at > self._idle_seconds and not self._waiting:
            self._why = "nothing to do"

    def _look_for_driver(self) -> None:
        try:
            pulse = self._spool.read_pulse()
        except Gone:
            self._why = "the run is over"
        except TokmillError:
            pass  # it may be back in a moment
        else:
            if pulse != self._pulse:
                self._pulse, self._pulse_at = pulse, time.monotonic()

    def _leave(self) -> None:
        """First nothing is at work any more, then it is said so."""
        _tell(f"leaving: {self._why}")
        self._processes.cancel(list(self._at_work))
        numbers = [number for number, _, _ in self._at_work.values()]
        numbers += [order.number for order in self._waiting]
        if numbers:
            self._outbox.append(Returned(numbers))
        self._processes.close()
        self._outbox.append(Bye(self._why, self._untold()))
        self._send_at = 0.0
        self._send()

    def _send(self) -> None:
        """What cannot be sent is kept, and tried again in a while as it is: it may have arrived."""
        now = time.monotonic()
        if now < self._send_at:
            return
        while self._unsent or self._outbox:
            if not self._unsent:
                lines = _take_lines() if self._spool.carries_logs else ""
                self._unsent = [*([Logged(lines)] if lines else []), *self._outbox]
                self._outbox.clear()
            try:
                self._mailbox.replies.append(self._unsent)
            except TokmillError as error:
                _tell(f"replies cannot be written: {error}")
                self._send_at = now + _SEND_NAP
                return
            self._unsent, self._sent_at = [], now

    def _untold(self) -> dict[str, Any]:
        """What was asked of the store since it was last told."""
        now = self._traffic.as_json()
        told, self._told = self._told, now
        return _difference(now, told)

    def _hear_term(self, number: int, frame: FrameType | None) -> None:
        self._why = self._why or "SIGTERM"

    def _hear_usr1(self, number: int, frame: FrameType | None) -> None:
        self._is_leaving = True


def open_spool(address: str) -> Spool:
    return StoreSpool(parse_url(address)) if is_url(address) else DiskSpool(Path(address))


def _load_prepare(spool: Spool) -> Prepare:
    first, later = msgspec.json.decode(spool.load_prepare(), type=tuple[list[Any], list[Any]])
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


_lines: list[str] = []  # of the log, that nobody was told yet
_MAX_LINES = 10_000


def _tell(message: str) -> None:
    line = f"{time.strftime('%Y-%m-%d %H:%M:%S')} {message}\n"
    print(line, end="", flush=True)
    if len(_lines) < _MAX_LINES:
        _lines.append(line)


def _take_lines() -> str:
    lines = "".join(_lines)
    _lines.clear()
    return lines


def _difference(now: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Of two counts of traffic."""
    if not now:
        return {}
    requests = {
        kind: number - before.get("requests", {}).get(kind, 0) for kind, number in now["requests"].items()
    }
    return {
        "requests": {kind: number for kind, number in requests.items() if number},
        **{key: now[key] - before.get(key, 0) for key in ("bytes_up", "bytes_down")},
    }


def main(arguments: list[str]) -> int:
    spare_collector()
    address, batch, processes, idle_seconds = arguments
    # The server first, while this process has one thread, as a command does: clients of stores have more.
    with forked_server(), counting() as traffic:
        try:
            spool = open_spool(address)
            mailbox = spool.mailbox(int(batch), int(os.environ["SLURM_ARRAY_TASK_ID"]))
            if mailbox.replies.read():
                _tell("this job was requeued: its orders are with others")
                mailbox.replies.append([Bye("requeued")])
            else:
                Pilot(spool, mailbox, int(processes), float(idle_seconds), traffic).work()
        except (Gone, Taken):
            _tell("the run is over, or this job was requeued: its orders are with others")
        except (TokmillError, Garbled) as error:
            _tell(f"cannot go on: {error}")
            return 1
    if spool.carries_logs:
        _remove_log()
    return 0


def _remove_log() -> None:
    """The driver has it: nothing is left on the node."""
    with contextlib.suppress(OSError):
        path = Path(f"/proc/self/fd/{sys.stdout.fileno()}").readlink()
        if re.fullmatch(r"tokmill-[0-9a-z_-]+\.log", path.name):
            path.unlink()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
