"""`tokmill help`: a command, a key of a recipe, an error, a reason, a name of Python,
in seconds and without the site."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import click
from rich.markup import escape

import tokmill
from tokmill.artifacts.cells import short_repr
from tokmill.cli import main
from tokmill.cli.console import answer, out, verb
from tokmill.errors import InputError
from tokmill.reference.lookup import Entry, find_entries, near_words

VERBS = {
    "Help": {
        "help": ("Explain a command, a recipe key, an error or a Python name.", "cli.help"),
    },
}


@short_repr
class Help(NamedTuple):
    """All that is called by the words that were asked for."""

    topic: str
    entries: list[Entry]

    def as_json(self) -> dict[str, Any]:
        return {"topic": self.topic, "entries": [entry._asdict() for entry in self.entries]}


def help(topic: str | Sequence[str] = "") -> Help:
    """What `topic` is: a command (`recipe check`), a key of a recipe (`dedup.near.threshold`, or `threshold`
    alone), an error, a reason of the ledger, a measure, a filter pack, a variable of the environment, or a
    name of Python."""
    words = " ".join([topic] if isinstance(topic, str) else topic).split()
    words = words[1:] if words[:1] == ["tokmill"] else words
    wanted = " ".join(words)
    shown = _command_help(words)
    found = [Entry("command", " ".join(["tokmill", *words]), shown)] if shown is not None else []
    if words:
        found += find_entries(wanted)
    if not found:
        near = near_words(wanted, [*tokmill.read_verbs()])
        raise InputError(
            f"nothing is called {wanted}",
            where="tokmill help",
            next=f"did you mean {' or '.join(f'`{one}`' for one in near)}?"
            if near
            else "give a command, a recipe key, an error, a reason, a measure, a pack, a variable or a "
            "Python name; "
            "`tokmill recipe schema --markdown` has every key",
        )
    return Help(wanted, found)


def _command_help(words: Sequence[str]) -> str | None:
    """What --help prints."""
    command: click.Command | None = main
    context = click.Context(main, info_name="tokmill", **main.context_settings)
    for word in words:
        command = command.get_command(context, word) if isinstance(command, click.Group) else None
        if command is None:
            return None
        context = click.Context(command, parent=context, info_name=word)
    return command.get_help(context) if command is not None else None


@click.command("help", epilog="Example: tokmill help dedup.near.threshold\n\ntokmill help VocabTooLarge")
@click.argument("topic", nargs=-1)
@verb
def help_command(as_json: bool, **options: Any) -> None:
    """Explain TOPIC: a command, a key of a recipe (or the end of one), an error, a reason why documents are
    dropped, a measure, a filter pack, a variable of the environment, or a name of Python."""
    answer(tokmill.help(**options), as_json, _render_help)


def _render_help(found: Help) -> None:
    for number, entry in enumerate(found.entries):
        if number:
            out.print()
        if entry.kind != "command" or len(found.entries) > 1:
            out.print(f"[bold]{escape(entry.name)}[/]  [dim]{entry.kind}[/]")
        out.print(entry.text, markup=False)
