"""`tokmill ingest`, `sample` and `hub`: read sources without a recipe.

ingest hub | files    one source ─> documents as received, and their manifest
sample                files ─ draw ─> one file
hub configs           the configs of a dataset
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
from rich.markup import escape

from tokmill.artifacts.progress import warnings_to
from tokmill.artifacts.step import Artifact
from tokmill.cli.console import (
    choice_option,
    describe_counts,
    json_option,
    open_progress,
    out,
    print_json,
    reports_errors,
)
from tokmill.cli.source_options import (
    files_options,
    files_source,
    hub_options,
    hub_source,
    one_source_recipe,
    own_labels,
    workers_option,
)
from tokmill.pipeline.run import run_recipe
from tokmill.recipe.file import parse_recipe
from tokmill.schema import DOCUMENTS
from tokmill.sources.hub import list_configs
from tokmill.storage import codecs
from tokmill.storage.tables import load_table

_out_option = click.option(
    "--out", "directory", type=click.Path(path_type=Path), required=True, help="Output directory."
)


@click.group("ingest", epilog="Example: tokmill ingest hub openai/gsm8k --config main --out gsm8k")
def ingest_command() -> None:
    """Read one source, and nothing more: documents as received, with their manifest."""


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


@click.group("hub", epilog="Example: tokmill hub configs HuggingFaceFW/fineweb-2 --lang eng")
def hub_command() -> None:
    """Look at datasets of the Hugging Face hub."""


@hub_command.command(
    "configs", epilog="Example: tokmill hub configs HuggingFaceFW/fineweb-2 --lang eng --script Latn"
)
@click.argument("dataset")
@click.option("--lang", help="A language tag, whole: eng is in eng_Latn and not in asm_Beng.")
@click.option("--script", help="A script tag, whole: Latn.")
@click.option("--contains", help="Plain substring of the name. Matches inside other words too.")
@click.option("--revision", help="Branch, tag or commit [default: main].")
@json_option
@reports_errors
def configs(
    dataset: str,
    lang: str | None,
    script: str | None,
    contains: str | None,
    revision: str | None,
    as_json: bool,
) -> None:
    """List the configs of DATASET, by language and script tags or by name."""
    with open_progress() as progress, warnings_to(progress.say):
        names = list_configs(dataset, lang=lang, script=script, contains=contains, revision=revision)
    if as_json:
        print_json({"ok": True, "dataset": dataset, "configs": names})
    else:
        for name in names:
            out.print(escape(name))


@click.command(
    "sample", epilog="Example: tokmill sample 'data/*.jsonl.zst' --k 1000 --seed 7 --out some.jsonl.zst"
)
@click.argument("patterns", nargs=-1, required=True)
@choice_option(
    "--method",
    choices=["reservoir", "weighted", "hash", "head", "shuffle_buffer"],
    default="reservoir",
    help="Only `head` and `shuffle_buffer` leave the rest of the files unread.",
)
@click.option("--k", type=click.IntRange(1), help="Documents, for all methods but hash.")
@click.option("--fraction", help="Share of the documents, for hash.")
@click.option("--weight", help="Field with the weight, for weighted.")
@click.option("--buffer", type=click.IntRange(1), help="Documents in the buffer, for shuffle_buffer.")
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Another seed, another sample.",
)
@click.option("--text", help="Field that holds the text [default: text or content].")
@click.option("--template", help='Text made from fields, e.g. "Problem: {question}\\n\\nSolution: {answer}".')
@click.option(
    "--out",
    "target",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help=".jsonl[.gz|.zst] or .parquet",
)
@workers_option
@json_option
@reports_errors
def sample_command(
    patterns: tuple[str, ...],
    method: str,
    k: int | None,
    fraction: str | None,
    weight: str | None,
    buffer: int | None,
    seed: int,
    text: str | None,
    template: str | None,
    target: Path,
    workers: int | None,
    as_json: bool,
) -> None:
    """Take a sample of the files that PATTERNS name: the same for a seed, whatever the number of workers."""
    source: dict[str, Any] = {
        "name": "sample",
        "files": [str(Path(pattern).absolute()) for pattern in patterns],
        "template": template and template.replace("\\n", "\n"),
        "fields": {"text": text, "meta": [weight] if weight else []},
        "sample": {"method": method, "k": k, "fraction": fraction, "weight": weight, "buffer": buffer},
    }
    recipe = parse_recipe(
        json.dumps({"name": "sample", "seed": seed, "sources": [source]}).encode(), "the command line"
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".tmp-sample-") as scratch:
        with open_progress() as progress:
            result = run_recipe(
                recipe,
                Path.cwd(),
                Path(scratch),
                workers=workers,
                until="ingest",
                progress=progress,
                own={source["name"]: own_labels()},
            )
        (artifact,) = result.artifacts.values()
        tables = [load_table(artifact.path(entry)) for entry in artifact.manifest.entries("documents")]
        written = codecs.write_table(target, pa.concat_tables([DOCUMENTS.empty_table(), *tables]))
    manifest = artifact.manifest
    if as_json:
        report = {"path": str(target), "sha256": written.sha256, "sample": manifest.config["sample"]}
        print_json({"ok": True, **report, "counts": manifest.counts, "scanned": manifest.facts["scanned"]})
    else:
        out.print(f"{describe_counts(manifest.counts)} → {escape(str(target))}")
        scanned = manifest.facts["scanned"]
        if not scanned["is_complete"]:
            out.print(
                f"[yellow]{scanned['fraction']:.2%} of the files was read: "
                "this is their beginning, not a random sample of them[/]"
            )
