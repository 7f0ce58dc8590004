"""A takedown: documents out of every file of a run, and nothing rebuilt that need not be.

    locked   choose ─ what they are in ─ forgotten.parquet, forgetting.json      from here on the run
                                                                                 is not finished
    locked   manifests of all that holds them aside                              … and none of its artifacts
                                                                                 proves itself
             steps from their own manifests: ingest.forget ─ clean ─ dedup ─ … ─ builds
             the run's manifest: it names its parent and the removal

Between the two nobody else can do harm: whoever works in the run finds what is to be done, and does it first.

Sources are not read, nor a recipe: shards are made from shards, and steps are planned from the manifests of
the run (hooks, models, labels and benchmarks, which lie outside of it, must be the files that it was made
with). They are conducted as in any run, so tasks that nothing was taken from keep their receipts, and a
takedown that was killed goes on where it stopped when the command is given again. Running the recipe
afterwards changes nothing, and never brings the documents back: ingest knows the list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.history import history_entry
from tokmill.artifacts.manifest import Json, Manifest
from tokmill.artifacts.progress import Progress, Silence
from tokmill.artifacts.runs import foreign_in_step, refuse_foreign
from tokmill.artifacts.step import Step
from tokmill.artifacts.tombstones import NO_PARENT, add_forgotten, known_forgotten
from tokmill.audit.opened import load_finished
from tokmill.audit.places import RunPlaces, open_places
from tokmill.engines.local import Resources
from tokmill.errors import InputError, RecipeError, plural
from tokmill.pipeline.run import Asked, run_steps
from tokmill.storage.lease import open_lease
from tokmill.takedown.footprint import Chosen, choose, find_affected, refuse_emptied_domains
from tokmill.takedown.pending import Pending, load_pending, set_aside, set_out
from tokmill.takedown.selection import Selection, digest_of_selection, is_noted, read_doc_ids, with_takedown
from tokmill.takedown.steps import default_base, steps_of_run


@short_repr
class Forgetting(NamedTuple):
    """What was, or would be, forgotten. `ran` is empty where nothing was done."""

    directory: Path
    is_done: bool
    affected: Json
    parent: str
    ran: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()  # files that quoted documents, or knew their words

    def as_json(self) -> Json:
        lists = {name: list(getattr(self, name)) for name in ("ran", "skipped", "removed")}
        return {**self._asdict(), "directory": str(self.directory), **lists}


def forget(
    directory: str | Path,
    *,
    doc_id: str | Sequence[str] = (),
    doc_ids: str | Path | Sequence[str | tuple[str | None, str]] | None = None,
    source: str | None = None,
    license: str | None = None,
    batch_size: int | None = None,
    dry_run: bool = False,
    base: str | Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    tell: Callable[[Json], None] | None = None,
) -> Forgetting:
    """Take documents down: of an id, or several; of a list of ids or (source, id), or a file;
    all of a source; of a licence.

    `base` is where the recipe lies, for runs with hooks, models of scores, benchmarks or earlier corpora;
    hooks run only where it is given.
    `tell` hears what is affected before anything of it is done.
    """
    listed: list[tuple[str | None, str]] = [
        (source, one) for one in ([doc_id] if isinstance(doc_id, str) else doc_id)
    ]
    if isinstance(doc_ids, str | Path):
        listed += read_doc_ids(Path(doc_ids), source)
    else:
        listed += [(source, one) if isinstance(one, str) else one for one in doc_ids or ()]
    if doc_ids is not None and not listed:
        raise InputError("lists no id", where="doc_ids", next="give one, or no list for all of a source")
    if not (listed or source or license) or (listed and license):
        raise RecipeError(
            "needs --doc-id, --doc-ids, --source or --license, and no ids beside --license",
            where="tokmill forget",
            next="see `tokmill forget --help`",
        )
    selection = Selection(tuple(listed), source, license)
    out = Path(directory)
    asked = digest_of_selection(selection)
    while True:
        pending = load_pending(out)
        if dry_run:
            return _foreseen(out, pending, selection, asked, batch_size)
        if pending is None:
            decided = _decide(out, selection, batch_size, asked, base, progress, tell)
            if isinstance(decided, Forgetting):
                return decided
            pending = decided
        elif tell is not None:
            tell(pending.affected)
        done = _rebuild(out, pending, base, workers, progress)
        if pending.selection == asked:
            return done


def _foreseen(
    out: Path, pending: Pending | None, selection: Selection, asked: str, batch_size: int | None
) -> Forgetting:
    if pending is not None:
        if pending.selection != asked:
            parts = [
                f"{plural(part['documents'], 'document')} of {source}"
                for source, part in pending.affected["sources"].items()
            ]
            raise InputError(
                f"another takedown is not done ({', '.join(parts)}): what this one would change is not known",
                where=str(out),
                next="end it first: give its command again, or run the recipe",
            )
        return Forgetting(out, False, pending.affected, pending.parent)
    run, root = _open_finished(out)
    chosen, affected = _choose(run, selection, batch_size)
    return Forgetting(out, not chosen.is_any, affected, root.digest)


def _decide(
    out: Path,
    selection: Selection,
    batch_size: int | None,
    asked: str,
    base: str | Path | None,
    progress: Progress | None,
    tell: Callable[[Json], None] | None,
) -> Pending | Forgetting:
    """What is to be done, chosen and on disk while nobody else works here:
    whoever does so next ends it first."""
    _open_finished(out)  # the lock would make a directory that is not there
    with open_lease(out, say=(progress or Silence()).say):
        pending = load_pending(out)  # somebody came between
        if pending is not None:
            return pending
        run, root = _open_finished(out)
        known_forgotten(out)  # or what was forgotten before would be forgotten itself
        chosen, affected = _choose(run, selection, batch_size)
        if tell is not None:
            tell(affected)
        if not chosen.is_any:
            return Forgetting(out, True, affected, root.digest)
        refuse_emptied_domains(run, chosen, root.config)
        # what is missing is missed before anything is written
        history_entry(out)
        steps = steps_of_run(out, list(run.artifacts), root.config, _given(base), affected["sources"])
        refuse_foreign([path for step in steps for path in foreign_in_step(step.directory)], out, _MOVE)
        known = add_forgotten(run.forgotten, chosen.found, root.digest)
        known = add_forgotten(known, chosen.absent, NO_PARENT)
        forgotten = with_takedown(known, run.forgotten, selection, root.digest)
        return set_out(out, run, root, forgotten, affected, asked)


def _choose(run: RunPlaces, selection: Selection, batch_size: int | None) -> tuple[Chosen, Json]:
    """Nothing is chosen where the takedown is done already."""
    chosen = choose(run, selection)
    if not (chosen.is_any or chosen.already or is_noted(run.forgotten, selection)):
        raise InputError(
            "no document of the run is meant",
            where=str(run.directory),
            next="`tokmill trace --doc-id` says what is there",
        )
    return chosen, find_affected(run, chosen, batch_size)


def _open_finished(out: Path) -> tuple[RunPlaces, Manifest]:
    root = load_finished(out)
    return open_places(out), root


def _rebuild(
    out: Path, pending: Pending, base: str | Path | None, workers: int | None, progress: Progress | None
) -> Forgetting:
    def plan() -> list[Step]:
        now = load_pending(out)
        if now is None or now.parent != pending.parent:
            raise InputError(
                "another command ended the takedown, between this one's choice and its work",
                where=str(out),
                next="give the same command again: it says what is left to do",
            )
        steps = steps_of_run(out, now.steps, now.recipe, _given(base), now.affected["sources"])
        set_aside(out, now, steps)
        return steps

    asked = Asked(pending.name, pending.recipe, pending.shard_bytes, pending.review, pending.settings)
    result = run_steps(
        asked,
        _given(base) or default_base(out),
        out,
        plan,
        resources=Resources(workers),
        progress=progress,
        sets_aside=False,
    )
    return Forgetting(
        out,
        True,
        pending.affected,
        pending.parent,
        tuple(result.ran),
        tuple(result.skipped),
        tuple(pending.removed),
    )


_MOVE = "move them elsewhere: what is in these directories is made again"


def _given(base: str | Path | None) -> Path | None:
    return Path(base) if base is not None else None
