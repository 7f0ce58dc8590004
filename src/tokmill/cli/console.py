"""What every command shares: consoles, errors with advice that can be followed, progress.

out, err             results to stdout, messages to stderr (tokmill.cli.output says how many)
answer               what a function of Python returned, as JSON or for people
verb                 --json; a TokmillError ─ fit_advice ─> a message, or one object on stdout; exit status 1
open_progress        a bar per step on a terminal, a line per step elsewhere
open_byte_bar        for commands that read many bytes: how far, and how fast

An error gives its advice as keys of a recipe, since most errors are met by `tokmill run`.
For a command without a recipe, `fit_advice` names that command's options instead:

    `dtype: int32`            the command has --dtype: `--dtype int32`
                              it has not: the message adds that this is a key of recipes
    wait (`--wait` does)      the command has no --wait: left out

What can be typed stands between backticks, in every message.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ParamSpec

import click
from rich.console import Console, ConsoleDimensions
from rich.live import Live
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)
from rich.text import Text

import tokmill
from tokmill.artifacts.progress import MARK
from tokmill.cli.output import verbosity, write_log
from tokmill.engines.forking import forked_helper, forked_server, load_ahead
from tokmill.engines.own_process import collector_at_rest
from tokmill.errors import OutputLost, TokmillError, plural
from tokmill.storage.disk import system_error
from tokmill.storage.lean import spare_pandas

TYPED = re.compile(r"`([^`]+)`")
_ASIDE = re.compile(r" ?\([^()]*\)")


def fit_advice(advice: str, command: click.Command) -> str:
    options = {name for param in command.params for name in (*param.opts, *param.secondary_opts)}
    advice = _ASIDE.sub(lambda aside: "" if _names_others(aside[0], options) else aside[0], advice)
    clauses = re.split(r"(; |, or |, and )", advice)
    fitting = [at for at in range(0, len(clauses), 2) if not _names_others(clauses[at], options)]
    if fitting:
        advice = clauses[fitting[0]] + "".join(clauses[at - 1] + clauses[at] for at in fitting[1:])
    # `targets`: builds, or a recipe
    takes_recipe = any(param.name in ("recipe", "targets") for param in command.params)
    makes_without_recipe = "--out" in options and not takes_recipe
    return _with_options_for_keys(advice, options) if makes_without_recipe else advice


def _names_others(clause: str, options: set[str]) -> bool:
    """Does it ask for an option that the command does not have?"""
    return any(
        typed.startswith("--") and typed.split()[0].partition("=")[0] not in options
        for typed in TYPED.findall(clause)
    )


def _with_options_for_keys(advice: str, options: set[str]) -> str:
    from tokmill.recipe.keys import names_keys, path_of_key

    without: list[str] = []

    def fitted(found: re.Match[str]) -> str:
        path, value = path_of_key(found[1])
        *above, name = (part.replace("_", "-") for part in path)
        names = [f"--{'-'.join([*above[-1:], name])}", *([f"--{name}-field"] if above == ["fields"] else [])]
        for option in (*names, f"--{name}"):  # `tokenizer.sha256` is --tokenizer-sha256 before it is --sha256
            if f"--no{option[1:]}" in options and value in ("true", "false"):
                return f"`{option}`" if value == "true" else f"`--no{option[1:]}`"
            if option in options:
                return f"`{option} {value}`" if value else f"`{option}`"
        if names_keys(found[1]):
            without.append(found[0])
        return found[0]

    advice = TYPED.sub(fitted, advice)
    if without:
        advice += (
            f" ({', '.join(without)} in a recipe, which `tokmill recipe init` writes: this command has no "
            "option for it)"
        )
    return advice


P = ParamSpec("P")

_UNBOUNDED = ConsoleDimensions(1_000_000, 25)


class LoggedConsole(Console):
    """Prints as much as -v and -q say, and all of it to the log file. Only a terminal has a width: what goes
    elsewhere is searched and cut up by other programs, and a table has all of an id there.

    While bars are drawn, a line is printed under the lock of their display. rich moves the cursor up by the
    height of the bars, and takes that height without the lock: where its refresh thread drew fewer bars in
    between, the line above them was erased (5 of 300 in a test)."""

    _drawing: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()

    def set_live(self, live: Live) -> bool:
        is_outermost = super().set_live(live)
        if is_outermost is not False:  # None before rich 14.1, which has one display at most
            self._drawing = live._lock
        return is_outermost

    @property  # type: ignore[misc]
    def size(self) -> ConsoleDimensions:
        return super().size if self.file.isatty() else _UNBOUNDED

    def print(self, *objects: Any, markup: bool | None = None, **style: Any) -> None:
        if verbosity.log is not None:
            write_log(" ".join(_plain(shown, markup is not False) for shown in objects))
        if not (self.stderr and verbosity.is_quiet):
            with self._drawing:
                super().print(*objects, markup=markup, **style)

    def status(self, status: Any, **style: Any) -> Any:
        return contextlib.nullcontext() if verbosity.is_quiet else super().status(status, **style)


def _plain(shown: Any, has_markup: bool) -> str:
    if isinstance(shown, str):
        return Text.from_markup(shown).plain if has_markup else shown
    page = io.StringIO()  # a table
    Console(file=page, width=_UNBOUNDED.width, color_system=None, force_terminal=False).print(shown)
    return "\n" + page.getvalue().rstrip()


out = LoggedConsole(highlight=False, soft_wrap=True, emoji=False)  # a path may have :key: in it
err = LoggedConsole(stderr=True, highlight=False, soft_wrap=True, emoji=False)

hooks_option = click.option(
    "--hooks",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help=(
        "Python file that the format or tokenizer of the build is in, hooks.py:NAME of its recipe; it is run."
    ),
)


def print_json(value: Any) -> None:
    spelled = json.dumps(value, ensure_ascii=False, indent=2)
    try:
        spelled.encode((sys.stderr if out.stderr else sys.stdout).encoding)
    except UnicodeEncodeError:  # as JSON escapes it, not as a stream would
        spelled = json.dumps(value, indent=2)
    click.echo(spelled, err=out.stderr)


def results_to_stderr() -> None:
    """Until this command ends: its stdout is for documents."""
    out.stderr = True
    click.get_current_context().call_on_close(lambda: setattr(out, "stderr", False))


def with_progress(function: str, options: dict[str, Any], *, ahead: str | None = None) -> Any:
    """A function of `tokmill` by its name: it is imported below a bar, which takes half of a second. The bar
    stands still until then: one that moves is a thread, and workers are forked from a process that has
    none. What tasks need is imported first. Workers are forked from that, by a process that loads their
    kernels while this one imports the rest: at once where it is known what (`ahead`)."""
    with contextlib.ExitStack() as stack:
        with _open_bars(auto_refresh=False):
            if options.get("workers", 1) != 1:
                with collector_at_rest():
                    importlib.import_module("tokmill.stages.registry")
                spare_pandas()
                stack.enter_context(forked_server())
                if ahead is not None:
                    load_ahead(ahead)
            with collector_at_rest():
                act = getattr(tokmill, function)
            spare_pandas()
            if options.get("workers", 1) != 1:
                stack.enter_context(forked_helper())
        progress = stack.enter_context(open_progress())
        return act(**options, progress=progress)


def answer(result: Any, as_json: bool, render: Callable[[Any], None]) -> None:
    """What a function of Python returned: as one JSON object, or for people.
    Exit status 1 where it is not `ok`."""
    if as_json:
        print_json({"ok": True, **result.as_json()})
    else:
        render(result)
    if not getattr(result, "ok", True):
        raise SystemExit(1)


def verb(command: Callable[P, None]) -> Callable[P, None]:
    """What every verb has: `--json`; and a TokmillError, or a fault of the machine,
    becomes a message and exit status 1. Anything else is a bug and keeps its traceback."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except BrokenPipeError:
            raise  # whoever read our result has enough
        except (TokmillError, OSError, MemoryError) as error:
            if not isinstance(error, TokmillError):
                error = system_error(error, click.get_current_context().command_path)
            _print_error(error, as_json=bool(kwargs.get("as_json")))
            raise SystemExit(1) from None
        except KeyboardInterrupt:
            verbosity.is_quiet = False
            err.print("interrupted; the same command resumes it")
            raise SystemExit(130) from None

    return wrapped


