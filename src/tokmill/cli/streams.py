"""Standard streams that may be full, closed or gone.

stdin, stdout, stderr closed    ->  the null device, so that no file of ours gets their number
stdout cannot be written        ->  OutputLost, one line on stderr; a pipe that nobody reads ends the command quietly
stderr cannot be written        ->  what is said on the way is lost, and the work goes on
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO

from tokmill.errors import OutputLost


def guard_streams() -> None:
    """For the process of a command: whoever prints, prints through these."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            _to_nowhere(descriptor)
    sys.stdout = _guarded(sys.stdout, 1, _Result)
    sys.stderr = _guarded(sys.stderr, 2, _Words)


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


class _Words(io.TextIOWrapper):
    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
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
        return kind(io.BufferedWriter(io.FileIO(descriptor, "wb", closefd=False)), "utf-8", "replace")
    if not isinstance(stream, io.TextIOWrapper):  # somebody has put another in its place
        return stream  # type: ignore[no-any-return]
    options: dict[str, Any] = {
        "encoding": stream.encoding,
        "errors": stream.errors,
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
