"""Tasks as Ray tasks: on a cluster at an address, or on a private instance that ends with the run.

    no address          a head of our own: free ports, a token of its own, no dashboard, files below a temp
                        directory
    auto | host:port    the cluster that this machine is a node of
    ray://host:10001    a cluster far away, through its client server (needs ray[client])

A cluster that was there before is there afterwards: we disconnect and stop nothing. Nodes need the same
tokmill and the same path to the output directory; a task brings back a receipt of a few kB.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tokmill.artifacts.manifest import Json, package_version
from tokmill.engines.cluster import CLUSTER_KILLER, ClusterEngine, Loss, WorkerLost
from tokmill.engines.neighbours import require_listener, restored_environment, temp_directory
from tokmill.engines.orders import carry_out, encode_question, read_reply
from tokmill.errors import EngineError

_TEMP = "tm-ray"
# A Unix socket's path has 107 bytes, and Ray appends some 75 to its directory.
_MAX_TEMP_BYTES = 10
# Receipts are the only objects; Ray's least is 75 MB.
_OBJECT_STORE_BYTES = 80 << 20
_CLIENT_PORT = 10001
_PROBE_SECONDS = 90.0
_CANCEL_SECONDS = 30.0
_KV = b"tokmill"  # of Ray's table of keys and values, in its head
_SET_BY_RAY = ("PYTHONBREAKPOINT", "RAY_AUTH_MODE", "RAY_CLIENT_MODE")


def open_ray(address: str | None, workers: int | None, on_restart: Callable[[str], None]) -> ClusterEngine:
    """`workers` are the CPUs of a private instance; on a cluster, the most tasks at once (default:
    its CPUs)."""
    cluster = RayCluster(address, workers)
    return ClusterEngine(cluster, None if cluster.is_private else workers, on_restart)


class RayCluster:
    is_blame_shared = False  # a Ray worker holds one task, and it is the one that is lost
    has_nodes = True
    max_deaths = 3
    killer = CLUSTER_KILLER

    def __init__(self, address: str | None, workers: int | None) -> None:
        self._undo = contextlib.ExitStack()
        self.is_private = False
        self.name = f"ray {package_version('ray')}"
        with self._undo:
            # Before the import: Ray reads its environment once.
            self._undo.enter_context(_quiet())
            if address is None:
                self._undo.enter_context(_own_token())
            import ray

            self._ray = ray
            if ray.is_initialized():  # by the program that calls us, which has chosen the cluster
                _check_connected(ray, address)
            else:
                self.is_private = address is None
                if address is None:
                    temp = Path(tempfile.gettempdir())
                    parent = temp if len(os.fsencode(temp)) <= _MAX_TEMP_BYTES else Path("/tmp")
                    directory = self._undo.enter_context(temp_directory(_TEMP, parent))
                    self._undo.callback(ray.shutdown)
                    _start(ray, workers, directory)
                else:
                    self._undo.callback(ray.shutdown)
                    _connect(ray, address)
            # No retries of Ray's own: deaths are counted by the engine, which names the task.
            self._carry_out = ray.remote(num_cpus=1, max_retries=0)(carry_out)
            self._carry_out_told = ray.remote(num_cpus=1, max_retries=0)(_carry_out_told)
            self._run, self._count = f"tokmill-{secrets.token_hex(8)}-", 0
            self._numbers: dict[Any, str] = {}  # of tasks at work: where their nodes are told
            self._undo.callback(self._forget_places)
            self._ask_every_node(address)
            self._undo = self._undo.pop_all()

    def submit(self, order: bytes, needed_bytes: int = 0) -> Any:
        asked = min(needed_bytes, self._least_memory)
        return self._submit(order, {"memory": asked} if asked else {})

    def _submit(self, order: bytes, options: dict[str, Any]) -> Any:
        """Ray packs by what a task asks for, and by what nodes have."""
        self._count += 1
        place = f"{self._run}{self._count}"
        handle = self._carry_out_told.options(**options).remote(order, place)
        self._numbers[handle] = place
        return handle

    def submit_elsewhere(self, order: bytes, handle: Any) -> Any | None:
        """On a node that has a CPU free, and not the other attempt."""
        place = self._place(handle)
        if not place:
            return None  # it has not begun, or nobody tells where
        free = self._ray._private.state.available_resources_per_node()
        nodes = sorted(node for node, left in free.items() if node != place and left.get("CPU", 0) >= 1)
        if not nodes:
            return None
        there = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(nodes[0], soft=True)
        return self._submit(order, {"scheduling_strategy": there})

    def _place(self, handle: Any) -> str:
        """The node that a task runs on, as it has said itself."""
        with contextlib.suppress(Exception):  # what an internal of Ray raises is not told anywhere
            told = self._ray.experimental.internal_kv._internal_kv_get(self._numbers[handle], namespace=_KV)
            return (told or b"").decode()
        return ""

    def _forget_places(self) -> None:
        with contextlib.suppress(Exception):  # the cluster may be gone
            self._ray.experimental.internal_kv._internal_kv_del(self._run, del_by_prefix=True, namespace=_KV)

    def begun_at(self, handle: Any, submitted_at: float) -> float | None:
        return submitted_at

    def discard(self, handle: Any) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError, ConnectionError, RuntimeError):
            self._ray.cancel(handle, force=True)

    def wait(self, handles: Sequence[Any], seconds: float | None = None) -> Sequence[Any]:
        self._ray.wait(list(handles), num_returns=1, timeout=seconds)
        done, _ = self._ray.wait(list(handles), num_returns=len(handles), timeout=0)
        found: Sequence[Any] = done
        return found

    def reply(self, handle: Any) -> bytes:
        errors = self._ray.exceptions
        self._numbers.pop(handle, None)
        try:
            reply: bytes = self._ray.get(handle)
            return reply
        except (
            errors.NodeDiedError,
            errors.ObjectLostError,
            errors.LocalRayletDiedError,
            errors.TaskCancelledError,
        ) as error:
            raise WorkerLost(Loss.NODE) from error
        except (errors.WorkerCrashedError, errors.OutOfMemoryError) as error:
            raise WorkerLost(Loss.WORKER) from error
        except errors.RayError as error:
            raise _unusable("the cluster", error) from error

    def cancel(self, handles: Sequence[Any]) -> None:
        """By force: a worker deep in a kernel hears nothing else. It is over when Ray says so of each."""
        with contextlib.suppress(self._ray.exceptions.RayError, ConnectionError, RuntimeError):
            for handle in handles:
                self._ray.cancel(handle, force=True)
            self._ray.wait(list(handles), num_returns=len(handles), timeout=_CANCEL_SECONDS)

    def workers(self) -> int:
        try:
            return int(self._ray.cluster_resources().get("CPU", 0))
        except self._ray.exceptions.RayError as error:
            raise _unusable("the cluster", error) from error

    def traffic(self) -> Json:
        return {}

    def close(self) -> None:
        self._undo.close()

    def _ask_every_node(self, address: str | None) -> None:
        """Refuse a node with another tokmill before any work is done."""
        ray, question = self._ray, encode_question()
        nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
        if not nodes:
            raise EngineError(
                "no node of this Ray cluster has a CPU for tasks",
                where=address or "ray",
                next="start nodes with `ray start --num-cpus N`, one or more each",
            )
        # A task that asks for more than any node has would wait for ever.
        self._least_memory = int(min(node["Resources"].get("memory", 0) for node in nodes))
        asked = [
            self._carry_out.options(
                num_cpus=0,
                scheduling_strategy=ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
                    node_id=node["NodeID"], soft=False
                ),
            ).remote(question)
            for node in nodes
        ]
        answered, silent = ray.wait(asked, num_returns=len(asked), timeout=_PROBE_SECONDS)
        for answer in answered:
            with contextlib.suppress(
                WorkerLost
            ):  # a node that goes just now is asked again by its first task
                read_reply(self.reply(answer))
        if silent:
            names = [
                node["NodeManagerHostname"] for node, ref in zip(nodes, asked, strict=True) if ref in silent
            ]
            self.cancel(silent)
            raise EngineError(
                f"no answer from {', '.join(sorted(names))} in {_PROBE_SECONDS:.0f} seconds",
                where=address or "ray",
                next="see that workers can start there (`ray status`, and the logs of the node)",
            )


def _carry_out_told(order: bytes, place: str) -> bytes:
    """In a worker, which says where it is: only of a task that is late somebody wants to know."""
    with contextlib.suppress(Exception):  # an internal of Ray; a task that is nowhere is not begun twice
        import ray

        node = ray.get_runtime_context().get_node_id()
        ray.experimental.internal_kv._internal_kv_put(place, node.encode(), namespace=_KV)
    return carry_out(order)


def _start(ray: Any, workers: int | None, directory: Path) -> None:
    _init(
        ray,
        "a private instance",
        address="local",  # also where RAY_ADDRESS or a running cluster would say otherwise
        num_cpus=workers,
        include_dashboard=False,
        object_store_memory=_OBJECT_STORE_BYTES,
        _temp_dir=str(directory),
    )


def _connect(ray: Any, address: str) -> None:
    if address != "auto":
        host = address.removeprefix("ray://")
        require_listener(host, _CLIENT_PORT if address.startswith("ray://") else 6379, "Ray cluster", address)
    _init(ray, address, address=address)


def _init(ray: Any, where: str, **options: Any) -> None:
    try:
        ray.init(log_to_driver=False, configure_logging=False, **options)
    except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise _unusable(where, error) from error


def _check_connected(ray: Any, address: str | None) -> None:
    connected = ray.get_runtime_context().gcs_address
    if address not in (None, "auto", connected):
        raise EngineError(
            f"this process is connected to another Ray cluster, at {connected}",
            where=str(address),
            next="call `ray.shutdown()` first, or give no address",
        )


def _unusable(where: str, error: Exception) -> EngineError:
    text = "\n".join(_chain(error))
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    if "oken" in text and "uthenticat" in text:
        advice = "give the cluster's token: RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
    elif "No module named" in text:
        first = f"the nodes cannot import what a task needs: {_last_line(text)}"
        advice = "install the same tokmill on every node"
    elif "ersion" in text and "ython" in text:
        first = " ".join(text.split())
        advice = "run the driver with the cluster's Ray and Python"
    else:
        advice = "start a node with `ray start` and give its address (docs/clusters.md)"
    return EngineError(f"Ray cannot be used ({first})", where=where, next=advice)


def _chain(error: BaseException | None) -> Iterator[str]:
    while error is not None:
        yield str(error)
        error = error.__cause__ or error.__context__


def _last_line(text: str) -> str:
    return [line.strip() for line in text.splitlines() if "No module named" in line][-1]


@contextlib.contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """These variables, where nobody has set them, for a while; those that Ray has set go, too."""
    with restored_environment((*_SET_BY_RAY, *variables)):
        for name, value in variables.items():
            os.environ.setdefault(name, value)
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Ray reports dead workers on stdout, where the result of --json goes; the engine says it on stderr."""
    with _environment(RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS_SKIP_REGEX=".*"):
        try:
            yield
        finally:
            _forget_token()


@contextlib.contextmanager
def _own_token() -> Iterator[None]:
    """A private instance listens on the machine's network; only this run may give it work.

    Ray from 2.59 on would do the same with a token that it leaves in the home directory.
    """
    chosen = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    if any(name in os.environ for name in chosen):
        yield
        return
    with _environment(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32)):
        _forget_token()
        yield


def _forget_token() -> None:
    """Ray keeps mode and token for the life of a process; another cluster may follow in ours."""
    with contextlib.suppress(ImportError, AttributeError):  # none before Ray 2.52
        from ray import _raylet

        internals: Any = _raylet
        internals.AuthenticationTokenLoader.instance().reset_cache()
        internals.Config.initialize("")
