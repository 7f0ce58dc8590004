"""`tokmill trace`: from a token to its document, and from a document to its tokens."""

from __future__ import annotations

from pathlib import Path

import click

from tokmill.audit.trace import Traced, find_offset, open_build, trace_row
from tokmill.audit.trace_document import TracedDocument, trace_document
from tokmill.cli.console import err, json_option, out, print_json, reports_errors
from tokmill.cli.history import line, render_history, render_tokens, shown
from tokmill.errors import RecipeError
from tokmill.manifest import Json


@click.command(
    "trace",
    epilog="Example: tokmill trace demo/out/build/rows --row 17 --column 300    "
    "tokmill trace demo/out --doc-id problem-00017",
)
@click.argument("directory", type=click.Path(file_okay=False, exists=True, path_type=Path))
@click.option("--row", type=click.IntRange(0), help="A row, or a sequence, of a build.")
@click.option("--column", type=click.IntRange(0), help="One token of the row.")
@click.option("--offset", type=click.IntRange(0), help="A token of tokens.bin (Megatron), counted from 0.")
@click.option("--split", help="Of the build [default: its first].")
@click.option("--doc-id", help="A document of a run: where its tokens are, or why it has none.")
@click.option("--source", help="With --doc-id: only of this source.")
@json_option
@reports_errors
def trace_command(
    directory: Path,
    row: int | None,
    column: int | None,
    offset: int | None,
    split: str | None,
    doc_id: str | None,
    source: str | None,
    as_json: bool,
) -> None:
    """Say which characters of which document a token of the build in DIRECTORY was read from, and that document's
    history; or, for a run, where the tokens of a document are."""
    if [row, offset, doc_id].count(None) != 2:
        raise RecipeError(
            "needs one of --row, --offset and --doc-id",
            where="tokmill trace",
            next="see `tokmill trace --help`",
        )
    if doc_id is not None:
        documents = trace_document(directory, doc_id, source)
        if as_json:
            print_json({"ok": True, "documents": [document.as_json() for document in documents]})
        else:
            for document in documents:
                _render_document(document)
            for step in documents[0].missing:
                err.print(f"[yellow]not finished[/]: {shown(step)} has no artifact")
        return
    found = open_build(directory, split)
    if offset is not None:
        row, column = find_offset(found, offset)
    assert row is not None, "one of them is given"
    traced = trace_row(found, row, column)
    if as_json:
        told = {"ok": True, "build": found.name, "split": found.split, "row": row, "column": column}
        print_json({**told, "documents": [one.as_json() for one in traced]})
    else:
        for one in traced:
            _render_traced(one)


def _render_traced(traced: Traced) -> None:
    where = f"{shown(traced.build)} {shown(traced.split)} row {traced.row:,}"
    columns = f"columns {traced.start:,} to {traced.end:,}"
    if traced.source is None or traced.doc_id is None:
        out.print(f"[bold]{where}[/] {columns}: {traced.note}")
        return
    out.print(f"[bold]{where}[/] {columns}: [green]{shown(traced.doc_id)}[/] of {shown(traced.source)}")
    first, stop = traced.tokens
    whole = f" of {traced.document_tokens:,}" if traced.document_tokens is not None else ""
    end = ", with the end of the document" if traced.ends_document else ""
    out.print(f"  [dim]{'tokens':<12}[/] {first:,} to {stop:,}{whole}{end}")
    stretch = traced.stretch
    if stretch is not None:
        cut = ", a token ends inside a character" if stretch.is_cut else ""
        out.print(
            f"  [dim]{'characters':<12}[/] {stretch.start:,} to {stretch.end:,} "
            f"(bytes {stretch.first_byte:,} to {stretch.end_byte:,}{cut})"
        )
        before, marked, after = (shown(part.replace("\n", "⏎")) for part in stretch.excerpt)
        out.print(f"  [dim]{before}[/]⟦[bold]{marked}[/]⟧[dim]{after}[/]")
    _render_origin(traced.origin)
    if traced.history is not None:
        render_history(traced.history)
    if traced.note is not None:
        err.print(f"[yellow]{shown(traced.note)}[/]")


def _render_document(document: TracedDocument) -> None:
    if document.history is not None:
        render_history(document.history)
    else:
        out.print(
            f"[bold]{shown(document.doc_id)}[/] of {shown(document.source)}: [red]{shown(document.fate)}[/]"
        )
    _render_origin(document.origin)
    render_tokens(document.tokens, document.builds)


def _render_origin(origin: Json | None) -> None:
    told = {key: value for key, value in (origin or {}).items() if value is not None}
    if told:
        line("origin", told)
