"""The files of an index, and how they are searched.

    entries-<p>.bin     high 8 │ low 8 │ sketch 64       by hash; a document is known by its place among all
    bands-<q>.bin       key 4 │ document 4               by key and document
    ids-<p>.parquet     source, doc_id                   of the entries, in their order; only if asked for

Columns are raw and little-endian, one after the other, each from a multiple of 8 bytes. `high` and `low` are
the 128 bits that exact duplicates are found by. A file of entries has a range of `high`, one of bands a range
of the 64-bit keys: equal ranges, so that the number of files says which one a key is in. Of a key it has the
32 bits below those that all of its range have in common; what it finds too much, the sketch tells.

A search sorts what it looks for, and touches only the pages that it comes by: files are mapped, and none is
read whole. A bucket of more than MOST_IN_BUCKET documents is looked at in its first ones, which are as good
as drawn by lot: they are in order of their hashes.

A listing is the same for an index that is made within a step: paths, and rows of each.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import MANIFEST, load_manifest
from tokmill.duplicates.sketches import WORDS, Sketches, estimate_similarity
from tokmill.errors import CorruptFile
from tokmill.stages.external.runs import Layout, Run, hash_range, take_numbered
from tokmill.storage.disk import load_bytes
from tokmill.storage.tables import take_rows

ENTRIES: Layout = {"high": "<u8", "low": "<u8", "sketch": ("<u8", (WORDS,))}
BANDS: Layout = {"key": "<u4", "document": "<u4"}
PLACES: Layout = {"shard": "<u4", "row": "<u4"}

# Entries are told apart by the upper 32 bits, as hashes of exact duplicates are.
HASH_BITS = 32
# A document is known by 4 bytes.
MOST_DOCUMENTS = (1 << 32) - 1

# 256 sketches are 16 KB; a bucket of pages of one form may have a million.
MOST_IN_BUCKET = 256
# Pairs whose sketches are compared together: 64 bytes for either side.
_PAIRS_AT_ONCE = 1 << 17

Numbers = NDArray[np.int64]


class Part(msgspec.Struct, frozen=True, array_like=True):
    path: str
    rows: int


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """Files of an index, relative to where the listing lies."""

    entries: tuple[Part, ...]
    bands: tuple[Part, ...]
    ids: tuple[Part, ...] = ()
    places: tuple[Part, ...] = ()  # shard and row of each entry, of a run whose texts are there


class Pairs(NamedTuple):
    """Documents that were asked for, those of the index that may be like them, and how like they are."""

    asked: Numbers
    found: Numbers
    similarity: NDArray[np.float64]


def load_listing(path: Path) -> Listing:
    """That of a finished index, from its manifest; or of one that a step made for itself."""
    if path.name != MANIFEST:
        return msgspec.convert(json.loads(load_bytes(path)), Listing)
    manifest = load_manifest(path.parent)
    tables = {
        table: tuple(Part(entry.path, entry.rows) for entry in manifest.entries(table))
        for table in ("entries", "bands", "ids")
    }
    return Listing(**tables)


def key_shift(low: int, high: int) -> int:
    """By how much keys from `low` to before `high` are shifted, for what is left of them to fit 32 bits."""
    return max((high - low - 1).bit_length() - 32, 0)


def short_keys(keys: NDArray[np.uint64], partition: int, partitions: int) -> NDArray[np.uint32]:
    """What the file of their range has of them."""
    low, high = hash_range(partition, partitions)
    return ((keys - np.uint64(low)) >> np.uint64(key_shift(low, high))).astype(np.uint32)


class Index:
    """Of a listing, in the directory where it lies."""

    def __init__(self, directory: Path, listing: Listing) -> None:
        self._entries = [Run(directory / part.path, part.rows, ENTRIES) for part in listing.entries]
        self._bands = [Run(directory / part.path, part.rows, BANDS) for part in listing.bands]
        self._places = [Run(directory / part.path, part.rows, PLACES) for part in listing.places]
        self._ids = [directory / part.path for part in listing.ids]
        self.starts = np.array([0, *itertools.accumulate(part.rows for part in listing.entries)], np.int64)

    def find_equal(self, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> Numbers:
        """The first document with these 128 bits, or -1."""
        found = np.full(len(high), -1, np.int64)
        for part, own in _by_range(high, len(self._entries), HASH_BITS):
            run = self._entries[part]
            if not run.rows:
                continue
            at = run.search(high[own], "high")
            # several with the same upper half are as good as impossible, and looked at all the same
            while len(own):
                is_there = at < run.rows
                own, at = own[is_there], at[is_there]
                order = np.argsort(at, kind="stable")
                own, at = own[order], at[order]
                highs, lows = run.take(at, ["high", "low"])
                is_equal = (highs == high[own]) & (lows == low[own])
                found[own[is_equal]] = self.starts[part] + at[is_equal]
                goes_on = ~is_equal & (highs == high[own])
                own, at = own[goes_on], at[goes_on] + 1
        return found

    def find_similar(self, sketches: Sketches, least: float) -> Pairs:
        """Documents that share a band with one that was asked for, and are estimated to be at least so
        similar; by what was asked for, then by document."""
        parts = [
            self._compare(sketches, asked, found, least)
            for asked, found in _gathered(self._in_buckets(sketches.keys))
        ]
        if not parts:
            return Pairs(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float64))
        asked, found, similarity = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((found, asked))
        asked, found, similarity = asked[order], found[order], similarity[order]
        is_new = np.ones(len(asked), np.bool_)
        is_new[1:] = (asked[1:] != asked[:-1]) | (found[1:] != found[:-1])
        return Pairs(asked[is_new], found[is_new], similarity[is_new])

    def _in_buckets(self, keys: NDArray[np.uint64]) -> Iterator[tuple[Numbers, Numbers]]:
        """Who was asked for and who has a key of theirs, some at a time; a pair may come several times."""
        asked = np.repeat(np.arange(len(keys)), keys.shape[1])
        flat = keys.reshape(-1)
        asked, flat = asked[flat != 0], flat[flat != 0]
        for part, own in _by_range(flat, len(self._bands)):
            run = self._bands[part]
            short = short_keys(flat[own], part, len(self._bands))
            first, stop = run.search(short, "key"), run.search(short, "key", "right")
            counts = np.minimum(stop - first, MOST_IN_BUCKET)
            ends = np.cumsum(counts)
            at = 0
            while at < len(own):
                before = int(ends[at - 1]) if at else 0
                until = max(int(np.searchsorted(ends, before + _PAIRS_AT_ONCE, side="right")), at + 1)
                count = counts[at:until]
                within = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
                (documents,) = run.take(np.repeat(first[at:until], count) + within, ["document"])
                yield np.repeat(asked[own[at:until]], count), documents.astype(np.int64)
                at = until

    def _compare(self, sketches: Sketches, asked: Numbers, found: Numbers, least: float) -> Pairs:
        order = np.lexsort((asked, found))
        asked, found = asked[order], found[order]
        documents, places = np.unique(found, return_inverse=True)
        (theirs,) = take_numbered(self._entries, self.starts, documents, ["sketch"])
        if not len(documents):
            theirs = np.empty((0, WORDS), np.uint64)
        similarity = estimate_similarity(sketches.bits, asked, theirs, places)
        is_like = similarity >= least
        return Pairs(asked[is_like], found[is_like], similarity[is_like])

    def hashes(self, documents: Numbers) -> list[str]:
        """As 32 hex digits, of documents in ascending order."""
        high, low = take_numbered(self._entries, self.starts, documents, ["high", "low"])
        return [f"{int(a):016x}{int(b):016x}" for a, b in zip(high, low, strict=True)]

    def names(self, documents: Numbers) -> list[str] | None:
        """Source and id, if the index has them, of documents in ascending order."""
        if not self._ids:
            return None
        names = []
        for part, (start, stop) in enumerate(itertools.pairwise(np.searchsorted(documents, self.starts))):
            if stop > start:
                table = take_rows(self._ids[part], documents[start:stop] - self.starts[part])
                names += [f"{row['source']} {row['doc_id']}" for row in table.to_pylist()]
        return names

    def places(self, documents: Numbers) -> tuple[Numbers, Numbers]:
        """Shard and row, of documents in ascending order."""
        shard, row = take_numbered(self._places, self.starts, documents, ["shard", "row"])
        return shard.astype(np.int64), row.astype(np.int64)


def _by_range(keys: NDArray[np.uint64], parts: int, bits: int = 16) -> Iterator[tuple[int, Numbers]]:
    """For each file that has some of the keys, their places, in order of the keys."""
    if not parts:
        raise CorruptFile("an index without files", next="make it again: `tokmill index`")
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    lows = [hash_range(part, parts, bits)[0] for part in range(parts)]
    cuts = np.searchsorted(sorted_keys, np.array(lows, np.uint64)).tolist()
    for part, (start, stop) in enumerate(itertools.pairwise([*cuts, len(keys)])):
        if stop > start:
            yield part, order[start:stop]


def _gathered(pieces: Iterator[tuple[Numbers, Numbers]]) -> Iterator[tuple[Numbers, Numbers]]:
    """Many small pieces as few large ones, each pair of a piece once."""
    waiting: list[tuple[Numbers, Numbers]] = []
    for piece in pieces:
        waiting.append(piece)
        if sum(len(asked) for asked, _ in waiting) >= _PAIRS_AT_ONCE:
            yield _joined(waiting)
            waiting = []
    if waiting:
        yield _joined(waiting)


def _joined(pieces: Sequence[tuple[Numbers, Numbers]]) -> tuple[Numbers, Numbers]:
    asked, found = (np.concatenate(column) for column in zip(*pieces, strict=True))
    keys = np.unique((asked.astype(np.uint64) << np.uint64(32)) | found.astype(np.uint64))
    return (keys >> np.uint64(32)).astype(np.int64), (keys & np.uint64(MOST_DOCUMENTS)).astype(np.int64)
