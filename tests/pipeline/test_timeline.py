"""Who worked when: against a count of every moment, and in the manifest of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokmill as mill
from faults.disk import checked_digest
from mill import small_corpus
from tokmill.pipeline.timeline import SPANS, Timeline
from tokmill.reports.idleness import describe_idleness

# whose (a worker's task, or the driver), step, when it ends, how long it took: in hundredths of a second
SPELLS = st.lists(
    st.tuples(
        st.booleans(),
        st.sampled_from(["ingest/a", "ingest/b", "dedup"]),
        st.integers(0, 600),
        st.integers(1, 300),
    ),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=50)
@given(SPELLS)
def test_the_seconds_of_each_step_are_those_that_a_count_of_moments_finds(
    spells: list[tuple[bool, str, int, int]],
) -> None:
    now = 0.0
    timeline = Timeline(lambda: now)
    for is_driver, step, ended, took in spells:
        if is_driver:
            now = (ended - took) / 100
            with timeline.driver(step):
                now = ended / 100
        else:
            now = ended / 100
            timeline.task(step, took / 100)
    found = timeline.as_json(2)
    assert found is not None
    first, last = min(end - took for *_, end, took in spells), max(end for *_, end, _ in spells)
    assert found["seconds"] == pytest.approx((last - first) / 100)
    assert 1 <= len(found["spans"]) <= SPANS
    width = (last - first) / len(found["spans"])  # of a span, in hundredths
    for whose, is_driver in (("workers", False), ("driver", True)):
        for step in ("ingest/a", "ingest/b", "dedup"):
            moments = [
                moment
                for kind, name, ended, took in spells
                if kind == is_driver and name == step
                for moment in range(ended - took, ended)
            ]
            told = [span[whose].get(step, 0.0) for span in found["spans"]]
            assert sum(told) == pytest.approx(len(moments) / 100, abs=0.03)
            for number, seconds in enumerate(told):
                low, high = first + number * width, first + (number + 1) * width
                within = sum(low <= moment < high for moment in moments) / 100
                several = sum(1 for kind, name, *_ in spells if kind == is_driver and name == step)
                assert seconds == pytest.approx(within, abs=0.011 * several + 0.001)


def test_idle_time_goes_to_what_was_at_work() -> None:
    """Two workers, ten seconds: both ingest, then one does, then only the driver works, then one builds."""
    spans = [
        {"workers": {"ingest/a": 1.0, "ingest/b": 1.0}, "driver": {}},
        {"workers": {"ingest/a": 1.0}, "driver": {}},
        {"workers": {}, "driver": {"dedup": 0.4, "split": 0.1}},
        {"workers": {"build/rows": 0.5}, "driver": {}},
        {"workers": {}, "driver": {}},
    ]
    found = describe_idleness({"seconds": 5.0, "workers": 2, "spans": spans})
    assert found is not None
    assert found["waits"] == [
        {"for": "the driver: dedup", "seconds": 2.0},
        {"for": "the first task", "seconds": 2.0},
        {"for": "build/rows", "seconds": 1.5},
        {"for": "ingest/a", "seconds": 1.0},
    ]
    assert found["idle_seconds"] == 6.5
    assert found["busy_share"] == pytest.approx(3.5 / 10)
    assert [span["waited_for"] for span in found["spans"]] == [
        None,
        "ingest/a",
        "the driver: dedup",
        "build/rows",
        "the first task",
    ]


@pytest.mark.usefixtures("forked_workers")
def test_a_run_records_who_worked_when_and_its_digest_does_not_know(tmp_path: Path) -> None:
    recipe = small_corpus(tmp_path)
    out = mill.run(recipe, tmp_path / "two", workers=2).out
    environment = json.loads((out / "manifest.json").read_bytes())["environment"]
    timeline = environment["timeline"]
    at_work = {step for span in timeline["spans"] for step in span["workers"]}
    steps = {
        path.parent.relative_to(out).as_posix()
        for path in out.rglob("manifest.json")
        if path.parent != out and json.loads(path.read_bytes())["environment"]["cpu_seconds"] > 0.01
    }
    assert steps <= at_work, "a step that has taken time is not told"
    spent = sum(seconds for span in timeline["spans"] for seconds in span["workers"].values())
    assert 0 < spent <= timeline["workers"] * timeline["seconds"] * 1.05
    alone = mill.run(recipe, tmp_path / "one", workers=1).out
    assert checked_digest(alone) == checked_digest(out)
    page = mill.report(out, out=tmp_path / "page").page.read_text()
    assert "Workers at work over time" in page
    assert "Idle workers waited for" in page
    assert "Workers at work over time" not in mill.report(alone, out=tmp_path / "alone").page.read_text()


def test_the_seconds_of_a_step_are_those_of_its_work_and_not_of_its_waiting(tmp_path: Path) -> None:
    """One worker does one thing at a time: what the steps took, together, is no more than the run took."""
    made = mill.run(small_corpus(tmp_path / "first", builds=None), workers=1).out
    vocabulary = {"path": str(made / "tokenizer" / "tokenizer.json"), "eos": "<|endoftext|>"}
    done = mill.run(small_corpus(tmp_path, problems=400, tokenizer=vocabulary), workers=1)
    took = {
        path.parent.relative_to(done.out).as_posix(): json.loads(path.read_bytes())["environment"]["seconds"]
        for path in done.out.glob("*/**/manifest.json")
    }
    assert "tokenizer" in took
    assert sum(took.values()) <= done.seconds, took
