"""A process that is ours alone, a command or a worker: the collector runs seldom, and there is one thread.

A process that has one thread may be forked: a fork copies one, and locks as the others held them. NumPy and
Arrow start threads when they are loaded: as many as there are cores for matrices, and one that tidies up.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path

# A collection after so many new objects, not after 700. What a command imports stays to its end.
_NEW_OBJECTS = 100_000
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}


def spare_collector() -> None:
    """0.7 s of CPU of every process that has numba: 0.2 while it loads, and 0.5 when Python is taken apart at
    the end, where all that lives is looked at several times before the system takes it back whole."""
    gc.set_threshold(_NEW_OBJECTS)
    atexit.register(gc.freeze)


def take_apart_at_end() -> None:
    """Of a command that loads DuckDB, which prints a page about whatever of it still lives at the end."""
    atexit.unregister(gc.freeze)


@contextlib.contextmanager
def collector_at_rest() -> Iterator[None]:
    """While modules are loaded: they make half a million objects, which all stay, and the five collections on
    the way took 0.1 s. None of them is looked at again."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def spare_threads() -> None:
    """Before NumPy and Arrow are loaded. Workers are as many as cores: none needs threads for matrices."""
    for name, value in ONE_THREAD.items():
        os.environ.setdefault(name, value)


def has_one_thread() -> bool:
    """Of Python and of libraries, as Linux counts them."""
    return threading.active_count() == 1 and len(list(Path("/proc/self/task").iterdir())) == 1


def forget_peak() -> None:
    """The most memory that this process took is counted from now on, where Linux lets it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def read_peak() -> int:
    """Bytes since then; 0: the system does not tell."""
    try:
        told = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in told.splitlines() if line.startswith("VmHWM:")), 0)
