"""How far a run is, from what it leaves behind; and whether this machine is ready. Nothing is changed.

    manifest.json of the run        finished
    journal.json, its process lives running: steps, tasks done of known, rate, time left
    journal.json, it does not       failed with an error, or stopped without a word
    neither                         interrupted: steps with a manifest are done, receipts say how far the
                                    others got

`examine` has facts of the machine and a self-test. An object store that is named is asked too:
does it keep the conditions of conditional writes, or only take them?
"""

from __future__ import annotations

import dataclasses
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil
import pyarrow as pa

from tokmill.artifacts.cache import cache_bytes
from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.directory import open_artifact
from tokmill.artifacts.manifest import RECEIPTS, Json, available_cores, package_version
from tokmill.artifacts.progress import Journal, Progress, Silence, load_journal
from tokmill.audit.opened import existing, find_artifacts
from tokmill.engines.local import COMPILING, compile_kernels
from tokmill.engines.slurm_state import SlurmState, load_state
from tokmill.errors import TokmillError, install_hint, plural
from tokmill.kernels.warm import count_stale, kernels_of
from tokmill.pipeline.session import TRAFFIC
from tokmill.storage import codecs
from tokmill.storage.digests import table_sha256
from tokmill.storage.lease import find_holder
from tokmill.storage.location import parse_url
from tokmill.storage.objects import OK, probe_store
from tokmill.storage.records import Kind, Wanted
from tokmill.storage.traffic import sum_traffic

FINISHED, RUNNING, FAILED, STOPPED = "finished", "running", "failed", "stopped"


class StepStatus(NamedTuple):
    step: str
    state: str  # "done" | "running" | "begun" | "waiting" | "not usable"
    shards_done: int | None  # None: not known
    shards: int | None
    seconds: float | None
    detail: str = ""
    traffic: Json = {}  # noqa: RUF012 (never changed) with object stores, of its tasks


@short_repr
class Status(NamedTuple):
    directory: Path
    recipe: str
    state: str
    steps: list[StepStatus]
    seconds: float | None  # since it began; None: its journal is gone
    shards_per_second: float | None  # of the steps at work
    seconds_left: float | None  # of the steps at work; how long later ones take is not known yet
    last_sign_seconds: float | None  # how long ago it wrote its journal
    holder: str | None  # process, host and time of the run at work
    error: Json | None
    said: list[str]
    cache_bytes: int = 0  # that the cache beside the run takes
    slurm: SlurmState | None = None  # jobs and tasks of a run that is at work there
    traffic: Json = {}  # noqa: RUF012 (never changed) with object stores, of all steps and the driver

    @property
    def ok(self) -> bool:
        return self.state in (FINISHED, RUNNING)

    @property
    def done(self) -> int:
        return sum(step.state == "done" for step in self.steps)

    def as_json(self) -> Json:
        return {
            "ok": self.ok,
            **self._asdict(),
            "directory": str(self.directory),
            "steps": [step._asdict() for step in self.steps],
            "steps_done": self.done,
            "slurm": None if self.slurm is None else msgspec.to_builtins(self.slurm),
        }


def status(directory: str | Path) -> Status:
    """How far the run in `directory` is: running, stopped, failed or finished, step by step; who holds it."""
    directory = existing(directory)
    journal = load_journal(directory)
    holder = find_holder(directory)
    set_aside: dict[str, str] = {}
    if journal is None and holder is not None and not any(directory.glob("*/")):
        recipe, names, state = directory.resolve().name, [], RUNNING  # it has only just begun
    elif journal is None:
        found = find_artifacts(directory)
        recipe, names, set_aside = found.name, [*found.artifacts, *found.missing], found.set_aside
        state = FINISHED if found.is_finished else STOPPED
    else:
        running = [name for name, note in journal.notes.items() if note.state == "running"]
        beside = [name for name in running if name not in journal.steps]  # kernels that are compiled
        recipe, names = journal.recipe, [*beside, *journal.steps]
        state = FAILED if journal.error is not None else STOPPED
    if holder is not None:
        state = RUNNING
    now = time.time()
    steps = [_step(directory, name, journal, now, state) for name in names]
    steps += [StepStatus(name, "not usable", None, None, None, why) for name, why in set_aside.items()]
    rate, left = _pace(journal, steps, now) if journal is not None and state == RUNNING else (None, None)
    return Status(
        directory=directory,
        recipe=recipe,
        state=state,
        steps=steps,
        seconds=_lasted(journal, now, state) if journal is not None else None,
        shards_per_second=rate,
        seconds_left=left,
        last_sign_seconds=round(max(now - journal.written_at, 0), 1) if journal is not None else None,
        holder=str(holder) if holder is not None else None,
        error=dict(journal.error) if journal is not None and journal.error is not None else None,
        said=list(journal.said) if journal is not None else [],
        cache_bytes=cache_bytes(directory),
        slurm=load_state(directory) if state == RUNNING else None,
        traffic=_traffic(directory) if state == FINISHED else sum_traffic(step.traffic for step in steps),
    )


def _traffic(directory: Path) -> Json:
    """As the manifest of the run has it; an earlier one has none."""
    run = open_artifact(directory)
    return sum_traffic(run.manifest.environment.get(TRAFFIC, {}).values()) if run is not None else {}


