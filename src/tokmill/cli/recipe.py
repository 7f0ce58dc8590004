"""`tokmill run` and `plan`; `tokmill recipe check | schema | init | import`, and `tokmill demo`: from nothing to a run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

import tokmill
from tokmill.cli.console import answer, describe_counts, err, out, print_json, verb, with_progress
from tokmill.cli.source_options import ANY_DIRECTORY, ANY_FILE, FILE, workers_option
from tokmill.errors import plural
from tokmill.recipe.file import STAND_IN

if TYPE_CHECKING:
    from tokmill.adhoc.recipes import Imported, Started
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


@recipe_command.command("check", epilog="Example: tokmill recipe check recipe.yaml")
@click.argument("recipe", type=FILE)
@verb
def check(recipe: Path, as_json: bool) -> None:
    """List every mistake in RECIPE at once, with its line and the key that was probably meant."""
    loaded = tokmill.recipe_check(recipe)
    if as_json:
        print_json({"ok": True, "recipe": loaded.model_dump(mode="json")})
    else:
        out.print(
            f"[green]✓[/] {escape(str(recipe))}: {plural(len(loaded.sources), 'source')}, "
            f"{plural(len(loaded.builds), 'build')}"
        )


@recipe_command.command("schema", epilog="Example: tokmill recipe schema > recipe.schema.json")
@verb
def schema(as_json: bool) -> None:
    """Print the JSON schema of recipes, for editors and for reading. It is JSON with and without --json."""
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
    """Write a recipe to PATH [default: recipe.yaml, or NAME.yaml with --like]. An existing file is never overwritten."""
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

    Every key of FILE becomes a key of the recipe, or is reported with its line and the reason. An existing PATH is never
    overwritten.
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
@click.option("--out", type=click.Path(path_type=Path), default=Path("demo"), help="Output.")
@click.option("--report", is_flag=True, help="Also write report.html and report.json.")
@click.option(
    "--decisions",
    is_flag=True,
    help="Also write decisions.jsonl.zst: the verdict on every document, and why.",
)
@workers_option
@verb
def demo_command(as_json: bool, **options: Any) -> None:
    """Run a recipe over what every machine has: the Python standard library, its language reference, and a small
    corpus of our own. Trains a tokenizer, so nothing is downloaded."""
    made = with_progress(tokmill.demo, options)
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


_recipe = click.argument("recipe", type=FILE)
_out = click.option(
    "--out",
    metavar="DIRECTORY|URL",
    help="Output directory, or where to publish: s3://, gs://, az:// [default: out/NAME by the recipe].",
)
_until = click.option(
    "--until", metavar="STEP", help="Stop after this step or kind of step, e.g. clean or tokens."
)


@click.command("run", epilog="Example: tokmill run recipe.yaml --workers 8 --until tokens")
@_recipe
@_out
@workers_option
@click.option(
    "--engine",
    type=click.Choice(["local", "ray", "dask"]),
    default="local",
    help="What runs the tasks: processes of this machine, Ray or Dask.",
)
@click.option(
    "--address",
    help="A running cluster: auto, HOST:PORT or ray://HOST:PORT for Ray, tcp://HOST:PORT for Dask "
    "[default: one of its own, on this machine].",
)
@click.option("--memory", metavar="SIZE", help="Start no more workers than fit into this, e.g. 4GB.")
@_until
@click.option("--wait", is_flag=True, help="Wait for another run in the same directory instead of giving up.")
@click.option(
    "--work",
    type=ANY_DIRECTORY,
    help="Where a run that is published to a URL works [default: a directory of the user's cache].",
)
@click.option("--replace", is_flag=True, help="Replace another run that is published there.")
@verb
def run_command(as_json: bool, **options: Any) -> None:
    """Run every step of RECIPE that is not up to date, resuming where an earlier run stopped.

    The result depends on the recipe and its inputs alone, not on workers, engines or interruptions.
    """
    answer(with_progress(tokmill.run, options), as_json, _render_run)


@click.command("plan", epilog="Example: tokmill plan recipe.yaml")
@_recipe
@_out
@_until
@verb
def plan_command(as_json: bool, **options: Any) -> None:
    """Show the steps of RECIPE, which are up to date, and why the others are not."""
    answer(tokmill.plan(**options), as_json, _render_plan)


def _render_plan(plan: Plan) -> None:
    for name, reasons in plan.steps.items():
        mark = "[yellow]run[/]" if reasons else "[green]  ✓[/]"
        out.print(f"{mark} {escape(name):<26} {escape('; '.join(reasons[:4])) or 'up to date'}")


def _up_to_date(steps: int) -> str:
    return f"{plural(steps, 'step')} {'is' if steps == 1 else 'are'} up to date"


def _render_run(result: RunResult) -> None:
    if not result.ran:
        out.print(f"nothing to do: {_up_to_date(len(result.skipped))} ({result.seconds:.2f} s)")
    else:
        out.print(
            f"{escape(result.recipe)}: {plural(len(result.ran), 'step')} run, {len(result.skipped):,} up to date, "
            f"{result.seconds:.1f} s → {escape(str(result.out))}"
        )
    published = result.published
    if published is not None:
        sent = (
            f"{published.sent:,} of {plural(published.files, 'file')} sent"
            if published.sent
            else "was there already"
        )
        out.print(f"published: {sent} → {escape(published.url)}")
    if result.ran or published is not None:
        place = published.url if published is not None else str(result.out)
        err.print(f"[dim]prove it with: tokmill verify {escape(place)}[/]")
