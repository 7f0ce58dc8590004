"""`tokmill why`: what happened to a document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tokmill.audit.why import explain_document, load_examples
from tokmill.cli.console import json_option, out, print_json, reports_errors
from tokmill.cli.history import number, render_history, shown
from tokmill.errors import RecipeError

_SHOWN_CHARS = 300


@click.command(
    "why", epilog="Example: tokmill why demo/out problem-00017    tokmill why demo/out --reason too_short"
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
