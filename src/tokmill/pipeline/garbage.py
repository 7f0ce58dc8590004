"""What a run's directory can do without (`gc`):
steps as they were before, and what commands that were cut short left.

    <out>.previous/<step>/<fingerprint>/     kept by `run`: steps that the recipe no longer names, and with
                                             --keep-previous those that were replaced; freed are bytes
                                             that have no other name
    <out>.cache/                             what the next run need not compute again
    .tmp-*  .work                            left by a command that was killed

Nothing that the finished run consists of is ever among it, and nothing that tokmill did not write;
docs/how-to/disk.md says what of that may go, and what for.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tokmill.artifacts.cache import cache_bytes, cache_directory, prepare_cache
from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.previous import list_previous, own_bytes, previous_directory, remove_previous
from tokmill.artifacts.runs import is_workplace
from tokmill.errors import StorageError
from tokmill.storage.disk import is_temp, remove_file, storage_error
from tokmill.storage.lease import open_lease

_WORK = ".work"


class Garbage(NamedTuple):
    what: str
    path: str
    bytes: int  # that are freed when it goes


@short_repr
@dataclass(frozen=True)
class Collected:
    directory: Path
    found: list[Garbage]
    is_deleted: bool

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.found)

    def as_json(self) -> Json:
        found = [item._asdict() for item in self.found]
        return {"bytes": self.bytes, "deleted": self.is_deleted, "found": found}


def gc(directory: str | Path, *, delete: bool = False) -> Collected:
    """What the run in `directory` can do without, and how much it would free; `delete`:
    free it, while nobody works there."""
    out = Path(directory)
    if not out.is_dir() and not previous_directory(out).is_dir():
        raise StorageError("no such directory", where=str(out), next="give the directory of a run")
    if not delete:
        return Collected(out, _leftovers(out) + _previous(out) + _cache(out), False)
    with open_lease(out):
        found = _leftovers(out) + _previous(out) + _cache(out)
        leftovers = _leftovers(out)
        remove_previous(out)
        prepare_cache(out, lean=True)
        for item in leftovers:
            _remove(Path(item.path))
    return Collected(out, found, True)


def _previous(out: Path) -> list[Garbage]:
    return [
        Garbage(f"{kept.step} of {kept.created_at[:16].replace('T', ' ')}", str(kept.directory), kept.bytes)
        for kept in list_previous(out)
    ]


def _cache(out: Path) -> list[Garbage]:
    size = cache_bytes(out)
    return [Garbage("makes the next run cheaper", str(cache_directory(out)), size)] if size else []


def _leftovers(out: Path) -> list[Garbage]:
    """Of writers that were killed: of a run that works, the next step takes care of its own."""
    places = [path for root in (out, previous_directory(out)) for path in sorted(root.rglob("*"))]
    found: list[Path] = []
    for path in places:
        is_left = is_temp(path.name) or (path.name == _WORK and is_workplace(path))
        if is_left and not any(path.is_relative_to(other) for other in found):
            found.append(path)
    return [
        Garbage(
            "left by a command that was cut short",
            str(path),
            own_bytes(path) if path.is_dir() else path.stat().st_size,
        )
        for path in found
    ]


def _remove(path: Path) -> None:
    try:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            remove_file(path)
    except OSError as error:
        raise storage_error(error, path) from error
