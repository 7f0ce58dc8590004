"""Kernels compiled before work starts: all of them, once per version, by several processes.

    ensure_compiled ─┬─ a file beside the cache has the stamp of every module: nothing is loaded,
                     │  and not a word said
                     └─ it has not:   modules ─ pipe ─┬─ process ─┐
                                                      ├─ process ─┼─ pipe ─ a byte for each kernel ─> 12 of 56
                                                      └─ process ─┘
                        then it is written: workers, and whoever comes later, find the cache full

    load_kernels     the same, and each is called here once: for who measures
    load_kept        each is called here once, if none has to be compiled: for who forks

All of them, though a run may call half: the commands that follow call the others, and would be silent for as
long. Compiling holds numba's one lock, so threads are of no use. Modules are handed out, the longest first,
and not kernels: those of a file share steps, which a process compiles once.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import pkgutil
import platform
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from tokmill.kernels.jit import source_stamp

OnKernel = Callable[[int, int], None]  # how many are compiled, and of how many; begins with none

# Each takes as much memory as a worker without a shard.
MAX_PROCESSES = 8

# What decides what LLVM compiles for: settings of numba, and lines of /proc/cpuinfo.
_SETTINGS = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")
_TELLING = ("vendor_id", "cpu family", "model", "flags", "CPU ", "Features")

_CHILD = "import sys; sys.path[:] = {path!r}; from {module} import compile_asked; compile_asked({modules!r})"


def ensure_compiled(on_kernel: OnKernel, processes: int = 1) -> int:
    """That workers find in the cache what they will call. How many kernels may not have been there."""
    ready = _ready_file()
    if ready is None:  # nothing is kept here: each process compiles what it calls
        return 0
    stamps = _stamps()
    stale = _stale(ready, stamps)
    kernels = kernels_of(stale)
    if kernels:
        on_kernel(0, len(kernels))
        if not _compile_apart(stale, len(kernels), on_kernel, processes):
            _call_each(kernels)  # it cannot be done apart, or one cannot be compiled: then this says why
    if stale:
        temp = ready.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):  # then they are looked for again next time
            temp.write_text(json.dumps(stamps, indent=1))
            temp.replace(ready)
    return len(kernels)


def count_stale() -> int:
    """Kernels that are compiled before the next work; all of them where compiled kernels cannot be kept."""
    ready = _ready_file()
    return len(kernels_of(_stale(ready, _stamps()) if ready is not None else None))


def load_kernels(modules: Collection[str] | None = None) -> list[Any]:
    """numba's dispatchers, each compiled and called once in this process."""
    ensure_compiled(lambda done, total: None, len(os.sched_getaffinity(0)))
    kernels = kernels_of(modules)
    _call_each(kernels)
    return kernels


def load_kept(is_wanted: Callable[[str], bool] = lambda module: True) -> None:
    """Those that are in the cache, of the modules that are wanted, called once in this process; none where
    some are not, or nothing is kept."""
    ready = _ready_file()
    if ready is not None and not _stale(ready, _stamps()):
        _call_each(kernels_of([module for module in _modules() if is_wanted(module)]))


def kernels_of(modules: Collection[str] | None = None) -> list[Any]:
    """numba's dispatchers, in the order of their modules and lines; of all modules by default."""
    return [
        value
        for name in sorted(_modules() if modules is None else modules)
        for value in vars(importlib.import_module(f"{__package__}.{name}")).values()
        if hasattr(value, "first_call") and value.__module__ == f"{__package__}.{name}"
    ]


def compile_asked(modules: Sequence[str]) -> None:
    """What a process does that was started for it: its standard input has the number of a module in each
    byte."""
    gc.disable()
    while number := os.read(0, 1):
        for kernel in kernels_of([modules[number[0]]]):
            kernel.first_call()
            os.write(1, b".")


def _compile_apart(modules: Sequence[str], total: int, on_kernel: OnKernel, processes: int) -> bool:
    """Whether all of them are compiled now."""
    longest_first = sorted(modules, key=lambda name: -len(_source(name)))
    code = _CHILD.format(path=sys.path, module=__name__, modules=longest_first)
    asked, ask = os.pipe()
    answers, answer = os.pipe()
    os.write(ask, bytes(range(len(modules))))
    os.close(ask)
    children: list[subprocess.Popen[bytes]] = []
    try:
        for _ in range(min(processes, len(modules), MAX_PROCESSES)):
            command = [sys.executable, "-c", code]
            children.append(subprocess.Popen(command, stdin=asked, stdout=answer, stderr=subprocess.DEVNULL))
        os.close(answer)  # or it would never end
        answer = -1
        done = 0
        while os.read(answers, 1):
            done += 1
            on_kernel(done, total)
        return done == total
    except OSError:  # no process can be started here
        return False
    finally:
        for child in children:
            child.kill()  # has ended, unless this was interrupted
            child.wait()
        for descriptor in (asked, answers, answer):
            if descriptor != -1:
                os.close(descriptor)


def _call_each(kernels: Collection[Any]) -> None:
    for kernel in kernels:
        kernel.first_call()


def _source(name: str) -> bytes:
    try:
        return pkgutil.get_data(__package__, f"{name}.py") or b""
    except OSError:  # in a frozen program
        return b""


def _modules() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(sys.modules[__package__].__path__)]


def _stamps() -> dict[str, str]:
    return {name: source_stamp(f"{__package__}.{name}") for name in _modules()}


def _stale(ready: Path, stamps: dict[str, str]) -> list[str]:
    try:
        known = json.loads(ready.read_text())
    except (OSError, ValueError):
        known = {}
    return [name for name, stamp in stamps.items() if known.get(name) != stamp]


def _ready_file() -> Path | None:
    """Beside the cached kernels, one for each kind of machine; None where nothing is cached. Kernels are
    beside their modules where they can be written there; numba is asked, and so loaded, where they may be
    elsewhere."""
    machine = (sys.implementation.cache_tag, _numba_version(), *map(os.environ.get, _SETTINGS), _processor())
    name = f"kernels-{hashlib.sha256(repr(machine).encode()).hexdigest()[:16]}.ready"
    beside = Path(sys.modules[__package__].__path__[0]) / "__pycache__" / name
    if "NUMBA_CACHE_DIR" not in os.environ and beside.exists() and os.access(beside.parent, os.W_OK):
        return beside
    place = kernels_of(["hashing"])[0].stats.cache_path
    return Path(place) / name if place else None


def _numba_version() -> str:
    """Without loading it: 0.2 s."""
    found = importlib.util.find_spec("numba")
    try:
        return (Path(found.origin).parent / "_version.py").read_text() if found and found.origin else ""
    except OSError:
        return importlib.metadata.version("numba")


def _processor() -> str:
    """What decides of the code that is compiled for it, of the first that Linux tells of. It knows more than
    LLVM does: where two differ that LLVM takes for one, kernels are looked for in vain, and found."""
    try:
        with Path("/proc/cpuinfo").open() as file:
            told = file.read(8192).partition("\n\n")[0].splitlines()
    except OSError:
        return platform.machine()
    return "\n".join(line for line in told if line.startswith(_TELLING))
