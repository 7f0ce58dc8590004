"""`tokmill sample`: some documents of some files, into one file."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
from rich.markup import escape

from tokmill.cli.console import describe_counts, json_option, open_progress, out, print_json, reports_errors
from tokmill.cli.source_options import own_labels, workers_option
from tokmill.recipe_file import parse_recipe
from tokmill.running import run_recipe
from tokmill.schema import DOCUMENTS
from tokmill.storage import codecs
from tokmill.storage.parquet import load_table


@click.command(
    "sample", epilog="Example: tokmill sample 'data/*.jsonl.zst' --k 1000 --seed 7 --out some.jsonl.zst"
)
@click.argument("patterns", nargs=-1, required=True)
@click.option(
    "--method",
    type=click.Choice(["reservoir", "weighted", "hash", "head", "shuffle_buffer"]),
    default="reservoir",
    show_default=True,
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
    help="Of the draw: another seed, another sample.",
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
