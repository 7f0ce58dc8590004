"""The rest of a run that is under way, by another recipe.

    builds, state ─ history.py ─> <out>/seen.parquet ─┐
    the run of the builds ─ linked ─> <out>           ├─ run: what the recipe changes is made anew, and
    recipe ───────────────────────────────────────────┘  the mixture puts last what was seen

The run begins as a copy of the one that it continues (hard links: files are replaced and never written over),
so documents that are in both are not read, cleaned and encoded twice. What was taken down in one of the runs
stays down. What says so is written first, then the table, then the copy: however soon a rest is killed, its
directory is never that of a run which begins at the beginning, and never one where a document comes back.

From then on the directory is one of a run like any other: the recipe may be run in it again, documents may be
taken down, `verify` proves it. The run that it continues is needed no more.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.directory import open_artifact
from tokmill.artifacts.history import (
    HISTORY_FILE,
    Continues,
    load_continues,
    meaning_of,
    noted_continues,
    write_history,
)
from tokmill.artifacts.manifest import MANIFEST, Json
from tokmill.artifacts.progress import Progress, Silence
from tokmill.artifacts.runs import link_run, load_finished, open_run
from tokmill.artifacts.tombstones import known_forgotten, merge_forgotten, write_forgotten
from tokmill.audit.seen import load_state, read_until, read_whole
from tokmill.continuation.history import history_of
from tokmill.continuation.stages import builds_before, walked_stages
from tokmill.errors import CorruptFile, InputError, RecipeError, TokenizerError
from tokmill.loader.order import Shuffle
from tokmill.pipeline.run import RunResult, base_of, run
from tokmill.pipeline.tokens import pinned_file, refuse_other_training, refuse_without_mixture
from tokmill.recipe import Recipe
from tokmill.recipe.file import Settings, read_recipe
from tokmill.stages.build.continued import refuse_other_tokenizer
from tokmill.storage.disk import commit_bytes
from tokmill.storage.lease import open_lease
from tokmill.storage.location import is_url


@short_repr
class Rest(NamedTuple):
    run: RunResult
    continues: Continues
    sources: Json  # of training, what was seen and what is to come; none: the run stopped before the mixture
    gone: Json  # of sources that the recipe has not any more, what was seen

    def as_json(self) -> Json:
        told = {
            "continues": msgspec.to_builtins(self.continues),
            "sources": self.sources,
            "gone": self.gone,
        }
        return {**self.run.as_json(), **told}


def continue_(
    builds: Sequence[str | Path] | str | Path,
    *,
    recipe: str | Path | Mapping[str, Any] | Recipe,
    out: str | Path | None = None,
    at: Mapping[str, Any] | str | Path | None = None,
    step: int | None = None,
    batch_size: int | None = None,
    world_size: int = 1,
    seed: int = 0,
    weights: Sequence[float | str] | None = None,
    shuffle: Shuffle | None = None,
    bucketing: tuple[int, int] | None = None,
    drop_last: bool = False,
    split: str | None = None,
    set: Settings = (),
    workers: int | None = None,
    wait: bool = False,
    progress: Progress | None = None,
) -> Rest:
    """Run `recipe` as the rest of a run whose `builds` were trained on, until a state of the loader (`at`, a
    mapping or a file of JSON), or before a `step` of `batch_size` samples on each of `world_size` ranks.

    What was seen comes after everything else of its source, and a target counts what was seen. A state of a
    curriculum is of all stages that it walked: one of their builds is enough where the others lie beside it.
    A step in the build of a stage, or a state of that build alone, is after all stages before it. The other
    arguments are those of `seen` and of `run`."""
    if (at is None) == (step is None):
        raise InputError(
            "needs a state of the loader, or a step",
            where="continue",
            next="give one of them (`--at`, `--step`)",
        )
    written, base = read_recipe(recipe, set), base_of(recipe)
    told = load_state(at) if at is not None else None
    is_staged = told is not None and "stages" in told
    paths = [builds] if isinstance(builds, str | Path) else builds
    stages: list[tuple[Any, Any]] = [(builds, told)]
    before: list[Path] = []
    if told is not None and is_staged:
        stages = [*walked_stages(told, paths, split)]
    else:
        before = builds_before(paths, split)
    if drop_last and (is_staged or before):
        raise InputError(
            "what the last steps of stages left out is told by the state of them",
            where="drop_last",
            next="leave it out" if is_staged else "give the state of the curriculum (`--at`)",
        )
    reads = [read_whole(build, split) for build in before]
    reads += [
        read_until(
            own, state=state, step=step, batch_size=batch_size, world_size=world_size, seed=seed,
            weights=weights, shuffle=shuffle, bucketing=bucketing, drop_last=drop_last, split=split,
        )
        for own, state in stages
    ]  # fmt: skip
    table, continues = history_of(reads, told if told and is_staged else reads[-1].loader.state_dict())
    runs = [one.run.directory for read in reads for one in read.opened if one.run is not None]
    place = _place(written.recipe.name if out is None else out, base, runs, is_default=out is None)
    refuse_without_mixture(written.recipe)
    pinned = _pinned(written.recipe, base, runs[0], continues)
    settings = {**set, **pinned} if isinstance(set, Mapping) else [*set, *_as_words(pinned)]
    load_finished(runs[0])
    with open_lease(place, wait=wait, say=(progress or Silence()).say):
        _refuse_another(place, continues)
        is_new = not (place / "ingest").is_dir()
        former = _table_here(place)
        _keep_down(runs, place)
        write_history(place, table, continues)
        if is_new:
            with contextlib.suppress(OSError):  # of another file system: all is made again
                link_run(runs[0], place)
    try:
        result = run(recipe, place, set=settings, workers=workers, wait=wait, progress=progress)
    except (RecipeError, InputError, TokenizerError):
        with open_lease(place, wait=wait, say=(progress or Silence()).say):
            _take_back(place, former, continues)
        raise
    sources = _sources(result)
    return Rest(result, continues, sources, _gone(table, sources) if sources else {})


def _place(out: str | Path, base: Path, runs: Sequence[Path], *, is_default: bool) -> Path:
    if is_url(out):
        raise InputError(
            "the rest of a run is made on this machine",
            where=str(out),
            next="give a directory (`--out`), and publish the run from there",
        )
    place = base / "out" / str(out) if is_default else Path(out)
    if place.resolve() in [run.resolve() for run in runs]:
        raise InputError(
            "is the run that is continued: it is what tells what its rows were",
            where=str(place),
            next="give another directory (`--out`)",
        )
    return place


def _refuse_another(place: Path, continues: Continues) -> None:
    """A run from the beginning would be a rest from then on, whatever became of this one."""
    try:
        there = load_continues(place)
    except CorruptFile:  # this is what makes it again
        there = noted_continues(place)
        if there is None:
            return  # the rest of a run that was killed before it said of which
    if there is None and any((place / name).exists() for name in ("ingest", MANIFEST)):
        raise InputError(
            "holds a run that is not the rest of another",
            where=str(place),
            next="give a directory that is not there yet (`--out`)",
        )
    read = {build.identity for build in continues.builds}
    if there is not None and read.isdisjoint(build.identity for build in there.builds):
        raise InputError(
            f"holds the rest of another run, of its {there.builds[0].build}",
            where=str(place),
            next="give another directory (`--out`)",
        )


def _table_here(place: Path) -> bytes | None:
    path = place / HISTORY_FILE
    return path.read_bytes() if path.is_file() else None


def _take_back(place: Path, former: bytes | None, continues: Continues) -> None:
    """A rest that was there stays what it was where the new one was refused, and nothing was made of it."""
    mixture = open_artifact(place / "mixture")
    made_of = mixture.manifest.config.get("continues") or {} if mixture is not None else {}
    if former is not None and made_of.get("history") != continues.history:
        commit_bytes(place / HISTORY_FILE, former)


def _keep_down(runs: Sequence[Path], place: Path) -> None:
    """The lists of what was taken down, of all runs and of the one here, as one."""
    tables = [known_forgotten(one) for one in dict.fromkeys([place, *runs])]
    whole = merge_forgotten(tables)
    if whole.num_rows and not whole.equals(tables[0], check_metadata=True):
        write_forgotten(place, whole)


def _pinned(recipe: Recipe, base: Path, run: Path, continues: Continues) -> dict[str, Any]:
    """A recipe that trains its tokenizer as the run did has that one, and none that was trained on other
    documents."""
    tokenizer = recipe.tokenizer
    if tokenizer is not None and tokenizer.path is not None:
        _, sha256 = pinned_file(tokenizer, base)
        refuse_other_tokenizer(continues, {**continues.tokenizer, "sha256": sha256})
    if tokenizer is None or tokenizer.train is None:
        return {}
    refuse_other_training(continues, tokenizer.train)
    artifact = open_run(run)["tokenizer"]
    assert meaning_of(artifact.manifest.facts) == continues.tokenizer, "the builds were made with it"
    (entry, *_) = artifact.manifest.entries("tokenizer")
    told = tokenizer.model_dump(mode="json", exclude_unset=True)
    del told["train"]
    path = os.path.relpath(artifact.path(entry).absolute(), base.absolute())
    return {"tokenizer": {**told, "path": path, "sha256": artifact.manifest.facts["sha256"]}}


def _as_words(settings: Mapping[str, Any]) -> list[str]:
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()]


def _gone(table: Any, sources: Json) -> Json:
    sums = table.group_by("source").aggregate([("tokens", "sum"), ("id", "count")]).to_pylist()
    return {
        one["source"]: {"trained_on": one["tokens_sum"], "documents": one["id_count"]}
        for one in sums
        if one["source"] not in sources
    }


def _sources(result: RunResult) -> Json:
    if "mixture" not in result.artifacts:
        return {}
    splits = result.artifacts["mixture"].manifest.facts["splits"]
    told: list[Json] = [facts["continued"]["sources"] for facts in splits.values() if "continued" in facts]
    return told[0] if told else {}
