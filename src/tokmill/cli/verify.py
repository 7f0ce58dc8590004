"""`tokmill verify`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.markup import escape

from tokmill.audit.verify import verify
from tokmill.cli.byte_bar import open_byte_bar
from tokmill.cli.console import json_option, out, print_json, reports_errors


@click.command("verify", epilog="Example: tokmill verify demo/out --json")
@click.argument("directory", metavar="DIRECTORY|MANIFEST|URL")
@click.option(
    "--root",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where corpora/ lies [default: where manifests/ lies].",
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
    with open_byte_bar("verifying") as told:
        result = verify(directory, on_bytes=told, root=root)
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
