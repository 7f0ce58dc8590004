"""A run, opened to be read: its artifacts by step, and the tables of a shard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tokmill.artifact import Artifact, open_artifact
from tokmill.errors import StorageError
from tokmill.manifest import FileEntry
from tokmill.storage.parquet import load_table


class ShardTables(NamedTuple):
    """One shard of documents: where it is in the run, and the files that speak of it."""

    number: int  # through all sources
    source: str
    key: str
    documents: FileEntry

    @property
    def name(self) -> str:
        return f"{self.source}/{self.key}"


def open_run(directory: Path) -> dict[str, Artifact]:
    """Artifacts by step, in the order of the run."""
    root = open_artifact(directory)
    if root is None or root.manifest.kind != "run":
        raise StorageError(
            "is not the directory of a finished run",
            where=str(directory),
            next="give the output directory of `tokmill run`; run the recipe again if it was cut short",
        )
    found: dict[str, Artifact] = {}
    for entry in root.manifest.entries("manifest"):
        artifact = open_artifact((directory / entry.path).parent)
        if artifact is None:
            raise StorageError("is missing", where=str(directory / entry.path), next="run the recipe again")
        found[artifact.manifest.step] = artifact
    return found


def list_shard_tables(run: Mapping[str, Artifact]) -> Iterator[ShardTables]:
    number = 0
    for name, artifact in run.items():
        if artifact.manifest.kind == "ingest":
            source = name.removeprefix("ingest/")
            for entry in artifact.manifest.entries("documents"):
                key = entry.path.removeprefix("documents-").removesuffix(".parquet")
                yield ShardTables(number, source, key, entry)
                number += 1


def load_of(artifact: Artifact, path: str, columns: list[str] | None = None) -> Any | None:
    """The table in `path` of the artifact, or None where it has none."""
    if all(entry.path != path for entry in artifact.manifest.files):
        return None
    return load_table(artifact.directory / path, columns)


def numbers_in(table: Any, column: str) -> NDArray[Any]:
    """Numbers without nulls, as they lie in memory. `np.asarray` would load pandas where it is installed: 0.3 s."""
    whole = table.column(column)
    return np.from_dlpack(whole.chunk(0) if whole.num_chunks == 1 else whole.combine_chunks())
