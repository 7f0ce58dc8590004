"""Run a recipe: every step that is not up to date, in order, so that a kill at any moment only costs time.

    for each wave   steps that are current are left alone
                    the others: begin ─ tasks (those without a receipt that holds) ─ conservation ─ manifest
    at the end      <out>/manifest.json   names every artifact with its digests

One run at a time works in an output directory; a lock that dies with its process sees to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tokmill.artifact import (
    Artifact,
    begin,
    discard,
    finish,
    has_all_files,
    is_unswept,
    open_artifact,
    remove_leftovers,
    sweep,
    usable_receipts,
)
from tokmill.clean.attribution import LicenseTotals, attribution
from tokmill.dedup.cuda import Device, choose_device
from tokmill.engines.local import Engine
from tokmill.engines.memory import parse_bytes
from tokmill.engines.opening import EngineName, Resources, check_resources, open_engine
from tokmill.environment import available_cores, describe_environment
from tokmill.errors import TokmillError
from tokmill.forgotten import PENDING_FILE
from tokmill.forgotten_rows import forgotten_facts
from tokmill.journal import open_journal
from tokmill.kernels.warm import compile_kernels
from tokmill.manifest import (
    MANIFEST,
    FileEntry,
    Json,
    Receipt,
    build_manifest,
    check_conservation,
    file_entry,
    fingerprint_of,
    write_manifest,
)
from tokmill.plan import INPUT_STATS, kernels_needed, plan_steps, steps_until, waves
from tokmill.progress import Progress, Silence, told_to
from tokmill.recipe import Recipe
from tokmill.recipe_file import load_recipe
from tokmill.stages.functions import CONDUCTORS, perform
from tokmill.stages.step import UNKNOWN, Conduct, Outcome, Step
from tokmill.stages.tokens import encoding_engine
from tokmill.standing import Standing, assess, step_inputs
from tokmill.storage.commit import commit_bytes, remove_file
from tokmill.storage.location import file_sha256
from tokmill.storage.lock import open_lock
from tokmill.task import Task

ATTRIBUTION = "ATTRIBUTION.md"


@dataclass(frozen=True)
class RunResult:
    """Where everything is and what was done for it."""

    recipe: str
    out: Path
    ran: list[str]
    skipped: list[str]
    seconds: float
    artifacts: dict[str, Artifact]

    def as_json(self) -> Json:
        return {
            "recipe": self.recipe,
            "out": str(self.out),
            "ran": self.ran,
            "skipped": self.skipped,
            "seconds": round(self.seconds, 3),
            "steps": {
                name: {"counts": artifact.manifest.counts, "identity": artifact.manifest.identity}
                for name, artifact in self.artifacts.items()
            },
        }


def run(
    recipe_path: str | Path,
    out: str | Path | None = None,
    *,
    workers: int | None = None,
    engine: EngineName = "local",
    address: str | None = None,
    memory: int | str | None = None,
    device: Device = "auto",
    until: str | None = None,
    wait: bool = False,
    progress: Progress | None = None,
) -> RunResult:
    """Mill a recipe into `out` (default: out/<name> beside the recipe)."""
    path = Path(recipe_path)
    recipe = load_recipe(path)
    base = path.resolve().parent
    directory = Path(out) if out is not None else default_out(recipe, base)
    bound = parse_bytes(memory) if isinstance(memory, str) else memory
    return run_recipe(
        recipe,
        base,
        directory,
        resources=Resources(workers, engine, address, bound),
        device=device,
        until=until,
        wait=wait,
        progress=progress,
    )


def run_recipe(
    recipe: Recipe,
    base: Path,
    out: Path,
    *,
    workers: int | None = None,
    resources: Resources | None = None,
    device: Device = "auto",
    until: str | None = None,
    wait: bool = False,
    progress: Progress | None = None,
) -> RunResult:
    """Mill a recipe whose paths are relative to `base`."""
    resources = resources or Resources(workers)
    if resources.engine != "local":
        base, out = base.absolute(), out.absolute()  # the same on every node
    return run_steps(
        Asked(recipe.name, recipe.model_dump(mode="json"), recipe.shards.bytes),
        base,
        out,
        lambda: plan_steps(recipe, base, out),
        resources=resources,
        device=device,
        until=until,
        wait=wait,
        progress=progress,
    )


class Asked(NamedTuple):
    """What a run is of: its name, its recipe as the manifest has it, and how large its shards are."""

    name: str
    recipe: Json
    shard_bytes: int


def run_steps(
    asked: Asked,
    base: Path,
    out: Path,
    plan: Callable[[], list[Step]],
    *,
    resources: Resources,
    device: Device = "auto",
    until: str | None = None,
    wait: bool = False,
    progress: Progress | None = None,
) -> RunResult:
    """The steps that `plan` gives while nobody else works in `out`."""
    progress = progress or Silence()
    check_resources(resources)
    started = time.monotonic()
    with (
        open_lock(out, wait=wait, say=progress.say),
        open_journal(out, asked.name, progress) as journal,
        told_to(journal.say),
    ):
        session = _Session(base, out, resources, asked.shard_bytes, device, journal)
        try:
            remove_leftovers(out)
            every_step = plan()
            wanted = steps_until(every_step, until)
            journal.plan([step.name for step in wanted])
            artifacts, ran, skipped = session.run_steps(wanted)
            session.write_root(asked, every_step, artifacts, bool(ran))
        finally:
            session.close()
    return RunResult(asked.name, out, ran, skipped, time.monotonic() - started, artifacts)


def default_out(recipe: Recipe, base: Path) -> Path:
    return base / "out" / recipe.name


class _Session:
    """The engine and what it is told, for the time of one run."""

    def __init__(
        self,
        base: Path,
        out: Path,
        resources: Resources,
        shard_bytes: int,
        device: Device,
        progress: Progress,
    ) -> None:
        self._base = base
        self._out = out
        self._resources = resources
        self._shard_bytes = shard_bytes
        self._device = device
        self._progress = progress
        self._engine: Engine | None = None
        self._kernels: set[str] = set()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()

    def run_steps(self, steps: Sequence[Step]) -> tuple[dict[str, Artifact], list[str], list[str]]:
        artifacts: dict[str, Artifact] = {}
        ran, skipped = [], []
        self._kernels = kernels_needed(steps)
        units = [
            step.config["near"]["unit"] for step in steps if step.kind == "dedup" and step.config["near"]
        ]
        self._device = choose_device(self._device, units[0], self._progress.say) if units else "cpu"
        for wave in waves(steps):
            stale: list[tuple[Step, Standing]] = []
            for step in wave:
                standing = assess(step, artifacts)
                if standing.is_current and standing.artifact is not None:
                    if is_unswept(standing.artifact):
                        sweep(standing.artifact)
                    self._progress.skip_step(step.name)
                    artifacts[step.name] = standing.artifact
                    skipped.append(step.name)
                else:
                    stale.append((step, standing))
            if stale:
                remove_file(self._out / MANIFEST)  # until this run ends, the directory is unfinished
                artifacts.update(self._rebuild(stale, artifacts))
                ran += [step.name for step, _ in stale]
        return {step.name: artifacts[step.name] for step in steps}, ran, skipped

    def _rebuild(
        self, stale: Sequence[tuple[Step, Standing]], artifacts: Mapping[str, Artifact]
    ) -> Iterator[tuple[str, Artifact]]:
        """Conduct the steps side by side: whatever tasks they ask for go to the engine together."""
        started = time.monotonic()
        conducts: dict[str, tuple[Step, Conduct]] = {}
        asked: dict[str, list[Task]] = {}
        for step, standing in stale:
            self._progress.begin_step(step.name, standing.reasons)
            begin(step.directory)
            if step.kind == "ingest" and step.extra["follower"] is not None:
                begin(Path(step.extra["follower"]["directory"]))  # cleaned in the same pass
            conduct = CONDUCTORS[step.kind](step, {name: artifacts[name] for name in step.needs})
            conducts[step.name] = step, conduct
            asked[step.name] = next(conduct)
        while conducts:
            receipts = self._perform({name: (conducts[name][0], tasks) for name, tasks in asked.items()})
            asked = {}
            for name, (step, conduct) in list(conducts.items()):
                try:
                    asked[name] = conduct.send(receipts[name])
                except StopIteration as stop:
                    del conducts[name]
                    upstream = {need: artifacts[need] for need in step.needs}
                    yield name, self._conclude(step, upstream, stop.value, time.monotonic() - started)

    def _conclude(
        self, step: Step, upstream: Mapping[str, Artifact], outcome: Outcome, seconds: float
    ) -> Artifact:
        if "in" in outcome.counts:
            check_conservation(outcome.counts, where=step.name)
        inputs = step_inputs(step, upstream)
        environment = self._environment(step, seconds)
        if step.kind == "tokens":
            environment["encoder"] = encoding_engine(upstream)
        manifest = build_manifest(
            kind=step.kind,
            step=step.name,
            config=step.config,
            inputs=inputs,
            receipts=outcome.receipts,
            counts=outcome.counts,
            facts=outcome.facts,
            experiment_id=_experiment_id(step, inputs, upstream),
            environment=environment,
        )
        artifact = finish(step.directory, manifest)
        self._progress.finish_step(step.name, seconds, outcome.counts)
        return artifact

    def _perform(self, asked: Mapping[str, tuple[Step, list[Task]]]) -> dict[str, list[Receipt]]:
        """Receipts by step, in task order; only tasks without one that holds are run."""
        held: dict[tuple[str, str], Receipt] = {}
        missing: list[Task] = []
        step_of: dict[str, str] = {}
        for name, (step, tasks) in asked.items():
            found = usable_receipts(step.directory, [task.fingerprint for task in tasks])
            held.update(((name, fingerprint), receipt) for fingerprint, receipt in found.items())
            missing += [task for task in tasks if task.fingerprint not in found]
            step_of[str(step.directory)] = name
            self._progress.expect_tasks(name, len(tasks), len(found))
        if missing:
            for task, receipt in self._open_engine().run(perform, missing):
                name = step_of[task.directory]
                held[name, task.fingerprint] = receipt
                self._progress.finish_task(name)
        return {name: [held[name, task.fingerprint] for task in tasks] for name, (_, tasks) in asked.items()}

    def _open_engine(self) -> Engine:
        if self._engine is None:
            compile_kernels(self._progress.say, self._kernels)  # once, here: workers load them from the cache
            self._engine = open_engine(
                self._resources, self._shard_bytes, self._progress.say, device=self._device
            )
        return self._engine

    def _surroundings(self) -> Json:
        if self._engine is not None:
            name, workers = self._engine.name, self._engine.workers
        else:  # nothing had to be done
            name, workers = self._resources.engine, self._resources.workers or available_cores()
        return describe_environment(workers=workers, engine=name, recipe_directory=self._base)

    def _environment(self, step: Step, seconds: float) -> Json:
        found = self._surroundings()
        found["seconds"] = round(seconds, 3)
        if step.kind == "ingest" and step.extra["hub"] is None:
            found[INPUT_STATS] = {
                file.name: [file.bytes, file.modified_ns, step.files[file.name]]
                for file in step.extra["files"]
            }
        return found

    def write_root(
        self, asked: Asked, steps: Sequence[Step], artifacts: dict[str, Artifact], has_changed: bool
    ) -> None:
        """The run's own manifest: every artifact that belongs to the recipe as it stands."""
        for step in steps[len(artifacts) :]:  # later steps, if they still hold
            if all(name in artifacts for name in step.needs):
                standing = assess(step, artifacts)
                if standing.is_current and standing.artifact is not None:
                    artifacts[step.name] = standing.artifact
        pending = self._out / PENDING_FILE  # what a takedown left to do is done with the last step
        if not has_changed and _lists_exactly(self._out, artifacts):
            remove_file(pending)
            return
        self._remove_former(steps, artifacts)
        files = [_manifest_entry(self._out, artifact) for artifact in artifacts.values()]
        files += _write_attribution(self._out, artifacts)
        lineage, forgotten = forgotten_facts(self._out)
        files += forgotten
        manifest = build_manifest(
            kind="run",
            step=asked.name,
            config=asked.recipe,
            inputs={name: artifact.manifest.identity for name, artifact in artifacts.items()},
            receipts=[Receipt(key="run", fingerprint="", files=files, counts={})],
            counts={name: artifact.manifest.counts for name, artifact in artifacts.items()},
            facts=lineage,
            experiment_id=fingerprint_of([a.manifest.experiment_id for a in artifacts.values()])[:16],
            environment=self._surroundings(),
        )
        write_manifest(self._out, manifest)
        remove_file(pending)

    def _remove_former(self, steps: Sequence[Step], artifacts: Mapping[str, Artifact]) -> None:
        """Artifacts of sources and builds that the recipe no longer has."""
        planned = {step.directory for step in steps}
        for parent in ("ingest", "clean", "build"):
            for directory in sorted((self._out / parent).glob("*/")):
                if directory not in planned and _was_ours(directory):
                    discard(directory)
        for name in ("dedup", "tokenizer", "tokens", "mixture"):
            if self._out / name not in planned and _was_ours(self._out / name):
                discard(self._out / name)


