"""`tokmill whatif`: what would happen with other bounds. By itself: it loads the rules, 0.6 s that `why` does without."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path

import click

from tokmill.audit.whatif import WhatIf, what_if
from tokmill.cli.console import json_option, out, print_json, reports_errors
from tokmill.cli.history import number, shown
from tokmill.errors import RecipeError


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
        f"{change} is not RULE=NUMBER", where="--set", next="for example `gopher-quality.min_words=30`"
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
