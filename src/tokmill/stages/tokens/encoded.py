"""Ids of the documents of a shard that an earlier run encoded: a second name for its files, and a note.

    <out>.cache/tokens/<entry>.tokens/   note.json               sha256 of the rest │ what they were made of,
                                                                 and the digest of each file
                                         <split>.bin  <split>.idx  <split>.lengths  [<split>.loss]

They are links: the files of the run take no room twice, and one that the run no longer has is gone when the
next tokens step begins. An entry is named after the texts and the tokenizer. Of the same labels the files are
taken as they are, whatever the number of the shard is by now; of others each document that is in both: it is
copied, and neither its text nor the tokenizer is asked for.
A file that nobody wrote to after the note is not read again to be taken. To be taken is to be written: its
new name may be that of a file that another note, or a manifest, speaks of.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.cache import Cached, entry_name, sweep_table, sweep_texts
from tokmill.artifacts.directory import is_intact
from tokmill.artifacts.manifest import FileEntry, Json, fingerprint_of
from tokmill.artifacts.step import Made, Task
from tokmill.artifacts.upstream import Shard
from tokmill.errors import TokmillError
from tokmill.kernels.packing import copy_pieces
from tokmill.storage.disk import commit_bytes, make_directory, map_array, sync_directory, temp_beside
from tokmill.storage.tables import load_table
from tokmill.tokenizers.fast import starts

TOKENS = "tokens"
_NOTE = "note.json"
_DIGEST_BYTES = 32
_LATER = 1_000_000  # nanoseconds: a note is later than the files that it speaks of
# Which documents are kept is in their labels; verdicts say more, of clusters, that no token depends on.
_WITHOUT = ("kept",)
_ENDINGS = {"tokens": "bin", "sequences": "idx", "lengths": "lengths", "loss": "loss"}


class _File(msgspec.Struct):
    split: str
    entry: FileEntry  # as the task wrote it


class Told(msgspec.Struct):
    """What the check of a sample goes by, of documents that are not read again: rows of the shard."""

    kind: str  # of the tokenizer
    literals: list[int]  # that spell a control token
    checked: list[int]  # that the reference vouched for


class _Note(msgspec.Struct):
    made_of: str
    dtype: str
    files: list[_File]
    counts: Json
    facts: Json
    told: Told


Numbers = NDArray[np.int64]


class Known(NamedTuple):
    """Documents that have ids, by their rows in the shard, which ascend."""

    rows: Numbers
    array: Numbers  # which of them the ids are in, and where
    begins: Numbers
    lengths: Numbers  # in tokens, with those around the document
    sizes: Numbers  # of the texts, in bytes
    arrays: list[NDArray[np.integer]]
    told: Told
    encoder: str

    def places(self, rows: Numbers) -> Numbers:
        return np.searchsorted(self.rows, rows)

    def take(self, rows: Numbers) -> tuple[NDArray[np.integer], Numbers]:
        """Ids of these, as they are written, and how many each has."""
        at = self.places(rows)
        lengths, width = self.lengths[at], self.arrays[0].dtype.itemsize
        ends = np.cumsum(lengths)
        into = np.empty(int(ends[-1]) if len(ends) else 0, self.arrays[0].dtype)
        for number, ids in enumerate(self.arrays):
            own = np.flatnonzero(self.array[at] == number)
            begins, places, counts = self.begins[at[own]], (ends - lengths)[own], lengths[own]
            data, room = ids.view(np.uint8), into.view(np.uint8)
            copy_pieces(data, begins * width, places * width, counts * width, room)
        return into, lengths

    def joined(self, other: Known) -> Known:
        """With documents that it has not."""
        order = np.argsort(np.concatenate([self.rows, other.rows]), kind="stable")
        moved = other._replace(array=other.array + len(self.arrays))
        columns = [np.concatenate(pair)[order] for pair in zip(self[:5], moved[:5], strict=True)]
        rows, array, begins, lengths, sizes = columns
        told = Told(
            self.told.kind,
            self.told.literals + other.told.literals,
            self.told.checked + other.told.checked,
        )
        arrays = [*self.arrays, *other.arrays]
        return Known(rows, array, begins, lengths, sizes, arrays, told, self.encoder)


def made_of(task: Task[Any]) -> str:
    """All that the files of a task depend on, but for its key."""
    inputs = [[item.role, item.content_sha256] for item in task.inputs if item.role not in _WITHOUT]
    return fingerprint_of([task.function, task.config, inputs])


def cached_tasks(directory: Path | None, tasks: list[Task[Any]], shards: Sequence[Shard]) -> list[Task[Any]]:
    """The same, one for each shard, told where the ids of its documents are; those of other shards go
    first."""
    if directory is None:
        return tasks
    documents = [shard.documents.content_sha256 for shard in shards]
    names = [
        entry_name(shard.documents.content_sha256, _how(task, shard))
        for task, shard in zip(tasks, shards, strict=True)
    ]
    sweep_texts(directory, documents)
    sweep_table(directory, TOKENS, names)
    return [
        msgspec.structs.replace(task, cached=Cached(str(directory), (name,), 0))
        for task, name in zip(tasks, names, strict=True)
    ]


def _how(task: Task[Any], shard: Shard) -> list[Any]:
    """What ids depend on besides the documents: not who is kept, and for which split."""
    config = {key: value for key, value in task.config.items() if key not in ("splits", "domain")}
    return [config, shard.made_of(i for i in task.inputs if i.role not in ("kept", "labels", "marks"))]


def take_files(task: Task[Any]) -> Made | None:
    """The files of the task, by the names that they have now; None where they have to be made."""
    note = _load(task.cached)
    if task.cached is None or note is None or note.made_of != made_of(task):
        return None
    folder, target = task.cached.path(TOKENS), Path(task.directory)
    entries = []
    try:
        since = (folder / _NOTE).stat().st_mtime_ns
        if not all(is_intact(folder / _name(file), file.entry, since) for file in note.files):
            return None
        now = time.time_ns()
        for file in note.files:
            path = _renamed(file.entry.path, task.key)
            make_directory((target / path).parent)
            scratch = temp_beside(target / path)
            os.link(folder / _name(file), scratch)
            os.utime(scratch, ns=(now, now))
            scratch.replace(target / path)
            sync_directory((target / path).parent)
            entries.append(msgspec.structs.replace(file.entry, path=path))
        os.utime(folder / _NOTE, ns=(now + _LATER, now + _LATER))
    except (OSError, TokmillError):
        return None
    return Made(entries, note.counts, note.facts)


def drop_damaged(directory: Path | None) -> None:
    """Entries whose files do not have the bytes that they had, as far as all of them say."""
    for folder in sorted(directory.glob(f"*.{TOKENS}")) if directory is not None else ():
        note = _load_note(folder)
        if note is None or not all(is_intact(folder / _name(file), file.entry, 0) for file in note.files):
            shutil.rmtree(folder)


def load_known(task: Task[Any]) -> Known | None:
    """Of the same texts, whoever is kept of them by now."""
    note = _load(task.cached)
    if task.cached is None or note is None or not note.facts.get("encoder"):
        return None
    folder = task.cached.path(TOKENS)
    parts: list[list[Any]] = []
    arrays: list[NDArray[np.integer]] = []
    for split in sorted({file.split for file in note.files}):
        files = {file.entry.table: file for file in note.files if file.split == split}
        try:
            since = (folder / _NOTE).stat().st_mtime_ns
            if not all(is_intact(folder / _name(file), file.entry, since) for file in files.values()):
                return None
            table = load_table(folder / _name(files["lengths"]), ["row", "tokens", "text_bytes"])
            arrays.append(map_array(folder / _name(files["tokens"]), note.dtype))
        except (OSError, TokmillError):
            return None
        rows, lengths, sizes = (np.asarray(column).astype(np.int64) for column in table.columns)
        parts.append([rows, np.full(len(rows), len(parts)), starts(lengths)[:-1], lengths, sizes])
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    order = np.argsort(columns[0], kind="stable")
    rows, array, begins, lengths, sizes = (column[order] for column in columns)
    return Known(rows, array, begins, lengths, sizes, arrays, note.told, note.facts["encoder"])


def keep_files(task: Task[Any], made: Made, dtype: str, told: Told) -> None:
    """Links, where the file system has them; whole or not at all."""
    if task.cached is None:
        return
    folder = task.cached.path(TOKENS)
    files = [_File(Path(entry.path).parts[0], entry) for entry in made.files]
    scratch = temp_beside(folder)
    with contextlib.suppress(OSError, TokmillError):
        make_directory(scratch)
        for file in files:
            os.link(Path(task.directory) / file.entry.path, scratch / _name(file))
        note = _Note(made_of(task), dtype, files, made.counts, made.facts or {}, told)
        data = msgspec.json.encode(note)
        commit_bytes(scratch / _NOTE, hashlib.sha256(data).digest() + data)
        if folder.is_dir():
            shutil.rmtree(folder)
        scratch.rename(folder)
        sync_directory(folder.parent)
        return
    shutil.rmtree(scratch, ignore_errors=True)


def _load(cached: Cached | None) -> _Note | None:
    return _load_note(cached.path(TOKENS)) if cached is not None else None


def _load_note(folder: Path) -> _Note | None:
    try:
        data = (folder / _NOTE).read_bytes()
    except OSError:
        return None
    digest, rest = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.sha256(rest).digest() != digest:
        return None
    with contextlib.suppress(msgspec.ValidationError):  # of an earlier version, which noted less
        return msgspec.json.decode(rest, type=_Note)
    return None


def _name(file: _File) -> str:
    return f"{file.split}.{_ENDINGS[file.entry.table]}"


def _renamed(path: str, key: str) -> str:
    """train/web/tokens-00003.bin -> train/web/tokens-00007.bin"""
    folder, _, name = path.rpartition("/")
    table, _, rest = name.partition("-")
    return f"{folder}/{table}-{key}.{rest.partition('.')[2]}"
