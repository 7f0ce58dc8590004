"""numba, for kernels that are called: it is loaded with the first of them.

    kernel of jit.py ─ called ─ made ─┬─ in the cache: its code is loaded, and nothing that compiles
                                      └─ it is not: steps are declared, and it is compiled

A process that calls no kernel, as the driver of workers, does without: 0.2 CPU seconds, and 0.05 for the
declarations of 80 kernels and their steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numba
from numba import extending
from numba.core.runtime import rtsys
from numba.core.typing.templates import builtin_registry

from tokmill.kernels.instructions import (
    add_eight,
    add_rows,
    bucket_grams,
    high_half,
    ones,
    prefetch,
    trailing_zeros,
    word_ahead,
)

_INSTRUCTIONS = {
    "add_eight": add_eight,
    "add_rows": add_rows,
    "bucket_grams": bucket_grams,
    "high_half": high_half,
    "ones": ones,
    "prefetch": prefetch,
    "trailing_zeros": trailing_zeros,
    "word_ahead": word_ahead,
}


def make_kernel(
    function: Callable[..., object], options: Mapping[str, Any], stamp: str, declare: Callable[[], None]
) -> Any:
    """numba's dispatcher. `stamp`: what its code in the cache was compiled from. `declare`: its steps, before
    it is compiled."""
    try:
        made: Any = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither the package nor the user's cache can be written: compile each time
        declare()
        return numba.njit(**options)(function)
    # in a frozen program, which has no source, numba's own stamp is of the program
    cached = made._cache._cache_file
    cached._source_stamp = stamp or cached._source_stamp
    made._cache.load_overload = functools.partial(_load_compiled, made._cache, declare)
    made._compilation_chain_init_hook = _load_no_extensions
    return made


def declare_step(function: Callable[..., object], options: Mapping[str, Any]) -> None:
    """That kernels may call it."""
    if options:
        extending.register_jitable(**options)(function)
    else:
        extending.register_jitable(function)


def declare_instruction(stands_for_it: object, name: str) -> None:
    """What stands for it in kernels has its type from now on."""
    kinds = [kind for known, kind in builtin_registry.globals if known is _INSTRUCTIONS[name]]
    builtin_registry.register_global(stands_for_it, kinds[0])


def _load_compiled(cache: Any, declare: Callable[[], None], signature: Any, target: Any) -> Any:
    """As numba does it, but for `target.refresh`, which the compiler does itself; None where it has to."""
    rtsys.initialize(target)
    with cache._guard_against_spurious_io_errors():
        found = cache._load_overload(signature, target)
    if found is None:
        declare()
    return found


def _load_no_extensions() -> None:
    """Types of other packages: none of our kernels takes any."""
