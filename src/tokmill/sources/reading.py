"""What every reader of a source gives, and how it becomes documents.

Reader   resolve(source, files) -> options                   driver: what the recipe left open, from the files
         split(path, size, options, target_bytes) -> spans   driver: parts that can be read on their own
         read(path, name, span, reading) -> Taken, Taken, …  worker: records, bad records, dropped records
         read_from(…) -> Taken, Taken, …                     worker: the same, where the first record is known
                                                             to begin just where the span does

Most readers see at once where the first record of a span begins. One that has to guess says where it took it
to be, in a `Seam`; the span before it proves the guess, or mends it (tokmill.stages.ingest.seams).

All that the rest knows of a kind of source is its record, which stands at the end of its file;
`tokmill.sources.readers` has them all. Records have five columns; source, domain, the default licence and
derived ids are added here, the same for every reader. Records that name their own source and domain have a
column for it.

    a function (path, **options) -> dicts ─ JSON lines ─> JsonLines, which is read as a file of records is

Records that are Python objects, written down once so that tasks in other processes can read them.

    an iterable of dicts · a function that gives one · an Arrow table, batch or reader
    a pandas or Polars frame · a `datasets.Dataset`          ─> <name>.jsonl, which ingest reads as it reads
                                                             any file

The file is the same for the same records, so their content is their identity:
a second run with equal objects finds everything up to date.
"""

from __future__ import annotations

import glob
import io
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.artifacts.manifest import Json
from tokmill.artifacts.plugins import Plugin
from tokmill.errors import InputError
from tokmill.kernels import hashing
from tokmill.schema import DOCUMENTS, one_piece, string_column
from tokmill.storage.disk import ChunkStream, open_commit
from tokmill.storage.location import AnyPath, InputFile
from tokmill.storage.patterns import find_files
from tokmill.storage.records import WHOLE, BadRecord, Seam, Span

if TYPE_CHECKING:
    from tokmill.recipe import Source

RECORDS = pa.schema(
    [
        pa.field("text", pa.large_string(), nullable=False),
        pa.field("id", pa.string()),  # null: derived from the text
        pa.field("license", pa.string()),  # null: that of the source
        pa.field("created_at", pa.string()),
        pa.field("meta", pa.string()),  # a JSON object
    ]
)


class Reading(msgspec.Struct, frozen=True):
    """How the files of a source become documents: everything that can change a byte of them."""

    source: str
    domain: str
    license: str | None
    format: str
    options: Json
    max_record_bytes: int


@dataclass(frozen=True)
class Reader:
    """A kind of source."""

    resolve: Callable[[Source, list[InputFile]], Json]
    split: Callable[[AnyPath, int, Json, int], list[Span]]
    read: Callable[[AnyPath, str, Span, Reading], Iterator[Taken]]
    is_local: bool = False  # its files must lie on this machine; all others are read as streams
    read_from: Callable[[AnyPath, str, Span, Reading], Iterator[Taken]] | None = None  # of one that guesses


class Dropped(NamedTuple):
    """A well-formed record that is left out on purpose: a redirect, an unanswered question, …"""

    offset: int
    id: str | None
    reason: str
    value: float | None = None
    threshold: float | None = None
    file: str = ""  # where a reader takes records from several files at once


# Of each field that the recipe names, which records have it: those that are no bad records, in their order.
Presence = Mapping[str, NDArray[np.bool_]]


def count_presence(presence: Presence) -> Json:
    """How many records there are, and how many of them have each field."""
    if not presence:
        return {}
    records = len(next(iter(presence.values())))
    return {"records": records} | {label: int(has.sum()) for label, has in presence.items()}


class Taken(NamedTuple):
    """One batch: what was read, what could not be, and what was not wanted."""

    records: Any
    bad: list[BadRecord]
    dropped: list[Dropped]
    presence: Presence = MappingProxyType({})
    seam: Seam | None = None  # of a reader that guesses, as far as it is known
    before: NDArray[np.int64] | None = None  # of each record how many bad and dropped ones; None: not known


class Batch(NamedTuple):
    """The same with the records as documents."""

    documents: Any
    bad: list[BadRecord]
    dropped: list[Dropped]
    presence: Presence = MappingProxyType({})
    seam: Seam | None = None
    before: NDArray[np.int64] | None = None


