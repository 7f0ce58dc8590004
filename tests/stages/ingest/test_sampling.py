"""Candidates of a chunk are the same however its documents come in batches."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.artifacts.step import Task
from tokmill.schema import DOCUMENTS
from tokmill.sources.reading import Reading
from tokmill.stages.ingest.options import ReadOptions, SampleOptions
from tokmill.stages.ingest.picking import perform_candidates
from tokmill.stages.ingest.shards import Ledger
from tokmill.stages.sampling import bottom_k, draws
from written import load_table

ROWS = [
    {"text": f"text {n % 30}", "source": "s", "domain": "d", "doc_id": f"d{n % 30}"} for n in range(40)
]  # the last ten equal the first ten, so keys tie
TABLE = pa.Table.from_pylist(ROWS, schema=DOCUMENTS)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 45), st.lists(st.integers(0, 40), max_size=6), st.integers(0, 99))
def test_candidates_do_not_depend_on_batches(
    tmp_path_factory: object, k: int, cuts: list[int], seed: int
) -> None:
    out: Path = tmp_path_factory.mktemp("candidates")  # type: ignore[attr-defined]
    bounds = sorted({0, 40, *cuts})
    batches = (TABLE.slice(a, b - a) for a, b in itertools.pairwise(bounds))
    options = ReadOptions(
        reading=Reading("s", "d", None, "records", {}, 1 << 20),
        shard_bytes=1 << 20,
        on_bad_record="fail",
        file="f",
        sample=SampleOptions(method="reservoir", k=k, seed=seed),
        room=None,
    )
    task = Task(
        function="sample.candidates", key="scan-00000", options=options, inputs=[], directory=str(out)
    )
    made = perform_candidates(task, batches, Ledger(task, "s", "f"))
    rows = bottom_k(draws(TABLE, seed), k)
    kept = load_table(out / "candidates-scan-00000.parquet")
    assert kept.equals(TABLE.take(pa.array(rows)).combine_chunks())
    keys = np.asarray(load_table(out / "keys-scan-00000.parquet").column("key"))
    assert np.array_equal(keys, draws(TABLE, seed)[rows])
    assert made.counts["scanned"] == 40
