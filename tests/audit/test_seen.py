"""What a model has seen, against a replay: the loader hands out every batch, and index.jsonl.zst, which the
code under test does not read for its counts, says whose every token is."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backports import zstd
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import tokmill as mill
from mill import small_corpus
from tokmill.cli import main
from tokmill.errors import InputError
from tokmill.loader import Batches, Bucketing, open_dataset

BUILDS = [
    {"name": "concat", "format": "memmap", "pack": {"layout": "concat", "length": 48, "tail": "drop"}},
    {"name": "fit", "format": "npy", "pack": {"layout": "best_fit", "length": 48, "mix_domains": True}},
    {"name": "padded", "format": "parquet", "pack": {"layout": "pad", "length": 200}},
    {"name": "mega", "format": "megatron"},
    {"name": "cache", "format": "token_cache"},
    {"name": "math", "format": "megatron", "sources": ["problems"]},
]
MIXTURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "repeated": {
        "mixture": {"weights": {"math": "0.85", "prose": "0.15"}, "tokens": 2500, "exhausted": "repeat"}
    },
}


@pytest.fixture(scope="module", params=MIXTURES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = small_corpus(
        tmp_path_factory.mktemp("seen"), problems=40, builds=BUILDS, **MIXTURES[request.param]
    )
    return mill.run(recipe, workers=1).out


def documents_of_rows(build: Path, rows: int) -> list[list[dict[str, Any]]]:
    """By the lines of the index. Of a cache it goes through all splits, train first."""
    own = build / "train" / "index.jsonl.zst"
    path = own if own.exists() else build / "index.jsonl.zst"
    with zstd.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line)["docs"] for line in lines][:rows]


def replayed(batches: Batches, steps: int) -> list[list[tuple[int, int]]]:
    """(dataset, row) of the samples of each step of all ranks, walked one by one."""
    found: list[list[tuple[int, int]]] = []
    epoch = 0
    while len(found) < steps:
        for step in batches.steps(epoch, 0):
            found.append([batches.sample(epoch, number) for number in range(step.start, step.stop)])
        epoch += 1
    return found[:steps]


class Told:
    """Counted token by token."""

    def __init__(self, rows: list[tuple[int, int]], indexes: list[list[list[dict[str, Any]]]]) -> None:
        self.seen: Counter[str] = Counter()
        tokens: Counter[tuple[str, str, int, int, int]] = Counter()
        for dataset, row in rows:
            for span in indexes[dataset][row]:
                self.seen[span["source"]] += span["end"] - span["start"]
                for column in range(span["start"], span["end"]):
                    tokens[span["source"], span["doc_id"], dataset, row, column] += 1
        self.built: Counter[str] = Counter()
        self.new: Counter[str] = Counter()
        times: dict[tuple[int, str, str], list[int]] = defaultdict(list)
        for dataset, index in enumerate(indexes):
            for row, spans in enumerate(index):
                for span in spans:
                    self.built[span["source"]] += span["end"] - span["start"]
                    for column in range(span["start"], span["end"]):
                        often = tokens[span["source"], span["doc_id"], dataset, row, column]
                        self.new[span["source"]] += often > 0
                        times[dataset, span["source"], span["doc_id"]].append(often)
        self.times = times

    def documents(self, source: str) -> tuple[int, int, int]:
        """Whole, partly, not seen: right where a document has one turn."""
        own = [often for (_, name, _), often in self.times.items() if name == source]
        whole = sum(min(often) > 0 for often in own)
        unseen = sum(max(often) == 0 for often in own)
        return whole, len(own) - whole - unseen, unseen


def check(found: Any, told: Told, is_repeated: bool) -> None:
    groups = {group.name: group for group in found.groups}
    assert set(groups) == set(told.built)
    for name, group in groups.items():
        assert (group.tokens, group.seen, group.new) == (told.built[name], told.seen[name], told.new[name])
        assert group.epochs == pytest.approx(told.seen[name] / told.built[name])
        if not is_repeated:
            assert (group.whole, group.partly, group.unseen) == told.documents(name)
        assert group.whole + group.partly + group.unseen == sum(source == name for _, source, _ in told.times)
    assert found.total.seen == sum(told.seen.values())
    assert sum(found.passes.values()) == len(told.times)


@given(data=st.data())
@settings(deadline=None, max_examples=40)
def test_counts_are_those_of_a_replay(run: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([build["name"] for build in BUILDS]))
    batch_size, world_size = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 8))
    seed, shuffle = data.draw(st.integers(0, 3)), data.draw(st.sampled_from(["epoch", "none"]))
    drop_last = data.draw(st.booleans())
    bucketing = data.draw(st.sampled_from([None, (8, 4)]))
    dataset = open_dataset(run / "build" / str(name), "train")
    if drop_last and batch_size * world_size > len(dataset):
        drop_last = False
    batches = Batches(
        dataset, batch_size, seed, shuffle=shuffle, world_size=world_size, drop_last=drop_last,
        bucketing=bucketing and Bucketing(*bucketing),
    )  # fmt: skip
    steps = data.draw(st.integers(0, 3 * len(batches)))
    walked = replayed(batches, steps)
    index = documents_of_rows(run / "build" / str(name), len(dataset))
    found = mill.seen(
        run / "build" / str(name), step=steps, batch_size=batch_size, world_size=world_size, seed=seed,
        shuffle=shuffle, drop_last=drop_last, split="train", bucketing=bucketing,
    )  # fmt: skip
    is_repeated = any(count > 1 for count in turns_of(index).values())
    told = Told([sample for step in walked for sample in step], [index])
    check(found, told, is_repeated)


def turns_of(index: list[list[dict[str, Any]]]) -> Counter[tuple[str, str]]:
    """How often each document begins."""
    return Counter((span["source"], span["doc_id"]) for row in index for span in row if span["offset"] == 0)


@given(data=st.data())
@settings(deadline=None, max_examples=15)
def test_a_state_of_several_builds_with_buckets_after_a_change_of_ranks(
    run: Path, data: st.DataObject
) -> None:
    names = ("mega", "math")
    datasets = [open_dataset(run / "build" / name, "train") for name in names]
    bucketing = data.draw(st.sampled_from([None, Bucketing(8, 4)]))
    rows: list[tuple[int, int]] = []
    state: dict[str, Any] | None = None
    for _ in range(data.draw(st.integers(1, 4))):
        batches = Batches(
            datasets, data.draw(st.integers(1, 5)), 3, weights=[2, "1"], bucketing=bucketing,
            world_size=data.draw(st.integers(1, 3)),
        )  # fmt: skip
        if state is not None:
            batches.load_state_dict(state)
        for _ in range(data.draw(st.integers(0, 12))):
            epoch, position = batches.epoch, batches.position
            step = next(batches.steps(epoch, position))
            rows += [batches.sample(epoch, number) for number in range(step.start, step.stop)]
            batches.took(epoch, step.stop)
        state = batches.state_dict()
    assert state is not None
    indexes = [
        documents_of_rows(run / "build" / name, len(one)) for name, one in zip(names, datasets, strict=True)
    ]
    found = mill.seen([run / "build" / name for name in names], state=state, split="train")
    told = Told(rows, indexes)
    check(found, told, any(count > 1 for index in indexes for count in turns_of(index).values()))


def test_a_document_is_told_in_the_steps_that_have_it(run: Path) -> None:
    for name in ("concat", "mega"):
        dataset = open_dataset(run / "build" / name, "train")
        batches = Batches(dataset, 3, 5, world_size=2)
        index = documents_of_rows(run / "build" / name, len(dataset))
        walked = replayed(batches, 2 * len(batches))
        doc_id = index[len(index) // 2][0]["doc_id"]
        expected = sorted(
            (number, row, span["start"], span["end"])
            for number, step in enumerate(walked)
            for _, row in step
            for span in index[row]
            if span["doc_id"] == doc_id
        )
        now = len(batches) // 2
        found = mill.seen(
            run / "build" / name, step=now, batch_size=3, world_size=2, seed=5, doc_id=doc_id, split="train"
        ).meetings
        assert found is not None
        assert sorted((one.step, one.row, *one.columns) for one in found) == expected
        assert all(one.is_seen == (one.step < now) for one in found if one.step is not None)


def test_a_batch_is_told_rank_by_rank_with_its_characters(run: Path) -> None:
    dataset = open_dataset(run / "build" / "concat", "train")
    step = 1
    found = mill.seen(
        run / "build" / "concat", step=0, batch_size=2, world_size=3, seed=1, batch=step, split="train"
    ).batch
    assert found is not None
    for rank in range(3):
        batches = Batches(dataset, 2, 1, rank=rank, world_size=3)
        tokens = [np.asarray(batch["tokens"]) for batch in batches][step]
        rows = found[rank]["rows"]
        assert [np.asarray(dataset[row["row"]]["ids"]).tolist() for row in rows] == tokens.tolist()
        index = documents_of_rows(run / "build" / "concat", len(dataset))
        for row in rows:
            assert [(one["doc_id"], one["start"], one["end"]) for one in row["documents"]] == [
                (span["doc_id"], span["start"], span["end"]) for span in index[row["row"]]
            ]
            assert all(one["characters"][0] <= one["characters"][1] for one in row["documents"])


def test_what_cannot_be_answered_says_why(run: Path, tmp_path: Path) -> None:
    build = run / "build" / "concat"
    with pytest.raises(InputError, match="a state of the loader, or a step"):
        mill.seen(build)
    with pytest.raises(InputError, match="batch size"):
        mill.seen(build, step=3)
    with pytest.raises(InputError, match="no state of a loader"):
        mill.seen(build, state={"epoch": 1})
    with pytest.raises(InputError, match="8 is no window and run"):
        mill.seen(build, step=3, batch_size=2, bucketing=8)  # type: ignore[arg-type]
    state = Batches(open_dataset(build, "train"), 2, 1).state_dict()
    with pytest.raises(InputError, match="batch size"):
        mill.seen(build, state=state, drop_last=True)
    with pytest.raises(InputError, match="no state of a loader"):
        mill.seen(build, state={**state, "position": object()})
    for text, message in (("{", "no JSON"), ("{}", "no state of a loader")):
        (tmp_path / "state.json").write_text(text)
        with pytest.raises(InputError, match=message):
            mill.seen(build, state=tmp_path / "state.json")
    with pytest.raises(InputError, match="another order"):
        mill.seen(run / "build" / "mega", state=state, split="train")
    with pytest.raises(InputError, match="no document is called"):
        mill.seen(build, state=state, doc_id="nobody", split="train")


def test_the_command_prints_the_same_figures(run: Path, tmp_path: Path) -> None:
    build = run / "build" / "concat"
    batches = Batches(open_dataset(build, "train"), 4, 2)
    batches.took(0, 20)
    path = tmp_path / "state.json"
    path.write_text(json.dumps(batches.state_dict()))
    found = CliRunner().invoke(main, ["seen", str(build), "--state", str(path), "--json"])
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert told["total"]["seen"] == 20 * 48
    assert told["total"]["tokens"] == len(open_dataset(build, "train")) * 48  # of train, which was not named
    steps = ["--step", "5", "--batch-size", "4", "--seed", "2"]
    shown = CliRunner().invoke(main, ["seen", str(build), *steps])
    assert shown.exit_code == 0
    assert f"{20 * 48:,}" in shown.output
    # met more often than is listed
    long = ["--step", "9000", "--batch-size", "4", "--doc-id", "problem-00016"]
    met = json.loads(CliRunner().invoke(main, ["seen", str(build), *long, "--json"]).stdout)["meetings"]
    lines = CliRunner().invoke(main, ["seen", str(build), *long]).stdout.splitlines()
    listed = sum("tokens" in line and "problem-00016" in line for line in lines)
    assert lines[-1] == f"and {len(met) - listed:,} more: see --json"


def test_the_command_is_told_of_the_buckets_of_a_loader(run: Path) -> None:
    build = run / "build" / "mega"
    batches = Batches(open_dataset(build, "train"), 3, 2, bucketing=Bucketing(20, 5))
    batches.took(0, 12)
    steps = ["--step", "4", "--batch-size", "3", "--seed", "2", "--split", "train", "--json"]
    told = [
        json.loads(CliRunner().invoke(main, ["seen", str(build), *steps, *buckets]).stdout)["groups"]
        for buckets in ([], ["--bucketing", "20", "5"])
    ]
    index = documents_of_rows(build, len(batches.datasets[0]))
    rows = [batches.sample(0, number) for number in range(12)]
    expected = Told(rows, [index]).seen
    assert all(group["seen"] == expected[group["name"]] for group in told[1])
    assert told[0] != told[1]
