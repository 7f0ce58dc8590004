"""The mixture of a run on documents whose lengths are in memory: whole columns in, whole columns out.

corpora ─ each in the order of a keyed hash ─ Scheduling ─> source, document: the k-th of all
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tokmill.kernels.mixing import mark_shuffle, row_bits
from tokmill.packing.mixture import Mixture
from tokmill.packing.quotas import Exhausted, Holding, Target
from tokmill.packing.schedule import (
    MAX_EPOCHS,
    Offered,
    Scheduling,
    Summary,
    refuse_long_documents,
    shuffle_key,
)

N = TypeVar("N", bound=np.generic)
Order = Literal["shuffle", "corpus"]


class Corpus(NamedTuple):
    """The documents of a source: tokens of each and, if asked for,
    what identifies it and its bytes of text."""

    name: str
    domain: str
    lengths: NDArray[np.integer]
    identities: NDArray[np.uint64] | None = None  # None: the number of the document
    text_bytes: NDArray[np.integer] | None = None  # for targets in megabytes


@dataclass(frozen=True, eq=False)
class Schedule(Summary):
    """Document `document[k]` of corpus `source[k]` is the k-th. Where sources repeat, so do documents."""

    source: NDArray[np.int32]
    document: NDArray[np.int32]


def schedule(
    corpora: Sequence[Corpus],
    mixture: Mixture,
    target: Target | None,
    *,
    exhausted: Exhausted = "stop",
    max_epochs: int = MAX_EPOCHS,
    order: Order = "shuffle",
    seed: int = 0,
    seq_len: int | None = None,
) -> Schedule:
    unit = "tokens" if target is None else target.unit
    held = [_Held(corpus, unit, order, seed) for corpus in corpora]
    found = Scheduling(held, mixture, target, exhausted=exhausted, max_epochs=max_epochs, seq_len=seq_len)
    batches = list(found)
    source = np.concatenate([np.empty(0, np.int32), *(batch.source for batch in batches)])
    position = np.concatenate([np.empty(0, np.int64), *(batch.position for batch in batches)])
    document = np.empty(len(source), np.int32)
    for number, one in enumerate(held):
        mine = source == number
        offered = np.concatenate([np.empty(0, np.int32), *one.orders])
        document[mine] = offered[position[mine]]
    return Schedule(**vars(found.summary), source=source, document=document)


def in_order(found: Schedule, columns: Sequence[NDArray[N]]) -> NDArray[N]:
    """A column of each corpus (lengths, places of their ids) as one column of the scheduled documents."""
    assert len(columns) == len(found.names), f"{len(found.names)} corpora, but {len(columns)} columns"
    bases = np.cumsum([0, *(len(column) for column in columns)])[:-1]
    return np.concatenate(columns)[bases[found.source] + found.document]


class _Held:
    """A corpus in memory, sorted anew for each epoch."""

    def __init__(self, corpus: Corpus, unit: str, order: Order, seed: int) -> None:
        refuse_long_documents(corpus.lengths, corpus.name)
        self.documents = len(corpus.lengths)
        lengths = corpus.lengths
        tokens, longest = int(lengths.sum(dtype=np.int64)), int(lengths.max(initial=0))
        self.holding = Holding(corpus.name, corpus.domain, tokens, longest)
        self.orders: list[NDArray[np.int32]] = []
        self._corpus, self._unit, self._order, self._seed = corpus, unit, order, seed

    def read_epoch(self, epoch: int) -> Iterator[Offered]:
        order = self._ordered(epoch)
        self.orders.append(order)
        lengths = self._corpus.lengths[order].astype(np.int64)
        if self._unit == "documents":
            yield Offered(lengths, np.ones(self.documents, np.int64))
        elif self._unit == "megabytes":
            assert self._corpus.text_bytes is not None, f"{self._corpus.name}: megabytes need text_bytes"
            yield Offered(lengths, self._corpus.text_bytes[order].astype(np.int64))
        else:
            yield Offered(lengths)

    def _ordered(self, epoch: int) -> NDArray[np.int32]:
        if self._order == "corpus":
            return np.arange(self.documents, dtype=np.int32)
        identities = self._corpus.identities
        if identities is None:
            identities = np.arange(self.documents, dtype=np.uint64)
        assert identities.shape == (self.documents,), (
            f"{self._corpus.name}: {self.documents} documents, but identities {identities.shape}"
        )
        marks = mark_shuffle(identities, shuffle_key(self._seed, epoch, self._corpus.name))
        marks.sort()
        marks &= np.uint64((1 << row_bits(self.documents)) - 1)
        return marks.astype(np.int32)
