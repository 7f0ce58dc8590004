"""What a model has seen by a state of its loader, and what is to come.

    state or step ─ loader/history: times of each row ─┬─ exposure.py ─> tokens, epochs, documents per group
                                                       └─ passes.py ─> a table of all documents
    doc_id, text ─ meetings.py ─> the steps that saw it, and those that will
    step ─ its samples, rank by rank ─ trace.py ─> documents and characters of a batch

A state says how far the global order was used, and which epochs ended before their last sample; batch size
and ranks may have changed on the way. A step is one of a run whose batch size and ranks were the same all the
time. In a build of a stage, which is walked once, it is one of the stage.
"""

from __future__ import annotations

import json
import operator
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.history import load_continues, outer_histories
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.upstream import mixture_of
from tokmill.audit.exposure import Exposure, PlacesFile, measure_exposure
from tokmill.audit.grouping import group_documents
from tokmill.audit.meetings import (
    Meeting,
    Sought,
    meetings,
    run_around,
    seek_document,
    seek_text,
    step_of,
)
from tokmill.audit.passes import write_passes
from tokmill.audit.places import Turns, entry_of
from tokmill.audit.trace import BuildSplit, open_build, trace_row
from tokmill.errors import InputError, plural
from tokmill.loader.batches import Batches, Step, left_out_of
from tokmill.loader.dataset import open_dataset
from tokmill.loader.history import Sample, Times, count_times
from tokmill.loader.order import Shuffle

_STATE = {"seed", "weights", "shuffle", "bucketing", "datasets", "epoch", "position"}
_CURRICULUM = {"stages", "stage", "position"}
_TRACED_ROWS = 256  # of a batch whose characters are told


class Group(NamedTuple):
    name: str
    tokens: int  # in the rows
    seen: int  # tokens trained on, those of every epoch
    new: int  # of those in rows, trained on once at least
    epochs: float
    whole: int  # documents
    partly: int
    unseen: int


@short_repr
class Seen(NamedTuple):
    epoch: int  # 1: a stage is over
    position: int
    epoch_samples: int
    step: int | None
    by: str
    groups: list[Group]
    total: Group
    passes: dict[int, int]  # documents by how many times they were seen whole
    stage: str | None = None  # that the build is of, where it is one of a curriculum
    earlier_tokens: int = 0  # that were trained on before the run of the build, and are not counted
    meetings: list[Meeting] | None = None  # of a document, or of a text
    batch: list[Json] | None = None
    out: Path | None = None

    def as_json(self) -> Json:
        return {
            **self._asdict(),
            "groups": [group._asdict() for group in self.groups],
            "total": self.total._asdict(),
            "passes": {str(often): count for often, count in self.passes.items()},
            "meetings": None if self.meetings is None else [one._asdict() for one in self.meetings],
            "out": None if self.out is None else str(self.out),
        }


