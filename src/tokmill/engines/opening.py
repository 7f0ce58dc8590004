"""Who runs the tasks of a run: what was asked for, and the engine that fits.

local   the driver itself where one worker is enough or no more can be had, else processes of its own
ray     a private instance, or the cluster at an address
dask    likewise
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tokmill.engines.inline import InlineEngine
from tokmill.engines.local import Engine, LocalEngine, without_semaphores
from tokmill.engines.memory import workers_within
from tokmill.environment import available_cores
from tokmill.errors import RecipeError

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


def open_engine(
    resources: Resources, shard_bytes: int, say: Callable[[str], None], *, device: str = "cpu"
) -> Engine:
    if resources.address is not None:
        return _open_cluster(resources, resources.workers, say, device)
    workers = resources.workers or available_cores()
    if resources.memory is not None:
        workers = workers_within(resources.memory, workers, shard_bytes, say)
    if resources.engine != "local":
        return _open_cluster(resources, workers, say, device)
    if workers > 1 and (fault := without_semaphores()):
        say(f"working in one process: this machine gives no semaphores to share with others ({fault})")
        workers = 1
    return InlineEngine(device=device) if workers == 1 else LocalEngine(workers, say, device=device)


def _open_cluster(
    resources: Resources, workers: int | None, say: Callable[[str], None], device: str
) -> Engine:
    if resources.engine == "ray":
        from tokmill.engines.ray import open_ray

        return open_ray(resources.address, workers, say, device=device)
    from tokmill.engines.dask import open_dask

    return open_dask(resources.address, workers, say, device=device)
