"""`tokmill run` and `plan`; `tokmill recipe check | schema | init | import`, and `tokmill demo`:
from nothing to a run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

import tokmill
from tokmill.artifacts.progress import MARK, warnings_to
from tokmill.cli.console import (
    answer,
    describe_counts,
    err,
    few_reasons,
    open_progress,
    out,
    print_json,
    verb,
    with_progress,
)
from tokmill.cli.estimate import render_estimate
from tokmill.cli.source_options import ANY_DIRECTORY, ANY_FILE, FILE, out_option, workers_option
from tokmill.errors import plural
from tokmill.recipe.examples import STAND_IN
from tokmill.reference.recipe_keys import recipe_markdown

if TYPE_CHECKING:
    from tokmill.adhoc.recipes import Checked, Imported, Started
    from tokmill.pipeline.run import Plan, RunResult
    from tokmill.reports.demo import Demo

VERBS = {
    "Run a recipe": {
        "demo": ("Run a recipe over a small corpus that every machine has.", "reports.demo"),
        "recipe": (
            "Check, describe, start or import a recipe.",
            {
                "check": "adhoc.recipes",
                "schema": "adhoc.recipes",
                "init": "adhoc.recipes",
                "import": "adhoc.recipes",
            },
        ),
        "run": ("Run a recipe: raw text to verified tokens.", "pipeline.run"),
        "plan": ("Show what `run` would do, and why.", "pipeline.run"),
    },
}


@click.group("recipe", epilog="Example: tokmill recipe check recipe.yaml")
def recipe_command() -> None:
    """Check, describe, start or import a recipe."""


_recipe = click.argument("recipe", type=FILE)
_out = out_option(
    "a directory, or where to publish: s3://, gs://, az:// [default: out/NAME by the recipe]",
    str,
    metavar="DIRECTORY|URL",
)
_set = click.option(
    "--set",
    multiple=True,
    metavar="KEY=VALUE",
    help="Another value for a key of the recipe: pack.length=4096, filters[2].min=100; may be repeated.",
)


@recipe_command.command(
    "check",
    epilog="Example: tokmill recipe check recipe.yaml\n\ntokmill recipe check recipe.yaml --explain",
)
@_recipe
@_out
@_set
@click.option("--explain", is_flag=True, help="Print every key with its value, and where that comes from.")
@verb
def check(as_json: bool, **options: Any) -> None:
    """List every mistake in RECIPE at once, with its line and the key that was probably meant.

    Files, packs, hooks, tokenizer, disk and permissions are looked at too:
    what passes here, `run` begins with.
    """
    answer(tokmill.recipe_check(**options), as_json, _render_checked)


def _render_checked(checked: Checked) -> None:
    for row in checked.explained or ():
        out.print(f"{escape(row.key):<44} {escape(row.shown):<40} [dim]{escape(row.origin)}[/]")
    recipe, path = checked.recipe, click.get_current_context().params["recipe"]
    out.print(
        f"[green]✓[/] {escape(str(path))}: {plural(len(recipe.sources), 'source')}, "
        f"{plural(len(recipe.builds), 'build')}"
    )


@recipe_command.command(
    "schema",
    epilog="Example: tokmill recipe schema > recipe.schema.json\n\ntokmill recipe schema --markdown | less",
)
@click.option("--markdown", is_flag=True, help="Print every key with its values and default, as Markdown.")
@verb
def schema(as_json: bool, markdown: bool) -> None:
    """Print the JSON schema of recipes, for editors. It is JSON with and without --json;
    --markdown is for reading."""
    if markdown and not as_json:
        click.echo(recipe_markdown(), nl=False)
    else:
        print_json(tokmill.recipe_schema())


@recipe_command.command(
    "init",
    epilog="Example: tokmill recipe init --files 'data/*.jsonl.zst' --name corpus; "
    "tokmill recipe init --like stage-a --offline",
)
@click.argument("path", type=ANY_FILE, required=False)
@click.option("--files", help="Glob of the input files [default: data/*.jsonl].")
@click.option("--name", help="Name of the recipe [default: corpus].")
@click.option("--like", metavar="NAME", help="Copy a recipe of a real project; an unknown NAME lists them.")
@click.option(
    "--offline",
    is_flag=True,
    help="With --like: the variant without a network, and small files that it reads.",
)
@verb
def init(as_json: bool, **options: Any) -> None:
    """Write a recipe to PATH [default: recipe.yaml, or NAME.yaml with --like].
    An existing file is never overwritten."""
    answer(tokmill.recipe_init(**options), as_json, _render_started)


def _render_started(made: Started) -> None:
    if made.files:
        err.print(
            f"wrote {plural(len(made.files), 'small file')} into {escape(str(made.path.parent / STAND_IN))}"
        )
    out.print(f"wrote {escape(str(made.path))}; edit it, then: tokmill run {escape(str(made.path))}")


@recipe_command.command("import", epilog="Example: tokmill recipe import data_mix.yaml recipe.yaml")
@click.argument("file", type=FILE)
@click.argument("path", type=ANY_FILE, default=Path("recipe.yaml"))
@verb
def import_(as_json: bool, **options: Any) -> None:
    """Turn FILE, a YAML list of datasets or of domains with weights, into a recipe at PATH.

    Every key of FILE becomes a key of the recipe, or is reported with its line and the reason.
    An existing PATH is never overwritten.
    """
    answer(tokmill.recipe_import(**options), as_json, _render_imported)


def _render_imported(made: Imported) -> None:
    file = click.get_current_context().params["file"]
    for unmapped in made.unmapped:
        err.print(escape(f"{file}, {unmapped}"), soft_wrap=True)
    sources = plural(len(made.recipe.sources), "source")
    left = f"{plural(len(made.unmapped), 'key')} did not map" if made.unmapped else "every key mapped"
    out.print(f"wrote {escape(str(made.path))}: {sources}; {left}")
    if made.out is not None:  # a recipe does not say where its results go
        out.print(escape(f"next: tokmill run {shlex.quote(str(made.path))} --out {shlex.quote(made.out)}"))


@click.command(
    "demo", epilog="Example: tokmill demo --out demo\n\ntokmill demo --report --decisions --log-file demo.log"
)
@out_option("the corpus, the recipe and the run", click.Path(path_type=Path), default=Path("demo"))
@click.option("--report", is_flag=True, help="Also write report.html and report.json.")
@click.option(
    "--decisions",
    is_flag=True,
    help="Also write decisions.jsonl.zst: the verdict on every document, and why.",
)
@workers_option
@verb
def demo_command(as_json: bool, **options: Any) -> None:
    """Run a recipe over what every machine has: the Python standard library, its language reference,
    and a small corpus of our own. Trains a tokenizer, so nothing is downloaded."""
    made = with_progress("demo", options)
    answer(made, as_json, _render_demo)
    raise SystemExit(0 if made.verified.ok else 1)


_LINE = "\n"


def _render_demo(made: Demo) -> None:
    for name in ("build/rows", "build/mega"):
        out.print(f"{name}: {escape(describe_counts(made.run.artifacts[name].manifest.counts))}")
    out.print(
        f"""
