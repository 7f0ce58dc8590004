"""A split of a build, opened for training: read-only, at random,
and refused when it is not what it should be.

    open_dataset("demo/out/build/rows")                     the train split
    open_dataset("demo/out/build/rows", split="valid")
    open_dataset("/elsewhere/train")                        a split that was copied alone
    open_dataset("s3://bucket/run/build/rows", cache="/local/dir")    in an object store: remote.py

    build/rows/manifest.json ──────────┐
    build/rows/train/ ─ which format? ─┴─ facts agree? ─ files whole? ─> Dataset

An example is atomic: `ds[i]["ids"]` is a view of the file without padding.
What batches need beyond that is the collator's.

What a split says of itself, what the manifest of its build says, and what the trainer expects:
all must agree.

    <split>/meta.json · ENCODE.meta.json      tokenizer sha256, EOS, padding, vocabulary, dtype
    manifest.json, one directory up           the same, and size and sha256 of every file
    tokenizer_sha256=, eos_id=                what the trainer was set up for

Token ids mean nothing without their tokenizer,
and a wrong EOS is not seen until a model has been trained with it: so a difference is an error here.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import MANIFEST, load_manifest
from tokmill.artifacts.plugins import show_hooks
from tokmill.errors import CorruptFile, EosMissing, InputError, TokenizerMismatch, VocabTooLarge
from tokmill.formats import Format, format_of, is_format, plugin_of, recognize, require_packages
from tokmill.formats.ids import find_split
from tokmill.formats.stores import Store
from tokmill.loader.origins import Origins, RowIndex, find_domains, load_origins, load_row_index
from tokmill.storage.location import file_sha256, is_url, refuse_squeezed_url

if TYPE_CHECKING:
    from tokmill.loader.remote import ObjectPath

Verify = Literal["sizes", "hashes"]


class Facts(NamedTuple):
    """What the ids mean. None: neither the split nor a manifest says."""

    tokenizer_sha256: str | None
    eos_id: int | None
    pad_id: int | None
    vocab_size: int | None
    seq_len: int | None
    dtype: str
    layout: str | None


def agree_on_facts(
    store: Store, manifest: Any | None, where: Path, tokenizer_sha256: str | None, eos_id: int | None
) -> Facts:
    meta = store.meta
    recorded = manifest.facts.get("tokenizer", {}) if manifest is not None else {}
    sha256 = _agreed("tokenizer_sha256", meta.get("tokenizer_sha256"), recorded.get("sha256"), where)
    eos = _agreed("eos_id", meta.get("eos_id"), recorded.get("eos_id"), where)
    vocab_size = _agreed("vocab_size", meta.get("vocab_size"), recorded.get("vocab_size"), where)
    for name, told in (("eos_id", eos), ("pad_id", meta.get("pad_id")), ("vocab_size", vocab_size)):
        if told is not None and (type(told) is not int or not 0 <= told < 1 << 31):
            raise CorruptFile(
                f"{name} is {told!r}: the description of the split is damaged",
                where=str(where),
                next="copy the build again",
            )
    if manifest is not None:
        planned = manifest.config.get("dtype", store.dtype)
        if planned in ("uint16", "int32") and planned != store.dtype:
            raise CorruptFile(
                f"ids are {store.dtype}, but the manifest says {planned}",
                where=str(where),
                next="copy the build again: its files are not from one run",
            )
    if vocab_size is not None and vocab_size - 1 > np.iinfo(store.dtype).max:
        raise VocabTooLarge(
            f"ids of a vocabulary of {vocab_size:,} do not fit {store.dtype}",
            where=str(where),
            next="build again with `dtype: int32`",
        )
    if tokenizer_sha256 is not None and tokenizer_sha256.lower() != sha256:
        made = f"made with the tokenizer of sha256 {sha256}" if sha256 else "nothing here says with which one"
        raise TokenizerMismatch(
            f"{made}, not with {tokenizer_sha256}",
            where=str(where),
            next="give the build's own tokenizer, or build again with this one"
            if sha256
            else "give the build directory with its manifest.json instead of the split alone",
        )
    if eos_id is not None:
        if eos is None:
            eos = _eos_of_megatron(store, eos_id, where)
        elif eos != eos_id:
            raise EosMissing(
                f"documents end in id {eos}, not in {eos_id}",
                where=str(where),
                next=f"set the trainer's EOS to {eos}, or build again with the other",
            )
    return Facts(sha256, eos, meta.get("pad_id"), vocab_size, store.seq_len, store.dtype, meta.get("layout"))


def _agreed(name: str, told: Any, recorded: Any, where: Path) -> Any:
    if told is not None and recorded is not None and told != recorded:
        raise TokenizerMismatch(
            f"{name} is {told} in the split, but {recorded} in the manifest of the build",
            where=str(where),
            next="copy the build again: its files are not from one run",
        )
    return recorded if told is None else told


def _eos_of_megatron(store: Store, eos_id: int, where: Path) -> int:
    """No file says it: taken at the trainer's word, if the documents do end so. Rows end anywhere."""
    if store.seq_len is not None:
        return eos_id
    ends = [int(ids[-1]) for ids in map(store.view, range(min(store.size, 8))) if len(ids)]
    if ends and set(ends) != {eos_id}:
        raise EosMissing(
            f"the first documents end in id {ends[0]}, not in {eos_id}",
            where=str(where),
            next="give the build directory with its manifest.json, which says what documents end in",
        )
    return eos_id


