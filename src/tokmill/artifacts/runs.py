"""A finished run, by its own manifest, which lists that of every step; a copy of one, to be gone on with; and
which files of its directory are its own."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Container, Iterable, Sequence
from pathlib import Path

from tokmill.artifacts.directory import Artifact, foreign_files, is_ours, is_settled, open_artifact
from tokmill.artifacts.history import HISTORY_FILE
from tokmill.artifacts.manifest import MANIFEST, Manifest
from tokmill.artifacts.progress import ESTIMATE, JOURNAL, load_journal
from tokmill.artifacts.tombstones import FORGOTTEN_FILE, PENDING_FILE
from tokmill.errors import StorageError, TokmillError, plural
from tokmill.storage.disk import is_temp, remove_file
from tokmill.storage.lease import LOCK

# What other commands write into a run: it may quote documents, and is made again from the artifacts.
DERIVED = ("report.html", "report.json", "review.md", "review.json", "DATACARD.md", "croissant.json")


def refuse_pending(directory: Path) -> None:
    """Refuse to read a run while documents are being taken out of it: what is written meanwhile might quote
    them for good."""
    if (directory / PENDING_FILE).is_file():
        raise StorageError(
            "a takedown is not done: documents that are to go are still in the run",
            where=str(directory),
            next="give the same `tokmill forget` again, or run the recipe: either ends it",
        )


def remove_derived(directory: Path) -> None:
    """Remove what other commands wrote into a run of texts that are there no more."""
    for path in (directory / name for name in DERIVED):
        if path.is_file() and is_own_file(path):
            remove_file(path)


def load_finished(directory: Path) -> Manifest:
    """The manifest of a run that came to its end."""
    refuse_pending(directory)
    root = open_artifact(directory) if directory.is_dir() else None
    if root is None or root.manifest.kind != "run":
        raise StorageError(
            "is not the directory of a finished run",
            where=str(directory),
            next="give the output directory of `tokmill run`; run the recipe again if it was cut short",
        )
    return root.manifest


_OF_DOCUMENTS = ("ingest", "clean", "dedup", "split", "mixture")


def open_documents(directory: Path) -> dict[str, Artifact]:
    """What says which documents a finished run has, and which of them it chose."""
    found = {
        name: artifact
        for name, artifact in open_run(directory).items()
        if artifact.manifest.kind in _OF_DOCUMENTS
    }
    if "split" not in found:
        raise StorageError(
            "the run ended before the split: which documents it has is not decided",
            where=str(directory),
            next="run the recipe to its end: `tokmill run RECIPE`",
        )
    return found


def open_run(directory: Path) -> dict[str, Artifact]:
    """Artifacts by step, in the order of the run."""
    found: dict[str, Artifact] = {}
    for entry in load_finished(directory).entries("manifest"):
        artifact = open_artifact((directory / entry.path).parent)
        if artifact is None:
            raise StorageError("is missing", where=str(directory / entry.path), next="run the recipe again")
        found[artifact.manifest.step] = artifact
    return found


def link_run(source: Path, target: Path) -> None:
    """All steps, without the manifest of the run: it is none until its own steps are done. What is there
    stays, so a copy that was cut short is completed."""
    for directory, _, names in os.walk(source):
        below = target / Path(directory).relative_to(source)
        below.mkdir(parents=True, exist_ok=True)
        for name in sorted(names):
            if Path(directory) == source or (below / name).exists():
                continue
            if name.endswith(".json"):
                shutil.copyfile(Path(directory) / name, below / name)
            else:
                os.link(Path(directory) / name, below / name)


ATTRIBUTION = "ATTRIBUTION.md"

# Files beside the steps of a run, and text that stands in them and hardly in others of the same names.
_SAID: dict[str, tuple[bytes, ...]] = {
    LOCK: (b'{"pid"',),
    JOURNAL: (b'"begun_at"',),
    ESTIMATE: (b'"scratch"',),
    ATTRIBUTION: (b"# Attribution\n",),
    **dict.fromkeys(DERIVED, (b"tokmill", b"# Review of ", b'"review_version"', b"mlcommons.org/croissant")),
}
BESIDE = (MANIFEST, *_SAID, FORGOTTEN_FILE, PENDING_FILE, HISTORY_FILE)

_SHOWN = 5  # files of a refusal


def is_workplace(directory: Path) -> bool:
    """True for a directory in which a command works, or worked until it was killed."""
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    if all(name in (LOCK, _WRITING) or is_temp(name) for name in names):
        return True
    below = (directory, *directory.glob("*/"))
    steps = (path for pattern in ("*/*/", "*/*/*/") for path in directory.glob(pattern))
    return any(load_journal(path) is not None for path in below) or any(map(is_ours, (*below, *steps)))


def check_workplace(work: Path) -> None:
    """Refuse a directory of others where a command is to work: all of it goes when the command is done."""
    if work.is_dir() and not is_workplace(work):
        refuse_foreign(foreign_files(work), work.parent)


def refuse_taken(
    out: Path, names: Iterable[str], known: Container[str], work: Path, *, replace: bool
) -> None:
    """Refuse to write files over others of their names, in `out`, that no result of ours lists (`known`).
    `work`: where the command works; it knows there that it wrote some of them before it was killed."""
    note = work / _WRITING
    if not replace and not note.exists():
        taken = [out / name for name in names if name not in known and (out / name).exists()]
        refuse_foreign(
            taken, out, "move them elsewhere, give another directory, or `--replace` to have them replaced"
        )
    note.touch()


_WRITING = ".writing"


def recipe_in(directory: Path) -> str | None:
    """The name of the recipe whose run is in the directory, finished or not; None where there is none."""
    with contextlib.suppress(TokmillError):
        root = open_artifact(directory)
        if root is not None and root.manifest.kind == "run":
            return root.manifest.step
    journal = load_journal(directory)
    return journal.recipe if journal is not None else None


def foreign_in_run(out: Path, steps: Sequence[str]) -> list[Path]:
    """List the files that tokmill did not write where a run of these steps would write, as far as that can be
    seen without a plan: a step that is finished may stay as it is."""
    places = [out / name for name in (LOCK, MANIFEST, JOURNAL, ESTIMATE, ATTRIBUTION)]
    found = [path for path in places if path.is_file() and not is_own_file(path)]
    listed = _listed_steps(out)  # of which somebody may have removed the manifest
    strange = [out / step for step in steps if step not in listed and not is_ours(out / step)]
    return found + [path for directory in strange for path in foreign_files(directory)]


def _listed_steps(out: Path) -> set[str]:
    with contextlib.suppress(TokmillError):
        root = open_artifact(out)
        if root is not None:
            return {Path(entry.path).parent.as_posix() for entry in root.manifest.entries("manifest")}
    return set()


def foreign_in_step(directory: Path) -> list[Path]:
    """List the files that tokmill did not write in a finished step that is to be made again. In one that was
    cut short they stay where they are."""
    return foreign_files(directory) if is_settled(directory) else []


def is_own_file(path: Path) -> bool:
    """True for a file beside the steps of a run that tokmill wrote."""
    if path.name == MANIFEST:
        return is_ours(path.parent)
    with contextlib.suppress(OSError):  # it is gone by now
        data = path.read_bytes() if path.name in _SAID else b""
        if data and not any(said in data for said in _SAID[path.name]):
            return False
    return path.name in (LOCK, JOURNAL, ESTIMATE, *DERIVED) or is_workplace(path.parent)


def refuse_foreign(found: Iterable[Path], directory: Path, next: str | None = None) -> None:
    """Raise if there are files that tokmill did not write in the place of what is to be written."""
    paths = [path.relative_to(directory) if path.is_relative_to(directory) else path for path in found]
    if not paths:
        return
    named = ", ".join(map(str, paths[:_SHOWN])) + (", …" if len(paths) > _SHOWN else "")
    lie = "lies" if len(paths) == 1 else "lie"
    raise StorageError(
        f"{plural(len(paths), 'file')} that tokmill did not write {lie} where this would write: {named}",
        where=str(directory),
        next=next or "move them elsewhere, or give another directory with `--out`",
    )
