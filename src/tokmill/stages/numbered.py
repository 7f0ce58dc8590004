"""Texts of some documents by number, apart from their shards: uncompressed, to be mapped and read here and there.

    shard ─ the numbers asked for ─> texts-<key>.arrow      number, text: ascending
    texts-* of all shards ─ take(numbers) ─> one column

Reading whole shards for a few rows each would read the corpus again and again.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tokmill.manifest import FileEntry, file_entry
from tokmill.storage.arrowfile import open_arrow, write_arrow
from tokmill.storage.digest import table_sha256
from tokmill.task import Task

# Pages that were read stay in memory while a file is mapped: after so many bytes of texts all files are let go.
_MAPPED_BYTES = 64 << 20


def write_numbered_texts(task: Task, numbers: Any, texts: Any) -> FileEntry:
    name = f"texts-{task.key}.arrow"
    table = pa.table({"number": numbers, "text": texts})
    written = write_arrow(Path(task.directory) / name, table)
    return file_entry(name, "texts", written, rows=len(numbers), content_sha256=table_sha256(table))


class NumberedTexts:
    """`starts` of the task's config says which shard a number is of."""

    def __init__(self, task: Task) -> None:
        self._starts = np.asarray(task.config["starts"], np.int64)
        self._paths = task.paths("texts")
        self._open: dict[int, Any] = {}
        self._taken = 0

    def take(self, numbers: Any) -> Any:
        """In one piece; numbers ascend, and every one was asked for when the files were written."""
        cuts = np.searchsorted(numbers, self._starts)
        parts = [pa.array([], pa.large_string())]
        for shard, (start, stop) in enumerate(itertools.pairwise(cuts.tolist())):
            if stop > start:
                parts += self._of_shard(shard, numbers[start:stop])
        texts = pa.concat_arrays(parts)
        self._taken += texts.nbytes
        if self._taken > _MAPPED_BYTES:
            self._open.clear()
            self._taken = 0
        return texts

    def _of_shard(self, shard: int, numbers: Any) -> list[Any]:
        store = self._open.get(shard)
        if store is None:
            store = self._open[shard] = open_arrow(self._paths[shard])
        places = np.searchsorted(np.asarray(store.column("number")), numbers)
        return list(store.column("text").take(pa.array(places)).chunks)