class Record(NamedTuple):
    """Of a reader whose parser gives them one by one anyway; without a licence it has that of the source."""

    text: str
    id: str | None
    created_at: str | None
    meta: Json  # of which a None is left out
    license: str | None = None


_BATCH_SIZE, _BATCH_RECORDS = 4 << 20, 4096


T = TypeVar("T")


def gather(items: Iterable[Record | BadRecord | Dropped]) -> Iterator[Taken]:
    """Batches of a few megabytes, in order."""
    return gathered(items, lambda record: len(record.text), _record_table)


def gathered(
    items: Iterable[T | BadRecord | Dropped], size_of: Callable[[T], int], table_of: Callable[[list[T]], Any]
) -> Iterator[Taken]:
    """The same of records of any kind."""
    records: list[T] = []
    before: list[tuple[int, int]] = []
    bad: list[BadRecord] = []
    dropped: list[Dropped] = []
    size = 0
    for item in items:
        if isinstance(item, BadRecord):
            bad.append(item)
        elif isinstance(item, Dropped):
            dropped.append(item)
        else:
            records.append(item)
            before.append((len(bad), len(dropped)))
            size += size_of(item)
        if size >= _BATCH_SIZE or len(records) + len(bad) + len(dropped) >= _BATCH_RECORDS:
            yield Taken(table_of(records), bad, dropped, before=np.array(before, np.int64))
            records, before, bad, dropped, size = [], [], [], [], 0
    yield Taken(table_of(records), bad, dropped, before=np.array(before, np.int64))


def count_before(
    offsets: NDArray[np.int64], bad: list[BadRecord], dropped: list[Dropped]
) -> NDArray[np.int64]:
    """`before` of records that lie at `offsets`; all three are in order."""
    places = ([record.offset for record in bad], [record.offset for record in dropped])
    return np.stack([np.searchsorted(np.array(own, np.int64), offsets) for own in places], axis=1)


def _record_table(records: list[Record]) -> Any:
    columns: list[Any] = list(zip(*records, strict=True)) or [()] * len(Record._fields)
    texts, ids, dates, metas, licenses = columns
    spelled = [
        msgspec.json.encode({key: value for key, value in meta.items() if value is not None}).decode()
        for meta in metas
    ]
    return pa.table([texts, ids, licenses, dates, spelled], schema=RECORDS)


def whole_file(path: AnyPath, size: int, options: Json, target_bytes: int) -> list[Span]:
    """`split` of a reader that can only begin where the file does."""
    return [WHOLE]


def to_documents(records: Any, reading: Reading) -> Any:
    text = one_piece(records.column("text"))
    doc_id, license_tag, created_at = (
        without_blanks(one_piece(records.column(name))) for name in ("id", "license", "created_at")
    )
    if doc_id.null_count:
        doc_id = pc.coalesce(doc_id, content_ids(text))
    if reading.license is not None:
        license_tag = license_tag.fill_null(reading.license)
    return pa.table(
        [
            text,
            _label(records, "source", reading.source),
            _label(records, "domain", reading.domain),
            doc_id,
            license_tag,
            created_at,
            one_piece(records.column("meta")),
        ],
        schema=DOCUMENTS,
    )


def without_blanks(column: Any) -> Any:
    """A string with nothing but spaces says as little as a null."""
    is_blank = pc.equal(pc.utf8_trim_whitespace(column), "")
    return pc.if_else(is_blank, None, column) if pc.any(is_blank).as_py() else column


def _label(records: Any, name: str, default: str) -> Any:
    if name in records.column_names:
        return one_piece(records.column(name)).fill_null(default)
    return pa.repeat(pa.scalar(default, pa.string()), records.num_rows)


def content_ids(text: Any) -> Any:
    """32 hex digits of the text's own hash: the same text has the same id wherever it comes from."""
    state = np.zeros((len(text), 2), np.uint64)
    hashing.mix_column(*string_column(text), state)
    spelled = state.astype(">u8").tobytes().hex().encode()
    offsets = np.arange(0, 32 * len(text) + 1, 32, dtype=np.int32)
    return pa.StringArray.from_buffers(len(text), pa.py_buffer(offsets), pa.py_buffer(spelled))


_BATCH_ROWS, _SPELLED_AT_ONCE = 10_000, 64


