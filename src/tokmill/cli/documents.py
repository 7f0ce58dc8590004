"""`tokmill why`, `trace` and `peek`: what happened to a document, where its tokens are, and a row as text.

    why     document ─> every rule with its value and margin, verdicts, split, tokens       render_history
    trace   token ─> characters of a document, and its history;  document ─> its rows       render_tokens
    peek    row ─> text, document by document

Texts of documents go through `shown`, so that none can control the terminal.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.text import Text

from tokmill.artifacts.manifest import Json
from tokmill.audit.check import Peeked, peek
from tokmill.audit.examples import count_reasons, load_examples
from tokmill.audit.trace import Traced, TracedDocument, find_offset, open_build, trace_document, trace_row
from tokmill.audit.why import History, RuleOutcome, explain_document
from tokmill.cli.console import err, hooks_option, json_option, out, print_json, reports_errors
from tokmill.errors import RecipeError, plural

_SHOWN_ROWS = 8


def render_history(history: History) -> None:
    is_kept = history.fate.startswith("kept")
    out.print(f"[bold]{shown(history.doc_id)}[/] of {shown(history.source)}: ", end="")
    out.print(f"[{'green' if is_kept else 'red'}]{shown(history.fate)}[/]")
    line("ingest", {key: value for key, value in history.ingest.items() if value is not None})
    if history.clean is not None:
        facts = {
            key: value for key, value in history.clean.items() if key != "decisions" and value is not None
        }
        line("clean", facts)
        for decision in history.clean["decisions"]:
            line("", decision)
    if history.rules:
        _render_rules(history.rules)
    if history.dedup is not None:
        line("dedup", {"kept": history.dedup["kept"]})
        for decision in history.dedup["decisions"]:
            line("", decision)
    if history.split is not None:
        line("split", {"side": history.split})
    render_tokens(history.tokens, history.builds)


def render_tokens(tokens: Json | None, builds: Sequence[Json]) -> None:
    """Where they are: in their shard, and in every build, once per epoch."""
    if tokens is not None:
        line("tokens", tokens)
    for build in builds:
        for turn in build["turns"]:
            line(build["build"], {"split": build["split"], **_spelled_turn(turn)})
        if not build["turns"]:
            line(build["build"], {"none": build["why_not"]})


def _spelled_turn(turn: Json) -> Json:
    if "rows" not in turn:
        return {key: value for key, value in turn.items() if key != "turn"}
    rows = [
        f"{row['row']:,} columns {row['start']:,} to {row['end']:,}" for row in turn["rows"][:_SHOWN_ROWS]
    ]
    more = len(turn["rows"]) - len(rows)
    told: Json = {"rows": "; ".join(rows) + (f"; and {more:,} more" if more else "")}
    return {**told, **({"cut_tokens": turn["cut_tokens"]} if turn["cut_tokens"] else {})}


def _render_rules(rules: tuple[RuleOutcome, ...]) -> None:
    """Whole names, however wide: `tokmill whatif --set` takes them."""
    rows = [("rule", "value", "threshold", "margin")]
    rows += [(r.rule, number(r.value), r.bound, number(r.margin, "+")) for r in rules]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    colours = ["dim", *("red" if r.margin < 0 else "default" for r in rules)]
    for row, colour in zip(rows, colours, strict=True):
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[0] = row[0].ljust(widths[0])
        out.print(f"  [{colour}]{shown('  '.join(cells))}[/]")


def line(label: str, facts: dict[str, Any]) -> None:
    told = " · ".join(f"{key} {_spelled(value)}" for key, value in facts.items())
    out.print(f"  [dim]{shown(label):<12}[/] {shown(told)}")


def shown(text: str) -> str:
    return escape(_printable(text))


def _printable(text: str) -> str:
    """Anybody may have written a text: what is not printable could control the terminal."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)


