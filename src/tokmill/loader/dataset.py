"""A split of a build, opened for training: read-only, at random, and refused when it is not what it should be.

    open_dataset("demo/out/build/rows")                     the train split
    open_dataset("demo/out/build/rows", split="valid")
    open_dataset("/elsewhere/train")                        a split that was copied alone

    build/rows/manifest.json ──────────┐
    build/rows/train/ ─ which format? ─┴─ facts agree? ─ files whole? ─> Dataset

An example is atomic: `ds[i]["ids"]` is a view of the file without padding. What batches need beyond that is the
collator's.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import MANIFEST, load_manifest
from tokmill.artifacts.split_names import find_split
from tokmill.errors import InputError
from tokmill.formats import Format, recognize, require_packages
from tokmill.formats.stores import Store
from tokmill.loader.contract import (
    Facts,
    Verify,
    agree_on_facts,
    check_files,
    check_unchanged,
    path_in_split,
)
from tokmill.loader.origins import Origins, RowIndex, find_domains, load_origins, load_row_index
from tokmill.storage.url import refuse_url

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
) -> Dataset:
    """The split at `path`, or the one of this name (None: train, or the only one) in the build at `path`.

    `boundaries="index"` takes the documents of rows from index.jsonl.zst, all of which is read now; by default a document
    ends where its EOS is.
    """
    refuse_url(path, "the loader")
    directory, format, part = _locate(Path(path), split)
    manifest = _manifest_of(directory)
    store = require_packages(format).open_store(directory, part)
    own = store.meta.get("split")
    if split is not None and own is not None and find_split(split, [str(own)]) is None:
        raise InputError(
            f"says of itself that it is {own}, whatever its directory is called",
            where=str(directory),
            next=f"set split to {own}, or give no split",
        )
    sizes = check_files(store, manifest, directory, verify)
    facts = agree_on_facts(store, manifest, directory, tokenizer_sha256, eos_id)
    index = None
    if boundaries == "index":
        index = load_row_index(directory / INDEX_NAME, store.size, first_row(store))
    return Dataset(directory, store, facts, sizes, index, manifest)


def first_row(store: Store) -> int | None:
    """Of the split, in an index that goes through all splits of a cache; None: the split has its own."""
    return store.first if store.split is not None else None


class Dataset:
    """`len(ds)` examples; `ds[i]` is {"ids", "length"} and, where known, "starts" (of documents) or "doc_id"."""

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

    def __len__(self) -> int:
        return self.store.size

    def __repr__(self) -> str:
        return (
            f"<{self.store.format} {self.split}: {len(self):,} examples of {self.facts.seq_len or 'any'} ids>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """To another process goes the place; it maps the files again."""
        boundaries = "eos" if self.index is None else "index"
        return _opened_again, (str(self.directory), self.store.split, self.facts.eos_id, boundaries)

    def __getitem__(self, row: int) -> Example:
        size = len(self)
        if not -size <= row < size:
            raise IndexError(f"row {row} of {size}")
        row = int(row) % size
        ids = self.store.view(row)
        if self.index is not None:
            length = int(self.index.ends[row])
            return {"ids": ids[:length], "length": length, "starts": self.index.starts_of(row)}
        if self._is_padded:
            ids = ids[: int(self.real_lengths(ids[None])[0])]
        example: Example = {"ids": ids, "length": len(ids)}
        if (doc_id := self.store.doc_id(row)) is not None:
            example["doc_id"] = doc_id
        return example

    def __iter__(self) -> Iterator[Example]:
        return (self[row] for row in range(len(self)))

    def lengths(self, rows: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """Tokens of these examples, or of all."""
        rows = np.arange(len(self)) if rows is None else np.asarray(rows, np.int64)
        if self.index is not None:
            return self.index.ends[rows].astype(np.int64)
        if self._is_padded:
            blocks = [rows[start : start + 4096] for start in range(0, len(rows), 4096)]
            return np.concatenate(
                [np.empty(0, np.int64), *(self.real_lengths(self.store.block(some)) for some in blocks)]
            )
        return self.store.lengths(rows)

    def real_lengths(self, block: NDArray[np.integer]) -> NDArray[np.int64]:
        """Of padded rows, where their padding begins: the run of pad_id at the end.

        Where padding is spelled like EOS, the first of the run is the document's own.
        """
        is_real = block != self.facts.pad_id
        width = block.shape[1]
        lengths: NDArray[np.int64] = width - np.argmax(is_real[:, ::-1], axis=1)
        lengths[~is_real.any(axis=1)] = 0
        if self.facts.pad_id == self.facts.eos_id:
            np.minimum(lengths + 1, width, out=lengths)
        return lengths

    def check_unchanged(self) -> None:
        """The files have the sizes that they had when they were opened."""
        check_unchanged(self._sizes)

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
        """The same wherever the files lie: from their sizes and some of their bytes, or from the digests they carry."""
        store = self.store
        digest = hashlib.sha256(f"{store.format} {store.size} {store.seq_len} {store.dtype}".encode())
        digest.update((store.split or "").encode())
        if content := store.content():
            digest.update("".join(content).encode())
            return digest.hexdigest()
        total = sum(size for _, size in self._sizes)
        step = max(total // _PROBES, _PROBE_BYTES)
        for path, size in self._sizes:
            digest.update(f"{size} ".encode())
            with path.open("rb") as file:
                for at in [*range(0, size, step), max(size - _PROBE_BYTES, 0)]:
                    file.seek(at)
                    digest.update(file.read(_PROBE_BYTES))
        return digest.hexdigest()


def _opened_again(directory: str, split: str | None, eos_id: int | None, boundaries: Boundaries) -> Dataset:
    return open_dataset(directory, split, eos_id=eos_id, boundaries=boundaries)


def list_splits(path: str | os.PathLike[str]) -> list[str]:
    """The splits of the build at `path`, train first."""
    format = recognize(Path(path))
    if format is not None and (names := format.list_splits(Path(path))):
        return names
    found = [entry.name for entry in sorted(Path(path).iterdir()) if entry.is_dir() and recognize(entry)]
    return sorted(found, key=lambda name: (name != "train", name))


def _locate(path: Path, split: str | None) -> tuple[Path, Format, str | None]:
    """The directory of the split, its format, and its name where the directory holds several."""
    if not path.is_dir():
        raise InputError(
            "no such directory", where=str(path), next="give the directory of a build or a split"
        )
    format = recognize(path)
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
    names = list_splits(path)
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
    format = recognize(path / name)
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
