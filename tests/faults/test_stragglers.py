"""A task that hangs on its node is done by another one: real clusters of Ray, Dask and Slurm."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engines.tasks import perform, run_all, task
from nodes import open_dask_nodes, open_ray_nodes
from slurm_nodes import slurm_nodes
from tokmill.engines.local import EngineName, Resources, open_engine

pytestmark = pytest.mark.slow_faults

TESTS = Path(__file__).resolve().parents[1]
HANGS_SECONDS = 60.0


@contextlib.contextmanager
def open_nodes(engine: EngineName, shared: Path) -> Iterator[Resources]:
    """Two, with one worker each."""
    if engine == "dask":
        with open_dask_nodes(2, {}, shared=shared) as cluster:
            yield Resources(None, engine, cluster.address)
    elif engine == "ray":
        with (
            tempfile.TemporaryDirectory(prefix="tmt-", dir="/tmp", ignore_cleanup_errors=True) as short,
            open_ray_nodes(2, {}, Path(short), shared=shared) as cluster,
        ):
            yield Resources(None, engine, cluster.address)
    else:
        with slurm_nodes(2):
            yield Resources(2, engine, slurm=["mem=9G"])  # of 16 that each node has: one job there


@pytest.mark.parametrize("engine", ["ray", "dask", "slurm"])
def test_a_task_that_hangs_is_done_on_another_node_and_nothing_of_it_is_left(
    engine: EngineName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokmill.engines.stragglers.LATE_SECONDS", 2.0)
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    )
    said: list[str] = []
    tasks = [
        task("hangs", slow_once=str(tmp_path / "begun"), slow_seconds=HANGS_SECONDS),
        *(task(str(number)) for number in range(8)),
    ]
    with open_nodes(engine, tmp_path) as resources:
        driver = open_engine(resources, 1 << 20, said.append, directory=tmp_path / "out")
        try:
            begun = time.monotonic()
            done = [finished.key for finished, _ in run_all(driver, perform, tasks)]
            took = time.monotonic() - begun
            assert sorted(done) == sorted(one.key for one in tasks)
            assert took < HANGS_SECONDS - 5, "it was waited for"
            assert [line for line in said if "begun a second time on another node" in line] == said[:1]
            assert [one.key for one, _ in run_all(driver, perform, [task("after")])] == ["after"]
            driver.settle()
            assert driver.unsettled() == set()
        finally:
            driver.close()
    print(f"{engine}: {took:.1f} s, {said}")
