"""`tokmill doctor`."""

from __future__ import annotations

import click
from rich.markup import escape

from tokmill.audit.doctor import examine
from tokmill.cli.console import json_option, out, print_json, reports_errors


@click.command("doctor", epilog="Example: tokmill doctor --storage s3://bucket/runs --json")
@click.option("--storage", metavar="URL", help="Ask this object store too whether it keeps its promises.")
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
