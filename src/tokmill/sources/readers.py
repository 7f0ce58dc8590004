"""From a source of the recipe to its documents:
its files in reading order, the reader of its format, chunks to read.

list_source ─ files, hub files or shards of a snapshot ─> InputFile, …
resolve_reading ─ find_reader(format).resolve ─> Reading      files of records and plain text (default) ·
                                                              wikipedia ·
Chunks ─ spans of files, of about one size                     stackexchange · parallel · warc · pdf ·
                                                               mbox · those of others
read_documents(chunk) ─> documents, bad records, dropped records
"""

from __future__ import annotations

import importlib
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tokmill.artifacts.manifest import Json
from tokmill.artifacts.plugins import Plugin, find_plugin
from tokmill.artifacts.side_files import find_data_files, is_named_side_file
from tokmill.artifacts.snapshot import list_shards
from tokmill.errors import InputError
from tokmill.sources import files as records
from tokmill.sources.chat import resolve_chat
from tokmill.sources.hub import configs_of_language, list_data_files
from tokmill.sources.hubfile import LOG
from tokmill.sources.reading import Batch, JsonLines, Reader, Reading, to_documents, written_file
from tokmill.storage import codecs
from tokmill.storage.location import AnyPath, InputFile, is_url, local_path, refuse_url
from tokmill.storage.records import Span
from tokmill.storage.tree import list_tree

if TYPE_CHECKING:
    from tokmill.recipe import Corpus, Hub, Source

# --- files ---


def list_source(source: Source, base: Path) -> list[InputFile]:
    """All files of the source: patterns in recipe order, names sorted within each, none twice."""
    if source.corpus is not None:
        return [file for file, _ in list_corpus(source.corpus, base)]
    if source.data is not None:
        return [written_file(source.data, source.name)]
    if source.directory is not None:
        asked = source.directory
        refuse_url(asked.path, "`directory`")
        return list_tree(
            base / Path(asked.path).expanduser(),
            asked.suffixes,
            max_record_bytes=source.max_record_bytes,
            uses_gitignore=asked.gitignore,
            is_side=is_named_side_file,
        )
    files = find_data_files([pattern_of(source, base, pattern) for pattern in source.files or []], base)
    _check_reachable(source, files)
    return files


def pattern_of(source: Source, base: Path, pattern: str) -> str:
    """A directory that WikiExtractor wrote is meant with all its files, AA/wiki_00 and so on."""
    is_extracted = source.wikipedia is not None and not is_url(pattern)
    if is_extracted and (base / Path(pattern).expanduser()).is_dir():
        return str(Path(pattern) / "**" / "wiki_*")
    return pattern


def list_corpus(corpus: Corpus, base: Path) -> list[tuple[InputFile, str]]:
    """The shards of a snapshot in its order, with the sha256 that each must have."""
    root = base / Path(corpus.root).expanduser() if corpus.root else None
    return list_shards(base / Path(corpus.manifest).expanduser(), root)


def list_hub(hub: Hub, revision: str) -> list[InputFile]:
    """The data files of a dataset at a commit."""
    files = list_data_files(hub.dataset, hub.config, hub.split, revision)
    return [InputFile(file.path, file, file.size, 0) for file in files]


def list_hub_of_language(hub: Hub, revision: str, languages: Sequence[str]) -> tuple[Hub, list[InputFile]]:
    """The same; of a dataset with a config for each language and none asked for, the one of the language that
    is kept, else of English, and a line says so. With several languages, or several configs of one, it has to
    be said which."""
    chosen: list[str] = []

    def choose(names: list[str]) -> str | None:
        found = [name for language in languages or ["en"] for name in configs_of_language(names, language)]
        if len(found) != 1:
            return None
        chosen.extend(found)
        why = f"for the language {languages[0]} that is kept" if languages else "as no language is asked for"
        LOG.warning(
            f"{hub.dataset} has {len(names):,} configs and no default: {found[0]} is read, {why}; `config` "
            "chooses another"
        )
        return found[0]

    files = list_data_files(hub.dataset, hub.config, hub.split, revision, choose)
    resolved = hub.model_copy(update={"config": chosen[0]}) if chosen else hub
    return resolved, [InputFile(file.path, file, file.size, 0) for file in files]


