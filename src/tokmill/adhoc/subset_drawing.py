"""Which documents of a corpus are drawn for a sample, without holding the corpus in memory.

batch ─ filters ─ hash of the text, key of the draw: 24 bytes a document ─────────┐
      └ documents with the smallest keys so far: a few times k ───────────────────┤
at the end    exact duplicates out by the hashes ─ the k smallest keys of the others
              among those at hand?  taken.  Not, because too many were copies?  the files are read once more

read = available + duplicates + dropped + quarantined
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from tokmill.artifacts.manifest import Json, add_counts, check_conservation
from tokmill.clean.rules import EMPTY, compile_filters, judge
from tokmill.duplicates.shingling import folded_hashes, match_equal
from tokmill.kernels.characters import measure_text
from tokmill.recipe import Filter, Path_, Section, Source
from tokmill.schema import DOCUMENTS, one_piece, string_column
from tokmill.sources.readers import check_presence, read_documents, resolve_reading
from tokmill.sources.reading import Reading, count_presence
from tokmill.stages.ingest.options import SampleOptions
from tokmill.stages.ingest.picking import sample_keys
from tokmill.stages.ingest.stage import check_unchanged
from tokmill.stages.sampling import bottom_k
from tokmill.storage.location import InputFile
from tokmill.storage.records import WHOLE

# Documents at hand besides the k smallest: with more copies than this among them the files are read twice.
_SPARE = 1000


class Filters(Section):
    """Which single texts are wanted; pairs have their own bounds, per side, in `parallel`."""

    where: dict[str, str] = Field({}, description="as of a source: a record without the field is left out")
    min_chars: int | None = Field(None, ge=0)
    max_chars: int | None = Field(None, ge=0)

    @classmethod
    def _contradictions(cls, given: dict[str, Any]) -> Iterator[tuple[Path_, str]]:
        low, high = given.get("min_chars"), given.get("max_chars")
        if isinstance(low, int) and isinstance(high, int) and low > high:
            yield ("min_chars",), f"{low} is above max_chars {high}: nothing would be kept"


class _Reader:
    """The files, batch by batch, and why documents were left out."""

    def __init__(self, inputs: list[InputFile], reading: Reading, wanted: Filters) -> None:
        self._inputs, self._reading = inputs, reading
        self._rules = compile_filters(_rules(wanted), Path()).rules
        self.read = 0
        self.dropped: Counter[str] = Counter()
        self.quarantined: Counter[str] = Counter()
        self.presence: Json = {}

    def batches(self) -> Iterator[tuple[Any, NDArray[np.uint64]]]:
        for file in self._inputs:
            for batch in read_documents(file.path, file.name, WHOLE, self._reading):
                self.read += batch.documents.num_rows + len(batch.bad) + len(batch.dropped)
                self.dropped.update(record.reason for record in batch.dropped)
                self.quarantined.update(record.reason for record in batch.bad)
                self.presence = add_counts(self.presence, count_presence(batch.presence))
                yield self._filtered(batch.documents)
        check_unchanged(self._inputs)  # what was read is what the recorded sha256 is of
        check_presence(self._reading, self._inputs, self.presence)

    def _filtered(self, documents: Any) -> tuple[Any, NDArray[np.uint64]]:
        """What the filters leave of a batch, and the hashes of its texts."""
        texts, rules = one_piece(documents.column("text")), self._rules
        measures = measure_text(*string_column(texts)[:2])
        hashes = folded_hashes(texts, measures.is_ascii)
        is_blank = (hashes[:, 0] == 0) & (hashes[:, 1] == 0)
        if is_blank.any():
            self.dropped[EMPTY] += int(is_blank.sum())
        first = judge({"chars": measures.chars}, rules, len(texts)).first
        self.dropped.update(rules[index].reason for index in first[~is_blank & (first < len(rules))].tolist())
        keep = ~is_blank & (first == len(rules))
        return documents.filter(pa.array(keep)), hashes[keep]


def draw_documents(
    source: Source,
    inputs: list[InputFile],
    wanted: Filters,
    k: int,
    *,
    method: Literal["reservoir", "weighted"],
    weight: str | None,
    seed: int,
    dedup: bool,
) -> tuple[Any, Json]:
    """The documents that were taken (all that there are, where there are fewer than k), in their order;
    and of how many."""
    sample = SampleOptions(method=method, weight=weight or "", seed=seed)
    reading = resolve_reading(source, inputs, Path.cwd())
    reader = _Reader(inputs, reading, wanted)
    hashes, keys, at_hand = [np.empty((0, 2), np.uint64)], [np.empty(0, np.uint64)], _AtHand(4 * k + _SPARE)
    for kept, own in reader.batches():
        hashes.append(own)
        keys.append(sample_keys(kept, sample))
        at_hand.add(kept, keys[-1])
    all_keys, all_hashes = np.concatenate(keys), np.concatenate(hashes)
    is_available = np.ones(len(all_keys), np.bool_)
    if dedup:
        scope = np.zeros(len(all_keys), np.uint8)
        is_available[match_equal(all_hashes[:, 0], all_hashes[:, 1], scope).duplicates] = False
    rows = np.flatnonzero(is_available)
    counts = {
        "read": reader.read,
        "dropped": dict(sorted(reader.dropped.items())),
        "quarantined": dict(sorted(reader.quarantined.items())),
        "duplicates": len(all_keys) - len(rows),
        "available": len(rows),
    }
    check_conservation(
        {
            "in": reader.read,
            "kept": len(rows),
            "dropped": {**reader.dropped, "exact_dup": counts["duplicates"]},
            "quarantined": reader.quarantined,
        },
        where="materialize",
    )
    taken = rows[bottom_k(all_keys[rows], k)]
    documents = at_hand.take(taken)
    if documents is None:
        documents = _take_again(_Reader(inputs, reading, wanted), taken)
    return documents, counts


class _AtHand:
    """Of the documents so far those with the smallest keys, each with its number."""

    def __init__(self, size: int) -> None:
        self._size, self._seen = size, 0
        self._documents = DOCUMENTS.empty_table()
        self._numbers, self._keys = np.empty(0, np.int64), np.empty(0, np.uint64)

    def add(self, documents: Any, keys: NDArray[np.uint64]) -> None:
        numbers = np.arange(self._seen, self._seen + len(keys))
        self._seen += len(keys)
        if len(self._keys) == self._size:  # most cannot enter any more: their text is not touched
            enters = np.flatnonzero(keys < self._keys.max())
            documents, keys, numbers = documents.take(pa.array(enters)), keys[enters], numbers[enters]
            if not len(enters):
                return
        keys, numbers = np.concatenate([self._keys, keys]), np.concatenate([self._numbers, numbers])
        chosen = bottom_k(keys, self._size)
        both = pa.concat_tables([self._documents, documents])
        # a copy: a slice would hold on to the whole batch
        self._documents = both.take(pa.array(chosen)).combine_chunks()
        self._numbers, self._keys = numbers[chosen], keys[chosen]

    def take(self, numbers: NDArray[np.int64]) -> Any | None:
        """The documents of these numbers; None where one of them is not at hand."""
        if not np.isin(numbers, self._numbers).all():
            return None
        return self._documents.take(pa.array(np.searchsorted(self._numbers, numbers)))


def _take_again(reader: _Reader, numbers: NDArray[np.int64]) -> Any:
    tables, seen = [DOCUMENTS.empty_table()], 0
    for kept, _ in reader.batches():
        own = numbers[(numbers >= seen) & (numbers < seen + kept.num_rows)]
        tables.append(kept.take(pa.array(own - seen)))
        seen += kept.num_rows
    return pa.concat_tables(tables)


def _rules(wanted: Filters) -> list[Filter]:
    if wanted.min_chars is None and wanted.max_chars is None:
        return []
    return [Filter(measure="chars", min=wanted.min_chars, max=wanted.max_chars)]
