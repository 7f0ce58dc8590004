"""Options of the command line that several verbs share, with the names of recipe keys:
the same as the arguments in Python.

out_option, tokenizer_option, seed_option, workers_option      one spelling and one help in every verb that
                                                               has them
@hub_options / @files_options      DATASET / PATTERNS, and how to read them
@either_options                    PATTERNS, or --hub DATASET
FILE, DIRECTORY                    a path that must be there; ANY_FILE, ANY_DIRECTORY one that need not
Here                               a path that is no URL
Amount, Escaped, TokenOrId         200M as in a recipe; \\n for a line end; a token, or its id
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tokmill.recipe.names import SOURCE_FORMATS, parse_amount

Command = Callable[..., Any]


class Here(click.Path):
    """A path of this machine: a URL is told so, before anybody asks whether it exists."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if re.match(r"(s3|gs|az|memory)://", str(value)):
            hint = "Download the run first: tokmill fetch URL DIRECTORY"
            raise click.UsageError(f"`{ctx.info_name}` works on a directory of this machine. {hint}", ctx)
        return super().convert(value, param, ctx)


FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
DIRECTORY = Here(exists=True, file_okay=False, path_type=Path)
FILE_OR_DIRECTORY = click.Path(exists=True, path_type=Path)
ANY_PATH = click.Path(path_type=Path)
ANY_FILE = click.Path(dir_okay=False, path_type=Path)
ANY_DIRECTORY = click.Path(file_okay=False, path_type=Path)


class Amount(click.ParamType):  # type: ignore[type-arg]  # older clicks take none
    name = "amount"

    def convert(self, value: Any, param: Any, context: Any) -> int:
        try:
            return parse_amount(value)
        except ValueError as error:
            self.fail(str(error), param, context)


class Escaped(click.ParamType):  # type: ignore[type-arg]
    name = "text"

    def convert(self, value: str, param: Any, context: Any) -> str:
        return value.replace("\\n", "\n").replace("\\t", "\t")


class TokenOrId(click.ParamType):  # type: ignore[type-arg]
    name = "text"

    def convert(self, value: str | int, param: Any, context: Any) -> str | int:
        return int(value) if str(value).isdecimal() else value


text_option = click.option("--text", help="Field that holds the text [default: text or content].")

template_option = click.option(
    "--template",
    type=Escaped(),
    help='Text made from fields, e.g. "Problem: {question}\\n\\nSolution: {answer}".',
)

where_option = click.option(
    "--where", multiple=True, metavar="FIELD=VALUE", help="Keep records whose field has this value."
)

_READING = (
    text_option,
    template_option,
    click.option("--id-field", help="Field that holds the id [default: id or doc_id]."),
    click.option("--license-field", help="Field that holds the licence [default: license or license_tag]."),
    click.option("--created-at-field", help="Field that holds the date [default: created_at]."),
    click.option("--language-field", help="Field that holds the language, which is kept."),
    click.option(
        "--meta", multiple=True, metavar="FIELD", help="Keep this field in `meta`; may be repeated."
    ),
    click.option("--license", help="Licence of documents that carry none."),
    where_option,
    click.option(
        "--limit",
        multiple=True,
        metavar="UNIT=N",
        help="Read at most this much: docs=, chars=, megabytes= or tokens=.",
    ),
)

_HUB = (
    click.argument("dataset"),
    click.option("--config", help="Config of the dataset."),
    click.option("--split", default="train", help="Split of the dataset, or several: train+validation."),
    click.option(
        "--revision", help="Branch, tag or commit; resolved to its commit once and recorded [default: main]."
    ),
    click.option("--require-pin", is_flag=True, help="Refuse a revision that is not 40 hex digits."),
    *_READING,
)

_FILES = (
    click.argument("patterns", nargs=-1, required=True),
    click.option("--name", help="Name of the source, also for records that carry another [default: files]."),
    click.option(
        "--format",
        type=click.Choice(["records", *SOURCE_FORMATS]),
        default="records",
        help="What the files are; records are JSON, CSV, Parquet, Arrow or plain text, by their suffix.",
    ),
    click.option(
        "--option",
        multiple=True,
        metavar="KEY=VALUE",
        help="An option of that format, as in a recipe.",
    ),
    *_READING,
)


def out_option(what: str, type: Any = ANY_DIRECTORY, **more: Any) -> Callable[[Command], Command]:
    return click.option("--out", type=type, help=f"Output: {what}.", **more)


def tokenizer_option(note: str = "", **more: Any) -> Callable[[Command], Command]:
    told = f"Tokenizer file: tokenizer.json, .model or .tiktoken{note}."
    return click.option("--tokenizer", type=FILE_OR_DIRECTORY, help=told, **more)


def seed_option(note: str = "", **more: Any) -> Callable[[Command], Command]:
    told = f"Seed of draws and orders: another seed, another result{note}."
    return click.option("--seed", type=click.IntRange(0), help=told, **more)


workers_option = click.option(
    "--workers",
    type=click.IntRange(1),
    envvar="TOKMILL_WORKERS",
    help="Processes [default: TOKMILL_WORKERS, or the cores available].",
)

root_option = click.option(
    "--root", type=ANY_DIRECTORY, help="Directory that holds corpora/ [default: where manifests/ lies]."
)

replace_option = click.option(
    "--replace", is_flag=True, help="Replace a finished result that was made with other options."
)


def with_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Several at once, in this order."""

    def added(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return added


hub_options = with_options(*_HUB)
files_options = with_options(*_FILES)
either_options = with_options(
    click.argument("patterns", nargs=-1),
    *_FILES[1:],
    click.option("--hub", metavar="DATASET", help="Read this dataset of the hub, and no files."),
    *(option for option in _HUB[1:] if option not in _READING),
)
