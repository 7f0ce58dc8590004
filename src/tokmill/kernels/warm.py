"""Kernels compiled, or loaded from the disk cache, before work starts.

    compile_kernels  ->  first call of each kernel
        it came from the cache          not a word: all of them load in a second
        it had to be compiled           "compiling 7 kernels, once per machine …", "compiled 7 kernels in 8 s"

    ensure_compiled  ->  the same, unless a file beside the cache says that all of this has been done before

A command calls the second once, before it starts workers: they then find the cache full, and none of them compiles. It
does not load what only they will call.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding
import numba

from tokmill import kernels as folder
from tokmill.kernels.jit import source_stamp


class Compilation(NamedTuple):
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody wants here
    compiled: int
    seconds: float


def ensure_compiled(announce: Callable[[str], None], modules: Collection[str]) -> None:
    """That workers find in the cache what they will call."""
    looks = _looks(kernels_of(modules))
    if all(_read(ready) == look for ready, look in looks.items()):
        return
    compile_kernels(announce, modules)
    with contextlib.suppress(OSError):  # then they are loaded next time too
        for ready, look in looks.items():
            ready.write_text(look)


def compile_kernels(announce: Callable[[str], None], modules: Collection[str] | None = None) -> Compilation:
    """Those of `modules`; None is all: 40 s where none is compiled yet."""
    started = time.perf_counter()
    wanted = kernels_of(modules)
    compiled = 0
    for position, kernel in enumerate(wanted):
        misses = _cache_misses(kernel)
        kernel.first_call()
        if _cache_misses(kernel) == misses:
            continue
        if compiled == 0:
            announce(f"compiling {len(wanted) - position} kernels, once per machine …")
        compiled += 1
    seconds = time.perf_counter() - started
    if compiled:
        announce(f"compiled {compiled} kernels in {seconds:.1f} s")
    return Compilation(len(wanted), compiled, seconds)


def kernels_of(modules: Collection[str] | None = None) -> list[Any]:
    """numba's dispatchers, in the order of their modules and lines."""
    if modules is None:
        modules = [module.name for module in pkgutil.iter_modules(folder.__path__)]
    return [
        value
        for name in sorted(modules)
        for value in vars(importlib.import_module(f"{folder.__name__}.{name}")).values()
        if hasattr(value, "first_call") and value.__module__ == f"{folder.__name__}.{name}"
    ]


def _cache_misses(kernel: Any) -> int:
    return sum(kernel.stats.cache_misses.values())


def _looks(kernels: Collection[Any]) -> dict[Path, str]:
    """By module, for a file beside its cached kernels: all that makes numba compile one of them again."""
    machine = (
        numba.__version__,
        sys.implementation.cache_tag,
        numba.config.CPU_NAME or llvmlite.binding.get_host_cpu_name(),
        numba.config.CPU_FEATURES or llvmlite.binding.get_host_cpu_features().flatten(),
    )
    return {
        # where nothing is cached, nothing is ever ready
        Path(kernel.stats.cache_path or os.devnull) / f"{kernel.__module__}.ready": repr(
            (*machine, source_stamp(kernel.__module__))
        )
        for kernel in kernels
    }


def _read(ready: Path) -> str | None:
    try:
        return ready.read_text()
    except (OSError, UnicodeDecodeError):
        return None
