"""`tokmill index`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

from tokmill.cli.console import answer, out, verb, with_progress
from tokmill.cli.documents import shown
from tokmill.cli.source_options import DIRECTORY, out_option, workers_option
from tokmill.errors import plural

if TYPE_CHECKING:
    from tokmill.adhoc.index import Indexed

VERBS = {
    "Corpora": {
        "index": ("Index a run, for later ones to leave out what it had.", "adhoc.index"),
    },
}


@click.command(
    "index",
    epilog=(
        "Example: tokmill index out/demo --out demo.index\n\n"
        "tokmill index out/demo --out demo.index --splits train --ids"
    ),
)
@click.argument("directory", type=DIRECTORY)
@out_option("a directory for the index", click.Path(file_okay=False), required=True)
@click.option(
    "--splits", multiple=True, metavar="SPLIT", help="Of this split only; may be repeated. [default: all]"
)
@click.option("--ids", is_flag=True, help="With source and id of every document, for `tokmill why`.")
@click.option("--name", help="What decisions call it. [default: the name of the run]")
@click.option(
    "--threshold",
    metavar="SHARE",
    help="The least similarity that it can be asked for. [default: that of the run, else 0.8]",
)
@click.option("--ngram", type=int, help="Words of an n-gram. [default: as in the run, else 5]")
@click.option("--replace", is_flag=True, help="Replace an index of another run, or with other options.")
@workers_option
@verb
def index_command(as_json: bool, **options: Any) -> None:
    """Index the documents of the finished run in DIRECTORY, so that later runs can leave out what it had.

    `dedup: {reference: [DIR]}` of a recipe names the index. It holds no text: of each document a hash, and a
    sketch that its similarity is estimated by. Where the run has a mixture, the documents are those that it
    chose.
    """
    answer(with_progress("index", options), as_json, _render)


def _render(made: Indexed) -> None:
    told = made.as_json()
    splits = ", ".join(f"{shown(split)} {count:,}" for split, count in told["splits"].items())
    documents = plural(told["documents"], "document")
    out.print(f"{documents} ({splits}) of {shown(told['name'])} → {escape(str(made.directory))}")
    per_document = told["index_bytes"] / max(told["documents"], 1)
    out.print(
        f"{told['index_bytes'] / 1e6:,.1f} MB, {told['share_of_text']:.1%} of the text "
        f"({per_document:.0f} bytes a document), for similarities from {told['threshold']} "
        f"(± {float(told['standard_error']):.3f})"
    )
    if not made.is_new:
        out.print("[dim]it was there already[/]")
