"""The mixture as a task: the schedule of the slow twin, whatever it holds at a time,
and never more than that."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from packing.in_memory import Corpus
from packing.slow_schedule import schedule_slowly
from tokmill.artifacts.step import Input, Made, Task, table_input
from tokmill.errors import InputError
from tokmill.packing import schedule as turning
from tokmill.packing.mixture import Mixture
from tokmill.packing.quotas import Target
from tokmill.schema import LENGTHS
from tokmill.stages.build import mixing, mixture_stage
from tokmill.stages.build import streams as offering
from tokmill.stages.build.documents import TURNS
from tokmill.stages.build.mixing import perform_mixture
from tokmill.stages.build.mixture import SplitMixtureOptions
from tokmill.stages.build.runs import perform_run
from tokmill.stages.build.streams import SourceStream
from tokmill.stages.external import sorting
from tokmill.storage.digests import id_hashes
from tokmill.storage.tables import write_table
from written import load_table

SOURCES = ("web", "books", "math")
WEIGHTS = {"web": "0.5", "books": "0.3", "math": "0.2"}

ASKED: dict[str, dict[str, Any]] = {
    "budget": {"target": ["tokens", 6_000], "exhausted": "stop"},
    "renormalized": {"target": ["tokens", 20_000], "exhausted": "renormalize"},
    "repeated": {"target": ["tokens", 40_000], "exhausted": "repeat"},
    "documents": {"target": ["documents", 300], "exhausted": "stop"},
    "documents again": {"target": ["documents", 1_600], "exhausted": "repeat"},
    "megabytes": {"target": ["megabytes", 1], "exhausted": "renormalize"},
    "corpus": {"target": ["tokens", 6_000], "exhausted": "stop", "order": "corpus"},
    "everything": {"target": None, "exhausted": "stop"},
}


def shards_of(home: Path, documents: int) -> list[tuple[int, str, Input]]:
    """Working shards of three sources as the tokens step leaves them;
    every third id is one that was there before."""
    found = []
    for number in range(3 * 4):
        draw = np.random.default_rng([3, number])
        rows = int(draw.integers(0, 2 * documents // 12))
        lengths = draw.integers(1, 40, rows)
        names = [f"{at // 3 if at % 3 else at}" for at in range(rows)]
        table = pa.table(
            [
                pa.array(np.arange(rows), pa.uint32()),
                pa.array(names, pa.string()),
                lengths,
                100 * lengths,
                pa.array([["en", None, "fr"][at % 3] for at in range(rows)], pa.string()),
                pa.array([f"licence {number}"] * rows, pa.string()),
            ],
            schema=LENGTHS,
        )
        path = home / f"lengths-{number:05d}.parquet"
        home.mkdir(parents=True, exist_ok=True)
        write_table(path, table)
        found.append((number + 5, SOURCES[number // 4], Input("lengths", str(path), "", rows)))
    return found


def task_of(home: Path, shards: list[tuple[int, str, Input]], **asked: Any) -> Task:
    config = {
        "domains": WEIGHTS,
        "sources": {},
        "domain_of": {source: source for source in SOURCES},
        "max_epochs": 6,
        "order": "shuffle",
        "held_out": "mixed",
        "is_held_out": False,
        "seed": 9,
        "seq_len": 64,
        "shards": [[number, source] for number, source, _ in shards],
        **asked,
    }
    config["amount"] = config["target"] and config["target"][1]
    options = msgspec.convert(config, SplitMixtureOptions)
    inputs = [item for _, _, item in shards]
    return Task(function="mixture", key="train", options=options, inputs=inputs, directory=str(home))


def mixed(task: Task, documents: int | None = None) -> Made:
    """With room for so many documents at a time."""
    with pytest.MonkeyPatch.context() as patch:
        if documents is not None:
            patch.setattr(sorting, "_RUN_ROWS", 4 * documents)
            patch.setattr(sorting, "_MIN_BATCH_ROWS", 4)
            patch.setattr(offering, "_MERGE_ROWS", documents)
            patch.setattr(turning, "_WINDOW_DOCUMENTS", documents)
            patch.setattr(turning, "_BATCH_TURNS", documents)
            patch.setattr(mixing, "_PART_TURNS", documents)
        return perform_mixture(task)


def with_runs(task: Task, documents: int) -> Task:
    """The same, with what other tasks have sorted, so many documents each, or more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixture_stage, "_SORTED_AT_ONCE", documents)
        sorting = mixture_stage._run_tasks(task)
    place = Path(task.directory).with_name("runs")
    place.mkdir(exist_ok=True)
    runs = [
        table_input("runs", place, entry)
        for one in sorting
        for entry in perform_run(msgspec.structs.replace(one, directory=str(place))).files
    ]
    assert len(runs) > len(SOURCES)
    return msgspec.structs.replace(task, inputs=[*task.inputs, *runs])


