"""`parse_error_share`: how much of a source file its language's grammar cannot read, by tree-sitter.

meta.lang, meta.language        python         ┐
the end of meta.path            src/a.py       ├─> grammar ─ parse ─> bytes in the outermost errors / bytes
the end of doc_id               repo/src/a.py  ┘

A token that is missing counts as one byte. What has no grammar here, or has more than MAX_BYTES, is 0: no
rule with a `max` drops it. Grammars and their versions are part of the step, and come with
the extra `code`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from tokmill.errors import MissingExtra, install_hint

NAME = "parse_error_share"
# Source files are parsed at 4 MB/s. What is no such file may take 13 µs per byte (`a<b<a<b<…` as C++):
# 14 s for one of this size.
MAX_BYTES = 1 << 20
_VERSION = 1

# By the names that datasets have for a language, and by the ends of its files:
# package and function of the grammar.
_GRAMMARS = {
    ("tree_sitter_bash", "language"): "bash sh shell",
    ("tree_sitter_c", "language"): "c h",
    ("tree_sitter_c_sharp", "language"): "c# csharp c-sharp cs",
    ("tree_sitter_cpp", "language"): "c++ cpp cc cxx hpp hh hxx",
    ("tree_sitter_go", "language"): "go golang",
    ("tree_sitter_java", "language"): "java",
    ("tree_sitter_javascript", "language"): "javascript js jsx mjs cjs",
    ("tree_sitter_php", "language_php"): "php",
    ("tree_sitter_python", "language"): "python py pyi",
    ("tree_sitter_ruby", "language"): "ruby rb",
    ("tree_sitter_rust", "language"): "rust rs",
    ("tree_sitter_typescript", "language_typescript"): "typescript ts mts cts",
    ("tree_sitter_typescript", "language_tsx"): "tsx",
}
_BY_NAME = {name: grammar for grammar, names in _GRAMMARS.items() for name in names.split()}


class ParseErrors:
    """A measure like any that is installed (tokmill.artifacts.plugins);
    its digest is the versions of the grammars."""

    def digest(self) -> str:
        packages = sorted({"tree_sitter", *(package for package, _ in _GRAMMARS)})
        versions = [(package, _version(package)) for package in packages]
        return hashlib.sha256(json.dumps([NAME, _VERSION, versions]).encode()).hexdigest()

    def __call__(self, columns: Mapping[str, Any]) -> list[float]:
        rows = zip(columns["text"], columns["meta"], columns["doc_id"], strict=True)
        return [_error_share(text.encode(), _grammar(meta, doc_id)) for text, meta, doc_id in rows]


PARSE_ERRORS = ParseErrors()


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        raise MissingExtra(
            f"parsing source files needs the package {package.replace('_', '-')}",
            where=f"filters: {NAME}",
            next=install_hint("code"),
        ) from None


def _grammar(meta: str | None, doc_id: str) -> tuple[str, str] | None:
    about = msgspec.json.decode(meta) if meta else {}
    names = [about.get("lang"), about.get("language"), _end(about.get("path")), _end(doc_id)]
    return next((_BY_NAME[key] for name in names if (key := str(name).lower()) in _BY_NAME), None)


def _end(path: Any) -> str:
    return str(path).rpartition(".")[2]


@functools.cache
def _parser(package: str, function: str) -> Any:
    import tree_sitter

    language = tree_sitter.Language(getattr(importlib.import_module(package), function)())
    return tree_sitter.Parser(language)


def _error_share(code: bytes, grammar: tuple[str, str] | None) -> float:
    if grammar is None or not 0 < len(code) <= MAX_BYTES:
        return 0.0
    errors, nodes = 0, [_parser(*grammar).parse(code).root_node]
    while nodes:
        node = nodes.pop()
        if node.is_missing:
            errors += 1
        elif node.is_error:
            errors += node.end_byte - node.start_byte
        elif node.has_error:
            nodes += node.children
    return min(errors / len(code), 1.0)
