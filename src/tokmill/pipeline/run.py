"""Run a recipe: every step that is not up to date, in order, so that a kill at any moment only costs time.

recipe ─ read ─ examine: every mistake at once ─ plan: steps ─ session.py: those that are not up to date
                                                                   └─> <out>/manifest.json: every artifact

One run at a time works in an output directory; a lock that dies with its process sees to it. Where `out` is
the URL of an object store the run works in a directory of this machine and is published from there, whole or
not at all. On a cluster it works in the store itself: nodes share nothing else, and this machine has
manifests (tokmill.publish.stored_run).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from tokmill.artifacts.cache import cache_of, prepare_cache
from tokmill.artifacts.cells import cell, short_repr, table
from tokmill.artifacts.directory import Artifact, claim, is_ours, remove_leftovers
from tokmill.artifacts.history import history_entry
from tokmill.artifacts.manifest import MANIFEST, Json, fingerprint_of
from tokmill.artifacts.progress import Progress, Silence, open_journal, warnings_to
from tokmill.artifacts.runs import foreign_in_run, foreign_in_step, recipe_in, refuse_foreign
from tokmill.artifacts.step import Step
from tokmill.artifacts.tombstones import PENDING_FILE
from tokmill.engines.forking import load_ahead
from tokmill.engines.local import EngineName, Resources, check_resources, parse_bytes
from tokmill.engines.neighbours import restored_environment
from tokmill.engines.slurm_options import SlurmSettings
from tokmill.errors import RecipeError, StorageError
from tokmill.pipeline.changes import reasons_of
from tokmill.pipeline.documents import Own
from tokmill.pipeline.estimation.estimate import estimate_run
from tokmill.pipeline.estimation.figures import (
    Estimate,
    free_bytes,
    load_estimate,
    warn_of_disk,
    write_estimate,
)
from tokmill.pipeline.examination.examine import examine
from tokmill.pipeline.examination.places import OwnFiles
from tokmill.pipeline.freshness import Freshness, review_plan
from tokmill.pipeline.hashing import hashing_files
from tokmill.pipeline.opened_tokenizer import begin_opening
from tokmill.pipeline.plan import carry_forgotten_ids, plan_steps, step_names, steps_until
from tokmill.pipeline.run_manifest import SET, former_sizes, name_sizes, told_removed, write_run_manifest
from tokmill.pipeline.run_manifest import Asked as Asked
from tokmill.pipeline.session import Session
from tokmill.publish.node import CACHE_VARIABLE
from tokmill.publish.target import RUN, Published, default_work, open_target
from tokmill.recipe import Recipe, Source
from tokmill.recipe.file import Settings, Written, read_recipe
from tokmill.recipe.setting import dotted
from tokmill.sources.reading import write_objects
from tokmill.stages.loading import LOADED_FIRST
from tokmill.stages.losses import name_run
from tokmill.stages.tokens.encoded import drop_damaged
from tokmill.stages.warnings import told_by_run
from tokmill.storage.disk import make_directory
from tokmill.storage.lease import open_lease
from tokmill.storage.location import is_url, parse_url, refuse_squeezed_url
from tokmill.storage.patterns import leaving_out, warn_of_left_out

_RECORDS = ".work/records"  # of what has no file before the run


@short_repr
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

    @property
    def rowless(self) -> list[str]:
        """Builds that were given tokens and have no row."""
        tokens = {name: artifact.manifest.counts.get("tokens") for name, artifact in self.artifacts.items()}
        return [name for name, count in tokens.items() if count and count.get("in") and not count["written"]]

    @property
    def ok(self) -> bool:
        """False if a build has no row of the tokens that it was given. Where nothing is left of a corpus
        there are none to give: its steps say so, and the run is well."""
        return not self.rowless

    def as_json(self) -> Json:
        return {
            "ok": self.ok,
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

    def _repr_html_(self) -> str:
        """What a notebook shows: every step, what came in, what was kept, what left and why."""
        rows = []
        for name, artifact in self.artifacts.items():
            counts = artifact.manifest.counts
            left = {**counts.get("dropped", {}), **counts.get("quarantined", {})}
            why = " · ".join(f"{reason} {number:,}" for reason, number in sorted(left.items()))
            state = "run" if name in self.ran else "up to date"
            rows.append([name, state, counts.get("in"), counts.get("kept"), sum(left.values()) or None, why])
        parts = [table(["step", "", "in", "kept", "left", "why"], rows)]
        parts += [table(["step", "warning"], self.warnings)] if self.warnings else []
        return cell(self.recipe, f"{self.out} · {self.seconds:.1f} s", parts)


def run(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    out: str | Path | None = None,
    *,
    set: Settings = (),
    workers: int | None = None,
    engine: EngineName = "local",
    address: str | None = None,
    slurm: SlurmSettings = (),
    memory: int | str | None = None,
    until: str | None = None,
    wait: bool = False,
    work: str | Path | None = None,
    replace: bool = False,
    keep_previous: bool = False,
    lean: bool = False,
    verify: bool = False,
    progress: Progress | None = None,
) -> RunResult:
    """Run a recipe into `out` (default: out/<name> beside its file),
    a directory or the URL of an object store.

    The recipe is a file, YAML, a dict of sections, or a `Recipe`; without a file paths are relative to the
    current directory, and a source may have its records as `data`: an iterable of dicts, a function that
    returns one, an Arrow table, a frame, a `datasets.Dataset`. `set`: other values for keys, by their paths
    in the recipe ({"filters[2].min": 100}); the manifest of the run has them. `keep_previous`: steps that
    this run replaces stay beside it, and a recipe that asks for them again gets them back at once. `verify`:
    read every byte of steps that are up to date, and make those that are damaged again; without it only files
    that are missing or have another size are noticed, and some of the others. `lean`: keep nothing
    beside the run of what was found out about its texts, which makes the next one cheaper. `slurm`: what jobs
    ask for with that engine ({"partition": "long", "tokens.mem": "8G"}). `replace`: the directory
    may hold the run of another recipe, or the URL another publication. `work` is for a URL: where the run
    works before it is published. With a URL and a cluster (`engine`) tasks read from the store and write
    there: `work` has the driver's manifests, and nodes need no disk in common.
    """
    written, base = read_recipe(recipe, set), base_of(recipe)
    bound = parse_bytes(memory) if isinstance(memory, str) else memory
    refuse_squeezed_url(out)
    resources = Resources(workers, engine, address, bound, slurm)
    check_resources(resources)
    place = place_of(written, base, out, work)
    opening = begin_opening(written.content, base, place)
    if not (place / MANIFEST).exists():  # a run from nothing: workers will be needed
        load_ahead(LOADED_FIRST)
    is_stored = out is not None and is_url(out) and engine != "local"
    if is_stored:
        _check_stored(str(out), keep_previous=keep_previous, verify=verify)
    with hashing_files() as hashing, leaving_out(OwnFiles(place, out)):
        with warnings_to(progress.say) if progress is not None else contextlib.nullcontext():
            whole = examine(
                written,
                base,
                place,
                resources=resources,
                until=until,
                opening=opening,
                hashing=None if is_stored else hashing,
                shares_disk=not is_stored,
            )
            warn_of_left_out()

        if out is None or not is_url(out):
            _refuse_other_recipe(place, whole.name, may_replace=replace or keep_previous)

        def run_in(directory: Path) -> RunResult:
            return run_recipe(
                whole,
                base,
                directory,
                resources=resources,
                until=until,
                wait=wait,
                keep_previous=keep_previous,
                lean=lean or is_stored,
                verify=verify,
                progress=progress,
                settings={dotted(path): value for path, value in written.settings.items()},
            )

        if out is None or not is_url(out):
            return run_in(place)
        say = (progress or Silence()).say
        target = open_target(
            str(out),
            whole.name,
            whole.model_dump(mode="json"),
            work=None if work is None else Path(work),
            replace=replace,
            wait=wait,
            say=say,
        )
        with target as held, contextlib.ExitStack() as stack:
            held.bring_forgotten()
            if is_stored:
                stack.enter_context(held.open_store_run(say))
                if address is None and engine != "slurm":
                    stack.enter_context(_own_node(held.directory.parent))
            result = run_in(held.directory)
            return dataclasses.replace(result, published=held.publish(say))


def _refuse_other_recipe(out: Path, name: str, *, may_replace: bool) -> None:
    former = recipe_in(out)
    if former not in (None, name) and not may_replace:
        raise RecipeError(
            f"holds the run of another recipe: {former}, and this one is {name}",
            where=str(out),
            next="give another directory (`--out`), or `--replace` to have this run in its place; "
            "`--keep-previous` also keeps what is replaced beside it",
        )


@contextlib.contextmanager
def _own_node(work: Path) -> Iterator[None]:
    """Workers that are started for the run have this machine for a node, as long as it takes."""
    if CACHE_VARIABLE in os.environ:
        yield
        return
    directory = work.absolute() / "node"
    with restored_environment((CACHE_VARIABLE,)):
        os.environ[CACHE_VARIABLE] = str(directory)
        try:
            yield
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _check_stored(url: str, *, keep_previous: bool, verify: bool) -> None:
    """What a driver without the shards cannot do."""
    if url.startswith("memory://"):
        raise StorageError(
            "the workers of a cluster do not see the memory of this process",
            where=url,
            next="give an s3://, gs:// or az:// URL, or leave `--engine` out",
        )
    if keep_previous or verify:
        option = "--keep-previous" if keep_previous else "--verify"
        advice = (
            "what is published stays until its prefix is deleted"
            if keep_previous
            else ("`tokmill verify URL` reads all that is published")
        )
        raise RecipeError(
            "the shards of this run are in a store, and not on this machine",
            where=option,
            next=f"leave it out: {advice}",
        )


@short_repr
@dataclasses.dataclass(frozen=True)
class Plan:
    """The steps of a recipe in their order, each with the reasons why it would run:
    none if it is up to date."""

    recipe: str
    steps: dict[str, list[str]]
    restored: list[str]  # of those that would run: kept as they were before, and only to be brought back
    replaced: dict[str, int]  # bytes of finished steps that would be made again in the place of what is there
    removed: dict[
        str, int
    ]  # bytes of finished steps that the recipe no longer names: they would be set aside
    notes: list[str]  # what becomes of finished steps that are not up to date
    estimate: Estimate | None = None  # of a run from nothing
    free_bytes: int = 0  # on the disk of `out`

    def as_json(self) -> Json:
        steps = [
            {
                "step": name,
                "current": not reasons,
                "restored": name in self.restored,
                "reasons": reasons,
                "replaced_bytes": self.replaced.get(name, 0),
            }
            for name, reasons in self.steps.items()
        ]
        told: Json = {
            "recipe": self.recipe,
            "steps": steps,
            "removed_bytes": self.removed,
            "notes": self.notes,
        }
        if self.estimate is not None:
            told |= {"estimate": self.estimate.as_json(), "free_bytes": self.free_bytes}
        return told


def plan(
    recipe: str | Path | Mapping[str, Any] | Recipe,
    out: str | Path | None = None,
    *,
    set: Settings = (),
    until: str | None = None,
    estimate: bool = False,
    progress: Progress | None = None,
) -> Plan:
    """What `run` would do with the same arguments, and why.

    `estimate`: the recipe is run in miniature, over some of its documents, to tell what a run from nothing
    will come to; the run then records what was estimated beside what it was."""
    written, base = read_recipe(recipe, set), base_of(recipe)
    directory = place_of(written, base, out)
    with leaving_out(OwnFiles(directory, out)), _open_scratch() as scratch:
        whole = examine(written, base, directory, until=until)
        warn_of_left_out()
        refuse_foreign(foreign_in_run(directory, step_names(whole)), directory)
        with written_objects(whole, scratch):
            known = in_files(whole, scratch)
            every_step = plan_steps(known, base, directory)
            why = reasons_of(directory, whole.model_dump(mode="json"))
            reviewed = _reviewed(steps_until(every_step, until), why, directory)
            found = estimate_run(known, base, progress) if estimate else None
    if found is not None:
        found = structs.replace(found, recipe=fingerprint_of(whole.model_dump(mode="json")))
        make_directory(directory)
        write_estimate(directory, found)
    replaced, removed = _replaced(reviewed), former_sizes(directory, every_step)
    notes = [told_replaced(replaced)] if replaced else []
    notes += [told_removed(removed, directory)] if removed else []
    if recipe_in(directory) not in (None, whole.name):
        notes.append(
            f"{directory} holds the run of another recipe, {recipe_in(directory)}: a run needs `--replace`, "
            "`--keep-previous` or another `--out`"
        )
    return Plan(
        whole.name,
        {name: known.reasons for name, known in reviewed.items()},
        [name for name, known in reviewed.items() if known.previous is not None],
        replaced,
        removed,
        notes,
        found,
        free_bytes(directory) if found is not None else 0,
    )


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
def _open_scratch() -> Iterator[Path]:
    """Not in `out`: a run may be at work there."""
    with tempfile.TemporaryDirectory(prefix="tokmill-plan-") as scratch:
        yield Path(scratch) / "data"


def in_files(recipe: Recipe, directory: Path) -> Recipe:
    """The same recipe, with files there for the records that sources have in memory."""
    sources = [
        source if source.data is None else source.model_copy(update={"data": _file_of(source, directory)})
        for source in recipe.sources
    ]
    return recipe.model_copy(update={"sources": sources})


@contextlib.contextmanager
def written_objects(recipe: Recipe, directory: Path) -> Iterator[None]:
    """Those files, for as long as the block takes."""
    in_memory = [source for source in recipe.sources if source.data is not None]
    try:
        for source in in_memory:
            write_objects(source.data, _file_of(source, directory), source.name)
        yield
    finally:
        if in_memory:
            shutil.rmtree(directory, ignore_errors=True)
            with contextlib.suppress(OSError):  # files of others
                directory.parent.rmdir()


def _file_of(source: Source, directory: Path) -> Path:
    return directory.absolute() / f"{source.name}.jsonl"


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
    lean: bool | None = None,
    verify: bool = False,
    progress: Progress | None = None,
    own: Own | None = None,
    settings: Json | None = None,
) -> RunResult:
    """Run a recipe whose paths are relative to `base`.

    `own`: by source, which of "source" and "domain" documents keep where their records say them. `settings`:
    keys of the recipe that its file has otherwise, for the record.
    """
    refuse_foreign(foreign_in_run(out, step_names(recipe)), out)
    resources = resources or Resources(workers)
    if resources.engine != "local":
        base, out = base.absolute(), out.absolute()  # the same on every node
    known = in_files(recipe, out / _RECORDS)

    def plan() -> list[Step]:
        carry_forgotten_ids(recipe, out)
        return plan_steps(known, base, out, own)

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
        plan,
        resources=resources,
        until=until,
        wait=wait,
        keep_previous=keep_previous,
        lean=lean,
        verify=verify,
        progress=progress,
        files=written_objects(recipe, out / _RECORDS),
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
    lean: bool | None = None,
    verify: bool = False,
    progress: Progress | None = None,
    files: contextlib.AbstractContextManager[object] | None = None,
    sets_aside: bool = True,
) -> RunResult:
    """The steps that `plan` gives while nobody else works in `out`. `lean` None: a cache is as it is.
    `files`: what the steps read and what is there for the time of the run alone. `sets_aside`: finished steps
    that are not among them any more are kept beside the run."""
    progress = progress or Silence()
    check_resources(resources)
    started = time.monotonic()
    with (
        open_lease(out, wait=wait, say=progress.say) as lease,
        files or contextlib.nullcontext(),
        open_journal(out, asked.name, progress) as journal,
        warnings_to(lambda line: journal.say(name_run(line, out)), journal.count),
    ):
        session = Session(
            base,
            out,
            resources,
            asked.shard_bytes,
            journal,
            # what a takedown that was cut short has still to remove is not kept
            keep_previous=keep_previous and not (out / PENDING_FILE).is_file(),
            verify=verify,
            why=reasons_of(out, asked.recipe),
            check=lease.check,
        )
        try:
            remove_leftovers(out)
            estimate = load_estimate(out, asked.recipe)
            if estimate is not None and not any((out / name).exists() for name in ("ingest", MANIFEST)):
                warn_of_disk(estimate, out)
            if lean is not None:
                prepare_cache(out, lean=lean)
            if verify:
                drop_damaged(cache_of(out, "tokens"))
                history_entry(out)  # of a rest: damage is refused
            every_step = plan()
            wanted = steps_until(every_step, until)
            journal.plan([step.name for step in wanted])
            reviewed = _reviewed(wanted, reasons_of(out, asked.recipe), out)
            if not keep_previous and (sizes := _replaced(reviewed)):
                journal.say(told_replaced(sizes))
            for step in wanted:
                if step.directory.is_dir() and not is_ours(step.directory):
                    claim(step.directory)  # known by the manifest of the run, which goes now
            artifacts, ran, skipped = session.run_steps(wanted, reviewed=reviewed, leaves_sweeping=True)
            environment = {
                **session.describe_run(),
                **({SET: asked.settings} if asked.settings else {}),
                **(
                    _compared(estimate, session, time.monotonic() - started)
                    if len(ran) == len(every_step)
                    else {}
                ),
            }
            session.close_workers()
            lease.check()
            write_run_manifest(
                out,
                asked,
                every_step,
                artifacts,
                environment,
                has_changed=bool(ran or session.restored),
                sets_aside=sets_aside,
                say=journal.say,
                settle=session.finish_sweeping,
            )
        finally:
            session.close()
    seconds = time.monotonic() - started - session.compiling_seconds
    warnings = [(step, name_run(what, out)) for step, what in told_by_run(artifacts, asked.recipe)]
    return RunResult(asked.name, out, ran, skipped, seconds, artifacts, session.restored, warnings)


def _reviewed(steps: Sequence[Step], why: Callable[[Step], list[str]], out: Path) -> dict[str, Freshness]:
    """The standing of every step, by name; files of others in the place of one that is to be made are
    refused."""
    reviewed = review_plan(steps, why)
    stale = [step.directory for step, known in reviewed if not known.is_current]
    refuse_foreign([path for directory in stale for path in foreign_in_step(directory)], out)
    return {step.name: known for step, known in reviewed}


def _replaced(reviewed: Mapping[str, Freshness]) -> dict[str, int]:
    """Bytes of finished steps that are to be made otherwise."""
    return {name: known.replaced_bytes for name, known in reviewed.items() if known.replaced_bytes}


def told_replaced(sizes: Mapping[str, int]) -> str:
    return (
        f"to be made again, in the place of what is there: {name_sizes(sizes)}; `--keep-previous` keeps both"
    )


def _compared(estimate: Estimate | None, session: Session, seconds: float) -> Json:
    """How long the run took, and what was estimated of it, where it did all of its steps."""
    workers = session.describe()["workers"]
    told = {"estimate": estimate.summary(workers)} if estimate is not None else {}
    return {"seconds": round(seconds - session.compiling_seconds, 3), **told}


def said_for_review(recipe: Recipe) -> Json | None:
    return recipe.review.model_dump(mode="json", exclude_none=True) if recipe.review is not None else None
