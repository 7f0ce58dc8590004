"""One token stream, many formats: the tokens of a split as a writer gets them, and what lies beside every format.

    plan + store ─ gather ─> rows, or documents ─ Format.write ─> the files of the format (tokmill.formats)
                                                                  index.jsonl.zst    document of every column of every row
                                                                  places.npy         of rows: the other way round

Sequences are the documents themselves, in their order, and need no places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from tokmill.artifacts.manifest import FileEntry, Json, file_entry
from tokmill.artifacts.step import Task
from tokmill.formats import find_format
from tokmill.formats.ids import Sequences
from tokmill.formats.index import INDEX, PLACES, NamedSpans, write_named_rows, write_places
from tokmill.packing.rows import gather_rows, gather_sequences
from tokmill.stages.build.blocks import Blocks, read_meetings
from tokmill.storage.streams import plain_sha256


@dataclass(frozen=True)
class SplitTokens:
    """`formats.Tokens` of a task: gathered anew, batch by batch, each time they are asked for."""

    task: Task
    blocks: Blocks
    counts: Json

    @property
    def split(self) -> str:
        return str(self.task.config["split"])

    @property
    def rows(self) -> int:
        return int(self.counts["rows"])

    @property
    def seq_len(self) -> int:
        return int(self.task.config["pack"].get("length", 0))

    @property
    def dtype(self) -> str:
        return str(self.task.config["dtype"])

    @property
    def rows_per_shard(self) -> int:
        return int(self.task.config["rows_per_shard"])

    @property
    def tokenizer(self) -> Json:
        facts: Json = self.task.config["tokenizer"]
        return facts

    @property
    def experiment_id(self) -> str:
        return str(self.task.config["experiment_id"])

    def describe(self) -> Json:
        facts = self.tokenizer
        return {
            "layout": self.task.config["pack"]["layout"],
            "tokenizer_path": f"../../../tokenizer/{facts['file']}",
            "tokenizer_sha256": facts["sha256"],
            "eos_id": facts["eos_id"],
            "pad_id": self._pad_id if self.counts["tokens"]["padding"] else None,
            "vocab_size": facts["vocab_size"],
            "padded_vocab_size": facts.get("padded_vocab_size") or facts["vocab_size"],
            "split": self.split,
            "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "counts": {"documents": self.counts["kept"], **self.counts["tokens"]},
        }

    def read_rows(self) -> Iterator[NDArray[np.integer]]:
        lent: NDArray[np.integer] | None = None
        for block in self.blocks:
            for first, stop in block.batches():
                into = lent if lent is not None and len(lent) >= stop - first else None
                rows = gather_rows(
                    block.plan, block.documents.store, first, stop, pad_id=self._pad_id, into=into
                )
                lent = rows if into is None else lent
                yield rows

    def read_sequences(self) -> Iterator[Sequences]:
        for block in self.blocks:
            documents = block.documents
            for first, stop in block.batches():
                if self.seq_len:
                    rows = gather_rows(block.plan, documents.store, first, stop, pad_id=self._pad_id)
                    yield Sequences(rows.reshape(-1), np.full(stop - first, self.seq_len))
                else:
                    ids = gather_sequences(block.plan, documents.store, first, stop)
                    names = documents.doc_ids.slice(first, stop - first).to_pylist()
                    yield Sequences(ids, documents.lengths[first:stop], names)

    def lengths(self) -> Iterable[NDArray[np.int64]]:
        return _Lengths(self.blocks)

    @property
    def _pad_id(self) -> int:
        return int(self.tokenizer["eos_id"])


class _Lengths:
    """A block at a time, as often as they are asked for."""

    def __init__(self, blocks: Blocks) -> None:
        self._blocks = blocks

    def __iter__(self) -> Iterator[NDArray[np.int64]]:
        return (block.documents.lengths for block in self._blocks)


def write_split(tokens: SplitTokens) -> list[FileEntry]:
    """The files of the build's format and the indexes beside them; paths are relative to the build."""
    directory = Path(tokens.task.directory) / tokens.split
    write = find_format(tokens.task.config["format"]).write
    assert write is not None, "a recipe names no format that is only read"
    entries = [*write(directory, tokens), _index_entry(directory, tokens)]
    if tokens.seq_len:
        entries.append(_places_entry(directory, tokens.blocks))
    return [msgspec.structs.replace(entry, path=f"{tokens.split}/{entry.path}") for entry in entries]


def _index_entry(directory: Path, tokens: SplitTokens) -> FileEntry:
    written = write_named_rows(directory / INDEX, _named_spans(tokens.blocks))
    content = plain_sha256(directory / INDEX)
    return file_entry(INDEX, "index", written, rows=tokens.rows, content_sha256=content)


def _named_spans(blocks: Blocks) -> Iterator[NamedSpans]:
    for block in blocks:
        for first, stop in block.batches():
            yield NamedSpans(block.spans(first, stop), block.documents.doc_ids, block.documents.sources)


def _places_entry(directory: Path, blocks: Blocks) -> FileEntry:
    meetings = sum(
        len(block.plan.spans(first, stop).row) for block in blocks for first, stop in block.batches()
    )
    written = write_places(directory / PLACES, meetings, read_meetings(blocks))
    return file_entry(PLACES, "places", written, rows=meetings)
