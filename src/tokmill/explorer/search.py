"""Documents whose text, as received, has some words in it: looked for in a thread, and remembered.

    text ─ known ─> positions
         ─ new ─ index of the texts (text_index.py), built if there is none ─ blocks that may have it
               ─ their texts are read ─> positions, or how far it is

What is found is what a look through all texts finds. All are looked through where the index cannot help: for
fewer than three characters, and where it cannot be written. What was found is kept for the pages that follow.
A new search ends the one before it, but not the index that it waits for.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.audit.opened import ShardTables
from tokmill.errors import InputError, StorageError, TokmillError
from tokmill.explorer.site import Site
from tokmill.explorer.text_index import Stopped, TextIndex, build_index, load_index
from tokmill.schema import one_piece
from tokmill.storage.tables import load_strings, load_table

MAX_CHARS = 200
_REMEMBERED = 8
_WAIT_SECONDS = 1.5


class Searched(NamedTuple):
    share: float  # of the documents that were looked at
    positions: Any | None  # ascending; None: not all were looked at yet


class _Scan:
    def __init__(self, text: str) -> None:
        self.text = text
        self.rows = 0  # that were looked at
        self.total = 0  # to look at; 0: not known yet
        self.parts: list[Any] = []
        self.is_stopped = False
        self.is_done = threading.Event()
        self.error: TokmillError | None = None

    def add(self, texts: Any, positions: NDArray[np.int64]) -> None:
        is_in = one_piece(pc.match_substring(texts, self.text, ignore_case=True))
        self.parts.append(positions[np.flatnonzero(np.asarray(is_in))].astype(np.uint32))
        self.rows += len(positions)


class Searches:
    def __init__(self, site: Site, *, builds: bool = True) -> None:
        """`builds`: an index is written where there is none."""
        self._site, self._builds = site, builds
        self._lock = threading.Lock()
        self._indexing = threading.Lock()
        self._index: TextIndex | None = None
        self._is_sought = False  # whether there is one, or one could be built
        self._indexed = 0.0  # share of the texts
        self._scans: OrderedDict[str, _Scan] = OrderedDict()

    def find(self, text: str, *, wait: float = _WAIT_SECONDS) -> Searched:
        if len(text) > MAX_CHARS:
            raise InputError(
                f"a text of {len(text):,} characters", where="q", next=f"look for at most {MAX_CHARS} of them"
            )
        if self._site.url is not None:
            raise InputError(
                "texts of a published run are not searched: all of them would be brought here",
                where=self._site.location,
                next="`tokmill fetch` the run, and explore the directory",
            )
        scan = self._scan(text)
        scan.is_done.wait(wait)
        if scan.error is not None:
            raise scan.error
        if not scan.is_done.is_set() or scan.is_stopped:  # whoever still wants it asks again
            return Searched(min(scan.rows / scan.total, 0.999) if scan.total else self._indexed, None)
        return Searched(1.0, np.concatenate([np.empty(0, np.uint32), *scan.parts]))

    def _scan(self, text: str) -> _Scan:
        with self._lock:
            found = self._scans.get(text)
            if found is not None:
                self._scans.move_to_end(text)
                return found
            for other in [one for one in self._scans.values() if not one.is_done.is_set()]:
                other.is_stopped = True
                del self._scans[other.text]
            scan = self._scans[text] = _Scan(text)
            while len(self._scans) > _REMEMBERED:
                self._scans.popitem(last=False)
        self._site.start(lambda: self._look(scan), "tokmill-search")
        return scan

    def _look(self, scan: _Scan) -> None:
        try:
            index = self._load()
            blocks = index.candidates(scan.text) if index is not None else None
            if index is None or blocks is None:
                self._look_everywhere(scan)
            else:
                self._look_in(scan, index.starts[blocks].tolist(), index.starts[blocks + 1].tolist())
        except TokmillError as error:
            scan.error = error
        except Stopped:
            pass
        finally:
            scan.is_done.set()

    def _load(self) -> TextIndex | None:
        """One thread builds it, others wait. Where it cannot be written there is none."""
        with self._indexing:
            if not self._is_sought:
                self._index = load_index(self._site.run)
                if self._index is None and self._builds:
                    with contextlib.suppress(StorageError):
                        self._index = build_index(self._site.run, self._tell, self._site.ended.is_set)
                self._is_sought = True
            return self._index

    def _tell(self, share: float) -> None:
        self._indexed = min(share, 0.999)

    def _look_everywhere(self, scan: _Scan) -> None:
        columns = self._site.columns
        scan.total = columns.documents
        for start, shard in zip(columns.starts.tolist(), columns.shards, strict=False):
            if scan.is_stopped or self._site.ended.is_set():
                return
            texts = load_table(self._path(shard), ["text"]).column("text")
            scan.add(texts, np.arange(start, start + shard.documents.rows))

    def _look_in(self, scan: _Scan, firsts: list[int], ends: list[int]) -> None:
        """Blocks of documents: none is in two shards."""
        columns = self._site.columns
        scan.total = max(sum(ends) - sum(firsts), 1)
        spans = list(zip(firsts, ends, strict=True))
        for at, own in itertools.groupby(spans, lambda span: columns.shard_at(span[0])):
            if scan.is_stopped or self._site.ended.is_set():
                return
            rows = np.concatenate([np.arange(first, end) for first, end in own])
            shard, start = columns.shards[at], int(columns.starts[at])
            if len(rows) * 2 > shard.documents.rows:  # to choose some would take longer than to look at all
                texts = load_table(self._path(shard), ["text"]).column("text")
                rows = np.arange(start, start + shard.documents.rows)
            else:
                texts = load_strings(self._path(shard), "text", rows - start)
            scan.add(texts, rows)

    def _path(self, shard: ShardTables) -> Path:
        return self._site.run.artifacts[f"ingest/{shard.source}"].path(shard.documents)