tokens     {made.run.out}/build/rows/train/input_ids.mmap
           {made.run.out}/build/mega/train/tokens.bin + tokens.idx
tokenizer  {made.run.out}/tokenizer/tokenizer.json
manifest   {made.run.out}/manifest.json
recipe     {made.recipe}
digest     {made.verified.digest}  ({"proven" if made.verified.ok else "NOT PROVEN"})
{"".join(f"{name:<11}{where}{_LINE}" for name, where in made.extra.items())}
next       tokmill verify {made.run.out}
           tokmill run {made.recipe} --out {made.run.out}      (does nothing: all is up to date)
           edit {made.recipe} and run it again: only what depends on the change is rebuilt
           tokmill recipe init                          (a recipe of your own)""",
        markup=False,
    )


_until = click.option(
    "--until", metavar="STEP", help="Stop after this step or kind of step, e.g. clean or tokens."
)


@click.command(
    "run",
    epilog="Example: tokmill run recipe.yaml --workers 8 --until tokens\n\n"
    "tokmill run recipe.yaml --set pack.length=4096 --set 'filters[0].set.min_words=30' --out out/long",
)
@_recipe
@_out
@_set
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
@click.option("--replace", is_flag=True, help="Replace another run that is published there.")
@click.option(
    "--verify",
    is_flag=True,
    help="Read every byte of the steps that are up to date, and make those that are damaged again.",
)
@click.option(
    "--keep-previous",
    is_flag=True,
    help="Keep steps that this run replaces beside it: going back to the recipe that made them is free.",
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
    What --set changes is part of the recipe of this run, and in its manifest.
    """
    answer(with_progress("run", options), as_json, _render_run)


@click.command("plan", epilog="Example: tokmill plan recipe.yaml --estimate")
@_recipe
@_out
@_set
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
    if plan.estimate is not None:
        render_estimate(plan.estimate, plan.free_bytes)


def _up_to_date(steps: int) -> str:
    return f"{plural(steps, 'step')} {'is' if steps == 1 else 'are'} up to date"


def _render_run(result: RunResult) -> None:
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
    if result.ran or result.restored or published is not None:
        place = published.url if published is not None else str(result.out)
        err.print(f"[dim]prove it with: tokmill verify {escape(place)}[/]")
