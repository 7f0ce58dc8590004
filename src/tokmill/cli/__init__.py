"""The command line: parse, call, render. One file per group of verbs, loaded when its verb is used.

`tokmill --help` must stay quick, so the table below holds each verb's summary and nothing else is imported.
"""

from __future__ import annotations

import difflib
import importlib
import re
from typing import Any

import click

from tokmill.cli.talking import add_talking, begin, guard_streams
from tokmill.engines.collector import spare_collector
from tokmill.errors import TokmillError

_VERBS = {
    "run": ("tokmill.cli.run", "Mill a recipe: raw text to verified tokens."),
    "plan": ("tokmill.cli.run", "Show what `run` would do, and why."),
    "verify": ("tokmill.cli.verify", "Prove every file of a run, or find what is wrong."),
    "fetch": ("tokmill.cli.status", "Bring a published run, or one build of it, to a directory."),
    "why": ("tokmill.cli.documents", "Tell the history of a document, or show what was dropped."),
    "whatif": ("tokmill.cli.report", "Say what other bounds would keep and drop."),
    "check": (
        "tokmill.cli.verify",
        "Try a build as a trainer would: files, ids, masks, one batch learnt by heart.",
    ),
    "peek": ("tokmill.cli.documents", "Show the text of a row of a build."),
    "trace": ("tokmill.cli.documents", "Find the characters behind a token, or the tokens of a document."),
    "diff": ("tokmill.cli.report", "Say what differs between two runs, and why."),
    "forget": ("tokmill.cli.forget", "Take documents down: out of every file of a run."),
    "report": ("tokmill.cli.report", "Write what a run did, as a page to read and as figures."),
    "review": ("tokmill.cli.report", "Say what is wrong with a run, a build or a recipe, with numbers."),
    "status": ("tokmill.cli.status", "Say how far a run is, or why it ended."),
    "ingest": ("tokmill.cli.ingest", "Bring one source in, and nothing more."),
    "normalize": ("tokmill.cli.clean", "Normalize the texts of files."),
    "filter": ("tokmill.cli.clean", "Filter files by measured rules, language and licence."),
    "dedup": ("tokmill.cli.dedup", "Keep one of several documents that say the same."),
    "clusters": ("tokmill.cli.dedup", "Show the largest clusters of near duplicates."),
    "sample": ("tokmill.cli.ingest", "Take some documents of some files, honestly."),
    "encode": ("tokmill.cli.tokens", "Encode a sample, or a corpus, into a token cache."),
    "pack": ("tokmill.cli.tokens", "Lay documents into rows, or compare the ways to."),
    "shard": ("tokmill.cli.tokens", "Tokenize each dataset of a mixture into .npy shards."),
    "build": ("tokmill.cli.tokens", "Build training data from a corpus, to a token budget."),
    "materialize": (
        "tokmill.cli.snapshots",
        "Write a corpus that travels: shards, and a manifest to commit.",
    ),
    "select": ("tokmill.cli.snapshots", "Choose shards of such a corpus."),
    "tokenizer": ("tokmill.cli.tokenizer", "Train, check and compare tokenizers."),
    "hub": ("tokmill.cli.ingest", "Look at datasets of the Hugging Face hub."),
    "recipe": ("tokmill.cli.recipe", "Check, describe, start or import a recipe."),
    "demo": ("tokmill.cli.recipe", "Mill a small corpus that every machine has."),
    "doctor": ("tokmill.cli.status", "Versions, resources, and a self-test."),
}

# These work on a directory of this machine, and say so to a URL before click asks whether it exists.
_WORK_HERE = {
    "why",
    "whatif",
    "check",
    "peek",
    "trace",
    "diff",
    "forget",
    "report",
    "review",
    "status",
    "clusters",
}


class _Verbs(click.Group):
    def __call__(self, *args: Any, **options: Any) -> Any:
        spare_collector()
        guard_streams()
        try:
            return super().__call__(*args, **options)
        except (
            TokmillError
        ) as error:  # met outside of any verb, which tell their own: --help into a full disk
            click.echo(f"{type(error).__name__} {error}", err=True)
            raise SystemExit(1) from None

    def list_commands(self, context: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _VERBS:
            return None
        command: click.Command = getattr(importlib.import_module(_VERBS[name][0]), f"{name}_command")
        return add_talking(command)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in _VERBS.items()])

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in _WORK_HERE and any(re.match(r"(s3|gs|az|memory)://", word) for word in args[1:]):
            hint = "Bring the run here first: tokmill fetch URL DIRECTORY"
            raise click.UsageError(f"`{args[0]}` works on a directory of this machine. {hint}", context)
        begin(args)
        try:
            return super().resolve_command(context, args)
        except click.UsageError:
            near = difflib.get_close_matches(args[0], _VERBS, n=1)
            hint = f" Did you mean `{near[0]}`?" if near else ""
            raise click.UsageError(f"No such command `{args[0]}`.{hint}", context) from None


@click.command(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="tokmill")
def main() -> None:
    """Raw text in, training-ready tokens out: reproducible to the byte, and able to answer for every
    document and every token.

    \b
    Start here:
      tokmill demo                    a complete run on a corpus that needs no download
      tokmill recipe init             write a recipe of your own
      tokmill run recipe.yaml         mill it
      tokmill verify out/NAME         prove it
    """


add_talking(main)
