"""What was seen where steps leave rows out, in the rows of a stage, and after earlier runs: recounted from
batches, whose rows are found by their tokens, and from index.jsonl.zst."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from click.testing import CliRunner

import tokmill as mill
from mill import small_corpus
from tokmill.cli import main
from tokmill.errors import InputError
from tokmill.loader import Batches, Curriculum, open_curriculum, open_dataset
from written import read_row_index

BUILDS = [{"name": "rows", "format": "memmap"}]
STAGES = [
    {"name": "main", "steps": 8},
    {"name": "long", "steps": 4, "length": 64},
    {"name": "end", "tokens": 1000},
]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = small_corpus(tmp_path_factory.mktemp("plain"), problems=40, builds=BUILDS, pack={"length": 48})
    return mill.run(recipe, workers=1).out


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    mixture = {"batch_tokens": 128, "held_out": "whole", "stages": STAGES}
    recipe = small_corpus(
        tmp_path_factory.mktemp("staged"), builds=BUILDS, pack={"length": 32}, mixture=mixture
    )
    return mill.run(recipe, workers=1).out


class Walked(NamedTuple):
    tokens: int
    whole: int  # documents
    partly: int


def walked(build: Path, batches: list[Any]) -> Walked:
    """Of a build in which no document comes twice."""
    dataset = open_dataset(build, "train")
    known = {tuple(np.asarray(dataset[row]["ids"]).tolist()): row for row in range(len(dataset))}
    assert len(known) == len(dataset), "rows are told apart by their tokens"
    rows = {known[tuple(ids)] for batch in batches for ids in np.asarray(batch["tokens"]).tolist()}
    seen: Counter[str] = Counter()
    built: Counter[str] = Counter()
    for row, spans in read_row_index(build / "train/index.jsonl.zst"):
        for span in spans:
            built[f"{span.source} {span.doc_id}"] += span.end - span.start
            seen[f"{span.source} {span.doc_id}"] += (span.end - span.start) * (row in rows)
    whole = sum(seen[name] == built[name] for name in built)
    return Walked(sum(seen.values()), whole, sum(count > 0 for count in seen.values()) - whole)


def told(found: Any) -> Walked:
    return Walked(found.total.seen, found.total.whole, found.total.partly)


def test_a_state_leaves_out_what_drop_last_did(plain: Path, tmp_path: Path) -> None:
    build = plain / "build/rows"
    loader = Batches(open_dataset(build, "train"), 100, drop_last=True)
    expected = walked(build, list(loader))
    assert loader.epoch == 1
    assert expected.tokens == len(loader) * 100 * 48 < len(open_dataset(build, "train")) * 48
    state = loader.state_dict()
    assert told(mill.seen(build, state=state)) == expected
    assert told(mill.seen(build, step=len(loader), batch_size=100, drop_last=True)) == expected
    (facts,) = mill.report(plain, out=tmp_path, state=state).facts["seen"]
    assert (facts["total"]["seen"], facts["total"]["whole"], facts["total"]["partly"]) == expected
    # a state of before does not say it: the flag does
    before = {name: value for name, value in state.items() if name != "left_out"}
    assert told(mill.seen(build, state=before)).tokens == len(open_dataset(build, "train")) * 48
    assert told(mill.seen(build, state=before, batch_size=100, drop_last=True)) == expected
    # and no step is told in which it was not
    rows = {loader.sample(0, at)[1] for at in range(len(loader) * 100)}
    index = dict(read_row_index(build / "train/index.jsonl.zst"))
    left_out = next(row for row in index if row not in rows)
    doc_id = index[left_out][0].doc_id
    met = mill.seen(build, state=state, doc_id=doc_id).meetings
    assert met is not None
    assert {one.row for one in met if one.epoch == 0} == {
        row for row in rows if any(span.doc_id == doc_id for span in index[row])
    }


def test_stages_leave_out_what_drop_last_did(staged: Path, tmp_path: Path) -> None:
    curriculum = open_curriculum(staged, batch_tokens=576, seed=1, drop_last=True)
    batches = [(curriculum.names[step.stage], curriculum.batch_of(step)) for step in curriculum.steps()]
    assert len(list(curriculum)) == len(batches)
    state = json.loads(json.dumps(curriculum.state_dict()))
    facts = mill.report(staged, out=tmp_path, state=state).facts["seen"]
    left_out = 0
    for name, one in zip(curriculum.names, facts, strict=True):
        build = staged / f"build/rows-{name}"
        expected = walked(build, [batch for stage, batch in batches if stage == name])
        assert told(mill.seen(build, state=state)) == expected
        assert (one["total"]["seen"], one["total"]["whole"], one["total"]["partly"]) == expected
        dataset = open_dataset(build, "train")
        left_out += len(dataset) * (dataset.facts.seq_len or 0) - expected.tokens
    assert left_out > 0


def test_steps_of_a_stage_end_with_it(staged: Path) -> None:
    build = staged / "build/rows-long"
    rows = len(open_dataset(build, "train"))
    assert rows == 8
    whole = mill.seen(build, step=4, batch_size=2)
    assert (whole.stage, whole.total.seen, whole.total.tokens) == ("long", rows * 64, rows * 64)
    with pytest.raises(InputError, match="5 is after the end of the stage long, which has 4 steps of 2 rows"):
        mill.seen(build, step=5, batch_size=2)
    curriculum = open_curriculum(staged, seed=1)
    for at, _ in enumerate(curriculum):
        if at == 9:  # two steps into the stage
            break
    state = curriculum.state_dict()
    with pytest.raises(InputError, match="4 is after the end of the stage long"):
        mill.seen(build, state=state, batch_size=2, batch=4)
    last = mill.seen(build, state=state, batch_size=2, batch=3)
    assert (last.stage, last.step, last.epoch) == ("long", 2, 0)
    shown = CliRunner().invoke(
        main, ["seen", str(build), "--step", "1", "--batch-size", "2", "--doc-id", "problem-00003"]
    )
    assert "before step 1, sample 2 of 8 of the stage long" in shown.output
    assert "epoch 1" not in shown.output
    met = mill.seen(build, step=4, batch_size=2, doc_id="problem-00003").meetings
    assert met is not None
    assert all(one.is_seen and one.epoch == 0 for one in met)
    ended = CliRunner().invoke(main, ["seen", str(build), "--step", "4", "--batch-size", "2"])
    assert "after the end of the stage long" in ended.output


def test_a_build_of_two_stages_is_told_by_the_one_that_is_named(staged: Path, tmp_path: Path) -> None:
    build = staged / "build/rows-main"
    dataset = open_dataset(build, "train")
    curriculum = Curriculum([("first", dataset), ("again", dataset)], 128, seed=2)
    batches = []
    for batch in curriculum:
        batches.append(batch)
        if len(batches) == 11:  # eight of the first, three of the next
            break
    state = curriculum.state_dict()
    with pytest.raises(InputError, match="2 of its stages are this build: first, again"):
        mill.seen(build, state=state)
    first = mill.seen(build, state=state, stage="first")
    again = mill.seen(build, state=state, stage="again")
    assert told(first) == walked(build, batches[:8])
    assert told(again) == walked(build, batches[8:])
    facts = mill.report(staged, out=tmp_path, state=state).facts["seen"]
    assert [one["total"]["seen"] for one in facts] == [first.total.seen, again.total.seen]
    with pytest.raises(InputError, match="no stage of this build is called 'third'"):
        mill.seen(build, state=state, stage="third")
    with pytest.raises(InputError, match="without a state of several"):
        mill.seen(build, step=1, batch_size=2, stage="first")


def test_what_earlier_runs_saw_is_said_and_not_counted(plain: Path, tmp_path: Path) -> None:
    build, out = plain / "build/rows", tmp_path / "rest"
    loader = Batches(open_dataset(build, "train"), 4, seed=1)
    trained = 0
    for at, batch in enumerate(loader):
        trained += batch["tokens"].size
        if at == 20:
            break
    recipe = small_corpus(tmp_path / "new", builds=BUILDS, pack={"length": 48}, mixture={"tokens": 6000})
    mill.continue_(build, at=loader.state_dict(), recipe=recipe, out=out, workers=1)
    rest = out / "build/rows"
    found = mill.seen(rest, step=2, batch_size=4)
    assert (found.earlier_tokens, found.total.seen) == (trained, 2 * 4 * 48)
    assert found.as_json()["earlier_tokens"] == trained
    assert mill.seen(build, step=2, batch_size=4).earlier_tokens == 0
    shown = CliRunner().invoke(main, ["seen", str(rest), "--step", "0", "--batch-size", "4"])
    assert f"after {trained:,} tokens of earlier runs, which are not counted here" in shown.output
    state = Batches(open_dataset(rest, "train"), 4).state_dict()
    made = mill.report(out, out=tmp_path / "page", state=state)
    assert made.facts["seen"][0]["earlier_tokens"] == trained
    assert f"Earlier runs had {trained:,} tokens" in made.page.read_text()


def test_a_source_that_is_not_there_is_told(plain: Path) -> None:
    build = plain / "build/rows"
    with pytest.raises(InputError, match="no source is called 'nope'"):
        mill.seen(build, step=1, batch_size=2, doc_id="problem-00003", source="nope")
    with pytest.raises(InputError, match="no source is called 'nope'"):
        mill.seen(build, step=1, batch_size=2, text="the", source="nope")
    with pytest.raises(InputError, match="no document of the source notes is called 'problem-00003'"):
        mill.seen(build, step=1, batch_size=2, doc_id="problem-00003", source="notes")
    with pytest.raises(InputError, match="no document is called 'nobody'"):
        mill.seen(build, step=1, batch_size=2, doc_id="nobody", source="notes")
    with pytest.raises(InputError, match="which document or text is meant"):
        mill.seen(build, step=1, batch_size=2, source="problems")
