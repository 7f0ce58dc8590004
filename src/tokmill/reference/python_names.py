"""What can be called from Python: the public names, their signatures and docstrings.

tokmill, tokmill.loader ─ __all__ ─ where each is defined ─ its source ─> reference/python.md

Signatures are read from the source, so that a default is spelled as it is there.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from tokmill.reference.markup import fenced, page, text

PATH = "reference/python.md"
MODULES = ("tokmill", "tokmill.loader")

_MAX_COLUMNS = 88


def pages() -> dict[str, str]:
    return {
        PATH: page(
            "# Python",
            "",
            "Every verb is a function of its name: `tokmill.run` is `tokmill run`, `tokmill.hub_configs` is "
            "`tokmill hub configs`, `tokmill.continue_` is `tokmill continue`. Options are arguments of "
            "their names with the same defaults, and `as_json()` of a result is what `--json` prints. How a "
            "source is read (`**reading`) has the options of [`tokmill ingest`](commands/ingest.md). "
            "Errors are those of [`tokmill.errors`](errors.md). `tokmill.loader` needs NumPy and nothing of "
            "the mill but its readers ([loader](../loader.md)).",
            *(line for name in MODULES for line in _module(importlib.import_module(name))),
        )
    }


def public_names() -> list[str]:
    """With their modules, in the order of the page."""
    modules = (importlib.import_module(name) for name in MODULES)
    return [f"{module.__name__}.{name}" for module in modules for name in _names_of(module)]


def describe(name: str) -> str:
    """Markdown of one of them."""
    module, _, own = name.rpartition(".")
    return "\n".join(_described(own, getattr(importlib.import_module(module), own)))


def _names_of(module: ModuleType) -> list[str]:
    return sorted((name for name in module.__all__ if name != "__version__"), key=str.lower)


def _module(module: ModuleType) -> Iterator[str]:
    for name in _names_of(module):
        yield from ("", f"## {module.__name__}.{name}", "")
        yield from _described(name, getattr(module, name))


def _described(name: str, value: Any) -> Iterator[str]:
    if inspect.isfunction(value):
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
        assert isinstance(node, ast.FunctionDef), name
        yield from fenced(_signature(node), "python")
        yield from _words(inspect.getdoc(value))
    elif inspect.isclass(value):
        yield from _class(value)
    else:
        yield from fenced(f"{name} = {value!r}", "python")


def _class(kind: type) -> Iterator[str]:
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(node, ast.ClassDef), kind
    fields, methods = [], []
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and not ast.unparse(part.target).startswith("_"):
            fields.append(f"    {ast.unparse(part)}")
        elif isinstance(part, ast.FunctionDef) and (part.name == "__init__" or not part.name.startswith("_")):
            methods.append("\n".join(f"    {line}" for line in _signature(part).split("\n")))
    yield from fenced("\n".join([f"class {node.name}:", *(fields or []), *methods]), "python")
    yield from _words(ast.get_docstring(node))


def _signature(node: ast.FunctionDef) -> str:
    """In one line, or with a line for each parameter."""
    prefix = "@property\n" if any(ast.unparse(d) == "property" for d in node.decorator_list) else ""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns is not None else ""
    whole = f"def {node.name}({ast.unparse(node.args)}){returns}"
    if len(whole) <= _MAX_COLUMNS:
        return prefix + whole
    parts = [f"    {part},\n" for part in _parameters(node.args)]
    return f"{prefix}def {node.name}(\n{''.join(parts)}){returns}"


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    plain = arguments.posonlyargs + arguments.args
    defaults = [None] * (len(plain) - len(arguments.defaults)) + arguments.defaults
    for argument, default in zip(plain, defaults, strict=True):
        yield _spelled(argument, default)
    if arguments.vararg is not None:
        yield f"*{ast.unparse(arguments.vararg)}"
    elif arguments.kwonlyargs:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _spelled(argument, default)
    if arguments.kwarg is not None:
        yield f"**{ast.unparse(arguments.kwarg)}"


def _spelled(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) + (f" = {ast.unparse(default)}" if default is not None else "")


def _words(docstring: str | None) -> Iterator[str]:
    """Paragraphs; one that is indented is a drawing and stays as it is."""
    for paragraph in (docstring or "").split("\n\n"):
        if paragraph.startswith(" "):
            yield from fenced(inspect.cleandoc("\n" + paragraph), "text")
        else:
            yield text(" ".join(paragraph.split("\n")))
            yield ""
