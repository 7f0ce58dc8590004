"""`tokmill peek`: a row of a build as text."""

from __future__ import annotations

from pathlib import Path

import click
from rich.text import Text

from tokmill.audit.peek import Peeked, peek
from tokmill.cli.console import json_option, out, print_json, reports_errors

# One after the other: neighbours are told apart, on dark and on light.
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


@click.command("peek", epilog="Example: tokmill peek demo/out/build/rows --row 3")
@click.argument("build", type=click.Path(file_okay=False, exists=True, path_type=Path))
@click.option("--row", type=int, default=0, show_default=True, help="Which; -1 is the last.")
@click.option("--split", help="Of the build; train, unless it has only one.")
@click.option(
    "--tokenizer",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Its file, where the build has moved away from it.",
)
@json_option
@reports_errors
def peek_command(build: Path, row: int, split: str | None, tokenizer: Path | None, as_json: bool) -> None:
    """Show the text of one row of BUILD, each document in a colour of its own."""
    found = peek(build, row, split=split, tokenizer=tokenizer)
    if as_json:
        print_json({"ok": True, **found.as_json()})
    else:
        _render(found)


def _render(found: Peeked) -> None:
    padding = f", {found.padding:,} padding" if found.padding else ""
    out.print(
        f"[bold]{found.split}[/] row {found.row:,} of {found.rows:,}: {found.length:,} tokens{padding}, "
        f"{len(found.pieces)} documents"
    )
    for number, piece in enumerate(found.pieces):
        colour = _COLOURS[number % len(_COLOURS)]
        name = " of ".join(part for part in (piece.doc_id, piece.source) if part)
        where = f"[{piece.start}:{piece.end}]"
        begun = f"from its token {piece.offset:,}" if piece.offset else ""
        ended = "" if piece.is_ended else "goes on or was cut"
        told = ", ".join(part for part in (name, begun, ended) if part)
        out.print(Text(_printable(f"── {where} {told}"), style=f"dim {colour}"))
        out.print(Text(_printable(piece.text), style=colour))


def _printable(text: str) -> str:
    """Texts are anybody's: what is not to be printed could talk to the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
