"""Builds in many tasks: the files, the counts and the manifest of one task, however a split is cut."""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import tokmill as mill
from mill import small_corpus
from tokmill.artifacts.step import Task, Unawaited
from tokmill.audit.opened import open_run
from tokmill.formats import index as row_index
from tokmill.pipeline.plan import plan_steps
from tokmill.stages.build import cutting, mixture_stage
from tokmill.stages.build.stage import conduct
from tokmill.stages.registry import perform
from written import load_manifest

BOTH = ("parquet", "arrow", "mds", "litdata", "levanter", "olmo")
ROWS = {"layout": "concat", "length": 64}
DOCUMENTS = ("megatron", "token_cache", "llmc", "nanogpt", "nanotron")
PADDED = {"layout": "pad", "length": 50}
BUILDS: list[dict[str, Any]] = [
    *({"name": f"rows-{name}", "format": name, "pack": ROWS} for name in ("memmap", "npy", *BOTH)),
    *({"name": f"lists-{name}", "format": name, "pack": {"layout": "indexed"}} for name in BOTH),
    *({"name": name, "format": name} for name in DOCUMENTS),
    {"name": "apart", "format": "npy", "pack": {"layout": "concat", "length": 64, "mix_domains": False}},
    {"name": "padded", "format": "memmap", "pack": {"layout": "concat", "length": 4096, "tail": "pad"}},
    {"name": "best_fit", "format": "memmap", "pack": {"layout": "best_fit", "length": 128}},
    {"name": "document", "format": "parquet", "pack": {"layout": "document", "length": 128}},
    {"name": "pad", "format": "npy", "pack": PADDED},
    {
        "name": "columns",
        "format": "parquet",
        "columns": "huggingface",
        "pack": {"layout": "pad", "length": 50},
    },
]


@pytest.fixture(autouse=True)
def _small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of a few rows, and stretches of a few frames."""
    monkeypatch.setattr(row_index, "FRAME_ROWS", 16)
    monkeypatch.setattr(cutting, "_STRETCH_TOKENS", 5000)


def cut_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "_ONE_TASK_WEIGHT", 0)


def digests(out: Path) -> dict[str, str]:
    """Every file of every build, but for the line that says when it was made."""
    found = {}
    for path in sorted((out / "build").rglob("*")):
        if path.is_file() and path.name != "manifest.json":
            data = path.read_bytes()
            if path.name == "meta.json":
                data = json.dumps({**json.loads(data), "created_at": None}).encode()
            found[path.relative_to(out).as_posix()] = hashlib.sha256(data).hexdigest()
    return found


def recipe_of(directory: Path, **more: Any) -> Path:
    recipe = small_corpus(directory, problems=400, builds=BUILDS, **more)
    described = json.loads(recipe.read_text())
    for build in described["builds"]:
        if build["format"] in ("npy", "parquet", "arrow"):
            build["rows_per_shard"] = 48
    recipe.write_text(json.dumps(described))
    return recipe


@pytest.mark.parametrize("order", ["corpus", "mixture"])
def test_many_tasks_write_the_files_and_the_manifest_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    more = {"mixture": {"order": "shuffle"}} if order == "mixture" else {}
    recipe = recipe_of(tmp_path, **more)
    one = mill.run(recipe, tmp_path / "one", workers=1).out
    cut_all(monkeypatch)
    monkeypatch.setattr(mixture_stage, "_SORTED_AT_ONCE", 100)
    many = mill.run(recipe, tmp_path / "many", workers=1).out
    if order == "mixture":
        left, right = (load_manifest(out / "mixture") for out in (one, many))
        assert left.digest == right.digest, "whoever sorted the documents"
        assert {path.suffix for path in (many / "mixture").iterdir()} == {".parquet", ".json"}
    assert digests(one) == digests(many)
    for build in BUILDS:
        left, right = (load_manifest(out / "build" / build["name"]) for out in (one, many))
        assert left.identity == right.identity
        assert left.counts == right.counts
        assert left.tasks == right.tasks, "fingerprints and the order of files too"
    assert mill.verify(many).problems == []


def test_a_cut_build_has_tasks_for_stretches_and_leaves_none_of_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of(tmp_path)
    cut_all(monkeypatch)
    out = mill.run(recipe, workers=1).out
    upstream = open_run(out)
    steps = {step.name: step for step in plan_steps(mill.load_recipe(recipe), recipe.parent, out)}
    for name, least in (("rows-npy", 3), ("rows-memmap", 1), ("lists-parquet", 3)):
        asked = tasks_of(steps[f"build/{name}"], upstream, tmp_path / "again" / name)
        functions = [task.function for task in asked]
        assert functions.count("build.index") > 1
        assert functions.count("build.files") >= least
        assert functions.count("build.plan") == functions.count("build.join")
    listed = {entry.path for entry in load_manifest(out / "build/rows-npy").files}
    there = {
        path.relative_to(out / "build/rows-npy").as_posix() for path in (out / "build/rows-npy").rglob("*.*")
    }
    assert there == {*listed, "manifest.json"}


def test_a_task_reads_no_file_of_another_that_is_not_among_its_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that shares nothing but a store has no others."""
    recipe = recipe_of(tmp_path)
    one = mill.run(recipe, tmp_path / "one", workers=1).out
    cut_all(monkeypatch)
    upstream = open_run(one)
    for step in plan_steps(mill.load_recipe(recipe), recipe.parent, one):
        if step.kind == "build":
            asked = tasks_of(step, upstream, tmp_path / "many" / step.name, perform_alone)
            assert len(asked) > 3
    made = digests(tmp_path / "many")
    assert {path: made.get(path) for path in digests(one)} == digests(one)


def perform_alone(task: Task) -> Any:
    """In a directory that has nothing, from where its files go to the others."""
    alone = Path(f"{task.directory}.{task.key}")
    receipt = perform(replace(task, directory=str(alone)))
    for entry in receipt.files:
        (Path(task.directory) / entry.path).parent.mkdir(parents=True, exist_ok=True)
        (alone / entry.path).rename(Path(task.directory) / entry.path)
    return receipt


def tasks_of(
    step: Any, upstream: Any, directory: Path, perform_one: Callable[[Task], Any] = perform
) -> list[Task]:
    """All tasks of a build, done as they are asked for."""
    moved = type(step)(**{**step.__dict__, "directory": directory})
    conducting, found, left = conduct(moved, upstream), list[Task](), list[Any]()
    asked = next(conducting)
    while True:
        found += asked
        done = [perform_one(task) for task in asked]
        first = asked.first if isinstance(asked, Unawaited) else 0
        try:
            asked, left = conducting.send([*left, *done[first:]]), done[:first]
        except StopIteration:
            return found


def test_a_task_has_the_same_fingerprint_in_another_process(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path)
    out = mill.run(recipe, workers=1, until="tokens").out
    upstream = open_run(out)
    for step in plan_steps(mill.load_recipe(recipe), recipe.parent, out):
        if step.kind == "build":
            for task in next(conduct(step, upstream)):
                there = pickle.loads(pickle.dumps(task))  # noqa: S301 (our own bytes)
                assert there.fingerprint == task.fingerprint
