"""How texts are read, as arguments of a verb: the same for every verb that reads a source,
named after recipe keys.

    patterns or dataset, Reading ─ files_source, hub_source, either_source ─> a source of a recipe
    one_source_recipe                                                      ─> the recipe

Values may be given as on the command line (`["docs=1000"]`) or as Python has them (`{"docs": 1000}`).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import yaml

from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.manifest import Json
from tokmill.errors import RecipeError, TokmillError
from tokmill.recipe import Recipe
from tokmill.recipe.file import parse_recipe
from tokmill.sources.hub import is_pinned, list_configs

Files = str | Path | Sequence[str | Path]
Pairs = Mapping[str, Any] | Sequence[str]  # {"docs": 1000} or ["docs=1000"]

FILES = "files"  # the name of a source of files without one


class Reading(TypedDict, total=False):
    """Which field holds what, and which records are read. Defaults are those of `reading_keys`."""

    text: str | None
    template: str | None
    id_field: str | None
    license_field: str | None
    created_at_field: str | None
    language_field: str | None
    meta: Sequence[str]
    license: str | None
    where: Pairs
    limit: Pairs


class OfHub(Reading, total=False):
    """Of a dataset of the hub. Defaults are those of `hub_source`."""

    config: str | None
    split: str
    revision: str | None
    require_pin: bool


class OfFiles(Reading, total=False):
    """Of local files. Defaults are those of `files_source`."""

    name: str | None
    format: str
    option: Pairs


class OfEither(OfHub, OfFiles, total=False):
    """Of files, or with `hub` of a dataset."""

    hub: str | None


def reading_keys(
    *,
    text: str | None = None,
    template: str | None = None,
    id_field: str | None = None,
    license_field: str | None = None,
    created_at_field: str | None = None,
    language_field: str | None = None,
    meta: Sequence[str] = (),
    license: str | None = None,
    where: Pairs = (),
    limit: Pairs = (),
) -> Json:
    """As keys of a source."""
    bounds = named_pairs("--limit", limit)
    return {
        "template": template,
        "license": license,
        "fields": {
            "text": text,
            "id": id_field,
            "license": license_field,
            "created_at": created_at_field,
            "language": language_field,
            "meta": list(meta),
        },
        "where": named_pairs("--where", where),
        "limit": {bound: whole_number("--limit", value) for bound, value in bounds.items()} or None,
    }


def hub_source(
    dataset: str,
    *,
    config: str | None = None,
    split: str = "train",
    revision: str | None = None,
    require_pin: bool = False,
    **reading: Any,
) -> Json:
    if require_pin and not is_pinned(revision):
        raise RecipeError(
            f"revision {revision or 'main'} is not a commit",
            where="--require-pin",
            next="give the 40 hex digits of a commit with `--revision`",
        )
    return {
        "name": dataset.rpartition("/")[2],
        "hub": {"dataset": dataset, "config": config, "split": split, "revision": revision},
        **reading_keys(**reading),
    }


def files_source(
    patterns: Files,
    *,
    name: str | None = None,
    format: str = "records",
    option: Pairs = (),
    **reading: Any,
) -> Json:
    source: Json = {
        "name": (name or FILES).rpartition("/")[2],
        "files": absolute(patterns),
        **reading_keys(**reading),
    }
    if format != "records":
        source[format] = {
            key: yaml.safe_load(value) if isinstance(value, str) else value
            for key, value in named_pairs("--option", option).items()
        }
    return source


def either_source(patterns: Files = (), *, hub: str | None = None, **reading: Any) -> Json:
    """Of files, or of the dataset `hub`."""
    if (hub is None) == (not patterns):
        raise RecipeError(
            "names no texts" if hub is None else "names files, and a dataset with --hub",
            where="the command line",
            next="give files ('data/*.jsonl.zst'), or `--hub DATASET` and no files",
        )
    if hub is None:
        return files_source(patterns, **{key: reading[key] for key in reading if key not in _ONLY_HUB})
    if reading.pop("format", "records") != "records" or reading.pop("option", ()):
        raise RecipeError("is for files", where="--format and --option", next="leave it out with `--hub`")
    name = reading.pop("name", None)
    source = hub_source(hub, **reading)
    return {**source, "name": name.rpartition("/")[2]} if name else source


_ONLY_HUB = ("config", "split", "revision", "require_pin")


def listed(files: Files) -> list[str]:
    return [str(files)] if isinstance(files, str | Path) else [str(file) for file in files]


def absolute(patterns: Files) -> list[str]:
    return [str(Path(pattern).absolute()) for pattern in listed(patterns)]


def one_source_recipe(source: Json, **sections: Any) -> Recipe:
    return recipe_of_options({"name": "one-source", "sources": [source], **sections})


def recipe_of_options(content: Json) -> Recipe:
    """JSON is YAML: mistakes in options are reported as those of a recipe."""
    return parse_recipe(json.dumps(content, ensure_ascii=False).encode(), "the command line")


@contextlib.contextmanager
def told_without_recipe() -> Iterator[None]:
    """Whose recipe was made of options has never seen it: errors name the file, or the command line."""
    try:
        yield
    except TokmillError as error:
        place, sign, rest = error.where.partition(": ")
        if place.startswith("the recipe"):
            error.where = rest if sign else "the command line"
        raise


def own_labels(*, name: str | None = None, domain: str | None = None) -> list[str]:
    """The labels of records that are kept: those that no option sets."""
    return [label for label, given in (("source", name), ("domain", domain)) if given is None]


def named_pairs(option: str, given: Pairs) -> dict[str, Any]:
    if isinstance(given, Mapping):
        return dict(given)
    pairs = [item.partition("=") for item in given]
    for name, sign, value in pairs:
        if not (name and sign and value):
            raise RecipeError(
                f"{name}{sign}{value} is not NAME=VALUE", where=option, next="for example `docs=1000`"
            )
    return {name: value for name, _, value in pairs}


def whole_number(option: str, value: str | int) -> int:
    if not str(value).isdecimal():
        raise RecipeError(f"{value} is not a whole number", where=option, next="for example `docs=1000`")
    return int(value)


@short_repr
class Configs(NamedTuple):
    """The configs of a dataset that match."""

    dataset: str
    configs: list[str]

    def as_json(self) -> Json:
        return self._asdict()


def hub_configs(
    dataset: str,
    *,
    lang: str | None = None,
    script: str | None = None,
    contains: str | None = None,
    revision: str | None = None,
) -> Configs:
    """The configs of a dataset of the hub, sorted. `lang` and `script` are whole tags:
    eng is in eng_Latn, not in asm_Beng."""
    return Configs(
        dataset, list_configs(dataset, lang=lang, script=script, contains=contains, revision=revision)
    )
