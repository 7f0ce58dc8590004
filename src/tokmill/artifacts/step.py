"""What a stage is given and what it gives back: the contract between the run and the stages.

    conduct(step, upstream)  yields tasks, is sent their receipts, returns an Outcome      in the driver
    <function>(task) -> Made(files, counts, facts)                                         in a worker

Receipts come back in the order of the tasks.
Steps that do not need each other are conducted side by side, and their tasks share the engine.

A task: a pure function of its options and inputs, named so that any process can run it.

    Task(function, key, options, inputs, directory)  ->  files in directory + Receipt

The fingerprint covers what can change a byte: function, key, options and the content of the inputs. Where the
inputs lie on this machine or in a store (`tokmill.artifacts.stored`), what may follow in the same pass, and
what earlier runs found out (`tokmill.artifacts.cache`), is not part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Generic, NamedTuple

import msgspec
from typing_extensions import TypeVar

from tokmill.artifacts.cache import Cached
from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.hooks import hook_files
from tokmill.artifacts.manifest import (
    FORMAT_VERSION,
    FileEntry,
    Json,
    Manifest,
    Receipt,
    config_of,
    fingerprint_of,
)
from tokmill.artifacts.plugins import Plugin, show_hooks
from tokmill.artifacts.stored import Stored
from tokmill.storage.tables import load_table

Options = TypeVar("Options", covariant=True, default=Any)


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a task is told, frozen. A field that has a default is not in the config while it has that
    value."""


class Input(msgspec.Struct, frozen=True):
    """A file that a task reads, known by its content."""

    role: str
    path: str
    content_sha256: str
    rows: int = 0


class Task(msgspec.Struct, Generic[Options], frozen=True, kw_only=True):
    function: str
    key: str
    options: Options
    inputs: list[Input]
    directory: str
    followers: list[Task] = []  # to run in the same pass, on what this one makes
    cached: Cached | None = None  # what earlier runs found out: it changes how long the task takes
    stored: Stored | None = None  # where its files are, if not on a disk that all workers share
    most_bad: int | None = None  # with more bad records than this, reading stops: the step fails in any case

    @property
    def config(self) -> Json:
        return config_of(self.options)

    @property
    def fingerprint(self) -> str:
        return fingerprint_of(
            {
                "function": self.function,
                "key": self.key,
                "format_version": FORMAT_VERSION,
                "config": self.config,
                "inputs": [[item.role, item.content_sha256] for item in self.inputs],
            }
        )

    def receipt(self, files: list[FileEntry], counts: Json, facts: Json | None) -> Receipt:
        return Receipt(
            key=self.key, fingerprint=self.fingerprint, files=files, counts=counts, facts=facts or {}
        )

    def paths(self, role: str) -> list[Path]:
        return [Path(item.path) for item in self.inputs if item.role == role]

    def load(self, role: str, columns: list[str] | None = None) -> Any:
        """The one table of that role."""
        (path,) = self.paths(role)
        return load_table(path, columns)


_HOOK = "hook "


def hook_inputs(plugins: Iterable[Plugin]) -> list[Input]:
    """The Python files beside the recipe that the plugins are in:
    what is not installed travels as an input."""
    hooks = dict.fromkeys(plugin for plugin in plugins if plugin.is_hook)
    return [Input(_HOOK + hook.name, str(hook.path), hook.digest) for hook in hooks]


def read_with(item: Input) -> list[Path]:
    """Files that a task reads besides an input because it names them, on the driver's machine."""
    return hook_files(Path(item.path)) if item.role.startswith(_HOOK) else []


def accept_hooks(task: Task) -> None:
    """In the worker: what the task names may be run here."""
    for item in (item for one in (task, *task.followers) for item in one.inputs):
        if item.role.startswith(_HOOK):
            show_hooks(Path(item.path), item.content_sha256)


def table_input(role: str, directory: Path, entry: FileEntry) -> Input:
    return Input(role, str(directory / entry.path), entry.content_sha256, entry.rows)


def tables_of(step: Step, receipts: Iterable[Receipt], table: str) -> list[Input]:
    """What these tasks wrote of one table, for the tasks after them."""
    return [
        table_input(table, step.directory, entry)
        for receipt in receipts
        for entry in receipt.files
        if entry.table == table
    ]


Asked = TypeVar("Asked")
Extra = TypeVar("Extra", covariant=True, default=Any)


@dataclass(frozen=True)
class Step(Generic[Options, Extra]):
    """One artifact of the run. `options` hold all that can change a byte of it."""

    name: str
    kind: str
    directory: Path
    options: Options
    needs: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)  # outside input: label -> sha256
    # what the stage needs besides, and what cannot change a byte
    extra: Extra = None  # type: ignore[assignment]

    @property
    def config(self) -> Json:
        """For fingerprints and the manifest."""
        return config_of(self.options)


class Made(NamedTuple):
    """What a task function returns; it becomes the receipt."""

    files: list[FileEntry]
    counts: Json
    facts: Json | None = None


class Outcome(NamedTuple):
    """What a step's manifest is written from."""

    receipts: list[Receipt]
    counts: Json
    facts: Json


class Unawaited(list[Task]):
    """Tasks of which the first few take long, and what comes next does not need them: the conduct goes on
    when the others are done. The receipts of the first come before those of the tasks that it asks for
    then."""

    def __init__(self, first: Sequence[Task], others: Sequence[Task]) -> None:
        super().__init__([*first, *others])
        self.first = len(first)


Conduct = Generator[list[Task], list[Receipt], Outcome]


@dataclass(frozen=True)
class TaskFunction(Generic[Asked]):
    """What a worker calls, and what its options are: they are decoded once, before the call."""

    options: type[Asked]
    perform: Callable[[Task[Asked]], Made]


def _nothing(step: Any, receipts: Sequence[Receipt]) -> Json:
    return {}


def _accept(step: Any, counts: Json) -> None:
    pass


def _hand_on_nothing(manifest: Manifest, taker: str) -> Json:
    return {}


@dataclass(frozen=True)
class Stage(Generic[Asked]):
    """All that the run knows of a kind of step."""

    kind: str
    options: type[Asked] | UnionType  # of a step; a manifest's config is decoded into them
    conduct: Callable[[Step[Asked, Any], Mapping[str, Artifact]], Conduct]
    tasks: Mapping[str, TaskFunction[Any]]  # by the names that receipts know them by
    environment: Callable[[Step[Asked, Any], Sequence[Receipt]], Json] = _nothing  # for the manifest's block
    # what a step of the kind `taker` reads of the manifest, besides the files: part of what it is made from
    hand_on: Callable[[Manifest, str], Json] = _hand_on_nothing
    # raises where the counts are over a limit that is in no fingerprint:
    # asked of steps that are up to date too
    check: Callable[[Step[Asked, Any], Json], None] = _accept
