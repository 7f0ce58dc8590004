"""The stages of a curriculum, one after the other, as one stream of steps.

    out/curriculum/rows.json ─ open_curriculum ─> main: 320 rows of 2048    long: 40 of 16384    anneal …

    step       |── main 0 ──|── main 1 ──| … |── long 0 ──| … |── anneal 0 ──| …      batch_tokens each
    rows            32           32               4                 32                batch_tokens / length
    rank       |0 |1 |2 |3 |                                                        side by side, nearly even
    state      (stage, position)                      rows of the stage that all ranks took together
               left_out                               stages that ended before their last row

In a stage every row comes once, in the seeded order of order.py. The last step of a stage has the rows that
are left, or `drop_last` leaves them out; no step has rows of two stages. A state says how far the stages were
walked: a run may go on with another number of ranks, or of tokens in a step.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokmill.errors import InputError, plural
from tokmill.loader.batches import WHOLE, Ahead, Batches, Step, left_out_of, whole_number
from tokmill.loader.dataset import Boundaries, Dataset, Verify, open_dataset
from tokmill.loader.naming import Batch
from tokmill.storage.location import is_url, refuse_squeezed_url

_STATE_VERSION = 1


class StageStep(NamedTuple):
    """Rows start … stop - 1 of a stage, in its order, all ranks together."""

    stage: int
    start: int
    stop: int


class StageRows(NamedTuple):
    """What a stage comes to; `dropped_rows` are those that `drop_last` leaves out."""

    name: str
    length: int
    rows: int
    batch_rows: int
    steps: int
    last_rows: int
    dropped_rows: int


class Curriculum:
    """Iterating gives the rest of all stages. A state taken in the loop is that after the batch.
    With `origins`, numbers count the names of all stages: `curriculum.sources` and `curriculum.domains`."""

    def __init__(
        self,
        stages: Sequence[tuple[str, Dataset]],
        batch_tokens: int,
        seed: int = 0,
        *,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        prefetch: int = 0,
        **collating: Any,
    ) -> None:
        """`collating` are options of `Batches`: mask, targets, dtype, varlen, names, origins, shuffle …"""
        if not stages:
            raise InputError("no stage", where="Curriculum", next="give one, by its name and its dataset")
        batch_tokens, rank = whole_number("batch_tokens", batch_tokens), whole_number("rank", rank)
        world_size = whole_number("world_size", world_size)
        self.names = [name for name, _ in stages]
        self.drop_last, self.prefetch = drop_last, prefetch
        self.rank, self.world_size, self.batch_tokens = rank, world_size, batch_tokens
        self._batch_rows = [_batch_rows(one, batch_tokens, world_size, name) for name, one in stages]
        self.stages = [
            Batches(dataset, max(rows // world_size, 1), seed, rank=rank, world_size=world_size, **collating)
            for (_, dataset), rows in zip(stages, self._batch_rows, strict=True)
        ]
        _check_tokenizers(stages)
        self.stage, self.position = 0, 0
        self.left_out: dict[int, int] = {}  # by stage: of one that ended early, the rows that were taken
        if collating.get("origins"):
            sources, domains = self.sources, self.domains
            for batches in self.stages:
                batches.number_among(sources, domains)

    @property
    def sources(self) -> list[str]:
        """Of all stages together, by their numbers."""
        return sorted({name for batches in self.stages for name in batches.sources})

    @property
    def domains(self) -> list[str]:
        return sorted({name for batches in self.stages for name in batches.domains})

    @property
    def rows(self) -> list[StageRows]:
        """Of each stage."""
        found = []
        for name, batches, of_a_step in zip(self.names, self.stages, self._batch_rows, strict=True):
            rows, length = batches.epoch_samples, batches.datasets[0].facts.seq_len
            rest = rows % of_a_step
            dropped = rest if self.drop_last else 0
            steps = (rows - dropped + of_a_step - 1) // of_a_step
            last = of_a_step if not rest or dropped else rest
            found.append(StageRows(name, length or 0, rows, of_a_step, steps, last if steps else 0, dropped))
        return found

    @property
    def is_over(self) -> bool:
        return self.stage == len(self.stages)

    def __len__(self) -> int:
        """Steps of all stages."""
        return sum(stage.steps for stage in self.rows)

    def __iter__(self) -> Iterator[Batch]:
        for batches in self.stages:
            batches.check_unchanged()
        steps = self.steps(self.stage, self.position)
        made: Any = ((step, self.batch_of(step)) for step in steps)
        for step, batch in Ahead(made, self.prefetch) if self.prefetch else made:
            self.took(step)
            yield batch
        self._begin(len(self.stages))  # of those that are left, none fills a step

    def steps(self, stage: int = 0, position: int = 0) -> Iterator[StageStep]:
        """All that are left from there."""
        for number in range(stage, len(self.stages)):
            end, of_a_step = self.stages[number].epoch_samples, self._batch_rows[number]
            for start in range(position if number == stage else 0, end, of_a_step):
                if start + of_a_step <= end or not self.drop_last:
                    yield StageStep(number, start, min(start + of_a_step, end))

    def batch_of(self, step: StageStep) -> Batch:
        """This rank's part of a step."""
        return self.stages[step.stage].batch_of(Step(0, step.start, step.stop))

    def took(self, step: StageStep) -> None:
        """This step is handed out, and all before it. After the last one of a stage the next is begun."""
        self._begin(step.stage)
        self.position = step.stop
        least = self._batch_rows[step.stage] if self.drop_last else 1
        if step.stop + least > self.stages[step.stage].epoch_samples:
            self._begin(step.stage + 1)

    def _begin(self, stage: int) -> None:
        """Those before it are over, wherever they are."""
        while self.stage < stage:
            if self.position < self.stages[self.stage].epoch_samples:
                self.left_out[self.stage] = self.position
            self.stage, self.position = self.stage + 1, 0

    def identity(self) -> dict[str, Any]:
        """What the order of all rows is a function of."""
        stages = [
            {"name": name, **batches.identity()}
            for name, batches in zip(self.names, self.stages, strict=True)
        ]
        return {"version": _STATE_VERSION, "stages": stages}

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and strings: how far the stages were walked."""
        state = {**self.identity(), "stage": self.stage, "position": self.position}
        left_out = [[stage, taken] for stage, taken in sorted(self.left_out.items())]
        return {**state, "left_out": left_out} if left_out else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there, with the next loop that is begun."""
        for name, mine in self.identity().items():
            if state.get(name) != mine:
                raise InputError(
                    f"{name} are others there than here"
                    if name == "stages"
                    else f"{name} is {state.get(name)}",
                    where="load_state_dict",
                    next="open the curriculum that the state was saved with, with the same seed; ranks and "
                    "the tokens of a step may change",
                )
        stage, position = state.get("stage"), state.get("position")
        rows = [batches.epoch_samples for batches in self.stages] + [0]
        if not isinstance(stage, WHOLE) or not isinstance(position, WHOLE) or not 0 <= stage < len(rows):
            raise InputError(f"stage {stage}, position {position}", where="load_state_dict")
        stage, position = int(stage), int(position)
        if not 0 <= position <= rows[stage]:
            raise InputError(
                f"position {position:,} in a stage of {rows[stage]:,} rows", where="load_state_dict"
            )
        self.left_out = left_out_of(state, rows[:stage])
        self.stage, self.position = stage, position


