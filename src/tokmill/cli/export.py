"""`tokmill export`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

from tokmill.cli.console import answer, out, verb, with_progress
from tokmill.cli.documents import shown
from tokmill.cli.source_options import DIRECTORY, out_option, workers_option
from tokmill.errors import plural

if TYPE_CHECKING:
    from tokmill.adhoc.export import Exported

VERBS = {
    "Corpora": {
        "export": ("Write the texts of a run, for other tools.", "adhoc.export"),
    },
}


@click.command(
    "export",
    epilog=(
        "Example: tokmill export out/demo --out texts --format parquet\n\n"
        "tokmill export out/demo --out texts --push me/my-texts"
    ),
)
@click.argument("directory", type=DIRECTORY)
@out_option("a directory for the files", click.Path(file_okay=False), required=True)
@click.option(
    "--format",
    type=click.Choice(["jsonl", "parquet", "webdataset"]),
    default="jsonl",
    help="JSONL.zst, Parquet, or tar files with a .txt and a .json for each document.",
)
@click.option("--measures", is_flag=True, help="With what the rules of the recipe measured.")
@click.option(
    "--push", metavar="OWNER/NAME", help="Then upload it to the hub as this dataset; the token is HF_TOKEN."
)
@click.option("--replace", is_flag=True, help="Replace texts of another run, or with other options.")
@workers_option
@verb
def export_command(as_json: bool, **options: Any) -> None:
    """Write the texts of the finished run in DIRECTORY, cleaned, deduplicated and split, with every field.

    Where the run has a mixture, they are the documents that it chose, in its order. `datasets.load_dataset`
    opens what is written; a run over it has the same documents.
    """
    answer(with_progress("export", options), as_json, _render)


def _render(made: Exported) -> None:
    told = made.as_json()
    splits = ", ".join(f"{shown(split)} {count:,}" for split, count in told["splits"].items())
    files, documents = plural(told["files"], "file"), plural(told["documents"], "document")
    out.print(f"{documents} ({splits}) in {files} → {escape(str(made.directory))}")
    if not made.is_new:
        out.print("[dim]it was there already[/]")
    if made.pushed is not None:
        out.print(f"pushed to {escape(made.pushed.dataset)} at {made.pushed.revision}")
