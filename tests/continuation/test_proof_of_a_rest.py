"""What `verify` finds where the order of a rest, or its history, is not what it was."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import tokmill as mill
from continuation.rests import DOMAINS, id_of, table_of
from recount import Recount
from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.runs import load_finished, open_run
from tokmill.audit.continued import continuation_problems


def problems_of(run: Path, order: Any = None, sets: Json | None = None) -> list[str]:
    """As `verify` would tell them of files that somebody gave new digests, too."""
    artifacts = {**open_run(run), ".": Artifact(run, load_finished(run))}
    if order is not None:
        pq.write_table(order, run / "mixture/order-train.parquet")
    if sets is not None:
        artifacts["mixture"].manifest.facts["splits"]["train"]["continued"]["sources"]["web"] |= sets
    return [str(problem) for problem in continuation_problems(run, artifacts)]


def test_a_tampered_order_is_found(place: Path, rest: Path) -> None:
    run = shutil.copytree(rest, place / "tampered")
    order = pq.read_table(run / "mixture/order-train.parquet")
    assert problems_of(run, order) == []
    had = table_of(run)
    turns = [(doc.source, id_of(doc.doc_id)) for doc in Recount(run, DOMAINS).turns("train")]
    seen, unseen = ([at for at, turn in enumerate(turns) if turn[0] == "web" and (turn in had) == is_seen]
                    for is_seen in (True, False))  # fmt: skip
    places = list(range(len(turns)))
    places[unseen[-1]], places[seen[0]] = seen[0], unseen[-1]
    assert "a document comes that was had more" in problems_of(run, order.take(places))[0]
    without = order.filter(pa.array([at != unseen[0] for at in range(len(turns))]))
    told = problems_of(run, without)
    assert "left behind others that were had more" in told[0]
    assert "tells other sets of the documents of web" in told[1]
    assert "mixture/order-train.parquet" in [problem.where for problem in mill.verify(run).problems]
    assert problems_of(run, order, {"gone": 1}) == [
        "mixture: tells other sets of the documents of web than its files hold"
    ]


def test_a_tampered_history_is_found(place: Path, rest: Path) -> None:
    run = shutil.copytree(rest, place / "forged")
    table = pq.read_table(run / "seen.parquet")
    passes = table.column("passes").to_pylist()
    forged = table.set_column(
        2, table.schema.field("passes"), pa.array([passes[0] + 1, *passes[1:]], pa.uint16())
    )
    pq.write_table(forged, run / "seen.parquet")
    assert "was made with another seen.parquet than the one here" in problems_of(run)[0]
    assert [problem.where for problem in mill.verify(run).problems] == ["seen.parquet"]
