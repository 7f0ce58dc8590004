"""A build in an object store, as its readers know a directory.

    s3://bucket/run/build/rows/train
        …/rows/manifest.json                     a build that was copied there: the files that it names
        s3://bucket/run/manifest.json            a run that was published: the same below its digest
        neither                                  what a listing tells: a split, or a token cache, copied alone

    ObjectPath   path / "meta.json"   is_file · stat · open · read_bytes · glob …   as much of a Path as
                 path.map(dtype, …)   an array over blocks of the cache             readers of formats use

Where there is a manifest, it says what is there, and nothing is listed. An object is pinned by its etag when
it is first looked at, and every read asks for that version: another one is an error, never a mixture.

What is mapped goes through the cache (tokmill.storage.cached). What is opened, headers and indexes, is read
by ranges and not kept. Without a directory for it, the cache is a temporary one. It is made when the dataset
is opened, so that forked workers share it, and removed with the process, or when nobody has the dataset.
"""

from __future__ import annotations

import errno
import fnmatch
import io
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import MANIFEST, Manifest, load_manifest
from tokmill.errors import CorruptFile, InputChanged, InputError, ManifestError, StorageError
from tokmill.publish.prefix import publication_prefix
from tokmill.storage.cached import CACHE_BYTES, BlockArray, BlockCache
from tokmill.storage.cloud import Meta
from tokmill.storage.disk import told_as_unwritable
from tokmill.storage.location import ObjectFile, ObjectUrl, Stat, parse_url
from tokmill.storage.objects import open_store

_REQUESTS_AT_A_TIME = 16
# Read in one go, and remembered: every format is asked whether a description is its own.
# A build of many small chunks goes through the cache like one of large ones.
_SMALL_BYTES, _ALL_SMALL_BYTES = 1 << 20, 16 << 20


class Place(NamedTuple):
    """Where the blocks go; None: a temporary directory."""

    cache: Path | None
    cache_bytes: int


class Tree:
    """The objects of a build by their keys; `metas` are of those that were looked at, None: there is none."""

    def __init__(self, url: ObjectUrl, keys: Sequence[str], place: Place) -> None:
        self.url, self.keys, self.place = url, frozenset(keys), place
        self.folders = {
            key[:at] for key in keys for at, letter in enumerate(key) if letter == "/" and at
        }  # every part of a key but the last
        self.metas: dict[str, Meta | None] = {}
        self.small: dict[str, bytes] = {}
        self.small_bytes = 0
        self.cache: BlockCache  # of what is opened to be mapped

    def file(self, key: str) -> ObjectFile:
        if key not in self.metas:
            folder = key.rpartition("/")[0]
            self.look_at([one for one in sorted(self.keys) if one.rpartition("/")[0] == folder])
        meta = self.metas.get(key)
        if meta is None:
            raise CorruptFile(
                "the object is missing, and the manifest of the build tells of it",
                where=str(self.url._replace(key=key)),
                next="publish the run again, or copy the build again",
            )
        return ObjectFile(self.url._replace(key=key), meta.size, meta.etag)

    def look_at(self, keys: Sequence[str]) -> None:
        unknown = [key for key in keys if key not in self.metas]
        self.metas.update(zip(unknown, each(self.head, unknown), strict=True))

    def head(self, key: str) -> Meta | None:
        return open_store(self.url).head(key)


def _open_cache(place: Place) -> BlockCache:
    directory, cache_bytes = place
    if directory is not None:
        return BlockCache(directory, cache_bytes)
    with told_as_unwritable(Path(tempfile.gettempdir())):
        made = Path(tempfile.mkdtemp(prefix="tokmill-cache-"))
    try:
        cache = BlockCache(made, cache_bytes)
    except BaseException:
        _remove(made, os.getpid())
        raise
    weakref.finalize(cache, _remove, made, os.getpid())
    return cache


def _remove(directory: Path, pid: int) -> None:
    if os.getpid() == pid:  # it is not a fork's to remove
        shutil.rmtree(directory, ignore_errors=True)