def _step(directory: Path, name: str, journal: Journal | None, now: float, state: str) -> StepStatus:
    note = journal.notes.get(name) if journal is not None else None
    if note is not None and note.state == "running":
        word = "running" if state == RUNNING else "begun"
        began = note.begun_at if note.begun_at is not None else now
        seconds = round((now if state == RUNNING else journal.written_at) - began, 1) if journal else None
        done = note.done if state == RUNNING else max(note.done, _receipts(directory / name))
        counted = "{:,} of {:,} {}".format(*note.counted) if note.counted is not None else ""
        return StepStatus(name, word, None if name == COMPILING else done, note.tasks, seconds, counted)
    try:
        artifact = open_artifact(directory / name)
    except TokmillError as error:
        return StepStatus(name, "not usable", None, None, None, error.what)
    if artifact is not None and (note is not None or journal is None):
        tasks = len(artifact.manifest.tasks)
        detail = "up to date" if note is not None and note.state == "up to date" else ""
        own = artifact.manifest.environment
        return StepStatus(name, "done", tasks, tasks, own.get("seconds"), detail, own.get(TRAFFIC, {}))
    receipts = _receipts(directory / name)
    if receipts or (artifact is None and journal is None):
        return StepStatus(name, "begun", receipts, None, None)
    return StepStatus(name, "waiting", None, None, None, "has an artifact" if artifact is not None else "")


def _receipts(directory: Path) -> int:
    return sum(1 for _ in (directory / RECEIPTS).glob("*.json"))


def _pace(journal: Journal, steps: list[StepStatus], now: float) -> tuple[float | None, float | None]:
    """Shards that are done as they were asked for, not those that were there before."""
    at_work = [journal.notes[step.step] for step in steps if step.state == "running"]
    worked = sum(note.done - note.reused for note in at_work)
    left = sum((note.tasks or 0) - note.done for note in at_work)
    began = [note.begun_at for note in at_work if note.begun_at is not None]
    if not worked or not began or any(note.tasks is None for note in at_work):
        return None, None
    rate = worked / max(now - min(began), 1e-6)
    return round(rate, 4), round(left / rate, 1)


def _lasted(journal: Journal, now: float, state: str) -> float:
    return round((now if state == RUNNING else journal.written_at) - journal.begun_at, 1)


_REQUIRED = ("numpy", "numba", "pyarrow", "msgspec", "pydantic", "tokenizers", "tiktoken", "sentencepiece")
_FOR_DEVELOPERS = ("test", "docs", "dev")
_SAMPLE = ["plain", "línea dos", "日本語\u2028separator", 'quotes " and \\ and \t tab', ""]


_REQUIREMENT = re.compile(r"""([\w.-]+).*;.*extra == ['"]([\w-]+)['"]""")


def _extras() -> Iterator[tuple[str, str]]:
    """Each extra that tokmill was built with: the version of its first package, if all are there."""
    packages: dict[str, list[str]] = {}
    for requirement in metadata.requires("tokmill") or []:
        if found := _REQUIREMENT.match(requirement):
            packages.setdefault(found[2], []).append(found[1])
    for extra, names in packages.items():
        if extra not in _FOR_DEVELOPERS:
            versions = [package_version(name) for name in names]
            is_there = None not in versions
            yield extra, str(versions[0]) if is_there else f"not installed ({install_hint(extra)})"


@short_repr
@dataclasses.dataclass(frozen=True)
class Examination:
    ok: bool
    sections: dict[str, dict[str, str]]

    def as_json(self) -> Json:
        return dataclasses.asdict(self)


def doctor(
    storage: str | None = None, *, warm: bool = False, progress: Progress | None = None
) -> Examination:
    """Versions, resources, a self-test of every codec;
    with `storage`, whether a store keeps conditional writes.

    `warm` compiles all kernels that are not in the cache yet, which the first run would do.
    """
    if warm:
        compile_kernels(progress or Silence())
    memory, disk = psutil.virtual_memory(), shutil.disk_usage(Path.cwd())
    machine = {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": str(available_cores()),
        "memory": f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB free",
        "disk here": f"{disk.free / 2**30:.1f} of {disk.total / 2**30:.1f} GiB free",
    }
    versions = {"python": platform.python_version()}
    versions.update((name, package_version(name) or "missing") for name in ("tokmill", *_REQUIRED))
    extras = dict(_extras())
    tests = {suffix: _round_trip(suffix) for suffix in (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet")}
    sections = {
        "machine": machine,
        "versions": versions,
        "extras": extras,
        "kernels": _kernels(),
        "codec self-test": tests,
    }
    is_ok = all(result == "ok" for result in tests.values())
    if storage is not None:
        url = parse_url(storage)
        found = probe_store(url)
        sections[f"storage {url}"] = {finding.what: finding.outcome for finding in found}
        is_ok = is_ok and all(finding.outcome == OK for finding in found)
    return Examination(is_ok, sections)


def _kernels() -> dict[str, str]:
    kernels, stale = kernels_of(), count_stale()
    place = kernels[0].stats.cache_path
    if not place:
        return {
            "cache": (
                "none that can be written: every process compiles anew (set `NUMBA_CACHE_DIR` to a directory)"
            )
        }
    ready = f"{len(kernels) - stale} of {plural(len(kernels), 'kernel')}"
    return {
        "compiled": ready + (", the others by the first run or `tokmill doctor --warm`" if stale else ""),
        "cache": str(place),
    }


def _round_trip(suffix: str) -> str:
    """Write and read back a small table; the content digest must survive."""
    table = pa.table({"text": pa.array(_SAMPLE, pa.large_string())})
    wanted = [Wanted("text", "text", Kind.TEXT, True)]
    try:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / f"sample{suffix}"
            codecs.write_table(path, table)
            batches: list[Any] = [
                batch.table
                for batch in codecs.read_batches(path, wanted, unit="document", max_record_bytes=1 << 20)
            ]
        return "ok" if table_sha256(pa.concat_tables(batches)) == table_sha256(table) else "content differs"
    except TokmillError as error:
        return str(error)
