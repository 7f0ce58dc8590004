"""Texts of a shard as a method of deduplication looks at them: the same, however few rows are asked for."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.artifacts.step import Input
from tokmill.schema import EDITS
from tokmill.stages.dedup.method import load_texts
from tokmill.storage.tables import write_table

ROWS = 700  # some batches of the reader, and many more rows than are asked for

edits = st.dictionaries(st.integers(0, ROWS - 1), st.text(max_size=5), max_size=40)


def write(folder: Path, role: str, table: pa.Table) -> Input:
    path = folder / f"{role}.parquet"
    write_table(path, table)
    return Input(role, str(path), "", table.num_rows)


@settings(max_examples=60, deadline=None)
@given(
    layers=st.tuples(*[st.none() | edits] * 3),
    rows=st.sets(st.integers(0, ROWS - 1), max_size=30) | st.just(set(range(ROWS))),
    shuffled=st.randoms(use_true_random=False),
)
def test_each_row_has_the_text_of_the_last_layer_that_has_it(
    layers: tuple[dict[int, str] | None, ...], rows: set[int], shuffled: Random
) -> None:
    expected = [f"document {row}" for row in range(ROWS)]
    with tempfile.TemporaryDirectory() as name:
        inputs = [write(Path(name), "documents", pa.table({"text": pa.array(expected, pa.large_string())}))]
        for role, layer in zip(("edits", "stripped", "trims"), layers, strict=True):
            if layer is not None:
                own = list(layer.items())
                shuffled.shuffle(own)
                columns = [[row for row, _ in own], [text for _, text in own]]
                inputs.append(write(Path(name), role, pa.table(columns, schema=EDITS)))
                for row, text in own:
                    expected[row] = text
        found = load_texts(inputs, np.array(sorted(rows), np.int64))
    assert found.to_pylist() == [expected[row] for row in sorted(rows)]
