"""A disk that fails when it is told to, a small recipe with every stage,
and what must hold after each fault."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import tokmill as mill
from mill import small_corpus

HERE = Path(__file__).resolve().parent
# fsync costs 10 ms on a disk and nothing here; what is tested is its place in the order, and its failure.
QUICK_DISK = Path("/dev/shm")


class Mode(IntEnum):
    """As shim.c numbers them."""

    RECORD = 0
    KILL = 1
    EIO = 2
    ENOSPC = 3
    SHORT = 4
    SHADOW = 5
    READS = 6
    R_EIO = 7
    R_STUCK = 8
    R_EINTR = 9
    R_ENOMEM = 10
    R_SHORT = 11
    R_FLIP = 12


class Call(NamedTuple):
    """A call that changed or read something, or was to: what, how it went, and where."""

    kind: str
    result: str
    path: str
    target: str


class Ended(NamedTuple):
    status: int
    said: str
    calls: list[Call]


@contextlib.contextmanager
def open_scratch() -> Iterator[Path]:
    parent = QUICK_DISK if os.access(QUICK_DISK, os.W_OK) else None
    directory = Path(tempfile.mkdtemp(prefix="tokmill-faults-", dir=parent)).resolve()
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


BUILDS = [
    {"name": "rows", "format": "memmap"},
    {"name": "mega", "format": "megatron"},
    {"name": "shards", "format": "npy", "rows_per_shard": 8},
    {"name": "table", "format": "parquet", "rows_per_shard": 8},
    {"name": "cache", "format": "token_cache"},
]


def whole_recipe(directory: Path, problems: int = 80, **sections: Any) -> Path:
    """Every stage: sample, clean, near and window dedup, split by cluster, trained tokenizer, mixture,
    five formats."""
    source = {
        "name": "problems",
        "domain": "math",
        "license": "Apache-2.0",
        "files": "problems.jsonl",
        "fields": {"id": "id"},
        "template": "Problem: {question}\n\nSolution: {answer}",
        "sample": {"method": "reservoir", "k": problems * 3 // 4},
    }
    notes = {"name": "notes", "domain": "prose", "files": "notes.txt", "unit": "paragraph"}
    whole: dict[str, Any] = {
        "sources": [source, notes],
        "dedup": {"near": {}, "window": {"policy": "trim", "words": 12, "min_words": 5}, "partitions": 2},
        "split": {"method": "counts", "by": "cluster", "counts": {"valid": problems // 10}},
        "mixture": {"weights": {"math": "0.8", "prose": "0.2"}, "blocks": 20, "exhausted": "repeat"},
        "builds": BUILDS,
    }
    return small_corpus(directory, problems, **{**whole, **sections})


def compile_shim(scratch: Path) -> Path:
    """The library that is preloaded."""
    if not sys.platform.startswith("linux") or shutil.which("cc") is None:
        pytest.skip("needs Linux and a C compiler")
    library = scratch / "shim.so"
    flags = ["-Wall", "-Wextra", "-Wshadow", "-Werror", "-shared", "-fPIC", "-O1"]
    subprocess.run(["cc", *flags, "-o", library, HERE / "shim.c", "-ldl"], check=True)
    return library


class Disk:
    """Runs of one recipe into `out`, each in a process of its own, with a fault at one call or none."""

    def __init__(self, recipe: Path, scratch: Path, older: Path | None = None) -> None:
        """With an `older` recipe, every run begins with what that one left."""
        self.recipe, self.out = recipe, scratch / "out"
        self._log, self._said = scratch / "calls.tsv", scratch / "said.txt"
        self.shadow = scratch / "calls.tsv.d"  # as shim.c names it
        library = compile_shim(scratch)
        path = os.pathsep.join([str(Path(mill.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
        self._server = subprocess.Popen(
            [sys.executable, HERE / "forking.py", recipe],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": path},
        )
        assert self._answer() == 0, "the mill could not be loaded"
        self._before = scratch / "before" if older is not None else None
        if older is not None:
            mill.run(older, self._before, workers=1)
        self.clear()
        ended = self.run()
        assert ended.status == 0, ended.said
        self.calls = ended.calls
        self.steps = {_step(path.parent, self.out) for path in self.out.rglob("manifest.json")}
        self.digest = checked_digest(self.out)

    def run(self, mode: Mode = Mode.RECORD, at: int = 0) -> Ended:
        return self.command(["run", str(self.recipe), "--out", str(self.out), "--workers", "1"], mode, at)

    def disturbed(self, mode: Mode, at: int) -> Ended:
        """A first run that meets a fault at this call, or at the next one that can fail like this."""
        self.clear()
        return self.run(mode, at)

    def verify(self, mode: Mode = Mode.READS, at: int = 0) -> Ended:
        return self.command(["verify", str(self.out)], mode, at)

    def command(self, arguments: list[str], mode: Mode, at: int) -> Ended:
        self._log.unlink(missing_ok=True)
        asked = {
            "arguments": arguments,
            "said": str(self._said),
            "root": str(self.out),
            "log": str(self._log),
            "mode": int(mode),
            "at": at,
        }
        assert self._server.stdin is not None
        print(json.dumps(asked), file=self._server.stdin, flush=True)
        status = self._answer()
        said = self._said.read_text("utf-8", "replace")
        calls = [Call(*line.split("\t")) for line in self._log.read_text().splitlines()]
        return Ended(status, said, calls)

    def clear(self) -> None:
        shutil.rmtree(self.out, ignore_errors=True)
        shutil.rmtree(
            f"{self.out}.cache", ignore_errors=True
        )  # or the calls would not be those of a first run
        if self._before is not None:
            shutil.copytree(self._before, self.out)
            shutil.copytree(f"{self._before}.cache", f"{self.out}.cache")

    def close(self) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()

    def _answer(self) -> int:
        assert self._server.stdout is not None
        return int(json.loads(self._server.stdout.readline())["status"])


@contextlib.contextmanager
def open_disk(older: dict[str, Any] | None = None, **sections: Any) -> Iterator[Disk]:
    """For whole_recipe with these sections; with `older` ones over them, for what came before."""
    with open_scratch() as scratch:
        recipe = whole_recipe(scratch / "corpus", **sections)
        former = whole_recipe(scratch / "former", **{**sections, **older}) if older is not None else None
        disk = Disk(recipe, scratch, former)
        try:
            yield disk
        finally:
            disk.close()


def checked_digest(out: Path) -> str:
    """The content of a run in which `verify` finds nothing wrong and that left nothing lying about."""
    report = mill.verify(out)
    assert not report.problems, f"verify finds {report.problems}"
    assert not leftovers(out), f"left {leftovers(out)}"
    return report.digest


def leftovers(out: Path) -> list[str]:
    """Temp files, locks, journals, receipts, old manifests: what only an unfinished run has."""
    return [
        path.relative_to(out).as_posix()
        for path in sorted(out.rglob("*"))
        if path.name.startswith(".") or path.name in ("journal.json", "receipts", "manifest.stale.json")
    ]


def unsafe_receipts(out: Path, steps: set[str]) -> list[str]:
    """Receipts and manifests of these steps that vouch for a file that is not there as they say.
    Read without the mill.

    Once a step has its manifest, receipts are scaffolding that is on its way out with what was only needed
    for it.
    """
    found = []
    manifests = [path for path in sorted(out.rglob("manifest.json")) if _step(path.parent, out) in steps]
    finished = {path.parent for path in manifests}
    receipts = [path for path in sorted(out.rglob("receipts/*.json")) if path.parents[1] not in finished]
    receipts = [path for path in receipts if _step(path.parents[1], out) in steps]
    for path in [*receipts, *manifests]:
        try:
            listed = json.loads(path.read_bytes())["files"]
        except ValueError:
            found.append(f"{path}: cannot be read")
            continue
        home = path.parent.parent if path.parent.name == "receipts" else path.parent
        for entry in listed:
            file = home / entry["path"]
            data = file.read_bytes() if file.is_file() else b""
            if len(data) != entry["bytes"] or hashlib.sha256(data).hexdigest() != entry["sha256"]:
                found.append(f"{path}: {entry['path']}")
    return found


def _step(directory: Path, out: Path) -> str:
    return directory.relative_to(out).as_posix()
