"""Forgotten documents among others: rows to leave out, what the ledger keeps of them, what a run says of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.forgotten import FORGOTTEN_FILE, REASON, ids_of, load_forgotten, sha256_of
from tokmill.kernels.sha256 import sha256_prefixes
from tokmill.manifest import FileEntry, Json, file_entry
from tokmill.schema import ledger_table, string_column
from tokmill.storage.commit import Written
from tokmill.storage.digest import table_sha256
from tokmill.storage.location import file_sha256


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
        column = string_column(doc_ids)
        if not len(column.is_valid) or not len(self._prefixes):
            return np.empty(0, np.int64)
        hashes = sha256_prefixes(column.data, column.offsets)
        maybe = np.flatnonzero(self.holds(hashes))
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


def forgotten_ledger(source: str, doc_ids: Sequence[str]) -> Any:
    """That something was here: the hash of its id, and nothing else."""
    columns = {
        "source": source,
        "doc_id": [f"sha256:{sha256_of(doc_id)}" for doc_id in doc_ids],
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
    removals: dict[str, int] = {}
    for parent in table.column("parent").to_pylist():
        removals[parent] = removals.get(parent, 0) + 1
    told = [{"parent": parent, "reason": REASON, "ids": count} for parent, count in sorted(removals.items())]
    written = Written(path.stat().st_size, file_sha256(path))
    entry = file_entry(
        FORGOTTEN_FILE, "forgotten", written, rows=table.num_rows, content_sha256=table_sha256(table)
    )
    return {"forgotten": told}, [entry]
