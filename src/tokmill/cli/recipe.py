"""`tokmill recipe check | schema | init | import`, and `tokmill demo`: from nothing to a run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape

import tokmill
from tokmill.cli.console import answer, describe_counts, err, out, print_json, verb, with_progress
from tokmill.cli.run import OUT, RECIPE, SET
from tokmill.cli.source_options import ANY_FILE, FILE, out_option, workers_option
from tokmill.errors import plural
from tokmill.recipe.examples import STAND_IN
from tokmill.reference.recipe_keys import recipe_markdown

if TYPE_CHECKING:
    from tokmill.adhoc.recipes import Checked, Imported, Started
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
    },
}


@click.group("recipe", epilog="Example: tokmill recipe check recipe.yaml")
def recipe_command() -> None:
    """Check, describe, start or import a recipe."""


@recipe_command.command(
    "check",
    epilog="Example: tokmill recipe check recipe.yaml\n\ntokmill recipe check recipe.yaml --explain",
)
@RECIPE
@OUT
@SET
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
