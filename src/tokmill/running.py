"""Run a recipe: every step that is not up to date, in order, so that a kill at any moment only costs time.

    for each wave   steps that are current are left alone
                    the others: begin ─ tasks (those without a receipt that holds) ─ conservation ─ manifest
    at the end      <out>/manifest.json   names every artifact with its digests

One run at a time works in an output directory; a lock that dies with its process sees to it. Where `out` is the URL
of an object store the run works in a directory of this machine and is published from there, whole or not at all.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from tokmill.artifact import (
    Artifact,
    remove_leftovers,
)
from tokmill.dedup.cuda import Device
from tokmill.engines.memory import parse_bytes
from tokmill.engines.opening import EngineName, Resources, check_resources
from tokmill.journal import open_journal
from tokmill.manifest import (
    Json,
)
from tokmill.plan import Own, plan_steps, steps_until
from tokmill.progress import Progress, Silence, told_to
from tokmill.publication_target import Published, open_target
from tokmill.recipe import Recipe
from tokmill.recipe_file import load_recipe
from tokmill.run_manifest import Asked as Asked
from tokmill.run_manifest import write_run_manifest
from tokmill.run_session import Session
from tokmill.stages.step import Step
from tokmill.storage.lock import open_lock
from tokmill.storage.objects.url import is_url, refuse_squeezed_url


@dataclasses.dataclass(frozen=True)
class RunResult:
    """Where everything is and what was done for it."""

    recipe: str
    out: Path
    ran: list[str]
    skipped: list[str]
    seconds: float
    artifacts: dict[str, Artifact]
    published: Published | None = None  # where `out` is a URL

    def as_json(self) -> Json:
        return {
            "recipe": self.recipe,
            "out": str(self.out),
            **({"published": self.published.as_json()} if self.published else {}),
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
    work: str | Path | None = None,
    replace: bool = False,
    progress: Progress | None = None,
) -> RunResult:
    """Mill a recipe into `out` (default: out/<name> beside the recipe), a directory or the URL of an object store.

    `work` and `replace` are for a URL: where the run works before it is published, and whether it may be published
    in the place of another.
    """
    path = Path(recipe_path)
    recipe = load_recipe(path)
    base = path.resolve().parent
    bound = parse_bytes(memory) if isinstance(memory, str) else memory

    def mill(directory: Path) -> RunResult:
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

    if out is None or not is_url(out):
        refuse_squeezed_url(out)
        return mill(Path(out) if out is not None else default_out(recipe, base))
    with open_target(
        str(out),
        recipe.name,
        recipe.model_dump(mode="json"),
        work=None if work is None else Path(work),
        replace=replace,
        wait=wait,
        say=(progress or Silence()).say,
    ) as target:
        result = mill(target.directory)
        return dataclasses.replace(result, published=target.publish((progress or Silence()).say))


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
    own: Own | None = None,
) -> RunResult:
    """Mill a recipe whose paths are relative to `base`.

    `own`: by source, which of "source" and "domain" documents keep where their records say them.
    """
    resources = resources or Resources(workers)
    if resources.engine != "local":
        base, out = base.absolute(), out.absolute()  # the same on every node
    return run_steps(
        Asked(recipe.name, recipe.model_dump(mode="json"), recipe.shards.bytes, said_for_review(recipe)),
        base,
        out,
        lambda: plan_steps(recipe, base, out, own),
        resources=resources,
        device=device,
        until=until,
        wait=wait,
        progress=progress,
    )


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
        session = Session(base, out, resources, asked.shard_bytes, device, journal)
        try:
            remove_leftovers(out)
            every_step = plan()
            wanted = steps_until(every_step, until)
            journal.plan([step.name for step in wanted])
            artifacts, ran, skipped = session.run_steps(wanted)
            write_run_manifest(out, asked, every_step, artifacts, session.describe(), has_changed=bool(ran))
        finally:
            session.close()
    return RunResult(asked.name, out, ran, skipped, time.monotonic() - started, artifacts)


def said_for_review(recipe: Recipe) -> Json | None:
    return recipe.review.model_dump(mode="json", exclude_none=True) if recipe.review is not None else None


def default_out(recipe: Recipe, base: Path) -> Path:
    return base / "out" / recipe.name
