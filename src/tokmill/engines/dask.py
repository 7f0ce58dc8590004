"""Tasks through Dask's `concurrent.futures` interface: a cluster at an address, or processes of our own.

    no address            a LocalCluster on loopback that ends with the run
    tcp://host:8786       a scheduler that was there before and stays

Dask cannot stop a function that runs. A run that ends early cancels what waits,
and then waits for what its workers are at, so that nothing is written behind the back of the next run.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, InvalidStateError, wait
from pathlib import Path
from typing import Any, NamedTuple

from tokmill.artifacts.manifest import Json, package_version
from tokmill.engines.cluster import CLUSTER_KILLER, ClusterEngine, Loss, WorkerLost
from tokmill.engines.neighbours import require_listener, restored_environment, temp_directory
from tokmill.engines.orders import carry_out, encode_question, fingerprint_in, read_reply, tasks_at_work
from tokmill.errors import EngineError

_TEMP = "tokmill-dask"
_PORT = 8786
_CONNECT_SECONDS = 15
_CANCEL_SECONDS = 600.0
_POLL_SECONDS = 0.2
_LOOK_SECONDS = 5.0
_MEMORY = "memory"
_MEMORY_SECONDS = 10.0  # between looks at what workers have
_SET_BY_DASK = ("PYTHONHASHSEED", "__DASK_PARENT_PID")


def open_dask(address: str | None, workers: int | None, on_restart: Callable[[str], None]) -> ClusterEngine:
    """`workers` are the processes of our own; on a cluster, the most tasks at once (default: its threads)."""
    cluster = DaskCluster(address, workers)
    return ClusterEngine(cluster, None if address is None else workers, on_restart)


class _Sent(NamedTuple):
    key: str  # as the scheduler knows it
    order: bytes


async def _reply_of(told: Any) -> bytes:
    reply: bytes = await told
    return reply


async def _hand_over(told: Any, handle: Future[bytes]) -> None:
    """In the client's loop. Dask's own executor does not hear of a worker that dies between the end of a task
    and the moment when its result is fetched, and who waits for the task waits for ever."""
    with contextlib.suppress(InvalidStateError):  # nobody wants it any more
        (done,), _ = await asyncio.wait([asyncio.ensure_future(_reply_of(told))])
        if done.cancelled():
            handle.cancel()
            handle.set_running_or_notify_cancel()
        elif (error := done.exception()) is not None:
            handle.set_exception(error)
        else:
            handle.set_result(done.result())


class DaskCluster:
    is_blame_shared = True  # a Dask worker has its next task with it
    has_nodes = True
    max_deaths = 3
    killer = CLUSTER_KILLER

    def __init__(self, address: str | None, workers: int | None) -> None:
        self._undo = contextlib.ExitStack()
        self.name = f"dask {package_version('distributed')}"
        self._is_private = address is None
        self._local: Any = None
        self._sent: dict[Future[bytes], _Sent] = {}  # tasks that are not done
        self._memory_at, self._memory = 0.0, 0
        self._where = address or "dask"
        with self._undo:
            import dask
            import distributed

            self._killed = distributed.scheduler.KilledWorker
            if address is None:
                # Each death is told to the engine, which counts them and names the task.
                self._undo.enter_context(dask.config.set({"distributed.scheduler.allowed-failures": 0}))
                # Dask sets variables for its workers (OMP_NUM_THREADS and the like) in the driver,
                # and leaves them.
                nanny = dask.config.get("distributed.nanny")
                names = (*nanny.get("environ", {}), *nanny.get("pre-spawn-environ", {}), *_SET_BY_DASK)
                self._undo.enter_context(restored_environment(names))
                directory = self._undo.enter_context(temp_directory(_TEMP, Path(tempfile.gettempdir())))
                self._local = distributed.LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    processes=True,
                    host="127.0.0.1",
                    dashboard_address=None,
                    # Without a dashboard its server would still be there:
                    # on port 8787, which another run may have.
                    scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
                    memory_limit=0,  # a shard needs what it needs; --memory bounds the number of workers
                    local_directory=str(directory),
                    silence_logs=logging.CRITICAL,
                )
                self._undo.enter_context(self._local)
                self._client = distributed.Client(self._local, set_as_default=False)
            else:
                self._client = _connect(distributed, address)
            self._undo.callback(self._client.close)
            self._ask_every_worker()
            self._undo = self._undo.pop_all()

    def submit(self, order: bytes, needed_bytes: int = 0) -> Future[bytes]:
        most = self._least_memory() if needed_bytes else 0
        return self._submit(order, **({"resources": {_MEMORY: min(needed_bytes, most)}} if most else {}))

    def _submit(self, order: bytes, **options: Any) -> Future[bytes]:
        key = f"tokmill-{secrets.token_hex(8)}"
        told = self._client.submit(carry_out, order, key=key, pure=False, retries=0, **options)
        handle: Future[bytes] = Future()
        handle.add_done_callback(lambda one: told.cancel() if one.cancelled() else None)
        self._client.loop.add_callback(_hand_over, told, handle)
        self._sent[handle] = _Sent(key, order)
        return handle

    def submit_elsewhere(self, order: bytes, handle: Future[bytes]) -> Future[bytes] | None:
        """On workers of other hosts; where none has another host, on other workers."""
        try:
            processing = self._client.processing()
            hosts = {address: str(told.get("host", "")) for address, told in self._workers_told().items()}
        except (OSError, TimeoutError):
            return None
        sent = self._sent.get(handle)
        if sent is None:
            return None
        busy = [address for address, keys in processing.items() if any(sent.key in str(one) for one in keys)]
        if len(busy) != 1:
            return None
        idle = [address for address, keys in processing.items() if not keys and address != busy[0]]
        away = [address for address in idle if hosts.get(address) != hosts.get(busy[0])]
        if not idle:
            return None
        # others too, or it would wait for ever where all of these go
        return self._submit(order, workers=sorted(away or idle), allow_other_workers=True)

    def begun_at(self, handle: Future[bytes], submitted_at: float) -> float | None:
        return submitted_at

    def discard(self, handle: Future[bytes]) -> None:
        """Dask cannot stop it: what it makes is looked at when it ends."""

    def _workers_told(self) -> dict[str, Any]:
        told: dict[str, Any] = self._client.scheduler_info(n_workers=-1)["workers"]
        return told

    def _least_memory(self) -> int:
        """That a worker was started with, as `--resources memory=…`; 0 where one has none: a task that asks
        for more than there is would wait for ever."""
        if time.monotonic() > self._memory_at:
            self._memory_at = time.monotonic() + _MEMORY_SECONDS
            try:
                told = [one.get("resources", {}).get(_MEMORY, 0) for one in self._workers_told().values()]
            except (OSError, TimeoutError):
                told = []
            self._memory = int(min(told, default=0))
        return self._memory

    def wait(self, handles: Sequence[Future[bytes]], seconds: float | None = None) -> Sequence[Future[bytes]]:
        until = None if seconds is None else time.monotonic() + seconds
        while True:
            nap = _LOOK_SECONDS if self._is_private else None
            if until is not None:
                nap = min(nap or seconds or 0.0, max(until - time.monotonic(), 0.0))
            done, _ = wait(handles, nap, FIRST_COMPLETED)
            if done or (until is not None and time.monotonic() >= until):
                return [handle for handle in handles if handle in done]
            if self._is_private:
                self._replace_nannies()

    def reply(self, handle: Future[bytes]) -> bytes:
        self._sent.pop(handle, None)
        try:
            return handle.result()
        except self._killed as error:
            raise WorkerLost(Loss.WORKER) from error
        except (CancelledError, OSError, TimeoutError) as error:
            raise self._gone(error) from error

    def cancel(self, handles: Sequence[Future[bytes]]) -> None:
        """Workers end what they are at; those of another run are not waited for."""
        sent = [self._sent.pop(handle) for handle in handles if handle in self._sent]
        for handle in handles:
            handle.cancel()
        if self._is_private:
            return  # its processes end in a moment
        own = {fingerprint_in(one.order) for one in sent}
        until = time.monotonic() + _CANCEL_SECONDS
        with contextlib.suppress(OSError, TimeoutError):
            while time.monotonic() < until:
                if not any(own.intersection(at_work) for at_work in self._client.run(tasks_at_work).values()):
                    return
                time.sleep(_POLL_SECONDS)

    def workers(self) -> int:
        try:
            return int(sum(self._client.nthreads().values()))
        except (OSError, TimeoutError) as error:
            raise self._gone(error) from error

    def traffic(self) -> Json:
        return {}

    def close(self) -> None:
        self._undo.close()

    def _replace_nannies(self) -> None:
        """A worker that dies before its nanny has heard that it is up takes the nanny along,
        and nobody starts another: a task that kills its workers at once would have the run wait for ever."""

        async def forget() -> None:
            for name, nanny in list(self._local.workers.items()):
                if nanny.status.name in ("closed", "failed"):
                    del self._local.workers[name]

        self._local.sync(forget)
        self._local.scale(len(self._local.worker_spec))  # starts those that are wanted and not there

    def _gone(self, error: BaseException) -> EngineError:
        return EngineError(
            f"the Dask scheduler is gone, or has dropped a task ({error or type(error).__name__})",
            where=self._where,
            next="run the same command again when it is back: it resumes",
        )

    def _ask_every_worker(self) -> None:
        """Refuse a worker with another tokmill before any work is done."""
        if not self.workers():
            raise EngineError(
                "this Dask cluster has no workers",
                where=self._where,
                next="start some: dask worker ADDRESS",
            )
        try:
            answers = self._client.run(carry_out, encode_question())
        except ImportError as error:
            raise EngineError(
                f"the workers cannot import what a task needs: {error}",
                where=self._where,
                next="install the same tokmill on every node",
            ) from error
        for _, answer in sorted(answers.items()):
            read_reply(answer)


def _connect(distributed: Any, address: str) -> Any:
    require_listener(address.rpartition("//")[2], _PORT, "Dask scheduler", address)
    try:
        return distributed.Client(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as error:
        raise EngineError(
            f"no Dask scheduler answers at this address ({error})",
            where=address,
            next="give the address that the scheduler prints, tcp://host:8786 or tls://host:8786",
        ) from error
