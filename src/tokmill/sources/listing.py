"""Which files a source has, in the order in which they are read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tokmill.container import list_contained
from tokmill.recipe import Corpus, Hub, Source
from tokmill.sources.hub import list_data_files
from tokmill.storage.location import InputFile, find_files, local_path


def list_source(source: Source, base: Path) -> list[InputFile]:
    """All files of the source: patterns in recipe order, names sorted within each, none twice."""
    if source.corpus is not None:
        return [file for file, _ in list_corpus(source.corpus, base)]
    seen: dict[Path, InputFile] = {}
    for pattern in source.files or []:
        for file in find_files(pattern, base):
            seen.setdefault(local_path(file.path).resolve(), file)
    files = list(seen.values())
    # two patterns may find the same name in two places: both then show more of their path, until they differ
    while clashing := {name for name, count in Counter(file.name for file in files).items() if count > 1}:
        files = [file._replace(name=_longer_name(file)) if file.name in clashing else file for file in files]
    return files


def list_corpus(corpus: Corpus, base: Path) -> list[tuple[InputFile, str]]:
    """The shards of a container in its order, with the sha256 that each must have."""
    root = base / Path(corpus.root).expanduser() if corpus.root else None
    return list_contained(base / Path(corpus.manifest).expanduser(), root)


def list_hub(hub: Hub, revision: str) -> list[InputFile]:
    """The data files of a dataset at a commit."""
    files = list_data_files(hub.dataset, hub.config, hub.split, revision)
    return [InputFile(file.path, file, file.size, 0) for file in files]


def _longer_name(file: InputFile) -> str:
    depth = len(Path(file.name).parts) + 1
    return Path(*local_path(file.path).resolve().parts[-depth:]).as_posix()
