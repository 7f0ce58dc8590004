"""Do the steps of a run: every one that is not up to date, as soon as what it needs is done.

all it needs is done ─ up to date? left alone
                     └ stale: begin ─ conduct ─ tasks without a receipt that holds ─ engine ─ receipts ─┐
                                         └───────────── until it has an outcome ────────────────────────┤
                                                                 conservation ─ manifest ─ artifact  <──┘

No step waits for another that it does not need: each goes on when its own tasks are done, and the tasks of
all of them share the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from tokmill.artifacts.directory import (
    Artifact,
    Evidence,
    begin,
    damaged_file,
    finish,
    is_unswept,
    known_fingerprints,
    sweep,
)
from tokmill.artifacts.manifest import (
    MANIFEST,
    TOMBSTONES,
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
from tokmill.artifacts.runs import foreign_in_step, refuse_foreign
from tokmill.artifacts.step import Conduct, Outcome, Step, Task, Unawaited
from tokmill.engines.cluster import Done, Engine
from tokmill.engines.local import Resources, compile_kernels, open_engine
from tokmill.engines.slurm_state import DIRECTORY as SLURM_DIRECTORY
from tokmill.errors import plural
from tokmill.pipeline.freshness import Freshness, assess, step_inputs
from tokmill.pipeline.plan import alone, ready_steps
from tokmill.pipeline.timeline import PART, TIMELINE, WORKED, Timeline, few_spells, sum_spells
from tokmill.publish.stored_run import StoredRun
from tokmill.stages.ingest.stage import digest_task
from tokmill.stages.loading import prepare_for
from tokmill.stages.registry import STAGES, perform
from tokmill.storage.disk import remove_file
from tokmill.storage.location import InputFile
from tokmill.storage.on_demand import place_of
from tokmill.storage.traffic import Traffic

# In the environment of manifests, and what is no step.
TRAFFIC, DRIVER, HASHING, JOBS = "traffic", "driver", "hashing of sources", "mailboxes of jobs"

PEAK = "peak_bytes"  # the most memory that a worker took for a task of a step

# Read of steps that are up to date before they are relied on: a tenth of a second. `verify` reads all.
SAMPLED_BYTES = 64 << 20


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
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """`check` raises where `out` is another run's by now."""
        if (out / SLURM_DIRECTORY).is_dir():
            from tokmill.engines.slurm_former import end_former

            end_former(out, progress.say)
        self._base = base
        self._out = out
        self._resources = resources
        self._shard_bytes = shard_bytes
        self._progress = progress
        self._keeps = keep_previous
        self._verifies = verify
        self._why = why
        self._check = check
        self.restored: list[str] = []
        self._engine: Engine | None = None
        # A file that goes, and a directory that is synced, take a disk's time: no step waits for that.
        self._sweeper = ThreadPoolExecutor(1, thread_name_prefix="sweep")
        self._sweeping: list[Future[None]] = []
        self._unswept: list[Artifact] = []  # a second attempt of a task may still write there
        self._peaks: dict[str, int] = {}  # memory of a worker, by step
        self._closing: Future[None] | None = None
        self._planned: list[Step] = []
        self._receipts_before: dict[Path, set[str]] = {}  # fingerprints that a step had when this run began
        self._timeline = Timeline()
        place = place_of(out)
        self._stored = place if isinstance(place, StoredRun) else None
        if self._stored is not None:
            self._stored.hash_objects = self._hash_objects
        self._traffic: dict[str, Traffic] = {}  # by step
        self.compiling_seconds = 0.0

    def close(self) -> None:
        if self._closing is not None:
            self._closing.result()
        elif self._engine is not None:
            self._engine.close()
        self._sweeper.shutdown()

    def close_workers(self) -> None:
        """There are no more tasks. Workers of this machine end while other things are done: the system takes
        a tenth of a second to take back their memory."""
        if self._engine is not None and self._engine.name == "local":
            self._closing = self._sweeper.submit(self._engine.close)

    def finish_sweeping(self) -> None:
        """Raises what went wrong there."""
        while self._sweeping:
            self._sweeping.pop(0).result()

    def run_steps(
        self,
        steps: Sequence[Step],
        given: Mapping[str, Artifact] | None = None,
        *,
        reviewed: Mapping[str, Freshness] | None = None,
        leaves_sweeping: bool = False,
    ) -> tuple[dict[str, Artifact], list[str], list[str]]:
        """`given`: artifacts of another run that these steps are made from. `reviewed`: what is known of the
        steps already. `leaves_sweeping`: who calls will `finish_sweeping`."""
        artifacts: dict[str, Artifact] = dict(given or {})
        waiting, ran, skipped = list(steps), set[str](), set[str]()
        self._planned += steps
        at_work: dict[str, _Conducted] = {}  # by directory, as their tasks know it
        has_news = True  # since steps were last looked at: most tasks end no step
        while waiting or at_work:
            self._check()
            ready = ready_steps(waiting, artifacts) if has_news else []
            has_news = False
            if ready:
                names = {step.name for step in ready}
                waiting = [step for step in waiting if step.name not in names]
            stale: list[tuple[Step, Freshness]] = []
            changed = ran.union(self.restored)  # since the steps were reviewed
            for step in ready:
                known = reviewed.get(step.name) if reviewed is not None else None
                if known is None or not known.is_current or not changed.isdisjoint(step.needs):
                    known = assess(step, artifacts, self._why)
                freshness = self._sampled(known, SAMPLED_BYTES // len(steps))
                if freshness.is_current or freshness.previous is not None:
                    artifacts[step.name], has_news = self._reuse(step, freshness), True
                    skipped.update([step.name] if freshness.is_current else [])
                else:
                    stale.append((step, freshness))
            moving: Iterable[_Conducted] = ()
            if stale:
                remove_file(self._out / MANIFEST)  # until this run ends, the directory is unfinished
                self._compile_kernels()
                ran.update(step.name for step, _ in stale)
                # one by one: workers have the tasks of the first while directories are made for the others
                moving = (self._opened(*one, artifacts, at_work) for one in stale)
            elif not ready:
                assert at_work, "steps need each other"
                done = self._open_engine().collect()
                self._check()
                conducted = at_work[done.task.directory]
                self._traffic.setdefault(conducted.step.name, Traffic()).merge(done.traffic)
                name = conducted.step.name
                self._peaks[name] = max(self._peaks.get(name, 0), done.peak_bytes)
                if self._stored is not None:
                    self._stored.hold(done.task, done.receipt, done.node)
                self._progress.finish_task(conducted.step.name)
                self._timeline.task(conducted.step.name, done.seconds)
                moving = [conducted] if conducted.hold(done) else []
            for conducted in moving:
                name = conducted.step.name
                with self._timeline.driver(name):
                    if (outcome := self._advance(conducted)) is not None:
                        del at_work[conducted.directory]
                        artifacts[name], has_news = self._conclude(conducted, outcome), True

        self._settle()
        if not leaves_sweeping:
            self.finish_sweeping()

        def in_order(names: set[str]) -> list[str]:
            return [step.name for step in steps if step.name in names]

        return {step.name: artifacts[step.name] for step in steps}, in_order(ran), in_order(skipped)

    def _reuse(self, step: Step, freshness: Freshness) -> Artifact:
        """One that is up to date, or that was so before and is brought back."""
        found = freshness.artifact if freshness.is_current else freshness.previous
        assert found is not None
        STAGES[step.kind].check(step, found.manifest.counts)
        if freshness.is_current:
            if is_unswept(found):
                sweep(found)
        else:
            refuse_foreign(foreign_in_step(step.directory), self._out)
            remove_file(self._out / MANIFEST)  # until this run ends, the directory is unfinished
            self._set_aside(step.directory)
            found = bring_back(found, step.directory)
            self.restored.append(step.name)
        self._progress.skip_step(step.name)
        return found

    def _sampled(self, freshness: Freshness, sampled_bytes: int) -> Freshness:
        """A step that is up to date has its files, of the right size;
        some of them are read, or all (`verify`)."""
        if freshness.is_current and freshness.artifact is not None:
            damaged = damaged_file(freshness.artifact, None if self._verifies else sampled_bytes)
            if damaged is not None:
                reason = f"{damaged} is damaged: its bytes are not those it had"
                return Freshness(freshness.artifact, [reason], is_damaged=True)
        return freshness

    def _opened(
        self,
        step: Step,
        freshness: Freshness,
        artifacts: Mapping[str, Artifact],
        at_work: dict[str, _Conducted],
    ) -> _Conducted:
        with self._timeline.driver(step.name):
            conducted = self._begin(step, freshness, artifacts)
        at_work[conducted.directory] = conducted
        return conducted

    def _begin(self, step: Step, freshness: Freshness, artifacts: Mapping[str, Artifact]) -> _Conducted:
        """A step that is not up to date; nothing is asked of it yet."""
        if freshness.is_damaged and step.kind == "ingest":
            step = alone(step)  # what was cleaned is still of these documents
        self._progress.begin_step(step.name, freshness.reasons)
        opened = [step.directory]
        if step.kind == "ingest" and step.extra.follower is not None:
            opened.append(Path(step.extra.follower.directory))  # cleaned in the same pass
        for directory in opened:
            refuse_foreign(foreign_in_step(directory), self._out)
            self._set_aside(directory)
            begin(directory)
            if directory not in self._receipts_before:
                self._receipts_before[directory] = known_fingerprints(directory)
        upstream = {name: artifacts[name] for name in step.needs}
        before = self._receipts_before[step.directory]
        return _Conducted(step, STAGES[step.kind].conduct(step, upstream), upstream, before)

    def _advance(self, conducted: _Conducted) -> Outcome | None:
        """Ask for its next tasks, with the receipts of the last ones; only tasks without one that holds are
        run. An outcome when there are no more."""
        step = conducted.step
        while True:
            tasks = conducted.ask()
            if tasks is None:
                return conducted.outcome
            found = conducted.found(verify=self._verifies)
            missing = conducted.expect(found)
            self._progress.expect_tasks(step.name, len(found) + conducted.at_work, len(found))
            if missing:
                if self._stored is not None:
                    missing = self._stored.prepare(missing)
                self._open_engine().submit(perform, missing)
            if conducted.is_waiting:
                return None

    def _hash_objects(self, directory: Path, files: Sequence[InputFile]) -> dict[str, str]:
        """Before the steps are planned: what a source is is known by its bytes, and nodes read them."""
        assert self._stored is not None
        tasks = {task.fingerprint: task for task in (digest_task(directory, file) for file in files)}
        receipts = self._stored.usable(directory, dict.fromkeys(tasks, ()))
        missing = [task for fingerprint, task in tasks.items() if fingerprint not in receipts]
        if missing:
            self._progress.say(f"hashing {plural(len(missing), 'object')}, once per version")
            self._open_engine().submit(perform, self._stored.prepare(missing))
        for _ in missing:
            done = self._open_engine().collect()
            receipts[done.receipt.fingerprint] = done.receipt
            self._traffic.setdefault(HASHING, Traffic()).merge(done.traffic)
        return {
            file.name: receipts[fingerprint].facts["sha256"]
            for fingerprint, file in zip(tasks, files, strict=True)
        }

    def _set_aside(self, directory: Path) -> None:
        if self._keeps:
            set_aside(self._out, directory)

    def _conclude(self, conducted: _Conducted, outcome: Outcome) -> Artifact:
        step, upstream = conducted.step, conducted.upstream
        worked = self._timeline.worked(step.name)
        seconds = sum_spells(worked)
        if "in" in outcome.counts:
            check_conservation(outcome.counts, where=step.name)
        inputs = step_inputs(step, upstream)
        own = STAGES[step.kind].environment(step, outcome.receipts)
        environment = {
            **self.describe(),
            "seconds": round(seconds, 3),
            "cpu_seconds": round(conducted.cpu_seconds, 3),
            WORKED: [[round(at, 3) for at in spell] for spell in few_spells(worked)],
            **({PART: part} if (part := conducted.part_of(outcome.receipts)) is not None else {}),
            **({PEAK: peak} if (peak := self._peaks.get(step.name)) else {}),
            **({TRAFFIC: traffic} if (traffic := self._traffic_of(step.name)) else {}),
            **own,
        }
        manifest = build_manifest(
            kind=step.kind,
            step=step.name,
            config=step.config,
            inputs=inputs,
            receipts=outcome.receipts,
            counts=outcome.counts,
            facts=outcome.facts,
            experiment_id=_experiment_id(step, inputs),
            environment=environment,
        )
        self._check()
        artifact = finish(step.directory, manifest)
        if self._engine is not None and str(step.directory) in self._engine.unsettled():
            self._unswept.append(artifact)
        else:
            self._sweeping.append(self._sweeper.submit(sweep, artifact))
        self._progress.finish_step(step.name, seconds, outcome.counts)
        return artifact

    def _settle(self) -> None:
        """Nothing of a task that was begun twice can write any more: what it left goes."""
        if self._engine is not None:
            self._engine.settle()
        while self._unswept:
            self._sweeping.append(self._sweeper.submit(sweep, self._unswept.pop()))

    def _open_engine(self) -> Engine:
        if self._engine is None:
            self._engine = open_engine(
                self._resources,
                self._shard_bytes,
                self._progress.say,
                prepare_for(self._planned),
                self._out,
                self._stored.spool if self._stored is not None else None,
            )
        return self._engine

    def _compile_kernels(self) -> None:
        """Before the first step begins: it is no part of how long one takes."""
        if self._engine is None:
            self.compiling_seconds += compile_kernels(self._progress)

    def describe_run(self) -> Json:
        """For the manifest of the run: who worked when, too."""
        timeline = self._timeline.as_json(self._engine.workers if self._engine is not None else 1)
        traffic = {name: told for name in self._traffic if (told := self._traffic_of(name))}
        if self._stored is not None:
            traffic[DRIVER] = self._stored.traffic.as_json()
        if self._engine is not None and (told := self._engine.traffic()):
            traffic[JOBS] = told
        return {
            **self.describe(),
            **({TIMELINE: timeline} if timeline is not None else {}),
            **({TRAFFIC: traffic} if traffic else {}),
        }

    def _traffic_of(self, step: str) -> Json:
        """With object stores, of its tasks."""
        return self._traffic[step].as_json() if step in self._traffic else {}

    def describe(self) -> Json:
        if self._engine is not None:
            name, workers = self._engine.name, self._engine.workers
        else:  # nothing had to be done
            name, workers = self._resources.engine, self._resources.workers or available_cores()
        return describe_environment(workers=workers, engine=name, recipe_directory=self._base)


class _Conducted:
    """A step at work: what it has asked for, and what of that is there."""

    def __init__(
        self,
        step: Step,
        conduct: Conduct,
        upstream: Mapping[str, Artifact],
        before: Container[str],
    ) -> None:
        """`before`: receipts that its directory had when this run began."""
        self.step = step
        self._before = before
        self.upstream = upstream
        self.directory = str(step.directory)
        self.cpu_seconds = 0.0  # of its tasks
        self.outcome: Outcome | None = None
        self.fingerprints: list[str] = []
        self._evidence: Evidence | None = None
        self._conduct = conduct
        self._tasks: list[Task] | None = None
        self._receipts: dict[str, Receipt] = {}
        self._missing: set[str] = set()  # fingerprints
        self._done: set[str] = set()  # likewise, of the tasks that this run did
        self._awaited: list[str] = []  # likewise: by what comes next
        self._left: list[str] = []  # by what comes after that

    @property
    def at_work(self) -> int:
        """Tasks that are asked for and not done."""
        return len(self._missing)

    @property
    def is_waiting(self) -> bool:
        return not self._missing.isdisjoint(self._awaited)

    def ask(self) -> list[Task] | None:
        """For tasks; None: it has its outcome. Receipts are handed in, in the order of the tasks."""
        try:
            if self._tasks is None:
                self._tasks = next(self._conduct)
            else:
                self._tasks = self._conduct.send([self._receipts[name] for name in self._awaited])
        except StopIteration as stop:
            assert not self._left, "nobody awaits what was asked for"
            self.outcome = stop.value
            return None
        self.fingerprints = [task.fingerprint for task in self._tasks]
        first = self._tasks.first if isinstance(self._tasks, Unawaited) else 0
        self._awaited = [*self._left, *self.fingerprints[first:]]
        self._receipts = {name: self._receipts[name] for name in self._left if name in self._receipts}
        self._left = self.fingerprints[:first]
        return self._tasks

    def found(self, *, verify: bool) -> dict[str, Receipt]:
        """Of the tasks that it asked for, what is there already."""
        if self._evidence is None:
            self._evidence = Evidence(self.step.directory, verify=verify, before=self._before)
        return self._evidence.usable(self.fingerprints)

    def expect(self, found: Mapping[str, Receipt]) -> list[Task]:
        """Those that are not found have to be run."""
        self._receipts |= found
        tasks = zip(self.fingerprints, self._tasks or (), strict=True)
        missing = {fingerprint: task for fingerprint, task in tasks if fingerprint not in found}
        self._missing |= missing.keys()
        return list(missing.values())

    def part_of(self, receipts: Sequence[Receipt]) -> Json | None:
        """What the tasks of this run have read, where an earlier run did the others; None: they are all."""
        receipts = [receipt for receipt in receipts if receipt.key != TOMBSTONES]
        own = [
            receipt
            for receipt in receipts
            if receipt.fingerprint in self._done or receipt.fingerprint not in self._before
        ]
        if len(own) == len(receipts):
            return None
        counted = {
            name: sum(receipt.counts[name] for receipt in own)
            for name in ("in", "text_bytes")
            if all(name in receipt.counts for receipt in own)
        }
        return {"tasks": len(own), **counted}

    def hold(self, done: Done) -> bool:
        """Return True if the step can continue: that was the last task that it waits for."""
        fingerprint = done.receipt.fingerprint
        self._receipts[fingerprint] = done.receipt
        if self._evidence is not None:
            self._evidence.add(done.receipt)
        self.cpu_seconds += done.cpu_seconds
        self._done.add(fingerprint)
        self._missing.discard(fingerprint)
        return fingerprint in self._awaited and not self.is_waiting


def _experiment_id(step: Step, inputs: Mapping[str, str]) -> str:
    """Return an id of the step's config and of the content of its inputs.

    How the inputs were made is not part of it: a step is left alone while its inputs keep their content, and
    an id that said more would be that of a former run."""
    return fingerprint_of({"step": step.name, "config": step.config, "inputs": dict(inputs)})[:16]
