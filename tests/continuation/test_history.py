"""What a history is made of, against index.jsonl.zst and the samples of the loader: states of a curriculum,
which are of several builds, and runs of which one is the rest of another."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import tokmill as mill
from continuation.rests import Key, recipe_of, written
from mill import write_problems
from recount import read_index
from tokmill.errors import InputError
from tokmill.loader import Batches, open_curriculum, open_dataset
from tokmill.loader.curriculum import Curriculum

Had = dict[Key, list[int]]  # whole passes, whether partly once more, tokens

STAGES = [
    {"name": "main", "steps": 8},
    {"name": "long", "steps": 4, "length": 96},
    {"name": "anneal", "tokens": 1000, "weights": {"web": "0.3", "math": "0.7"}},
]
EVEN = {"web": "0.5", "math": "0.5"}


def recipe_at(directory: Path, name: str, **sections: Any) -> Path:
    rows = [{"name": "rows", "format": "memmap"}]
    return written(directory, name, recipe_of("web", "math", **{"name": name, "builds": rows, **sections}))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`old`, and `staged`, which has three stages."""
    directory = tmp_path_factory.mktemp("history")
    for number, name in enumerate(("web", "math")):
        write_problems(directory / f"{name}.jsonl", 40, seed=number + 1)
    mill.run(recipe_at(directory, "old"), directory / "old", workers=1)
    staged = {"weights": EVEN, "held_out": "whole", "batch_tokens": 192, "stages": STAGES}
    mill.run(recipe_at(directory, "staged", mixture=staged), directory / "staged", workers=1)
    return directory


# -- by hand ---------------------------------------------------------------------------------------


def turns_in(build: Path) -> Iterator[tuple[Key, list[tuple[int, int]]]]:
    """Of each document, each time that it is built: its rows, and its tokens there."""
    last, pieces = None, []
    for row, spans in enumerate(read_index(build / "train/index.jsonl.zst")):
        for source, doc_id, start, end, offset in spans:
            if last is not None and ((source, doc_id) != last or offset == 0):
                yield last, pieces
                pieces = []
            last = (source, doc_id)
            pieces.append((row, end - start))
    if last is not None:
        yield last, pieces


def had_of(build: Path, times: Counter[int]) -> Had:
    found: Had = {}
    for key, pieces in turns_in(build):
        often = [times[row] for row, tokens in pieces if tokens]
        if any(often):
            one = found.setdefault(key, [0, 0, 0])
            one[0] += min(often)
            one[1] |= max(often) > min(often)
            one[2] += sum(times[row] * tokens for row, tokens in pieces)
    return found


def summed(parts: Iterable[Had]) -> Had:
    found: Had = {}
    for part in parts:
        for key, (passes, partly, tokens) in part.items():
            one = found.setdefault(key, [0, 0, 0])
            found[key] = [one[0] + passes, one[1] | partly, one[2] + tokens]
    return found


def table_of(run: Path) -> dict[tuple[str, int], list[int]]:
    return {
        (line["source"], line["id"]): [line["passes"], int(line["partly"]), line["tokens"]]
        for line in pq.read_table(run / "seen.parquet").to_pylist()
    }


def hashed(had: Had) -> dict[tuple[str, int], list[int]]:
    return {
        (source, int.from_bytes(hashlib.sha256(doc_id.encode()).digest()[:8], "big")): one
        for (source, doc_id), one in had.items()
    }


def walked(curriculum: Curriculum, builds: list[Path], steps: int) -> Had:
    """The first steps of all stages, sample by sample. The curriculum stands there then."""
    times = [Counter[int]() for _ in builds]
    for number, step in enumerate(curriculum.steps()):
        if number == steps:
            break
        for sample in range(step.start, step.stop):
            times[step.stage][curriculum.stages[step.stage].sample(0, sample)[1]] += 1
        curriculum.took(step)
    return summed(map(had_of, builds, times))


def in_order(run: Path, had: Had) -> bool:
    """Whether no document of a source comes before one of it that was not seen at all, and is to come."""
    order = [key for key, _ in turns_in(run / "build/rows")]
    for source in {key[0] for key in order}:
        is_seen = [key in had for key in order if key[0] == source]
        unseen_after = [not one for one in is_seen[is_seen.index(True) :]] if True in is_seen else []
        if any(unseen_after):
            return False
    return True


# -- states of a curriculum ------------------------------------------------------------------------


LONGER = {"weights": EVEN, "tokens": 9000}


