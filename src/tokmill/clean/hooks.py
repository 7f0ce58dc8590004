"""Measures of the user's own: a function in a Python file beside the recipe, `hooks.py:shouting`.

    def shouting(columns):                     # {"text": pyarrow large_string, "doc_id": …, "meta": …}
        return np.array([...])                 # one number per document

It is given whole columns and returns one; a threshold in the recipe decides, so its values are in the ledger and
`whatif` works on them. It sees only documents that a threshold can still decide about, and is not called where there are
none: what is empty, without a licence or in another language is out before. The file's sha256 is part of the step:
other code is another result. It must depend on the columns alone, like everything here.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import traceback
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokmill.errors import InputChanged, InputError, RecipeError
from tokmill.storage.location import file_sha256

Hook = Callable[[Mapping[str, Any]], Any]


def hook_path(hook: str, base: Path) -> Path:
    return base / Path(hook.rpartition(":")[0]).expanduser()


def hook_sha256(hook: str, base: Path) -> str:
    """Of the hook's file, which was loaded once to see that it can be."""
    path = hook_path(hook, base)
    if not path.is_file():
        raise RecipeError(
            "no such file", where=f"filters: {hook}", next="the path of a hook is relative to the recipe"
        )
    digest = file_sha256(path)
    _load(str(path), hook.rpartition(":")[2], digest)
    return digest


def call_hook(hook: str, path: str, sha256: str, columns: Mapping[str, Any]) -> NDArray[Any]:
    name = hook.rpartition(":")[2]
    where, rows = f"{path}:{name}", len(columns["text"])
    function = _load(path, name, sha256)
    try:
        result = np.asarray(function(columns))
    except (Exception, SystemExit) as error:  # whatever the user's function does wrong is reported as theirs
        raise InputError(
            f"the hook failed ({_told(error, path)})", where=where, next="fix the function, and run again"
        ) from error
    if result.shape != (rows,) or result.dtype.kind not in "iufb":
        raise InputError(
            f"the hook returned {result.dtype} of shape {result.shape}; {rows} numbers are needed",
            where=where,
            next="return a NumPy array with one number per document",
        )
    is_real = result.dtype.kind == "f" or result.dtype == np.uint64  # which has numbers that int64 has not
    values = result.astype(np.float64 if is_real else np.int64)
    if not np.isfinite(values).all():
        raise InputError(
            "the hook returned a number that is not finite", where=where, next="return 0 instead"
        )
    return values


@functools.lru_cache(maxsize=64)
def _load(path: str, name: str, sha256: str) -> Hook:
    """The function, from the very bytes that the step is known by."""
    code = Path(path).read_bytes()
    if hashlib.sha256(code).hexdigest() != sha256:
        raise InputChanged("the hook changed while it was in use", where=path, next="run again")
    module = types.ModuleType(f"tokmill_hook_{sha256[:16]}")
    module.__file__ = path
    sys.modules[module.__name__] = module  # dataclasses and pickles look their module up
    try:
        exec(compile(code, path, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        del sys.modules[module.__name__]
        raise RecipeError(
            f"the hook cannot be loaded ({_told(error, path)})", where=path, next="fix the file"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise RecipeError(f"there is no function `{name}`", where=path, next="check the name after the colon")
    found: Hook = function
    return found


def _told(error: BaseException, path: str) -> str:
    """What it says of itself, and the last line of the user's file that it passed."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    says = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{says}; line {lines[-1]}" if lines else says