def _print_error(error: TokmillError, *, as_json: bool) -> None:
    """With --json on stdout, unless it is stdout that is lost. The advice names options of this command."""
    error.next = fit_advice(error.next, click.get_current_context().command)
    if as_json and not isinstance(error, OutputLost):
        fault = {
            "kind": error.kind,
            "what": error.what,
            "where": error.where,
            "next": error.next,
        }
        write_log(f"{error.kind} {error}")
        print_json({"ok": False, "error": fault})
    else:
        verbosity.is_quiet = False  # an error is always printed
        err.print(f"[bold red]{error.kind}[/] {escape(str(error))}")


@contextlib.contextmanager
def open_progress() -> Iterator[RunProgress]:
    """Bars on a terminal, one line per step elsewhere."""
    with _open_bars() as progress:
        yield progress


@contextlib.contextmanager
def _open_bars(*, auto_refresh: bool = True) -> Iterator[RunProgress]:
    bars = Progress(
        TextColumn("{task.description:<24}"),
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal or verbosity.is_quiet,
        auto_refresh=auto_refresh,
    )
    with bars:
        yield RunProgress(bars)


MAX_REASONS = 4


def few_reasons(reasons: list[str]) -> str:
    """All of them with -v."""
    shown = len(reasons) if verbosity.is_verbose else MAX_REASONS
    more = [f"{len(reasons) - shown:,} more"] if len(reasons) > shown else []
    return "; ".join([*reasons[:shown], *more])