def write_objects(data: Any, path: Path, source: str) -> None:
    """As JSON Lines, in their order; a record that JSON cannot hold is an error that names it."""

    def unusable(row: int, what: str, next: str) -> InputError:
        return InputError(f"source `{source}`: record {row:,} of its `data` {what}", where="data", next=next)

    with open_commit(path) as file:
        records = itertools.chain.from_iterable(_batches(data, source))
        lines = json_lines(records, unusable)
        while some := b"".join(itertools.islice(lines, _BATCH_ROWS)):
            file.write(some)


def json_lines(records: Iterable[Any], unusable: Callable[[int, str, str], InputError]) -> Iterator[bytes]:
    """`unusable` makes the error of a record that JSON cannot hold: its number, what it is, what to do."""
    encoder = msgspec.json.Encoder()
    for row, record in enumerate(records):
        if not isinstance(record, Mapping):
            raise unusable(row, f"is a {type(record).__name__}, not a dict", 'for example {"text": "…"}')
        try:
            line = encoder.encode(record)
        except (TypeError, ValueError, UnicodeEncodeError) as error:
            raise unusable(
                row, f"cannot be written as JSON: {error}", "give text, numbers and lists"
            ) from None
        yield line + b"\n"


class JsonLines:
    """A file as the JSON lines of what a plugin reads from it: for a reader of such lines, what a path is."""

    suffix, suffixes = ".jsonl", [".jsonl"]

    def __init__(self, plugin: Plugin, path: Path, options: Json) -> None:
        self._plugin, self._path, self._options = plugin, path, options
        self.name = f"{path.name}{self.suffix}"

    def __str__(self) -> str:
        return str(self._path)

    def stat(self) -> os.stat_result:
        return self._path.stat()

    def open(self) -> io.RawIOBase:
        return ChunkStream(self._chunks())

    def _chunks(self) -> Iterator[bytes]:
        lines = self.lines()
        while chunk := b"".join(itertools.islice(lines, _SPELLED_AT_ONCE)):
            yield chunk

    def lines(self) -> Iterator[bytes]:
        def unusable(row: int, what: str, next: str) -> InputError:
            return self._plugin.fault(f"gave a record that {what} (record {row:,} of {self})", next)

        return json_lines(self._records(), unusable)

    def _records(self) -> Iterator[Any]:
        answer = self._plugin.call(self._path, **self._options)
        if isinstance(answer, str | bytes | Mapping) or not isinstance(answer, Iterable):
            raise self._plugin.fault(
                f"returned a {type(answer).__name__} for {self}", "yield a dict for each record of the file"
            )
        with self._plugin.blamed():
            yield from answer


def written_file(data: Any, source: str) -> InputFile:
    """The file that `write_objects` made."""
    if not isinstance(data, Path):
        raise InputError(
            f"source `{source}`: its records were given in Python, and are not written down here",
            where="data",
            next=(
                "run the recipe in Python with the records, or put them into a file and name it with `files`"
            ),
        )
    (file,) = find_files(glob.escape(str(data)), data.parent)
    return file


def _batches(data: Any, source: str) -> Iterator[Iterable[Any]]:
    if isinstance(data, Callable) and not hasattr(data, "__iter__"):  # type: ignore[arg-type]
        data = data()
    kind = type(data).__module__.partition(".")[0]
    if isinstance(data, pa.RecordBatch):
        data = pa.table(data)
    elif kind == "pandas":
        data = pa.Table.from_pandas(data, preserve_index=False)
    elif kind == "polars":
        data = (data.collect() if hasattr(data, "collect") else data).to_arrow()
    elif kind == "datasets" and hasattr(data, "with_format") and hasattr(data, "__len__"):
        yield from (table.to_pylist() for table in data.with_format("arrow").iter(_BATCH_ROWS))
        return
    if isinstance(data, pa.Table):
        data = data.to_reader(_BATCH_ROWS)
    if isinstance(data, pa.RecordBatchReader):
        yield from (batch.to_pylist() for batch in data)
    elif isinstance(data, (str, bytes, Mapping)) or not isinstance(data, Iterable):
        raise InputError(
            f"source `{source}`: its `data` is a {type(data).__name__}, and no records can be read from one",
            where="data",
            next=(
                "give an iterable of dicts, a function that returns one, an Arrow table, a frame or a dataset"
            ),
        )
    else:
        yield data