def each(act: Any, items: Sequence[Any]) -> list[Any]:
    """Requests side by side, answers in order."""
    if len(items) < 2:
        return [act(item) for item in items]
    with ThreadPoolExecutor(min(len(items), _REQUESTS_AT_A_TIME)) as pool:
        return list(pool.map(act, items))


class ObjectPath:
    def __init__(self, tree: Tree, key: str) -> None:
        self.tree, self.key = tree, key

    def __str__(self) -> str:
        return str(self.tree.url._replace(key=self.key))

    def __repr__(self) -> str:
        return f"ObjectPath({str(self)!r})"

    def __fspath__(self) -> str:
        raise StorageError(
            "is not on this machine, and the reader of its format asks for a file",
            where=str(self),
            next="bring the build here first: `tokmill fetch URL DIRECTORY`",
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectPath) and (self.tree, self.key) == (other.tree, other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    def __lt__(self, other: ObjectPath) -> bool:
        return self.key < other.key

    def __truediv__(self, below: str) -> ObjectPath:
        return ObjectPath(self.tree, f"{self.key}/{below}" if self.key else below)

    @property
    def parent(self) -> ObjectPath:
        return ObjectPath(self.tree, self.key.rpartition("/")[0])

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def suffix(self) -> str:
        return Path(self.name).suffix

    @property
    def suffixes(self) -> list[str]:
        return Path(self.name).suffixes

    def with_name(self, name: str) -> ObjectPath:
        return self.parent / name

    def is_file(self) -> bool:
        return self.key in self.tree.keys

    def is_dir(self) -> bool:
        return self.key in self.tree.folders

    def exists(self) -> bool:
        return self.is_file() or self.is_dir()

    def iterdir(self) -> Iterator[ObjectPath]:
        return self.glob("*")

    def glob(self, pattern: str) -> Iterator[ObjectPath]:
        """Without `**`: as many parts as the pattern has."""
        wanted = [*(self.key.split("/") if self.key else ()), *pattern.split("/")]
        fixed = len(wanted) - pattern.count("/") - 1
        for key in sorted({*self.tree.keys, *self.tree.folders}):
            parts = key.split("/")
            if len(parts) == len(wanted) and parts[:fixed] == wanted[:fixed]:
                pairs = zip(parts[fixed:], wanted[fixed:], strict=True)
                if all(fnmatch.fnmatchcase(part, one) for part, one in pairs):
                    yield ObjectPath(self.tree, key)

    def stat(self) -> Stat:
        return self._file().stat()

    def open(self, mode: str = "rb") -> io.RawIOBase:
        assert mode == "rb", "objects are read"
        return self._file().open()

    def read_bytes(self) -> bytes:
        """A large one, or one of many, by its blocks: a chunk that is decoded again is not sent again."""
        data = self.tree.small.get(self.key)
        if data is None:
            size = self.stat().st_size
            if size > _SMALL_BYTES or self.tree.small_bytes + size > _ALL_SMALL_BYTES:
                return np.asarray(self.map(np.dtype(np.uint8), 0, None)).tobytes()
            data = self.tree.small[self.key] = self.read_range(0, size)
            self.tree.small_bytes += size
        return data

    def read_range(self, start: int, end: int) -> bytes:
        file = self._file()
        end = min(end, file.size)
        return open_store(file.url).read(file.url.key, start, end, file.etag) if end > start else b""

    def map(self, dtype: np.dtype[Any], offset: int, shape: tuple[int, ...] | None) -> NDArray[Any]:
        file = self._file()
        if shape is None:
            shape = ((file.size - offset) // dtype.itemsize,)
        if 0 in shape:
            return np.empty(shape, dtype)
        return cast("NDArray[Any]", BlockArray(self.tree.cache, file, dtype, offset, shape))

    def check_unchanged(self, paths: Sequence[Path]) -> None:
        """Asks the store again."""
        mine = cast("Sequence[ObjectPath]", paths)
        for path, found in zip(mine, each(self.tree.head, [path.key for path in mine]), strict=True):
            known = path._file()
            if found is None or (found.size, found.etag) != (known.size, known.etag):
                raise InputChanged(
                    "the object is gone" if found is None else "the object is another one by now",
                    where=str(path),
                    next="open the dataset again when nothing writes there any more; a state of the old one "
                    "does not fit another",
                )

    def read_probes(
        self, paths: Sequence[Path], places: Sequence[Sequence[int]], size: int
    ) -> Iterator[list[bytes]]:
        """So many bytes of each path from each of its places on; all requests side by side."""
        asked = [(path, at) for path, starts in zip(paths, places, strict=True) for at in starts]
        answers = iter(each(lambda one: one[0].read_range(one[1], one[1] + size), asked))
        for starts in places:
            yield [next(answers) for _ in starts]

    def kept(self) -> dict[str, Any]:
        """For another process: where the blocks are."""
        return {"cache": str(self.tree.cache.directory), "cache_bytes": self.tree.place.cache_bytes}

    def _file(self) -> ObjectFile:
        if not self.is_file():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        return self.tree.file(self.key)


def open_location(location: str, cache: Any, cache_bytes: int | None) -> Path:
    """The build, split or run at a URL. For the readers of formats it is a Path."""
    url = parse_url(location)
    place = Place(
        None if cache is None else Path(cache).expanduser(),
        CACHE_BYTES if cache_bytes is None else cache_bytes,
    )
    faults: list[ManifestError] = []
    tree = _tree_of(url, place) or _published(url, place, faults)
    if tree is None:
        listed = {meta.key: meta for meta in open_store(url).list(f"{url.key}/" if url.key else "")}
        if not listed:
            if faults:
                raise faults[0]
            raise InputError(
                "no object is here, and no run is published above",
                where=str(url),
                next="check the URL: give a build or a split, s3://BUCKET/RUN/build/NAME/train",
            )
        tree = Tree(url, sorted(listed), place)
        tree.metas.update(listed)
    tree.cache = _open_cache(place)
    return cast("Path", ObjectPath(tree, tree.url.key))


def _tree_of(url: ObjectUrl, place: Place) -> Tree | None:
    """What the manifest of a build names, at this URL or around it."""
    for home in (url, _above(url)):
        manifest = _manifest_at(home, place) if home is not None else None
        if manifest is not None and manifest.kind == "build":
            assert home is not None, "a manifest was read there"
            keys = [home.child(name).key for name in (MANIFEST, *(entry.path for entry in manifest.files))]
            return Tree(url, keys, place)
        if manifest is not None and manifest.kind == "run" and home == url:
            builds = [
                str(url.child(entry.path).key).rpartition("/")[0]
                for entry in manifest.entries("manifest")
                if entry.path.startswith("build/")
            ]
            named = ", ".join(str(url._replace(key=key)) for key in builds)
            raise InputError(
                "is a run, not a build of one",
                where=str(url),
                next=f"give one of {named}" if builds else "run the recipe with `builds`",
            )
    return None


def _published(url: ObjectUrl, place: Place, faults: list[ManifestError]) -> Tree | None:
    """The same in the run that is published above: its files lie below the digest of its manifest.
    A manifest.json that is none of ours may be somebody else's: it is a fault if nothing else is found."""
    above = _above(url)
    while above is not None:
        manifest = None
        try:
            manifest = _manifest_at(above, place)
        except ManifestError as error:
            faults.append(error)
        if manifest is not None and manifest.kind == "run":
            below = url.key.removeprefix(above.key).strip("/")
            return _tree_of(publication_prefix(above, manifest).child(below), place)
        above = _above(above)
    return None


def _manifest_at(url: ObjectUrl, place: Place) -> Manifest | None:
    key = url.child(MANIFEST).key
    loaded = open_store(url).load(key)
    if loaded is None:
        return None
    tree = Tree(url, [key], place)
    tree.metas[key] = Meta(key, len(loaded.data), loaded.etag, "")
    return load_manifest(cast("Path", ObjectPath(tree, url.key)))


def _above(url: ObjectUrl) -> ObjectUrl | None:
    return url._replace(key=url.key.rpartition("/")[0]) if url.key else None