class RunProgress:
    """tokmill.artifacts.progress.Progress, drawn with rich."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._steps = bars.add_task("steps", total=None)  # moves while no step does
        self._tasks: dict[str, TaskID] = {}
        self._expected: dict[str, tuple[int, int]] = {}
        self._counted: set[str] = set()

    def say(self, message: str) -> None:
        style = "yellow" if message.startswith(MARK) else "dim"
        err.print(f"[{style}]{escape(message)}[/]")

    def plan(self, steps: Sequence[str]) -> None:
        self._bars.update(self._steps, total=len(steps), completed=0)

    def begin_step(self, name: str, reasons: list[str]) -> None:
        if reasons and (reasons != ["not built yet"] or verbosity.is_verbose):
            err.print(f"[dim]rebuilding {escape(name)}: {escape(few_reasons(reasons))}[/]")
        self._tasks[name] = self._bars.add_task(name, total=None)

    def expect_tasks(self, name: str, total: int, reused: int) -> None:
        self._bars.update(self._tasks[name], total=total, completed=reused)
        self._expected[name] = (total, reused)
        if reused and reused < total:
            self.say(f"{name}: {reused:,} of {plural(total, 'shard')} were already done")

    def finish_task(self, name: str) -> None:
        if name not in self._counted:  # that bar is of something else than tasks
            self._bars.advance(self._tasks[name])
        total, done = self._expected[name]
        self._expected[name] = (total, done + 1)
        if verbosity.is_verbose:
            self.say(f"{name}: {done + 1:,} of {plural(total, 'task')}")

    def count(self, name: str, done: int, total: int, unit: str) -> None:
        self._counted.add(name)
        self._bars.update(self._tasks[name], total=total, completed=done)

    def finish_step(self, name: str, seconds: float, counts: dict[str, object]) -> None:
        self._bars.remove_task(self._tasks.pop(name))
        if name in self._expected:  # has had tasks: it is a step
            self._bars.advance(self._steps)
        err.print(f"[green]✓[/] {escape(name):<24} {seconds:7.2f} s  {escape(describe_counts(counts))}")

    def skip_step(self, name: str) -> None:
        self._bars.advance(self._steps)
        err.print(f"[dim]= {escape(name):<24} up to date[/]")


# Tokens that a build was given and no row has, by what became of them.
_LOST = {"tail_dropped": "after the last whole row", "truncated": "truncated", "left_out": "left out"}


def describe_counts(counts: dict[str, Any]) -> str:
    """One line: how many came in, how many stayed, and why the others did not."""
    if "in" not in counts:
        return ""
    parts = [f"{counts['kept']:,} of {plural(counts['in'], 'document')}"]
    for label in ("dropped", "quarantined"):
        for reason, number in sorted(counts.get(label, {}).items()):
            parts.append(f"{label} {number:,} {reason}")
    if counts.get("repeats"):
        parts.append(plural(counts["repeats"], "repeat"))
    tokens = counts.get("tokens", {})
    if "written" in tokens:
        lost = [f"{tokens[key]:,} {label}" for key, label in _LOST.items() if tokens.get(key)]
        parts.append(
            ", ".join(
                [f"{plural(tokens['written'], 'token')} written", *lost, f"{tokens['padding']:,} padding"]
            )
        )
    elif tokens:
        parts.append(
            ", ".join(f"{plural(number, 'token')} {split}" for split, number in sorted(tokens.items()))
        )
    return " · ".join(parts)


@contextlib.contextmanager
def open_byte_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    """Gives a callback for (bytes done, bytes in all). Nothing is drawn where there is no terminal."""
    columns = (TextColumn(label), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bars:
        bar = bars.add_task(label, total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)
