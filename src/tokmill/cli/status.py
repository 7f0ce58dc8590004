"""`tokmill status`: how far a run is, or why it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.filesize import decimal
from rich.markup import escape

import tokmill
from tokmill.cli.console import answer, out, verb
from tokmill.cli.source_options import DIRECTORY
from tokmill.errors import plural

if TYPE_CHECKING:
    from tokmill.audit.status import Status, StepStatus
    from tokmill.engines.slurm_state import SlurmState

VERBS = {
    "Run a recipe": {
        "status": ("Say how far a run is, or why it ended.", "audit.status"),
    },
}

_COLOURS = {"finished": "green", "running": "cyan", "failed": "red"}
_MARKS = {"done": "[green]✓[/]", "running": "[cyan]▸[/]", "begun": "[yellow]…[/]", "waiting": "[dim]·[/]"}


@click.command("status", epilog="Example: tokmill status demo/out --json")
@click.argument("directory", type=DIRECTORY)
@verb
def status_command(as_json: bool, **options: Any) -> None:
    """Say how far the run in DIRECTORY is: steps, shards done, rate, time left, the last error.

    Works while it runs, after it ended and after it died. Changes nothing.
    Exit status 1 if it failed or stopped.
    """
    answer(tokmill.status(**options), as_json, _render_status)


def _render_status(found: Status) -> None:
    colour = _COLOURS.get(found.state, "yellow")
    took = f", {_time(found.seconds)}" if found.seconds is not None else ""
    out.print(
        f"[bold]{escape(found.recipe)}[/]  [{colour}]{found.state}[/]  {found.done} of "
        f"{plural(len(found.steps), 'step')}{took}"
    )
    for step in found.steps:
        _render_step(step)
    if found.shards_per_second is not None and found.seconds_left is not None:
        out.print(
            f"{found.shards_per_second:.3g} shards/s; the running steps need about "
            f"{_time(found.seconds_left)} more"
        )
    if found.slurm is not None:
        _render_slurm(found, found.slurm)
    if found.cache_bytes:
        out.print(f"[dim]{decimal(found.cache_bytes)} in the cache beside it, for the next run[/]")
    if found.traffic:
        requests = sum(found.traffic["requests"].values())
        out.print(
            f"[dim]store: {plural(requests, 'request')}, {decimal(found.traffic['bytes_up'])} up, "
            f"{decimal(found.traffic['bytes_down'])} down[/]"
        )
    if found.holder is not None:
        out.print(f"[dim]{escape(found.holder)}[/]")
    if found.error is not None:
        where = f"{found.error['where']}: " if found.error["where"] else ""
        out.print(f"[red]{escape(found.error['kind'])}[/] {escape(where + found.error['what'])}")
        if found.error["next"]:
            out.print(f"  next: {escape(found.error['next'])}")
    elif not found.ok:
        out.print(
            "[dim]no error was recorded: it was killed, or the machine stopped; run the recipe again to "
            "resume[/]"
        )


_SHOWN_TASKS = 10


def _render_slurm(found: Status, slurm: SlurmState) -> None:
    jobs = ", ".join(f"{count} {state}" for state, count in slurm.jobs.items()) or "none"
    why = f" ({', '.join(slurm.reasons)})" if slurm.reasons else ""
    known = [step for step in found.steps if step.state == "running" and step.shards is not None]
    left = sum((step.shards or 0) - (step.shards_done or 0) for step in known)
    at_work = slurm.at_work
    out.print(
        f"Slurm: jobs {escape(jobs + why)}; tasks {max(left - len(at_work), 0):,} waiting, {len(at_work):,} "
        f"running, {slurm.tasks_done:,} done"
    )
    for task in at_work[:_SHOWN_TASKS]:
        where = f"job {task.job} on {task.node}"
        out.print(f"  {escape(task.task):<40} {_time(task.seconds):>10}  [dim]{escape(where)}[/]")
    if len(at_work) > _SHOWN_TASKS:
        out.print(f"  … and {len(at_work) - _SHOWN_TASKS:,} more")
    out.print(f"[dim]logs: {escape(slurm.logs)}[/]")


def _render_step(step: StepStatus) -> None:
    shards = _shards(step)
    seconds = "" if step.seconds is None else _time(step.seconds)
    out.print(
        f"{_MARKS.get(step.state, '[red]✗[/]')} {escape(step.step):<26} {step.state:<8} {shards:<22} "
        f"{seconds:>10}  [dim]{escape(step.detail)}[/]"
    )


def _shards(step: StepStatus) -> str:
    if step.shards_done is None:
        return ""
    if step.shards is None:
        return f"{plural(step.shards_done, 'shard')} so far"
    return f"{step.shards_done:,} of {plural(step.shards, 'shard')}"


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
