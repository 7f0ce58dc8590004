"""The command line: parse, call, render. One file per group of verbs, loaded when its verb is used.

    tokmill VERB … ─ GROUPS names its module ─ options that were renamed get their new names ─> its command

`tokmill --help` must stay quick, so the table below holds each verb's summary and nothing else is imported.
"""

from __future__ import annotations

import difflib
import importlib
import re
from typing import Any

import click

from tokmill.cli.output import add_output_options, begin_log, guard_streams
from tokmill.engines.collector import spare_collector
from tokmill.errors import TokmillError

GROUPS = {
    "Run a recipe": {
        "demo": ("tokmill.cli.recipe", "Run a recipe over a small corpus that every machine has."),
        "recipe": ("tokmill.cli.recipe", "Check, describe, start or import a recipe."),
        "run": ("tokmill.cli.run", "Run a recipe: raw text to verified tokens."),
        "plan": ("tokmill.cli.run", "Show what `run` would do, and why."),
        "status": ("tokmill.cli.verify", "Say how far a run is, or why it ended."),
        "fetch": ("tokmill.cli.verify", "Download a published run, or one build of it."),
        "forget": ("tokmill.cli.forget", "Take documents down: out of every file of a run."),
        "doctor": ("tokmill.cli.verify", "Versions, resources, and a self-test."),
    },
    "Look at a run": {
        "verify": ("tokmill.cli.verify", "Prove every file of a run, or find what is wrong."),
        "check": (
            "tokmill.cli.verify",
            "Try a build as a trainer would: files, ids, masks, overfit one batch.",
        ),
        "report": ("tokmill.cli.report", "Write what a run did, as a page to read and as figures."),
        "review": ("tokmill.cli.report", "Say what is wrong with a run, a build or a recipe, with numbers."),
        "why": ("tokmill.cli.documents", "Show the history of a document, or what was dropped."),
        "trace": (
            "tokmill.cli.documents",
            "Find the characters behind a token, or the tokens of a document.",
        ),
        "peek": ("tokmill.cli.documents", "Show the text of a row of a build."),
        "clusters": ("tokmill.cli.dedup", "Show the largest clusters of near duplicates."),
        "whatif": ("tokmill.cli.report", "Say what other thresholds would keep and drop."),
        "diff": ("tokmill.cli.report", "Say what differs between two runs, and why."),
    },
    "Single steps, without a recipe": {
        "ingest": ("tokmill.cli.ingest", "Read one source, and nothing more."),
        "sample": ("tokmill.cli.ingest", "Draw documents from files."),
        "normalize": ("tokmill.cli.clean", "Normalize the texts of files."),
        "filter": ("tokmill.cli.clean", "Filter files by measured rules, language and licence."),
        "dedup": ("tokmill.cli.dedup", "Keep one of several documents that say the same."),
        "encode": ("tokmill.cli.tokens", "Encode a sample, or a corpus, into a token cache."),
        "pack": ("tokmill.cli.tokens", "Pack documents into rows, or compare the layouts."),
        "shard": ("tokmill.cli.tokens", "Tokenize each dataset of a mixture into .npy shards."),
        "build": ("tokmill.cli.tokens", "Build training data from a corpus, to a token budget."),
    },
    "Corpora": {
        "materialize": ("tokmill.cli.snapshots", "Write a snapshot: shards, and a manifest to commit."),
        "select": ("tokmill.cli.snapshots", "Choose shards of a snapshot."),
        "hub": ("tokmill.cli.ingest", "Look at datasets of the Hugging Face hub."),
    },
    "Tokenizers": {
        "tokenizer": ("tokmill.cli.tokenizer", "Train, check and compare tokenizers."),
    },
}

_VERBS = {name: verb for verbs in GROUPS.values() for name, verb in verbs.items()}

# These work on a directory of this machine, and say so to a URL before click asks whether it exists.
_WORK_HERE = {*GROUPS["Look at a run"], "forget", "status"} - {"verify"}

# Options that have the name of their recipe key now. What was typed before still works.
RENAMED = {
    "dedup": {"--near-selection": "--keep"},
    "encode": {"--model": "--tokenizer-path", "--normalize": "--unicode"},
    "ingest": {"--date-field": "--created-at-field"},
    "materialize": {"--date-field": "--created-at-field", "--tokenizer": "--tokenizer-path"},
    "normalize": {"--date-field": "--created-at-field"},
    "filter": {"--date-field": "--created-at-field"},
    "pack": {"--num-seqs": "--blocks"},
    "tokenizer": {"--model-type": "--model", "--output-dir": "--out-dir"},
}


def _with_new_names(verb: str, words: list[str]) -> list[str]:
    renamed, ends = RENAMED.get(verb, {}), words.index("--") if "--" in words else len(words)
    pairs = [word.partition("=") for word in words[:ends]]
    return ["".join((renamed.get(name, name), *value)) for name, *value in pairs] + words[ends:]


class _Verbs(click.Group):
    def __call__(self, *args: Any, **options: Any) -> Any:
        spare_collector()
        guard_streams()
        try:
            return super().__call__(*args, **options)
        except TokmillError as error:  # outside of any verb: --help into a full disk
            click.echo(f"{type(error).__name__} {error}", err=True)
            raise SystemExit(1) from None

    def list_commands(self, context: click.Context) -> list[str]:
        return list(_VERBS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _VERBS:
            return None
        command: click.Command = getattr(importlib.import_module(_VERBS[name][0]), f"{name}_command")
        return add_output_options(command)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, _VERBS))
        for title, verbs in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), summary) for name, (_, summary) in verbs.items()])

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in _WORK_HERE and any(re.match(r"(s3|gs|az|memory)://", word) for word in args[1:]):
            hint = "Download the run first: tokmill fetch URL DIRECTORY"
            raise click.UsageError(f"`{args[0]}` works on a directory of this machine. {hint}", context)
        begin_log(args)
        try:
            return super().resolve_command(context, [args[0], *_with_new_names(args[0], args[1:])])
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
      tokmill run recipe.yaml         run it
      tokmill verify out/NAME         prove it
    """


add_output_options(main)