def seen(
    builds: Sequence[str | Path] | str | Path,
    *,
    state: Mapping[str, Any] | str | Path | None = None,
    step: int | None = None,
    batch_size: int | None = None,
    world_size: int = 1,
    seed: int = 0,
    weights: Sequence[float | str] | None = None,
    shuffle: Shuffle | None = None,
    bucketing: tuple[int, int] | None = None,
    drop_last: bool = False,
    split: str | None = None,
    by: str = "source",
    doc_id: str | None = None,
    text: str | None = None,
    source: str | None = None,
    stage: str | None = None,
    batch: int | None = None,
    out: str | Path | None = None,
) -> Seen:
    """What was trained on before a `state` of the loader (a mapping, or a file of JSON), or before a
    `step` of `batch_size` samples on each of `world_size` ranks. Of several builds, the datasets of one
    loader with `weights`; `bucketing`: its window and run. `by`: source, domain, license, language, or a
    score of the run, in tenths. `doc_id`: also in which steps that document was and will be, up to the
    end of the next epoch; `text`: the same of all documents that have it, where they have it; `source`:
    only of that one. `stage`: which one is meant, where a state has several of one build. `batch`: also
    the documents and characters of that step, rank by rank. `out`: a Parquet file for all documents, one
    row each. Of a run that is the rest of others, what those trained on is told (`earlier_tokens`) and
    not counted."""
    if doc_id is not None and text is not None:
        raise InputError("is asked for beside a text", where="doc_id", next="give one of them")
    if source is not None and doc_id is None and text is None:
        raise InputError(
            "says which document or text is meant, and none is given",
            where="source",
            next="give `doc_id` or `text`, or leave it out: all sources are told",
        )
    found = read_until(
        builds, state=state, step=step, batch_size=batch_size, world_size=world_size, seed=seed,
        weights=weights, shuffle=shuffle, bucketing=bucketing, drop_last=drop_last, split=split,
        needs_steps=batch is not None, stage=stage,
    )  # fmt: skip
    loader, opened, (epoch, position) = found.loader, found.opened, found.now
    turns = [turns_of(one) for one in opened]
    exposures = [
        measure_exposure(own, places_file(one), counted, group_documents(own, by, run_around(one).artifacts))
        for one, own, counted in zip(opened, turns, found.times, strict=True)
    ]
    groups, total = _add_up(exposures)
    passes: dict[int, int] = {}
    for exposure in exposures:
        for often, count in exposure.passes.items():
            passes[often] = passes.get(often, 0) + count
    told = Seen(
        epoch,
        position,
        loader.epoch_samples,
        step_of(loader, found.now) if batch_size else None,
        by,
        groups,
        total,
        dict(sorted(passes.items())),
        found.stage,
        _earlier_tokens(opened),
    )
    if doc_id is not None or text is not None:
        sought = _sought(opened, turns, doc_id, text, source)
        parts = list(zip(opened, turns, sought, strict=True))
        met = meetings(loader, parts, found.now, found.epochs, batch_size is not None)
        ends = loader.left_out
        told = told._replace(meetings=[one for one in met if one.position < ends.get(one.epoch, sys.maxsize)])
    if batch is not None:
        told = told._replace(batch=_batch(found, batch))
    if out is not None:
        builds_read = [
            (one.name.removeprefix("build/"), own, places_file(one), counted)
            for one, own, counted in zip(opened, turns, found.times, strict=True)
        ]
        write_passes(Path(out), builds_read)
        told = told._replace(out=Path(out))
    return told


def _sought(
    opened: Sequence[BuildSplit],
    turns: Sequence[Turns],
    doc_id: str | None,
    text: str | None,
    source: str | None,
) -> list[list[Sought]]:
    """In each build."""
    known = sorted({shard.source for split in opened for shard in run_around(split).shards})
    if source not in (None, *known):
        raise InputError(
            f"no source is called {source!r}",
            where=str(opened[0].build.directory),
            next=f"give one of {', '.join(known)}",
        )
    if text is not None:
        return [seek_text(split, own, text, source) for split, own in zip(opened, turns, strict=True)]
    assert doc_id is not None, "one of them is given"
    found = [seek_document(split, doc_id, source) for split in opened]
    if all(one is None for one in found):
        others = sorted({place.shard.source for split in opened for place in run_around(split).find(doc_id)})
        raise InputError(
            f"no document of the source {source} is called {doc_id!r}"
            if others
            else f"no document is called {doc_id!r}",
            where=str(opened[0].build.directory),
            next=f"there is one of {', '.join(others)}" if others else "`tokmill documents` lists them",
        )
    return [one or [] for one in found]


class ReadUntil(NamedTuple):
    """Builds as their loader has read them."""

    loader: Batches
    opened: list[BuildSplit]
    now: Sample
    times: list[Times]  # of each build, how often each row was handed out
    epochs: int  # that are looked at for what is to come: to the end of the next, and a stage has one
    stage: str | None = None  # of a curriculum


