"""`tokmill verify` and `tokmill check`: are the bytes those of the manifests, and can a build be trained on?

`tokmill status`, `fetch` and `doctor`: how far a run is, how to get a published one, and what this machine can.
"""

from __future__ import annotations

from pathlib import Path

import click
from rich.markup import escape

from tokmill.audit.check import STEPS, check_build
from tokmill.audit.status import FAILED, FINISHED, RUNNING, Status, StepStatus, examine, status
from tokmill.audit.verify import verify
from tokmill.cli.console import (
    choice_option,
    err,
    hooks_option,
    json_option,
    open_byte_bar,
    out,
    print_json,
    reports_errors,
)
from tokmill.errors import plural
from tokmill.publish.publication import fetch


@click.command("verify", epilog="Example: tokmill verify demo/out --json")
@click.argument("directory", metavar="DIRECTORY|MANIFEST|URL")
@click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory that holds corpora/ [default: where manifests/ lies].",
)
@json_option
@reports_errors
def verify_command(directory: str, root: Path | None, as_json: bool) -> None:
    """Read every byte below DIRECTORY, or of the run published at URL, and prove it against its manifests.

    DIRECTORY is a run or any artifact of it, a build, a materialized root, a sample, a token cache, or what normalize
    and filter wrote. MANIFEST is that of a corpus or of a selection: the shards that it lists are proven.

    Exit status 1 when anything is damaged, missing, extra or edited. The digest stands for the content of
    all artifacts: two runs are equal when their digests are.
    """
    with open_byte_bar("verifying") as on_bytes:
        result = verify(directory, on_bytes=on_bytes, root=root)
    if as_json:
        print_json(result.as_json())
    else:
        for problem in result.problems:
            out.print(f"[red]✗[/] {escape(str(problem))}")
        if result.ok:
            out.print(
                f"[green]✓[/] {plural(result.artifacts, 'artifact')}, {plural(result.files, 'file')}, "
                f"{plural(result.bytes, 'byte')}: all proven"
            )
        out.print(f"digest {result.digest}")
    raise SystemExit(0 if result.ok else 1)


_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("check", epilog="Example: tokmill check demo/out/build/rows")
@click.argument("build", type=click.Path(file_okay=False, exists=True, path_type=Path))
@choice_option(
    "--verify",
    choices=["sizes", "hashes"],
    default="sizes",
    help="Compare the sizes of files with the manifest, or every byte.",
)
@click.option(
    "--steps",
    type=click.IntRange(0),
    default=STEPS,
    show_default=True,
    help="Training steps to overfit one batch in, at most; 0: skip that check.",
)
@click.option("--manifest", type=_FILE, help="Manifest of the build, where it is not beside it.")
@click.option("--tokenizer", type=_FILE, help="Tokenizer file of the build, where it is not beside it.")
@hooks_option
@json_option
@reports_errors
def check_command(
    build: Path,
    verify: str,
    steps: int,
    manifest: Path | None,
    tokenizer: Path | None,
    hooks: Path | None,
    as_json: bool,
) -> None:
    """Open BUILD (or one split of it) as a trainer does and try it: files, facts, range of ids, ends of documents, sizes
    of splits, whether their documents are those that belong there, shapes, targets and masks of a batch, and whether a
    small model can overfit that one batch.

    Exit status 1 when anything is not in order.
    """
    with err.status("opening") as status:
        checked = check_build(
            build,
            verify="hashes" if verify == "hashes" else "sizes",
            steps=steps,
            manifest=manifest,
            tokenizer=tokenizer,
            hooks=hooks,
            on_check=lambda split, check: status.update(f"{split}: {check}"),
        )
    if as_json:
        print_json(checked.as_json())
    else:
        for finding in checked.findings:
            mark = "[green]✓[/]" if finding.ok else "[red]✗[/]"
            out.print(f"{mark} {escape(finding.split):<8} {finding.check:<8} {escape(finding.detail)}")
    raise SystemExit(0 if checked.ok else 1)


_COLOURS = {FINISHED: "green", RUNNING: "cyan", FAILED: "red"}
_MARKS = {"done": "[green]✓[/]", "running": "[cyan]▸[/]", "begun": "[yellow]…[/]", "waiting": "[dim]·[/]"}


