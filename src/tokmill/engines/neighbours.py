"""Around a driver that uses a cluster: is anybody there, and what have others left behind?

require_listener        an address must have one, before a library waits for it
restored_environment    variables that a library sets are as they were, afterwards
temp_directory          of our own; those of drivers that were killed are removed
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokmill.errors import EngineError
from tokmill.storage.lease import pid_space, process_began

_CONNECT_SECONDS = 5.0


def require_listener(address: str, default_port: int, what: str, given: str) -> None:
    """Ask before the library does: Ray and Dask wait for minutes, or end the process,
    where nobody answers."""
    host, colon, port = address.rpartition(":")
    if not colon:
        host, port = address, str(default_port)
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS):
            return
    except (OSError, ValueError, OverflowError) as error:
        raise EngineError(
            f"no {what} answers at this address ({error})",
            where=given,
            next="give the host and port of one that runs; see docs/clusters.md",
        ) from error


@contextlib.contextmanager
def restored_environment(names: Iterable[str]) -> Iterator[None]:
    """These variables are afterwards what they were before, whatever is set meanwhile."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def temp_directory(name: str, parent: Path) -> Iterator[Path]:
    """For a cluster of our own. One of a driver that was killed is removed by the next."""
    remove_abandoned(parent, name)
    directory = Path(tempfile.mkdtemp(prefix=temp_prefix(name), dir=parent))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def temp_prefix(name: str) -> str:
    return f"{name}-{_host()}-{os.getpid()}-{process_began(os.getpid())}-"


def remove_abandoned(parent: Path, name: str) -> None:
    """Directories of processes that were killed before they could tidy up."""
    for path in sorted(parent.glob(f"{name}-{_host()}-*-*-*")):
        pid, began = path.name.removeprefix(f"{name}-{_host()}-").split("-")[:2]
        if pid.isdecimal() and began.isdecimal() and process_began(int(pid)) != int(began):
            shutil.rmtree(path, ignore_errors=True)


def _host() -> str:
    """Short, for sockets lie below. Containers may share a directory and a name,
    and know nothing of each other's pids."""
    return f"{zlib.crc32(f'{socket.gethostname()} {pid_space()}'.encode()):08x}"
