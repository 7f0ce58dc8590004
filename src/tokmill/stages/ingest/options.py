"""What ingest is asked for: of a source, by the step; of a chunk of it, by its task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import structs

from tokmill.artifacts.manifest import Json, Manifest
from tokmill.artifacts.step import Input, Step, Task, TaskOptions, hook_inputs
from tokmill.artifacts.tombstones import ROLE, Forgotten, digest_of_source
from tokmill.clean.examine import CleanOptions
from tokmill.errors import TokmillError
from tokmill.sources.readers import names_documents, plugins_of
from tokmill.sources.reading import Reading
from tokmill.storage.location import InputFile
from tokmill.storage.records import Span
from tokmill.storage.tree import Entry

if TYPE_CHECKING:
    from tokmill.recipe import Hub


class LimitOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`limit` of a source."""

    docs: int | None = None
    chars: int | None = None
    megabytes: int | None = None
    tokens: int | None = None


class SampleOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`sample` of a source."""

    method: Literal["reservoir", "weighted", "hash", "head", "shuffle_buffer"]
    seed: int
    k: int = 0
    buffer: int = 0
    fraction: Decimal | None = None
    weight: str = ""
    version: int = 1  # of how it is drawn: of hash 2
    distinct: bool = False


class HubConfig(msgspec.Struct, frozen=True):
    """Which config of a dataset is read where none was asked for: that of the languages that are kept."""

    config: str | None
    languages: tuple[str, ...]


class HubOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    asked: Json  # `hub` of a source
    revision: str  # the commit that it was then
    chosen: HubConfig | None = None


class Part(msgspec.Struct, frozen=True):
    """Of an estimate: of the documents that the bounds of the source let in, some, drawn evenly; a sample of
    fixed size is of these, and as much smaller."""

    share: Decimal  # of all documents of the source
    drawn: Decimal  # of those that are read
    seed: int


class IngestOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A source of a recipe: all that can change a byte of its documents."""

    reading: Reading
    hub: HubOptions | None
    where: dict[str, str]
    shard_bytes: int
    on_bad_record: Literal["quarantine", "fail"]
    limit: LimitOptions | None
    sample: SampleOptions | None
    forgotten: str | None = None  # digest of what was taken down
    part: Part | None = None  # None: all


@dataclass(frozen=True)
class IngestExtra:
    files: list[InputFile] | None  # None: of the hub, known from the manifest and not looked up again
    max_bad_fraction: Decimal
    hub: Hub | None = None  # with the config that is read
    forgotten: Path | None = None  # the list of what was taken down
    missing: TokmillError | None = None  # why the files of a fallback could not be listed
    follower: Task[CleanOptions] | None = None  # cleaning in the same pass
    before: Manifest | None = None  # a takedown: the step as it was
    stride: int = 1  # of an estimate: one chunk in so many is read
    # names of files that are ids which were taken down, and what manifests have for them
    hidden: Mapping[str, str] = field(default_factory=dict)


IngestStep = Step[IngestOptions, IngestExtra]


class ReadOptions(TaskOptions, frozen=True):
    """What a chunk of a source, or a partition of threads, is read with."""

    reading: Reading
    shard_bytes: int
    on_bad_record: Literal["quarantine", "fail"]
    file: str
    sample: SampleOptions | None
    room: dict[str, int] | None  # what a limit leaves
    span: Span | None = None
    begins: int | None = None  # where its first record does, if a guess was wrong
    files: tuple[str, ...] | None = None  # threads: of the dump
    owners: tuple[int, ...] | None = None  # threads: per input the number of its file
    entries: tuple[Entry, ...] | None = None  # of a directory: the files of this part
    part: Part | None = None
    is_ahead: bool = False  # of the chunks before it, which may fill the room


def as_fact(span: Span | None) -> list[int | None] | None:
    """As it is in a receipt."""
    return list(span) if span is not None else None


def reading_task(
    step: IngestStep, number: int, inputs: list[Input], *, is_fused: bool = True, **own: Any
) -> Task[ReadOptions]:
    """Documents of a chunk of a source, or of a partition of threads; cleaned at once, if they can be."""
    follower, asked = step.extra.follower, step.options
    return Task(
        function="ingest",
        key=f"{number:05d}",
        options=ReadOptions(
            reading=asked.reading,
            shard_bytes=asked.shard_bytes,
            on_bad_record=asked.on_bad_record,
            sample=asked.sample if asked.sample and asked.sample.method == "hash" else None,
            room=None,
            part=asked.part,
            **own,
        ),
        inputs=[*inputs, *forgotten_inputs(step), *hook_inputs(plugins_of(asked.reading))],
        directory=str(step.directory),
        followers=[follower] if is_fused and follower is not None else [],
    )


def leave_out(step: IngestStep, forgotten: Any) -> IngestStep:
    """`step` with the list of takedowns as it is now: what it leaves out, and which names it hides."""
    reading, source = step.options.reading, step.options.reading.source
    own = Forgotten.of_source(forgotten, source)
    hidden = {name: shown for name in step.files if (shown := shown_name(reading, name, own)) != name}
    options = structs.replace(step.options, forgotten=digest_of_source(forgotten, source))
    return replace(step, options=options, extra=replace(step.extra, hidden=hidden))


def shown_name(reading: Reading, file: str, forgotten: Forgotten) -> str:
    """The name of a file of a source as manifests may have it."""
    return forgotten.shown_name(file) if names_documents(reading, file) else file


def forgotten_inputs(step: IngestStep) -> list[Input]:
    """What a task that writes documents has to read."""
    digest = step.options.forgotten
    return [] if digest is None else [Input(ROLE, str(step.extra.forgotten), digest)]
