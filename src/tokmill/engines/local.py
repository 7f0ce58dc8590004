"""Engines of this machine, and the choice of one: what runs the tasks of a run.

    open_engine ─┬─ local   InlineEngine: the driver itself, where one worker is enough or no more can be had
                 │          LocalEngine: a pool of spawned processes that outlives its workers
                 ├─ ray     a private instance, or the cluster at an address
                 └─ dask    likewise

    engine.run(perform, tasks) yields (task, receipt) as tasks finish, in any order
    compile_kernels              before any of them, so that no task waits for a compiler

    memory  >=  driver  +  workers x (worker + SHARD_FACTOR x shard)            workers_within

A worker that is killed breaks the pool; the pool is made anew and the tasks that were in flight run again. A
task that was in flight at two such deaths runs alone, so that the one that kills its worker is found; after
five it is given up and named. Workers end themselves when the driver is gone. One worker runs inline, because
a process takes two seconds to start, longer than a small recipe; a killed driver resumes from its receipts
all the same.

The size of a shard is the recipe's, for it decides the bytes that are written; so --memory can only lower the
number of workers. Training a tokenizer is outside this sum: `tokenizer.train.sample_megabytes` bounds it.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from decimal import Decimal
from multiprocessing import connection
from typing import Any, Literal, Protocol

from tokmill.artifacts.manifest import Receipt, available_cores
from tokmill.artifacts.progress import LOGGER, Progress
from tokmill.artifacts.step import Task
from tokmill.engines.collector import spare_collector
from tokmill.errors import MissingExtra, RecipeError, TaskFailed, plural
from tokmill.kernels.warm import ensure_compiled

# --- memory ---

_WRITTEN = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kKMGT]?)(i?)[bB]?")
_POWERS = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4}

# Measured, every stage of a run in one process: 566 MiB at most with shards of 8 MiB, 821 with 64, 1,066 with
# 128: 540 and four times a shard. Text that expands (one-byte documents, NFKC) needs more than the texts of
# the bench.
DRIVER_BYTES = 350_000_000
WORKER_BYTES = 600_000_000
SHARD_FACTOR = 6


def parse_bytes(written: str) -> int:
    """4GB, 512MiB, 1.5G."""
    match = _WRITTEN.fullmatch(written.strip())
    size = Decimal(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2]] if match else Decimal(0)
    if size < 1:
        raise RecipeError(
            f"{written} is not an amount of memory", where="--memory", next="for example 4GB, 512MiB"
        )
    return int(size)


def workers_within(memory: int, wanted: int, shard_bytes: int, say: Callable[[str], None]) -> int:
    """As many of the workers as fit; the one that is the driver itself needs no second process."""
    each = WORKER_BYTES + SHARD_FACTOR * shard_bytes
    if each > memory:
        raise RecipeError(
            f"{_gigabytes(memory)} is too little for one worker, which may take {_gigabytes(each)}: "
            f"{SHARD_FACTOR} times a shard of {shard_bytes >> 20} MiB, and itself",
            where="--memory",
            next="give more memory, or set a smaller `shards.megabytes`",
        )
    fitting = max((memory - DRIVER_BYTES) // each, 1)
    if fitting < wanted:
        say(
            f"{fitting} of {plural(wanted, 'worker')} fit into {_gigabytes(memory)} ({_gigabytes(each)} for "
            f"each, shards of {shard_bytes >> 20} MiB)"
        )
    return min(fitting, wanted)


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"


# --- a pool of processes ---

Perform = Callable[[Task], Receipt]

_ALONE_AFTER = 2
_GIVE_UP_AFTER = 5
_RELAY_SECONDS = 2.0


class Engine(Protocol):
    @property
    def name(self) -> str: ...  # for the manifest
    @property
    def workers(self) -> int: ...
    def run(self, perform: Perform, tasks: Sequence[Task]) -> Iterator[tuple[Task, Receipt]]: ...
    def close(self) -> None: ...


def count_loss(task: Task, losses: dict[str, int], limit: int, what: str, *, next: str) -> None:
    """One more of them while a worker had the task; so many are too many."""
    losses[task.fingerprint] = losses.get(task.fingerprint, 0) + 1
    if losses[task.fingerprint] >= limit:
        raise TaskFailed(
            f"{what} {limit} times while it worked on this task",
            where=f"{task.function} {task.key}",
            next=f"{next} or a smaller `shards.megabytes`",
        ) from None


class LocalEngine:
    name = "local"

    def __init__(self, workers: int, on_restart: Callable[[str], None]) -> None:
        self.workers = workers
        self._on_restart = on_restart
        self._pool: ProcessPoolExecutor | None = None
        self._messages: Any = None  # one queue per pool: a killed worker may leave it locked

    def run(self, perform: Perform, tasks: Sequence[Task]) -> Iterator[tuple[Task, Receipt]]:
        waiting = deque(tasks)
        deaths: dict[str, int] = {}
        running: dict[Future[Receipt], Task] = {}
        while waiting or running:
            # Twice the workers: each finds its next task queued, and little is lost when the pool breaks.
            room = 1 if any(count >= _ALONE_AFTER for count in deaths.values()) else 2 * self.workers
            try:
                while waiting and len(running) < room:
                    running[self._submit(perform, waiting[0])] = waiting[0]
                    waiting.popleft()
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    receipt = future.result()
                    task = running.pop(future)
                    deaths.pop(task.fingerprint, None)
                    yield task, receipt
            except BrokenProcessPool:
                self.close(wait=False)
                finished = [f for f in running if f.done() and not f.cancelled() and f.exception() is None]
                for future in finished:
                    task = running.pop(future)
                    deaths.pop(task.fingerprint, None)
                    yield task, future.result()
                for task in reversed(running.values()):
                    killer = "look for the kernel's out-of-memory killer; try fewer `--workers`"
                    count_loss(task, deaths, _GIVE_UP_AFTER, "a worker died", next=killer)
                    waiting.appendleft(task)
                running.clear()
                self._on_restart("a worker died; its tasks run again")

    def _submit(self, perform: Perform, task: Task) -> Future[Receipt]:
        try:
            with _without_main():  # submitting starts workers
                return self._open_pool().submit(perform, task)
        except OSError as error:
            if error.errno is not None:
                raise
            # a worker was killed just now: the pool closes its pipes before it says that it is broken
            raise BrokenProcessPool(str(error)) from error

    def close(self, *, wait: bool = True) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=wait, cancel_futures=True)
            self._pool = None
            self._messages.put(None)
            if wait:  # a relay that was cut short by a killed worker may never see the end
                self._relay.join(_RELAY_SECONDS)

    def _open_pool(self) -> ProcessPoolExecutor:
        if self._pool is None:
            spawn = multiprocessing.get_context("spawn")
            self._messages = spawn.Queue()
            self._relay = threading.Thread(target=_relay, args=(self._messages,), daemon=True)
            self._relay.start()
            self._pool = ProcessPoolExecutor(
                self.workers,
                mp_context=spawn,
                initializer=_start_worker,
                initargs=(self._messages,),
            )
        return self._pool


def without_semaphores() -> str:
    """Why processes cannot share a queue here: on Linux a semaphore is a file in /dev/shm.
    Empty where they can."""
    try:
        multiprocessing.get_context("spawn").Lock()
    except (OSError, ImportError) as error:
        return f"/dev/shm: {error.strerror}" if isinstance(error, OSError) else str(error)
    return ""


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """A spawned process imports the main module of its parent: a script that calls tokmill.run would run
    again in every worker, which dies of it. Workers need nothing from it."""
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {
        name: main.__dict__.pop(name) for name in ("__file__", "__spec__") if name in main.__dict__
    }
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(hidden)


def _relay(messages: Any) -> None:
    """What workers log, logged here. A queue whose worker was killed while it wrote may end in the middle."""
    with contextlib.suppress(EOFError, OSError, TypeError):  # TypeError: Python is on its way out
        while (record := messages.get()) is not None:
            logging.getLogger(record.name).handle(record)


def _start_worker(messages: Any) -> None:
    """An interrupt is the driver's to handle, and no worker outlives its driver or waits for its last
    words."""
    spare_collector()
    messages.cancel_join_thread()
    logger = logging.getLogger(LOGGER)
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.handlers.QueueHandler(messages))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_driver, daemon=True).start()


def _end_with_driver() -> None:
    driver = multiprocessing.parent_process()
    if driver is not None:
        connection.wait([driver.sentinel])
        os._exit(1)


# --- one worker: the driver itself ---


class InlineEngine:
    name = "local"
    workers = 1

    def run(self, perform: Perform, tasks: Sequence[Task]) -> Iterator[tuple[Task, Receipt]]:
        for task in tasks:
            yield task, perform(task)

    def close(self) -> None:
        pass


# --- kernels ---

COMPILING = "compiling kernels"  # as a step is told, though it is none


def compile_kernels(progress: Progress) -> float:
    """All that are not in the cache, on all cores: that a run has one worker says nothing of what comes once
    per version. How many seconds it took: they belong to no step."""
    begun = time.monotonic()

    def count(done: int, total: int) -> None:
        if not done:
            progress.begin_step(COMPILING, [])
            progress.say(f"compiling {plural(total, 'kernel')}, once per version …")
        progress.count(COMPILING, done, total, "kernels")

    if ensure_compiled(count, available_cores()):
        progress.finish_step(COMPILING, time.monotonic() - begun, {})
    return time.monotonic() - begun


# --- the choice of an engine ---

EngineName = Literal["local", "ray", "dask"]


@dataclass(frozen=True)
class Resources:
    """What a run may use. It decides how long a run takes, and never a byte of the result."""

    workers: int | None = None
    engine: EngineName = "local"
    address: str | None = None
    memory: int | None = None  # bytes


def check_resources(resources: Resources) -> None:
    """Refuse what cannot be meant, before anything is read."""
    if resources.address is None:
        return
    if resources.engine == "local":
        raise RecipeError(
            "the local engine has no address",
            where="--address",
            next="choose one: `tokmill run --engine ray` or `tokmill run --engine dask`",
        )
    if resources.memory is not None:
        raise RecipeError(
            "a bound on memory is for workers of this machine; a cluster has its own",
            where="--memory",
            next="bound the tasks at once with `--workers`, or the CPUs of each node where it is started",
        )


def open_engine(resources: Resources, shard_bytes: int, say: Callable[[str], None]) -> Engine:
    if resources.address is not None:
        return _open_cluster(resources, resources.workers, say)
    workers = resources.workers or available_cores()
    if resources.memory is not None:
        workers = workers_within(resources.memory, workers, shard_bytes, say)
    if resources.engine != "local":
        return _open_cluster(resources, workers, say)
    if workers > 1 and (fault := without_semaphores()):
        say(f"working in one process: this machine gives no semaphores to share with others ({fault})")
        workers = 1
    return InlineEngine() if workers == 1 else LocalEngine(workers, say)


def _open_cluster(resources: Resources, workers: int | None, say: Callable[[str], None]) -> Engine:
    try:
        if resources.engine == "ray":
            from tokmill.engines.ray import open_ray

            return open_ray(resources.address, workers, say)
        from tokmill.engines.dask import open_dask

        return open_dask(resources.address, workers, say)
    except ImportError as error:
        raise MissingExtra(
            f"the engine {resources.engine} needs a package that is not installed ({error})",
            next=f"pip install 'tokmill[{resources.engine}]'",
        ) from error
