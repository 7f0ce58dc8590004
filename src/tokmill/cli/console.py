"""What every command shares: where words go, how errors look, how progress is drawn.

Results go to stdout, everything said on the way to stderr; with --json stdout holds one JSON object.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tokmill.errors import OutputLost, TokmillError
from tokmill.storage.reading import system_error

P = ParamSpec("P")

out = Console(highlight=False, soft_wrap=True, emoji=False)  # a path may have :key: in it
err = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, ensure_ascii=False, indent=2))


def reports_errors(command: Callable[P, None]) -> Callable[P, None]:
    """A TokmillError, or a fault of the machine, becomes a message and exit status 1; anything else is a bug and keeps
    its traceback."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except TokmillError as error:
            _tell(error, as_json=bool(kwargs.get("as_json")))
            raise SystemExit(1) from None
        except BrokenPipeError:
            raise  # whoever read our result has enough
        except (OSError, MemoryError) as error:
            _tell(
                system_error(error, click.get_current_context().command_path),
                as_json=bool(kwargs.get("as_json")),
            )
            raise SystemExit(1) from None
        except KeyboardInterrupt:
            err.print("interrupted; the same command goes on where this one stopped")
            raise SystemExit(130) from None

    return wrapped


def _tell(error: TokmillError, *, as_json: bool) -> None:
    """With --json on stdout, unless it is stdout that is lost."""
    if as_json and not isinstance(error, OutputLost):
        fault = {
            "kind": type(error).__name__,
            "what": error.what,
            "where": error.where,
            "next": error.next,
        }
        print_json({"ok": False, "error": fault})
    else:
        err.print(f"[bold red]{type(error).__name__}[/] {escape(str(error))}")


@contextlib.contextmanager
def open_progress() -> Iterator[RunProgress]:
    """Bars on a terminal, one line per step elsewhere."""
    bars = Progress(
        TextColumn("{task.description:<24}"),
        BarColumn(bar_width=32),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )
    with bars:
        yield RunProgress(bars)


class RunProgress:
    """tokmill.progress.Progress, drawn with rich."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def say(self, message: str) -> None:
        err.print(f"[dim]{escape(message)}[/]")

    def begin_step(self, name: str, reasons: list[str]) -> None:
        if reasons and reasons != ["not built yet"]:
            more = f" (and {len(reasons) - 3} more)" if len(reasons) > 3 else ""
            err.print(f"[dim]rebuilding {escape(name)}: {escape('; '.join(reasons[:3]))}{more}[/]")
        self._tasks[name] = self._bars.add_task(name, total=None)

    def expect_tasks(self, name: str, total: int, reused: int) -> None:
        self._bars.update(self._tasks[name], total=total, completed=reused)
        if reused and reused < total:
            self.say(f"{name}: {reused} of {total} shards were already done")

    def finish_task(self, name: str) -> None:
        self._bars.advance(self._tasks[name])

    def finish_step(self, name: str, seconds: float, counts: dict[str, object]) -> None:
        self._bars.remove_task(self._tasks.pop(name))
        err.print(f"[green]✓[/] {escape(name):<24} {seconds:7.2f} s  {escape(describe_counts(counts))}")

    def skip_step(self, name: str) -> None:
        err.print(f"[dim]= {escape(name):<24} up to date[/]")


def describe_counts(counts: dict[str, Any]) -> str:
    """One line: how many came in, how many stayed, and why the others did not."""
    if "in" not in counts:
        return ""
    parts = [f"{counts['kept']:,} of {counts['in']:,} documents"]
    for label in ("dropped", "quarantined"):
        for reason, number in sorted(counts.get(label, {}).items()):
            parts.append(f"{label} {number:,} {reason}")
    tokens = counts.get("tokens", {})
    if "written" in tokens:
        parts.append(
            f"{tokens['written']:,} tokens written, {tokens['tail_dropped']:,} cut, {tokens['padding']:,} padding"
        )
    elif tokens:
        parts.append(", ".join(f"{number:,} tokens {split}" for split, number in sorted(tokens.items())))
    return " · ".join(parts)
