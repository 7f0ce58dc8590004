"""`tokmill verify`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from tokmill.audit.verify import verify
from tokmill.cli.console import err, json_option, out, print_json, reports_errors


@click.command("verify", epilog="Example: tokmill verify out/demo --json")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@json_option
@reports_errors
def verify_command(directory: Path, as_json: bool) -> None:
    """Read every byte below DIRECTORY (a run, or any artifact of it) and prove it against its manifests.

    Exit status 1 when anything is damaged, missing, extra or edited. The digest stands for the content of
    all artifacts: two runs are equal when their digests are.
    """
    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bars:
        bar = bars.add_task("verifying", total=None)
        result = verify(directory, on_bytes=lambda done, total: bars.update(bar, completed=done, total=total))
    if as_json:
        print_json(result.as_json())
    else:
        for problem in result.problems:
            out.print(f"[red]✗[/] {escape(str(problem))}")
        if result.ok:
            out.print(
                f"[green]✓[/] {result.artifacts} artifacts, {result.files} files, {result.bytes:,} bytes: all proven"
            )
        out.print(f"digest {result.digest}")
    raise SystemExit(0 if result.ok else 1)
