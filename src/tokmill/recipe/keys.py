"""The names of the keys of a recipe.

Recipe ─ key_paths ─> ("dedup", "near", "threshold"), …      lists, and names that the user chose, are passed
                                                             through
names_keys("near.threshold")                                 is that something a recipe can have?
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import yaml

from tokmill.recipe.whole import Recipe

KeyPath = tuple[str, ...]


@functools.cache
def key_paths() -> frozenset[KeyPath]:
    schema = Recipe.model_json_schema()
    return frozenset(_walk(schema, schema["$defs"], ()))


def _walk(part: dict[str, Any], sections: dict[str, Any], path: KeyPath) -> Iterator[KeyPath]:
    if "$ref" in part:
        part = sections[part["$ref"].rpartition("/")[2]]
    for key, value in part.get("properties", {}).items():
        yield (*path, key)
        yield from _walk(value, sections, (*path, key))
    for key in ("items", "additionalProperties"):
        if isinstance(part.get(key), dict):
            yield from _walk(part[key], sections, path)
    for choice in part.get("anyOf", []):
        yield from _walk(choice, sections, path)


@functools.cache
def path_of_key(typed: str) -> tuple[list[str], str]:
    """The path of one key, and its value: of `near.threshold`, `dtype: int32`, `fields: {text: …}`."""
    key, _, value = (part.strip() for part in typed.partition(":"))
    path = key.split(".")
    while inner := re.fullmatch(r"\{(\w+): *([^{},]*|\{.*\})\}", value):
        path.append(inner[1])
        value = inner[2].strip()
    return path, "" if value == "{}" else value


def names_keys(typed: str) -> bool:
    """Is this how keys of a recipe are written: `near.threshold`, `dedup: {near: {}}`, `dtype: int32`?"""
    try:
        said = yaml.safe_load(typed)
    except yaml.YAMLError:
        return False
    said = {said: None} if isinstance(said, str) else said
    return isinstance(said, dict) and all(
        isinstance(key, str) and any(_holds(path, value) for path in _ending_in(key))
        for key, value in said.items()
    )


def _ending_in(key: str) -> list[KeyPath]:
    """A key is named by as much of the end of its path as people need: `threshold`, `near.threshold`."""
    end = tuple(key.split("."))
    return [path for path in key_paths() if path[-len(end) :] == end]


def _holds(path: KeyPath, value: Any) -> bool:
    if not isinstance(value, dict):
        return True
    return all((*path, key) in key_paths() and _holds((*path, key), inner) for key, inner in value.items())
