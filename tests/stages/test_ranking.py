"""Percentiles against the obvious way: sort all scores of a group and look each one up."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokmill as mill
from made_fasttext import score_of, write_model
from mill import digest_of, small_corpus
from tokmill.artifacts.step import Input, Task
from tokmill.errors import TokmillError
from tokmill.stages.ranking import (
    BelowOptions,
    DecideOptions,
    RankedScore,
    RunOptions,
    ordered,
    perform_below,
    perform_decide,
    perform_runs,
)
from written import load_lines, load_manifest, load_table

RANKED = (RankedScore("x", "domain"),)


def write_shard(directory: Path, number: int, values: Any, domains: list[str], kept: Any) -> list[Input]:
    tables = {
        "documents": pa.table({"doc_id": [str(n) for n in range(len(values))], "domain": domains}),
        "marks": pa.table(
            {"kept": pa.array(kept, pa.bool_()), "language": pa.nulls(len(values), pa.string())}
        ),
        "measures": pa.table({"score.x": pa.array(values)}),
    }
    inputs = []
    for role, table in tables.items():
        path = directory / f"{role}-{number}.parquet"
        pq.write_table(table, path)
        inputs.append(Input(role, str(path), f"{role}{number}", table.num_rows))
    return inputs


def percentiles(directory: Path, shards: list[tuple[Any, list[str], Any]], at_once: int) -> list[Any]:
    """By the tasks of the step, one after the other."""
    inputs = [write_shard(directory, number, *shard) for number, shard in enumerate(shards)]
    common: Any = {"directory": str(directory)}
    runs = []
    for number, own in enumerate(inputs):
        made = perform_runs(
            Task(
                function="scores.runs",
                key=f"run-{number:05d}",
                options=RunOptions(ranked=RANKED),
                inputs=own,
                **common,
            )
        )
        runs += [Input("run x", str(directory / file.path), file.sha256, file.rows) for file in made.files]
    numbers = tuple(range(len(shards)))
    options = BelowOptions(score="x", shards=numbers, at_once=at_once)
    below = perform_below(
        Task(function="scores.below", key="below-x", options=options, inputs=runs, **common)
    )
    (entry,), totals = below.files, (below.facts or {})["totals"]
    found = []
    for number, own in enumerate(inputs):
        asked = DecideOptions(
            number=number, shard=f"s/{number}", source="s", ranked=RANKED, totals={"x": totals}, rules=()
        )
        ranked = Input("below", str(directory / entry.path), entry.sha256, entry.rows)
        perform_decide(
            Task(function="scores", key=f"{number:05d}", options=asked, inputs=[*own, ranked], **common)
        )
        table = load_table(directory / f"percentiles-{number:05d}.parquet")
        found.append(table.column("score.x.percentile").to_pylist())
    return found


def slow_percentiles(shards: list[tuple[Any, list[str], Any]]) -> list[Any]:
    groups: dict[str, list[float]] = {}
    for values, domains, kept in shards:
        for value, domain, is_in in zip(values, domains, kept, strict=True):
            if is_in:
                groups.setdefault(domain, []).append(float(value))
    return [
        [
            100.0 * sum(other < value for other in groups[domain]) / len(groups[domain]) if is_in else None
            for value, domain, is_in in zip(values, domains, kept, strict=True)
        ]
        for values, domains, kept in shards
    ]


VALUES = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1.0, 1.0000000000000002, -1.0, 5e-324, -5e-324, 1e308]),
)


@settings(max_examples=60, deadline=None)
@given(
    shards=st.lists(
        st.lists(st.tuples(VALUES, st.sampled_from("ab"), st.booleans()), min_size=1, max_size=30),
        min_size=1,
        max_size=4,
    ),
    at_once=st.sampled_from([1, 2, 7, 1000]),
)
def test_percentiles_are_those_of_the_slow_way_whatever_the_ranges(
    shards: list[list[tuple[float, str, bool]]], at_once: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("ranks")
    columns = [tuple(map(list, zip(*shard, strict=True))) for shard in shards]
    assert percentiles(directory, columns, at_once) == slow_percentiles(columns)  # type: ignore[arg-type]


@settings(max_examples=200, deadline=None)
@given(st.lists(VALUES, min_size=2, max_size=20))
def test_keys_are_in_the_order_of_the_numbers(values: list[float]) -> None:
    keys = ordered(np.array(values) + 0.0).tolist()
    assert all(
        (a < b) == (k < j)
        for a, k in zip(values, keys, strict=True)
        for b, j in zip(values, keys, strict=True)
    )


@pytest.mark.parametrize(
    ("millions", "at_once"), [(0.2, 1 << 14), pytest.param(2, 1 << 17, marks=pytest.mark.slow_faults)]
)
def test_millions_of_documents_rank_as_numpy_ranks_them_in_bounded_memory(
    millions: float, at_once: int, tmp_path: Path
) -> None:
    rng, few_values = np.random.default_rng(5), int(millions * 250_000)
    values = np.concatenate(
        [rng.normal(size=3 * few_values), rng.integers(0, 6, few_values).astype(np.float64)]
    )
    rng.shuffle(values)
    shards = [(part, ["a"] * len(part), np.ones(len(part), np.bool_)) for part in np.split(values, 8)]
    few = [(part[:9], domains[:9], kept[:9]) for part, domains, kept in shards]
    assert len(list(percentiles(tmp_path, few, at_once))) == 8, "kernels are loaded before memory is counted"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = np.concatenate([np.array(part) for part in percentiles(tmp_path, shards, at_once)])
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    expected = 100.0 * np.searchsorted(np.sort(values), values, side="left") / len(values)
    assert (found == expected).all()
    # of fewer documents it is what Arrow takes at first, and says nothing
    assert millions < 1 or grown < 200_000 * millions, f"{grown} kilobytes"


EDU = {"name": "edu", "fasttext": {"path": "edu.bin", "label": "good"}, "percentile": "domain"}


def ranked_corpus(directory: Path, **sections: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    write_model(directory / "edu.bin")
    sections.setdefault("filters", [{"measure": "score.edu.percentile", "min": 40, "reason": "low_rank"}])
    return small_corpus(directory, scores=[EDU], **sections)


@pytest.mark.usefixtures("forked_workers")
def test_a_rule_on_percentiles_is_decided_after_all_shards_and_before_duplicates(tmp_path: Path) -> None:
    builds = [{"name": "out", "format": "jsonl", "content": "text", "measures": True}]
    out = mill.run(ranked_corpus(tmp_path, builds=builds), workers=1).out
    texts = load_table(out / "ingest/problems/documents-00000-000.parquet").column("text").to_pylist()
    scores = [score_of(text) for text in texts]
    measured = load_table(out / "clean/problems/measures-00000-000.parquet").column("score.edu").to_pylist()
    ranks = [100.0 * sum(other < one for other in measured) / len(measured) for one in measured]
    assert load_table(out / "scores/percentiles-00000.parquet").column(0).to_pylist() == ranks
    assert measured == pytest.approx(scores, abs=1e-6)
    kept = load_table(out / "scores/marks-00000.parquet").column("kept").to_pylist()
    assert kept == [rank >= 40 for rank in ranks]
    ledger = load_table(out / "scores/ledger-00000.parquet").to_pylist()
    low = sorted(rank for rank in ranks if rank < 40)
    assert sorted(line["value"] for line in ledger) == low
    assert {(line["reason"], line["threshold"], line["stage"]) for line in ledger} == {
        ("low_rank", 40, "scores")
    }
    counts = load_manifest(out / "scores").counts
    assert counts["in"] == counts["kept"] + counts["dropped"]["low_rank"]
    assert load_manifest(out / "dedup").counts["in"] == counts["kept"]
    lines = [line for path in sorted((out / "texts/out").rglob("*.jsonl*")) for line in load_lines(path)]
    shown = {
        line["doc_id"]: line["measures"]["score.edu.percentile"]
        for line in lines
        if line["source"] == "problems"
    }
    assert shown
    assert all(rank >= 40 for rank in shown.values())
    gone = ledger[0]["doc_id"]
    (history,) = mill.why(out, gone).documents or []
    assert history.outcome == "dropped by scores: low_rank"
    assert (history.scores or {})["percentiles"]["score.edu.percentile"] == ledger[0]["value"]
    assert digest_of(out) == digest_of(
        mill.run(ranked_corpus(tmp_path / "three", builds=builds), workers=3).out
    )


def test_a_recipe_without_percentiles_has_no_such_step(tmp_path: Path) -> None:
    write_model(tmp_path / "edu.bin")
    scores = [{key: value for key, value in EDU.items() if key != "percentile"}]
    out = mill.run(small_corpus(tmp_path, scores=scores), workers=1).out
    assert not (out / "scores").exists()
    assert (out / "tokens").exists()


def test_a_percentile_of_a_scope_that_is_not_there_is_refused_with_the_nearest(tmp_path: Path) -> None:
    out = mill.run(ranked_corpus(tmp_path), workers=1, until="scores").out
    name = "score.edu.percentile.min"
    for scope, near in (("domains.maht", "domains.math"), ("sources.problem", "sources.problems")):
        with pytest.raises(TokmillError, match="no rule of this run is called") as caught:
            mill.whatif(out, {f"{scope}.{name}": 90})
        assert f"{near}.{name}" in str(caught.value.next)
    rows = [
        (source, rank)
        for number, source in enumerate(("problems", "notes"))
        for rank in load_table(out / f"scores/percentiles-{number:05d}.parquet").column(0).to_pylist()
        if rank is not None
    ]
    moved = mill.whatif(out, {f"sources.problems.{name}": 90})
    assert moved.kept_then == sum(rank >= (90 if source == "problems" else 40) for source, rank in rows)
