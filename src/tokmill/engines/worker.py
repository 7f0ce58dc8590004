"""A worker: a process that has one task at a time, from a driver at the other end of a socket.

    driver ──  n:8 bytes · order        ──> reader (a thread) ─ queue ─> answer, in the main thread
           ──  SIGTERM                  ──> what is going on is broken off, and tidied up
           <── p · n:8 · pid               at once
           <── w · n:8 · [logger, level, message, counted]       as it is logged
           <── r · n:8 · reply                                   when the task is done

An interrupt is the driver's to handle. The end of the socket is the end of the driver: then nothing more is
written, for another run may have the directory by now.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import signal
import socket
import struct
import threading
from types import FrameType
from typing import Any, NoReturn

import msgspec

from tokmill.artifacts.progress import LOGGER
from tokmill.engines.orders import answer
from tokmill.engines.own_process import spare_collector

LENGTH = struct.Struct("<Q")
PID, WORD, REPLY = b"p", b"w", b"r"


def work_at(descriptor: int) -> NoReturn:
    """What a Python does that was started to be a worker."""
    spare_collector()
    work(socket.socket(fileno=descriptor))


def work(channel: socket.socket) -> NoReturn:
    """Until the driver says so, or is gone. Python is not taken apart: that takes half a CPU second."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _break_off)
    sending = threading.Lock()
    _log_to(channel, sending)
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(channel, orders), daemon=True).start()
    status = 0
    try:
        _send(channel, sending, PID, str(os.getpid()).encode())
        while True:
            reply = answer(orders.get(), [])
            if (
                _broken_off
            ):  # a library may have made an error of its own of it, which says nothing of the task
                raise _BrokenOff
            _send(channel, sending, REPLY, reply)
    except _BrokenOff:
        status = 1
    finally:
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()
        os._exit(status)


class _BrokenOff(BaseException):
    pass


_broken_off: list[int] = []  # the signal that did it


def _break_off(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough: what follows tidies up
    _broken_off.append(number)
    raise _BrokenOff


def _read(channel: socket.socket, orders: queue.SimpleQueue[bytes]) -> None:
    while length := receive(channel, LENGTH.size):
        orders.put(receive(channel, LENGTH.unpack(length)[0]))
    os._exit(1)


def receive(channel: socket.socket, size: int) -> bytes:
    """So many bytes; none where the other end is gone."""
    pieces = bytearray()
    while len(pieces) < size:
        try:
            piece = channel.recv(min(size - len(pieces), 1 << 20))
        except OSError:
            piece = b""
        if not piece:
            return b""
        pieces += piece
    return bytes(pieces)


def _send(channel: socket.socket, sending: threading.Lock, kind: bytes, content: bytes) -> None:
    with sending:
        try:
            channel.sendall(kind + LENGTH.pack(len(content)) + content)
        except OSError:  # nobody is there to hear it
            os._exit(1)


def _log_to(channel: socket.socket, sending: threading.Lock) -> None:
    """What is logged here is logged by the driver, and nowhere else."""

    class Telling(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            counted: Any = getattr(record, "counted", None)
            word = (record.name, record.levelno, record.getMessage(), counted)
            _send(channel, sending, WORD, msgspec.json.encode(word))

    logger = logging.getLogger(LOGGER)
    for former in list(logger.handlers):  # of the driver that this process was forked from
        logger.removeHandler(former)
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logger.addHandler(Telling())
