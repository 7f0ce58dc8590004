"""Options of the command line that several verbs share, with the names of recipe keys: the same as the arguments in Python.

@hub_options / @files_options      DATASET / PATTERNS, and how to read them
@either_options                    PATTERNS, or --hub DATASET
Amount, Escaped, TokenOrId         200M as in a recipe; \\n for a line end; a token, or its id
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from tokmill.cli.console import choice_option
from tokmill.recipe import SOURCE_FORMATS
from tokmill.recipe.section import parse_amount

Command = Callable[..., Any]


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


_READING = (
    click.option("--text", help="Field that holds the text [default: text or content]."),
    click.option(
        "--template",
        type=Escaped(),
        help='Text made from fields, e.g. "Problem: {question}\\n\\nSolution: {answer}".',
    ),
    click.option("--id-field", help="Field that holds the id [default: id or doc_id]."),
    click.option("--license-field", help="Field that holds the licence [default: license or license_tag]."),
    click.option("--created-at-field", help="Field that holds the date [default: created_at]."),
    click.option("--language-field", help="Field that holds the language, which is kept."),
    click.option(
        "--meta", multiple=True, metavar="FIELD", help="Keep this field in `meta`; may be repeated."
    ),
    click.option("--license", help="Licence of documents that carry none."),
    click.option(
        "--where", multiple=True, metavar="FIELD=VALUE", help="Keep records whose field has this value."
    ),
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
    click.option(
        "--split",
        default="train",
        show_default=True,
        help="Split of the dataset, or several: train+validation.",
    ),
    click.option(
        "--revision", help="Branch, tag or commit; resolved to its commit once and recorded [default: main]."
    ),
    click.option("--require-pin", is_flag=True, help="Refuse a revision that is not 40 hex digits."),
    *_READING,
)

_FILES = (
    click.argument("patterns", nargs=-1, required=True),
    click.option("--name", help="Name of the source, also for records that carry another [default: files]."),
    choice_option(
        "--format",
        choices=["records", *SOURCE_FORMATS],
        default="records",
        help="What the files are; records are JSON lines, Parquet or plain text, by their suffix.",
    ),
    click.option(
        "--option",
        multiple=True,
        metavar="KEY=VALUE",
        help="An option of that format, as in a recipe.",
    ),
    *_READING,
)

# files, or with --hub a dataset
_EITHER: tuple[Callable[[Command], Command], ...] = (
    click.argument("patterns", nargs=-1),
    *_FILES[1:],
    click.option("--hub", metavar="DATASET", help="Read this dataset of the hub, and no files."),
    *(option for option in _HUB[1:] if option not in _READING),
)

workers_option = click.option(
    "--workers",
    type=click.IntRange(1),
    envvar="TOKMILL_WORKERS",
    help="Processes [default: TOKMILL_WORKERS, or the cores available].",
)

replace_option = click.option(
    "--replace", is_flag=True, help="Replace a finished result that was made with other options."
)


def hub_options(command: Command) -> Command:
    return with_options(_HUB, command)


def files_options(command: Command) -> Command:
    return with_options(_FILES, command)


def either_options(command: Command) -> Command:
    return with_options(_EITHER, command)


def with_options(options: Sequence[Callable[[Command], Command]], command: Command) -> Command:
    for option in reversed(options):
        command = option(command)
    return command