def read_until(
    builds: Sequence[str | Path] | str | Path,
    *,
    state: Mapping[str, Any] | str | Path | None,
    step: int | None,
    batch_size: int | None,
    world_size: int,
    seed: int,
    weights: Sequence[float | str] | None,
    shuffle: Shuffle | None,
    bucketing: tuple[int, int] | None,
    drop_last: bool,
    split: str | None,
    needs_steps: bool = False,
    stage: str | None = None,
) -> ReadUntil:
    """As `seen` takes them. The loader stands at the state, or before the step."""
    paths = [builds] if isinstance(builds, str | Path) else list(builds)
    told = load_state(state) if state is not None else None
    name = None
    if told is not None and "stages" in told:
        number = _number_of(told, [open_dataset(path, split).fingerprint for path in paths], stage)
        name, told = told["stages"][number]["name"], _of_stage(told, number)
    elif stage is not None:
        raise InputError(
            "is asked for without a state of several",
            where="stage",
            next="give the `state` of a curriculum, or the build of that stage alone",
        )
    if (told is None) == (step is None):
        raise InputError(
            "needs a state of the loader, or a step",
            where="seen",
            next="give one of them (`--state`, `--step`)",
        )
    if batch_size is None and (step is not None or needs_steps or drop_last):
        raise InputError("steps need a batch size", where="batch_size", next="give it (`--batch-size`)")
    asked = {"seed": seed, "weights": weights, "shuffle": shuffle, "bucketing": bucketing} | dict(told or {})
    loader = Batches(
        [open_dataset(path, split) for path in paths],
        batch_size or 1,
        asked["seed"],
        weights=asked["weights"],
        shuffle=asked["shuffle"],
        bucketing=asked["bucketing"],
        world_size=world_size,
        drop_last=drop_last,
    )
    opened = [open_build(path, split or one.split) for path, one in zip(paths, loader.datasets, strict=True)]
    if told is not None:
        loader.load_state_dict(dict(told))
    else:
        assert step is not None, "one of them is given"
        name = _stage_of(opened)
        if name is not None:
            _refuse_beyond(loader, name, step, len(loader), "step")
        loader.epoch, loader.position = _start_of(loader, step)
    if drop_last and not loader.left_out:
        # a state of before it was told: all its steps were as large as these
        taken = len(loader) * loader.batch_size * world_size
        if taken < loader.epoch_samples:
            loader.left_out = dict.fromkeys(range(loader.epoch), taken)
    times = count_times(loader.order, loader.epoch, loader.position, loader.left_out)
    epochs = 1 if name is not None else loader.epoch + 2
    return ReadUntil(loader, opened, Sample(loader.epoch, loader.position), times, epochs, name)


def read_whole(build: Path, split: str | None) -> ReadUntil:
    """A build that was handed out once, from end to end."""
    dataset = open_dataset(build, split)
    return read_until(
        build, state=None, step=len(dataset), batch_size=1, world_size=1, seed=0, weights=None,
        shuffle=None, bucketing=None, drop_last=False, split=split,
    )  # fmt: skip


def turns_of(split: BuildSplit) -> Turns:
    if split.run is None:
        raise InputError(
            "which documents its rows are of is told by the run around it, which is not here",
            where=str(split.build.directory),
            next="give the build where its run is, such as out/NAME/build/rows",
        )
    return split.run.turns(split.name, split.split)


def places_file(split: BuildSplit) -> PlacesFile | None:
    entry = entry_of(split.build, split.split, "places")
    return None if entry is None else PlacesFile(split.build.path(entry), entry.rows)


def load_state(state: Mapping[str, Any] | str | Path) -> Mapping[str, Any]:
    """Of a loader, with numbers of Python's; a path is to a file of JSON."""
    if isinstance(state, Mapping):
        try:
            plain = json.loads(json.dumps(dict(state), default=operator.index))
        except (TypeError, ValueError):
            plain = None
        return _checked(plain, "state")
    try:
        told = json.loads(Path(state).read_text())
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", where=str(state)) from error
    except ValueError as error:
        raise InputError(
            f"is no JSON ({error})",
            where=str(state),
            next="write the state of the loader as JSON: `tokmill seen --help` shows how",
        ) from error
    return _checked(told, str(state))


