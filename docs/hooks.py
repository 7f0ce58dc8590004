"""What the site has besides the pages of docs/:
those made from code, and those that live elsewhere in the tree.

    generators        ─> reference/…              in memory; nothing is written into docs/
    recipes/          ─> recipes/index.md, *.yaml
    CHANGELOG.md      ─> changelog.md
    CONTRIBUTING.md   ─> contributing.md

A name with a `*` in the nav stands for all pages that match, in order of their names (of the commands:
in the order of `tokmill --help`). A link out of docs/ to one of the files above leads to its page. Pages of
docs/ link to a generated page as reference/index.md#NAME, which is a place in the clone too.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from generators import commands, generate_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent

# page of the site: file of the tree
BORROWED = {
    "recipes/index.md": "recipes/README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
}

GENERATED: dict[str, str] = {}  # by the name of its place in reference/index.md

_LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """A `*` in the nav becomes the pages it stands for."""
    docs = Path(config.docs_dir)
    config.nav = _expanded(config.nav, docs)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for path, content in generate_pages():
        files.append(File.generated(config, path, content=content))
        page = Path(path)
        GENERATED[page.parent.name if page.name == "index.md" else page.stem] = path
    for path, original in BORROWED.items():
        files.append(File.generated(config, path, content=(ROOT / original).read_text(encoding="utf-8")))
    for recipe in sorted((ROOT / "recipes").rglob("*")):
        if recipe.suffix in (".yaml", ".py"):
            path = f"recipes/{recipe.relative_to(ROOT / 'recipes').as_posix()}"
            files.append(File.generated(config, path, abs_src_path=str(recipe)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links between files of the tree become links between pages."""
    uri = page.file.src_uri
    # where the page lies in the tree, seen from the root
    home = Path(BORROWED.get(uri, f"docs/{uri}")).parent
    return _LINK.sub(lambda found: _relinked(found, home, uri), markdown)


def _relinked(found: re.Match[str], home: Path, uri: str) -> str:
    target, fragment = found[1], found[2] or ""
    if ":" in target or target.startswith("/"):
        return found[0]
    place = os.path.normpath(home / target)
    pages = {original: path for path, original in BORROWED.items()}
    if place == "docs/reference/index.md" and fragment[1:] in GENERATED:
        led, fragment = GENERATED[fragment[1:]], ""
    elif place in pages:
        led = pages[place]
    elif place == "docs/decisions":
        led = "decisions/README.md"
    elif place.startswith("docs" + os.sep) and uri in BORROWED:
        led = place.removeprefix("docs" + os.sep)
    else:
        return found[0]
    return f"]({os.path.relpath(led, Path(uri).parent)}{fragment})"


def _expanded(entries: Any, docs: Path) -> Any:
    if isinstance(entries, list):
        out: list[Any] = []
        for entry in entries:
            is_pattern = isinstance(entry, str) and "*" in entry
            out += _pages_like(entry, docs) if is_pattern else [_expanded(entry, docs)]
        return out
    if isinstance(entries, dict):
        return {title: _expanded(entry, docs) for title, entry in entries.items()}
    return entries


def _pages_like(pattern: str, docs: Path) -> list[Any]:
    if pattern == f"{commands.DIRECTORY}/*.md":
        return [{Path(path).stem: path} for path in commands.verb_paths()]
    found = sorted(path for path in docs.glob(pattern) if path.name not in ("README.md", "index.md"))
    return [path.relative_to(docs).as_posix() for path in found]
