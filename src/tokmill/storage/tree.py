"""The files of a directory, listed once, and read as parts of some thousand files.

    list_tree(root) ─ scandir, .gitignore ─ sorted by path ─ cut at 4,096 files or 16 MiB ─> FileList, …

    FileList     root   entries: (path, bytes, "") that is read, (path, 0, reason) that is not
                 open() ─> path NUL size LF content │ path NUL reason LF │ …    whose sha256 is its identity
                 load() ─> what every entry holds        check() ─> that no file is another by now

A part is one input of a step, so a million files are some hundred inputs. Links are not followed, which makes
loops impossible; `.git` is not entered; pipes and devices are not opened. A directory that is left out is one
entry, with a slash at its end: nobody looks into it.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tokmill.errors import EmptyGlob, InputChanged, InputError
from tokmill.storage.disk import ChunkStream, told_as_unreadable, unreadable
from tokmill.storage.gitignore import Rules, parse_rules
from tokmill.storage.location import InputFile, Stat
from tokmill.storage.patterns import is_left_out

_PART_FILES, _PART_BYTES = 4096, 16 << 20
_MAX_RULES_BYTES = 1 << 20
_IGNORED, _LINK, _SPECIAL, _NAME, _SIDE = "ignored", "link", "special_file", "bad_name", "side_file"


class Entry(NamedTuple):
    """`reason`: why it is not read."""

    name: str
    size: int
    reason: str = ""

    @property
    def header(self) -> bytes:
        return f"{self.name}\0{self.reason or self.size}\n".encode()


class FileList:
    """Some files of a directory; for a task and a manifest, what a path is."""

    suffix, suffixes = "", list[str]()

    def __init__(self, root: Path, entries: Sequence[Entry], times: Sequence[int] = ()) -> None:
        self._root, self.entries, self._times = root, entries, times
        self.name = root.name

    def __str__(self) -> str:
        return str(self._root)

    def stat(self) -> Stat:
        return Stat(sum(entry.size for entry in self.entries if not entry.reason))

    def open(self) -> io.RawIOBase:
        return ChunkStream(map(b"".join, self._contents()))

    def load(self) -> list[bytes]:
        """Of every entry, in order; nothing of one that is not read."""
        root = os.fsencode(self._root) + b"/"
        return [b"" if reason else _read(root + name.encode(), size) for name, size, reason in self.entries]

    def check(self) -> None:
        """As files are checked when their source was read: by size and time."""
        root = os.fsencode(self._root) + b"/"
        for (name, size, reason), modified_ns in zip(self.entries, self._times, strict=True):
            if reason:
                continue
            try:
                now = os.lstat(root + name.encode())
            except FileNotFoundError:
                raise _changed(f"{self._root}/{name}") from None
            except OSError as error:
                raise unreadable(error, f"{self._root}/{name}") from error
            if (now.st_size, now.st_mtime_ns) != (size, modified_ns):
                raise _changed(f"{self._root}/{name}")

    def _contents(self) -> Iterator[tuple[bytes, bytes]]:
        root = os.fsencode(self._root) + b"/"
        for entry in self.entries:
            yield entry.header, b"" if entry.reason else _read(root + entry.name.encode(), entry.size)


def _read(path: bytes, size: int) -> bytes:
    """In one read, for most. No link, and nothing to wait for: what was a file may be a pipe by now."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            data = os.read(file, size + 1)
            while len(data) < size and (more := os.read(file, size + 1 - len(data))):
                data += more
        finally:
            os.close(file)
    except FileNotFoundError:
        raise _changed(os.fsdecode(path)) from None
    except OSError as error:
        raise unreadable(error, os.fsdecode(path)) from error
    if len(data) != size:
        raise _changed(os.fsdecode(path))
    return data


def _changed(where: str) -> InputChanged:
    return InputChanged(
        "the file changed while its directory was being read",
        where=where,
        next="run again when nothing writes to the directory any more",
    )


# --- the listing ---


class _Seen(NamedTuple):
    name: bytes
    bytes: int
    modified_ns: int
    reason: str


def list_tree(
    root: Path,
    suffixes: Sequence[str],
    *,
    max_record_bytes: int,
    uses_gitignore: bool,
    is_side: Callable[[Path], bool],
) -> list[InputFile]:
    """Every file below `root` whose name ends in one of the suffixes, in parts. None is an error."""
    if not root.is_dir():
        raise _no_directory(root)
    ends = tuple(suffix.encode() for suffix in suffixes)
    seen = sorted(_walk(os.fsencode(root), ends, uses_gitignore, is_side))
    if all(one.reason for one in seen):
        why = ", ".join(sorted({one.reason for one in seen}))
        raise EmptyGlob(
            f"no file below it is read: all {len(seen):,} are left out ({why})"
            if seen
            else f"no file below it ends in {', '.join(suffixes)}",
            where=str(root),
            next="check the path; `directory: {suffixes: [.c, .h]}` names other files, and "
            "`gitignore: false` reads those that rules of git leave out",
        )
    return [_part(root, part, max_record_bytes) for part in _parts(seen)]


