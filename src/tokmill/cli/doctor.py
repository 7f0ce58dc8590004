"""`tokmill doctor`."""

from __future__ import annotations

import click
from rich.markup import escape

from tokmill.audit.doctor import examine
from tokmill.cli.console import json_option, out, print_json, reports_errors


@click.command("doctor", epilog="Example: tokmill doctor --json")
@json_option
@reports_errors
def doctor_command(as_json: bool) -> None:
    """Show versions, cores, memory and disk, which optional packages are there, and whether every codec
    gives back what it was given."""
    report = examine()
    if as_json:
        print_json(report.as_json())
    else:
        for title, rows in report.sections.items():
            out.print(f"[bold]{title}[/]")
            for name, value in rows.items():
                out.print(f"  {name:<22} {escape(value)}")
        out.print("[green]✓ all self-tests passed[/]" if report.ok else "[red]✗ a self-test failed[/]")
    raise SystemExit(0 if report.ok else 1)
