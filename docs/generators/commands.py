"""Every verb of the command line as it is: what click parses is what is written here.

tokmill.cli.main ─ verbs ─ subcommands ─> a page per verb: usage, words of its help,
                                          arguments, options, example
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator

import click

from tokmill.cli import GROUPS, main
from tokmill.reference.markup import code, fenced, page, table, text

DIRECTORY = "reference/commands"

_NEXT_EXAMPLE = re.compile(r"(?:;\s*|\n\s*|\s{2,})(?=tokmill )")


def pages() -> dict[str, str]:
    verbs = list(_verbs())
    made = {f"{DIRECTORY}/index.md": _index(verbs)}
    for name, verb in verbs:
        made[f"{DIRECTORY}/{name}.md"] = page(f"# tokmill {name}", *_describe(name, verb))
    return made


def verb_paths() -> list[str]:
    """The pages of the verbs, in the order of `tokmill --help`."""
    return [f"{DIRECTORY}/{name}.md" for name, _ in _verbs()]


def _verbs() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(main, info_name="tokmill")
    for name in main.list_commands(context):
        verb = main.get_command(context, name)
        assert verb is not None, f"{name} is listed and cannot be loaded"
        yield name, verb


def _index(verbs: list[tuple[str, click.Command]]) -> str:
    return page(
        "# Commands",
        "",
        "Results go to stdout, messages to stderr. With `--json` stdout holds one JSON object, errors "
        "too. `-h` and `--help` work everywhere; [exit statuses](../errors.md#exit-status) say how it went.",
        *(part for title, names in GROUPS.items() for part in _group(title, names, dict(verbs))),
        "",
        "## Shell completion",
        "",
        '`eval "$(_TOKMILL_COMPLETE=bash_source tokmill)"`, or `zsh_source`, or `fish_source`.',
    )


def _group(title: str, names: Iterable[str], verbs: dict[str, click.Command]) -> Iterator[str | list[str]]:
    yield ["", f"## {title}"]
    yield table(
        ("command", "what it does"),
        ((f"[`tokmill {name}`]({name}.md)", text(_first_line(verbs[name]))) for name in names),
    )


def _describe(path: str, command: click.Command) -> Iterator[list[str]]:
    context = click.Context(command, info_name=f"tokmill {path}")
    pieces = [piece for piece in command.collect_usage_pieces(context) if piece]
    yield fenced(" ".join([f"tokmill {path}", *pieces]), "text")
    yield list(_help(command))
    shown = [param for param in command.params if not getattr(param, "hidden", False)]
    arguments = [param for param in shown if isinstance(param, click.Argument)]
    options = [param for param in shown if isinstance(param, click.Option)]
    yield table(
        ("argument", "what"), ((code(a.human_readable_name), _argument(a, context)) for a in arguments)
    )
    yield table(("option", "value", "default", "what"), (_option(o, context) for o in options))
    if command.epilog:
        yield _examples(command.epilog)
    if isinstance(command, click.Group):
        for name, inner in sorted(command.commands.items()):
            yield ["", f"## tokmill {path} {name}"]
            yield from _describe(f"{path} {name}", inner)


def _help(command: click.Command) -> Iterator[str]:
    """The paragraphs of the docstring; one that is marked \\b is laid out by hand and stays so."""
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        lines = paragraph.split("\n")
        if lines[0] == "\b":
            yield from fenced("\n".join(lines[1:]), "text")
        else:
            yield text(" ".join(lines))
            yield ""


def _argument(argument: click.Argument, context: click.Context) -> str:
    told = [_kind(argument, context)]
    if not argument.required:
        told.append("may be left out")
    if argument.nargs == -1:
        told.append("one or more" if argument.required else "any number")
    return ", ".join(told)


def _option(option: click.Option, context: click.Context) -> tuple[str, str, str, str]:
    names = ", ".join(code(name) for name in option.opts)
    if option.secondary_opts:
        names += " / " + ", ".join(code(name) for name in option.secondary_opts)
    words = [text(option.help)] if option.help else []
    if option.required:
        words.append("**Required.**")
    if option.multiple and "repeat" not in (option.help or "").lower():
        words.append("May be repeated.")
    value = "" if option.is_flag or option.count else _kind(option, context)
    return names, value, _default(option), " ".join(words)


def _kind(param: click.Parameter, context: click.Context) -> str:
    kind = param.type
    if isinstance(kind, click.Choice):
        return " \\| ".join(code(str(choice)) for choice in kind.choices)
    if isinstance(kind, click.IntRange):
        low = "" if kind.min is None else f" from {kind.min:,}"
        high = "" if kind.max is None else f" to {kind.max:,}"
        return f"whole number{low}{high}"
    if isinstance(param, click.Option) and param.metavar:
        return code(param.metavar)
    names = {"text": "text", "path": "path", "file": "file", "directory": "directory"}
    name = getattr(kind, "name", "") or ""
    return names.get(name, {"integer": "whole number", "float": "number"}.get(name, name))


def _default(option: click.Option) -> str:
    default = option.default
    if callable(default) or (
        not isinstance(default, (str, int, float)) and not hasattr(default, "__fspath__")
    ):
        return ""
    if isinstance(default, bool):
        return "on" if default and option.secondary_opts else ""
    return code(str(default))


def _examples(epilog: str) -> list[str]:
    """`Example: tokmill …; tokmill …`, one per line."""
    words = epilog.replace("\b", "").replace("Example:", "").strip()
    lines = [" ".join(line.split()) for line in _NEXT_EXAMPLE.split(words) if line.strip()]
    return ["", "**Example**", *fenced("\n".join(lines), "sh")]


def _first_line(command: click.Command) -> str:
    return " ".join(inspect.cleandoc(command.help or "").split("\n\n")[0].split())
