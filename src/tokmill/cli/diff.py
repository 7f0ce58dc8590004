"""`tokmill diff`: what differs between two runs, and why."""

from __future__ import annotations

from pathlib import Path

import click

from tokmill.audit.diff import Diff, Share, check_names, diff, failures
from tokmill.cli.console import err, json_option, out, print_json, reports_errors
from tokmill.cli.history import shown
from tokmill.manifest import Json

_SHOWN_LINES = 40
_run = click.Path(file_okay=False, exists=True, path_type=Path)


@click.command(
    "diff", epilog="Example: tokmill diff out/monday out/tuesday --fail-on tokenizer --fail-on shares=0.01"
)
@click.argument("a", type=_run)
@click.argument("b", type=_run)
@click.option(
    "--fail-on",
    "checks",
    multiple=True,
    metavar="CHECK",
    help="Exit status 1 if this differs: recipe, tokenizer, documents, tokens, or shares=0.01. May be repeated.",
)
@json_option
@reports_errors
def diff_command(a: Path, b: Path, checks: tuple[str, ...], as_json: bool) -> None:
    """Say what changed from the run in A to the run in B: recipe, tokenizer, documents with reasons, shares of
    tokens, builds."""
    check_names(checks)
    found = diff(a, b)
    failed = failures(found, checks)
    if as_json:
        print_json({"ok": not failed, "failed": failed, **found.as_json()})
    else:
        _render(found)
        for check in failed:
            err.print(f"[red]✗[/] --fail-on {shown(check)}")
    raise SystemExit(1 if failed else 0)


def _render(found: Diff) -> None:
    for label, steps in zip(("A", "B"), found.missing, strict=True):
        if steps:
            err.print(f"[yellow]{label} has no[/] {shown(', '.join(steps))}")
    if found.recipe is None:
        out.print("[bold]recipe[/]  not known: a run was cut short")
    else:
        _render_lines("recipe", found.recipe)
    _render_lines("tokenizer", found.tokenizer)
    documents = found.documents
    out.print(f"[bold]documents[/]  {documents.same:,} the same, {documents.changed:,} with another text")
    for label, colour, counts in (
        ("came", "green", documents.came),
        ("went", "red", documents.went),
        ("moved", "yellow", documents.moved),
    ):
        for why, count in counts.items():
            names = [one["doc_id"] for one in documents.examples if (one["what"], one["why"]) == (label, why)]
            out.print(
                f"  [{colour}]{label:<6}[/] {count:>10,}  {shown(why)}  [dim]{shown(', '.join(names[:3]))}[/]"
            )
    _render_shares(found)
    for build in found.builds:
        _render_build(build)


def _render_lines(label: str, lines: list[str]) -> None:
    out.print(f"[bold]{label}[/]" + ("" if lines else "  the same"))
    for line in lines[:_SHOWN_LINES]:
        out.print(f"  {shown(line)}")
    if len(lines) > _SHOWN_LINES:
        out.print(f"  [dim]and {len(lines) - _SHOWN_LINES:,} more[/]")


def _render_shares(found: Diff) -> None:
    splits = [", ".join(f"{name} {count:,}" for name, count in tokens.items()) for tokens in found.tokens]
    out.print(f"[bold]tokens[/]  {shown(splits[0]) or 'none'} → {shown(splits[1]) or 'none'}")
    changed: list[Share] = [share for share in found.shares if share.tokens[0] != share.tokens[1]]
    for share in changed:
        before, after = share.shares
        out.print(
            f"  {share.group:<10} {shown(share.name):<20} {share.tokens[0]:>14,} → {share.tokens[1]:>14,}  "
            f"{before:7.2%} → {after:7.2%}"
        )


def _render_build(build: Json) -> None:
    before, after = build["before"], build["after"]
    if build["is_same"]:
        out.print(f"[bold]{shown(build['build'])}[/]  the same")
        return
    out.print(f"[bold]{shown(build['build'])}[/]")
    for line in build["config"] or []:
        out.print(f"  {shown(line)}")
    if before is None or after is None:
        out.print(f"  only in {'B' if before is None else 'A'}")
        return
    for name in before:
        if before[name] != after[name]:
            out.print(f"  {name:<10} {before[name]:>14,} → {after[name]:>14,}")
