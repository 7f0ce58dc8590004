"""What an earlier command finished in a directory, whether another may work there,
and how a build leaves its run.

    find_finished ─┬─ nothing                     go on: a killed attempt resumes
                   ├─ same options, all there     nothing to do
                   ├─ same options, not whole     make it again
                   └─ other options               refused, with what differs; --replace makes the new one in
                                                  its place

    <run>/build/<name>/<split>/…  ─ moved ─> <target>/<split>/…  tokenizer/<file>  manifest.json (last)
                                             <target>/…          where there is one split only

Options are all that can change a byte: those of the command, the listing, the sha256 of the tokenizer and of
every local file. `tokmill verify` proves a build that was moved out, and a trainer opens it, wherever it is
copied.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import msgspec

from tokmill.artifacts.directory import Artifact, has_all_files, open_artifact
from tokmill.artifacts.manifest import (
    MANIFEST,
    FileEntry,
    Json,
    Manifest,
    Receipt,
    build_manifest,
    explain_changes,
    file_entry,
    fingerprint_of,
    write_manifest,
)
from tokmill.errors import InputError
from tokmill.formats.token_cache import META_NAME, TokenCache
from tokmill.recipe import Recipe
from tokmill.storage.disk import commit_bytes, load_bytes, move_committed, remove_file
from tokmill.storage.location import read_whole

_SHOWN = 4  # differences; a listing of hundreds of files may differ in all of them


class Finished(NamedTuple):
    """Files of a finished result, relative to its directory, and its options (None: not recorded)."""

    directory: Path
    files: list[str]
    asked: Json | None
    is_whole: bool

    def remove_all_but(self, kept: set[str]) -> None:
        """What the new one does not have; directories that are empty then go too."""
        for name in sorted(set(self.files) - kept, reverse=True):
            path = self.directory / name
            remove_file(path)
            if path.parent != self.directory and path.parent.is_dir() and not any(path.parent.iterdir()):
                path.parent.rmdir()


def find_finished(directory: Path) -> Finished | None:
    artifact = open_artifact(directory)
    if artifact is not None:
        if artifact.manifest.kind != "build" or "input_manifest" not in artifact.manifest.facts:
            raise InputError(
                f"belongs to a {artifact.manifest.kind} of a recipe: its {MANIFEST} would be lost",
                where=str(directory),
                next="give another directory",
            )
        files = [entry.path for entry in artifact.manifest.files]
        return Finished(
            directory, [*files, MANIFEST], artifact.manifest.facts.get("asked"), has_all_files(artifact)
        )
    if not (directory / META_NAME).is_file():
        return None
    try:
        meta = TokenCache(directory).meta
    except InputError:  # of the old form, or damaged: whatever it is, its options are others
        return Finished(directory, [META_NAME], None, False)
    files = [*(part.file for part in meta.parts), *meta.files]
    is_whole = all((directory / name).is_file() for name in files)
    return Finished(directory, [*files, META_NAME], meta.asked, is_whole)


def is_done(finished: Finished, asked: Json, *, replace: bool) -> bool:
    """Whether there is nothing to do; something else that is finished there is an error,
    unless it may be replaced."""
    if finished.asked == asked:
        return finished.is_whole
    if not replace:
        before = None if finished.asked is None else _as_recorded(finished.asked)
        raise other_options(finished.directory, before, _as_recorded(asked))
    return False


def other_options(place: Path, before: Json | None, now: Json) -> InputError:
    """What is finished in `place` has other options (None: it does not record them)."""
    if before is None:
        what = "holds a finished result that does not say what it was made from"
    else:
        changes = explain_changes(before, now)
        more = f"; and {len(changes) - _SHOWN} more" if len(changes) > _SHOWN else ""
        what = (
            "holds a finished result that was made with other options: " + "; ".join(changes[:_SHOWN]) + more
        )
    return InputError(
        what,
        where=str(place),
        next=(
            "give another directory, or `--replace` (in Python: `replace=True`) to make the new one in its "
            "place"
        ),
    )


def options_of(recipe: Recipe) -> Json:
    """What a single step was given. Its files are known by their digests, once they were read."""
    return recipe.model_dump(
        mode="json", exclude_defaults=True, exclude={"name": True, "sources": {"__all__": {"files"}}}
    )


def _as_recorded(asked: Json) -> Json:
    """Options by the names of a recipe: people did not write the sections that hold them."""
    return {**asked["sections"], "listing": asked["listing"], "inputs": asked["inputs"]}


_META = "meta.json"
_TOKENIZER = "tokenizer"
_MAX_TOKENIZER_BYTES = 1 << 30


def published_names(build: Artifact, tokenizer: Artifact, only_split: str | None) -> list[str]:
    """Files that `publish` writes."""
    strip = f"{only_split}/" if only_split else ""
    return [*(entry.path.removeprefix(strip) for entry in build.manifest.files), tokenizer_name(tokenizer)]


def publish(
    build: Artifact,
    tokenizer: Artifact,
    target: Path,
    facts: Json,
    only_split: str | None,
    former: Finished | None,
) -> Manifest:
    """The build's files and its tokenizer in `target`, in the place of `former`;
    `facts` come to those of the build."""
    strip = f"{only_split}/" if only_split else ""
    remove_file(target / MANIFEST)  # until all is there, nothing is
    files = [_moved(build, entry, target, strip) for entry in build.manifest.files]
    files.append(copy_tokenizer(tokenizer, target))
    made = build.manifest
    receipt = Receipt(key="build", fingerprint=made.fingerprint, files=files, counts=made.counts)
    manifest = build_manifest(
        kind=made.kind,
        step=made.step,
        config=made.config,
        inputs=made.inputs,
        receipts=[receipt],
        counts=made.counts,
        facts={**made.facts, **facts},
        experiment_id=made.experiment_id,
        environment=made.environment,
    )
    write_manifest(target, manifest)
    if former:
        former.remove_all_but({*(entry.path for entry in files), MANIFEST})
    return manifest


def _moved(build: Artifact, entry: FileEntry, target: Path, strip: str) -> FileEntry:
    path, name = build.path(entry), entry.path.removeprefix(strip)
    if path.name != _META:
        move_committed(path, target / name)
        return msgspec.structs.replace(entry, path=name)
    described = json.loads(load_bytes(path))
    up = "../" * name.count("/")
    described["tokenizer_path"] = f"{up}{_TOKENIZER}/{Path(described['tokenizer_path']).name}"
    data = json.dumps(described, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"
    written = commit_bytes(target / name, data)
    del described["created_at"]
    return file_entry(name, entry.table, written, rows=entry.rows, content_sha256=fingerprint_of(described))


def tokenizer_name(tokenizer: Artifact) -> str:
    """Where a copy of the tokenizer lies in a build that left its run."""
    (entry,) = tokenizer.manifest.entries("tokenizer")
    return f"{_TOKENIZER}/{Path(entry.path).name}"


def copy_tokenizer(tokenizer: Artifact, target: Path) -> FileEntry:
    (entry,) = tokenizer.manifest.entries("tokenizer")
    name = tokenizer_name(tokenizer)
    written = commit_bytes(target / name, read_whole(tokenizer.path(entry), _MAX_TOKENIZER_BYTES))
    return file_entry(name, "tokenizer", written, rows=entry.rows)
