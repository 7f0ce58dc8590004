"""A Python file beside the recipe: what its digest is of, and how it is loaded.

# hooks.py
import lists                         lists.py beside it: found, and part of the digest
INPUTS = ["model.bin"]               files that it reads, relative to it, written out: part of the digest
def shouting(columns):               columns["text"] is a list of str, and an Arrow column to pyarrow
    return [text.count("!") for text in columns["text"]]
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import hashlib
import json
import os
import sys
import traceback
import types
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tokmill.errors import InputChanged, RecipeError


class _Hook(NamedTuple):
    """A hook as it lies on disk: the Python files by the name that they are imported by, its own first,
    and the digest."""

    modules: dict[str, bytes]
    digest: str


def hook_digest(path: Path) -> str:
    return _read_hook(path).digest


def hook_files(path: Path) -> list[Path]:
    """All that its digest is of: the file, those beside it that it imports, and what they declare."""
    found: list[Path] = []
    for name in _read_hook(path).modules:
        file = path.with_name(f"{name}.py")
        found.append(file)
        with contextlib.suppress(SyntaxError, ValueError):
            found += _declared_inputs(ast.parse(file.read_bytes()), file)
    return list(dict.fromkeys(found))


def _read_hook(path: Path) -> _Hook:
    """Imports and INPUTS are read from the text: nothing is run to know what it needs."""
    modules = {path.stem: path.read_bytes()}
    hashes: dict[str, str] = {}
    unread = [path.stem]
    while unread:
        file = path.with_name(f"{unread.pop()}.py")
        code = modules[file.stem]
        hashes[file.name] = hashlib.sha256(code).hexdigest()
        try:
            tree = ast.parse(code)
        except (SyntaxError, ValueError):
            continue  # told with its line when it is loaded
        for name in _imported(tree) - modules.keys() - sys.stdlib_module_names:
            if path.with_name(f"{name}.py").is_file():
                modules[name] = path.with_name(f"{name}.py").read_bytes()
                unread.append(name)
        for item in _declared_inputs(tree, file):
            status = item.stat()
            name = Path(os.path.relpath(item, path.parent)).as_posix()
            hashes[name] = _input_sha256(item, status.st_size, status.st_mtime_ns)
    if len(hashes) == 1:
        return _Hook(modules, *hashes.values())
    return _Hook(modules, hashlib.sha256(json.dumps(sorted(hashes.items())).encode()).hexdigest())


def _imported(tree: ast.Module) -> set[str]:
    """Modules without a dot, wherever in the file it imports them."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module)
    return found


def _declared_inputs(tree: ast.Module, file: Path) -> list[Path]:
    """Files, and those in folders."""
    found: list[Path] = []
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id="INPUTS")], value=value)
                | ast.AnnAssign(target=ast.Name(id="INPUTS"), value=value)
            ):
                where = f"{file}, line {node.lineno}"
            case _:
                continue
        try:
            names = msgspec.convert(ast.literal_eval(value or ""), list[str])
        except (ValueError, TypeError):
            raise RecipeError(
                "INPUTS of a hook is a list of paths, written out",
                where=where,
                next='write INPUTS = ["model.bin"]; nothing is run to read it',
            ) from None
        for path in (file.parent / name for name in names):
            if not path.exists():
                raise RecipeError(
                    f"the hook declares the input {os.path.relpath(path, file.parent)}, and there is no such "
                    "file",
                    where=where,
                    next="put it there; the path is relative to the Python file",
                )
            found += sorted(filter(Path.is_file, path.rglob("*"))) if path.is_dir() else [path]
    return found


@functools.lru_cache(maxsize=1024)
def _input_sha256(path: Path, size: int, mtime_ns: int) -> str:
    """Once for all sources that a hook judges: a model may have gigabytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@functools.lru_cache(maxsize=64)
def load_hook(digest: str, path: Path) -> types.ModuleType:
    hook = _read_hook(path)
    if hook.digest != digest:
        raise InputChanged(
            "the hook changed while it was in use, or a file that it imports or declares",
            where=str(path),
            next="run again",
        )
    loaded: dict[str, types.ModuleType] = {}

    def load(name: str) -> types.ModuleType:
        if name not in loaded:
            file = str(path.with_name(f"{name}.py"))
            # with the digest: files of two recipes may share a name;
            # dataclasses and pickles look their module up
            module = types.ModuleType("_".join(["tokmill_hook", digest[:16], *([name] if loaded else [])]))
            loaded[name] = sys.modules[module.__name__] = module
            import_beside = {**vars(builtins), "__import__": load_or_import}
            module.__dict__.update(__file__=file, __builtins__=import_beside)
            try:
                exec(compile(hook.modules[name], file, "exec"), module.__dict__)
            except BaseException:
                del loaded[name], sys.modules[module.__name__]
                raise
        return loaded[name]

    def load_or_import(name: str, *scope: Any, **more: Any) -> types.ModuleType:
        """`import` as the files of this hook have it: of the standard library, beside them, installed."""
        is_beside = name in hook.modules and name not in sys.stdlib_module_names
        return load(name) if is_beside else __import__(name, *scope, **more)

    try:
        return load(path.stem)
    except (Exception, SystemExit) as error:
        raise RecipeError(
            f"the hook cannot be loaded ({told_of(error, path, path.parent.glob('*.py'))})",
            where=str(path),
            next="fix the file",
        ) from error


def told_of(error: BaseException, file: Path, beside: Iterable[Path] = ()) -> str:
    """What it says of itself, and the last line of the file, or of those beside it, that it passed."""
    files = {str(path): f" of {path.name}" for path in beside} | {str(file): ""}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    says = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return f"{says}; line {frames[-1].lineno}{files[frames[-1].filename]}" if frames else says
