"""The command line as a tree: every verb, and every verb below one."""

from __future__ import annotations

from collections.abc import Iterator

import click

from tokmill.cli import main


def walk_verbs(
    group: click.Group = main, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, f"{name} is listed and cannot be loaded"
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from walk_verbs(command, (*path, name))
