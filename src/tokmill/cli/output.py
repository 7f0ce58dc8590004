"""What a command prints, how much of it, and where: `-v`, `-q` and `--log-file`, the same for every verb.

results    ─> stdout      always                                        ─┐
messages   ─> stderr      more of them with -v, none with -q             ├─> --log-file: all of it, with times
errors     ─> stderr      always                                        ─┘   and without secrets

    tokmill -q run recipe.yaml                        before the verb, or
    tokmill run recipe.yaml -q --log-file run.log     after it

What looks like a secret, or is one in the environment, is left out of the log, and of all messages. A stream
whose encoding has no sign for a character gets one that it has: -> for an arrow, \\xe9 for a letter.
Streams may be full, closed or gone:

    stdin, stdout, stderr closed    ─> the null device, so that no file of ours gets their number
    stdout cannot be written        ─> OutputLost, one line on stderr; a pipe that nobody reads ends the
                                    command quietly
    stderr cannot be written        ─> messages are lost, and the work goes on
"""

from __future__ import annotations

import codecs
import contextlib
import io
import logging
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TextIO

import click

from tokmill.errors import OutputLost, without_secrets


@dataclass
class _Verbosity:
    is_quiet: bool = False
    is_verbose: bool = False
    log: IO[str] | None = None
    arguments: Sequence[str] = ()
    begun: float = field(default_factory=time.monotonic)


verbosity = _Verbosity()


def write_log(text: str) -> None:
    """Into the log file, if there is one."""
    if verbosity.log is None:
        return
    now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    with contextlib.suppress(OSError):  # a run does not stop for its log
        for line in without_secrets(text).splitlines():
            verbosity.log.write(f"{now}Z  {line}\n")
        verbosity.log.flush()


def begin_log(arguments: Sequence[str]) -> None:
    """A verb is known, with its arguments."""
    verbosity.arguments = list(arguments)
    write_log(f"tokmill {' '.join(arguments)}")


def _output_options() -> list[click.Option]:
    """New ones, for one command."""
    shared: dict[str, Any] = {"expose_value": False, "is_eager": True}
    return [
        click.Option(
            ["-v", "--verbose"], is_flag=True, callback=_verbose, help="Print more messages.", **shared
        ),
        click.Option(
            ["-q", "--quiet"],
            is_flag=True,
            callback=_quiet,
            help="Print results and errors only.",
            **shared,
        ),
        click.Option(
            ["--log-file"],
            type=click.Path(dir_okay=False, path_type=Path),
            callback=_open_log,
            help="Append all messages to this file, with times.",
            **shared,
        ),
    ]


def add_output_options(command: click.Command) -> click.Command:
    """To a verb, and to what is below it, once."""
    for below in command.commands.values() if isinstance(command, click.Group) else ():
        add_output_options(below)
    if not any("--log-file" in param.opts for param in command.params):
        command.params += _output_options()
    return command


def _verbose(context: click.Context, option: click.Parameter, value: bool) -> None:
    verbosity.is_verbose = value or (verbosity.is_verbose and context.parent is not None)


def _quiet(context: click.Context, option: click.Parameter, value: bool) -> None:
    verbosity.is_quiet = value or (verbosity.is_quiet and context.parent is not None)


def _open_log(context: click.Context, option: click.Parameter, value: Path | None) -> None:
    if context.parent is None:
        verbosity.arguments, verbosity.begun = (), time.monotonic()
        listener = _Listener(logging.WARNING)
        logging.getLogger().addHandler(listener)
        context.call_on_close(lambda: logging.getLogger().removeHandler(listener))
    if value is None:
        return
    if value.suffix == ".json":
        options = {name for param in context.command.params for name in param.opts}
        where = f"`--stats {value}`" if "--stats" in options else f"`--json > {value}`"
        raise click.BadParameter(
            f"{value} would be JSON, and the log is lines of text: call it {value.stem}.log. Figures as "
            f"JSON: {where}.",
            context,
            option,
        )
    try:
        value.parent.mkdir(parents=True, exist_ok=True)
        log = value.open("a", encoding="utf-8")
    except OSError as error:
        raise click.BadParameter(f"{value}: {error.strerror}", context, option) from error
    former, verbosity.log = verbosity.log, log
    context.call_on_close(lambda: _close(log, former))
    if verbosity.arguments:
        write_log(f"tokmill {' '.join(verbosity.arguments)}")


