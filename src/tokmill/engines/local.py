"""Engines of this machine, and the choice of one: what runs the tasks of a run.

    open_engine ─┬─ local   the driver itself, where one worker is enough; else processes, which may be killed
                 ├─ ray     a private instance, or the cluster at an address
                 ├─ dask    likewise
                 └─ slurm   jobs of the cluster that this machine submits to

    engine.submit(perform, tasks)   they wait, the longest first, and run
    engine.collect()                the next that is done, in any order
    compile_kernels                 before any of them, so that no task waits for a compiler

    memory  >=  driver  +  workers x (worker + SHARD_FACTOR x shard)            workers_within

A worker that is killed loses its task, which runs again; one that was in flight at five such deaths is given
up and named. Workers end themselves when the driver is gone. A killed driver resumes from its receipts.

The size of a shard is the recipe's, for it decides the bytes that are written; so --memory can only lower the
number of workers. Training a tokenizer is outside this sum: `tokenizer.train.sample_megabytes` bounds it.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Literal

from tokmill.artifacts.manifest import available_cores
from tokmill.artifacts.progress import Progress
from tokmill.artifacts.step import Task
from tokmill.engines.cluster import ClusterEngine, Done, Engine
from tokmill.engines.orders import Perform
from tokmill.engines.processes import Prepare, Processes
from tokmill.engines.slurm_options import SlurmSettings, parse_slurm
from tokmill.errors import MissingExtra, RecipeError, install_hint, plural
from tokmill.kernels.warm import ensure_compiled
from tokmill.storage.location import ObjectUrl
from tokmill.storage.traffic import counting

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


# --- this machine ---

# A worker that is forked costs 0.5 CPU seconds of a run (docs/decisions/0017), as long as it works on 5 MB of
# text; the server that forks it loads for 1.9.
PAYING_BYTES = 4_000_000
PAYING_VARIABLE = "TOKMILL_WORKER_MEGABYTES"


class LocalEngine(ClusterEngine):
    """As many processes as pay: the driver does the tasks itself while there is little to do, and one worker
    is always the driver. What there is to do is seen from the tasks at hand, the bytes that they read."""

    def __init__(
        self,
        workers: int,
        say: Callable[[str], None],
        prepare: Prepare | None = None,
        paying_bytes: int = PAYING_BYTES,
        *,
        is_asked: bool = False,
    ) -> None:
        self._processes = Processes(workers, prepare)
        super().__init__(self._processes, workers, say)
        self._most = workers
        self._paying_bytes = paying_bytes
        self._used = 1  # so far; it only grows
        self._bytes = 0  # of all tasks that were submitted and are not done
        self._sizes: dict[int, int] = {}
        self._is_to_be_told = is_asked

    @property
    def workers(self) -> int:
        return self._used

    def submit(self, perform: Perform, tasks: Iterable[Task]) -> None:
        for task in tasks:
            self._sizes[id(task)] = size = self._waiting.put(perform, task)
            self._bytes += size
        paying = self._bytes // self._paying_bytes if self._paying_bytes else self._most
        self._used = max(self._used, min(self._most, len(self._sizes), paying))
        if self._used > 1:
            with self._stopping():
                self._hand_out()

    def collect(self) -> Done:
        self._tell()
        if self._used > 1:
            done = super().collect()
        else:
            with self._stopping():
                done = _perform_here(*self._waiting.get())
        self._bytes -= self._sizes.pop(id(done.task), 0)
        return done

    def _room(self) -> int:
        return self._used

    def _stop(self) -> None:
        super()._stop()
        self._sizes.clear()
        self._bytes = 0

    def _tell(self) -> None:
        """Where there is little to read; that a step has few tasks says nothing of those after it."""
        is_little = self._bytes < self._most * self._paying_bytes
        if self._is_to_be_told and is_little and self._used < self._most:
            self._on_restart(
                f"{self._used} of {plural(self._most, 'worker')} used: one for each "
                f"{self._paying_bytes / 1e6:.0f} MB of input, of which there are {self._bytes / 1e6:.1f}"
            )
        self._is_to_be_told = False


def _perform_here(perform: Perform, task: Task) -> Done:
    begun, spent = time.monotonic(), time.process_time()
    with counting() as traffic:
        receipt = perform(task)
    took = time.monotonic() - begun, time.process_time() - spent
    return Done(task, receipt, *took, traffic=traffic.as_json())


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

EngineName = Literal["local", "ray", "dask", "slurm"]


@dataclass(frozen=True)
class Resources:
    """What a run may use. It decides how long a run takes, and never a byte of the result."""

    workers: int | None = None
    engine: EngineName = "local"
    address: str | None = None
    memory: int | None = None  # bytes
    slurm: SlurmSettings = ()  # what its jobs ask for


def check_resources(resources: Resources) -> None:
    """Refuse what cannot be meant, before anything is read."""
    if resources.engine == "slurm":
        _check_slurm(resources)
        return
    if resources.slurm:
        raise RecipeError(
            f"the engine {resources.engine} has no jobs of Slurm",
            where="--slurm",
            next="choose the engine that has: `tokmill run --engine slurm`",
        )
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


def _check_slurm(resources: Resources) -> None:
    if resources.address is not None:
        raise RecipeError(
            "Slurm has no address: it is the cluster that this machine submits to",
            where="--address",
            next="leave it out; `SLURM_CONF` names another cluster",
        )
    if resources.memory is not None:
        raise RecipeError(
            "a bound on memory is for workers of this machine; a job of Slurm has its own",
            where="--memory",
            next="bound each of them: `tokmill run --slurm mem=8G`",
        )
    parse_slurm(resources.slurm)


def open_engine(
    resources: Resources,
    shard_bytes: int,
    say: Callable[[str], None],
    prepare: Prepare | None = None,
    directory: Path | None = None,
    url: ObjectUrl | None = None,
) -> Engine:
    """`directory`: of the run, for engines that have something to keep there. `url`: likewise in a store,
    where nodes share nothing else."""
    if resources.engine == "slurm":
        from tokmill.engines.slurm import open_slurm

        each = WORKER_BYTES + SHARD_FACTOR * shard_bytes
        pools = parse_slurm(resources.slurm)
        return open_slurm(directory or Path.cwd(), resources.workers, pools, each, say, prepare, url)
    if resources.address is not None:
        return _open_cluster(resources, resources.workers, say)
    workers = resources.workers or available_cores()
    if resources.memory is not None:
        workers = workers_within(resources.memory, workers, shard_bytes, say)
    if resources.engine != "local":
        return _open_cluster(resources, workers, say)
    return LocalEngine(workers, say, prepare, _paying_bytes(), is_asked=resources.workers is not None)


def _paying_bytes() -> int:
    written = os.environ.get(PAYING_VARIABLE, "")
    if not re.fullmatch(r"[0-9]*", written):
        raise RecipeError(
            f"{written} is not a whole number",
            where=PAYING_VARIABLE,
            next="set it to megabytes, or not at all",
        )
    return int(written) * 1_000_000 if written else PAYING_BYTES


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
            next=install_hint(resources.engine),
        ) from error
