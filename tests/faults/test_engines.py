"""One digest, whoever runs the tasks: processes of this machine, Ray, Dask."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from faults.disk import checked_digest
from mill import small_corpus
from written import LOCK, MANIFEST


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Some 60 tasks of every kind, and what one worker makes of them."""
    directory = tmp_path_factory.mktemp("engines")
    before = mill.run(small_corpus(directory / "before", problems=900), directory / "old", workers=1).out
    mill.index(before, out=directory / "old.index", splits=["valid"], workers=1)
    reference = ["./old.index", "./old"]
    dedup = {"near": {}, "window": {"policy": "trim"}, "partitions": 2, "reference": reference}
    recipe = small_corpus(directory, problems=6000, shards={"megabytes": 1}, dedup=dedup)
    mill.run(recipe, directory / "one", workers=1)
    return recipe, checked_digest(directory / "one")


@pytest.mark.parametrize(
    ("engine", "package", "workers"), [("local", "tokmill", 3), ("ray", "ray", 2), ("dask", "distributed", 2)]
)
def test_content_does_not_depend_on_who_runs_the_tasks(
    expected: tuple[Path, str], tmp_path: Path, engine: Any, package: str, workers: int
) -> None:
    pytest.importorskip(package)
    recipe, digest = expected
    out = Path(
        os.path.relpath(tmp_path / "out")
    )  # as a user writes it; a worker has another current directory
    result = mill.run(recipe, out, engine=engine, workers=workers)
    assert result.ran
    assert checked_digest(out) == digest
    environment = json.loads((out / MANIFEST).read_bytes())["environment"]
    assert environment["engine"].split()[0] == engine
    assert environment["workers"] == workers
    assert not (out / LOCK).exists()
    again = mill.run(recipe, out, engine=engine, workers=workers)
    assert again.ran == [], "what an engine made is up to date for the same engine"
    assert mill.run(recipe, out, workers=1).ran == [], "and for another"