@pytest.mark.parametrize("steps", [3, 8, 10, 14])
def test_a_state_of_stages_is_of_all_stages_that_were_walked(place: Path, tmp_path: Path, steps: int) -> None:
    builds = [place / f"staged/build/rows-{stage['name']}" for stage in STAGES]
    curriculum = open_curriculum(place / "staged", seed=1)
    had = walked(curriculum, builds, steps)
    state = curriculum.state_dict()
    recipe = recipe_at(place, "longer", mixture=LONGER)
    numbers = {"stage": np.int64(state["stage"]), "position": np.int64(state["position"])}
    # one build stands for the others, which lie beside it; or all are given
    for number, given in enumerate([builds[min(state["stage"], 2)], builds[: state["stage"] + 1]]):
        at = {**state, **numbers} if number else state
        made = mill.continue_(given, recipe=recipe, out=tmp_path / str(number), at=at, workers=1)
        assert table_of(made.run.out) == hashed(had)
        assert made.continues.tokens == sum(tokens for *_, tokens in had.values())
        assert [one.build for one in made.continues.builds] == [
            f"build/rows-{stage['name']}" for stage in STAGES[: state["stage"] + 1]
        ]
        assert in_order(made.run.out, had)
        assert mill.verify(made.run.out).problems == []


def test_what_the_last_step_of_a_stage_left_out_was_not_seen(place: Path, tmp_path: Path) -> None:
    builds = [place / f"staged/build/rows-{stage['name']}" for stage in STAGES]
    curriculum = open_curriculum(place / "staged", batch_tokens=480, drop_last=True)
    had = walked(curriculum, builds, len(curriculum) - 1)
    rows = [len(open_dataset(one, "train")) for one in builds]
    assert [count % of_a_step for count, of_a_step in zip(rows, (10, 5, 10), strict=True)] != [0, 0, 0]
    recipe = recipe_at(place, "longer", mixture=LONGER)
    out, state = tmp_path / "rest", curriculum.state_dict()
    mill.continue_(builds[2], recipe=recipe, out=out, at=state, workers=1)
    assert table_of(out) == hashed(had)


def test_a_curriculum_by_hand_counts_builds_of_several_runs(place: Path, tmp_path: Path) -> None:
    builds = [place / "old/build/rows", place / "staged/build/rows-long"]
    curriculum = Curriculum(
        [(str(number), open_dataset(one, "train")) for number, one in enumerate(builds)], 192, seed=2
    )
    had = walked(curriculum, builds, len(curriculum) - 2)
    recipe = recipe_at(place, "further", mixture={**LONGER, "tokens": 40000, "exhausted": "repeat"})
    out = tmp_path / "rest"
    mill.continue_(builds[::-1], recipe=recipe, out=out, at=curriculum.state_dict(), workers=1)
    assert table_of(out) == hashed(had)
    with pytest.raises(InputError, match="stage 0 was trained on before, and its build is not here"):
        mill.continue_(builds[1], recipe=recipe, out=out, at=curriculum.state_dict(), workers=1)


def test_a_stage_whose_build_is_not_there_is_told(place: Path, tmp_path: Path) -> None:
    run = tmp_path / "staged"
    shutil.copytree(place / "staged", run)
    curriculum = open_curriculum(run, seed=1)
    walked(curriculum, [run / f"build/rows-{stage['name']}" for stage in STAGES], 10)
    state, recipe = curriculum.state_dict(), recipe_at(place, "longer", mixture=LONGER)
    shutil.rmtree(run / "build/rows-main")
    with pytest.raises(InputError, match="stage main was trained on before, and its build is not here"):
        mill.continue_(run / "build/rows-long", recipe=recipe, out=tmp_path / "rest", at=state, workers=1)
    with pytest.raises(InputError, match="is of none of the stages"):
        mill.continue_(place / "old/build/rows", recipe=recipe, out=tmp_path / "rest", at=state, workers=1)
    with pytest.raises(InputError, match="last steps of stages"):
        mill.continue_(
            place / "staged/build/rows-long", recipe=recipe, out=tmp_path / "rest", at=state, workers=1,
            drop_last=True, batch_size=4,
        )  # fmt: skip
    assert not (tmp_path / "rest").exists()


@pytest.mark.parametrize("told", ["step", "state"])
def test_the_build_of_a_stage_is_of_those_before_it_too(place: Path, tmp_path: Path, told: str) -> None:
    """By a step, or by the state of a loader that knows of no stages."""
    builds = [place / f"staged/build/rows-{stage['name']}" for stage in STAGES]
    loader = Batches(open_dataset(builds[1], "train"), 2, 5)
    loader.position = 6
    own = [Counter(range(len(open_dataset(builds[0], "train")))), Counter[int]()]
    own[1].update(loader.sample(0, number)[1] for number in range(6))
    had = summed(map(had_of, builds, own))
    recipe, out = recipe_at(place, "longer", mixture=LONGER), tmp_path / "rest"
    asked: dict[str, Any] = {"step": 3, "batch_size": 2, "seed": 5}
    asked = asked if told == "step" else {"at": loader.state_dict()}
    made = mill.continue_(builds[1], recipe=recipe, out=out, workers=1, **asked)
    assert table_of(out) == hashed(had)
    assert [one.build for one in made.continues.builds] == ["build/rows-main", "build/rows-long"]
    with pytest.raises(InputError, match="last steps of stages"):
        mill.continue_(
            builds[1], recipe=recipe, out=tmp_path / "none", workers=1, drop_last=True,
            **{"batch_size": 2, **asked},
        )  # fmt: skip


