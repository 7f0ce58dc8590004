"""Every key of a recipe with its value and where that comes from, for `recipe check --explain`.

    seed                           42                         line 2
    pack.tail                      drop                       default
    pack.length                    4096                       --set
    dedup.near.bands               14                         from the threshold
    mine: filters                  gopher-quality             domains.web, line 31
    mine: gopher-quality.min_words words >= 50                pack gopher-quality

The keys of the file come first, then, for each source, how it is cleaned in the end:
by its own section, that of its domain, or the recipe's; and the rules that packs stand for.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

from tokmill.clean.rules import BOUNDS, CompiledFilters, load_pack
from tokmill.duplicates.near import choose_bands
from tokmill.pipeline.documents import own_section, resolve_cleaning
from tokmill.recipe import Cleaning, Filter, Recipe, Section, Source
from tokmill.recipe.file import Written
from tokmill.recipe.section import Path_
from tokmill.recipe.setting import dotted
from tokmill.schema import PERCENTILE, SCORE
from tokmill.tokenizers.train import resolve_options

DEFAULT = "default"


class Explained(NamedTuple):
    key: str
    value: Any  # as in JSON
    origin: str

    @property
    def shown(self) -> str:
        """On one line, as a recipe would have it."""
        value = self.value
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def explain_recipe(written: Written, base: Path) -> Iterator[Explained]:
    """Of a recipe without mistakes, whose paths are relative to `base`."""
    recipe = written.recipe
    yield from _keys(written, recipe, ())
    for index, source in enumerate(recipe.sources):
        yield from _cleaning(written, recipe, index, source, base)


def _keys(written: Written, section: Section, path: Path_) -> Iterator[Explained]:
    chosen = _chosen(section, path)
    for name in type(section).model_fields:
        if path[:1] == ("sources",) and name == "data":
            continue  # of Python
        value, place = getattr(section, name), (*path, name)
        parts: dict[str | int, Any] = {}
        if isinstance(value, dict):
            parts = dict(value)
        elif isinstance(value, list):
            parts = dict(enumerate(value))
        if isinstance(value, Section):
            yield from _keys(written, value, place)
        elif parts and all(isinstance(part, Section) for part in parts.values()):
            for key, part in parts.items():
                yield from _keys(written, part, (*place, key))
        elif name in chosen and name not in section.model_fields_set:
            yield Explained(dotted(place), _plain(chosen[name][0]), chosen[name][1])
        elif value is not None or type(section).model_fields[name].default is None:
            yield Explained(dotted(place), _plain(value), _origin(written, place))


def _chosen(section: Section, path: Path_) -> dict[str, tuple[Any, str]]:
    """Values that a default leaves to something else."""
    if path == ("dedup", "near"):
        bands, rows = choose_bands(float(section.threshold))  # type: ignore[attr-defined]
        return {key: (value, "from the threshold") for key, value in (("bands", bands), ("rows", rows))}
    if path == ("tokenizer", "train"):
        asked = section.options()  # type: ignore[attr-defined]
        asked.pop("control_symbols")
        return {key: (value, DEFAULT) for key, value in resolve_options(asked).items()}
    return {}


def _origin(written: Written, path: Path_) -> str:
    section: Any = written.content
    for part in path[:-1]:
        section = getattr(section, str(part)) if isinstance(section, Section) else section[part]
    if path[-1] not in getattr(section, "model_fields_set", section):
        return DEFAULT
    if written.is_set(path):
        return "--set"
    return f"line {written.line(path)}" if written.node is not None else "the recipe"


def _cleaning(
    written: Written, recipe: Recipe, index: int, source: Source, base: Path
) -> Iterator[Explained]:
    for section in Cleaning.model_fields:
        own = own_section(section, recipe, source)
        if own is None:
            place: Path_ = (section,)
            whose = ""
        elif getattr(source.clean, section, None) is not None:
            place, whose = ("sources", index, "clean", section), f"sources[{index}].clean, "
        else:
            place, whose = ("domains", source.domain, section), f"domains.{source.domain}, "
        value = getattr(recipe, section) if own is None else own
        yield Explained(f"{source.name}: {section}", _plain(value), f"{whose}{_origin(written, place)}")
        if section == "filters":
            yield from _rules(written, resolve_cleaning(recipe, source, base).sieve, source, value, place)


def _rules(
    written: Written, sieve: CompiledFilters, source: Source, filters: list[Any], place: Path_
) -> Iterator[Explained]:
    for name in sieve.skipped_packs:
        yield Explained(
            f"{source.name}: {name}", "not applied", "packs are for prose, and the domain is code"
        )
    said = [
        path
        for number, asked in enumerate(filters)
        if asked.pack not in sieve.skipped_packs
        for path in _bounds(asked, (*place, number))
    ]
    for rule, path in zip(sieve.rules, said, strict=True):
        origin = _origin(written, path) if path else f"pack {rule.name.rpartition('.')[0]}"
        sign = ">=" if rule.bound == "min" else "<="
        yield Explained(
            f"{source.name}: {rule.name}", f"{rule.column} {sign} {rule.threshold}, or {rule.reason}", origin
        )


def _bounds(asked: Filter, place: Path_) -> Iterator[Path_ | None]:
    """Of each rule of a filter in order, where its threshold is said; None: in the pack."""
    if asked.pack is not None:
        for rule in (rule for part in load_pack(asked.pack).simple() for rule in part.rules):
            yield (*place, "set", rule.name) if rule.name in asked.set else None
    elif not (str(asked.measure).startswith(SCORE) and str(asked.measure).endswith(PERCENTILE)):
        # a percentile is judged later, when all are scored
        yield from ((*place, bound) for bound in BOUNDS if getattr(asked, bound) is not None)


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, Section):
        return value.model_dump(mode="json", exclude_none=True)
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, Decimal) else value
