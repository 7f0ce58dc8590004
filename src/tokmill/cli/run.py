"""`tokmill run` and `tokmill plan`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.markup import escape

from tokmill.cli.console import (
    choice_option,
    err,
    json_option,
    open_progress,
    out,
    print_json,
    reports_errors,
)
from tokmill.cli.source_options import workers_option
from tokmill.engines.local import EngineName
from tokmill.errors import plural
from tokmill.pipeline.plan import plan_steps, steps_until
from tokmill.pipeline.run import RunResult, default_out, run
from tokmill.pipeline.run_manifest import review_plan
from tokmill.publish.publication import RUN, default_work
from tokmill.recipe.file import load_recipe
from tokmill.storage.location import is_url, parse_url

_recipe = click.argument("recipe", type=click.Path(exists=True, dir_okay=False, path_type=Path))
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
@choice_option(
    "--engine",
    choices=["local", "ray", "dask"],
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
    type=click.Path(file_okay=False, path_type=Path),
    help="Where a run that is published to a URL works [default: a directory of the user's cache].",
)
@click.option("--replace", is_flag=True, help="Replace another run that is published there.")
@json_option
@reports_errors
def run_command(
    recipe: Path,
    out: str | None,
    workers: int | None,
    engine: EngineName,
    address: str | None,
    memory: str | None,
    until: str | None,
    wait: bool,
    work: Path | None,
    replace: bool,
    as_json: bool,
) -> None:
    """Run every step of RECIPE that is not up to date, resuming where an earlier run stopped.

    The result depends on the recipe and its inputs alone, not on workers, engines or interruptions.
    """
    with open_progress() as progress:
        result = run(
            recipe,
            out,
            workers=workers,
            engine=engine,
            address=address,
            memory=memory,
            until=until,
            wait=wait,
            work=work,
            replace=replace,
            progress=progress,
        )
    if as_json:
        print_json({"ok": True, **result.as_json()})
    else:
        _render(result)


@click.command("plan", epilog="Example: tokmill plan recipe.yaml")
@_recipe
@_out
@_until
@json_option
@reports_errors
def plan_command(recipe: Path, out: str | None, until: str | None, as_json: bool) -> None:
    """Show the steps of RECIPE, which are up to date, and why the others are not."""
    loaded = load_recipe(recipe)
    base = recipe.resolve().parent
    steps = plan_steps(loaded, base, _directory_of(out) if out else default_out(loaded, base))
    reviewed = review_plan(steps_until(steps, until))
    if as_json:
        rows = [
            {"step": s.name, "current": freshness.is_current, "reasons": freshness.reasons}
            for s, freshness in reviewed
        ]
        print_json({"ok": True, "recipe": loaded.name, "steps": rows})
        return
    for step, freshness in reviewed:
        _render_step(step.name, freshness.reasons)


def _directory_of(out: str) -> Path:
    """Where a run with this --out works."""
    return default_work(parse_url(out)) / RUN if is_url(out) else Path(out)


def _render_step(name: str, reasons: list[str]) -> None:
    mark = "[yellow]run[/]" if reasons else "[green]  ✓[/]"
    out.print(f"{mark} {escape(name):<26} {escape('; '.join(reasons[:4])) or 'up to date'}")


def _up_to_date(steps: int) -> str:
    return f"{plural(steps, 'step')} {'is' if steps == 1 else 'are'} up to date"


def _render(result: RunResult) -> None:
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