def _was_ours(directory: Path) -> bool:
    return (directory / MANIFEST).is_file() or (directory / "receipts").is_dir()


def _experiment_id(step: Step, inputs: Mapping[str, str], upstream: Mapping[str, Artifact]) -> str:
    """Ties an artifact to everything it was made from: its own config and inputs, and those of its parents."""
    chain = {
        "step": step.name,
        "config": step.config,
        "inputs": dict(inputs),
        "parents": {name: artifact.manifest.experiment_id for name, artifact in upstream.items()},
    }
    return fingerprint_of(chain)[:16]


def _manifest_entry(out: Path, artifact: Artifact) -> FileEntry:
    path = artifact.directory / MANIFEST
    return FileEntry(
        path=path.relative_to(out).as_posix(),
        table="manifest",
        bytes=path.stat().st_size,
        rows=len(artifact.manifest.files),
        sha256=file_sha256(path),
        content_sha256=artifact.manifest.identity,
    )


def _write_attribution(out: Path, artifacts: Mapping[str, Artifact]) -> list[FileEntry]:
    """ATTRIBUTION.md: by licence and source, in tokens where there are tokens."""
    path = out / ATTRIBUTION
    cleaned = {name.removeprefix("clean/"): a for name, a in artifacts.items() if name.startswith("clean/")}
    if "tokens" in artifacts:
        by_source = artifacts["tokens"].manifest.counts.get("licenses", {})
    else:
        by_source = {source: a.manifest.counts.get("licenses", {}) for source, a in cleaned.items()}
    if not cleaned:
        remove_file(path)
        return []
    text = attribution(
        LicenseTotals(
            source, None if name == UNKNOWN else name, total["docs"], total["chars"], total.get("tokens")
        )
        for source, totals in by_source.items()
        for name, total in totals.items()
    )
    written = commit_bytes(path, text.encode())
    return [file_entry(ATTRIBUTION, "attribution", written, rows=1)]


def _lists_exactly(out: Path, artifacts: Mapping[str, Artifact]) -> bool:
    try:
        found = open_artifact(out)
        if found is None or not has_all_files(found):
            return False
        listed = found.manifest
    except TokmillError:
        return False
    return listed.inputs == {name: artifact.manifest.identity for name, artifact in artifacts.items()}
