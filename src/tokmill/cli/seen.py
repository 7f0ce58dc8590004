"""`tokmill seen`: what a model was trained on by a step, and what comes next."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

import tokmill
from tokmill.cli.console import answer, out, verb
from tokmill.cli.documents import shown
from tokmill.cli.source_options import ANY_FILE, DIRECTORY, FILE, Command, out_option, seed_option

if TYPE_CHECKING:
    from tokmill.artifacts.manifest import Json
    from tokmill.audit.meetings import Meeting
    from tokmill.audit.seen import Group, Seen

VERBS = {
    "Look at a run": {
        "seen": ("Say what a model has seen by a step, and what comes next.", "audit.seen"),
    },
}

_SHOWN_MEETINGS = 40


# How a loader read builds: a step, and what its order is made of.
_READ = (
    click.option("--step", type=click.IntRange(0), help="Or a step: all before it were taken."),
    click.option("--batch-size", type=click.IntRange(1), help="Samples of a rank in a step."),
    click.option("--world-size", type=click.IntRange(1), default=1, show_default=True, help="Ranks."),
    seed_option("; that of the loader, where a state has its own", default=0, show_default=True),
    click.option("--weights", help="Of several builds, as the loader has them: 0.7,0.3."),
    click.option(
        "--shuffle",
        type=click.Choice(["epoch", "none"]),
        help="Rows in a new order in each epoch, or as they lie. [default: as the loader does]",
    ),
    click.option(
        "--bucketing",
        type=click.IntRange(1),
        nargs=2,
        metavar="WINDOW RUN",
        help="Of the loader: 4096 64. [default: none]",
    ),
    click.option("--drop-last", is_flag=True, help="The loader leaves out the samples that fill no step."),
    click.option("--split", help="Split of the builds. [default: train]"),
)


def read_options(command: Command) -> Command:
    return functools.reduce(lambda wrapped, option: option(wrapped), reversed(_READ), command)


@click.command(
    "seen",
    epilog="Example: tokmill seen demo/out/build/rows --step 1000 --batch-size 8    "
    "tokmill seen demo/out/build/rows --step 9 --batch-size 8 --doc-id problem-00017",
)
@click.argument("builds", type=DIRECTORY, nargs=-1, required=True, metavar="BUILD...")
@click.option(
    "--state", type=FILE, help="State of the loader, as JSON: json.dump(batches.state_dict(), file)."
)
@read_options
@click.option(
    "--by",
    default="source",
    show_default=True,
    metavar="KEY",
    help="Tell tokens and documents apart by source, domain, license, language, or in tenths by a score: "
    "score.NAME.",
)
@click.option("--doc-id", help="A document: the steps that saw it, and those that will.")
@click.option("--text", help="Words, as they are trained on: the steps that saw them, and those that will.")
@click.option("--source", help="With --doc-id or --text: only of this source.")
@click.option("--stage", help="Of a state of stages, the one that is meant, where several are of one build.")
@click.option("--batch", type=click.IntRange(0), help="A step: its documents and characters, rank by rank.")
@out_option("a Parquet file with every document, and how often it was seen", ANY_FILE)
@verb
def seen_command(as_json: bool, weights: str | None, **options: Any) -> None:
    """Say what was trained on by a state of the loader, or before a step, of the BUILDs that it reads: tokens
    and epochs, documents seen whole, partly and not yet. It is computed from the order, and nothing is
    replayed."""
    parts = weights.split(",") if weights is not None else None
    answer(tokmill.seen(weights=parts, **options), as_json, _render)


def _render(found: Seen) -> None:
    out.print(f"[dim]{_moment(found)}[/]")
    if found.earlier_tokens:
        out.print(
            f"[dim]after {found.earlier_tokens:,} tokens of earlier runs, which are not counted here[/]"
        )
    table = Table(box=None, pad_edge=False)
    table.add_column(found.by)
    for name in ("tokens seen", "share", "epochs", "covered", "docs whole", "partly", "not yet"):
        table.add_column(name, justify="right")
    for group in [*found.groups, found.total]:
        table.add_row(*_cells(group, found.total))
    out.print(table)
    often = ", ".join(f"{count:,} {times}×" for times, count in found.passes.items())
    out.print(f"[dim]documents seen whole: {often}[/]")
    if found.meetings is not None:
        _render_meetings(found.meetings)
    for rank in found.batch or []:
        _render_rank(rank)


def _moment(found: Seen) -> str:
    if found.stage is not None and found.epoch:
        return f"after the end of the stage {shown(found.stage)}"
    step = f"step {found.step:,}, " if found.step is not None else ""
    where = f"in epoch {found.epoch:,}" if found.stage is None else f"of the stage {shown(found.stage)}"
    return f"before {step}sample {found.position:,} of {found.epoch_samples:,} {where}"


def _cells(group: Group, total: Group) -> list[str]:
    share = group.seen / total.seen if total.seen else 0.0
    new = group.new / group.tokens if group.tokens else 0.0
    counts = (f"{count:,}" for count in (group.whole, group.partly, group.unseen))
    return [
        shown(group.name),
        f"{group.seen:,}",
        f"{share:.1%}",
        f"{group.epochs:.3f}",
        f"{new:.1%}",
        *counts,
    ]


def _render_meetings(meetings: list[Meeting]) -> None:
    if not meetings:
        out.print("no step has it")
    for one in meetings[:_SHOWN_MEETINGS]:
        when = (
            f"step {one.step:,}" if one.step is not None else f"epoch {one.epoch:,} sample {one.position:,}"
        )
        seen = "[green]seen[/]" if one.is_seen else "[dim]to come[/]"
        first, stop = one.tokens
        where = f"{shown(one.build)} row {one.row:,}, tokens {first:,} to {stop:,} of {shown(one.doc_id)}"
        if not one.is_placed:
            where += ", which may have it"
        out.print(f"{seen}  {when}  {where}")
    if len(meetings) > _SHOWN_MEETINGS:
        out.print(f"[dim]and {len(meetings) - _SHOWN_MEETINGS:,} more: see --json[/]")


def _render_rank(rank: Json) -> None:
    out.print(f"[bold]rank {rank['rank']}[/]")
    for row in rank["rows"]:
        out.print(f"  {shown(row['build'])} row {row['row']:,}")
        for one in row["documents"]:
            where = (
                f"characters {one['characters'][0]:,} to {one['characters'][1]:,}"
                if one["characters"]
                else ""
            )
            out.print(f"    {shown(one['source'])} [green]{shown(one['doc_id'])}[/] {where}")