class _Listener(logging.Handler):
    """Warnings from outside of a run, such as those of the weights of a mixture file."""

    def emit(self, record: logging.LogRecord) -> None:
        write_log(record.getMessage())
        if not verbosity.is_quiet:
            click.echo(record.getMessage(), err=True)


def _close(log: IO[str], former: IO[str] | None) -> None:
    write_log(f"ended after {time.monotonic() - verbosity.begun:.1f} s")
    verbosity.log = former
    with contextlib.suppress(OSError):
        log.close()


def guard_streams() -> None:
    """For the process of a command: everything is printed through these."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            _to_nowhere(descriptor)
    codecs.register_error(_PLAIN_SIGNS, _in_plain_signs)
    sys.stdout = _guarded(sys.stdout, 1, _Result)
    sys.stderr = _guarded(sys.stderr, 2, _Messages)


_PLAIN_SIGNS = "tokmill.plain_signs"
_SIGNS = {
    "✓": "+",
    "→": "->",
    "…": "...",
    "·": "-",
    "×": "x",
    "–": "-",
    "—": "-",
    "≥": ">=",
    "≤": "<=",
    "✗": "x",
}


def _in_plain_signs(error: UnicodeError) -> tuple[str | bytes, int]:
    """Error handler of a stream whose encoding lacks a character."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    escaped, _ = codecs.backslashreplace_errors(error)
    if not set(lacking) & _SIGNS.keys():
        return escaped, error.end
    plain = [_SIGNS.get(sign) or sign.encode("ascii", "backslashreplace").decode() for sign in lacking]
    return "".join(plain), error.end


class _Result(io.TextIOWrapper):
    _fault: OSError | None = None

    def write(self, text: str, /) -> int:
        if text == "":  # click asks in this way whether it takes text; a full disk refuses even that
            return 0
        try:
            if self._fault is not None:
                raise self._fault
            return super().write(text)
        except OSError as error:
            raise self._lost(error) from error

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            raise self._lost(error) from error

    def _lost(self, error: OSError) -> OSError | OutputLost:
        """What is still in the buffer goes nowhere, or Python would complain once more when it ends."""
        self._fault = error
        _to_nowhere(1)
        if isinstance(error, BrokenPipeError):
            return error
        return OutputLost(
            f"the result cannot be written ({error.strerror})",
            where="standard output",
            next="send it to a place with room; files that the command wrote are complete",
        )


def write_result(data: bytes) -> None:
    """Bytes to stdout, guarded as text is."""
    try:
        sys.stdout.buffer.write(data)
    except OSError as error:
        raise sys.stdout._lost(error) if isinstance(sys.stdout, _Result) else error from error


class _Messages(io.TextIOWrapper):
    def write(self, text: str, /) -> int:
        try:
            return super().write(without_secrets(text))
        except OSError:
            _to_nowhere(2)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            _to_nowhere(2)


def _guarded(stream: Any, descriptor: int, kind: type[io.TextIOWrapper]) -> TextIO:
    if stream is None:  # was closed when Python started
        return kind(io.BufferedWriter(io.FileIO(descriptor, "wb", closefd=False)), "utf-8", _PLAIN_SIGNS)
    if not isinstance(stream, io.TextIOWrapper):  # somebody has put another in its place
        return stream  # type: ignore[no-any-return]
    options: dict[str, Any] = {
        "encoding": stream.encoding,
        "errors": _PLAIN_SIGNS,
        "line_buffering": stream.line_buffering,
        "write_through": stream.write_through,
    }
    return kind(stream.detach(), **options)


def _to_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
    os.set_inheritable(descriptor, True)  # workers have it too
