"""What an earlier command finished in a directory, and whether another may work there.

    nothing finished             go on: a killed attempt resumes
    the same, all there          nothing to do
    the same, not whole          make it again
    another                      refused, with what differs; --replace makes the new one in its place

The same is what was asked for in the same words. Those are all that can change a byte: options, the listing, the sha256
of the tokenizer and of every local file.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tokmill.artifact import has_all_files, open_artifact
from tokmill.errors import InputError
from tokmill.formats.token_cache import META_NAME, TokenCache
from tokmill.manifest import MANIFEST, Json, explain_changes
from tokmill.recipe import Recipe
from tokmill.storage.commit import remove_file

_SHOWN = 4  # differences; a listing of hundreds of files may differ in all of them


class Finished(NamedTuple):
    """Files of a finished result, relative to its directory, and what was asked for (None: not recorded)."""

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
        meta = TokenCache(directory, model_sha256=None).meta
    except InputError:  # of the old form, or damaged: whatever it is, it is not what is asked for now
        return Finished(directory, [META_NAME], None, False)
    files = [*(part.file for part in meta.parts), *meta.files]
    is_whole = all((directory / name).is_file() for name in files)
    return Finished(directory, [*files, META_NAME], meta.asked, is_whole)


def is_done(finished: Finished | None, asked: Json, *, replace: bool) -> bool:
    """Whether there is nothing to do; something else that is finished there is an error, unless it may be replaced."""
    if finished is None:
        return False
    if finished.asked == asked:
        return finished.is_whole
    if not replace:
        told = None if finished.asked is None else _as_told(finished.asked)
        raise other_options(finished.directory, told, _as_told(asked))
    return False


def other_options(place: Path, before: Json | None, now: Json) -> InputError:
    """What is finished in `place` was asked for in other words (None: it does not say in which)."""
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
        next="give another directory, or `--replace` (in Python: `replace=True`) to make the new one in its place",
    )


def options_of(recipe: Recipe) -> Json:
    """What a single step was given. Its files are told by their digests, once they were read."""
    return recipe.model_dump(
        mode="json", exclude_defaults=True, exclude={"name": True, "sources": {"__all__": {"files"}}}
    )


def _as_told(asked: Json) -> Json:
    """Options by the names of a recipe: people did not write the sections that hold them."""
    return {**asked["sections"], "listing": asked["listing"], "inputs": asked["inputs"]}
