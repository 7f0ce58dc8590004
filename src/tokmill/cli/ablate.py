"""`tokmill ablate`: which data is better, by small models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

import tokmill
from tokmill.cli.console import answer, err, hooks_option, open_progress, out, verb
from tokmill.cli.documents import shown
from tokmill.cli.source_options import FILE, Amount, Here, out_option, workers_option
from tokmill.proxy.page import HEADINGS, verdict_rows

if TYPE_CHECKING:
    from tokmill.proxy.ablation import Ablation

VERBS = {
    "Look at a run": {
        "ablate": ("Train small models on builds, and say which data is better.", "proxy.ablation"),
    },
}


_COLOURS = {"better": "green", "worse": "red", "noise": "dim", "one seed": "yellow"}


@click.command(
    "ablate",
    epilog=(
        "Example: tokmill ablate out/raw out/clean --size 2M --tokens 5M --seeds 3 --out ablation    "
        "tokmill ablate recipe.yaml --leave-one-out sources"
    ),
)
@click.argument("targets", nargs=-1, required=True, type=Here(path_type=Path))
@click.option("--build", metavar="NAME", help="Build of the runs that are given [default: their only one].")
@click.option("--seeds", type=click.IntRange(1), default=5, help="Models of each build.")
@click.option(
    "--size",
    type=click.Choice(["0.2M", "2M", "8M", "20M", "60M"]),
    default="8M",
    help="Weights of a model, without its embedding.",
)
@click.option("--tokens", type=Amount(), default="20M", help="Budget of a model.")
@click.option("--length", type=click.IntRange(2), help="Context of a model [default: the length of rows].")
@click.option("--batch-tokens", type=Amount(), help="Tokens of a step [default: a thousandth of --tokens].")
@click.option("--rate", type=float, default=0.002, help="Learning rate, the same for every size.")
@click.option(
    "--mask",
    type=click.Choice(["causal", "documents"]),
    default="causal",
    help="What a token sees: all before it in its row, or only its own document.",
)
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", help="What computes.")
@click.option(
    "--held-out",
    type=click.Choice(["first", "common", "all", "none"]),
    default="first",
    help="Whose held-out documents judge.",
)
@click.option("--by", type=click.Choice(["domain", "source"]), default="domain", help="How they are grouped.")
@click.option("--held-out-bytes", type=Amount(), default="1M", help="Of each group, at most.")
@click.option("--text", type=FILE, multiple=True, help="A text file to judge on as well. May be repeated.")
@click.option(
    "--choices",
    type=FILE,
    multiple=True,
    help="Questions to judge on as well: JSON lines with prompt, choices, answer. May be repeated.",
)
@click.option(
    "--confidence",
    type=click.FloatRange(0.5, 1, max_open=True),
    default=0.99,
    help="Of intervals and verdicts.",
)
@click.option(
    "--leave-one-out",
    type=click.Choice(["sources", "rules"]),
    help="Compare a recipe with itself without each of its sources or rules.",
)
@click.option(
    "--grid", type=click.IntRange(1), help="Compare so many mixtures around the weights of a recipe."
)
@click.option(
    "--spread", type=float, default=8.0, help="How close those are to its weights: the larger, the closer."
)
@hooks_option
@workers_option
@out_option("models, runs, ablation.json and ablation.md", default="ablation")
@verb
def ablate_command(as_json: bool, **options: Any) -> None:
    """Train small models on each of TARGETS, and say on which texts one is better than the first of them.

    TARGETS are builds, or runs; with --leave-one-out or --grid, one recipe. Models are judged in bits per
    byte on documents that none of the builds trains on, so builds of different tokenizers can be compared.
    The same command goes on where an earlier one was killed. Needs PyTorch, the extra `torch`.
    """
    with open_progress() as progress:
        result = tokmill.ablate(**options, progress=progress)
    answer(result, as_json, _render)


def _render(result: Ablation) -> None:
    rows = [HEADINGS, *verdict_rows(result)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(HEADINGS))]
    for number, row in enumerate(rows):
        *cells, last = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        style = "bold" if number == 0 else _COLOURS[row[-1]]
        out.print(f"{'  '.join(map(shown, cells))}  [{style}]{last.rstrip()}[/]")
    if result.mixture is not None:
        out.print(escape(result.mixture["told"]))
        for name, one in result.mixture["weights"].items():
            out.print(
                f"  {shown(name):<20} {result.mixture['present'][name]:.3f} → {one['weight']:.3f}  "
                f"[dim]{one['low']:.3f} to {one['high']:.3f}[/]"
            )
    for note in result.notes:
        out.print(f"[yellow]{escape(note)}[/]")
    tokens, flops = sum(one.tokens for one in result.trials), sum(one.flops for one in result.trials)
    out.print(
        f"[dim]{len(result.trials)} builds × {result.asked['seeds']} seeds on "
        f"{escape(str(result.asked['device']))}: {tokens:,} tokens, {flops:.2e} FLOPs, "
        f"{result.seconds:,.0f} s[/]"
    )
    err.print(f"[dim]the page: {escape(str(result.out / 'ablation.md'))}[/]")
