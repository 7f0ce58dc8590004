"""A cache of Levanter (and of marin, where it lives on): what `TreeCache.load` opens as finished.

    input_ids/data/…       ids, int32, one sequence after the other: an array of Zarr 3 (`formats.zarr`)
    input_ids/offsets/…    int64, the same: how many sequences, and then where each ends
    shard_ledger.json      sequences in all, and that the cache is finished
    meta.json              format, n_seqs, n_tokens, seq_len, and where they come from

`TreeCache.load(directory, {"input_ids": np.zeros(0, np.int32)})` is the split; a sequence is a row or a
document. A config's `cache_dir` is the directory of the build, where Levanter looks for `train` and for
`validation`, which is `valid` here.

The ledger has no `preprocessor_metadata`: Levanter compares it with the tokenizer of a config, warns, and
goes on. The ledger and `meta.json` are written last and go first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import FileEntry, file_entry
from tokmill.errors import CorruptFile
from tokmill.formats import Format, Tokens
from tokmill.formats.description import (
    META_NAME,
    SplitFacts,
    corrupt,
    described_as,
    load_meta,
    meta_entry,
    write_meta,
)
from tokmill.formats.ids import check_vocabulary
from tokmill.formats.stores import Ids, Store
from tokmill.formats.zarr import ZarrArray, write_array
from tokmill.storage.disk import commit_bytes, load_bytes, remove_file

LEDGER_NAME = "shard_ledger.json"

_DATA, _OFFSETS = "input_ids/data", "input_ids/offsets"
_BLOCK = 1 << 20  # ends that are made at once


def _write(directory: Path, tokens: Tokens) -> list[FileEntry]:
    remove_file(directory / META_NAME)
    remove_file(directory / LEDGER_NAME)
    if tokens.seq_len:
        total = tokens.rows * tokens.seq_len
    else:
        total = sum(int(block.sum()) for block in tokens.lengths())
    entries = write_array(directory, _DATA, tokens.read_ids(), count=total, kind="int32", table="tokens")
    entries += write_array(
        directory, _OFFSETS, _ends(tokens), count=tokens.rows + 1, kind="int64", table="sequences"
    )
    ledger = commit_bytes(directory / LEDGER_NAME, _ledger(tokens.split, tokens.rows))
    whole = {
        **tokens.describe(),
        "format": "levanter",
        "n_seqs": tokens.rows,
        "n_tokens": total,
        "seq_len": tokens.seq_len or None,
        "dtype": "int32",
    }
    meta = meta_entry(directory, write_meta(directory / META_NAME, whole))
    return [*entries, file_entry(LEDGER_NAME, "meta", ledger, rows=1), meta]


def _ends(tokens: Tokens) -> Iterator[NDArray[np.int64]]:
    """Behind how many there are."""
    yield np.array([tokens.rows], np.int64)
    if tokens.seq_len:
        for first in range(0, tokens.rows, _BLOCK):
            last = min(first + _BLOCK, tokens.rows)
            yield np.arange(first + 1, last + 1, dtype=np.int64) * tokens.seq_len
    else:
        end = 0
        for block in tokens.lengths():
            ends = end + np.cumsum(block, dtype=np.int64)
            yield ends
            end = int(ends[-1]) if ends.size else end


def _ledger(split: str, rows: int) -> bytes:
    """In the order and the spelling of Levanter's own."""
    ledger = {
        "total_num_rows": rows,
        "shard_rows": {split: rows},
        "is_finished": True,
        "finished_shards": [split],
        "field_counts": {},
        "metadata": {"preprocessor_metadata": None},
    }
    return json.dumps(ledger).encode()


class _Cache:
    """A directory whose description, ledger and arrays agree; ids are not read yet."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        path = self._directory / META_NAME
        self.meta, self.facts = load_meta(self._directory, "levanter", "a cache of Levanter", SplitFacts)
        facts = self.facts
        facts.check("levanter", path)
        self._check_ledger(self._directory / LEDGER_NAME)
        self.data = ZarrArray(self._directory / _DATA, facts.n_tokens, "int32")
        self.offsets = ZarrArray(self._directory / _OFFSETS, facts.n_seqs + 1, "int64")
        count, end = self.offsets.at(np.array([0, facts.n_seqs])).tolist()
        if count != facts.n_seqs:
            raise corrupt(f"tells of {count:,} sequences, and {META_NAME} of {facts.n_seqs:,}", self.index)
        if facts.n_seqs and end != facts.n_tokens:
            raise corrupt(f"the last sequence does not end at token {facts.n_tokens:,}", self.index)

    @property
    def index(self) -> Path:
        return self._directory / _OFFSETS

    def check(self) -> None:
        """Every end against the one before, rows against their length, every id against the vocabulary."""
        before, first = 0, 0
        for path, values in self.offsets.read_chunks():
            ends = values if first else values[1:]
            lengths = np.diff(ends, prepend=before)
            wrong = np.flatnonzero(lengths < 0)
            if self.facts.seq_len is not None and not wrong.size:
                wrong = np.flatnonzero(lengths != self.facts.seq_len)
            if wrong.size:
                number = first + int(wrong[0])
                what = "ends before it begins" if lengths[wrong[0]] < 0 else "is no whole row"
                raise corrupt(f"sequence {number} {what}", path)
            first += len(ends)
            before = int(ends[-1]) if ends.size else before
        for path, values in self.data.read_chunks():
            check_vocabulary(values, self.meta, path)

    def _check_ledger(self, path: Path) -> None:
        if not path.is_file():
            raise CorruptFile(
                "no such file, and Levanter opens no cache without it",
                where=str(path),
                next="copy the directory again",
            )
        if load_bytes(path) != _ledger(str(self.meta.get("split")), self.facts.n_seqs):
            raise corrupt(f"does not describe the {self.facts.n_seqs:,} sequences of {META_NAME}", path)


class _CacheStore(Store):
    dtype = "int32"

    def __init__(self, cache: _Cache) -> None:
        self._cache = cache
        self.format, self.meta = "levanter", cache.meta
        self.size, self.seq_len = cache.facts.n_seqs, cache.facts.seq_len

    def view(self, row: int) -> Ids:
        if self.seq_len is not None:
            return self._cache.data.take(row * self.seq_len, (row + 1) * self.seq_len)
        begin, end = self._bounds(np.array([row]))
        if not 0 <= begin[0] <= end[0] <= self._cache.facts.n_tokens:
            raise corrupt(f"sequence {row} lies beyond the last token", self._cache.index)
        return self._cache.data.take(int(begin[0]), int(end[0]))

    def block(self, rows: NDArray[np.int64]) -> Ids:
        assert self.seq_len is not None, "sequences of any length are no block"
        taken = np.empty((len(rows), self.seq_len), self.dtype)
        for place, row in enumerate(rows.tolist()):
            taken[place] = self.view(row)
        return taken

    def lengths(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.seq_len is not None:
            return np.full(len(rows), self.seq_len, np.int64)
        begins, ends = self._bounds(rows)
        return ends - begins

    def files(self) -> Iterator[tuple[Path, int]]:
        yield from self._cache.data.files()
        yield from self._cache.offsets.files()

    def _bounds(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The first value is how many there are, not where one ends."""
        begins = np.where(rows > 0, self._cache.offsets.at(rows), 0)
        return begins, self._cache.offsets.at(rows + 1)


LEVANTER = Format(
    name="levanter",
    recognizes=described_as("levanter"),
    open_store=lambda directory, split: _CacheStore(_Cache(directory)),
    check=lambda directory: _Cache(directory).check(),
    write=_write,
)