def open_curriculum(
    path: str | os.PathLike[str],
    build: str | None = None,
    *,
    batch_tokens: int | None = None,
    seed: int = 0,
    tokenizer_sha256: str | None = None,
    eos_id: int | None = None,
    verify: Verify = "sizes",
    boundaries: Boundaries = "eos",
    hooks: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Curriculum:
    """Of the run at `path`, or of one file of its `curriculum/`. `build`: by the name that the recipe has for
    it, where there are several. `batch_tokens`: of a step [default: as the recipe says]. From
    `tokenizer_sha256` to `hooks` they are those of `open_dataset`, for all stages; other `options` are of
    `Curriculum`."""
    if is_url(path):
        raise InputError(
            "the stages of a run are read from a directory",
            where=str(path),
            next=f"fetch it: `tokmill fetch {path} DIR`",
        )
    refuse_squeezed_url(path)
    file = _find(Path(path), build)
    told = json.loads(file.read_text(encoding="utf-8"))
    tokens = batch_tokens or told["batch_tokens"]
    if tokens is None:
        raise InputError(
            "how many tokens a step has is not said",
            where=str(file),
            next="give `batch_tokens`, here or in the mixture of the recipe",
        )
    run, stages = file.parent.parent, []
    for stage in told["stages"]:
        dataset = open_dataset(
            run / stage["directory"],
            told["split"],
            tokenizer_sha256=tokenizer_sha256,
            eos_id=eos_id,
            verify=verify,
            boundaries=boundaries,
            hooks=hooks,
        )
        if (len(dataset), dataset.facts.seq_len) != (stage["rows"], stage["length"]):
            raise InputError(
                f"has {len(dataset):,} rows of {dataset.facts.seq_len}, and the curriculum "
                f"{stage['rows']:,} of {stage['length']}",
                where=str(run / stage["directory"]),
                next="run the recipe again, to its end",
            )
        stages.append((stage["name"], dataset))
    return Curriculum(stages, tokens, seed, **options)


def _find(path: Path, build: str | None) -> Path:
    if path.is_file():
        return path
    folder = path / "curriculum" if (path / "curriculum").is_dir() else path
    found = sorted(folder.glob("*.json"))
    names = [file.stem for file in found if file.name != "manifest.json"]
    if not names:
        raise InputError(
            "has no curriculum",
            where=str(path),
            next="give the directory of a run whose mixture has `stages`",
        )
    if build is None and len(names) == 1:
        return folder / f"{names[0]}.json"
    if build not in names:
        raise InputError(
            f"no build is called {build}" if build is not None else f"has {len(names)} builds of its stages",
            where=str(folder),
            next=f"set build to one of {', '.join(names)}",
        )
    return folder / f"{build}.json"


def _batch_rows(dataset: Dataset, batch_tokens: int, world_size: int, name: str) -> int:
    length = dataset.facts.seq_len
    if length is None:
        raise InputError(
            f"the stage {name} has no rows of one length",
            where=str(dataset.directory),
            next="give builds of rows",
        )
    if batch_tokens < 1 or batch_tokens % length:
        near = max(batch_tokens // length, 1) * length
        raise InputError(
            f"steps of {batch_tokens:,} tokens are no whole rows of {length:,}, as the stage {name} has them",
            where="batch_tokens",
            next=f"give {near:,}, or another multiple of every length",
        )
    rows = batch_tokens // length
    if rows < world_size:
        raise InputError(
            f"a step of the stage {name} has {plural(rows, 'row')}, for {world_size} ranks",
            where="batch_tokens",
            next=f"give {world_size * length:,} or more, or fewer ranks",
        )
    return rows


def _check_tokenizers(stages: Sequence[tuple[str, Dataset]]) -> None:
    """Ids of all stages must mean the same."""
    first = stages[0][1]
    for name, dataset in stages[1:]:
        theirs = dataset.facts.tokenizer_sha256, first.facts.tokenizer_sha256
        if None not in theirs and theirs[0] != theirs[1]:
            raise InputError(
                f"the stage {name} is of another tokenizer than {stages[0][0]}",
                where=str(dataset.directory),
                next="build all stages with one tokenizer",
            )