def check_files(
    store: Store, manifest: Any | None, directory: Path, verify: Verify, format: Format
) -> list[tuple[Path, int]]:
    """Every file against its description; what the sizes are, to be compared again later."""
    if verify not in ("sizes", "hashes"):
        raise InputError(f"{verify!r} is not a way to verify", where="verify", next='set "sizes" or "hashes"')
    described = dict(store.files())
    recorded = {}
    for entry in manifest.files if manifest is not None else ():
        if (path := path_in_split(directory, entry.path)) is not None:
            recorded[path] = entry
    for path in [*described, *(path for path in recorded if path not in described)]:
        expected = recorded[path].bytes if path in recorded else described[path]
        _check_size(path, expected)
    if verify == "hashes":
        _check_hashes(store, {path: entry.sha256 for path, entry in recorded.items()}, directory, format)
    return [(path, path.stat().st_size) for path in described]


def path_in_split(directory: Path, listed: str) -> Path | None:
    """Where a file that the manifest lists lies, if it is of this split.
    A build of one split may have no directory for it."""
    if (directory / "manifest.json").is_file():
        return directory / listed if not listed.startswith("tokenizer/") else None
    split, _, name = listed.partition("/")
    return directory / name if split == directory.name else None


def _check_size(path: Path, expected: int) -> None:
    try:
        actual = path.stat().st_size
    except OSError as error:
        raise CorruptFile(
            f"cannot be read ({error.strerror})", where=str(path), next="copy the build again"
        ) from error
    if expected >= 0 and actual != expected:
        kind = "truncated" if actual < expected else "too long"
        raise CorruptFile(
            f"{kind}: {actual:,} bytes instead of {expected:,}",
            where=str(path),
            next="copy the file again, or build it again",
        )


def _check_hashes(store: Store, recorded: dict[Path, str], directory: Path, format: Format) -> None:
    known = recorded or dict(store.digests())
    for path, expected in known.items():
        if file_sha256(path) != expected:
            raise CorruptFile(
                "damaged: its bytes are not the ones that were written (sha256 differs)",
                where=str(path),
                next="copy the file again, or build it again",
            )
    if known:
        return
    if store.content():
        format.check(directory)
    elif store.size:
        raise InputError(
            "hashes are in the manifest of the build, and there is none",
            where=str(directory),
            next='give the build directory with its manifest.json, or set `verify="sizes"`',
        )


Example = dict[str, Any]
Boundaries = Literal["eos", "index"]

INDEX_NAME = "index.jsonl.zst"

# Of the files, to know them again: a few reads, whatever their size.
_PROBES, _PROBE_BYTES = 64, 4096


