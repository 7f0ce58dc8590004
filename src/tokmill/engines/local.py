"""The default engine: a pool of spawned processes on this machine that outlives its workers.

    run(perform, tasks) yields (task, receipt) as tasks finish, in any order

A worker that is killed breaks the pool; the pool is made anew and the tasks that were in flight run again.
A task that was in flight at two such deaths runs alone, so that the one that kills its worker is found; after
five it is given up and named. Workers end themselves when the driver is gone.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from typing import Any, Protocol

from tokmill.collector import spare_collector
from tokmill.environment import DEVICE
from tokmill.errors import TaskFailed
from tokmill.manifest import Receipt
from tokmill.progress import LOGGER
from tokmill.task import Task

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


class LocalEngine:
    name = "local"

    def __init__(self, workers: int, on_restart: Callable[[str], None], *, device: str = "cpu") -> None:
        self.workers = workers
        self._device = device
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
                    with _without_main():  # submitting starts workers
                        running[self._open_pool().submit(perform, waiting[0])] = waiting[0]
                    waiting.popleft()
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    receipt = future.result()
                    task = running.pop(future)
                    deaths.pop(task.fingerprint, None)
                    yield task, receipt
            except BrokenProcessPool:
                self._discard_pool()
                finished = [f for f in running if f.done() and not f.cancelled() and f.exception() is None]
                for future in finished:
                    task = running.pop(future)
                    deaths.pop(task.fingerprint, None)
                    yield task, future.result()
                for task in reversed(running.values()):
                    deaths[task.fingerprint] = deaths.get(task.fingerprint, 0) + 1
                    if deaths[task.fingerprint] >= _GIVE_UP_AFTER:
                        raise TaskFailed(
                            f"a worker died {_GIVE_UP_AFTER} times while it worked on this task",
                            where=f"{task.function} {task.key}",
                            next="look for the kernel's out-of-memory killer; try fewer `--workers` "
                            "or a smaller `shards.megabytes`",
                        ) from None
                    waiting.appendleft(task)
                running.clear()
                self._on_restart("a worker died; its tasks run again")

    def close(self) -> None:
        self._end_pool(wait=True)

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
                initargs=(self._messages, self._device),
            )
        return self._pool

    def _discard_pool(self) -> None:
        self._end_pool(wait=False)

    def _end_pool(self, *, wait: bool) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=wait, cancel_futures=True)
            self._pool = None
            self._messages.put(None)
            if wait:  # a relay that was cut short by a killed worker may never see the end
                self._relay.join(_RELAY_SECONDS)


def without_semaphores() -> str:
    """Why processes cannot share a queue here: on Linux a semaphore is a file in /dev/shm. Empty where they can."""
    try:
        multiprocessing.get_context("spawn").Lock()
    except (OSError, ImportError) as error:
        return f"/dev/shm: {error.strerror}" if isinstance(error, OSError) else str(error)
    return ""


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """A spawned process imports the main module of its parent: a script that calls tokmill.run would run again in every
    worker, which dies of it. Workers need nothing from it."""
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


def _start_worker(messages: Any, device: str) -> None:
    """An interrupt is the driver's to handle, and no worker outlives its driver or waits for its last words."""
    spare_collector()
    messages.cancel_join_thread()
    os.environ[DEVICE] = device
    logger = logging.getLogger(LOGGER)
    logger.propagate = False
    logger.addHandler(logging.handlers.QueueHandler(messages))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_driver, daemon=True).start()


def _end_with_driver() -> None:
    driver = multiprocessing.parent_process()
    if driver is not None:
        connection.wait([driver.sentinel])
        os._exit(1)