def _spelled(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return number(value)
    return value if isinstance(value, str) else json.dumps(value)


def number(value: float, sign: str = "") -> str:
    return f"{int(value):{sign},}" if float(value).is_integer() else f"{value:{sign}.6g}"


_SHOWN_CHARS = 300


@click.command(
    "why", epilog="Example: tokmill why demo/out problem-00017    tokmill why demo/out --reason too_short"
)
@click.argument("directory", type=click.Path(file_okay=False, exists=True, path_type=Path))
@click.argument("doc_id", required=False)
@click.option("--source", help="Only documents of this source.")
@click.option(
    "--reason",
    help="Show examples of documents dropped for this reason, and their number; `all`: every reason.",
)
@json_option
@reports_errors
def why_command(
    directory: Path, doc_id: str | None, source: str | None, reason: str | None, as_json: bool
) -> None:
    """Show the history of DOC_ID in the run in DIRECTORY: where it came from, every rule with its value and
    margin, what was decided, and where its tokens are."""
    if (doc_id is None) == (reason is None):
        raise RecipeError(
            "needs either DOC_ID or --reason", where="tokmill why", next="see `tokmill why --help`"
        )
    if doc_id is None:
        examples = [one for one in load_examples(directory) if source in (None, one["source"])]
        counts = [
            one for one in count_reasons(directory) if source is None or one["step"].endswith(f"/{source}")
        ]
        chosen = [one for one in examples if reason in ("all", one["reason"])]
        counted = [one for one in counts if reason in ("all", one["reason"])]
        if as_json:
            print_json({"ok": True, "counts": counted, "examples": chosen})
            return
        for one in counted:
            out.print(
                f"[dim]{shown(one['step'])}: {one['verdict']} {one['docs']:,} {shown(one['reason'])}[/]"
            )
        if chosen:
            _render_examples(chosen)
        elif counted:
            out.print("no example of them was recorded")
        else:
            others = ", ".join(sorted({one["reason"] for one in [*examples, *counts]}))
            out.print(
                "no examples of this reason in this run"
                + (f"; it has some of: {shown(others)}" if others else "")
            )
        return
    histories = explain_document(directory, doc_id, source)
    if as_json:
        print_json({"ok": True, "documents": [history.as_json() for history in histories]})
    else:
        for history in histories:
            render_history(history)


def _render_examples(examples: list[dict[str, Any]]) -> None:
    for example in examples:
        measured = ""
        if example["value"] is not None and example["threshold"] is not None:
            measured = f" ({number(example['value'])}, threshold {number(example['threshold'])})"
        name = example["doc_id"] or f"{example['file']} at {example['offset']:,}"
        out.print(f"[red]{shown(example['reason'])}[/]{measured}  {shown(example['source'])} {shown(name)}")
        told = [example["step"], example.get("detail")]
        if example.get("match"):
            told.append(f"kept instead: {example['match']['source']} {example['match']['doc_id']}")
        if example.get("similarity") is not None:
            told.append(f"similarity {number(example['similarity'])}")
        out.print(f"  [dim]{shown(' · '.join(part for part in told if part))}[/]")
        if example["text"] is not None:
            text = example["text"][:_SHOWN_CHARS]
            out.print(f"[dim]{shown(text)}{'…' if len(example['text']) > _SHOWN_CHARS else ''}[/]")
        out.print()


@click.command(
    "trace",
    epilog="Example: tokmill trace demo/out/build/rows --row 17 --column 300    "
    "tokmill trace demo/out --doc-id problem-00017",
)
@click.argument("directory", type=click.Path(file_okay=False, exists=True, path_type=Path))
@click.option("--row", type=click.IntRange(0), help="A row, or a sequence, of a build.")
@click.option("--column", type=click.IntRange(0), help="One token of the row.")
@click.option("--offset", type=click.IntRange(0), help="A token of tokens.bin (Megatron), counted from 0.")
@click.option("--split", help="Split of the build [default: its first].")
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


# One after the other: neighbours are told apart, on dark and on light.
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


@click.command("peek", epilog="Example: tokmill peek demo/out/build/rows --row 3")
@click.argument("build", type=click.Path(file_okay=False, exists=True, path_type=Path))
@click.option("--row", type=int, default=0, show_default=True, help="Row to show; -1 is the last.")
@click.option("--split", help="Split of the build [default: train, or its only one].")
@click.option(
    "--tokenizer",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Tokenizer file, where it is not beside the build.",
)
@hooks_option
@json_option
@reports_errors
def peek_command(
    build: Path, row: int, split: str | None, tokenizer: Path | None, hooks: Path | None, as_json: bool
) -> None:
    """Show the text of one row of BUILD, each document in a colour of its own."""
    found = peek(build, row, split=split, tokenizer=tokenizer, hooks=hooks)
    if as_json:
        print_json({"ok": True, **found.as_json()})
    else:
        _render(found)


def _render(found: Peeked) -> None:
    padding = f", {found.padding:,} padding" if found.padding else ""
    out.print(
        f"[bold]{found.split}[/] row {found.row:,} of {found.rows:,}: {plural(found.length, 'token')}{padding}, "
        f"{plural(len(found.pieces), 'document')}"
    )
    for number, piece in enumerate(found.pieces):
        colour = _COLOURS[number % len(_COLOURS)]
        name = " of ".join(part for part in (piece.doc_id, piece.source) if part)
        where = f"[{piece.start}:{piece.end}]"
        begun = f"from its token {piece.offset:,}" if piece.offset else ""
        ended = "" if piece.is_ended else "continues or was truncated"
        told = ", ".join(part for part in (name, begun, ended) if part)
        out.print(Text(_printable(f"── {where} {told}"), style=f"dim {colour}"))
        out.print(Text(_printable(piece.text), style=colour))