def open_dataset(
    path: str | os.PathLike[str],
    split: str | None = None,
    *,
    tokenizer_sha256: str | None = None,
    eos_id: int | None = None,
    verify: Verify = "sizes",
    boundaries: Boundaries = "eos",
    hooks: str | os.PathLike[str] | None = None,
    cache: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
) -> Dataset:
    """The split at `path`, or the one of this name (None: train, or the only one) in the build at `path`.

    `boundaries="index"` takes the documents of rows from index.jsonl.zst, all of which is read now; by
    default a document ends where its EOS is. `hooks` is the Python file that a recipe has its format in,
    `hooks.py:NAME`: it is run.

    Of a URL (s3://, gs://, az://), what is read is kept in the directory `cache`, at most `cache_bytes` of it
    (None: 32 GiB), for all processes that name the same. Without one: a temporary one, removed at the end.
    """
    if boundaries not in ("eos", "index"):
        raise InputError(f"{boundaries!r} is not known", where="boundaries", next='set "eos" or "index"')
    if hooks is not None:
        show_hooks(Path(hooks))
    directory, format, part = _locate(_opened(path, cache, cache_bytes), split)
    manifest = _manifest_of(directory)
    store = require_packages(format).open_store(directory, part)
    own = store.meta.get("split")
    if split is not None and own is not None and find_split(split, [str(own)]) is None:
        raise InputError(
            f"says of itself that it is {own}, whatever its directory is called",
            where=str(directory),
            next=f"set split to {own}, or give no split",
        )
    sizes = check_files(store, manifest, directory, verify, format)
    facts = agree_on_facts(store, manifest, directory, tokenizer_sha256, eos_id)
    index = None
    if boundaries == "index":
        index = load_row_index(directory / INDEX_NAME, store.size, first_row(store))
    return Dataset(directory, store, facts, sizes, index, manifest)


def first_row(store: Store) -> int | None:
    """Of the split, in an index that goes through all splits of a cache; None: the split has its own."""
    return store.first if store.split is not None else None


