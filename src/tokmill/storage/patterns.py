"""Files that a pattern means, of this machine or of an object store: sorted, and never none.

    find_files("data/*.jsonl.zst", base)            ->  sorted InputFile(name, path, bytes, modified_ns)
    find_files("s3://bucket/data/*.jsonl.zst", …)   ->  the same, of objects
    find_all_files(["a/x.jsonl", "b/x.jsonl"], …)   ->  of several patterns: x.jsonl, b/x.jsonl

A pattern means the same in both: `*` stays within a part of the path, `**` is any number of parts, and what
begins with a dot is found only by a dot.
"""

from __future__ import annotations

import bisect
import contextlib
import difflib
import fnmatch
import functools
import glob
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from tokmill.errors import CorruptFile, EmptyGlob, InputError, StorageError, plural
from tokmill.storage.cloud import Meta
from tokmill.storage.location import (
    AnyPath,
    InputFile,
    ObjectFile,
    ObjectUrl,
    is_url,
    is_within,
    parse_url,
    read_whole,
)
from tokmill.storage.objects import open_store

_LOG = logging.getLogger("tokmill.storage")


class _LeftOut(NamedTuple):
    is_own: Callable[[Path | ObjectUrl], bool]
    found: dict[Path | ObjectUrl, None]


_left_out: ContextVar[_LeftOut | None] = ContextVar("left_out", default=None)


@contextlib.contextmanager
def leaving_out(is_own: Callable[[Path | ObjectUrl], bool]) -> Iterator[None]:
    """Find no files, objects and directories that are a command's own, until the block ends."""
    token = _left_out.set(_LeftOut(is_own, {}))
    try:
        yield
    finally:
        _left_out.reset(token)


def is_left_out(path: Path | ObjectUrl) -> bool:
    left_out = _left_out.get()
    if left_out is None or not left_out.is_own(path):
        return False
    left_out.found[path] = None
    return True


def warn_of_left_out() -> None:
    """Say which files were left out until now, if any were."""
    left_out = _left_out.get()
    if left_out is not None and left_out.found:
        count, first = len(left_out.found), next(iter(left_out.found))
        _LOG.warning(
            "%s that this command wrote itself %s left out of what it reads: %s%s",
            plural(count, "file"),
            "is" if count == 1 else "are",
            first,
            ", …" if count > 1 else "",
        )


def find_all_files(patterns: Iterable[str], base: Path) -> list[InputFile]:
    """In the order of the patterns, sorted by name within each, no file and no name twice: one whose name an
    earlier file has shows more of its path, as the pattern writes it. So a pattern that is added at the end
    renames nothing: ids of documents may be made of these names."""
    seen: dict[str, InputFile] = {}
    names: set[str] = set()
    for pattern in patterns:
        for file in find_files(pattern, base):
            if (place := _whole_path(file.path)) not in seen:
                name = next(name for name in _names(file) if name not in names)
                seen[place] = file._replace(name=name)
                names.add(name)
    return list(seen.values())


def _whole_path(path: AnyPath) -> str:
    """The same however it was found."""
    return str(path.resolve()) if isinstance(path, Path) else str(path).rpartition("#")[0]


def _names(file: InputFile) -> Iterator[str]:
    """2.txt, y/2.txt, …, data/y/2.txt, ./data/y/2.txt"""
    yield file.name
    parts = file.written.split("/")
    for depth in range(file.name.count("/") + 2, len(parts) + 1):
        yield "/".join(parts[-depth:])
    yield f"./{file.written}"


def find_files(pattern: str, base: Path) -> list[InputFile]:
    """Every regular file that matches, sorted by name; of a dataset that was saved to disk, its files.
    Matching nothing is an error. `a-{00..12}.tar` is thirteen names, and none of them may be missing."""
    is_a_name = not is_url(pattern) and (base / Path(pattern).expanduser()).exists()
    if not is_a_name and (several := _spelled_out(pattern)):
        return [file for one in several for file in find_files(one, base)]
    if is_url(pattern):
        return _object_files(pattern)
    wanted = Path(pattern).expanduser()
    root = base / Path(*fixed_part(wanted.parts))
    found = set()  # "**/**" matches a file more than once
    matches = _matching(wanted, base)
    for match in matches:
        path = base / match
        if match.endswith(os.sep):  # what is below a name; also said of a file, by "a.jsonl/**"
            continue
        if is_left_out(path):
            continue
        if path.is_file():
            found.add(_found_file(path, root, _as_written(match, pattern)))
        elif path.is_dir():  # what `**` finds is also found file by file
            for part in _saved_files(path) if "**" not in pattern else ():
                written = f"{_as_written(match, pattern)}/{part.relative_to(path).as_posix()}"
                found.add(_found_file(part, root, written))
        elif not path.exists():
            raise StorageError(
                "is a link to a file that is not there",
                where=str(path),
                next="fetch the file it points to, or remove the link",
            )
    if not found and any(is_left_out(base / match) for match in matches):
        raise EmptyGlob(
            "the pattern matches only files that this command wrote itself",
            where=pattern,
            next="name the files that are to be read, or give another directory with `--out`",
        )
    if not found and (base / wanted).is_dir():
        raise _is_directory(pattern, base / wanted)
    if not found:
        raise EmptyGlob(
            "the pattern matches no file",
            where=pattern,
            next=_why_empty(root, base, PurePosixPath(pattern).name),
        )
    return sorted(found)


