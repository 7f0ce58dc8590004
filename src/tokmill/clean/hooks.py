"""Measures of the user's own: a function in a Python file beside the recipe, `hooks.py:shouting`.

    def shouting(columns):                     # {"text": pyarrow large_string, "doc_id": …, "meta": …}
        return np.array([...])                 # one number per document

It is given whole columns and returns one; a bound in the recipe decides, so its values are in the ledger and
`whatif` works on them. The file's sha256 is part of the step: other code is another result. It must depend on the
columns alone, like everything here.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import InputError, RecipeError
from tokmill.storage.location import file_sha256


def hook_path(hook: str, base: Path) -> Path:
    return base / Path(hook.rpartition(":")[0]).expanduser()


def hook_sha256(hook: str, base: Path) -> str:
    path = hook_path(hook, base)
    if not path.is_file():
        raise RecipeError("no such file", where=f"filters: {hook}", next="hooks lie relative to the recipe")
    digest = file_sha256(path)
    _load(str(path), hook.rpartition(":")[2], digest)
    return digest


def call_hook(hook: str, path: str, sha256: str, columns: Mapping[str, Any]) -> NDArray[Any]:
    name = hook.rpartition(":")[2]
    rows = len(columns["text"])
    result = np.asarray(_load(path, name, sha256)(columns))
    if result.shape != (rows,) or result.dtype.kind not in "iufb":
        raise InputError(
            f"the hook returned {result.dtype} of shape {result.shape}; {rows} numbers are needed",
            where=f"{path}:{name}",
            next="return a NumPy array with one number per document",
        )
    values = result.astype(np.float64 if result.dtype.kind == "f" else np.int64)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise InputError(
            "the hook returned a number that is not finite", where=f"{path}:{name}", next="return 0 instead"
        )
    return values


@functools.lru_cache(maxsize=64)
def _load(path: str, name: str, sha256: str) -> Callable[[Mapping[str, Any]], Any]:
    spec = importlib.util.spec_from_file_location(f"tokmill_hook_{sha256[:16]}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    writes_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file does wrong is told as theirs
        raise RecipeError(
            f"the hook cannot be loaded ({type(error).__name__}: {error})", where=path, next="mend the file"
        ) from error
    finally:
        sys.dont_write_bytecode = writes_bytecode
    function = getattr(module, name, None)
    if not callable(function):
        raise RecipeError(f"there is no function `{name}`", where=path, next="check the name after the colon")
    found: Callable[[Mapping[str, Any]], Any] = function
    return found
