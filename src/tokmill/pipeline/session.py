"""Do the steps of a run: every one that is not up to date, in waves.

wave of steps ─ up to date? left alone
              └ stale: begin ─ conduct ─ tasks without a receipt that holds ─ engine ─ receipts ─┐
                                  └────────────────── until it has an outcome ───────────────────┤
                                                          conservation ─ manifest ─ artifact  <──┘
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from tokmill.artifacts.manifest import (
    MANIFEST,
    Json,
    Receipt,
    available_cores,
    build_manifest,
    check_conservation,
    describe_environment,
    fingerprint_of,
)
from tokmill.artifacts.previous import bring_back, set_aside
from tokmill.artifacts.progress import Progress
from tokmill.artifacts.step import (
    Artifact,
    Conduct,
    Outcome,
    Step,
    Task,
    begin,
    damaged_file,
    finish,
    is_unswept,
    sweep,
    usable_receipts,
)
from tokmill.engines.local import Engine, Resources, compile_kernels, open_engine
from tokmill.pipeline.plan import alone, waves
from tokmill.pipeline.run_manifest import Freshness, assess, step_inputs
from tokmill.stages.registry import STAGES, perform
from tokmill.storage.disk import remove_file

# Read of steps that are up to date before they are relied on: a fifth of a second. `verify` reads all.
SAMPLED_BYTES = 256 << 20


class Session:
    """The engine and what it is told, for the time of one run."""

    def __init__(
        self,
        base: Path,
        out: Path,
        resources: Resources,
        shard_bytes: int,
        progress: Progress,
        *,
        keep_previous: bool = False,
        verify: bool = False,
        why: Callable[[Step], list[str]] | None = None,
    ) -> None:
        self._base = base
        self._out = out
        self._resources = resources
        self._shard_bytes = shard_bytes
        self._progress = progress
        self._keeps = keep_previous
        self._verifies = verify
        self._why = why
        self.restored: list[str] = []
        self._engine: Engine | None = None
        self.compiling_seconds = 0.0

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()

    def run_steps(
        self, steps: Sequence[Step], given: Mapping[str, Artifact] | None = None
    ) -> tuple[dict[str, Artifact], list[str], list[str]]:
        """`given`: artifacts of another run that these steps are made from."""
        artifacts: dict[str, Artifact] = dict(given or {})
        ran, skipped = [], []
        for wave in waves(steps, artifacts):
            stale: list[tuple[Step, Freshness]] = []
            for step in wave:
                freshness = self._assess(step, artifacts, SAMPLED_BYTES // len(steps))
                if freshness.is_current and freshness.artifact is not None:
                    STAGES[step.kind].check(step, freshness.artifact.manifest.counts)
                    if is_unswept(freshness.artifact):
                        sweep(freshness.artifact)
                    self._progress.skip_step(step.name)
                    artifacts[step.name] = freshness.artifact
                    skipped.append(step.name)
                elif freshness.previous is not None:
                    STAGES[step.kind].check(step, freshness.previous.manifest.counts)
                    remove_file(self._out / MANIFEST)  # as below
                    self._set_aside(step.directory)
                    artifacts[step.name] = bring_back(freshness.previous, step.directory)
                    self.restored.append(step.name)
                    self._progress.skip_step(step.name)
                else:
                    if freshness.is_damaged and step.kind == "ingest":
                        step = alone(step)  # what was cleaned is still of these documents
                    stale.append((step, freshness))
            if stale:
                remove_file(self._out / MANIFEST)  # until this run ends, the directory is unfinished
                artifacts.update(self._rebuild(stale, artifacts))
                ran += [step.name for step, _ in stale]
        return {step.name: artifacts[step.name] for step in steps}, ran, skipped

    def _assess(self, step: Step, upstream: Mapping[str, Artifact], sampled_bytes: int) -> Freshness:
        """A step that is up to date has its files, of the right size;
        some of them are read, or all (`verify`)."""
        freshness = assess(step, upstream, self._why)
        if freshness.is_current and freshness.artifact is not None:
            damaged = damaged_file(freshness.artifact, None if self._verifies else sampled_bytes)
            if damaged is not None:
                reason = f"{damaged} is damaged: its bytes are not those it had"
                return Freshness(freshness.artifact, [reason], is_damaged=True)
        return freshness

    def _rebuild(
        self, stale: Sequence[tuple[Step, Freshness]], artifacts: Mapping[str, Artifact]
    ) -> Iterator[tuple[str, Artifact]]:
        """Conduct the steps side by side: whatever tasks they ask for go to the engine together."""
        self._compile_kernels()
        started = time.monotonic()
        conducts: dict[str, tuple[Step, Conduct]] = {}
        asked: dict[str, list[Task]] = {}
        for step, freshness in stale:
            self._progress.begin_step(step.name, freshness.reasons)
            opened = [step.directory]
            if step.kind == "ingest" and step.extra.follower is not None:
                opened.append(Path(step.extra.follower.directory))  # cleaned in the same pass
            for directory in opened:
                self._set_aside(directory)
                begin(directory)
            conduct = STAGES[step.kind].conduct(step, {name: artifacts[name] for name in step.needs})
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

    def _set_aside(self, directory: Path) -> None:
        if self._keeps:
            set_aside(self._out, directory)

    def _conclude(
        self, step: Step, upstream: Mapping[str, Artifact], outcome: Outcome, seconds: float
    ) -> Artifact:
        if "in" in outcome.counts:
            check_conservation(outcome.counts, where=step.name)
        inputs = step_inputs(step, upstream)
        own = STAGES[step.kind].environment(step, outcome.receipts)
        environment = {**self.describe(), "seconds": round(seconds, 3), **own}
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
            self._engine = open_engine(self._resources, self._shard_bytes, self._progress.say)
        return self._engine

    def _compile_kernels(self) -> None:
        """Before the first step begins: it is no part of how long one takes."""
        if self._engine is None:
            self.compiling_seconds += compile_kernels(self._progress)

    def describe(self) -> Json:
        if self._engine is not None:
            name, workers = self._engine.name, self._engine.workers
        else:  # nothing had to be done
            name, workers = self._resources.engine, self._resources.workers or available_cores()
        return describe_environment(workers=workers, engine=name, recipe_directory=self._base)


def _experiment_id(step: Step, inputs: Mapping[str, str], upstream: Mapping[str, Artifact]) -> str:
    """Ties an artifact to everything it was made from:
    its own config and inputs, and those of its parents."""
    chain = {
        "step": step.name,
        "config": step.config,
        "inputs": dict(inputs),
        "parents": {name: artifact.manifest.experiment_id for name, artifact in upstream.items()},
    }
    return fingerprint_of(chain)[:16]
