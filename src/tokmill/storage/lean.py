"""Arrow without pandas, for as long as nobody imports it: for a process that is ours alone.

    pa.array(…) ─ is it a series? ─ import pandas (0.2 CPU seconds, where it is installed) ─> not now
    import pandas, by whoever has frames ─────────────────────────────────────────────────> Arrow is told

There are no series before somebody has imported pandas, so what Arrow makes of its arguments is the same.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import pyarrow as pa


def spare_pandas() -> None:
    if "pandas" not in sys.modules and hasattr(pa.lib, "_pandas_api"):
        finder = _Finder()
        sys.meta_path.insert(0, finder)
        pa.array([""])
        finder.is_refusing = False


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self.is_refusing = True
        self._is_looking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "pandas" or self._is_looking:
            return None
        if self.is_refusing:
            raise ImportError("Arrow asks for it before anybody needs it")
        self._is_looking = True
        try:
            found = importlib.util.find_spec(name)
        finally:
            self._is_looking = False
        if found is not None and found.loader is not None:
            found.loader = _Telling(found.loader)
        return found


class _Telling(Loader):
    """Loads pandas, and tells Arrow."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        with contextlib.suppress(ImportError):  # one that Arrow does not take: as if it were not there
            _ = pa.lib._pandas_api.pd
