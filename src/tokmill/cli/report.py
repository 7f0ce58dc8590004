"""`tokmill report`, `review`, `whatif` and `diff`: a run as a whole, as figures.

report    a run ─> report.html, report.json, cards
review    a run, a build or a recipe ─> findings with numbers; --fail-on sets the exit status
whatif    a run and other thresholds ─> who would change sides
diff      two runs ─> recipe, tokenizer, documents, shares, builds; --fail-on sets the exit status
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.markup import escape
from rich.table import Table

import tokmill
from tokmill.cli.console import answer, err, out, verb
from tokmill.cli.documents import number, shown
from tokmill.cli.source_options import ANY_FILE, DIRECTORY, FILE, Amount, Here, out_option
from tokmill.errors import plural
from tokmill.reviews.finding import SEVERITIES, Severity
from tokmill.reviews.review import FORMATS, Format, render, summary
from tokmill.storage.disk import commit_bytes

if TYPE_CHECKING:
    from tokmill.artifacts.manifest import Json
    from tokmill.audit.diff import Diff, Share
    from tokmill.audit.whatif import WhatIf
    from tokmill.reports.page import Report

VERBS = {
    "Look at a run": {
        "report": ("Write what a run did, as a page to read and as figures.", "reports.verbs"),
        "review": ("Say what is wrong with a run, a build or a recipe, with numbers.", "reviews.review"),
        "whatif": ("Say what other thresholds would keep and drop.", "audit.whatif"),
        "diff": ("Say what differs between two runs, and why.", "audit.diff"),
    },
}


@click.command("report", epilog="Example: tokmill report demo/out --out report.html --cards")
@click.argument("directory", type=DIRECTORY)
@out_option(
    "the page, or a directory for it; the figures go beside it [default: report.html in DIRECTORY]",
    click.Path(path_type=Path),
)
@click.option("--cards", is_flag=True, help="Also write DATACARD.md and croissant.json, for publishing.")
@click.option("--state", type=FILE, help="State of a loader: also what was trained on by then.")
@verb
def report_command(as_json: bool, **options: Any) -> None:
    """Write what the run in DIRECTORY did as one page to read (report.html) and as figures (report.json).

    The page needs no network and can be passed on as it is. An unfinished run is reported as far as it got.
    Where DIRECTORY is not a run but holds what normalize, filter, dedup, pack, shard, build or encode have
    written, the report is over their manifests: documents, drops and tokens by domain of every step.
    """
    with err.status("reading the run …"):
        made = tokmill.report(**options)
    answer(made, as_json, _render_report)


def _render_report(made: Report) -> None:
    if "totals" not in made.facts:  # of verbs
        _render_steps(made.facts["steps"])
    for path in (made.page, made.figures, *made.cards):
        out.print(f"{plural(path.stat().st_size, 'byte'):>18}  {escape(str(path))}")
    for step in made.facts["run"]["missing"]:
        err.print(f"[yellow]not finished[/]: {escape(step)} has no artifact")


def _render_steps(steps: list[Json]) -> None:
    table = Table("step", "kind", "documents in", "kept", "tokens", "dropped")
    for step in steps:
        tokens = f"{step['tokens']:,}" if step["tokens"] is not None else f"~{step['est_tokens'] or 0:,}"
        reasons = sorted(step["drops"].items(), key=lambda item: (-item[1], item[0]))
        drops = ", ".join(f"{count:,} {reason}" for reason, count in reasons[:3])
        more = f" and {len(reasons) - 3} more" if len(reasons) > 3 else ""
        read, kept = (f"{step[key]:,}" if step[key] is not None else "" for key in ("docs_in", "docs"))
        table.add_row(escape(step["name"]), step["kind"], read, kept, tokens, escape(drops + more))
    out.print(table)


console = out  # where an option is called so
_STYLES = {"HIGH": "bold red", "MEDIUM": "yellow", "LOW": "cyan"}
_HEADINGS = ("Review of", "Findings", "Assumptions", "Recommendations", "Questions")


@click.command(
    "review", epilog="Example: tokmill review demo/out --model-params 124M --train-tokens 2.5B --fail-on high"
)
@click.argument("target", type=Here(exists=True, path_type=Path))
@click.option("--format", type=click.Choice(FORMATS), default="text", help="Output format.")
@out_option("a file [default: stdout]", ANY_FILE)
@click.option(
    "--fail-on",
    type=click.Choice(SEVERITIES),
    help="Exit with status 1 when there is a finding of this severity, or of a worse one.",
)
@click.option("--model-params", type=Amount(), help="Parameters of the model to train: 7B.")
@click.option(
    "--train-tokens",
    type=Amount(),
    help="Tokens to train it on, over all epochs: 200B [default: the build once].",
)
@click.option("--no-verify", is_flag=True, help="Do not read every byte to compare it with its sha256.")
@verb
def review_command(
    format: Format, out: Path | None, fail_on: Severity | None, as_json: bool, **options: Any
) -> None:
    """Look for what usually goes wrong with training data, in TARGET:
    a run, a build of it, a build by itself, or a recipe.

    Findings come by severity, each with what was measured and its threshold; then what was not measured, and
    why; then what to do. Ten questions that a project asks before it trains are answered with the same
    figures. Nothing is changed. What the model is may stand in the recipe too
    (`review: {model_params: 7B, train_tokens: 200B}`).
    """
    format = "json" if as_json else format
    with err.status("opening") as status:
        found = tokmill.review(**options, on_check=lambda name: status.update(f"checking {name}"))
    text = render(found, format)
    if out is not None:
        commit_bytes(out, text.encode())
        console.print(f"{escape(str(out))}: {escape(summary(found))}")
    elif format == "text" and console.is_terminal:
        for line in text.splitlines():
            console.print(_colored(line))
    else:
        click.echo(text, nl=False)
    raise SystemExit(1 if found.fails(fail_on) else 0)


def _colored(line: str) -> str:
    word = line.split(" ", 1)[0]
    if word in _STYLES:
        return f"[{_STYLES[word]}]{word}[/]{escape(line[len(word) :])}"
    if line.startswith(_HEADINGS):
        return f"[bold]{escape(line)}[/]"
    return f"[dim]{escape(line)}[/]" if line.startswith("        ") else escape(line)


_SHOWN_LINES = 40


@click.command(
    "diff", epilog="Example: tokmill diff out/monday out/tuesday --fail-on tokenizer --fail-on shares=0.01"
)
@click.argument("a", type=DIRECTORY)
@click.argument("b", type=DIRECTORY)
@click.option(
    "--fail-on",
    multiple=True,
    metavar="CHECK",
    help=(
        "Exit status 1 if this differs: recipe, tokenizer, documents, tokens, or shares=0.01. May be "
        "repeated."
    ),
)
@click.option("--all", "all", is_flag=True, help="Show shares under 0.1 % too.")
@verb
def diff_command(fail_on: tuple[str, ...], all: bool, as_json: bool, **options: Any) -> None:
    """Say what changed from the run in A to the run in B:
    recipe, tokenizer, documents with reasons, shares of tokens, and builds with their tokens by source.

    Texts are compared to the byte, as each run left them.
    """
    found = tokmill.diff(**options, fail_on=fail_on)
    answer(found, as_json, lambda found: _render_diff(found, 0 if all else _LEAST_SHARE))
    raise SystemExit(1 if found.failed else 0)


_LEAST_SHARE = 0.001


def _render_diff(found: Diff, least_share: float) -> None:
    for label, steps in zip(("A", "B"), found.missing, strict=True):
        if steps:
            err.print(f"[yellow]{label} has no[/] {shown(', '.join(steps))}")
    if found.recipe is None:
        out.print("[bold]recipe[/]  not known: a run is unfinished")
    else:
        _render_lines("recipe", found.recipe)
    _render_lines("tokenizer", found.tokenizer)
    documents = found.documents
    out.print(f"[bold]documents[/]  {documents.same:,} the same, {documents.changed:,} with another text")
    if documents.by_id:
        out.print(f"  by id alone, as a run has not cleaned them: {shown(', '.join(documents.by_id))}")
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
    for change in documents.scores:
        told = f"{change.changed:,} of {change.compared:,} documents have another"
        moved = f", mean {change.mean[0]:.4g} → {change.mean[1]:.4g}, at most by {change.largest:.4g}"
        out.print(f"[bold]{shown(change.measure)}[/]  {told}{moved if change.changed else ''}")
    splits = [", ".join(f"{name} {count:,}" for name, count in tokens.items()) for tokens in found.tokens]
    out.print(f"[bold]tokens[/]  {shown(splits[0]) or 'none'} → {shown(splits[1]) or 'none'}")
    hidden = _render_shares([share for share in found.shares if share.of == "tokens"], least_share)
    for build in found.builds:
        _render_build(build)
        built = [s for s in found.shares if s.of == build["build"] and s.group == "sources"]
        hidden += _render_shares(built, least_share)
    if hidden:
        out.print(f"[dim]{plural(hidden, 'share')} under 0.1 % not shown: --all shows them[/]")
    for check in found.failed:
        err.print(f"[red]✗[/] --fail-on {shown(check)}")


def _render_lines(label: str, lines: list[str]) -> None:
    out.print(f"[bold]{label}[/]" + ("" if lines else "  the same"))
    for line in lines[:_SHOWN_LINES]:
        out.print(f"  {shown(line)}")
    if len(lines) > _SHOWN_LINES:
        out.print(f"  [dim]and {len(lines) - _SHOWN_LINES:,} more[/]")


def _render_shares(shares: list[Share], least_share: float) -> int:
    """Those that changed; how many of them are too small to be shown."""
    changed = [share for share in shares if share.tokens[0] != share.tokens[1]]
    large = [share for share in changed if max(share.shares) >= least_share]
    for share in large:
        before, after = share.shares
        out.print(
            f"  {share.group:<10} {shown(share.name):<20} {share.tokens[0]:>14,} → {share.tokens[1]:>14,}  "
            f"{before:7.2%} → {after:7.2%}"
        )
    return len(changed) - len(large)


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


@click.command(
    "whatif",
    epilog=(
        "Example: tokmill whatif out/web --set gopher-quality.min_words=30    tokmill whatif out/web --set "
        "domains.code.chars.min=50    tokmill whatif out/web --set dedup.near.threshold=0.9"
    ),
)
@click.argument("directory", type=DIRECTORY)
@click.option(
    "--set",
    multiple=True,
    required=True,
    metavar="RULE=THRESHOLD",
    help=(
        "Another threshold for a rule, as `why` spells it, or for a measure: `words.max=9000`; before it "
        "`domains.NAME.` or `sources.NAME.`, to ask for these alone. Or `dedup.near.threshold`, by itself. "
        "May be repeated."
    ),
)
@click.option(
    "--examples",
    type=click.IntRange(0),
    default=8,
    help="Documents to show, nearest to the threshold first.",
)
@verb
def whatif_command(as_json: bool, **options: Any) -> None:
    """Say which documents of the run in DIRECTORY would change sides with other thresholds.

    Rules of cleaning are asked of the measures alone: no text is read. The threshold of near duplicates can
    be asked from that of the run upwards: the members of its clusters are compared again. The run need not be
    finished.
    """
    answer(tokmill.whatif(**options), as_json, _render_whatif)


_STEPS = {"clean": "cleaning", "scores": "percentiles", "dedup": "deduplication"}


def _render_whatif(found: WhatIf) -> None:
    for source in found.missing:
        err.print(f"[yellow]not cleaned yet[/]: {shown(source)}")
    out.print(
        f"kept {found.kept_now:,} → {plural(found.kept_then, 'document')}, "
        f"{found.chars_now:,} → {plural(found.chars_then, 'character')}, after {_STEPS[found.step]}"
    )
    for change in found.changes():
        colour = "green" if change["becomes"] == "kept" else "red"
        out.print(
            f"  [{colour}]{change['becomes']:<8}[/] {plural(change['docs'], 'document'):>18} "
            f"{plural(change['chars'], 'character'):>23}  {shown(change['reason'])}  "
            f"[dim]{shown(change['source'])}[/]"
        )
    nearest = found.nearest()
    if nearest:
        out.print("nearest to the threshold:")
    for mover in nearest:
        out.print(
            f"  {number(mover.value)} (threshold {number(mover.threshold)})  {mover.becomes}  "
            f"{shown(mover.source)} {shown(mover.doc_id)}"
        )
