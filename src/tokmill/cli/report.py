"""`tokmill report`."""

from __future__ import annotations

from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from tokmill.audit.cards import write_cards
from tokmill.audit.report.verbs import is_of_verbs, report_verbs
from tokmill.audit.report.writing import report
from tokmill.cli.console import err, json_option, out, print_json, reports_errors


@click.command("report", epilog="Example: tokmill report demo/out --out report.html --cards")
@click.argument("directory", type=click.Path(file_okay=False, exists=True, path_type=Path))
@click.option(
    "--out",
    "target",
    type=click.Path(path_type=Path),
    help="The page, or a directory for it [default: report.html in DIRECTORY]. The figures go beside it.",
)
@click.option("--cards", is_flag=True, help="Also write DATACARD.md and croissant.json, for publishing.")
@json_option
@reports_errors
def report_command(directory: Path, target: Path | None, cards: bool, as_json: bool) -> None:
    """Write what the run in DIRECTORY did as one page to read (report.html) and as figures (report.json).

    The page needs no network and can be passed on as it is. A run that was cut short is reported as far as it got.
    Where DIRECTORY is not a run but holds what normalize, filter, dedup, pack, shard, build or encode have written, the
    report is over their manifests: documents, drops and tokens by domain of every step.
    """
    if is_of_verbs(directory):
        if cards:
            raise click.UsageError("--cards are of the run of a recipe")
        _report_verbs(directory, target, as_json)
        return
    with err.status("reading the run …"):
        made = report(directory, target)
        written = write_cards(directory, made.page.parent, made.facts) if cards else None
    if as_json:
        print_json({"ok": True, **made.as_json(), **(written.as_json() if written else {})})
        return
    paths = [made.page, made.figures, *(written or ())]
    for path in paths:
        out.print(f"{path.stat().st_size:>12,} bytes  {escape(str(path))}")
    for step in made.facts["run"]["missing"]:
        err.print(f"[yellow]not finished[/]: {escape(step)} has no artifact")


def _report_verbs(directory: Path, target: Path | None, as_json: bool) -> None:
    made = report_verbs(directory, target)
    if as_json:
        print_json({"ok": True, **made.as_json(), "steps": made.facts["steps"]})
        return
    table = Table("step", "kind", "documents in", "kept", "tokens", "dropped")
    for step in made.facts["steps"]:
        tokens = f"{step['tokens']:,}" if step["tokens"] is not None else f"~{step['est_tokens'] or 0:,}"
        reasons = sorted(step["drops"].items(), key=lambda item: (-item[1], item[0]))
        drops = ", ".join(f"{count:,} {reason}" for reason, count in reasons[:3])
        more = f" and {len(reasons) - 3} more" if len(reasons) > 3 else ""
        came, kept = (f"{step[key]:,}" if step[key] is not None else "" for key in ("docs_in", "docs"))
        table.add_row(escape(step["name"]), step["kind"], came, kept, tokens, escape(drops + more))
    out.print(table)
    for path in (made.page, made.figures):
        out.print(f"{path.stat().st_size:>12,} bytes  {escape(str(path))}")