@click.command("status", epilog="Example: tokmill status demo/out --json")
@click.argument("directory", type=click.Path(file_okay=False, exists=True, path_type=Path))
@json_option
@reports_errors
def status_command(directory: Path, as_json: bool) -> None:
    """Say how far the run in DIRECTORY is: steps, shards done, rate, time left, the last error.

    Works while it runs, after it ended and after it died. Changes nothing. Exit status 1 if it failed or stopped.
    """
    found = status(directory)
    if as_json:
        print_json({"ok": found.state in (FINISHED, RUNNING), **found.as_json()})
    else:
        _render(found)
    raise SystemExit(0 if found.state in (FINISHED, RUNNING) else 1)


def _render(found: Status) -> None:
    colour = _COLOURS.get(found.state, "yellow")
    took = f", {_time(found.seconds)}" if found.seconds is not None else ""
    out.print(
        f"[bold]{escape(found.recipe)}[/]  [{colour}]{found.state}[/]  {found.done} of {plural(len(found.steps), 'step')}{took}"
    )
    for step in found.steps:
        _render_step(step)
    if found.shards_per_second is not None and found.seconds_left is not None:
        out.print(
            f"{found.shards_per_second:.3g} shards/s; the running steps need about {_time(found.seconds_left)} more"
        )
    if found.holder is not None:
        out.print(f"[dim]{escape(found.holder)}[/]")
    if found.error is not None:
        where = f"{found.error['where']}: " if found.error["where"] else ""
        out.print(f"[red]{escape(found.error['kind'])}[/] {escape(where + found.error['what'])}")
        if found.error["next"]:
            out.print(f"  next: {escape(found.error['next'])}")
    elif found.state not in (FINISHED, RUNNING):
        out.print(
            "[dim]no error was recorded: it was killed, or the machine stopped; run the recipe again to resume[/]"
        )


def _render_step(step: StepStatus) -> None:
    shards = _shards(step)
    seconds = "" if step.seconds is None else _time(step.seconds)
    out.print(
        f"{_MARKS.get(step.state, '[red]✗[/]')} {escape(step.step):<26} {step.state:<8} {shards:<22} {seconds:>10}  "
        f"[dim]{escape(step.detail)}[/]"
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


@click.command("doctor", epilog="Example: tokmill doctor --storage s3://bucket/runs --json")
@click.option("--storage", metavar="URL", help="Also test conditional writes of this object store.")
@json_option
@reports_errors
def doctor_command(storage: str | None, as_json: bool) -> None:
    """Show versions, cores, memory and disk, which optional packages are there, and whether every codec
    gives back what it was given.

    With --storage a few small objects are written below URL and deleted again. A store that takes conditional writes
    without keeping their condition is found out: it pretends, and runs must not be published there.
    """
    report = examine(storage)
    if as_json:
        print_json(report.as_json())
    else:
        for title, rows in report.sections.items():
            out.print(f"[bold]{escape(title)}[/]")
            for name, value in rows.items():
                out.print(f"  {name:<22} {escape(value)}")
        out.print("[green]✓ all self-tests passed[/]" if report.ok else "[red]✗ a self-test failed[/]")
    raise SystemExit(0 if report.ok else 1)


@click.command("fetch", epilog="Example: tokmill fetch s3://bucket/runs/demo out/demo --build rows")
@click.argument("url")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--build", metavar="NAME", help="One build and its tokenizer [default: the whole run].")
@json_option
@reports_errors
def fetch_command(url: str, directory: Path, build: str | None, as_json: bool) -> None:
    """Download the run that is published at URL to DIRECTORY, every file checked against its manifest.

    An interrupted fetch resumes.
    """
    with open_byte_bar("fetching") as on_bytes:
        result = fetch(url, directory, build=build, on_bytes=on_bytes)
    if as_json:
        print_json(result.as_json())
        return
    kept = f", {result.reused:,} of them were there" if result.reused else ""
    out.print(
        f"{plural(result.files, 'file')}, {plural(result.bytes, 'byte')}{kept} → {escape(str(result.directory))}"
    )
    err.print(f"[dim]prove it with: tokmill verify {escape(str(result.directory))}[/]")
