"""`tokmill verify`."""

from __future__ import annotations

import click
from rich.markup import escape

from tokmill.audit.verify import verify
from tokmill.cli.byte_bar import open_byte_bar
from tokmill.cli.console import json_option, out, print_json, reports_errors


@click.command("verify", epilog="Example: tokmill verify demo/out --json")
@click.argument("directory", metavar="DIRECTORY|URL")
@json_option
@reports_errors
def verify_command(directory: str, as_json: bool) -> None:
    """Read every byte below DIRECTORY (a run, or any artifact of it), or of the run published at URL, and prove it
    against its manifests.

    Exit status 1 when anything is damaged, missing, extra or edited. The digest stands for the content of
    all artifacts: two runs are equal when their digests are.
    """
    with open_byte_bar("verifying") as told:
        result = verify(directory, on_bytes=told)
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
