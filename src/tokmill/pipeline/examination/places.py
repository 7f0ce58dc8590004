"""Where a run goes: can it be written there, is there room, and do its nodes see what it reads?"""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

from tokmill.errors import DiskFull, InputError, StorageError
from tokmill.pipeline.examination.mistakes import Found, Sizes
from tokmill.recipe import Recipe

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
