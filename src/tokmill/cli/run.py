"""`tokmill run` and `tokmill plan`. They import little: the rest is loaded while workers get ready."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

import tokmill
from tokmill.artifacts.manifest import MANIFEST
from tokmill.artifacts.progress import MARK, warnings_to
from tokmill.cli.console import answer, err, few_reasons, open_progress, out, verb, with_progress
from tokmill.cli.estimate import render_estimate
from tokmill.cli.source_options import ANY_DIRECTORY, FILE, out_option, workers_option
from tokmill.errors import plural
from tokmill.stages.loading import LOADED_FIRST
from tokmill.storage.location import is_url

if TYPE_CHECKING:
    from tokmill.pipeline.run import Plan, RunResult

VERBS = {
    "Run a recipe": {
        "run": ("Run a recipe: raw text to verified tokens.", "pipeline.run"),
        "plan": ("Show what `run` would do, and why.", "pipeline.run"),
    },
}

RECIPE = click.argument("recipe", type=FILE)
OUT = out_option(
    "a directory, or where to publish: s3://, gs://, az:// [default: out/NAME by the recipe]",
    str,
    metavar="DIRECTORY|URL",
)
SET = click.option(
    "--set",
    multiple=True,
    metavar="KEY=VALUE",
    help="Another value for a key of the recipe: pack.length=4096, filters[2].min=100; may be repeated.",
)


_until = click.option(
    "--until", metavar="STEP", help="Stop after this step or kind of step, e.g. clean or tokens."
)


@click.command(
    "run",
    epilog="Example: tokmill run recipe.yaml --workers 8 --until tokens\n\n"
    "tokmill run recipe.yaml --set pack.length=4096 --set 'filters[0].set.min_words=30' --out out/long",
)
@RECIPE
@OUT
@SET
@workers_option
@click.option(
    "--engine",
    type=click.Choice(["local", "ray", "dask", "slurm"]),
    default="local",
    help="What runs the tasks: processes of this machine, Ray, Dask, or jobs of Slurm.",
)
@click.option(
    "--address",
    help="A running cluster: auto, HOST:PORT or ray://HOST:PORT for Ray, tcp://HOST:PORT for Dask "
    "[default: one of its own, on this machine].",
)
@click.option(
    "--slurm",
    multiple=True,
    metavar="KEY=VALUE",
    help="What jobs ask of Slurm: partition=long, time=4:00:00, cpus=8, tokens.mem=8G; may be repeated.",
)
@click.option("--memory", metavar="SIZE", help="Start no more workers than fit into this, e.g. 4GB.")
@_until
@click.option("--wait", is_flag=True, help="Wait for another run in the same directory instead of giving up.")
@click.option(
    "--work",
    type=ANY_DIRECTORY,
    help="Where a run that is published to a URL works; on a cluster, where its driver keeps manifests "
    "[default: a directory of the user's cache].",
)
@click.option(
    "--replace",
    is_flag=True,
    help="Replace the run of another recipe that is there, in the directory or published.",
)
@click.option(
    "--verify",
    is_flag=True,
    help="Read every byte of the steps that are up to date, and make those that are damaged again.",
)
@click.option(
    "--keep-previous",
    is_flag=True,
    help="Keep steps that this run replaces beside it: going back to the recipe that made them is free. "
    "Steps that the recipe no longer names are always kept, until `gc`.",
)
@click.option(
    "--lean",
    is_flag=True,
    help="Keep nothing beside the run: the next one, of a corpus that has grown, computes all again.",
)
@verb
def run_command(as_json: bool, **options: Any) -> None:
    """Run every step of RECIPE that is not up to date, resuming where an earlier run stopped.

    The result depends on the recipe and its inputs alone, not on workers, engines or interruptions.
    What --set changes is part of the recipe of this run, and in its manifest. Exit status 1 also when a build
    was given tokens and has no row of them.
    """
    ahead = LOADED_FIRST if _is_from_nothing(options["recipe"], options["out"]) else None
    answer(with_progress("run", options, ahead=ahead), as_json, render_run)


_NAMED = re.compile(r"""^[ {]*["']?name["']? *: *["']?([\w.-]+)""", re.MULTILINE)


def _is_from_nothing(recipe: Path, out: str | None) -> bool:
    """Then workers will be needed. A guess, from what can be seen before a recipe can be read: a wrong one
    costs time."""
    if out is not None:
        return not is_url(out) and not (Path(out) / MANIFEST).exists()
    with contextlib.suppress(OSError, UnicodeDecodeError):
        named = _NAMED.search(recipe.read_text("utf-8"))
        return named is not None and not (recipe.resolve().parent / "out" / named[1] / MANIFEST).exists()
    return False


@click.command("plan", epilog="Example: tokmill plan recipe.yaml --estimate")
@RECIPE
@OUT
@SET
@_until
@click.option(
    "--estimate",
    is_flag=True,
    help="Run it in miniature, over some of the documents, and tell what a run from nothing will come to.",
)
@verb
def plan_command(as_json: bool, **options: Any) -> None:
    """Show the steps of RECIPE, which are up to date, and why the others are not."""
    with open_progress() as progress, warnings_to(progress.say):
        plan = tokmill.plan(**options, progress=progress)
    answer(plan, as_json, _render_plan)


def _render_plan(plan: Plan) -> None:
    for name, reasons in plan.steps.items():
        mark = "[yellow]run[/]" if reasons else "[green]  ✓[/]"
        told = ["back as it was before"] if name in plan.restored else reasons
        out.print(f"{mark} {escape(name):<26} {escape(few_reasons(told)) or 'up to date'}")
    for note in plan.notes:
        err.print(f"[yellow]{MARK}{escape(note)}[/]")
    if plan.estimate is not None:
        render_estimate(plan.estimate, plan.free_bytes)


def _up_to_date(steps: int) -> str:
    return f"{plural(steps, 'step')} {'is' if steps == 1 else 'are'} up to date"


def render_run(result: RunResult) -> None:
    restored = f", {len(result.restored):,} as before" if result.restored else ""
    if not result.ran:
        out.print(f"nothing to do: {_up_to_date(len(result.skipped))}{restored} ({result.seconds:.2f} s)")
    else:
        out.print(
            f"{escape(result.recipe)}: {plural(len(result.ran), 'step')} run, {len(result.skipped):,} up to "
            f"date{restored}, {result.seconds:.1f} s → {escape(str(result.out))}"
        )
    published = result.published
    if published is not None:
        sent = (
            f"{published.sent:,} of {plural(published.files, 'file')} sent"
            if published.sent
            else "was there already"
        )
        out.print(f"published: {sent} → {escape(published.url)}")
    if result.warnings:
        err.print(f"[yellow]{plural(len(result.warnings), 'warning')} to decide about:[/]")
        for step, what in result.warnings:
            err.print(f"[yellow]{MARK}{escape(step)}: {escape(what)}[/]")
    for build in result.rowless:
        err.print(f"[red]✗[/] {escape(build)} has no row of the tokens that it was given: see its warning")
    if result.ran or result.restored or published is not None:
        place = published.url if published is not None else str(result.out)
        err.print(f"[dim]prove it with: tokmill verify {escape(place)}[/]")
