"""Tokens as a writer of a format gets them, from lists: what a build hands it, without a build."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tokmill.formats.ids import Sequences

EOS = 7


@dataclass
class FewTokens:
    documents: Sequence[Sequence[int] | NDArray[np.integer]]  # or rows, all of one length
    dtype: str = "int32"
    seq_len: int = 0
    split: str = "train"
    at_once: int = 2  # documents in a batch
    rows_per_shard: int = 3
    columns: str = "ids"
    has_loss: bool = False
    vocab_size: int | None = 60_000
    experiment_id: str = "0" * 64
    tokenizer: dict[str, Any] = field(default_factory=lambda: {"file": "tok.json", "sha256": "ab" * 32})

    @property
    def rows(self) -> int:
        return len(self.documents)

    @property
    def split_rows(self) -> int:
        return self.rows

    def describe(self) -> dict[str, Any]:
        return {"eos_id": EOS, "vocab_size": self.vocab_size, "split": self.split, "created_at": "now"}

    def read_rows(self) -> Iterator[NDArray[np.integer]]:
        for some in self._batches():
            yield np.array(some, np.int32)

    def read_ids(self) -> Iterator[NDArray[np.integer]]:
        for batch in self.read_sequences():
            yield batch.ids
            batch.ids[...] = -1  # the array is used again

    def read_sequences(self) -> Iterator[Sequences]:
        for some in self._batches():
            ids = np.concatenate([np.asarray(document, np.int64) for document in some])
            yield Sequences(ids, np.array([len(one) for one in some], np.int64))

    def lengths(self) -> Iterable[NDArray[np.int64]]:
        return [np.array([len(one) for one in some], np.int64) for some in self._batches()]

    def _batches(self) -> Iterator[Sequence[Sequence[int] | NDArray[np.integer]]]:
        for start in range(0, len(self.documents), self.at_once):
            yield self.documents[start : start + self.at_once]
