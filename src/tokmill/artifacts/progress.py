"""What a run reports while it works: messages and progress for who started it,
journal.json for who asks how far it is.

    Progress        steps and tasks as they begin and end, and how far a long task is; the library is silent,
                    the command line draws bars
    warnings_to     what deep code logs through logging.getLogger("tokmill.…"), in a worker too, goes to
                    `say`: a warning needs a decision and begins with "! ", what is logged as information does
                    not; `tell_count` of a task goes the same way
    open_journal    a Progress that passes everything on and records the planned steps, tasks done of known,
                    the last error in journal.json                               (who works is in the lock)

    the run ends well  ->  the journal is removed: its manifest says it all
    it fails           ->  it stays, with the error;  it is killed -> it stays, without one

Nothing here can change a byte of an artifact. Times are for rates; readers of artifacts never see them.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from tokmill.errors import TokmillError, without_secrets
from tokmill.storage.disk import read_regular, temp_beside, told_as_unwritable

LOGGER = "tokmill"
MARK = "! "  # of a line that needs a decision


class Progress(Protocol):
    def say(self, message: str) -> None:
        return

    def plan(self, steps: Sequence[str]) -> None:
        return

    def begin_step(self, name: str, reasons: list[str]) -> None:
        return

    def expect_tasks(self, name: str, total: int, reused: int) -> None:
        return

    def finish_task(self, name: str) -> None:
        return

    def count(self, name: str, done: int, total: int, unit: str) -> None:
        """How far its one long task is: 12 of 56 kernels."""
        return

    def finish_step(self, name: str, seconds: float, counts: dict[str, object]) -> None:
        return

    def skip_step(self, name: str) -> None:
        return


class Silence(Progress):
    """No output at all: what a Progress does that nobody watches."""


Count = Callable[[str, int, int, str], None]


def tell_count(step: str, done: int, total: int, unit: str) -> None:
    """From within a task, to `Progress.count` of who started the run."""
    logging.getLogger(LOGGER).info(
        "%s: %d of %d %s", step, done, total, unit, extra={"counted": (step, done, total, unit)}
    )


@contextlib.contextmanager
def warnings_to(say: Callable[[str], None], count: Count | None = None) -> Iterator[None]:
    """What is logged meanwhile is said, and nowhere else."""
    logger, handler = logging.getLogger(LOGGER), _Saying(say, count)
    before = logger.propagate, logger.level
    logger.propagate = False
    logger.setLevel(min(logger.getEffectiveLevel(), logging.INFO))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate, level = before
        logger.setLevel(level)


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """What is logged meanwhile is said to nobody."""
    logger = logging.getLogger(LOGGER)
    handlers, logger.handlers = logger.handlers, [logging.NullHandler()]
    propagates, logger.propagate = logger.propagate, False
    try:
        yield
    finally:
        logger.handlers, logger.propagate = handlers, propagates


class _Saying(logging.Handler):
    def __init__(self, say: Callable[[str], None], count: Count | None) -> None:
        super().__init__()
        self._say, self._count = say, count

    def emit(self, record: logging.LogRecord) -> None:
        if (counted := getattr(record, "counted", None)) is not None:
            if self._count is not None:
                self._count(*counted)
            return
        mark = MARK if record.levelno >= logging.WARNING else ""
        self._say(mark + record.getMessage())


JOURNAL = "journal.json"
ESTIMATE = "estimate.json"  # beside it: what was estimated of a run (tokmill.pipeline.estimation.figures)
_EVERY_SECONDS = 1.0  # a task may take milliseconds; who looks sees no more than this anyway


class StepNote(msgspec.Struct, kw_only=True):
    state: str  # "running" | "done" | "up to date"
    begun_at: float | None = None
    tasks: int | None = None  # known so far
    reused: int = 0
    done: int = 0  # with the reused ones
    seconds: float | None = None
    counted: tuple[int, int, str] | None = None  # how far its long task is, of how much, and of what


class Journal(msgspec.Struct, kw_only=True):
    recipe: str
    begun_at: float  # seconds since the epoch
    written_at: float
    steps: list[str] = []
    notes: dict[str, StepNote] = {}
    said: list[str] = []  # the last few lines
    error: dict[str, str] | None = None  # kind, what, where, next


def load_journal(directory: Path) -> Journal | None:
    """None where there is none, or none that can be read."""
    try:
        return msgspec.json.decode(read_regular(directory / JOURNAL), type=Journal)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None


@contextlib.contextmanager
def open_journal(directory: Path, recipe: str, progress: Progress) -> Iterator[JournalProgress]:
    now = time.time()
    journal = Journal(recipe=recipe, begun_at=now, written_at=now)
    keeper = JournalProgress(directory, journal, progress)
    keeper.write()
    try:
        yield keeper
    except BaseException as error:
        journal.error = _told(error)
        keeper.write()
        raise
    with told_as_unwritable(directory / JOURNAL):
        (directory / JOURNAL).unlink(missing_ok=True)


class JournalProgress:
    """tokmill.artifacts.progress.Progress: writes down, and passes on."""

    def __init__(self, directory: Path, journal: Journal, progress: Progress) -> None:
        self._path = directory / JOURNAL
        self._journal = journal
        self._progress = progress

    def plan(self, steps: Sequence[str]) -> None:
        self._journal.steps = list(steps)
        self._progress.plan(steps)
        self.write()

    def say(self, message: str) -> None:
        message = without_secrets(message)
        self._journal.said = [*self._journal.said[-4:], message]
        self._progress.say(message)

    def begin_step(self, name: str, reasons: list[str]) -> None:
        self._journal.notes[name] = StepNote(state="running", begun_at=time.time())
        self._progress.begin_step(name, reasons)
        self.write()

    def expect_tasks(self, name: str, total: int, reused: int) -> None:
        note = self._journal.notes[name]
        note.tasks = note.done + total
        note.reused += reused
        note.done += reused
        self._progress.expect_tasks(name, total, reused)
        self.write()

    def finish_task(self, name: str) -> None:
        self._journal.notes[name].done += 1
        self._progress.finish_task(name)
        self._write_sometimes()

    def count(self, name: str, done: int, total: int, unit: str) -> None:
        if name in self._journal.notes:
            self._journal.notes[name].counted = done, total, unit
            self._progress.count(name, done, total, unit)
            self._write_sometimes()

    def finish_step(self, name: str, seconds: float, counts: dict[str, object]) -> None:
        note = self._journal.notes[name]
        note.state, note.seconds = "done", round(seconds, 3)
        self._progress.finish_step(name, seconds, counts)
        self.write()

    def skip_step(self, name: str) -> None:
        self._journal.notes[name] = StepNote(state="up to date")
        self._progress.skip_step(name)

    def _write_sometimes(self) -> None:
        if time.time() - self._journal.written_at >= _EVERY_SECONDS:
            self.write()

    def write(self) -> None:
        """Whole or not at all, but not through to the disk: what a crash of the machine leaves here proves
        nothing. A run does not stop for its journal; a full disk stops it soon enough."""
        self._journal.written_at = time.time()
        temp = temp_beside(self._path)
        try:
            temp.write_bytes(msgspec.json.encode(self._journal) + b"\n")
            temp.replace(self._path)
        except OSError:
            with contextlib.suppress(OSError):
                temp.unlink()


def _told(error: BaseException) -> dict[str, str]:
    if isinstance(error, TokmillError):
        return {
            "kind": error.kind,
            "what": error.what,
            "where": error.where,
            "next": error.next,
        }
    what = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error)
    return {"kind": type(error).__name__, "what": without_secrets(what), "where": "", "next": ""}
