"""Stages are walked one after the other, every row once: whatever cuts the steps, after any stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.errors import InputError, MissingExtra, TokmillError
from tokmill.loader import Batches, Curriculum, open_curriculum, open_dataset
from written import write_rows

META = {"tokenizer_sha256": "ab" * 32, "eos_id": 2, "pad_id": None, "vocab_size": 5000, "split": "train"}
STAGES = (("main", 8, 37), ("long", 16, 11), ("anneal", 4, 50))  # name, length, rows
BATCH_TOKENS = 128  # 16, 8 and 32 rows: 3, 2 and 2 steps, each with a remainder


def write_run(home: Path, batch_tokens: int | None = BATCH_TOKENS) -> Path:
    """Rows whose first id is their number in all stages, and what the run says of them."""
    told, first = [], 3
    for name, length, rows in STAGES:
        ids = np.full((rows, length), 2)
        ids[:, 0] = first + np.arange(rows)
        write_rows(home / f"build/rows-{name}/train", ids, "int32", {**META, "layout": "concat"})
        told.append({"name": name, "directory": f"build/rows-{name}", "length": length, "rows": rows})
        first += rows
    (home / "curriculum").mkdir()
    schedule = {"version": 1, "build": "rows", "split": "train", "batch_tokens": batch_tokens, "stages": told}
    (home / "curriculum/rows.json").write_text(json.dumps(schedule))
    (home / "curriculum/manifest.json").write_text("{}")
    return home


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("run"))


def numbers(batch: Any) -> list[int]:
    return [int(number) - 3 for number in batch["tokens"][:, 0]]


def slow_stream(run: Path, seed: int) -> list[list[int]]:
    """By stage, its rows in the order of one loader that takes one at a time."""
    found, first = [], 0
    for name, _, rows in STAGES:
        batches = Batches(open_dataset(run / f"build/rows-{name}"), 1, seed)
        own = [numbers(batch)[0] for batch in batches]
        assert sorted(own) == list(range(first, first + rows))
        found.append(own)
        first += rows
    return found


def slow_steps(stream: list[list[int]], batch_tokens: int, drop_last: bool = False) -> list[list[int]]:
    steps = []
    for (_, length, _), rows in zip(STAGES, stream, strict=True):
        size = batch_tokens // length
        cut = [rows[at : at + size] for at in range(0, len(rows), size)]
        steps += [step for step in cut if len(step) == size or not drop_last]
    return steps


def walk(run: Path, state: dict[str, Any] | None, world_size: int, steps: int | None, **options: Any) -> Any:
    """Of all ranks: the rows of each step, and the state after the last."""
    found: list[list[int]] = []
    states = []
    for rank in range(world_size):
        curriculum = open_curriculum(run, rank=rank, world_size=world_size, **options)
        if state is not None:
            curriculum.load_state_dict(state)
        if steps != 0:
            for at, batch in enumerate(curriculum):
                if rank == 0:
                    found.append([])
                found[at] += numbers(batch)
                if at + 1 == steps:
                    break
        states.append(json.loads(json.dumps(curriculum.state_dict())))
    assert all(one == states[0] for one in states), "ranks are at one place"
    return found, states[0]


@given(
    seed=st.integers(0, 3),
    parts=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 8)), min_size=1, max_size=5),
    drop_last=st.booleans(),
)
@settings(deadline=None, max_examples=25)
def test_any_ranks_stopped_anywhere_take_what_one_would(
    run: Path, seed: int, parts: list[tuple[int, int]], drop_last: bool
) -> None:
    expected = slow_steps(slow_stream(run, seed), BATCH_TOKENS, drop_last)
    found: list[list[int]] = []
    state = None
    for steps, world_size in parts:
        more, state = walk(run, state, world_size, steps, seed=seed, drop_last=drop_last)
        found += more
    more, state = walk(run, state, 2, None, seed=seed, drop_last=drop_last)
    assert found + more == expected
    assert state["stage"] == len(STAGES)
    assert walk(run, state, 3, None, seed=seed, drop_last=drop_last)[0] == []


@given(
    seed=st.integers(0, 3),
    parts=st.lists(st.tuples(st.integers(1, 3), st.sampled_from([16, 32, 64, 128])), max_size=6),
)
@settings(deadline=None, max_examples=15)
def test_with_other_steps_every_row_still_comes_once_in_the_same_order(
    run: Path, seed: int, parts: list[tuple[int, int]]
) -> None:
    found: list[int] = []
    state = None
    for steps, batch_tokens in parts:
        more, state = walk(run, state, 1, steps, seed=seed, batch_tokens=batch_tokens)
        found += [number for step in more for number in step]
    more, _ = walk(run, state, 1, None, seed=seed)
    found += [number for step in more for number in step]
    assert found == [number for stage in slow_stream(run, seed) for number in stage]


@given(
    parts=st.lists(
        st.tuples(st.booleans(), st.sampled_from([16, 48, 80, 128, 560]), st.integers(1, 9)), max_size=8
    )
)
@settings(deadline=None, max_examples=25)
def test_a_state_tells_the_rows_that_drop_last_left_out_of_each_stage(
    run: Path, parts: list[tuple[bool, int, int]]
) -> None:
    found: list[int] = []
    state = None
    for drop_last, batch_tokens, steps in [*parts, (True, 128, 100)]:
        more, state = walk(run, state, 1, steps, seed=1, batch_tokens=batch_tokens, drop_last=drop_last)
        found += [number for step in more for number in step]
    assert state is not None
    assert state["stage"] == len(STAGES)
    left_out = dict(state.get("left_out", []))
    stream = slow_stream(run, 1)
    assert found == [n for number, stage in enumerate(stream) for n in stage[: left_out.get(number)]]
    again = open_curriculum(run, seed=1)
    again.load_state_dict(state)
    assert again.state_dict() == state


def test_a_state_of_before_has_no_rows_left_out(run: Path) -> None:
    whole, cut = (walk(run, None, 1, None, drop_last=drop_last)[1] for drop_last in (False, True))
    assert "left_out" not in whole
    assert cut == {**whole, "left_out": [[0, 32], [1, 8], [2, 32]]}
    curriculum = open_curriculum(run, drop_last=True)
    curriculum.load_state_dict(whole)
    assert curriculum.is_over
    for damaged in ([[3, 1]], [[0, 37]], "no"):
        with pytest.raises(InputError, match="left out"):
            curriculum.load_state_dict({**whole, "left_out": damaged})


def test_a_stage_says_what_it_comes_to(run: Path) -> None:
    whole, cut = open_curriculum(run), open_curriculum(run, drop_last=True)
    assert [tuple(stage) for stage in whole.rows] == [
        ("main", 8, 37, 16, 3, 5, 0),
        ("long", 16, 11, 8, 2, 3, 0),
        ("anneal", 4, 50, 32, 2, 18, 0),
    ]
    assert [(stage.steps, stage.last_rows, stage.dropped_rows) for stage in cut.rows] == [
        (2, 16, 5),
        (1, 8, 3),
        (1, 32, 18),
    ]
    for curriculum in (whole, cut):
        shapes = [batch["tokens"].shape for batch in curriculum]
        assert len(shapes) == len(curriculum)
        assert sum(rows for rows, _ in shapes) == 98 - sum(stage.dropped_rows for stage in curriculum.rows)
        assert curriculum.is_over
    assert {rows * length for rows, length in shapes} == {BATCH_TOKENS}


def test_batches_made_ahead_are_the_same(run: Path) -> None:
    assert walk(run, None, 1, None, prefetch=3) == walk(run, None, 1, None)


def test_numbers_of_numpy_make_a_state_that_is_json(run: Path) -> None:
    numbered: Any = {"batch_tokens": np.int64(BATCH_TOKENS), "seed": np.int64(1), "rank": np.int64(0)}
    curriculum = open_curriculum(run, **numbered, world_size=np.int64(1))
    next(iter(curriculum))
    state = curriculum.state_dict()
    again = open_curriculum(run, seed=1)
    again.load_state_dict(json.loads(json.dumps(state)))
    expected = slow_steps(slow_stream(run, 1), BATCH_TOKENS)
    assert [numbers(batch) for batch in again] == expected[1:]
    places = {"stage": np.int64(state["stage"]), "position": np.int32(state["position"])}
    again.load_state_dict({**state, **places})
    assert json.loads(json.dumps(again.state_dict())) == state
    assert [numbers(batch) for batch in again] == expected[1:]


def test_a_state_of_another_order_is_refused(run: Path) -> None:
    state = open_curriculum(run, seed=1).state_dict()
    with pytest.raises(InputError, match="stages are others"):
        open_curriculum(run, seed=2).load_state_dict(state)
    with pytest.raises(InputError, match="stage 4, position 0"):
        open_curriculum(run, seed=1).load_state_dict({**state, "stage": 4})
    with pytest.raises(InputError, match="position 38 in a stage of 37 rows"):
        open_curriculum(run, seed=1).load_state_dict({**state, "position": 38})


def test_steps_that_cannot_be_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no whole rows of 16, as the stage long"):
        open_curriculum(run, batch_tokens=24)
    with pytest.raises(InputError, match="the stage long has 1 row, for 2 ranks"):
        open_curriculum(run, batch_tokens=16, world_size=2)
    unsaid = write_run(tmp_path / "unsaid", batch_tokens=None)
    with pytest.raises(InputError, match="how many tokens a step has"):
        open_curriculum(unsaid)
    assert len(open_curriculum(unsaid, batch_tokens=BATCH_TOKENS)) == 7
    with pytest.raises(InputError, match="no stage"):
        Curriculum([], 8)


def test_what_is_no_curriculum_is_told(run: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no curriculum"):
        open_curriculum(run / "build")
    with pytest.raises(InputError, match="no build is called cuts"):
        open_curriculum(run, "cuts")
    assert len(open_curriculum(run / "curriculum/rows.json")) == len(open_curriculum(run / "curriculum")) == 7
    damaged = write_run(tmp_path / "damaged")
    told = json.loads((damaged / "curriculum/rows.json").read_text())
    told["stages"][1]["rows"] = 12
    (damaged / "curriculum/rows.json").write_text(json.dumps(told))
    with pytest.raises(InputError, match="has 11 rows of 16, and the curriculum 12 of 16"):
        open_curriculum(damaged)
    (damaged / "curriculum/two.json").write_text("{}")
    with pytest.raises(InputError, match="has 2 builds of its stages"):
        open_curriculum(damaged)


def test_a_url_is_told_as_it_was_given() -> None:
    with pytest.raises(InputError) as error:
        open_curriculum("s3://bucket/run")
    assert error.value.where == "s3://bucket/run"
    assert "tokmill fetch s3://bucket/run" in error.value.next
    with pytest.raises(TokmillError, match="give the URL as a string"):
        open_curriculum(Path("s3://bucket/run"))


def test_tensors_are_fed_by_one_process(run: Path) -> None:
    pytest.importorskip("torch")
    try:
        from tokmill.loader.torch import Feed
    except MissingExtra:
        pytest.skip("PyTorch is not installed")
    found = [numbers(batch) for batch in Feed(open_curriculum(run))]
    assert found == walk(run, None, 1, None)[0]
    with pytest.raises(InputError, match="read by one process"):
        Feed(open_curriculum(run), 2)
