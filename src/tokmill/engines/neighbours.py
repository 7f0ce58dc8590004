"""What is around a driver: is anybody listening at that address, and what did killed drivers leave behind."""

from __future__ import annotations

import os
import shutil
import socket
import zlib
from pathlib import Path

from tokmill.errors import EngineError
from tokmill.storage.lock import pid_space, process_began

_CONNECT_SECONDS = 5.0


def require_listener(address: str, default_port: int, what: str, given: str) -> None:
    """Ask before the library does: Ray and Dask wait for minutes, or end the process, where nobody answers."""
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


def temp_prefix(name: str) -> str:
    return f"{name}-{_host()}-{os.getpid()}-{process_began(os.getpid())}-"


def remove_abandoned(parent: Path, name: str) -> None:
    """Directories of processes that were killed before they could tidy up."""
    for path in sorted(parent.glob(f"{name}-{_host()}-*-*-*")):
        pid, began = path.name.removeprefix(f"{name}-{_host()}-").split("-")[:2]
        if pid.isdecimal() and began.isdecimal() and process_began(int(pid)) != int(began):
            shutil.rmtree(path, ignore_errors=True)


def _host() -> str:
    """Short, for sockets lie below. Containers may share a directory and a name, and know nothing of each other's pids."""
    return f"{zlib.crc32(f'{socket.gethostname()} {pid_space()}'.encode()):08x}"
