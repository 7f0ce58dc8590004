"""The tokenizer of a build lies beside it, and is known by its sha256.

<run>/tokenizer/…   <run>/build/rows/train/…            a build of a recipe
<out>/tokenizer/…   <out>/train/… or <out>/…            of `build`, `shard`, `encode`
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tokmill.artifacts.directory import open_artifact
from tokmill.errors import TokenizerError, TokmillError
from tokmill.loader.dataset import Dataset
from tokmill.tokenizers.load import load_tokenizer
from tokmill.tokenizers.protocol import Tokenizer


def find_tokenizer(dataset: Dataset, given: str | Path | None = None) -> Tokenizer:
    """The build's own, or the file that is given; either way its sha256 must be the recorded one."""
    path = Path(given) if given is not None else next(filter(Path.is_file, _tokenizer_places(dataset)), None)
    if path is None:
        raise TokenizerError(
            "the tokenizer of this build is not beside it",
            where=str(dataset.directory),
            next="give its file (`--tokenizer`)",
        )
    facts = dataset.manifest.facts.get("tokenizer", {}) if dataset.manifest is not None else {}
    return load_tokenizer(path, sha256=dataset.facts.tokenizer_sha256, encoding=facts.get("encoding"))


def run_of(dataset: Dataset) -> Path:
    """Where the run is whose build has this split."""
    return dataset.directory.parent.parent.parent


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
