"""Tombstones: documents that were taken down, known by the hashes of their ids,
which ingest leaves out for good.

    <run>/forgotten.parquet     source, id_sha256, parent       one row per id, sorted
                                parent: the digest of the run that it was taken out of

    load_forgotten ─ the part of a source, and its digest ─> the config of its ingest step
    documents ─ rows with such an id ─> left out; the ledger keeps the row, without id and text

    carry_forgotten ─ the part of a source that the recipe no longer has, for sources that are new too

A source of which nothing was forgotten does not know of the file.
Every document with the id goes, wherever in the source it is. No text and no id is kept.
A source that is given another name is one that goes and one that comes: what was forgotten under the old name
is forgotten under the new one.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tokmill.artifacts.manifest import FileEntry, Json, file_entry
from tokmill.schema import FORGOTTEN, ledger_table
from tokmill.storage.digests import id_hashes, table_sha256
from tokmill.storage.disk import Written
from tokmill.storage.location import file_sha256
from tokmill.storage.tables import load_table, write_table

FORGOTTEN_FILE = "forgotten.parquet"
PENDING_FILE = "forgetting.json"  # a takedown is under way, or was interrupted
REASON = "forgotten"
ROLE = "forgotten"  # of an input


def sha256_of(doc_id: str) -> str:
    return hashlib.sha256(doc_id.encode()).hexdigest()


def load_forgotten(out: Path) -> Any:
    """The table of a run; empty where nothing was forgotten."""
    path = out / FORGOTTEN_FILE
    return load_table(path) if path.is_file() else FORGOTTEN.empty_table()


def add_forgotten(known: Any, found: Mapping[str, Sequence[str]], parent: str) -> Any:
    """`known` with the hashes of more ids by source. One that is there already keeps its parent."""
    more = [
        pa.table(
            [[source] * len(hashes), list(hashes), [parent] * len(hashes)],
            schema=FORGOTTEN,
        )
        for source, hashes in found.items()
    ]
    first: dict[tuple[str, str], Json] = {}
    for row in pa.concat_tables([known, *more]).to_pylist():
        first.setdefault((row["source"], row["id_sha256"]), row)
    return pa.Table.from_pylist([first[id] for id in sorted(first)], FORGOTTEN)


def carry_forgotten(known: Any, sources: Collection[str], new: Collection[str]) -> Any:
    """`known`, and the ids of every source that is none of `sources` any more for those that are `new`: what
    they were called before is known to nobody."""
    if not known.num_rows or not new:
        return known
    added = [
        {**row, "source": source}
        for row in known.to_pylist()
        if row["source"] not in sources
        for source in new
        if source in sources
    ]
    first: dict[tuple[str, str], Json] = {}
    for row in [*known.to_pylist(), *added]:
        first.setdefault((row["source"], row["id_sha256"]), row)
    if len(first) == known.num_rows:
        return known
    whole = pa.Table.from_pylist([first[id] for id in sorted(first)], FORGOTTEN)
    return whole.replace_schema_metadata(known.schema.metadata)


def orphaned_ids(table: Any, sources: Collection[str]) -> dict[str, list[str]]:
    """The hashes of sources that are not among these, by source."""
    names = sorted(set(table.column("source").to_pylist()) - set(sources))
    return {name: ids_of(table, name) for name in names}


def write_forgotten(out: Path, table: Any) -> Written:
    return write_table(out / FORGOTTEN_FILE, table)


def digest_of_source(table: Any, source: str) -> str | None:
    """What the source's config says of it; None: nothing of it was forgotten."""
    ids = ids_of(table, source)
    return hashlib.sha256("\n".join(ids).encode()).hexdigest() if ids else None


def ids_of(table: Any, source: str) -> list[str]:
    """The hashes of one source, sorted."""
    chosen = table.filter(pc.equal(table.column("source"), source))
    return sorted(chosen.column("id_sha256").to_pylist())


class Forgotten:
    """Ids by their hashes, to look for in columns of ids."""

    def __init__(self, hashes: Iterable[str]) -> None:
        self._ids = frozenset(hashes)
        self._prefixes = np.array(sorted(int(id[:16], 16) for id in self._ids), np.uint64)

    @classmethod
    def of_source(cls, table: Any, source: str) -> Forgotten:
        return cls(ids_of(table, source))

    def rows(self, doc_ids: Any) -> NDArray[np.int64]:
        """Those whose document is to go, ascending."""
        if not len(doc_ids) or not len(self._prefixes):
            return np.empty(0, np.int64)
        maybe = np.flatnonzero(self.holds(id_hashes(doc_ids)))
        names = doc_ids.take(pa.array(maybe)).to_pylist()
        sure = [row for row, name in zip(maybe.tolist(), names, strict=True) if sha256_of(name) in self._ids]
        return np.array(sure, np.int64)

    def holds(self, hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Whether an id may be one of them, by the beginning of its hash."""
        if not len(self._prefixes):
            return np.zeros(len(hashes), np.bool_)
        at = np.minimum(np.searchsorted(self._prefixes, hashes), len(self._prefixes) - 1)
        found: NDArray[np.bool_] = self._prefixes[at] == hashes
        return found


def forgotten_ledger(source: str, hashes: Iterable[str]) -> Any:
    """Make the ledger rows of forgotten documents: the hash of each id, and nothing else. They are sorted, so
    that several takedowns leave the rows that one would."""
    doc_ids = sorted(f"sha256:{id_sha256}" for id_sha256 in hashes)
    columns = {
        "source": source,
        "doc_id": doc_ids,
        "stage": "ingest",
        "verdict": "drop",
        "reason": REASON,
    }
    return ledger_table(columns, len(doc_ids))


def forgotten_facts(out: Path) -> tuple[Json, list[FileEntry]]:
    """What the manifest of a run says: every takedown, from which run, and how many ids."""
    table = load_forgotten(out)
    if not table.num_rows:
        return {}, []
    path = out / FORGOTTEN_FILE
    removals = Counter(table.column("parent").to_pylist())
    facts = [{"parent": parent, "reason": REASON, "ids": count} for parent, count in sorted(removals.items())]
    written = Written(path.stat().st_size, file_sha256(path))
    entry = file_entry(
        FORGOTTEN_FILE, "forgotten", written, rows=table.num_rows, content_sha256=table_sha256(table)
    )
    return {"forgotten": facts}, [entry]