def _found_file(path: Path, root: Path, written: str) -> InputFile:
    stat = path.stat()
    return InputFile(path.relative_to(root).as_posix(), path, stat.st_size, stat.st_mtime_ns, written)


def _as_written(match: str, pattern: str) -> str:
    """With the `~` that the pattern has for the directory of somebody."""
    if not pattern.startswith("~"):
        return PurePosixPath(match).as_posix()
    home = PurePosixPath(pattern).parts[0]
    return (home / PurePosixPath(match).relative_to(Path(home).expanduser())).as_posix()


def _matching(wanted: Path, base: Path) -> list[str]:
    """What `glob` finds. Where only the last part is a pattern, one listing serves all patterns that look
    into the same directory: a thousand sources with ten files each would list ten thousand files a thousand
    times, and compare each name."""
    last = wanted.name
    if glob.has_magic(str(wanted.parent)) or not glob.has_magic(last) or "**" in last:
        # not Path.glob, which refuses absolute patterns; `base` apart: a wildcard in its name is a letter
        return glob.glob(str(wanted), root_dir=base, recursive=True)  # noqa: PTH207
    directory = base / wanted.parent
    try:
        found = directory.stat()
        is_settled = time.time_ns() - found.st_mtime_ns > _UNSETTLED_NS
        names = (_listed if is_settled else _list)(str(directory), found.st_mtime_ns, found.st_ino)
    except OSError:  # none, or none that may be read: no file
        return []
    fixed = last[: next(n for n, letter in enumerate(last) if letter in "*?[")]
    first = bisect.bisect_left(names, fixed)
    stop = bisect.bisect_left(names, True, first, key=lambda name: not name.startswith(fixed))
    matches = fnmatch.filter(names[first:stop], last)
    return [str(wanted.parent / name) for name in matches if last.startswith(".") or name[0] != "."]


# A directory that changed a moment ago may change again in the same tick of its clock.
_UNSETTLED_NS = 2_000_000_000


def _list(directory: str, modified_ns: int, inode: int) -> list[str]:
    return sorted(os.listdir(directory))  # noqa: PTH208 (names are what is compared)


_listed = functools.lru_cache(maxsize=16)(_list)


def _is_directory(pattern: str, directory: Path) -> EmptyGlob:
    path = pattern.rstrip("/") or "/"
    if next(directory.glob("*/wiki_[0-9]*"), None) is not None:
        return EmptyGlob(
            "is a directory that WikiExtractor wrote",
            where=pattern,
            next="say so with `--format wikipedia`; in a recipe, write wikipedia: {} below it",
        )
    return EmptyGlob(
        "matches no file: it is a directory",
        where=pattern,
        next=f"name the files in it: `files: {path}/*.jsonl`, or `files: {path}/**/*.jsonl` for those "
        f"below; where every file is a document: `directory: {{path: {path}}}` instead of `files`",
    )


_NUMBERS = re.compile(r"\{(\d{1,9})\.\.(\d{1,9})\}")
_MAX_SPELLED = 100_000


def _spelled_out(pattern: str) -> list[str]:
    """Names of `a-{00..12}`, as shells and WebDataset write numbered shards; of any other pattern none."""
    numbers = _NUMBERS.search(pattern)
    if numbers is None:
        return []
    first, last = numbers.groups()
    count = int(last) - int(first) + 1
    if not 0 < count <= _MAX_SPELLED:
        raise InputError(
            f"`{numbers[0]}` is {max(count, 0):,} numbers",
            where=pattern,
            next=f"write them from the smaller to the larger, {_MAX_SPELLED:,} at most, or use `*`",
        )
    return [
        f"{pattern[: numbers.start()]}{number:0{len(first)}d}{pattern[numbers.end() :]}"
        for number in range(int(first), int(last) + 1)
    ]


