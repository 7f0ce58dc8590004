"""What a driver and a worker say to each other: bytes of JSON.

    driver   Order(perform, code, task)           ──bytes──>  carry_out(order)    in a worker
             Reply(receipt | fault | bug, logged) <──bytes──  what was logged meanwhile comes along

What travels is JSON and the name of a function, never code. A worker whose tokmill or Python is not the
driver's refuses each order by name, so that a node which joins late is found out too. An error of ours
arrives as it was raised; anything else arrives with the worker's traceback.
"""

from __future__ import annotations

import functools
import importlib
import logging
import platform
import socket
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

import msgspec

from tokmill.artifacts.manifest import FORMAT_VERSION, Json, Receipt, package_version
from tokmill.artifacts.progress import LOGGER
from tokmill.artifacts.step import Task
from tokmill.engines.own_process import forget_peak, read_peak
from tokmill.errors import EngineError, TokmillError
from tokmill.storage.traffic import Traffic, counting

Perform = Callable[[Task], Receipt]


class Code(msgspec.Struct, frozen=True):
    """What a worker runs. Two of them must be equal, or a run would be made of two kinds of bytes."""

    python: str  # major.minor
    tokmill: str
    format_version: int


class Order(msgspec.Struct, frozen=True, kw_only=True):
    perform: str  # module:function; none in an order that only asks who is there
    code: Code
    task: Task | None


class Fault(msgspec.Struct, frozen=True):
    """An error of ours on its way between processes."""

    kind: str
    what: str
    where: str
    next: str

    @classmethod
    def of(cls, error: TokmillError) -> Fault:
        return cls(type(error).__name__, error.what, error.where, error.next)

    def as_error(self) -> TokmillError:
        kind = _kinds().get(self.kind, TokmillError)
        return kind(self.what, where=self.where, next=self.next)


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    receipt: Receipt | None = None
    fault: Fault | None = None
    bug: tuple[str, str] | None = None  # one line, and the traceback
    words: list[tuple[str, int, str]] = []  # logger, level, message
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    node: str = ""
    traffic: Json = {}  # with object stores
    peak_bytes: int = 0  # that the process took meanwhile; 0: the system does not tell


class WorkerTraceback(Exception):
    """Where it happened, in a process that is out of reach."""


def encode_order(perform: Perform, task: Task) -> bytes:
    name = f"{perform.__module__}:{perform.__qualname__}"
    return msgspec.json.encode(Order(perform=name, code=own_code(), task=task))


def encode_question() -> bytes:
    return msgspec.json.encode(Order(perform="", code=own_code(), task=None))


class Named(msgspec.Struct, frozen=True):
    """Of a task, what it is called."""

    function: str
    key: str
    directory: str
    followers: list[Named] = []


class _NamedOrder(msgspec.Struct, frozen=True):
    task: Named


def name_in(order: bytes) -> Named:
    return msgspec.json.decode(order, type=_NamedOrder).task


def fingerprint_in(order: bytes) -> str:
    task = msgspec.json.decode(order, type=Order).task
    assert task is not None, "it asks who is there"
    return task.fingerprint


def carry_out(order: bytes) -> bytes:
    """Runs in a worker, whose words travel with the reply."""
    return answer(order, _listen())


def answer(order: bytes, words: list[tuple[str, int, str]]) -> bytes:
    """It never raises: what an engine makes of an exception is not ours to rely on."""
    begun, spent, traffic = time.monotonic(), time.process_time(), Traffic()
    forget_peak()
    try:
        with counting(traffic):
            reply = Reply(receipt=_obey(order))
    except TokmillError as error:
        reply = Reply(fault=Fault.of(error))
    except Exception as error:  # noqa: BLE001 (a bug: it is told to the driver, which raises it)
        line = "".join(traceback.format_exception_only(error)).strip()
        reply = Reply(bug=(line, traceback.format_exc()))
    took = time.monotonic() - begun, time.process_time() - spent
    return msgspec.json.encode(
        msgspec.structs.replace(
            reply,
            words=words,
            seconds=took[0],
            cpu_seconds=took[1],
            node=socket.gethostname(),
            traffic=traffic.as_json(),
            peak_bytes=read_peak(),
        )
    )


def decode_reply(reply: bytes) -> Reply:
    return msgspec.json.decode(reply, type=Reply)


def read_reply(reply: bytes) -> Reply:
    """With a receipt (none for a question), after the worker's words were logged here; or the worker's
    error."""
    found = decode_reply(reply)
    for name, level, message in found.words:
        logging.getLogger(name).log(level, "%s", message)
    elsewhere = f"on {found.node}" if found.node not in ("", socket.gethostname()) else ""
    if found.fault is not None:
        error = found.fault.as_error()
        if elsewhere and found.node not in error.where:
            error = type(error)(error.what, where=f"{error.where} {elsewhere}".strip(), next=error.next)
        raise error
    if found.bug is not None:
        line, trace = found.bug
        by = f"a task failed in its worker {elsewhere}".rstrip()
        raise RuntimeError(f"{by}: {line}") from WorkerTraceback(f"\n{trace}")
    return found


_at_work: dict[int, str] = {}  # thread -> task, of this worker


def tasks_at_work() -> list[str]:
    """Fingerprints of what this worker is doing now, which an engine cannot always stop."""
    return sorted(_at_work.values())


def _obey(order: bytes) -> Receipt | None:
    # First without the task: an order of another tokmill may not even be readable.
    wanted = msgspec.json.decode(order, type=_OrderHead)
    _check_code(wanted.code)
    parsed = msgspec.json.decode(order, type=Order)
    if parsed.task is None:
        return None
    module, _, name = parsed.perform.partition(":")
    perform: Perform = getattr(importlib.import_module(module), name)
    _at_work[threading.get_ident()] = parsed.task.fingerprint
    try:
        return perform(parsed.task)
    finally:
        del _at_work[threading.get_ident()]


class _OrderHead(msgspec.Struct, frozen=True):
    code: Code


def _check_code(wanted: Code) -> None:
    here = own_code()
    if here == wanted:
        return
    if here.python != wanted.python:
        difference = f"this worker has Python {here.python}, the driver {wanted.python}"
    else:
        difference = (
            f"this worker has tokmill {here.tokmill} (format {here.format_version}), "
            f"the driver {wanted.tokmill} (format {wanted.format_version})"
        )
    raise EngineError(
        difference,
        where=socket.gethostname(),
        next="install the same Python and tokmill on the driver and on every node",
    )


@functools.cache
def own_code() -> Code:
    python = ".".join(platform.python_version_tuple()[:2])
    return Code(python, package_version("tokmill") or "unknown", FORMAT_VERSION)


class _Listening(logging.Handler):
    """Keeps what is logged by the thread that carries out an order, for its reply."""

    def __init__(self) -> None:
        super().__init__()
        self.here: Any = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        words = getattr(self.here, "words", None)
        if words is not None and not hasattr(
            record, "counted"
        ):  # how far a task is comes too late in its reply
            words.append((record.name, record.levelno, record.getMessage()))


@functools.cache
def _listening() -> _Listening:
    handler = _Listening()
    logging.getLogger(LOGGER).addHandler(handler)
    return handler


def _listen() -> list[tuple[str, int, str]]:
    words: list[tuple[str, int, str]] = []
    _listening().here.words = words
    return words


def _kinds() -> dict[str, type[TokmillError]]:
    found: dict[str, type[TokmillError]] = {}
    waiting: list[type[TokmillError]] = [TokmillError]
    while waiting:
        kind = waiting.pop()
        found[kind.__name__] = kind
        waiting += kind.__subclasses__()
    return found
