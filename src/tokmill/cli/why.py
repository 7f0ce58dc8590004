"""`tokmill why`: what happened to a document."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tokmill.audit.examples import count_reasons, load_examples
from tokmill.audit.why import explain_document
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
    "--reason", help="Show some documents of this reason, and how many there are (`all`: of every)."
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
            out.print("nothing of them was written down, so none can be shown")
        else:
            others = ", ".join(sorted({one["reason"] for one in [*examples, *counts]}))
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
        measured = ""
        if example["value"] is not None and example["threshold"] is not None:
            measured = f" ({number(example['value'])}, bound {number(example['threshold'])})"
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
