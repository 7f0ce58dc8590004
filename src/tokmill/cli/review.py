"""`tokmill review`: what is wrong with a run, a build or a recipe, with numbers."""

from __future__ import annotations

from pathlib import Path

import click
from rich.markup import escape

from tokmill.audit.review.evidence import Limits
from tokmill.audit.review.finding import SEVERITIES, Severity
from tokmill.audit.review.rendering import FORMATS, Format, render, summary
from tokmill.audit.review.reviewing import review
from tokmill.cli.amount import Amount
from tokmill.cli.console import err, json_option, out, reports_errors
from tokmill.storage.commit import commit_bytes

_STYLES = {"HIGH": "bold red", "MEDIUM": "yellow", "LOW": "cyan"}
_HEADINGS = ("Review of", "Findings", "Assumptions", "Recommendations", "Questions")


@click.command(
    "review", epilog="Example: tokmill review demo/out --model-params 124M --train-tokens 2.5B --fail-on high"
)
@click.argument("target", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="What it is written as.",
)
@click.option(
    "--out",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write it there instead of to stdout.",
)
@click.option(
    "--fail-on",
    type=click.Choice(SEVERITIES),
    help="Exit with status 1 when there is a finding of this severity, or of a worse one.",
)
@click.option("--model-params", type=Amount(), help="Parameters of the model that is to be trained: 7B.")
@click.option(
    "--train-tokens",
    type=Amount(),
    help="Tokens that it is trained on, repeats counted again: 200B [default: the build once].",
)
@click.option("--no-verify", is_flag=True, help="Do not read every byte to compare it with its sha256.")
@json_option
@reports_errors
def review_command(
    target: Path,
    form: Format,
    file: Path | None,
    fail_on: Severity | None,
    model_params: int | None,
    train_tokens: int | None,
    no_verify: bool,
    as_json: bool,
) -> None:
    """Look for what usually goes wrong with training data, in TARGET: a run, a build of it, a build by itself, or a recipe.

    Findings come by severity, each with what was measured and the bound it is held against; then what was not measured, and
    why; then what to do. Ten questions that a project asks before it trains are answered with the same figures. Nothing is
    changed. What the model is may stand in the recipe too (`review: {model_params: 7B, train_tokens: 200B}`).
    """
    form = "json" if as_json else form
    with err.status("opening") as status:
        found = review(
            target,
            model_params=model_params,
            train_tokens=train_tokens,
            limits=Limits(reads_every_byte=not no_verify),
            on_check=lambda name: status.update(f"checking {name}"),
        )
    text = render(found, form)
    if file is not None:
        commit_bytes(file, text.encode())
        out.print(f"{escape(str(file))}: {escape(summary(found))}")
    elif form == "text" and out.is_terminal:
        for line in text.splitlines():
            out.print(_colored(line))
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
