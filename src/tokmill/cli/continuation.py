"""`tokmill continue`: the rest of a run that is under way, by another recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape
from rich.table import Table

from tokmill.cli.console import answer, err, out, verb, with_progress
from tokmill.cli.documents import shown
from tokmill.cli.run import SET, render_run
from tokmill.cli.seen import read_options
from tokmill.cli.source_options import DIRECTORY, FILE, out_option, workers_option
from tokmill.errors import plural

if TYPE_CHECKING:
    from tokmill.continuation.continuing import Rest

VERBS = {
    "Run a recipe": {
        "continue": ("Make the rest of a run by another recipe.", "continuation.continuing"),
    },
}


@click.command(
    "continue",
    epilog="Example: tokmill continue out/old/build/rows --at state.json --recipe new.yaml --out out/new\n\n"
    "tokmill continue out/old/build/rows --step 41000 --batch-size 64 --world-size 8 --recipe new.yaml",
)
@click.argument("builds", type=DIRECTORY, nargs=-1, required=True, metavar="BUILD...")
@click.option("--recipe", type=FILE, required=True, help="What the whole run is to be from now on.")
@out_option("a directory [default: out/NAME by the recipe]")
@click.option("--at", type=FILE, help="State of the loader, as JSON: json.dump(batches.state_dict(), file).")
@read_options
@SET
@workers_option
@click.option("--wait", is_flag=True, help="Wait for another run in the same directory instead of giving up.")
@verb
def continue_command(as_json: bool, weights: str | None, **options: Any) -> None:
    """Make the rest of a run whose BUILDs were trained on up to a state of the loader, or a step: with other
    sources or weights, another length, without documents that were taken down.

    What was seen is not offered again before everything else of its source was. A target of the recipe is the
    length of the whole run: what was trained on counts. Weights are of the rest.
    """
    parts = weights.split(",") if weights is not None else None
    answer(with_progress("continue_", {**options, "weights": parts}), as_json, _render)


def _render(made: Rest) -> None:
    render_run(made.run)
    if not made.sources:
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("source")
    for name in ("tokens trained on", "docs seen", "again", "docs unseen", "to come", "gone"):
        table.add_column(name, justify="right")
    for source, told in made.sources.items():
        counts = (told[name]["documents"] for name in ("seen", "again", "unseen", "to_come"))
        table.add_row(
            shown(source), f"{told['trained_on']:,}", *(f"{count:,}" for count in counts), f"{told['gone']:,}"
        )
    for source, told in made.gone.items():
        table.add_row(shown(source), f"{told['trained_on']:,}", *"0000", f"{told['documents']:,}")
    out.print(table)
    history = plural(made.continues.tokens, "token")
    out.print(f"[dim]after {history}, by {escape(made.continues.history[:16])}[/]")
    ordered = [
        step for step, artifact in made.run.artifacts.items() if artifact.manifest.facts.get("is_in_order")
    ]
    if ordered:
        err.print(f"[dim]the rows of {', '.join(ordered)} are in order, and the loader leaves them there[/]")
