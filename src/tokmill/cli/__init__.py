"""The command line: parse, call, render. One file per group of verbs, loaded when its verb is used.

    tokmill VERB … ─ VERBS of its file ─ options that were renamed get their new names
                   ─> its command ─> its function

A file has a table VERBS: by group of the help, each verb with its summary and the module of its function.
`tokmill --help` must stay quick, so tables are read and files are not imported (`tokmill.read_verbs`).
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import itertools
from typing import Any

import click

from tokmill import read_verbs
from tokmill.cli.output import add_output_options, begin_log, guard_streams
from tokmill.engines.own_process import collector_at_rest, spare_collector, spare_threads
from tokmill.errors import TokmillError

_TITLES = (
    "Run a recipe",
    "Look at a run",
    "Single steps, without a recipe",
    "Corpora",
    "Tokenizers",
    "Help",
)
_VERBS = read_verbs()
GROUPS = {title: {name: verb for name, verb in _VERBS.items() if verb.group == title} for title in _TITLES}

# Options that have the name of their recipe key now, or one name in all verbs: what was typed before, and
# what other projects type, still works. The value of an option without a new name is an argument.
_OUT, _TOKENIZER = {"--out-dir": "--out"}, {"--tokenizer-path": "--tokenizer"}
_SOURCE = {"--input": "", "--source": "--name"}
RENAMED = {
    "build": {**_OUT, **_TOKENIZER},
    "dedup": {**_OUT, "--near-selection": "--keep"},
    "encode": {**_TOKENIZER, "--model": "--tokenizer", "--normalize": "--unicode"},
    "ingest": {"--date-field": "--created-at-field"},
    "layouts": _TOKENIZER,
    "materialize": {**_TOKENIZER, "--root": "--out", "--date-field": "--created-at-field"},
    "normalize": {**_OUT, **_SOURCE, "--date-field": "--created-at-field"},
    "filter": {**_OUT, **_SOURCE, "--date-field": "--created-at-field"},
    "report": {**_OUT, "--input": ""},
    "shard": {**_OUT, **_TOKENIZER},
    "tokenizer": {**_OUT, "--model-type": "--model", "--output-dir": "--out"},
}

# These read JSON lines from standard input where a file is `-`,
# and write them to standard output with `--out -`.
PIPED = ("dedup", "encode", "filter", "ingest", "normalize", "sample")


_ONE_LEVEL = (
    "shards are packed at one level, so that the same texts are the same bytes; `zstd -19` packs them anew"
)

# What other projects' scripts have and no command of ours: what there is in its place.
_INSTEAD = {
    "--log-every": "progress is shown without it, on a terminal and, a line for each shard, with `-v`",
    **dict.fromkeys(("--zstd-level", "--compression-level", "--level"), _ONE_LEVEL),
}


def _with_new_names(verb: str, words: list[str], context: click.Context) -> list[str]:
    renamed, ends = RENAMED.get(verb, {}), words.index("--") if "--" in words else len(words)
    pairs = [word.partition("=") for word in words[:ends]]
    for name, _, _ in pairs:
        if name in _INSTEAD:
            raise click.UsageError(f"No such option: {name}. Leave it out: {_INSTEAD[name]}.", context)
    for (name, _, value), (after, *_) in itertools.pairwise([*pairs, ("", "", "")]):
        file = value or after
        if name == "--config" and file.endswith((".yaml", ".yml")):
            raise click.UsageError(
                "--config is a config of a dataset. A file of several sources becomes a recipe with `tokmill "
                f"recipe import {file} recipe.yaml`, and `tokmill run recipe.yaml` reads them all.",
                context,
            )
    named = [
        value if renamed.get(name) == "" else f"{renamed.get(name, name)}{sign}{value}"
        for name, sign, value in pairs
        if not (renamed.get(name) == "" and not sign)
    ]
    if verb in PIPED and "-" in named and not any(word.partition("=")[0] == "--out" for word in named):
        named.append("--out=-")  # what comes in by a pipe goes on by one
    return named + words[ends:]


def _former_pack(words: list[str]) -> list[str]:
    """`pack` was two verbs: `layouts` with --compare, else `build --flat`."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--compare", nargs="?", const="")
    parser.add_argument("--manifest")
    parser.add_argument("--out", "--out-dir", dest="out")
    parser.add_argument("--blocks", "--num-seqs", dest="blocks")
    parser.add_argument("--format", default="memmap")
    parser.add_argument("--layout", default="document")
    former, others = parser.parse_known_args(words)
    if former.compare is not None:
        return ["layouts", *filter(None, [former.compare or former.manifest]), *others]
    values = {"--manifest": former.manifest, "--out": former.out, "--blocks": former.blocks}
    given = [f"{name}={value}" for name, value in values.items() if value is not None]
    return ["build", former.format, "--flat", f"--layout={former.layout}", *given, *others]


class _Verbs(click.Group):
    def __call__(self, *args: Any, **options: Any) -> Any:
        spare_collector()
        spare_threads()
        guard_streams()
        try:
            return super().__call__(*args, **options)
        except TokmillError as error:  # outside of any verb: --help into a full disk
            click.echo(f"{error.kind} {error}", err=True)
            raise SystemExit(1) from None

    def list_commands(self, context: click.Context) -> list[str]:
        return [name for verbs in GROUPS.values() for name in verbs]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _VERBS:
            return None
        with collector_at_rest():
            command: click.Command = getattr(importlib.import_module(_VERBS[name].file), f"{name}_command")
        return add_output_options(command)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, _VERBS))
        for title, verbs in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), verb.summary) for name, verb in verbs.items()])

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        begin_log(args)
        if args[0] == "pack":
            args = _former_pack(args[1:])
        args = [args[0], *_with_new_names(args[0], args[1:], context)]
        try:
            return super().resolve_command(context, args)
        except click.UsageError:
            near = difflib.get_close_matches(args[0], _VERBS, n=1)
            hint = f" Did you mean `{near[0]}`?" if near else ""
            raise click.UsageError(f"No such command `{args[0]}`.{hint}", context) from None


_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}


@click.command(cls=_Verbs, context_settings=_SETTINGS)
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
