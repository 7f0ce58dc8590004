"""Every reader by the name of its format: the one place that knows them all.

files of records and plain text (default) · wikipedia · stackexchange · parallel · warc
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import msgspec

from tokmill.manifest import Json
from tokmill.recipe import Source
from tokmill.sources import files as records
from tokmill.sources import parallel, stackexchange, warc, wikipedia
from tokmill.sources.reading import Batch, Reading, Taken, to_documents
from tokmill.storage.location import AnyPath, InputFile
from tokmill.storage.records import Span


class Reader(Protocol):
    """A reader module (see `tokmill.sources.reading`)."""

    def settle(self, source: Source, files: list[InputFile], /) -> Json: ...
    def split(self, path: AnyPath, size: int, options: Json, target_bytes: int, /) -> list[Span]: ...
    def read(self, path: AnyPath, name: str, span: Span, reading: Reading, /) -> Iterator[Taken]: ...


READERS: dict[str, Reader] = {
    "records": records,
    "wikipedia": wikipedia,
    "stackexchange": stackexchange,
    "parallel": parallel,
    "warc": warc,
}


class Chunk(NamedTuple):
    """A part of one file, read by one task."""

    file: InputFile
    span: Span


def settle_reading(source: Source, files: list[InputFile]) -> Reading:
    """All that can change a byte of the documents of this source."""
    return Reading(
        source=source.name,
        domain=source.domain,
        license=source.license,
        format=source.format,
        options=READERS[source.format].settle(source, files),
        max_record_bytes=source.max_record_bytes,
    )


def cut_chunks(files: list[InputFile], reading: Reading, target_bytes: int) -> list[Chunk]:
    reader = READERS[reading.format]
    return [
        Chunk(file, span)
        for file in files
        for span in reader.split(file.path, file.bytes, reading.options, target_bytes)
    ]


def chunk_sizes(chunks: list[Chunk]) -> list[int]:
    """How many bytes of its file each chunk is; parts of a Parquet file are taken to be equal."""
    parts = Counter(chunk.file.name for chunk in chunks)
    return [
        file.bytes // parts[file.name]
        if file.name.endswith(".parquet")
        else (file.bytes if span.end is None else span.end) - span.start
        for file, span in chunks
    ]


def read_documents(path: AnyPath, name: str, span: Span, reading: Reading) -> Iterator[Batch]:
    """Document tables of a few megabytes each, with the records that did not make it."""
    for taken in READERS[reading.format].read(path, name, span, reading):
        yield Batch(to_documents(taken.records, reading), taken.bad, taken.dropped)


def reading_config(reading: Reading) -> Json:
    config: Json = msgspec.to_builtins(reading)
    return config
