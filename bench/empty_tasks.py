"""What an engine itself costs: tasks that do nothing, submitted, run and accounted for.

    python bench/empty_tasks.py [--tasks 10000] [--workers 8] [--engine slurm] [--slurm KEY=VALUE …]

Prints wall time, and the CPU time of the driver, per task; the start of the engine's workers is in the wall
time, for there is no telling it apart on Slurm.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from tokmill.artifacts.manifest import Receipt
from tokmill.artifacts.step import Task
from tokmill.engines.local import Resources, check_resources, open_engine


def perform_nothing(task: Task) -> Receipt:
    return task.receipt([], {"done": 1}, None)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--engine", default="local", choices=["local", "ray", "dask", "slurm"])
    parser.add_argument("--slurm", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    # Workers import this file by its name.
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    os.environ["TOKMILL_WORKER_MEGABYTES"] = "0"
    import empty_tasks

    resources = Resources(options.workers, options.engine, slurm=options.slurm)
    check_resources(resources)
    tasks: list[Task] = [
        Task(function="nothing", key=str(number), options={}, inputs=[], directory="")
        for number in range(options.tasks)
    ]
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".empty-tasks-") as directory:
        engine = open_engine(
            resources, 1 << 20, lambda said: print(said, file=sys.stderr), directory=Path(directory)
        )
        try:
            begun, spent = time.perf_counter(), time.process_time()
            engine.submit(empty_tasks.perform_nothing, tasks)
            done = {engine.collect().receipt.fingerprint for _ in tasks}
            wall, cpu = time.perf_counter() - begun, time.process_time() - spent
        finally:
            engine.close()
    assert done == {task.fingerprint for task in tasks}, "a task is missing"
    print(
        f"{engine.name}, {options.workers} workers: {len(tasks):,} tasks in {wall:.1f} s, "
        f"{1000 * wall / len(tasks):.2f} ms each; driver {1000 * cpu / len(tasks):.2f} CPU ms each"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
