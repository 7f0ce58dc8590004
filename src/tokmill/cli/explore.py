"""`tokmill explore` and `tokmill documents`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape
from rich.table import Table

import tokmill
from tokmill.cli.console import answer, err, out, print_json, verb
from tokmill.cli.source_options import ANY_FILE, FILE
from tokmill.engines.own_process import take_apart_at_end
from tokmill.errors import plural
from tokmill.storage.lean import spare_pandas

if TYPE_CHECKING:
    from tokmill.explorer.verbs import Documents

VERBS = {
    "Look at a run": {
        "explore": ("Look at a run in the browser.", "explorer.verbs"),
        "documents": ("List the documents that filters choose.", "explorer.verbs"),
    },
}


@click.command("explore", epilog="Example: tokmill explore demo/out --recipe demo/recipe.yaml")
@click.argument("directory", metavar="DIRECTORY|URL")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    show_default="one that is free",
    help="To listen on.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on; others than loopback are seen by other machines, and ask for the token too.",
)
@click.option("--compare", metavar="DIRECTORY", help="An earlier run, to see which documents changed sides.")
@click.option("--recipe", type=FILE, help="Recipe that a threshold may be written to, when you confirm it.")
@click.option("--labels", type=ANY_FILE, help="File to save labels in. [default: labels cannot be saved]")
@verb
def explore_command(as_json: bool, **options: Any) -> None:
    """Show the run in DIRECTORY, or published at URL, in the browser: its flow, tables of documents, one
    document as received and as trained on, thresholds, clusters, rows of builds.

    It listens on loopback and asks for the token in the address that it prints. It needs no network, and
    writes nothing but labels, and the change of a recipe that you confirm. Ends with Ctrl-C.
    """
    take_apart_at_end()
    spare_pandas()
    with tokmill.explore(**options) as explorer:
        if as_json:
            print_json({"ok": True, **explorer.as_json()})
        else:
            out.print(escape(explorer.url))
            err.print("[dim]open it in a browser; Ctrl-C ends it[/]")
        try:
            explorer.wait()
        except KeyboardInterrupt:
            err.print("[dim]ended[/]")


@click.command(
    "documents",
    epilog="Example: tokmill documents demo/out --where verdict:dropped --where chars:..200 --sort=-chars",
)
@click.argument("directory", metavar="DIRECTORY|URL")
@click.option(
    "--where",
    multiple=True,
    metavar="FILTER",
    help="words:10..50, lang:en,de, tokens:null; `!` before it for the others. May be repeated.",
)
@click.option("--text", help="Words to look for in texts as received, in any case.")
@click.option("--columns", help="Columns to show, with commas between them.")
@click.option("--sort", help="Column to put them in order by; -words: largest first.")
@click.option("--offset", type=click.IntRange(0), default=0, help="Documents to pass over.")
@click.option("--limit", type=click.IntRange(0, 500), default=50, help="Documents to show.")
@verb
def documents_command(as_json: bool, **options: Any) -> None:
    """List the documents of the run in DIRECTORY, or published at URL, that filters choose.

    It is what the table of `tokmill explore` shows, with the columns of your choice.
    """
    take_apart_at_end()
    spare_pandas()
    answer(tokmill.documents(**options), as_json, _render)


def _render(found: Documents) -> None:
    told = found.told
    table = Table(box=None, pad_edge=False)
    for column in told["columns"]:
        table.add_column(column["name"], justify="right" if column["kind"] == "number" else "left")
    for row in told["rows"]:
        table.add_row(*(_cell(value) for value in row))
    out.print(table)
    out.print(f"[dim]{len(told['rows']):,} of {plural(told['total'], 'document')}[/]")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    return (
        f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else escape(_plain(str(value)))
    )


def _plain(text: str) -> str:
    """No control of a terminal, whatever an id has in it."""
    return "".join(one if one.isprintable() else "\ufffd" for one in text)
