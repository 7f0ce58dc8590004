"""SIGKILL at any moment, to the driver or a worker, again and again: the result is the same."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import tokmill as mill
from mill import digest_of, small_corpus, tokmill

KILLS = 8


def start_run(recipe: Path, out: Path) -> subprocess.Popen[bytes]:
    command = [
        sys.executable,
        "-c",
        "from tokmill.cli import main; main()",
        "run",
        recipe,
        "--out",
        out,
        "--workers",
        "2",
    ]
    return subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )


def workers_of(driver: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        children = psutil.Process(driver.pid).children()
        return [child for child in children if "spawn_main" in " ".join(child.cmdline())]
    except psutil.Error:
        return []


def kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGKILL)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    directory = tmp_path_factory.mktemp("killed")
    dedup = {"near": {}, "window": {"policy": "trim"}, "partitions": 2}
    recipe = small_corpus(directory, problems=12000, shards={"megabytes": 1}, dedup=dedup)
    mill.run(recipe, directory / "quiet", workers=2)
    return recipe, digest_of(directory / "quiet")


@pytest.mark.parametrize("seed", [1, 2])
def test_a_run_killed_again_and_again_ends_with_the_same_content(
    expected: tuple[Path, str], tmp_path: Path, seed: int
) -> None:
    recipe, digest = expected
    chance = random.Random(seed)
    killed_drivers = killed_workers = 0
    for _ in range(KILLS):
        driver = start_run(recipe, tmp_path / "out")
        workers: list[psutil.Process] = []
        try:
            driver.wait(timeout=chance.uniform(0.7, 3.5))
            break  # finished before it was its turn
        except subprocess.TimeoutExpired:
            workers = workers_of(driver)
        if workers and chance.random() < 0.5:
            kill(chance.choice(workers))
            killed_workers += 1
            try:
                driver.wait(timeout=chance.uniform(0.1, 2.0))  # it must go on without that worker
                assert driver.returncode == 0
                break
            except subprocess.TimeoutExpired:
                workers = workers_of(driver)
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        killed_drivers += 1
        _, alive = psutil.wait_procs(workers, timeout=30)
        assert not alive, "workers must not outlive their driver"
    assert killed_drivers >= 2
    finished = tokmill("run", recipe, "--out", tmp_path / "out", "--workers", "2")
    assert finished.returncode == 0, finished.stderr
    assert digest_of(tmp_path / "out") == digest


def test_a_killed_worker_does_not_stop_the_run(expected: tuple[Path, str], tmp_path: Path) -> None:
    recipe, digest = expected
    driver = start_run(recipe, tmp_path / "out")
    killed: set[int] = set()
    while driver.poll() is None and len(killed) < 3:
        for worker in workers_of(driver):
            if worker.pid not in killed and len(killed) < 3:
                kill(worker)
                killed.add(worker.pid)
        try:
            driver.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            continue
    assert driver.wait(timeout=300) == 0
    assert len(killed) == 3
    assert digest_of(tmp_path / "out") == digest


def test_an_interrupted_run_leaves_nothing_half_written_under_a_final_name(
    expected: tuple[Path, str], tmp_path: Path
) -> None:
    import pyarrow.parquet as pq

    recipe, _ = expected
    driver = start_run(recipe, tmp_path / "out")
    try:
        driver.wait(timeout=2.5)
        pytest.fail("the run was over before it could be interrupted")
    except subprocess.TimeoutExpired:
        workers = workers_of(driver)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    psutil.wait_procs(workers, timeout=30)
    for path in (tmp_path / "out").rglob("*.parquet"):
        if not path.name.startswith(".tmp-"):
            pq.read_table(path)
    report = mill.verify(tmp_path / "out")
    assert not report.ok
    assert any("not finished" in problem.what for problem in report.problems)
