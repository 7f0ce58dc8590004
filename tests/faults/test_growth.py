"""Ten times the documents: no task of deduplication or of a split needs more memory for them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from tokmill.kernels.warm import load_kernels
from tokmill.stages.dedup import exact, near, survivors, window
from tokmill.stages.split import selection

BENCH = Path(__file__).resolve().parents[2] / "bench/growth_dedup.py"

# What a task looks at together, as a part of what it is in earnest.
BOUNDS = {
    exact: ("HASHES_AT_ONCE",),
    near: ("BANDS_AT_ONCE", "PAIRS_AT_ONCE"),
    window: ("AT_ONCE", "MARKS_AT_ONCE"),
    selection: ("TEXTS_AT_ONCE",),
    survivors: ("AT_ONCE",),
}


def growth() -> Any:
    """bench/growth_dedup.py: every task in a process of its own, with the peak of each kind."""
    spec = importlib.util.spec_from_file_location("growth_dedup", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    load_kernels()  # or every task loads numba first: 95 MB that are not its own
    return module


def grown(bench: Any, directory: Path, small: int, large: int) -> dict[str, tuple[float, float]]:
    """Megabytes by task, for few and for many documents."""
    few, many = (bench.measure_corpus(directory / f"{count}", count) for count in (small, large))
    return {name: (few[name].megabytes, many[name].megabytes) for name in many}


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.slow_faults
def test_no_task_grows_with_the_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With pieces a fiftieth as large as those of a run, so that the smaller corpus nearly fills one.

    Holding all of 60,000 documents, as tasks once did, took candidates and resolve 40 MB more.
    """
    for module, names in BOUNDS.items():
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name) // 50)
    monkeypatch.setattr("tokmill.stages.external.runs.MAX_PARTITIONS", 64)
    bench = growth()
    monkeypatch.setattr(bench, "SHARD_MEGABYTES", 1)
    peaks = grown(bench, tmp_path, 6_000, 60_000)
    assert {name: pair for name, pair in peaks.items() if pair[1] > pair[0] + 20} == {}


@pytest.mark.slow_faults
def test_no_task_of_a_run_in_earnest_grows_with_the_documents(tmp_path: Path) -> None:
    """A task has a piece of some size or less: 200 MB at most.
    Those that held all documents took 650 to 1,650."""
    peaks = grown(growth(), tmp_path, 300_000, 3_000_000)
    assert {name: pair for name, pair in peaks.items() if pair[1] > 200} == {}