def _check_reachable(source: Source, files: list[InputFile]) -> None:
    """Archives are unpacked from a file; everything else is read as a stream."""
    is_local = source.format not in READERS or load_reader(source.format).is_local
    for file in files if is_local else ():
        if not isinstance(file.path, Path):
            raise InputError(
                f"source `{source.name}`: `{source.format}` reads files of this machine",
                where=str(file.path),
                next="copy them to a directory of this machine and point `files` there",
            )


# --- readers ---

_SOURCES_LOG = logging.getLogger("tokmill.sources")
_PEEKED_FILES = 8
_LEAST_PART_BYTES = 8 << 20


# By its module where few runs need it: together they take 0.06 s to load.
READERS: dict[str, Reader | str] = {
    "records": records.READER,
    "wikipedia": "tokmill.sources.wikipedia:READER",
    "stackexchange": "tokmill.sources.stackexchange:READER",
    "parallel": "tokmill.sources.parallel:READER",
    "warc": "tokmill.sources.warc:READER",
    "pdf": "tokmill.sources.pdf:READER",
    "mbox": "tokmill.sources.mbox:READER",
    "directory": "tokmill.sources.directory:READER",
    "webdataset": "tokmill.sources.webdataset:READER",
}


def load_reader(format: str) -> Reader:
    """One of ours."""
    known = READERS[format]
    if isinstance(known, Reader):
        return known
    module, _, name = known.partition(":")
    reader: Reader = getattr(importlib.import_module(module), name)
    return reader


def resolve_reader(source: Source, base: Path) -> Reader:
    """Of a source of a recipe that lies in `base`."""
    if source.format in READERS:
        return load_reader(source.format)
    return records.reader_of(find_plugin("readers", source.format, base, f"sources: {source.name}"))


def find_reader(reading: Reading) -> Reader:
    if reading.format in READERS:
        return load_reader(reading.format)
    return records.reader_of(*plugins_of(reading))


def plugins_of(reading: Reading) -> list[Plugin]:
    """The code of somebody else's that it takes."""
    told = reading.options.get("reader")
    return [msgspec.convert(told["plugin"], Plugin)] if told else []


def names_documents(reading: Reading, name: str) -> bool:
    """True if the name of a file may be the id of the document in it: one that is taken down is not named."""
    if reading.format == "directory" or "reader" in reading.options:
        return True
    is_text = reading.format == "pdf" or codecs.is_plain_text(Path(name))
    return is_text and reading.options.get("unit") == "document"


class Chunk(NamedTuple):
    """A part of one file, read by one task."""

    file: InputFile
    span: Span


def resolve_reading(source: Source, files: list[InputFile], base: Path, own: Sequence[str] = ()) -> Reading:
    """All that can change a byte of the documents of this source.

    `own`: source and domain, where a record that says which it is of is believed.
    """
    options = resolve_reader(source, base).resolve(source, files)
    if own and (source.format == "records" or "reader" in options):
        options |= {"own": list(own)}
    if source.chat is not None:
        options |= {"chat": msgspec.to_builtins(resolve_chat(source.chat, base, source.name))}
    return Reading(
        source=source.name,
        domain=source.domain,
        license=source.license,
        format=source.format,
        options=options,
        max_record_bytes=source.max_record_bytes,
    )


