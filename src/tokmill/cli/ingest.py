"""`tokmill ingest hub`: one source, without a recipe file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from tokmill.cli.console import describe_counts, json_option, open_progress, out, print_json, reports_errors
from tokmill.errors import RecipeError
from tokmill.recipe import Recipe
from tokmill.running import run_recipe
from tokmill.sources.hub import is_pinned


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
@click.option("--text", help="Field that holds the text [default: text or content].")
@click.option("--template", help='Text made from fields, e.g. "Problem: {question}\\n\\nSolution: {answer}".')
@click.option(
    "--where", multiple=True, metavar="FIELD=VALUE", help="Keep records whose field has this value."
)
@click.option("--limit", multiple=True, metavar="BOUND=N", help="docs=, chars=, megabytes= or tokens=.")
@click.option("--out", "directory", type=click.Path(path_type=Path), required=True, help="Output directory.")
@click.option("--workers", type=click.IntRange(1), help="Processes [default: the cores available].")
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
        "template": template and template.replace("\\n", "\n"),
        "fields": {"text": text},
        "where": _pairs("--where", where),
        "limit": {name: _number(value) for name, value in _pairs("--limit", limit).items()} or None,
    }
    recipe = Recipe.model_validate({"name": "ingest", "sources": [source]})
    with open_progress() as progress:
        result = run_recipe(recipe, Path.cwd(), directory, workers=workers, until="ingest", progress=progress)
    (artifact,) = result.artifacts.values()
    if as_json:
        print_json({"ok": True, **result.as_json(), "revision": artifact.manifest.config["hub"]["revision"]})
    else:
        out.print(f"{escape(dataset)} at {artifact.manifest.config['hub']['revision']}")
        out.print(f"{describe_counts(artifact.manifest.counts)} → {escape(str(artifact.directory))}")


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
