"""Ids of the documents of a shard that an earlier run encoded: a second name for its files, and a note.

    <out>.cache/tokens/<entry>.tokens/   note.json               sha256 of the rest │ what they were made of,
                                                                 and the digest of each file
                                         <split>.bin  <split>.idx  <split>.lengths  [<split>.loss]

They are links: the files of the run take no room twice, and one that the run no longer has is gone when the
next tokens step begins. An entry is named after the texts and the tokenizer. Of the same labels the files are
taken as they are, whatever the number of the shard is by now; of others each document that is in both.
A file that nobody wrote to after the note is not read again to be taken. To be taken is to be written: its
new name may be that of a file that another note, or a manifest, speaks of.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.cache import Cached, entry_name, sweep_table, sweep_texts
from tokmill.artifacts.manifest import FileEntry, Json, fingerprint_of
from tokmill.artifacts.step import Made, Task, is_intact
from tokmill.errors import TokmillError
from tokmill.storage.disk import commit_bytes, make_directory, sync_directory, temp_beside
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


class _Note(msgspec.Struct):
    made_of: str
    dtype: str
    files: list[_File]
    counts: Json
    facts: Json


class Known(NamedTuple):
    """Documents that have ids already: rows of the shard, ascending; ids of all, one after the other."""

    rows: NDArray[np.int64]
    ids: NDArray[np.int32]
    lengths: NDArray[np.int64]


def made_of(task: Task[Any]) -> str:
    """All that the files of a task depend on, but for its key."""
    inputs = [[item.role, item.content_sha256] for item in task.inputs if item.role not in _WITHOUT]
    return fingerprint_of([task.function, task.config, inputs])


def cached_tasks(directory: Path | None, tasks: list[Task[Any]]) -> list[Task[Any]]:
    """The same, each told where the ids of its documents are; those of other shards go first."""
    if directory is None:
        return tasks
    documents = [item.content_sha256 for task in tasks for item in task.inputs if item.role == "documents"]
    names = [entry_name(own, _how(task)) for own, task in zip(documents, tasks, strict=True)]
    sweep_texts(directory, documents)
    sweep_table(directory, TOKENS, names)
    return [
        msgspec.structs.replace(task, cached=Cached(str(directory), (name,), 0))
        for task, name in zip(tasks, names, strict=True)
    ]


def _how(task: Task[Any]) -> list[Any]:
    """What ids depend on besides the documents: not who is kept, and for which split."""
    config = {key: value for key, value in task.config.items() if key not in ("splits", "domain")}
    layers = [[i.role, i.content_sha256] for i in task.inputs if i.role not in ("kept", "labels", "marks")]
    return [config, layers]


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


def load_known(task: Task[Any], added: int, engine: str) -> Known | None:
    """`added`: tokens around each document; `engine`: what encoded them has to be what would now."""
    note = _load(task.cached)
    if task.cached is None or note is None or note.facts.get("encoder") != engine:
        return None
    folder = task.cached.path(TOKENS)
    rows, ids, lengths = [], [], []
    for split in sorted({file.split for file in note.files}):
        files = {file.entry.table: file for file in note.files if file.split == split}
        try:
            since = (folder / _NOTE).stat().st_mtime_ns
            if not all(is_intact(folder / _name(file), file.entry, since) for file in files.values()):
                return None
            table = load_table(folder / _name(files["lengths"]), ["row", "tokens"])
            ids.append(np.fromfile(folder / _name(files["tokens"]), note.dtype).astype(np.int32))
        except (OSError, TokmillError):
            return None
        rows.append(np.asarray(table.column("row")).astype(np.int64))
        lengths.append(np.asarray(table.column("tokens")).astype(np.int64))
    if not rows:
        return None
    return _in_order(np.concatenate(rows), np.concatenate(ids), np.concatenate(lengths), added)


def _in_order(rows: Any, ids: Any, lengths: Any, added: int) -> Known:
    """By row, and without what was put around them."""
    order, begins = np.argsort(rows), starts(lengths)[:-1]
    begin = begins + (added - 1)
    # the last of those that were added is after the document, the one before it is BOS
    pieces = _gather(ids, begin[order], (lengths - added)[order])
    return Known(rows[order], pieces, (lengths - added)[order])


def _gather(ids: Any, begins: Any, lengths: Any) -> Any:
    """ids[begin : begin + length] of each, one after the other."""
    ends = np.cumsum(lengths)
    places = np.arange(int(ends[-1]) if len(ends) else 0)
    return ids[places + np.repeat(begins - (ends - lengths), lengths)]


def merge_known(known: Known, rows: Any, new_rows: Any, new_ids: Any, new_lengths: Any) -> tuple[Any, Any]:
    """Ids and lengths of `rows`, each known or new."""
    all_rows = np.concatenate([known.rows, new_rows])
    lengths = np.concatenate([known.lengths, new_lengths])
    ids = np.concatenate([known.ids, new_ids.astype(np.int32, copy=False)])
    order = np.argsort(all_rows, kind="stable")
    places = order[np.searchsorted(all_rows[order], rows)]
    return _gather(ids, starts(lengths)[:-1][places], lengths[places]), lengths[places]


def keep_files(task: Task[Any], made: Made, dtype: str) -> None:
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
        note = _Note(made_of(task), dtype, files, made.counts, made.facts or {})
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
    return msgspec.json.decode(rest, type=_Note) if hashlib.sha256(rest).digest() == digest else None


def _name(file: _File) -> str:
    return f"{file.split}.{_ENDINGS[file.entry.table]}"


def _renamed(path: str, key: str) -> str:
    """train/web/tokens-00003.bin -> train/web/tokens-00007.bin"""
    folder, _, name = path.rpartition("/")
    table, _, rest = name.partition("-")
    return f"{folder}/{table}-{key}.{rest.partition('.')[2]}"
