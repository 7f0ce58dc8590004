"""Texts of some documents by number, apart from their shards: uncompressed, to be mapped and read here and there.

    shard ─ the numbers asked for ─> texts-<key>.arrow      number, text: ascending
    texts-* of all shards ─ take(numbers) ─> one column

Reading whole shards for a few rows each would read the corpus again and again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tokmill.manifest import FileEntry, file_entry
from tokmill.schema import one_piece
from tokmill.storage.arrowfile import open_arrow, write_arrow
from tokmill.storage.digest import table_sha256
from tokmill.task import Task


def write_numbered_texts(task: Task, numbers: Any, texts: Any) -> FileEntry:
    name = f"texts-{task.key}.arrow"
    table = pa.table({"number": numbers, "text": texts})
    written = write_arrow(Path(task.directory) / name, table)
    return file_entry(name, "texts", written, rows=len(numbers), content_sha256=table_sha256(table))


class NumberedTexts:
    def __init__(self, stores: list[Any]) -> None:
        self._numbers = np.concatenate([np.asarray(store.column("number")) for store in stores])
        self._texts = pa.chunked_array(
            [chunk for store in stores for chunk in store.column("text").chunks], pa.large_string()
        )

    def take(self, numbers: Any) -> Any:
        """In one piece; every number was asked for when the files were written."""
        return one_piece(self._texts.take(pa.array(np.searchsorted(self._numbers, numbers))))


def load_numbered_texts(task: Task) -> NumberedTexts:
    return NumberedTexts([open_arrow(path) for path in task.paths("texts")])
