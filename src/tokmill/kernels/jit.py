"""How a kernel is declared, and what arrays it takes: compiled on first call, cached on disk, free of the GIL.

    kernel       may make arrays                inlined    a step of one
    raw_kernel   only takes arrays              raw_step   a step of one, always inlined

numba counts references to the owner of every array that it passes on, with atomic instructions, and prunes only
what it can prove useless. A kernel that makes no arrays needs none of it: with the runtime that counts switched
off, splitting text into words went from 44 to 87 MB/s.

numba's disk cache notices a change of the file that holds the kernel, and of no other, though constants and steps that it
imports are compiled into it. So the stamp that is compared is ours: the text of the file, and of all files of this folder
that it imports from. Of the whole folder would be simpler, but then one edited kernel, or a release that touches one,
compiles all of them: 40 s instead of one. The text, not the time of the file: an installed copy, another clone or a new
layer of an image has the same text, and what was compiled from it still holds.

One flavour of array for every kernel, so that each is compiled once:

    Arrow large_string        data     uint8[bytes]    h e l l o w o r l d
                              offsets  int64[n + 1]    0 5 5 10            row i = data[offsets[i]:offsets[i+1]]

numba compiles a new specialization (about a second) for each new combination of type, layout and
writability of the arguments. Arrow's buffers are read-only and contiguous, so read-only and contiguous is
what every kernel gets, whatever its caller had.

Kernels compiled, or loaded from the disk cache, before work starts.

    compile_kernels  ->  first call of each kernel
        it came from the cache          not a word: all of them load in a second
        it had to be compiled           "compiling 7 kernels, once per machine …", "compiled 7 kernels in 8 s"

    ensure_compiled  ->  the same, unless a file beside the cache says that all of this has been done before

A command calls the second once, before it starts workers: they then find the cache full, and none of them compiles. It
does not load what only they will call.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import os
import pkgutil
import re
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import llvmlite.binding
import numba
import numpy as np
from numba import extending
from numpy.typing import NDArray

from tokmill import kernels as folder

P = ParamSpec("P")
R = TypeVar("R")

Bytes = NDArray[np.uint8]
Offsets = NDArray[np.int64]
# What a kernel counts with: one type to numba, two to the type checker.
Int = int | np.int64

_IMPORTED = re.compile(rf"^from ({re.escape(__package__)}\.\w+) import", re.MULTILINE)


def kernel(first_call: Callable[[], object]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """`first_call` calls the kernel through its wrapper, on next to nothing: warm.py compiles it by that."""
    return lambda function: _compiled(function, first_call)


def raw_kernel(first_call: Callable[[], object]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    return lambda function: _compiled(function, first_call, _nrt=False)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """A step of the kernels of its own file: compiled into each of them, never on its own.

    Keep a step that takes an array to a few lines. LLVM calls a long one instead of inlining it, and such a
    call counts references on the array's owner: a walk with one call per byte ran at 47 MB/s. numba's
    inline="always" is no way out: measure_text fell from 3.9 to 1.7 GB/s with it, and SHA-256 took 3.3 s to
    compile instead of 1.2.
    """
    step: Callable[P, R] = extending.register_jitable(function)
    return step


def raw_step(function: Callable[P, R]) -> Callable[P, R]:
    step: Callable[P, R] = extending.register_jitable(_nrt=False, forceinline=True)(function)
    return step


@functools.cache  # as of the import: a file that is edited later is not what this process compiles
def source_stamp(module: str) -> str:
    """What changes when a kernel of `module` has to be compiled again; "" where there is no source to read."""
    package, _, name = module.rpartition(".")
    try:
        source = pkgutil.get_data(package, f"{name}.py") or b""
    except OSError:
        return ""
    stamps = [source_stamp(imported) for imported in sorted(set(_IMPORTED.findall(source.decode())))]
    return hashlib.sha256(source + "".join(stamps).encode()).hexdigest()


def _compiled(function: Callable[P, R], first_call: Callable[[], object], **options: Any) -> Callable[P, R]:
    compiled: Any
    options |= {"nogil": True, "error_model": "numpy"}
    try:
        compiled = numba.njit(cache=True, **options)(function)
    except (
        RuntimeError
    ):  # neither the package nor the user's cache directory can be written: compile each time
        compiled = numba.njit(**options)(function)
    else:
        # in a frozen program, which has no source, numba's own stamp is of the program
        cached = compiled._cache._cache_file
        cached._source_stamp = source_stamp(function.__module__) or cached._source_stamp
    compiled.first_call = first_call
    typed: Callable[P, R] = compiled
    return typed


# --- arrays ---


def frozen(values: NDArray[Any], dtype: type[np.generic]) -> NDArray[Any]:
    """A read-only, contiguous, aligned view of `values`; a copy only where it was not contiguous."""
    if values.dtype != dtype:
        raise TypeError(f"a kernel wants {np.dtype(dtype)}, got {values.dtype}")
    view = np.require(values, requirements=("C", "A")).view()
    view.flags.writeable = False
    return view


def frozen_text(data: Bytes, offsets: Offsets) -> tuple[Bytes, Offsets, int]:
    """The two buffers of a text column, checked against each other, and its number of rows.

    Arrow lets an empty column have no offsets at all; it then gets the one offset it should have had.
    """
    if offsets.size == 0:
        offsets = np.zeros(1, np.int64)
    data, offsets = frozen(data, np.uint8), frozen(offsets, np.int64)
    if not 0 <= offsets[0] <= offsets[-1] <= data.size:
        raise ValueError(
            f"offsets {offsets[0]}..{offsets[-1]} lie outside the {data.size} bytes of their column"
        )
    return data, offsets, offsets.size - 1


# What first calls are made with: a text of one row, a row number, a hash.
TEXT = frozen_text(np.frombuffer(b"A\r\n b", np.uint8), np.array([0, 5]))[:2]
ROWS = np.zeros(1, np.int64)
HASHES = np.zeros(1, np.uint64)


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
