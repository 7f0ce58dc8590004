"""A task on a node that shares nothing with the driver but a store.

    receipt in the store already?  ─ yes ─> it is the answer
    inputs ─ cache of the node, or the store, proven ─> <task>/<the driver's path>        hard links
    perform, with every path below <task>
    files ─> objects     receipts of what ran in the same pass     receipt ─> the answer

A kill between any two of these costs the time of the task: what is in the store is whole and has the name of
its content, and counts when the receipt is there. Files that were written here stay in the node's cache.
"""

from __future__ import annotations

import os
import re
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec.structs import replace

from tokmill.artifacts.manifest import Receipt, load_receipts
from tokmill.artifacts.step import Task
from tokmill.artifacts.stored import Stored
from tokmill.errors import RecipeError, StorageError, TokmillError
from tokmill.publish.work_area import WorkArea, move_files, stored
from tokmill.storage.disk import is_refused_write, told_as_unwritable
from tokmill.storage.file_cache import CACHE_BYTES, FileCache
from tokmill.storage.location import is_url, parse_url

CACHE_VARIABLE, BYTES_VARIABLE = "TOKMILL_NODE_CACHE", "TOKMILL_NODE_CACHE_GIGABYTES"


def perform_in_store(task: Task, told: Stored, perform: Callable[[Task], Receipt]) -> Receipt:
    area = WorkArea(parse_url(told.url))
    before = area.load_note(task.fingerprint)
    if before is not None and area.has_files(before.receipt.files):
        return before.receipt
    cache = open_cache()
    with cache.open_task() as directory:

        def bring(path: str) -> None:
            file = told.files[path]
            cache.link(file.sha256, file.bytes, _below(directory, path), lambda: area.read(file))

        move_files(bring, sorted(told.files))
        try:
            receipt = perform(_moved(task, directory))
        except TokmillError as error:
            if _is_refused_below(directory, error):
                raise cache.refused(error) from error
            raise _as_the_driver_says(error, directory) from error
        for followed in task.followers:
            for one in load_receipts(_below(directory, followed.directory)):
                _hand_in(one, Path(followed.directory), directory, area, cache)
        return _hand_in(receipt, Path(task.directory), directory, area, cache)


def open_cache() -> FileCache:
    """Of this node, as its environment says."""
    written = os.environ.get(BYTES_VARIABLE, "")
    if not re.fullmatch(r"[0-9]*", written):
        raise RecipeError(
            f"{written} is not a whole number",
            where=BYTES_VARIABLE,
            next="set it to gigabytes, or not at all",
        )
    directory = Path(os.environ.get(CACHE_VARIABLE) or f"{tempfile.gettempdir()}/tokmill-node-{os.getuid()}")
    with told_as_unwritable(directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        owner = directory.stat().st_uid
    if owner != os.getuid():
        raise StorageError(
            "the cache of this node belongs to another user",
            where=str(directory),
            next=f"set {CACHE_VARIABLE} to a directory of your own",
        )
    return FileCache(directory, int(written) * 10**9 if written else CACHE_BYTES)


def _hand_in(receipt: Receipt, where: Path, directory: Path, area: WorkArea, cache: FileCache) -> Receipt:
    """Its files, then the receipt."""
    made = _below(directory, str(where))
    move_files(lambda entry: area.send(made / entry.path, stored(entry)), receipt.files)
    note = area.commit(receipt, socket.gethostname())
    for entry in receipt.files:
        cache.add(entry.sha256, made / entry.path)
    return note.receipt


def _moved(task: Task, directory: Path) -> Task:
    """The same task, with every path of the driver's below the directory."""
    inputs = [
        item if is_url(item.path) else replace(item, path=str(_below(directory, item.path)))
        for item in task.inputs
    ]
    return replace(
        task,
        directory=str(_below(directory, task.directory)),
        inputs=inputs,
        followers=[_moved(follower, directory) for follower in task.followers],
        cached=None,
        stored=None,
    )


def _below(directory: Path, path: str) -> Path:
    assert path.startswith("/"), f"{path} is absolute, or means another place on every node"
    return directory / path.removeprefix("/")


def _is_refused_below(directory: Path, error: TokmillError) -> bool:
    """The disk of this node could not be written to: no other `--out` would help."""
    by = error.__cause__
    is_refused = isinstance(error, StorageError) and isinstance(by, OSError) and is_refused_write(by)
    return is_refused and Path(error.where).is_relative_to(directory)


def _as_the_driver_says(error: TokmillError, directory: Path) -> TokmillError:
    """With the paths that the user knows."""
    what, where, what_next = (text.replace(str(directory), "") for text in _words(error))
    return type(error)(what, where=where, next=what_next)


def _words(error: TokmillError) -> Iterator[str]:
    yield from (error.what, error.where, error.next)