def _no_directory(root: Path) -> InputError:
    if root.exists():
        return InputError(
            "is a file, and `directory` reads the files of a directory",
            where=str(root),
            next=f"name it with `files: {root.name}`, or name the directory that it is in",
        )
    return InputError(
        "there is no such directory",
        where=str(root),
        next="check the path; it is relative to the recipe",
    )


def _walk(
    root: bytes, ends: tuple[bytes, ...], uses_gitignore: bool, is_side: Callable[[Path], bool]
) -> Iterator[_Seen]:
    waiting: list[tuple[bytes, tuple[tuple[int, Rules], ...]]] = [(b"", ())]
    while waiting:
        prefix, rules = waiting.pop()
        with told_as_unreadable(os.fsdecode(root + b"/" + prefix)):
            with os.scandir(root + b"/" + prefix) as found:
                entries = list(found)
            if uses_gitignore:
                for entry in entries:
                    if entry.name == b".gitignore" and entry.is_file(follow_symlinks=False):
                        # a deeper one decides before those above it
                        rules = ((len(prefix), _rules(entry)), *rules)
            for entry in entries:
                is_directory = entry.is_dir(follow_symlinks=False)
                if is_directory:
                    if entry.name == b".git":
                        continue
                elif not entry.name.endswith(ends) and not _leads_to_directory(entry):
                    continue
                if is_left_out(Path(os.fsdecode(entry.path))):
                    continue
                path = prefix + entry.name
                if rules and _is_ignored(rules, path, entry.name, is_directory):
                    yield _Seen(path + b"/" if is_directory else path, 0, 0, _IGNORED)
                elif is_directory:
                    waiting.append((path + b"/", rules))
                elif entry.is_symlink():
                    yield _Seen(path, 0, 0, _LINK)
                else:
                    facts = entry.stat(follow_symlinks=False)
                    is_file = stat.S_ISREG(facts.st_mode)
                    size, modified = (facts.st_size, facts.st_mtime_ns) if is_file else (0, 0)
                    if is_file and is_side(Path(os.fsdecode(entry.path))):
                        yield _Seen(path, 0, 0, _SIDE)
                    else:
                        yield _Seen(path, size, modified, "" if is_file else _SPECIAL)


def _leads_to_directory(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_symlink() and entry.is_dir()
    except OSError:  # a link to itself
        return False


def _rules(entry: os.DirEntry[bytes]) -> Rules:
    size = entry.stat(follow_symlinks=False).st_size
    if size > _MAX_RULES_BYTES:
        raise InputError(
            f"{size:,} bytes is more than the {_MAX_RULES_BYTES:,} that a `.gitignore` may have",
            where=os.fsdecode(entry.path),
            next="shorten it, or set `gitignore: false` in `directory`",
        )
    return parse_rules(_read(entry.path, size))


def _is_ignored(rules: tuple[tuple[int, Rules], ...], path: bytes, name: bytes, is_directory: bool) -> bool:
    for start, own in rules:
        verdict = own.verdict(path[start:], name, is_directory)
        if verdict is not None:
            return verdict
    return False


def _parts(seen: list[_Seen]) -> Iterator[list[_Seen]]:
    part: list[_Seen] = []
    size = 0
    for one in seen:
        if part and (len(part) == _PART_FILES or size + one.bytes > _PART_BYTES):
            yield part
            part, size = [], 0
        part.append(one)
        size += one.bytes
    yield part


def _part(root: Path, seen: list[_Seen], max_record_bytes: int) -> InputFile:
    entries = tuple(_entry(one, max_record_bytes) for one in seen)
    files = FileList(root, entries, [one.modified_ns for one in seen])
    # where a file has its time of change: a number of all of them, exact in JSON wherever it is read
    facts = repr([(one.name, one.bytes, one.modified_ns, one.reason) for one in seen])
    stamp = int.from_bytes(hashlib.sha256(facts.encode()).digest()[:7], "big")
    name = entries[0].name if len(entries) == 1 else f"{entries[0].name} to {entries[-1].name}"
    return InputFile(name, files, files.stat().st_size, stamp)


def _entry(one: _Seen, max_record_bytes: int) -> Entry:
    try:
        name = one.name.decode()
    except UnicodeDecodeError:
        return Entry(one.name.decode(errors="backslashreplace"), 0, _NAME)
    if one.bytes > max_record_bytes:
        return Entry(name, one.bytes, "too_large")
    return Entry(name, one.bytes, one.reason)
