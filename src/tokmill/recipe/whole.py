"""The recipe as a whole, and the names of its keys.

Recipe ─ key_paths ─> ("dedup", "near", "threshold"), …      lists, and names that the user chose, are passed through
names_keys("near.threshold")                                 is that something a recipe can have?
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import Field

from tokmill.recipe.cleaning import (
    Cleaning,
    Dedup,
    Filters,
    Language,
    License,
    Normalize,
    Redaction,
    Split,
    split_mistakes,
)
from tokmill.recipe.section import Name, Path_, Section, part_of
from tokmill.recipe.source import Source
from tokmill.recipe.tokens import Build, Mixture, Pack, Tokenizer, TrainingPlan


class Shards(Section):
    megabytes: int = Field(32, ge=1, le=4096, description="text per working shard")

    @property
    def bytes(self) -> int:
        return self.megabytes << 20


class Recipe(Section):
    name: Name
    seed: int = Field(0, ge=0, lt=1 << 63)
    sources: list[Source] = Field(min_length=1)
    shards: Shards = Shards()
    normalize: Normalize = Normalize()
    license: License | None = None
    language: Language | None = None
    filters: Filters = []
    redact: list[Redaction] = []
    domains: dict[Name, Cleaning] = Field({}, description="filters and the like for one domain")
    dedup: Dedup = Dedup()
    split: Split = Split()
    tokenizer: Tokenizer | None = None
    mixture: Mixture | None = None
    pack: Pack = Pack()
    builds: list[Build] = []
    # left out of every dump, and so of every fingerprint and digest
    review: TrainingPlan | None = Field(
        None,
        exclude=True,
        description="what `tokmill review` judges size by; nothing is built otherwise for it",
    )

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        for section in ("sources", "builds"):
            items = given.get(section)
            first: dict[str, int] = {}
            for index, item in enumerate(items if isinstance(items, list) else []):
                name = part_of(item, "name")
                if isinstance(name, str) and first.setdefault(name, index) != index:
                    yield (section, index, "name"), f"{section}[{first[name]}] is called {name} too"
        yield from _fallback_mistakes(given.get("sources"))
        yield from _unknown_names(given)
        yield from split_mistakes(given)
        for key in ("builds", "mixture"):
            if given.get(key) and given.get("tokenizer") is None:
                yield (key,), f"`{key}` needs a `tokenizer`"


def _fallback_mistakes(sources: Any) -> Iterator[tuple[Path_, str]]:
    items = [item for item in sources if isinstance(item, dict)] if isinstance(sources, list) else []
    places = {item.get("name"): index for index, item in enumerate(items)}
    for index, item in enumerate(items):
        other = item.get("fallback")
        if other is None:
            continue
        if other not in places:
            yield ("sources", index, "fallback"), f"no source is called {other}"
        elif places[other] <= index:
            yield ("sources", index, "fallback"), f"{other} must come after the source that falls back on it"
        if item.get("limit") is None:
            yield ("sources", index, "fallback"), "needs a `limit` that can be missed"


def _unknown_names(given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
    """Names of sources and domains that no source has."""
    listed = given.get("sources")
    sources = [s for s in listed if isinstance(s, (dict, Source))] if isinstance(listed, list) else []
    domains = [part_of(source, "domain") or "default" for source in sources]
    for name in given["domains"] if isinstance(given.get("domains"), dict) else ():
        if name not in domains:
            yield ("domains", name), f"no source has the domain {name}"
    names = [part_of(source, "name") for source in sources]
    builds = given.get("builds")
    for index, build in enumerate(builds if isinstance(builds, list) else ()):
        wanted = part_of(build, "sources")
        for name in wanted if isinstance(wanted, list) else ():
            if name not in names:
                yield ("builds", index, "sources"), f"no source is called {name}"
    for key in ("priority", "reference"):
        wanted = part_of(given.get("dedup"), key)
        for name in wanted if isinstance(wanted, list) else ():
            if name not in names:
                yield ("dedup", key), f"no source is called {name}"


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