def order_of(task: Task) -> list[tuple[int, int]]:
    table = load_table(Path(task.directory) / "order-train.parquet")
    return list(zip(*table.to_pydict().values(), strict=True))


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_the_order_is_that_of_the_slow_twin_whatever_is_held_at_a_time(tmp_path: Path, asked: Any) -> None:
    shards = shards_of(tmp_path / "tokens", 1000)
    corpora, places = [], []
    for source in SOURCES:
        mine = [(number, load_table(Path(item.path))) for number, owner, item in shards if owner == source]
        whole = pa.concat_tables([table for _, table in mine])
        identities = id_hashes(whole.column("doc_id"))
        columns = [np.asarray(whole.column(name)) for name in ("tokens", "text_bytes")]
        corpora.append(Corpus(source, source, columns[0], identities, columns[1]))
        places.append([(number, row) for number, table in mine for row in range(table.num_rows)])
    slow = schedule_slowly(
        corpora,
        Mixture({name: Fraction(weight) for name, weight in WEIGHTS.items()}),
        Target(*asked["target"]) if asked["target"] else None,
        exhausted=asked["exhausted"],
        max_epochs=6,
        order=asked.get("order", "shuffle"),
        seed=9,
        patience=turning.PATIENCE,
    )
    expected = [places[source][document] for source, document in slow]
    made = {}
    for documents, is_sorted in itertools.product((None, 700, 64), (False, True)):
        task = task_of(tmp_path / f"mixture-{documents}-{is_sorted}", shards, **asked)
        if is_sorted and task.options.order == "shuffle":
            task = with_runs(task, 100)
        made[documents] = mixed(task, documents)
        assert order_of(task) == expected
        check_turns(task, made[documents], shards, expected)
        assert sorted(path.name for path in Path(task.directory).iterdir()) == sorted(
            entry.path for entry in made[documents].files
        ), "and nothing that was put aside is left"
    assert made[None].counts == made[700].counts == made[64].counts
    assert made[None].facts == made[64].facts
    assert made[None].files[0].content_sha256 == made[64].files[0].content_sha256
    counts = made[None].counts
    assert counts["in"] == counts["kept"] + sum(counts["dropped"].values())
    assert counts["in"] == sum(len(corpus.lengths) for corpus in corpora)
    assert (counts["kept"], counts["kept"] + counts["repeats"]) == (len(set(slow)), len(slow))


def check_turns(task: Task, made: Made, shards: Any, order: list[tuple[int, int]]) -> None:
    """Turns say of each document what the tokens step says of it."""
    tables = {number: load_table(Path(item.path)) for number, _, item in shards}
    begins = {number: np.cumsum([0, *table.column("tokens").to_pylist()]) for number, table in tables.items()}
    parts = [load_table(Path(task.directory) / entry.path) for entry in made.files[1:]]
    found = pa.concat_tables([TURNS.empty_table(), *parts]).to_pylist()
    assert len(found) == len(order)
    for turn, (number, row) in zip(found, order, strict=True):
        told = {name: tables[number].column(name)[row].as_py() for name in TURNS.names[2:]}
        assert turn == {"shard": number, "begin": begins[number][row], **told}


@pytest.mark.parametrize("asked", ["repeated", "documents again", "corpus"])
def test_no_more_documents_are_held_for_a_larger_corpus(
    tmp_path: Path, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents that were read and not passed yet, of all sources together."""
    held: dict[str, int] = {}
    most = 0
    take = SourceStream.take

    def counting(self: SourceStream, positions: Any) -> Any:
        nonlocal most
        held[self.holding.name] = sum(table.num_rows for _, table in self._waiting)
        most = max(most, sum(held.values()))
        return take(self, positions)

    monkeypatch.setattr(SourceStream, "take", counting)
    monkeypatch.setattr(turning, "PATIENCE", 20)
    peaks = []
    for scale in (1, 8):
        shards = shards_of(tmp_path / f"tokens-{scale}", 1500 * scale)
        unit, amount = ASKED[asked]["target"]
        target = [unit, scale * amount]
        made = mixed(
            task_of(tmp_path / f"mixture-{scale}", shards, **{**ASKED[asked], "target": target}), 120
        )
        assert made.files[0].rows > 200 * scale
        peaks.append(most)
        held.clear()
        most = 0
    shard = max(item.rows for _, _, item in shards) if asked == "corpus" else 0
    # the windows, one batch of each source on its way, and twice what a merge holds
    assert peaks[1] <= 120 + 3 * 20 + 3 * 120 + 3 * shard
    assert asked == "corpus" or peaks[1] <= 1.5 * peaks[0]


def test_a_mixture_that_cannot_be_leaves_no_order(tmp_path: Path) -> None:
    shards = shards_of(tmp_path / "tokens", 1000)
    task = task_of(tmp_path / "mixture", shards, target=["documents", 5000], exhausted="stop")
    with pytest.raises(InputError, match="is exhausted"):
        mixed(task, 100)
    assert not [path for path in Path(task.directory).iterdir() if not path.name.startswith("turns-")]
