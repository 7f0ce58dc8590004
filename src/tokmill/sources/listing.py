"""Which files a source has, in the order in which they are read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tokmill.recipe import Source
from tokmill.storage.location import InputFile, find_files


def list_source(source: Source, base: Path) -> list[InputFile]:
    """All files of the source: patterns in recipe order, names sorted within each, none twice."""
    seen: dict[Path, InputFile] = {}
    for pattern in source.files:
        for file in find_files(pattern, base):
            seen.setdefault(file.path.resolve(), file)
    files = list(seen.values())
    # two patterns may find the same name in two places: both then show more of their path, until they differ
    while clashing := {name for name, count in Counter(file.name for file in files).items() if count > 1}:
        files = [file._replace(name=_longer_name(file)) if file.name in clashing else file for file in files]
    return files


def _longer_name(file: InputFile) -> str:
    depth = len(Path(file.name).parts) + 1
    return Path(*file.path.resolve().parts[-depth:]).as_posix()
