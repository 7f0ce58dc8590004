"""Pages of the reference, made from the code when the site is built.

    tokmill.reference              ─> reference/recipe.md, ledger.md, errors.md, python.md, environment.md
    adhoc.mixtures  ─ mixture_file ─> reference/mixture-file.md
    tokmill.cli     ─ commands     ─> reference/commands/<verb>.md
    clean/packs     ─ packs        ─> reference/packs.md
    tokmill.schema  ─ tables       ─> reference/tables.md

Each module has one function `pages() -> {path: Markdown}`. docs/hooks.py puts them into the site;
nothing is written into docs/. They import tokmill and nothing of MkDocs, so the tests read them too.
"""

from __future__ import annotations

from collections.abc import Iterator

from generators import commands, mixture_file, packs, tables
from tokmill.reference import failures, ledger, python_names, recipe_keys, variables


def generate_pages() -> Iterator[tuple[str, str]]:
    """(path in docs/, Markdown) of every generated page, in the order of the reference."""
    for module in (
        commands,
        recipe_keys,
        mixture_file,
        packs,
        ledger,
        tables,
        failures,
        variables,
        python_names,
    ):
        yield from module.pages().items()
