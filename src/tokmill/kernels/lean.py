"""Load of numba only what our kernels need: for a process that is ours alone, before its first kernel.

    the first call of any kernel ─ init_all ─┬─ extensions of other packages, awkward's (0.2 CPU s)
                                             └─ registries of types ─ is there a BLAS? ─ scipy.linalg (0.15)

No kernel of ours multiplies matrices or takes the arrays of an extension. In a process that somebody else
uses too (a notebook, a test) nothing is changed: their kernels may need both.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from numba.core import cpu, entrypoints, registry


def spare_libraries() -> None:
    """From now on; scipy.linalg can be imported as before, once the registries are there."""
    entrypoints.init_all = _load_registries


def _load_registries() -> None:
    entrypoints.init_all = _nothing
    target = registry.cpu_target
    with _missing("scipy.linalg"):
        target.typing_context.refresh()
        context = target.target_context
        assert isinstance(context, cpu.CPUContext)
        context.refresh()


def _nothing() -> None:
    pass


@contextlib.contextmanager
def _missing(name: str) -> Iterator[None]:
    """As if it were not installed; one that is loaded already stays."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]
