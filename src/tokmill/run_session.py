"""The engine and the steps of one run: who is asked for what, and what becomes of the answers.

wave of steps ─ current? left alone
              └ stale: begin ─ conduct ─ tasks without a receipt that holds ─ engine ─ receipts ─┐
                                  └────────────────── until it has an outcome ───────────────────┤
                                                          conservation ─ manifest ─ artifact  <──┘
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tokmill.artifact import (
    Artifact,
    begin,
    finish,
    is_unswept,
    sweep,
    usable_receipts,
)
from tokmill.dedup.cuda import Device, choose_device
from tokmill.engines.local import Engine
from tokmill.engines.opening import Resources, open_engine
from tokmill.environment import available_cores, describe_environment
from tokmill.kernels.warm import ensure_compiled
from tokmill.manifest import (
    MANIFEST,
    Json,
    Receipt,
    build_manifest,
    check_conservation,
    fingerprint_of,
)
from tokmill.plan import INPUT_STATS, kernels_needed, waves
from tokmill.progress import Progress
from tokmill.stages.functions import CONDUCTORS, perform
from tokmill.stages.step import Conduct, Outcome, Step
from tokmill.stages.tokens import encoders_of
from tokmill.standing import Standing, assess, step_inputs
from tokmill.storage.commit import remove_file
from tokmill.task import Task


class Session:
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
            environment["encoder"] = encoders_of(outcome.receipts)
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
            ensure_compiled(self._progress.say, self._kernels)
            self._engine = open_engine(
                self._resources, self._shard_bytes, self._progress.say, device=self._device
            )
        return self._engine

    def describe(self) -> Json:
        if self._engine is not None:
            name, workers = self._engine.name, self._engine.workers
        else:  # nothing had to be done
            name, workers = self._resources.engine, self._resources.workers or available_cores()
        return describe_environment(workers=workers, engine=name, recipe_directory=self._base)

    def _environment(self, step: Step, seconds: float) -> Json:
        found = self.describe()
        found["seconds"] = round(seconds, 3)
        if step.kind == "ingest" and step.extra["hub"] is None:
            found[INPUT_STATS] = {
                file.name: [file.bytes, file.modified_ns, step.files[file.name]]
                for file in step.extra["files"]
            }
        return found


def _experiment_id(step: Step, inputs: Mapping[str, str], upstream: Mapping[str, Artifact]) -> str:
    """Ties an artifact to everything it was made from: its own config and inputs, and those of its parents."""
    chain = {
        "step": step.name,
        "config": step.config,
        "inputs": dict(inputs),
        "parents": {name: artifact.manifest.experiment_id for name, artifact in upstream.items()},
    }
    return fingerprint_of(chain)[:16]