_STATE, _SPLITS = "state.json", "dataset_dict.json"
_MAX_STATE_BYTES = 16 << 20


def _saved_files(directory: Path) -> list[Path]:
    """Of a directory that `save_to_disk` of `datasets` wrote, the files that it names; of any other none.

    saved/state.json           {"_data_files": [{"filename": "data-00000-of-00001.arrow"}, …], …}
    saved/dataset_dict.json    {"splits": ["train", …]}      a directory for each, as above
    """
    if (directory / _SPLITS).is_file():
        splits = _said_in(directory / _SPLITS, "splits")
        raise InputError(
            f"it has the splits {', '.join(map(str, splits))}",
            where=str(directory),
            next=f"name one of them: `files: {directory.name}/{splits[0] if splits else 'train'}`",
        )
    state = directory / _STATE
    if not (state.is_file() and (directory / "dataset_info.json").is_file()):
        return []
    names = [
        entry.get("filename") if isinstance(entry, dict) else None for entry in _said_in(state, "_data_files")
    ]
    files = [directory / name for name in names if isinstance(name, str) and is_within(name)]
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None or len(files) < len(names) or not files:
        raise CorruptFile(
            f"names {missing.name if missing else 'no file of this directory'}, and it is not there",
            where=str(state),
            next="save or copy the dataset again",
        )
    return files


def _said_in(path: Path, key: str) -> list[Any]:
    try:
        said = json.loads(read_whole(path, _MAX_STATE_BYTES)).get(key)
    except (ValueError, AttributeError, RecursionError):
        said = None
    if not isinstance(said, list):
        raise CorruptFile(f"has no list of `{key}`", where=str(path), next="save or copy the dataset again")
    return said


def _why_empty(root: Path, base: Path, last: str) -> str:
    shown = root.relative_to(base) if root.is_relative_to(base) else root
    if not root.is_dir():
        return f"there is no directory {shown}/; paths are relative to the recipe"
    names = sorted(entry.name for entry in root.iterdir())
    if not glob.has_magic(last) and (nearest := difflib.get_close_matches(last, names, 1, 0.8)):
        return f"did you mean {shown / nearest[0]}?"
    some = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return f"{shown}/ holds {len(names)} entries" + (f": {some}" if names else "")


def fixed_part(parts: Sequence[str]) -> Sequence[str]:
    """Of a pattern, what is above the first wildcard; of a plain path, its parent."""
    return parts[: next((n for n, part in enumerate(parts) if glob.has_magic(part)), -1)]


# --- objects ---


def _object_files(pattern: str) -> list[InputFile]:
    found = find_objects(pattern)
    if not found:
        raise EmptyGlob(
            "the pattern matches no object",
            where=str(parse_url(pattern)),
            next="check the bucket and the key; `*` does not cross a slash",
        )
    return found


def find_objects(pattern: str) -> list[InputFile]:
    """Every object that matches, by its name below the pattern's fixed part; sorted."""
    url = parse_url(pattern)
    store = open_store(url)
    wanted = url.key.split("/")
    fixed = "/".join(fixed_part(wanted))
    if not glob.has_magic(url.key):
        meta = store.head(url.key)
        return [] if meta is None else [_found(url, meta, fixed)]
    listed = {meta.key: meta for meta in store.list(f"{fixed}/" if fixed else "")}  # a page may come twice
    keys = [key for key in sorted(listed) if _matches(key.split("/"), wanted)]
    return [_found(url, listed[key], fixed) for key in keys if not is_left_out(url._replace(key=key))]


def _found(url: ObjectUrl, meta: Meta, fixed: str) -> InputFile:
    name = meta.key.removeprefix(f"{fixed}/") if fixed else meta.key
    file = ObjectFile(url._replace(key=meta.key), meta.size, meta.etag, meta.modified)
    return InputFile(name, file, file.size, file.version_number, str(url._replace(key=meta.key)))


def _matches(parts: list[str], wanted: list[str]) -> bool:
    if not wanted:
        return not parts
    if wanted[0] == "**":
        visible = next((n for n, part in enumerate(parts) if part.startswith(".")), len(parts))
        if len(wanted) == 1:
            return bool(parts) and visible == len(parts)
        return any(_matches(parts[n:], wanted[1:]) for n in range(visible + 1))
    if not parts or (parts[0].startswith(".") and not wanted[0].startswith(".")):
        return False
    return fnmatch.fnmatchcase(parts[0], wanted[0]) and _matches(parts[1:], wanted[1:])
