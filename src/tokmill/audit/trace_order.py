"""The order of a mixture, order-<split>.parquet: shard number and sequence of the document that has each turn.

find_turns     the turns of one document, piece by piece: 0.08 s of CPU for ten million turns, against 0.29 for the
               whole in a process that is new, which meets each of 80 MB for the first time
load_order     all of it, for whoever asks about many documents
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tokmill.audit.opened import numbers_in
from tokmill.errors import CorruptFile
from tokmill.storage.parquet import load_table

Order = tuple[NDArray[np.uint32], NDArray[np.uint32]]

_PIECE_TURNS = 1 << 18


def load_order(path: Path, is_mine: NDArray[np.bool_] | None) -> Order:
    """`is_mine` says by the number of a shard whether the build has it; None: it has all, and every turn is its own."""
    table = load_table(path)
    shard, sequence = numbers_in(table, "shard"), numbers_in(table, "sequence")
    if is_mine is None:
        return shard, sequence
    chosen = is_mine[shard]
    return shard[chosen], sequence[chosen]


def find_turns(path: Path, is_mine: NDArray[np.bool_] | None, number: int, sequence: int) -> list[int]:
    """None, one, or more where a source repeats."""
    found: list[int] = []
    first = 0
    try:
        with pq.ParquetFile(path) as file:
            for piece in file.iter_batches(batch_size=_PIECE_TURNS, use_threads=False):
                numbers, sequences = (np.from_dlpack(piece.column(name)) for name in ("shard", "sequence"))
                at = np.flatnonzero(sequences == sequence)
                at = at[numbers[at] == number]
                if is_mine is None:
                    found += (first + at).tolist()
                    first += len(numbers)
                else:
                    before = np.cumsum(is_mine[numbers])
                    found += (first + before[at] - 1).tolist()
                    first += int(before[-1]) if len(before) else 0
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptFile(
            f"cannot be read ({error})", where=str(path), next="copy the run again, or run the recipe again"
        ) from error
    return found
