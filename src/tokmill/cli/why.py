"""`tokmill why` and `tokmill whatif`: what happened to a document, and what would happen with other bounds."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import click

from tokmill.audit.whatif import WhatIf, what_if
from tokmill.audit.why import explain_document, load_examples
from tokmill.cli.console import json_option, out, print_json, reports_errors
from tokmill.cli.history import number, render_history, shown
from tokmill.errors import RecipeError

_SHOWN_CHARS = 300


@click.command(
    "why", epilog="Example: tokmill why out/demo problem-17    tokmill why out/demo --reason too_short"
)
@click.argument("directory", type=click.Path(file_okay=False, exists=True, path_type=Path))
@click.argument("doc_id", required=False)
@click.option("--source", help="Only documents of this source.")
@click.option(
    "--reason", help="Show dropped documents of this reason that were kept to read (`all`: of every)."
)
@json_option
@reports_errors
def why_command(
    directory: Path, doc_id: str | None, source: str | None, reason: str | None, as_json: bool
) -> None:
    """Tell the history of DOC_ID in the run in DIRECTORY: where it came from, every rule with its value and
    margin, what was decided, and where its tokens are."""
    if (doc_id is None) == (reason is None):
        raise RecipeError(
            "needs either DOC_ID or --reason", where="tokmill why", next="see `tokmill why --help`"
        )
    if doc_id is None:
        examples = load_examples(directory)
        chosen = [example for example in examples if reason in ("all", example["reason"])]
        if as_json:
            print_json({"ok": True, "examples": chosen})
        elif chosen:
            _render_examples(chosen)
        else:
            others = ", ".join(sorted({example["reason"] for example in examples}))
            out.print(
                "no such examples in this run" + (f"; it has some of: {shown(others)}" if others else "")
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
        measured = (
            ""
            if example["value"] is None
            else f" ({number(example['value'])}, bound {number(example['threshold'])})"
        )
        out.print(
            f"[red]{shown(example['reason'])}[/]{measured}  {shown(example['source'])} {shown(example['doc_id'])}"
        )
        text = example["text"][:_SHOWN_CHARS]
        out.print(f"[dim]{shown(text)}{'…' if len(example['text']) > _SHOWN_CHARS else ''}[/]\n")


@click.command("whatif", epilog="Example: tokmill whatif out/web --set gopher-quality.min_words=30")
@click.argument("directory", type=click.Path(file_okay=False, exists=True, path_type=Path))
@click.option(
    "--set", "changes", multiple=True, required=True, metavar="RULE=BOUND", help="Another bound for a rule."
)
@click.option("--examples", type=click.IntRange(0), default=8, show_default=True, help="Nearest to the line.")
@json_option
@reports_errors
def whatif_command(directory: Path, changes: tuple[str, ...], examples: int, as_json: bool) -> None:
    """Say which documents would change sides with other bounds, from the measurements alone: no text is read."""
    found = what_if(directory, dict(_bound(change) for change in changes))
    if as_json:
        print_json({"ok": True, **found.as_json(examples)})
    else:
        _render_whatif(found, examples)


def _bound(change: str) -> tuple[str, float]:
    name, _, value = change.partition("=")
    with contextlib.suppress(ValueError):
        if math.isfinite(float(value)):
            return name, float(value)
    raise RecipeError(
        f"{change} is not RULE=NUMBER", where="--set", next="for example gopher-quality.min_words=30"
    )


def _render_whatif(found: WhatIf, examples: int) -> None:
    out.print(
        f"kept {found.kept_now:,} → {found.kept_then:,} documents, "
        f"{found.chars_now:,} → {found.chars_then:,} characters"
    )
    for change in found.changes():
        colour = "green" if change["becomes"] == "kept" else "red"
        out.print(
            f"  [{colour}]{change['becomes']:<8}[/] {change['docs']:>8,} documents {change['chars']:>12,} characters  "
            f"{shown(change['reason'])}  [dim]{shown(change['source'])}[/]"
        )
    nearest = found.nearest(examples)
    if nearest:
        out.print("nearest to the line:")
    for mover in nearest:
        out.print(
            f"  {number(mover.value)} (bound {number(mover.threshold)})  {mover.becomes}  "
            f"{shown(mover.source)} {shown(mover.doc_id)}"
        )