# -- histories of which one is in another ----------------------------------------------------------


def handed_out(batches: Batches, samples: int) -> list[Counter[int]]:
    found = [Counter[int]() for _ in batches.datasets]
    for number in range(samples):
        dataset, row = batches.sample(*divmod(number, batches.epoch_samples))
        found[dataset][row] += 1
    batches.epoch, batches.position = divmod(samples, batches.epoch_samples)
    return found


def gone_on(
    place: Path, runs: list[str], samples: int, out: Path, **sections: Any
) -> tuple[Had, dict[Any, Any]]:
    """The rest of a loader of these runs; what it handed out, and the table."""
    builds = [place / run / "build/rows" for run in runs]
    weights = [1] * len(builds) if len(builds) > 1 else None
    batches = Batches([open_dataset(one, "train") for one in builds], 1, 0, weights=weights)
    had = summed(map(had_of, builds, handed_out(batches, samples)))
    recipe = recipe_at(place, "chain", mixture={"tokens": 60000, "exhausted": "repeat"}, **sections)
    mill.continue_(builds, recipe=recipe, out=out, at=batches.state_dict(), weights=weights, workers=1)
    return had, table_of(out)


def test_what_is_in_two_histories_is_counted_once(place: Path) -> None:
    """`first` is a rest of `old`, `second` of `first`, `third` of `second`."""
    one, _ = gone_on(place, ["old"], 80, place / "first")
    two, _ = gone_on(place, ["first"], 20, place / "second")
    three, table = gone_on(place, ["second"], 30, place / "third")
    assert table == hashed(summed([one, two, three]))
    for number, others in enumerate((["first", "second"], ["third", "first"], ["third", "second", "first"])):
        before = [one, two] if "third" not in others else [one, two, three]
        own, table = gone_on(place, others, 12, place / f"mixed{number}")
        assert table == hashed(summed([*before, own]))
        builds = [place / run / "build/rows" for run in others]
        told = mill.seen(builds, step=0, batch_size=1, weights=[1] * len(builds))
        assert told.earlier_tokens == sum(tokens for *_, tokens in summed(before).values())
    assert mill.verify(place / "mixed2").problems == []


def test_a_rest_that_went_on_at_once_keeps_what_was_seen(place: Path) -> None:
    """Its table is the one of the run before it, to the byte."""
    one, first = gone_on(place, ["old"], 80, place / "begun")
    _, second = gone_on(place, ["begun"], 0, place / "at_once")
    assert first == second == hashed(one)
    two, table = gone_on(place, ["at_once"], 10, place / "later")
    assert table == hashed(summed([one, two]))


def test_histories_that_share_a_part_are_refused(place: Path) -> None:
    """Of each the part is there, and no more is known of it."""
    gone_on(place, ["old"], 40, place / "left")
    gone_on(place, ["old"], 60, place / "right")
    with pytest.raises(InputError, match="both count what was seen of build/rows"):
        gone_on(place, ["left", "right"], 12, place / "both")
    gone_on(place, ["left"], 10, place / "further_left")
    with pytest.raises(InputError, match="both count what was seen of build/rows"):
        gone_on(place, ["further_left", "right"], 12, place / "both")
    assert not (place / "both").exists()


# -- words -----------------------------------------------------------------------------------------


def test_weights_of_a_stage_are_warned_of_by_their_place(
    place: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stages = [
        {"name": "main", "tokens": 1000},
        {"name": "late", "tokens": 1000, "weights": {"web": 3, "math": 7}, "sources": {"web": {"web": 2}}},
    ]
    mixture = {"weights": EVEN, "held_out": "whole", "stages": stages}
    with caplog.at_level(logging.WARNING):
        mill.plan(recipe_at(place, "late", mixture=mixture), tmp_path / "late")
    said = [record.getMessage() for record in caplog.records if "add up to" in record.getMessage()]
    assert [one.partition(": ")[0] for one in said] == [
        "mixture.stages[1].weights",
        "mixture.stages[1].sources.web",
    ]
