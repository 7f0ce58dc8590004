"""Which files a source has, in the order in which they are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from tokmill.container import list_contained
from tokmill.errors import InputError
from tokmill.recipe import Corpus, Hub, Source
from tokmill.sources.hub import configs_of_language, list_data_files
from tokmill.sources.hubfile import LOG
from tokmill.storage.location import AnyPath, InputFile, find_files

_NEEDS_FILES = ("stackexchange",)


def list_source(source: Source, base: Path) -> list[InputFile]:
    """All files of the source: patterns in recipe order, names sorted within each, none twice."""
    if source.corpus is not None:
        return [file for file, _ in list_corpus(source.corpus, base)]
    seen: dict[str, InputFile] = {}
    for pattern in source.files or []:
        for file in find_files(pattern, base):
            seen.setdefault(_whole_path(file.path), file)
    files = list(seen.values())
    _check_reachable(source, files)
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


def list_hub_of_language(hub: Hub, revision: str, languages: Sequence[str]) -> tuple[Hub, list[InputFile]]:
    """The same; of a dataset with a config for each language and none asked for, the one of the language that is
    kept, and a line says so. With several languages, or several configs of one, it has to be said which."""
    chosen: list[str] = []

    def choose(names: list[str]) -> str | None:
        found = [name for language in languages for name in configs_of_language(names, language)]
        if len(found) != 1:
            return None
        chosen.extend(found)
        LOG.warning(
            f"{hub.dataset} has {len(names):,} configs and no default: {found[0]} is read, for the language "
            f"{languages[0]} that is kept; `config` chooses another"
        )
        return found[0]

    files = list_data_files(hub.dataset, hub.config, hub.split, revision, choose)
    settled = hub.model_copy(update={"config": chosen[0]}) if chosen else hub
    return settled, [InputFile(file.path, file, file.size, 0) for file in files]


def _check_reachable(source: Source, files: list[InputFile]) -> None:
    """Archives are unpacked from a file; everything else is read as a stream."""
    if source.format in _NEEDS_FILES:
        for file in files:
            if not isinstance(file.path, Path):
                raise InputError(
                    f"source `{source.name}`: `{source.format}` reads files of this machine",
                    where=str(file.path),
                    next="copy the dump to a directory of this machine and point `files` there",
                )


def _whole_path(path: AnyPath) -> str:
    """The same however it was found."""
    return str(path.resolve()) if isinstance(path, Path) else str(path).rpartition("#")[0]


def _longer_name(file: InputFile) -> str:
    depth = len(PurePosixPath(file.name).parts) + 1
    return PurePosixPath(*PurePosixPath(_whole_path(file.path)).parts[-depth:]).as_posix()
