"""`tokmill score`: models that judge documents, and how they agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

import tokmill
from tokmill.cli.console import answer, err, out, verb
from tokmill.cli.documents import shown
from tokmill.cli.source_options import DIRECTORY, out_option, seed_option, workers_option
from tokmill.errors import plural

if TYPE_CHECKING:
    from tokmill.adhoc.score_training import Evaluated, Trained
    from tokmill.adhoc.scoring import Scored
    from tokmill.audit.agreement import Agreement

VERBS = {
    "Look at a run": {
        "score": (
            "Train models that score texts, apply them, and compare scores.",
            {
                "apply": "adhoc.scoring",
                "compare": "audit.agreement",
                "eval": "adhoc.score_training",
                "train": "adhoc.score_training",
            },
        ),
    },
}


@click.group("score", epilog="Example: tokmill score compare out/demo score.edu score.math")
def score_command() -> None:
    """Train models that score texts, apply them, and compare the scores of a run."""


@score_command.command(
    "apply",
    epilog=(
        "Example: tokmill score apply 'data/*.jsonl.zst' --fasttext edu.bin --label __label__hq "
        "--out scores.jsonl.zst"
    ),
)
@click.argument("files", nargs=-1, required=True)
@click.option("--fasttext", metavar="FILE", help="A classifier of fastText, .bin or .ftz.")
@click.option("--linear", metavar="FILE", help="A classifier of `score train`, or of a run.")
@click.option("--importance", metavar="FILE", help="Weights of n-grams (DSIR).")
@click.option("--perplexity", metavar="FILE", help="An n-gram model, or an ARPA file.")
@click.option("--label", help="Whose chance is the score. [default of --linear: the last of the model]")
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
    "--aggregate",
    type=click.Choice(["mean", "max", "min"]),
    help="What is made of the scores of windows. [default: mean]",
)
@click.option("--text", help="The field with the text. [default: text]")
@out_option("a file of JSON lines, packed by its name", click.Path(dir_okay=False), required=True)
@click.option("--replace", is_flag=True, help="Replace the file.")
@workers_option
@verb
def apply_command(as_json: bool, **options: Any) -> None:
    """Score the documents of FILES by one model, and write a line for each."""
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


@score_command.command(
    "train",
    epilog=(
        "Example: tokmill score train --positive 'good/*.jsonl.zst' --negative 'rest/*.jsonl.zst' "
        "--out good.model"
    ),
)
@click.option("--positive", multiple=True, required=True, metavar="FILES", help="Documents that are wanted.")
@click.option("--negative", multiple=True, metavar="FILES", help="Documents that are not, or raw ones.")
@out_option("the model", click.Path(dir_okay=False), required=True)
@click.option(
    "--kind",
    type=click.Choice(["linear", "importance", "perplexity"]),
    default="linear",
    help="A classifier, weights of DSIR, or a language model of the wanted documents.",
)
@click.option("--text", help="The field with the text. [default: text]")
@click.option(
    "--order", type=click.IntRange(2, 5), help="Words of an n-gram, of a language model. [default: 5]"
)
@click.option("--words", type=click.IntRange(0, 3), default=2, help="N-grams of up to so many words.")
@click.option(
    "--min-chars", type=click.IntRange(0, 6), default=0, help="And of so many characters, at least."
)
@click.option("--max-chars", type=click.IntRange(0, 6), default=0, help="At most; 0: none.")
@click.option("--epochs", type=click.IntRange(1), default=5, help="Passes over the documents.")
@click.option("--rate", type=float, default=2.0, help="Of learning, at the start.")
@click.option(
    "--min-docs", type=click.IntRange(1), default=2, help="N-grams of fewer documents do not count."
)
@click.option("--max-docs", type=click.IntRange(1), help="At most so many documents of each kind.")
@click.option("--valid-fraction", type=float, default=0.1, help="Held out, and measured on.")
@seed_option(default=0)
@click.option("--replace", is_flag=True, help="Replace the file.")
@verb
def train_command(as_json: bool, **options: Any) -> None:
    """Train a model for the scores of a recipe: a classifier that tells wanted documents from others, or
    weights of DSIR, or a language model."""
    answer(tokmill.score_train(**options), as_json, _render_trained)


@score_command.command(
    "eval",
    epilog=(
        "Example: tokmill score eval good.model --positive 'good/*.jsonl.zst' --negative 'rest/*.jsonl.zst'"
    ),
)
@click.argument("model", type=click.Path(exists=True, dir_okay=False))
@click.option("--positive", multiple=True, required=True, metavar="FILES", help="Documents that are wanted.")
@click.option("--negative", multiple=True, required=True, metavar="FILES", help="Documents that are not.")
@click.option("--text", help="The field with the text. [default: text]")
@click.option("--label", help="Whose chance is the score. [default: the last of the model]")
@verb
def eval_command(as_json: bool, **options: Any) -> None:
    """Measure how well the classifier MODEL tells wanted documents from others."""
    answer(tokmill.score_eval(**options), as_json, _render_evaluated)


def _render_trained(made: Trained) -> None:
    learned = ", ".join(f"{count:,} {label}" for label, count in made.examples.items())
    if made.kind != "linear":
        out.print(f"{learned} → {escape(str(made.out))}")
        out.print(f"[dim]{made.kind} {made.sha256}[/]")
        return
    out.print(f"{learned} → {escape(str(made.out))}")
    for label, grams in made.strongest.items():
        names = [shown(name) for name, weight in grams if weight > 0][:12]
        out.print(f"  [dim]{label:<10}[/] {' · '.join(names)}")
    if made.metrics is None:
        out.print("[dim]too few documents were held out to measure it[/]")
    else:
        _render_metrics(made.held_out, made.metrics)
    out.print(f"[dim]model {made.sha256}[/]")


def _render_evaluated(found: Evaluated) -> None:
    _render_metrics(found.documents, found.metrics)
    out.print(f"[dim]model {found.sha256}[/]")


def _render_metrics(documents: dict[str, int], metrics: Any) -> None:
    told = ", ".join(f"{count:,} {label}" for label, count in documents.items())
    error = metrics["calibration_error"]
    out.print(f"measured on {told}: area under the curve {metrics['auc']:.4f}, off by {error:.3f} on average")
    for one in metrics["thresholds"]:
        precision = "-" if one["precision"] is None else f"{one['precision']:.3f}"
        out.print(
            f"  min {one['threshold']:.1f}: keeps {one['share']:7.2%}, precision {precision}, "
            f"recall {one['recall']:.3f}"
        )


def _render_scored(made: Scored) -> None:
    mean = "" if made.mean is None else f", mean {made.mean:.6g}"
    out.print(f"{plural(made.documents, 'document')}, {made.scored:,} scored{mean} → {escape(str(made.out))}")
    out.print(f"[dim]model {made.sha256}[/]")


def _render_agreement(found: Agreement) -> None:
    for source in found.missing:
        err.print(f"[yellow]not cleaned yet[/]: {shown(source)}")
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
