"""`tokmill score`: models that judge documents, and how they agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

import tokmill
from tokmill.cli.console import answer, out, verb
from tokmill.cli.documents import shown
from tokmill.cli.source_options import DIRECTORY, out_option, workers_option
from tokmill.errors import plural

if TYPE_CHECKING:
    from tokmill.adhoc.scoring import Scored
    from tokmill.audit.agreement import Agreement

VERBS = {
    "Look at a run": {
        "score": (
            "Score texts with a model, and compare scores.",
            {"apply": "adhoc.scoring", "compare": "audit.agreement"},
        ),
    },
}


@click.group("score", epilog="Example: tokmill score compare out/demo score.edu score.math")
def score_command() -> None:
    """Score texts with a model, and compare the scores of a run."""


@score_command.command(
    "apply",
    epilog=(
        "Example: tokmill score apply 'data/*.jsonl.zst' --fasttext edu.bin --label __label__hq "
        "--out scores.jsonl.zst"
    ),
)
@click.argument("files", nargs=-1, required=True)
@click.option("--fasttext", required=True, metavar="FILE", help="The classifier, .bin or .ftz.")
@click.option("--label", required=True, help="Whose chance is the score, with or without `__label__`.")
@click.option(
    "--prepare",
    type=click.Choice(["none", "dclm", "fineweb"]),
    default="none",
    help="How texts are prepared.",
)
@click.option("--lower", is_flag=True, help="Texts in lower case.")
@click.option("--first-words", type=click.IntRange(1), help="Look at so many words of a text only.")
@click.option("--window-words", type=click.IntRange(10), help="Score windows of at most so many words.")
@click.option(
    "--aggregate", type=click.Choice(["mean", "max", "min"]), default="mean", help="What is made of windows."
)
@click.option("--text", help="The field with the text. [default: text]")
@out_option("a file of JSON lines, packed by its name", click.Path(dir_okay=False), required=True)
@click.option("--replace", is_flag=True, help="Replace the file.")
@workers_option
@verb
def apply_command(as_json: bool, **options: Any) -> None:
    """Score the documents of FILES by a fastText classifier, and write a line for each."""
    answer(tokmill.score_apply(**options), as_json, _render_scored)


@score_command.command("compare", epilog="Example: tokmill score compare out/demo score.edu words")
@click.argument("directory", type=DIRECTORY)
@click.argument("first")
@click.argument("second")
@click.option("--examples", type=click.IntRange(0), default=8, help="Documents to show.")
@verb
def compare_command(as_json: bool, **options: Any) -> None:
    """Compare two scores, or any two measures, of the run in DIRECTORY: the correlation of their ranks, and
    the documents that they judge most differently."""
    answer(tokmill.score_compare(**options), as_json, _render_agreement)


def _render_scored(made: Scored) -> None:
    mean = "" if made.mean is None else f", mean {made.mean:.6g}"
    out.print(f"{plural(made.documents, 'document')}, {made.scored:,} scored{mean} → {escape(str(made.out))}")
    out.print(f"[dim]model {made.sha256}[/]")


def _render_agreement(found: Agreement) -> None:
    told = (
        "none: one of them is the same for all" if found.correlation is None else f"{found.correlation:+.4f}"
    )
    out.print(
        f"{shown(found.first)} and {shown(found.second)}, {plural(found.documents, 'document')}: "
        f"rank correlation {told}"
    )
    for source, one in found.by_source.items():
        own = "-" if one["correlation"] is None else f"{one['correlation']:+.4f}"
        out.print(f"  [dim]{shown(source):<20}[/] {one['documents']:>10,}  {own}")
    for example in found.examples:
        first, second = example["percentiles"]
        out.print(
            f"  {first:6.2f} {second:6.2f}  {shown(example['source'])} {shown(example['doc_id'])}: "
            f"[dim]{shown(' '.join(example['text'].split())[:100])}[/]"
        )
