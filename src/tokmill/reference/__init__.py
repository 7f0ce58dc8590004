"""What people look up, made from the code: pages of the site, and the answers of `tokmill help`.

    tokmill.recipe  ─ recipe_keys  ─> reference/recipe.md, `tokmill recipe schema --markdown`
    tokmill.errors  ─ failures     ─> reference/errors.md
    tokmill.__all__ ─ python_names ─> reference/python.md
    ledger, reasons ─ ledger       ─> reference/ledger.md
    environment     ─ variables    ─> reference/environment.md
                        all of them ─ lookup ─> `tokmill help WORD`

Each has a function `pages() -> {path: Markdown}`;
docs/generators adds those that need the command line or are never asked for.
"""
