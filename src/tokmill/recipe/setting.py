"""`--set KEY=VALUE`: keys of a recipe by their paths, in the place of what its file says.

pack.length=4096                    a key; sections on the way are made where the file has none
domains.web.filters[2].min=100      an item of a list, by its place
filters=[gopher-quality]            any value of YAML
"""

from __future__ import annotations

import re
from typing import Any

from tokmill.errors import plural
from tokmill.recipe.section import Path_

_KEY = re.compile(r"[^.\[\]=]+(\[\d+\])*(\.[^.\[\]=]+(\[\d+\])*)*")
_PART = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def parse_key(key: str) -> Path_:
    """ValueError where it is no path."""
    if not _KEY.fullmatch(key):
        raise ValueError("is no key; for example `pack.length=4096` or `filters[2].min=100`")
    return tuple(int(index) if index else name for index, name in _PART.findall(key))


def dotted(path: Path_) -> str:
    """As `parse_key` reads it."""
    out = ""
    for part in path:
        out += f"[{part}]" if isinstance(part, int) else f".{part}" if out else str(part)
    return out


def set_key(content: Any, path: Path_, value: Any) -> None:
    """In what was read from YAML. ValueError where the way there leads through something else than sections
    and lists; whether the key is one of a recipe is asked later, with all others."""
    for depth, part in enumerate(path):
        _step_into(content, path[:depth], part)
        if depth == len(path) - 1:
            content[part] = value
            return
        below = content[part] if isinstance(part, int) else content.get(part)
        if below is None:
            below = {}
        elif isinstance(below, str) and path[depth - 1] == "filters":
            below = {"pack": below}  # a name alone is that of a pack
        content[part] = below
        content = below


def _step_into(content: Any, path: Path_, part: str | int) -> None:
    place = dotted(path)
    if isinstance(part, int):
        if not isinstance(content, list):
            raise ValueError(f"the recipe has no list at `{place}`; set it whole: `{place}=[…]`")
        if part >= len(content):
            raise ValueError(f"`{place}` has {plural(len(content), 'item')}, counted from [0]")
    elif isinstance(content, list):
        names = [item.get("name") if isinstance(item, dict) else item for item in content]
        meant = f"`{place}[{names.index(part)}]`" if part in names else f"an item of it, such as `{place}[0]`"
        raise ValueError(f"`{place}` is a list; write {meant}")
    elif not isinstance(content, dict):
        raise ValueError(f"`{place}` is no section of the recipe but {content}; set it whole: `{place}=…`")
