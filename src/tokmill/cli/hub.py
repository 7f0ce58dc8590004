"""`tokmill hub configs`."""

from __future__ import annotations

import click
from rich.markup import escape

from tokmill.cli.console import json_option, open_progress, out, print_json, reports_errors
from tokmill.progress import told_to
from tokmill.sources.hub import list_configs


@click.group("hub", epilog="Example: tokmill hub configs HuggingFaceFW/fineweb-2 --lang eng")
def hub_command() -> None:
    """Look at datasets of the Hugging Face hub."""


@hub_command.command(
    "configs", epilog="Example: tokmill hub configs HuggingFaceFW/fineweb-2 --lang eng --script Latn"
)
@click.argument("dataset")
@click.option("--lang", help="A language tag, whole: eng is in eng_Latn and not in asm_Beng.")
@click.option("--script", help="A script tag, whole: Latn.")
@click.option("--contains", help="Plain substring of the name. Matches inside other words too.")
@click.option("--revision", help="Branch, tag or commit [default: main].")
@json_option
@reports_errors
def configs(
    dataset: str,
    lang: str | None,
    script: str | None,
    contains: str | None,
    revision: str | None,
    as_json: bool,
) -> None:
    """List the configs of DATASET, by language and script tags or by name."""
    with open_progress() as progress, told_to(progress.say):
        names = list_configs(dataset, lang=lang, script=script, contains=contains, revision=revision)
    if as_json:
        print_json({"ok": True, "dataset": dataset, "configs": names})
    else:
        for name in names:
            out.print(escape(name))
