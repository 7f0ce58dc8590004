"""What belongs to a build and lies beside it: its tokenizer, and the listing that it was made from.

    <run>/tokenizer/…   <run>/build/rows/train/…            a build of a recipe
    <out>/tokenizer/…   <out>/train/… or <out>/…            of `build`, `pack`, `shard`, `encode`

A listing is known by its sha256, and so is a tokenizer: nothing is taken at its name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tokmill.artifact import open_artifact
from tokmill.errors import InputChanged, TokenizerError, TokmillError
from tokmill.loader.dataset import Dataset
from tokmill.manifest import Json
from tokmill.storage.location import file_sha256
from tokmill.tokenizers.load import load_tokenizer
from tokmill.tokenizers.protocol import Tokenizer


def find_tokenizer(dataset: Dataset, given: str | Path | None = None) -> Tokenizer:
    """The build's own, or the file that is given; either way its sha256 must be the recorded one."""
    path = Path(given) if given is not None else _tokenizer_beside(dataset)
    facts = dataset.manifest.facts.get("tokenizer", {}) if dataset.manifest is not None else {}
    return load_tokenizer(path, sha256=dataset.facts.tokenizer_sha256, encoding=facts.get("encoding"))


def run_of(dataset: Dataset) -> Path:
    """Where the run is whose build has this split."""
    return dataset.directory.parent.parent.parent


def _tokenizer_beside(dataset: Dataset) -> Path:
    for place in _tokenizer_places(dataset):
        if place.is_file():
            return place
    raise TokenizerError(
        "the tokenizer of this build is not beside it",
        where=str(dataset.directory),
        next="give its file with `--tokenizer`",
    )


def _tokenizer_places(dataset: Dataset) -> Iterator[Path]:
    meta, directory = dataset.store.meta, dataset.directory
    if meta.get("tokenizer_path"):
        yield directory / meta["tokenizer_path"]
    yield from (directory / name for name in meta.get("files", {}) if name.startswith("tokenizer/"))
    for place in (directory, directory.parent, run_of(dataset) / "tokenizer"):
        with contextlib.suppress(TokmillError):  # damage of another directory is not this build's
            artifact = open_artifact(place)
            if artifact is not None:
                yield from (artifact.path(entry) for entry in artifact.manifest.entries("tokenizer"))


def origin_of(dataset: Dataset) -> Json:
    """What a command made it from: `input_manifest` and `asked`; nothing, for a build of a recipe."""
    facts = dataset.manifest.facts if dataset.manifest is not None else {}
    return {
        key: found
        for key in ("input_manifest", "asked")
        if (found := facts.get(key) or dataset.store.meta.get(key))
    }


def find_listing(dataset: Dataset, given: str | Path | None = None) -> Path | None:
    """The listing of a build that a command made: the given file, or one of its name beside the build."""
    known = origin_of(dataset).get("input_manifest")
    if known is None:
        return None
    if given is not None:
        if file_sha256(Path(given)) != known["sha256"]:
            raise InputChanged(
                f"is not the {known['name']} that the build was made from (sha256 {known['sha256']})",
                where=str(given),
                next="give that file; a listing that has changed since says nothing about this build",
            )
        return Path(given)
    around = [dataset.directory, *dataset.directory.parents[:2]]
    places = [place / known["name"] for place in around]
    places += [path for place in around[1:] for path in sorted(place.glob(f"*/{known['name']}"))]
    return next((path for path in places if path.is_file() and file_sha256(path) == known["sha256"]), None)
