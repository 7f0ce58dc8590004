"""`tokmill ingest hub | files`: one source, without a recipe file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import yaml
from rich.markup import escape

from tokmill.artifact import Artifact
from tokmill.cli.console import describe_counts, json_option, open_progress, out, print_json, reports_errors
from tokmill.errors import RecipeError
from tokmill.recipe import SOURCE_FORMATS
from tokmill.recipe_file import parse_recipe
from tokmill.running import run_recipe
from tokmill.sources.hub import is_pinned

_READING_OPTIONS = (
    click.option("--text", help="Field that holds the text [default: text or content]."),
    click.option(
        "--template", help='Text made from fields, e.g. "Problem: {question}\\n\\nSolution: {answer}".'
    ),
    click.option(
        "--where", multiple=True, metavar="FIELD=VALUE", help="Keep records whose field has this value."
    ),
    click.option("--limit", multiple=True, metavar="BOUND=N", help="docs=, chars=, megabytes= or tokens=."),
    click.option(
        "--out", "directory", type=click.Path(path_type=Path), required=True, help="Output directory."
    ),
    click.option("--workers", type=click.IntRange(1), help="Processes [default: the cores available]."),
)


def _reading_options(command: Any) -> Any:
    """What every kind of source can be told, in this order."""
    for option in reversed(_READING_OPTIONS):
        command = option(command)
    return command


@click.group("ingest", epilog="Example: tokmill ingest hub openai/gsm8k --config main --out gsm8k")
def ingest_command() -> None:
    """Bring one source in, and nothing more: documents as received, with their manifest."""


@ingest_command.command(
    "hub",
    epilog="Example: tokmill ingest hub openai/gsm8k --config main --split train --out gsm8k --limit docs=1000",
)
@click.argument("dataset")
@click.option("--config", help="Config of the dataset.")
@click.option("--split", default="train", show_default=True)
@click.option(
    "--revision", help="Branch, tag or commit; resolved to its commit once and recorded [default: main]."
)
@click.option("--require-pin", is_flag=True, help="Refuse a revision that is not 40 hex digits.")
@_reading_options
@json_option
@reports_errors
def hub(
    dataset: str,
    config: str | None,
    split: str,
    revision: str | None,
    require_pin: bool,
    text: str | None,
    template: str | None,
    where: tuple[str, ...],
    limit: tuple[str, ...],
    directory: Path,
    workers: int | None,
    as_json: bool,
) -> None:
    """Read DATASET from the hub into DIRECTORY. Once its manifest exists, no network is touched again."""
    if require_pin and not is_pinned(revision):
        raise RecipeError(
            f"revision {revision or 'main'} is not a commit",
            where="--require-pin",
            next="give the 40 hex digits of a commit with --revision",
        )
    source: dict[str, Any] = {
        "name": dataset.rpartition("/")[2],
        "hub": {"dataset": dataset, "config": config, "split": split, "revision": revision},
        **_reading_keys(text, template, where, limit),
    }
    artifact, report = _ingest(source, directory, workers)
    revision = artifact.manifest.config["hub"]["revision"]
    if as_json:
        print_json({**report, "revision": revision})
    else:
        out.print(f"{escape(dataset)} at {revision}")
        _render(artifact)


@ingest_command.command(
    "files",
    epilog="Example: tokmill ingest files 'dump/AA/*' --format wikipedia --out wiki --option namespaces=[0]",
)
@click.argument("patterns", nargs=-1, required=True)
@click.option("--name", default="files", show_default=True, help="Name of the source.")
@click.option(
    "--format",
    "reader",
    type=click.Choice(["records", *SOURCE_FORMATS]),
    default="records",
    show_default=True,
)
@click.option(
    "--option",
    "options",
    multiple=True,
    metavar="KEY=VALUE",
    help="An option of that format, as in a recipe.",
)
@click.option("--license", "license_tag", help="Licence of documents that carry none.")
@_reading_options
@json_option
@reports_errors
def files(
    patterns: tuple[str, ...],
    name: str,
    reader: str,
    options: tuple[str, ...],
    text: str | None,
    template: str | None,
    license_tag: str | None,
    where: tuple[str, ...],
    limit: tuple[str, ...],
    directory: Path,
    workers: int | None,
    as_json: bool,
) -> None:
    """Read local files into DIRECTORY: records and plain text, Wikipedia, StackExchange, parallel text, archives.

    PATTERNS may be quoted globs or the files that the shell made of them.
    """
    source: dict[str, Any] = {
        "name": name,
        "files": [str(Path(pattern).absolute()) for pattern in patterns],
        "license": license_tag,
        **_reading_keys(text, template, where, limit),
    }
    if reader != "records":
        source[reader] = {key: yaml.safe_load(value) for key, value in _pairs("--option", options).items()}
    artifact, report = _ingest(source, directory, workers)
    if as_json:
        print_json(report)
    else:
        _render(artifact)


def _ingest(source: dict[str, Any], directory: Path, workers: int | None) -> tuple[Artifact, dict[str, Any]]:
    text = json.dumps({"name": "ingest", "sources": [source]}, ensure_ascii=False)  # JSON is YAML
    recipe = parse_recipe(text.encode(), "the command line")
    with open_progress() as progress:
        result = run_recipe(recipe, Path.cwd(), directory, workers=workers, until="ingest", progress=progress)
    (artifact,) = result.artifacts.values()
    return artifact, {"ok": True, **result.as_json()}


def _render(artifact: Artifact) -> None:
    out.print(f"{describe_counts(artifact.manifest.counts)} → {escape(str(artifact.directory))}")


def _reading_keys(
    text: str | None, template: str | None, where: tuple[str, ...], limit: tuple[str, ...]
) -> dict[str, Any]:
    """The options as keys of a source."""
    return {
        "template": template and template.replace("\\n", "\n"),
        "fields": {"text": text},
        "where": _pairs("--where", where),
        "limit": {bound: _number(value) for bound, value in _pairs("--limit", limit).items()} or None,
    }


def _pairs(option: str, given: tuple[str, ...]) -> dict[str, str]:
    pairs = [item.partition("=") for item in given]
    for name, sign, value in pairs:
        if not (name and sign and value):
            raise RecipeError(
                f"{name}{sign}{value} is not NAME=VALUE", where=option, next="for example docs=1000"
            )
    return {name: value for name, _, value in pairs}


def _number(value: str) -> int:
    if not value.isdecimal():
        raise RecipeError(f"{value} is not a whole number", where="--limit", next="for example docs=1000")
    return int(value)
