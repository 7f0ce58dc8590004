"""`tokmill fetch`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.markup import escape

from tokmill.cli.byte_bar import open_byte_bar
from tokmill.cli.console import err, json_option, out, print_json, reports_errors
from tokmill.fetching import fetch


@click.command("fetch", epilog="Example: tokmill fetch s3://bucket/runs/demo out/demo --build rows")
@click.argument("url")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option("--build", metavar="NAME", help="One build and its tokenizer [default: the whole run].")
@json_option
@reports_errors
def fetch_command(url: str, directory: Path, build: str | None, as_json: bool) -> None:
    """Bring the run that is published at URL to DIRECTORY, every file checked against its manifest.

    A fetch that was cut short goes on where it stopped.
    """
    with open_byte_bar("fetching") as told:
        result = fetch(url, directory, build=build, on_bytes=told)
    if as_json:
        print_json(result.as_json())
        return
    kept = f", {result.reused:,} of them were there" if result.reused else ""
    out.print(f"{result.files:,} files, {result.bytes:,} bytes{kept} → {escape(str(result.directory))}")
    err.print(f"[dim]prove it with: tokmill verify {escape(str(result.directory))}[/]")