def _checked(told: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(told, Mapping) or not (set(told) >= _STATE or set(told) >= _CURRICULUM):
        raise InputError(
            "is no state of a loader",
            where=where,
            next="write the state of the loader as JSON: `tokmill seen --help` shows how",
        )
    return told


def _number_of(told: Mapping[str, Any], fingerprints: list[str], wanted: str | None) -> int:
    """Of the stage that has these files, and that name if one is asked for."""
    of_build = {
        number: str(stage["name"])
        for number, stage in enumerate(told["stages"])
        if [one["fingerprint"] for one in stage["datasets"]] == fingerprints
    }
    if not of_build:
        raise InputError(
            "none of its stages is this build",
            where="state",
            next="give the build of one stage, such as out/NAME/build/rows-main",
        )
    numbers = [number for number, name in of_build.items() if wanted in (None, name)]
    names = ", ".join(of_build.values())
    if not numbers:
        raise InputError(
            f"no stage of this build is called {wanted!r}", where="stage", next=f"give one of {names}"
        )
    if len(numbers) > 1:
        raise InputError(
            f"{len(numbers)} of its stages are this build: {names}",
            where="state",
            next="say which one is meant with `stage`",
        )
    return numbers[0]


def stage_alone(told: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """The state of a curriculum that has no other stage: all of it, a part, or nothing yet was walked."""
    samples = [stage["datasets"][0]["samples"] for stage in told["stages"]]
    left_out = [[0, taken] for at, taken in left_out_of(told, samples).items() if at == number]
    position = told["position"] if number == told["stage"] else 0
    is_over = int(number < told["stage"])
    alone = {"stages": [told["stages"][number]], "stage": is_over, "position": position}
    return {**told, **alone, "left_out": left_out}


def _of_stage(told: Mapping[str, Any], number: int) -> Mapping[str, Any]:
    """What the loader of that stage would have said."""
    alone = stage_alone(told, number)
    kept = {"position": alone["position"], "left_out": alone["left_out"]}
    return {**alone["stages"][0], "epoch": alone["stage"], **kept}


def _stage_of(opened: Sequence[BuildSplit]) -> str | None:
    """Of a build that is a stage's: its rows are walked once."""
    return stage_of(opened[0]) if len(opened) == 1 else None


def stage_of(build: BuildSplit) -> str | None:
    mixture = mixture_of(build.run.artifacts, build.build) if build.run is not None else None
    if mixture is None or build.split not in mixture.manifest.facts["splits"]:
        return None
    stage = mixture.manifest.config.get("stage")
    return None if stage is None else str(stage["name"])


def _refuse_beyond(loader: Batches, stage: str, step: int, last: int, where: str) -> None:
    if step > last:
        rows = plural(loader.batch_size * loader.world_size, "row")
        has = f"{plural(len(loader), 'step')} of {rows}"
        raise InputError(
            f"{step:,} is after the end of the stage {stage}, which has {has}",
            where=where,
            next=f"give {last:,} or less: steps count within the stage, from 0"
            if last >= 0
            else "give a smaller batch size",
        )


def _earlier_tokens(opened: Sequence[BuildSplit]) -> int:
    """Of the runs that these go on from; what is in the histories of several counts once."""
    found = {split.run.directory: load_continues(split.run.directory) for split in opened if split.run}
    return sum(one.tokens for one in outer_histories(one for one in found.values() if one is not None))


def _start_of(loader: Batches, step: int) -> tuple[int, int]:
    if step < 0:
        raise InputError(f"{step} is below 0", where="step", next="steps count from 0")
    epoch, within = divmod(step, max(len(loader), 1))
    return epoch, within * loader.batch_size * loader.world_size


def _add_up(exposures: list[Exposure]) -> tuple[list[Group], Group]:
    fields = ("tokens", "seen", "new", "whole", "partly", "unseen")
    sums: dict[str, np.ndarray[Any, np.dtype[np.int64]]] = {}
    for exposure in exposures:
        columns = np.stack([getattr(exposure, field) for field in fields])
        for number, name in enumerate(exposure.names):
            sums[name] = sums.get(name, np.zeros(len(fields), np.int64)) + columns[:, number]
    groups = [_group(name, row) for name, row in sums.items() if row.any()]
    return groups, _group("all", sum(sums.values(), np.zeros(len(fields), np.int64)))


def _group(name: str, row: np.ndarray[Any, np.dtype[np.int64]]) -> Group:
    tokens, seen, new, whole, partly, unseen = row.tolist()
    return Group(name, tokens, seen, new, seen / tokens if tokens else 0.0, whole, partly, unseen)


def _batch(read: ReadUntil, step: int) -> list[Json]:
    loader, opened = read.loader, read.opened
    if read.stage is not None:
        _refuse_beyond(loader, read.stage, step, len(loader) - 1, "batch")
    epoch, start = _start_of(loader, step)
    stop = min(start + loader.batch_size * loader.world_size, loader.epoch_samples)
    if stop - start > _TRACED_ROWS:
        where = f"{stop - start:,} rows"
        raise InputError(
            f"a step of {where} is more than the {_TRACED_ROWS} that are told",
            where="batch",
            next="look at rows of it with `tokmill trace`",
        )
    ranks = []
    for rank in range(loader.world_size):
        own = loader.part_of(Step(epoch, start, stop), rank)
        placed = loader.order.between(epoch, *own)
        rows = [
            {
                "sample": own[0] + at,
                "build": opened[number].name.removeprefix("build/"),
                "row": row,
                "documents": [_told(one.as_json()) for one in trace_row(opened[number], row)],
            }
            for at, (number, row) in enumerate(zip(placed.source.tolist(), placed.row.tolist(), strict=True))
        ]
        ranks.append({"rank": rank, "rows": rows})
    return ranks


def _told(traced: Json) -> Json:
    """Without the history of the document, which `tokmill trace` tells."""
    stretch = traced["stretch"]
    characters = [stretch["start"], stretch["end"]] if stretch else None
    kept = {name: traced[name] for name in ("source", "doc_id", "start", "end", "tokens")}
    return {**kept, "characters": characters}
