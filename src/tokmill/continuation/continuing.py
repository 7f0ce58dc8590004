"""The rest of a run that is under way, by another recipe.

    builds, state ─ history.py ─> <out>/seen.parquet ─┐
    the run of the builds ─ linked ─> <out>           ├─ run: what the recipe changes is made anew, and
    recipe ───────────────────────────────────────────┘  the mixture puts last what was seen

The run begins as a copy of the one that it continues (hard links: files are replaced and never written over),
so documents that are in both are not read, cleaned and encoded twice. What was taken down there stays down.

From then on the directory is one of a run like any other: the recipe may be run in it again, documents may be
taken down, `verify` proves it. The run that it continues is needed no more.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tokmill.artifacts.history import Continues, meaning_of, write_history
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.progress import Progress, Silence
from tokmill.artifacts.runs import link_run, load_finished, open_run
from tokmill.artifacts.tombstones import FORGOTTEN_FILE
from tokmill.audit.seen import read_until
from tokmill.continuation.history import history_of
from tokmill.errors import InputError, TokenizerMismatch
from tokmill.loader.order import Shuffle
from tokmill.pipeline.run import RunResult, base_of, run
from tokmill.pipeline.tokens import pinned_file, refuse_without_mixture
from tokmill.recipe import Recipe
from tokmill.recipe.file import Settings, read_recipe
from tokmill.stages.build.continued import refuse_other_tokenizer
from tokmill.storage.lease import open_lease
from tokmill.storage.location import is_url


class Rest(NamedTuple):
    run: RunResult
    continues: Continues
    sources: Json  # of training, what was seen and what is to come; none: the run stopped before the mixture

    def as_json(self) -> Json:
        told = {"continues": msgspec.to_builtins(self.continues), "sources": self.sources}
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
    drop_last: bool = False,
    split: str | None = None,
    set: Settings = (),
    workers: int | None = None,
    wait: bool = False,
    progress: Progress | None = None,
) -> Rest:
    """Run `recipe` as the rest of a run whose `builds` were trained on, until a state of the loader (`at`, a
    mapping or a file of JSON), or before a `step` of `batch_size` samples on each of `world_size` ranks.

    What was seen comes after everything else of its source, and a target counts what was seen. The other
    arguments are those of `seen` and of `run`."""
    if (at is None) == (step is None):
        raise InputError(
            "needs a state of the loader, or a step",
            where="continue",
            next="give one of them (`--at`, `--step`)",
        )
    written, base = read_recipe(recipe, set), base_of(recipe)
    read = read_until(
        builds, state=at, step=step, batch_size=batch_size, world_size=world_size, seed=seed,
        weights=weights, shuffle=shuffle, drop_last=drop_last, split=split,
    )  # fmt: skip
    table, continues = history_of(read)
    runs = [one.run.directory for one in read.opened if one.run is not None]
    place = _place(written.recipe.name if out is None else out, base, runs, is_default=out is None)
    refuse_without_mixture(written.recipe)
    pinned = _pinned(written.recipe, base, runs[0], continues)
    settings = {**set, **pinned} if isinstance(set, Mapping) else [*set, *_as_words(pinned)]
    with open_lease(place, wait=wait, say=(progress or Silence()).say):
        if not (place / "ingest").is_dir():
            _begin_as(runs[0], place)
        write_history(place, table, continues)
    result = run(recipe, place, set=settings, workers=workers, wait=wait, progress=progress)
    return Rest(result, continues, _sources(result))


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


def _begin_as(run: Path, place: Path) -> None:
    load_finished(run)
    with contextlib.suppress(OSError):  # of another file system: all is made again
        link_run(run, place)
    if (run / FORGOTTEN_FILE).is_file():
        shutil.copyfile(run / FORGOTTEN_FILE, place / FORGOTTEN_FILE)


def _pinned(recipe: Recipe, base: Path, run: Path, continues: Continues) -> dict[str, Any]:
    """A recipe that trains its tokenizer as the run did has that one, and none that was trained on other
    documents."""
    tokenizer = recipe.tokenizer
    if tokenizer is not None and tokenizer.path is not None:
        _, sha256 = pinned_file(tokenizer, base)
        refuse_other_tokenizer(continues, {**continues.tokenizer, "sha256": sha256})
    if tokenizer is None or tokenizer.train is None:
        return {}
    before = load_finished(run).config.get("tokenizer") or {}
    if before.get("train") not in (None, tokenizer.train.model_dump(mode="json")):
        raise TokenizerMismatch(
            "the recipe trains another tokenizer than that of the run",
            where="tokenizer.train",
            next="leave `tokenizer` as it was",
        )
    artifact = open_run(run)["tokenizer"]
    assert meaning_of(artifact.manifest.facts) == continues.tokenizer, "the builds were made with it"
    (entry, *_) = artifact.manifest.entries("tokenizer")
    told = tokenizer.model_dump(mode="json", exclude_unset=True)
    del told["train"]
    path = os.path.relpath(artifact.path(entry).absolute(), base.absolute())
    return {"tokenizer": {**told, "path": path, "sha256": artifact.manifest.facts["sha256"]}}


def _as_words(settings: Mapping[str, Any]) -> list[str]:
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in settings.items()]


def _sources(result: RunResult) -> Json:
    if "mixture" not in result.artifacts:
        return {}
    splits = result.artifacts["mixture"].manifest.facts["splits"]
    told: list[Json] = [facts["continued"]["sources"] for facts in splits.values() if "continued" in facts]
    return told[0] if told else {}
