"""Directories of this machine whose files may be elsewhere: each is brought when it is first read.

    with files_on_demand(directory, place):         a run whose shards are in an object store
        load_table(directory / "x.parquet")         at_hand(path): not here, so place.bring(path); then read

All that reads a file of a run by its path goes through `at_hand`: tables, maps, open_binary. Who only names a
file, for a task of another machine, brings nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, TypeVar

P = TypeVar("P", bound=object)


class Place(Protocol):
    def bring(self, path: Path) -> None: ...  # whole and proven under its name, or an error; unknown: nothing


_places: dict[Path, Place] = {}


@contextlib.contextmanager
def files_on_demand(directory: Path, place: Place) -> Iterator[None]:
    key = directory.absolute()
    assert key not in _places, f"{key} has one place"
    _places[key] = place
    try:
        yield
    finally:
        del _places[key]


def place_of(path: Path) -> Place | None:
    if not _places:  # of nearly every process
        return None
    whole = path.absolute()
    return next((place for directory, place in _places.items() if whole.is_relative_to(directory)), None)


def at_hand(path: P) -> P:
    """The path, with its file on this machine where it can be."""
    if _places and isinstance(path, (str, Path)) and not (here := Path(path)).exists():
        place = place_of(here)
        if place is not None:
            place.bring(here.absolute())
    return path
