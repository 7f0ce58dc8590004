"""How often each document was trained on, as a table: one row for each document of each build.

    build, source, doc_id     whose
    passes                    times that it was seen whole
    is_partly                 some of its tokens were seen once more than others
    tokens                    of it that were trained on, those of every pass

Documents stand in the order of the corpus; those that no row has are among them, and were never seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.audit.exposure import PlacesFile, count_passes
from tokmill.audit.places import Turns
from tokmill.stages.external.appended import open_parquet
from tokmill.storage.on_demand import at_hand
from tokmill.storage.tables import load_table

PASSES = pa.schema(
    [
        pa.field("build", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("doc_id", pa.string(), nullable=False),
        pa.field("passes", pa.int32(), nullable=False),
        pa.field("is_partly", pa.bool_(), nullable=False),
        pa.field("tokens", pa.int64(), nullable=False),
    ]
)


def write_passes(
    path: Path, builds: Sequence[tuple[str, Turns, PlacesFile | None, NDArray[np.uint16]]]
) -> None:
    """`builds`: name, turns, places, and how often each row was handed out."""
    with open_parquet(path, PASSES, compression="zstd", use_dictionary=["build", "source"]) as table:
        for name, turns, places, times in builds:
            passes, first = count_passes(turns, places, times), 0
            for shard in turns.shards:
                stop = first + shard.lengths.rows
                ids = load_table(at_hand(Path(shard.lengths.path)), ["doc_id"]).column("doc_id")
                columns = [
                    pa.array([name] * len(ids), pa.string()),
                    pa.array([shard.source] * len(ids), pa.string()),
                    ids,
                    passes.whole[first:stop],
                    passes.is_partly[first:stop],
                    passes.tokens[first:stop],
                ]
                table.append(pa.table(columns, schema=PASSES))
                first = stop
