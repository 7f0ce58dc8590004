"""One way to declare a kernel: compiled on first call, cached on disk, free of the GIL.

numba keys its disk cache on the file that holds the kernel, not on the files it calls into. So a kernel
calls only functions of its own file; a helper that two files need is written in the file that owns it and
the second file goes through that file's kernels. A step of a few lines, like loading a word, is in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import numba
from numba import extending

P = ParamSpec("P")
R = TypeVar("R")


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    compiled: Callable[P, R]
    try:
        compiled = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except (
        RuntimeError
    ):  # neither the package nor the user's cache directory can be written: compile each time
        compiled = numba.njit(nogil=True, error_model="numpy")(function)
    return compiled


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """A step of the kernels of its own file: compiled into each of them, never on its own.

    Keep a step that takes an array to a few lines. LLVM calls a long one instead of inlining it, and such a
    call counts references on the array's owner: a walk with one call per byte ran at 47 MB/s. numba's
    inline="always" is no way out: measure_text fell from 3.9 to 1.7 GB/s with it, and SHA-256 took 3.3 s to
    compile instead of 1.2.
    """
    step: Callable[P, R] = extending.register_jitable(function)
    return step