class Dataset:
    """`len(ds)` examples; `ds[i]` is {"ids", "length"} and, where known, "starts" (of documents)
    or "doc_id", and of conversations "loss_mask"."""

    def __init__(
        self,
        directory: Path,
        store: Store,
        facts: Facts,
        sizes: list[tuple[Path, int]],
        index: RowIndex | None,
        manifest: Any | None = None,
    ) -> None:
        self.directory, self.store, self.facts, self.index = directory, store, facts, index
        self.manifest = manifest  # of the build around it, or in it
        self.split = str(store.meta.get("split") or directory.name)
        self._sizes = sizes
        self._is_padded = facts.pad_id is not None and facts.seq_len is not None

    @property
    def is_in_order(self) -> bool:
        """Whether its rows are to be seen as they lie: those of the rest of a run are, as the split says of
        itself, or the manifest around it."""
        if self.store.meta.get("is_in_order"):
            return True
        return self.manifest is not None and bool(self.manifest.facts.get("is_in_order"))

    def __len__(self) -> int:
        return self.store.size

    def __repr__(self) -> str:
        return (
            f"<{self.store.format} {self.split}: {len(self):,} examples of {self.facts.seq_len or 'any'} ids>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process goes the place; it maps the files again."""
        boundaries: Literal["eos", "index"] = "eos" if self.index is None else "index"
        plugin = plugin_of(self.manifest.config) if self.manifest is not None else None
        hooks = plugin.path if plugin and plugin.is_hook else None
        # the cache too: a temporary one is shared with the processes that this one starts
        remote = _remote(self.directory)
        kept = {} if remote is None else remote.kept()
        opened_again = functools.partial(
            open_dataset, eos_id=self.facts.eos_id, boundaries=boundaries, hooks=hooks, **kept
        )
        return opened_again, (str(self.directory), self.store.split)

    def __getitem__(self, row: int) -> Example:
        size = len(self)
        if not -size <= row < size:
            raise IndexError(f"row {row} of {size}")
        row = int(row) % size
        ids = self.store.view(row)
        if self.index is not None:
            length = int(self.index.ends[row])
            found: Example = {"ids": ids[:length], "length": length, "starts": self.index.starts_of(row)}
            return found | self._loss_of(row, length)
        if self._is_padded:
            ids = ids[: self.ends(ids[None])[0]]
        example: Example = {"ids": ids, "length": len(ids), **self._loss_of(row, len(ids))}
        if (doc_id := self.store.doc_id(row)) is not None:
            example["doc_id"] = doc_id
        return example

    def _loss_of(self, row: int, length: int) -> Example:
        """1 where an id is learned, of a build that says it."""
        return {} if self.store.loss is None else {"loss_mask": self.store.loss.view(row)[:length]}

    def __iter__(self) -> Iterator[Example]:
        return (self[row] for row in range(len(self)))

    def lengths(self, rows: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Tokens of these examples, or of all."""
        rows = np.arange(len(self)) if rows is None else np.asarray(rows, np.int64)
        if self.index is not None:
            return self.index.ends[rows].astype(np.int64)
        if self._is_padded:
            blocks = [rows[start : start + 4096] for start in range(0, len(rows), 4096)]
            return np.array([end for some in blocks for end in self.ends(self.store.block(some))], np.int64)
        return self.store.lengths(rows)

    def ends(self, block: NDArray[np.integer]) -> list[int]:
        """Of padded rows, where their padding begins: the run of pad_id at the end.

        Where padding is spelled like EOS, the first of the run is the document's own.
        """
        pad_id, width = self.facts.pad_id, block.shape[1]
        own = int(pad_id == self.facts.eos_id)
        ends = [width] * len(block)
        # one column tells which rows are full; the end of another is found from behind
        last = block[:, -1 - own].tolist() if width > own else [pad_id] * len(block)
        if pad_id in last:
            find, start = (block != pad_id).tobytes().rfind, 0
            for row, id in enumerate(last):
                if id == pad_id:
                    end = find(1, start, start + width)
                    ends[row] = min(end - start + 1 + own if end >= 0 else own, width)
                start += width
        return ends

    def check_unchanged(self) -> None:
        """The files have the sizes that they had when they were opened.
        One that shrank under its map would end the process: look before the next epoch does.
        Objects are the versions that they were."""
        if (remote := _remote(self.directory)) is not None:
            remote.check_unchanged([path for path, _ in self._sizes])
            return
        for path, size in self._sizes:
            _check_size(path, size)

    @functools.cached_property
    def origins(self) -> Origins:
        """Whose every row and token is: all of index.jsonl.zst is read, once."""
        domain_of = find_domains(self.directory, self.store.meta, self.manifest)
        return load_origins(self.directory / INDEX_NAME, len(self), first_row(self.store), domain_of)

    @property
    def sources(self) -> list[str]:
        """Names of the numbers in `source` and `token_source` of a batch."""
        return self.origins.sources

    @property
    def domains(self) -> list[str]:
        """Names of the numbers in `domain` and `token_domain` of a batch."""
        return self.origins.domains

    @functools.cached_property
    def fingerprint(self) -> str:
        """The same wherever the files lie: from their sizes and some of their bytes,
        or from the digests they carry."""
        store = self.store
        digest = hashlib.sha256(f"{store.format} {store.size} {store.seq_len} {store.dtype}".encode())
        digest.update((store.split or "").encode())
        if content := store.content():
            digest.update("".join(content).encode())
            return digest.hexdigest()
        total = sum(size for _, size in self._sizes)
        step = max(total // _PROBES, _PROBE_BYTES)
        places = [[*range(0, size, step), max(size - _PROBE_BYTES, 0)] for _, size in self._sizes]
        for (_, size), probes in zip(self._sizes, self._probes(places), strict=True):
            digest.update(f"{size} ".encode())
            digest.update(b"".join(probes))
        return digest.hexdigest()

    def _probes(self, places: list[list[int]]) -> Iterator[list[bytes]]:
        if (remote := _remote(self.directory)) is not None:
            yield from remote.read_probes([path for path, _ in self._sizes], places, _PROBE_BYTES)
            return
        for (path, _), starts in zip(self._sizes, places, strict=True):
            with path.open("rb") as file:
                yield [file.read(_PROBE_BYTES) for at in starts if file.seek(at) >= 0]


def _opened(
    path: str | os.PathLike[str], cache: str | os.PathLike[str] | None = None, cache_bytes: int | None = None
) -> Path:
    if is_url(path):
        from tokmill.loader.remote import open_location

        return open_location(str(path), cache, cache_bytes)
    refuse_squeezed_url(path)
    return Path(path)


def list_splits(path: str | os.PathLike[str], *, hooks: str | os.PathLike[str] | None = None) -> list[str]:
    """The splits of the build at `path`, a directory or a URL, train first. `hooks`: as of `open_dataset`."""
    if hooks is not None:
        show_hooks(Path(hooks))
    return _splits_of(_opened(path))


def _remote(path: object) -> ObjectPath | None:
    """The same path, if it leads into an object store: in types it is a Path too."""
    return None if isinstance(path, Path) else cast("ObjectPath", path)


def _splits_of(build: Path) -> list[str]:
    named = _named_format(build)
    format = _format_of(build, named)
    if format is not None and (names := format.list_splits(build)):
        return names
    found = [entry.name for entry in sorted(build.iterdir()) if entry.is_dir() and _format_of(entry, named)]
    return sorted(found, key=lambda name: (name != "train", name))


def _named_format(directory: Path) -> Format | None:
    """Of all splits of the build that is here, as its manifest says; None where no manifest does."""
    if not (directory / MANIFEST).is_file():
        return None
    manifest = load_manifest(directory)
    name = manifest.config.get("format") if manifest.kind == "build" else None
    return format_of(manifest.config) if isinstance(name, str) and is_format(name) else None


def _format_of(directory: Path, named: Format | None) -> Format | None:
    """The others are not asked where a build says what it is."""
    if named is None:
        return recognize(directory)
    return named if named.recognizes(directory) else None


def _locate(path: Path, split: str | None) -> tuple[Path, Format, str | None]:
    """The directory of the split, its format, and its name where the directory holds several."""
    if not path.is_dir():
        raise InputError(
            "no such directory", where=str(path), next="give the directory of a build or a split"
        )
    named = _named_format(path)
    around = _named_format(path.parent) if named is None else None
    format = around if around is not None and around.recognizes(path) else _format_of(path, named)
    if format is not None:
        if format.list_splits(path):
            return path, format, split
        if split is not None and find_split(split, [path.name]) is None:
            raise InputError(
                f"is itself a split, so there is no {split!r} in it",
                where=str(path),
                next="give the build directory above, or no split",
            )
        return path, format, None
    if (path / "receipts").is_dir() and not (path / MANIFEST).is_file():
        raise InputError(
            "the build is not finished: it has no manifest.json",
            where=str(path),
            next="run the recipe again to finish it",
        )
    names = _splits_of(path)
    if not names:
        builds = sorted(entry.name for entry in (path / "build").glob("*") if entry.is_dir())
        raise InputError(
            "holds no split of a build",
            where=str(path),
            next=f"give one of {', '.join(str(path / 'build' / name) for name in builds)}"
            if builds
            else "give a directory that `tokmill run` made below build/, or a token cache",
        )
    wanted = split or ("train" if "train" in names or len(names) > 1 else names[0])
    name = find_split(wanted, names)
    if name is None:
        raise InputError(
            f"has no split {wanted!r}", where=str(path), next=f"set split to one of {', '.join(names)}"
        )
    format = _format_of(path / name, named)
    assert format is not None, "a split that was just listed"
    return path / name, format, None


def _manifest_of(directory: Path) -> Any | None:
    """That of the build around this split, or in it; one that lists nothing of it is somebody else's."""
    place = directory if (directory / MANIFEST).is_file() else directory.parent
    if not (place / MANIFEST).is_file():
        return None
    manifest = load_manifest(place)
    mine = [entry for entry in manifest.files if path_in_split(directory, entry.path) is not None]
    return manifest if mine and manifest.kind == "build" else None
