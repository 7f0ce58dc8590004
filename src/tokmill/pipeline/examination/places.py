"""Where a run goes: can it be written there, is there room, and do its nodes see what it reads?"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from tokmill.artifacts.cache import cache_directory
from tokmill.artifacts.directory import is_ours
from tokmill.artifacts.manifest import MANIFEST
from tokmill.artifacts.previous import previous_directory
from tokmill.artifacts.runs import BESIDE, is_own_file
from tokmill.errors import DiskFull, InputError, StorageError
from tokmill.pipeline.examination.mistakes import Found, Sizes
from tokmill.pipeline.freshness import NAMED, SINGLE
from tokmill.publish.prefix import is_prefix
from tokmill.publish.work_area import WORK
from tokmill.recipe import Recipe
from tokmill.storage.lease import CLAIM
from tokmill.storage.location import ObjectUrl, is_url, parse_url


class OwnFiles:
    """Tells the files that a run wrote itself from those that it is to read: its steps, also as they were
    before, its cache, and what lies beside its steps."""

    def __init__(self, directory: Path, out: object) -> None:
        """`directory`: where the run works; `out`: where it was told to write, which may be a URL."""
        self._out = directory.resolve()
        self._roots = [self._out, previous_directory(self._out)]
        self._cache = cache_directory(self._out)
        self._url = parse_url(str(out)) if is_url(out) else None
        self._places: dict[Path, Path] = {}
        self._steps: dict[Path, bool] = {}

    def __call__(self, path: Path | ObjectUrl) -> bool:
        return self._is_own(path) if isinstance(path, Path) else self._is_published(path)

    def _is_own(self, path: Path) -> bool:
        if path.parent not in self._places:
            self._places[path.parent] = path.parent.resolve()
        place = self._places[path.parent] / path.name
        if place.is_relative_to(self._cache):
            return True
        root = next((root for root in self._roots if place.is_relative_to(root)), None)
        if root is None:
            return False
        parts = place.relative_to(root).parts
        if not parts:  # `--out` is a file
            return False
        if root == self._out and len(parts) == 1 and parts[0] in BESIDE:
            return is_own_file(place)
        depth = (1 if parts[0] in SINGLE else 2) + (root != self._out)  # of a step, and of one that is kept
        step = root.joinpath(*parts[:depth])
        if parts[0] not in (*SINGLE, *NAMED) or len(parts) < depth:
            return False
        if step not in self._steps:
            self._steps[step] = is_ours(step)
        return self._steps[step]

    def _is_published(self, url: ObjectUrl) -> bool:
        if self._url is None or url[:-1] != self._url[:-1] or not url.key.startswith(f"{self._url.key}/"):
            return False
        first, *below = url.key.removeprefix(f"{self._url.key}/").split("/")
        return first in (MANIFEST, CLAIM) if not below else first == WORK or is_prefix(first)


_LOG = logging.getLogger("tokmill.pipeline")

# A run keeps documents twice, compressed, and tokens: as much as the input in all.
# A quarter does for the first copy alone.
_LEAST_SHARE = 4

_SHARE = (
    "run where the nodes share a disk, with a directory as `--out`; or on this machine (`--engine local`)"
)


def nothing_shared(found: Found, recipe: Recipe) -> None:
    """What a task reads beside its inputs, whatever lies there, cannot be sent to it."""
    for index, source in enumerate(recipe.sources):
        if source.directory is not None:
            what = "a directory of this machine is read in place, and these nodes see none"
            packed = f"write its texts to files, in the bucket or here; or {_SHARE}"
            found.note(("sources", index, "directory"), InputError(what, next=packed))
    if any("/" in str(name) for name in recipe.dedup.reference):
        what = "the indexes of earlier corpora are directories of this machine, and these nodes see none"
        found.note(("dedup", "reference"), InputError(what, next=_SHARE))


def check_writable(out: Path) -> None:
    nearest = next(path for path in (out, *out.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise StorageError(
            "cannot write here (it is a file, and results need a directory)",
            where=str(nearest),
            next="choose another directory with `--out`, or move the file",
        )
    is_effective = os.access in os.supports_effective_ids
    if not os.access(nearest, os.W_OK | os.X_OK, effective_ids=is_effective):
        raise StorageError(
            "cannot write here (no permission)",
            where=str(nearest),
            next="choose another directory with `--out`, or change its permissions",
        )


def check_disk(recipe: Recipe, out: Path, sizes: Sizes) -> None:
    """Roughly: what a run needs besides depends on the rules, and nobody knows that before."""
    bounded = {source.name for source in recipe.sources if source.limit or source.sample or source.where}
    incoming = sum(
        file.bytes
        for name, files in sizes.items()
        if files is not None and name not in bounded
        for file in files.fresh
    )
    nearest = next(path for path in (out, *out.absolute().parents) if path.exists())
    disk = shutil.disk_usage(nearest)
    free = disk.free
    if free >= incoming or not disk.total:  # what is no disk says 0 of 0
        return
    told = (
        f"the input has {_gigabytes(incoming)}, a run needs roughly as much, and {_gigabytes(free)} are free"
    )
    if free * _LEAST_SHARE < incoming:
        raise DiskFull(
            told, where=str(nearest), next="choose another disk with `--out`, or `limit` the sources"
        )
    _LOG.warning("%s: %s", nearest, told)


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
