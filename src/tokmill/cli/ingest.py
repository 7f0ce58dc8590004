"""`tokmill ingest hub | files`: one source, without a recipe file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.markup import escape

from tokmill.artifact import Artifact
from tokmill.cli.console import describe_counts, json_option, open_progress, out, print_json, reports_errors
from tokmill.cli.source_options import (
    files_options,
    files_source,
    hub_options,
    hub_source,
    one_source_recipe,
    own_labels,
    workers_option,
)
from tokmill.running import run_recipe

_out_option = click.option(
    "--out", "directory", type=click.Path(path_type=Path), required=True, help="Output directory."
)


@click.group("ingest", epilog="Example: tokmill ingest hub openai/gsm8k --config main --out gsm8k")
def ingest_command() -> None:
    """Bring one source in, and nothing more: documents as received, with their manifest."""


@ingest_command.command(
    "hub",
    epilog="Example: tokmill ingest hub openai/gsm8k --config main --split train --out gsm8k --limit docs=1000",
)
@hub_options
@_out_option
@workers_option
@json_option
@reports_errors
def hub(directory: Path, workers: int | None, as_json: bool, **given: Any) -> None:
    """Read DATASET from the hub into DIRECTORY. Once its manifest exists, no network is touched again."""
    artifact, report = _ingest(hub_source(**given), own_labels(), directory, workers)
    revision = artifact.manifest.config["hub"]["revision"]
    if as_json:
        print_json({**report, "revision": revision})
    else:
        out.print(f"{escape(given['dataset'])} at {revision}")
        _render(artifact)


@ingest_command.command(
    "files",
    epilog="Example: tokmill ingest files 'dump/AA/*' --format wikipedia --out wiki --option namespaces=[0]",
)
@files_options
@_out_option
@workers_option
@json_option
@reports_errors
def files(directory: Path, workers: int | None, as_json: bool, **given: Any) -> None:
    """Read local files into DIRECTORY: records and plain text, Wikipedia, StackExchange, parallel text, archives.

    PATTERNS may be quoted globs or the files that the shell made of them.
    """
    artifact, report = _ingest(files_source(**given), own_labels(name=given["name"]), directory, workers)
    if as_json:
        print_json(report)
    else:
        _render(artifact)


def _ingest(
    source: dict[str, Any], own: list[str], directory: Path, workers: int | None
) -> tuple[Artifact, dict[str, Any]]:
    recipe = one_source_recipe(source)
    with open_progress() as progress:
        result = run_recipe(
            recipe,
            Path.cwd(),
            directory,
            workers=workers,
            until="ingest",
            progress=progress,
            own={source["name"]: own},
        )
    (artifact,) = result.artifacts.values()
    return artifact, {"ok": True, **result.as_json()}


def _render(artifact: Artifact) -> None:
    out.print(f"{describe_counts(artifact.manifest.counts)} → {escape(str(artifact.directory))}")
