"""pyarrow loads pandas, and numba scipy, where there is one: 0.6 s together, in the driver and in every worker. They come
with the packages that the tests need, not with tokmill, so they are hidden from what is measured."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType


class Hidden:
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> None:
        if name in ("pandas", "scipy"):
            raise ImportError(name)


sys.meta_path.insert(0, Hidden())