class Chunks:
    """The chunks of a source in order. Files of this machine are cut at once; a Parquet file elsewhere is
    opened, for its footer, only when a chunk of it is asked for: of a thousand files a limit needs a few."""

    def __init__(self, files: list[InputFile], reading: Reading, target_bytes: int) -> None:
        self._files, self._reading, self._target_bytes = files, reading, target_bytes
        self._opened = 0
        self.cut: list[Chunk] = []
        if all(isinstance(file.path, Path) for file in files):
            while self._cut_next():
                pass

    def __iter__(self) -> Iterator[Chunk]:
        number = 0
        while number < len(self.cut) or self._cut_next():
            yield from self.cut[number:]
            number = len(self.cut)

    def __len__(self) -> int:
        """A file that was not opened counts as one."""
        return len(self.cut) + len(self._files) - self._opened

    def _cut_next(self) -> bool:
        if self._opened == len(self._files):
            return False
        file, reader = self._files[self._opened], find_reader(self._reading)
        spans = reader.split(file.path, file.bytes, self._reading.options, self._part_bytes(file))
        self.cut += [Chunk(file, span) for span in spans]
        self._opened += 1
        return True

    def _part_bytes(self, file: InputFile) -> int:
        """A small file is cut into eight, so that all cores have a part of it. It depends on nothing but the
        file: what is added to a source cuts none of the others anew."""
        return min(self._target_bytes, max(file.bytes // 8, _LEAST_PART_BYTES))


def chunk_sizes(chunks: list[Chunk]) -> list[int]:
    """How many bytes of its file each chunk is; parts that are not of its own bytes are taken to be equal."""
    parts = Counter(chunk.file.name for chunk in chunks)
    return [
        file.bytes // parts[file.name]
        if file.name.endswith((*codecs.COLUMNS, codecs.CUT_INSIDE))
        else (file.bytes if span.end is None else span.end) - span.start
        for file, span in chunks
    ]


def read_documents(
    path: AnyPath, name: str, span: Span, reading: Reading, begins: int | None = None
) -> Iterator[Batch]:
    """Document tables of a few megabytes each, with the records that did not make it.

    `begins`: where the first record of the span begins, if the reader is not to guess it."""
    reader = find_reader(reading)
    read = reader.read
    if begins is not None:
        assert reader.read_from is not None, "only a reader that guesses is told"
        read, span = reader.read_from, Span(begins, span.end)
    for taken in read(path, name, span, reading):
        documents = to_documents(taken.records, reading)
        yield Batch(documents, taken.bad, taken.dropped, taken.presence, taken.seam, taken.before)


# Readers whose records are bytes of a file, one at least each.
_COUNTED_BY_BYTES = ("records", "wikipedia", "warc", "mbox", "webdataset")


def most_records(files: Sequence[InputFile], reading: Reading) -> int | None:
    """A number of records that the files cannot exceed; None: not known without reading them."""
    if reading.format not in _COUNTED_BY_BYTES:
        return None
    most = [codecs.most_records(file.path, file.bytes) for file in files]
    return None if None in most else sum(filter(None, most))


def check_presence(
    reading: Reading, files: list[InputFile], presence: Json, *, is_complete: bool = True
) -> Json:
    """How many records have each field that the recipe names, with a value. Said of one that some lack; that
    all lack it is an error, unless the rest was not read or the first records have the key, and nulls
    alone."""
    named: dict[str, str] = reading.options.get("named", {})
    total: int = presence.get("records", 0)
    if not named or not total:
        return {}
    for label, key in named.items():
        if not presence[label] and is_complete:
            keys = _peek_names(files, reading)
            if key not in keys:
                raise records.no_such_field(reading.source, label, key, keys)
        if presence[label] < total:
            message = "source %s: %s of %s records have no `%s`, which `%s` names"
            _SOURCES_LOG.warning(
                message, reading.source, f"{total - presence[label]:,}", f"{total:,}", key, label
            )
    return {"records": total, **{label: presence[label] for label in named}}


def _peek_names(files: list[InputFile], reading: Reading) -> list[str]:
    """Field names that the first records of some files have, to tell a typo by."""
    names: dict[str, None] = {}
    for file in files[:_PEEKED_FILES]:
        path = file.path
        for plugin in plugins_of(reading):
            path = JsonLines(plugin, local_path(path), reading.options["reader"]["options"])
        if path.name.endswith(codecs.SUFFIXES):
            names |= dict.fromkeys(codecs.peek(path, max_record_bytes=reading.max_record_bytes).keys)
    return list(names)
