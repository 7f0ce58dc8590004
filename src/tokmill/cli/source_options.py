"""A source as options of the command line: the same for every command that reads one, with the names of recipe keys.

@hub_options / @files_options      DATASET / PATTERNS, and how to read them
@either_options                    PATTERNS, or --hub DATASET
hub_source / files_source / …      the options as a source of a recipe
Amount                             200M, 1.5B, 50k, as in a recipe
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

import click
import yaml

from tokmill.cli.console import choice_option
from tokmill.errors import RecipeError
from tokmill.recipe import SOURCE_FORMATS, Recipe
from tokmill.recipe.file import parse_recipe
from tokmill.recipe.section import parse_amount
from tokmill.sources.hub import is_pinned

Command = Callable[..., Any]

FILES = "files"  # the name of a source of files without one

_READING = (
    click.option("--text", help="Field that holds the text [default: text or content]."),
    click.option(
        "--template", help='Text made from fields, e.g. "Problem: {question}\\n\\nSolution: {answer}".'
    ),
    click.option("--id-field", help="Field that holds the id [default: id or doc_id]."),
    click.option("--license-field", help="Field that holds the licence [default: license or license_tag]."),
    click.option("--created-at-field", help="Field that holds the date [default: created_at]."),
    click.option("--language-field", help="Field that holds the language, which is kept."),
    click.option(
        "--meta", multiple=True, metavar="FIELD", help="Keep this field in `meta`; may be repeated."
    ),
    click.option("--license", "license_tag", help="Licence of documents that carry none."),
    click.option(
        "--where", multiple=True, metavar="FIELD=VALUE", help="Keep records whose field has this value."
    ),
    click.option(
        "--limit",
        multiple=True,
        metavar="UNIT=N",
        help="Read at most this much: docs=, chars=, megabytes= or tokens=.",
    ),
)

_HUB = (
    click.argument("dataset"),
    click.option("--config", help="Config of the dataset."),
    click.option(
        "--split",
        default="train",
        show_default=True,
        help="Split of the dataset, or several: train+validation.",
    ),
    click.option(
        "--revision", help="Branch, tag or commit; resolved to its commit once and recorded [default: main]."
    ),
    click.option("--require-pin", is_flag=True, help="Refuse a revision that is not 40 hex digits."),
    *_READING,
)

_FILES = (
    click.argument("patterns", nargs=-1, required=True),
    click.option("--name", help="Name of the source, also for records that carry another [default: files]."),
    choice_option(
        "--format",
        "reader",
        choices=["records", *SOURCE_FORMATS],
        default="records",
        help="What the files are; records are JSON lines, Parquet or plain text, by their suffix.",
    ),
    click.option(
        "--option",
        "options",
        multiple=True,
        metavar="KEY=VALUE",
        help="An option of that format, as in a recipe.",
    ),
    *_READING,
)

# files, or with --hub a dataset
_EITHER: tuple[Callable[[Command], Command], ...] = (
    click.argument("patterns", nargs=-1),
    *_FILES[1:],
    click.option("--hub", "dataset", metavar="DATASET", help="Read this dataset of the hub, and no files."),
    *(option for option in _HUB[1:] if option not in _READING),
)

workers_option = click.option(
    "--workers",
    type=click.IntRange(1),
    envvar="TOKMILL_WORKERS",
    help="Processes [default: TOKMILL_WORKERS, or the cores available].",
)

replace_option = click.option(
    "--replace", is_flag=True, help="Replace a finished result that was made with other options."
)


def hub_options(command: Command) -> Command:
    return with_options(_HUB, command)


def files_options(command: Command) -> Command:
    return with_options(_FILES, command)


def either_options(command: Command) -> Command:
    return with_options(_EITHER, command)


def with_options(options: Sequence[Callable[[Command], Command]], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command


def hub_source(
    *,
    dataset: str,
    config: str | None,
    split: str,
    revision: str | None,
    require_pin: bool,
    **reading: Any,
) -> dict[str, Any]:
    if require_pin and not is_pinned(revision):
        raise RecipeError(
            f"revision {revision or 'main'} is not a commit",
            where="--require-pin",
            next="give the 40 hex digits of a commit with `--revision`",
        )
    return {
        "name": dataset.rpartition("/")[2],
        "hub": {"dataset": dataset, "config": config, "split": split, "revision": revision},
        **_reading_keys(**reading),
    }


def files_source(
    *,
    patterns: tuple[str, ...],
    name: str | None,
    reader: str,
    options: tuple[str, ...],
    **reading: Any,
) -> dict[str, Any]:
    source: dict[str, Any] = {
        "name": (name or FILES).rpartition("/")[2],
        "files": [str(Path(pattern).absolute()) for pattern in patterns],
        **_reading_keys(**reading),
    }
    if reader != "records":
        source[reader] = {
            key: yaml.safe_load(value) for key, value in named_pairs("--option", options).items()
        }
    return source


def either_source(**given: Any) -> dict[str, Any]:
    """Of files, or of the dataset that --hub names."""
    of_hub = {key: given.pop(key) for key in ("dataset", "config", "split", "revision", "require_pin")}
    if (of_hub["dataset"] is None) == (not given["patterns"]):
        raise RecipeError(
            "names no texts" if of_hub["dataset"] is None else "names files, and a dataset with --hub",
            where="the command line",
            next="give files ('data/*.jsonl.zst'), or `--hub DATASET` and no files",
        )
    if of_hub["dataset"] is None:
        return files_source(**given)
    of_files = {key: given.pop(key) for key in ("patterns", "name", "reader", "options")}
    if of_files["reader"] != "records" or of_files["options"]:
        raise RecipeError("is for files", where="--format and --option", next="leave it out with `--hub`")
    source = hub_source(**of_hub, **given)
    name = {"name": of_files["name"].rpartition("/")[2]} if of_files["name"] else {}
    return {**source, **name}


def one_source_recipe(source: dict[str, Any], **sections: Any) -> Recipe:
    text = json.dumps({"name": "one-source", "sources": [source], **sections}, ensure_ascii=False)
    return parse_recipe(text.encode(), "the command line")  # JSON is YAML


def own_labels(*, name: str | None = None, domain: str | None = None) -> list[str]:
    """The labels of records that are kept: those that no option sets."""
    return [label for label, given in (("source", name), ("domain", domain)) if given is None]


class SourcesRecipe(NamedTuple):
    """A recipe of several sources, which of them are reference, and what the records of each keep."""

    recipe: Recipe
    reference: list[str]
    own: dict[str, list[str]]


def sources_recipe(
    files: Sequence[str],
    inputs: Sequence[str],
    references: Sequence[str],
    text: str | None,
    dedup: dict[str, Any],
) -> SourcesRecipe:
    """Each input is `NAME=GLOB` or a glob that names itself; `files` are one source, whatever made them of a glob."""
    patterns: dict[str, list[str]] = {}
    own: dict[str, list[str]] = {}
    given_inputs = _with_files(files, inputs, references)
    for given in (*given_inputs, *([reference] for reference in references)):
        name, sign, pattern = given[0].partition("=")
        own_labels_of = own_labels(name=name if sign else None)
        if not sign:
            pattern, name = given[0], _common_name(given)
        while not name or name in patterns:
            name = f"{name or 'input'}-{len(patterns)}"
        patterns[name], own[name] = [pattern, *given[1:]], own_labels_of
    sources = [
        {"name": name, "files": [str(Path(one).absolute()) for one in several], "fields": {"text": text}}
        for name, several in patterns.items()
    ]
    reference = list(patterns)[len(given_inputs) :]
    content = {"name": "dedup", "sources": sources, "dedup": {**dedup, "reference": reference}}
    recipe = parse_recipe(json.dumps(content, ensure_ascii=False).encode(), "the command line")
    return SourcesRecipe(recipe, reference, own)


def _common_name(patterns: Sequence[str]) -> str:
    """What the names of files begin with, as a glob of them would say it: `web` of web-00000 and web-00001."""
    stems = [Path(pattern).name.partition(".")[0] for pattern in patterns]
    shared = takewhile(lambda letters: len(set(letters)) == 1, zip(*stems, strict=False))
    common = stems[0] if len(stems) == 1 else "".join(letters[0] for letters in shared).rstrip("0123456789")
    return re.sub(r"[^A-Za-z0-9]+", "-", common).strip("-")


def _with_files(files: Sequence[str], inputs: Sequence[str], references: Sequence[str]) -> list[list[str]]:
    """The patterns of each input. A shell that expands `--input data/*.zst` leaves all but the first to FILES."""
    if not files and not inputs:
        raise RecipeError(
            "no files are given", where="tokmill dedup", next="give FILES, or `--input 'data/*.zst'`"
        )
    if files and (references or len(inputs) > 1):
        raise RecipeError(
            f"{files[0]} may belong to any of several options",
            where="tokmill dedup",
            next="put each glob in quotes, so that the shell does not expand it: `--input 'data/*.zst'`",
        )
    if files:
        return [[*inputs, *files]]
    return [[pattern] for pattern in inputs]


def _reading_keys(
    text: str | None,
    template: str | None,
    id_field: str | None,
    license_field: str | None,
    created_at_field: str | None,
    language_field: str | None,
    meta: tuple[str, ...],
    license_tag: str | None,
    where: tuple[str, ...],
    limit: tuple[str, ...],
) -> dict[str, Any]:
    """The options as keys of a source."""
    return {
        "template": template and template.replace("\\n", "\n"),
        "license": license_tag,
        "fields": {
            "text": text,
            "id": id_field,
            "license": license_field,
            "created_at": created_at_field,
            "language": language_field,
            "meta": list(meta),
        },
        "where": named_pairs("--where", where),
        "limit": {
            bound: whole_number("--limit", value) for bound, value in named_pairs("--limit", limit).items()
        }
        or None,
    }


def named_pairs(option: str, given: tuple[str, ...]) -> dict[str, str]:
    pairs = [item.partition("=") for item in given]
    for name, sign, value in pairs:
        if not (name and sign and value):
            raise RecipeError(
                f"{name}{sign}{value} is not NAME=VALUE", where=option, next="for example `docs=1000`"
            )
    return {name: value for name, _, value in pairs}


def whole_number(option: str, value: str) -> int:
    if not value.isdecimal():
        raise RecipeError(f"{value} is not a whole number", where=option, next="for example `docs=1000`")
    return int(value)


class Amount(click.ParamType):  # type: ignore[type-arg]  # older clicks take none
    name = "amount"

    def convert(self, value: Any, param: Any, context: Any) -> int:
        try:
            return parse_amount(value)
        except ValueError as error:
            self.fail(str(error), param, context)
