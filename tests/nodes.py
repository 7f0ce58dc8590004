"""Nodes that share nothing but loopback: processes in mount namespaces of their own.

    driver      the disk as it is: recipe, sources, run directory
    node        an empty tmpfs over every place where tests write (/tmp, /dev/shm, the cache of the home
                directory), and a host name of its own; of the disk it sees the installed packages

What a node has is looked at from outside, through /proc/<pid>/root: no code of ours stands between.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

TESTS = Path(__file__).resolve().parent
CACHE = Path("/tmp/node-cache")  # as a node sees it
# Everything below these is a node's own.
PRIVATE = (Path("/tmp"), Path("/dev/shm"), Path.home() / ".cache")


def require_namespaces() -> None:
    if shutil.which("unshare") is None:
        pytest.skip("there is no `unshare`")
    tried = subprocess.run(["unshare", "--mount", "--uts", "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip("namespaces need root here")


class Node(NamedTuple):
    name: str
    process: subprocess.Popen[bytes]

    def sees(self, path: Path) -> bool:
        return self._inside(path).exists()

    def files(self, path: Path) -> list[Path]:
        inside = self._inside(path)
        return sorted(found for found in inside.rglob("*") if found.is_file())

    def kill(self) -> None:
        """With all that it started, as a machine that goes."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        for child in (*children, self.process):
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                child.send_signal(signal.SIGKILL)
        self.process.wait()

    def _inside(self, path: Path) -> Path:
        return Path(f"/proc/{self.process.pid}/root{path}")


def unshared_command(
    name: str, command: list[str], *, preload: Path | None = None, seen: Path | None = None
) -> list[str]:
    """In namespaces of its own. `seen`: a directory that the node shares all the same, though it is below a
    private place."""
    hidden = [
        f"mkdir -p {shlex.quote(str(path))} && mount -t tmpfs tmpfs {shlex.quote(str(path))}"
        for path in PRIVATE
    ]
    if seen is not None:
        whole = shlex.quote(str(seen))
        hidden.insert(0, f"mount --bind {whole} /mnt")
        hidden += [f"mkdir -p {whole}", f"mount --bind /mnt {whole}", "umount /mnt"]
    hide = " && ".join(hidden)
    if preload is not None:
        hide = f"exec 9< {shlex.quote(str(preload))} && {hide} && cat <&9 > /tmp/preload.so && exec 9<&-"
        hide += " && export LD_PRELOAD=/tmp/preload.so"
    script = f"{hide} && hostname {name} && cd /tmp && exec {shlex.join(command)}"
    return ["unshare", "--mount", "--propagation", "private", "--uts", "sh", "-c", script]


@contextlib.contextmanager
def open_node(
    name: str,
    command: list[str],
    env: dict[str, str],
    preload: Path | None = None,
    *,
    shared: Path | None = None,
) -> Iterator[Node]:
    """The command becomes the first process of the node; with a library that it loads first, where it is to
    be lied to. `shared`: a directory that it sees as the driver does, as on a disk of the network."""
    unshared = unshared_command(name, command, preload=preload, seen=shared)
    whole = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "TMPDIR": "/tmp",
        "TOKMILL_NODE_CACHE": str(CACHE),
        **env,
    }
    with subprocess.Popen(
        unshared, env=whole, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        node = Node(name, process)
        try:
            yield node
        finally:
            if process.poll() is None:
                node.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def await_port(process: subprocess.Popen[bytes], port: int, host: str = "127.0.0.1") -> None:
    while process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((host, port)):
            return
        time.sleep(0.05)
    raise RuntimeError("it did not start")


class Cluster(NamedTuple):
    address: str
    nodes: list[Node]


@contextlib.contextmanager
def open_dask_nodes(
    count: int, env: dict[str, str], preloads: Sequence[Path | None] = (), *, shared: Path | None = None
) -> Iterator[Cluster]:
    """A scheduler, and nodes with one worker each that are up."""
    distributed = pytest.importorskip("distributed")
    require_namespaces()
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    scheduler = ["-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port)]
    worker = [
        *(sys.executable, "-m", "distributed.cli.dask_worker", address),
        *("--host", "127.0.0.1", "--no-nanny", "--nthreads", "1", "--no-dashboard", "--memory-limit", "0"),
    ]
    with contextlib.ExitStack() as stack:
        started = stack.enter_context(
            subprocess.Popen(
                [sys.executable, *scheduler, "--no-dashboard"],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        )
        stack.callback(started.kill)
        await_port(started, port)
        loaded = [*preloads, *[None] * (count - len(preloads))]
        nodes = [
            stack.enter_context(open_node(f"node-{n}", worker, env, preload, shared=shared))
            for n, preload in enumerate(loaded)
        ]
        with distributed.Client(address, set_as_default=False) as client:
            client.wait_for_workers(count)
        yield Cluster(address, nodes)


@contextlib.contextmanager
def open_ray_nodes(
    count: int, env: dict[str, str], directory: Path, *, shared: Path | None = None
) -> Iterator[Cluster]:
    """A head without CPUs where the driver is, and nodes with one each, at the address that Ray gives this
    machine."""
    services = pytest.importorskip("ray._private.services")
    require_namespaces()
    host = services.get_node_ip_address()
    port = free_port()
    start = [str(Path(sys.executable).with_name("ray")), "start", "--block", "--disable-usage-stats"]
    few = ["--object-store-memory", str(80 << 20)]
    head = [
        *(*start, *few, "--head", "--port", str(port), "--num-cpus", "0"),
        *("--include-dashboard", "false", "--temp-dir", str(directory)),
    ]
    quiet = {"RAY_AUTH_MODE": "disabled"}
    with contextlib.ExitStack() as stack:
        started = stack.enter_context(
            subprocess.Popen(
                head, env={**os.environ, **quiet}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        )
        stack.callback(Node("head", started).kill)
        await_port(started, port, host)
        nodes = []
        for number in range(count):
            command = [*start, *few, "--address", f"{host}:{port}", "--num-cpus", "1"]
            node = open_node(f"node-{number}", command, {**quiet, **env}, shared=shared)
            nodes.append(stack.enter_context(node))
        _await_cpus(f"{host}:{port}", count, quiet)
        yield Cluster(f"{host}:{port}", nodes)


def _await_cpus(address: str, count: int, env: dict[str, str]) -> None:
    """In a process of its own: Ray keeps a connection's settings for the life of one."""
    code = (
        "import ray, sys, time\n"
        "ray.init(address=sys.argv[1], log_to_driver=False, configure_logging=False)\n"
        "while ray.cluster_resources().get('CPU', 0) < int(sys.argv[2]): time.sleep(0.2)"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, address, str(count)]
    subprocess.run(command, env={**os.environ, **env}, check=True, capture_output=True, timeout=180)
