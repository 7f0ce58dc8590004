"""Pages of the reference, made from the code when the site is built.

    tokmill.cli     ─ commands     ─> reference/commands/<verb>.md
    tokmill.recipe  ─ recipe_keys  ─> reference/recipe.md, reference/mixture-file.md
    clean/packs     ─ packs        ─> reference/packs.md
    tokmill.schema  ─ tables       ─> reference/tables.md
    ledger, reasons ─ ledger       ─> reference/ledger.md
    tokmill.errors  ─ failures     ─> reference/errors.md
    tokmill.__all__ ─ python_names ─> reference/python.md

Each module has one function `pages() -> {path: Markdown}`. docs/hooks.py puts them into the site; nothing is written
into docs/. They import tokmill and nothing of MkDocs, so the tests read them too.
"""

from __future__ import annotations

from collections.abc import Iterator

from generators import commands, failures, ledger, packs, python_names, recipe_keys, tables


def generate_pages() -> Iterator[tuple[str, str]]:
    """(path in docs/, Markdown) of every generated page, in the order of the reference."""
    for module in (commands, recipe_keys, packs, ledger, tables, failures, python_names):
        yield from module.pages().items()
