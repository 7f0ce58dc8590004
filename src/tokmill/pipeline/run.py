"""Run a recipe: every step that is not up to date, in order, so that a kill at any moment only costs time.

    wave of steps ─ up to date? left alone
                  └ stale: begin ─ conduct ─ tasks without a receipt that holds ─ engine ─ receipts ─┐
                                      └────────────────── until it has an outcome ───────────────────┤
                                                              conservation ─ manifest ─ artifact  <──┘
    at the end      <out>/manifest.json   names every artifact with its digests

One run at a time works in an output directory; a lock that dies with its process sees to it. Where `out` is the URL
of an object store the run works in a directory of this machine and is published from there, whole or not at all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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
from tokmill.artifacts.progress import Progress, Silence, open_journal, warnings_to
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
    remove_leftovers,
    sweep,
    usable_receipts,
)
from tokmill.engines.local import (
    Engine,
    EngineName,
    Resources,
    check_resources,
    compile_kernels,
    open_engine,
    parse_bytes,
)
from tokmill.pipeline.changes import reasons_of
from tokmill.pipeline.documents import Own
from tokmill.pipeline.examination import examine
from tokmill.pipeline.plan import alone, plan_steps, steps_until, waves
from tokmill.pipeline.run_manifest import Asked as Asked
from tokmill.pipeline.run_manifest import Freshness, assess, review_plan, step_inputs, write_run_manifest
from tokmill.publish.publication import RUN, Published, default_work, open_target
from tokmill.recipe import Recipe
from tokmill.recipe.file import Settings, Written, read_recipe
from tokmill.recipe.setting import dotted
from tokmill.sources.reading import write_objects
from tokmill.stages.registry import STAGES, perform
from tokmill.stages.warnings import told_by_run
from tokmill.storage.disk import remove_file
from tokmill.storage.lease import open_lease
from tokmill.storage.location import is_url, parse_url, refuse_squeezed_url

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

    def run_steps(self, steps: Sequence[Step]) -> tuple[dict[str, Artifact], list[str], list[str]]:
        artifacts: dict[str, Artifact] = {}
        ran, skipped = [], []
        for wave in waves(steps):
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
        """A step that is up to date has its files, of the right size; some of them are read, or all (`verify`)."""
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
    """Ties an artifact to everything it was made from: its own config and inputs, and those of its parents."""
    chain = {
        "step": step.name,
        "config": step.config,
        "inputs": dict(inputs),
        "parents": {name: artifact.manifest.experiment_id for name, artifact in upstream.items()},
    }
    return fingerprint_of(chain)[:16]


@dataclasses.dataclass(frozen=True)
class RunResult:
    """Where everything is and what was done for it."""

    recipe: str
    out: Path
    ran: list[str]
    skipped: list[str]
    seconds: float
    artifacts: dict[str, Artifact]
    restored: list[str] = dataclasses.field(default_factory=list)  # brought back as they were before
    warnings: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # step, what needs a decision
    published: Published | None = None  # where `out` is a URL

    def as_json(self) -> Json:
        return {
            "recipe": self.recipe,
            "out": str(self.out),
            **({"published": self.published.as_json()} if self.published else {}),
            "ran": self.ran,
            "skipped": self.skipped,
            **({"restored": self.restored} if self.restored else {}),
            "seconds": round(self.seconds, 3),
            "warnings": [{"where": step, "what": what} for step, what in self.warnings],
            "steps": {
                name: {"counts": artifact.manifest.counts, "identity": artifact.manifest.identity}
                for name, artifact in self.artifacts.items()
            },
        }


def run(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    out: str | Path | None = None,
    *,
    set: Settings = (),
    workers: int | None = None,
    engine: EngineName = "local",
    address: str | None = None,
    memory: int | str | None = None,
    until: str | None = None,
    wait: bool = False,
    work: str | Path | None = None,
    replace: bool = False,
    keep_previous: bool = False,
    verify: bool = False,
    progress: Progress | None = None,
) -> RunResult:
    """Run a recipe into `out` (default: out/<name> beside its file), a directory or the URL of an object store.

    The recipe is a file, YAML, a dict of sections, or a `Recipe`; without a file paths are relative to the current
    directory, and a source may have its records as `data`: an iterable of dicts, a function that returns one, an Arrow
    table, a frame, a `datasets.Dataset`. `set`: other values for keys, by their paths in the recipe
    ({"filters[2].min": 100}); the manifest of the run has them. `keep_previous`: steps that this run replaces stay beside it, and a recipe that asks
    for them again gets them back at once. `verify`: read every byte of steps that are up to date, and make those that are
    damaged again; without it only files that are missing or have another size are noticed, and some of the others. `work` and `replace` are for a URL: where the run works before it is published,
    and whether it may be published in the place of another.
    """
    written, base = read_recipe(recipe, set), base_of(recipe)
    bound = parse_bytes(memory) if isinstance(memory, str) else memory
    refuse_squeezed_url(out)
    check_resources(Resources(workers, engine, address, bound))
    place = place_of(written, base, out, work)
    whole = examine(written, base, place, engine=engine, until=until)

    def run_in(directory: Path) -> RunResult:
        with written_objects(whole, directory) as known:
            return run_recipe(
                known,
                base,
                directory,
                resources=Resources(workers, engine, address, bound),
                until=until,
                wait=wait,
                keep_previous=keep_previous,
                verify=verify,
                progress=progress,
                settings={dotted(path): value for path, value in written.settings.items()},
            )

    if out is None or not is_url(out):
        return run_in(place)
    with open_target(
        str(out),
        whole.name,
        whole.model_dump(mode="json"),
        work=None if work is None else Path(work),
        replace=replace,
        wait=wait,
        say=(progress or Silence()).say,
    ) as target:
        result = run_in(target.directory)
        return dataclasses.replace(result, published=target.publish((progress or Silence()).say))


@dataclasses.dataclass(frozen=True)
class Plan:
    """The steps of a recipe in their order, each with the reasons why it would run: none if it is up to date."""

    recipe: str
    steps: dict[str, list[str]]
    restored: list[str]  # of those that would run: kept as they were before, and only to be brought back

    def as_json(self) -> Json:
        steps = [
            {"step": name, "current": not reasons, "restored": name in self.restored, "reasons": reasons}
            for name, reasons in self.steps.items()
        ]
        return {"recipe": self.recipe, "steps": steps}


def plan(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    out: str | Path | None = None,
    *,
    set: Settings = (),
    until: str | None = None,
) -> Plan:
    """What `run` would do with the same arguments, and why."""
    written, base = read_recipe(recipe, set), base_of(recipe)
    directory = place_of(written, base, out)
    whole = examine(written, base, directory, until=until)
    with written_objects(whole, directory) as known:
        why = reasons_of(directory, whole.model_dump(mode="json"))
        reviewed = review_plan(steps_until(plan_steps(known, base, directory), until), why)
    restored = [step.name for step, freshness in reviewed if freshness.previous is not None]
    return Plan(whole.name, {step.name: freshness.reasons for step, freshness in reviewed}, restored)


def base_of(recipe: str | Path | Mapping[str, Any] | Recipe) -> Path:
    """What paths in it are relative to."""
    has_file = isinstance(recipe, Path) or (isinstance(recipe, str) and "\n" not in recipe)
    return Path(str(recipe)).resolve().parent if has_file else Path.cwd()


def place_of(written: Written, base: Path, out: str | Path | None, work: str | Path | None = None) -> Path:
    """The directory of this machine that a run works in."""
    if out is None:
        return base / "out" / getattr(written.content, "name", "")
    if is_url(out):
        return (default_work(parse_url(str(out))) if work is None else Path(work)) / RUN
    return Path(out)


@contextlib.contextmanager
def written_objects(recipe: Recipe, out: Path) -> Iterator[Recipe]:
    """The same recipe, with the records that sources have in memory as files, for as long as it runs."""
    if not any(source.data is not None for source in recipe.sources):
        yield recipe
        return
    work = out / ".work"
    try:
        sources = []
        for source in recipe.sources:
            if source.data is not None:
                path = work.absolute() / f"{source.name}.jsonl"
                write_objects(source.data, path, source.name)
                source = source.model_copy(update={"data": path})
            sources.append(source)
        yield recipe.model_copy(update={"sources": sources})
    finally:
        shutil.rmtree(work, ignore_errors=True)


def run_recipe(
    recipe: Recipe,
    base: Path,
    out: Path,
    *,
    workers: int | None = None,
    resources: Resources | None = None,
    until: str | None = None,
    wait: bool = False,
    keep_previous: bool = False,
    verify: bool = False,
    progress: Progress | None = None,
    own: Own | None = None,
    settings: Json | None = None,
) -> RunResult:
    """Run a recipe whose paths are relative to `base`.

    `own`: by source, which of "source" and "domain" documents keep where their records say them. `settings`: keys of the
    recipe that its file has otherwise, for the record.
    """
    resources = resources or Resources(workers)
    if resources.engine != "local":
        base, out = base.absolute(), out.absolute()  # the same on every node
    return run_steps(
        Asked(
            recipe.name,
            recipe.model_dump(mode="json"),
            recipe.shards.bytes,
            said_for_review(recipe),
            settings,
        ),
        base,
        out,
        lambda: plan_steps(recipe, base, out, own),
        resources=resources,
        until=until,
        wait=wait,
        keep_previous=keep_previous,
        verify=verify,
        progress=progress,
    )


def run_steps(
    asked: Asked,
    base: Path,
    out: Path,
    plan: Callable[[], list[Step]],
    *,
    resources: Resources,
    until: str | None = None,
    wait: bool = False,
    keep_previous: bool = False,
    verify: bool = False,
    progress: Progress | None = None,
) -> RunResult:
    """The steps that `plan` gives while nobody else works in `out`."""
    progress = progress or Silence()
    check_resources(resources)
    started = time.monotonic()
    with (
        open_lease(out, wait=wait, say=progress.say),
        open_journal(out, asked.name, progress) as journal,
        warnings_to(journal.say, journal.count),
    ):
        session = Session(
            base,
            out,
            resources,
            asked.shard_bytes,
            journal,
            keep_previous=keep_previous,
            verify=verify,
            why=reasons_of(out, asked.recipe),
        )
        try:
            remove_leftovers(out)
            every_step = plan()
            wanted = steps_until(every_step, until)
            journal.plan([step.name for step in wanted])
            artifacts, ran, skipped = session.run_steps(wanted)
            write_run_manifest(
                out,
                asked,
                every_step,
                artifacts,
                {**session.describe(), **({"set": asked.settings} if asked.settings else {})},
                has_changed=bool(ran or session.restored),
                keep=keep_previous,
            )
        finally:
            session.close()
    seconds = time.monotonic() - started - session.compiling_seconds
    warnings = told_by_run(artifacts, asked.recipe)
    return RunResult(asked.name, out, ran, skipped, seconds, artifacts, session.restored, warnings)


def said_for_review(recipe: Recipe) -> Json | None:
    return recipe.review.model_dump(mode="json", exclude_none=True) if recipe.review is not None else None
