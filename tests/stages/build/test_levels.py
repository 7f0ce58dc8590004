"""Documents that were had before come after those that were had less often: beside the slow order."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.artifacts.step import Input, Made, Task, table_input
from tokmill.errors import InputError
from tokmill.kernels.mixing import mark_shuffle
from tokmill.packing import schedule as turning
from tokmill.packing.mixture import Mixture, natural_mixture
from tokmill.packing.quotas import Holding, Target, largest_budget
from tokmill.packing.schedule import Offered, Scheduling, shuffle_key
from tokmill.schema import LENGTHS
from tokmill.stages.build.runs import RunOptions, open_runs, perform_run
from tokmill.stages.build.staged import NEVER
from tokmill.stages.build.streams import SourceStream, StreamOptions
from tokmill.storage.digests import id_hashes
from tokmill.storage.tables import write_table

NUMBERS = (3, 5, 9)  # of the shards


class Corpus(msgspec.Struct):
    shards: list[tuple[int, Path]]
    lengths: dict[int, Any]
    ids: dict[int, Any]
    levels: dict[int, Any]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    home = tmp_path_factory.mktemp("levels")
    found = Corpus([], {}, {}, {})
    for number in NUMBERS:
        draw = np.random.default_rng(number)
        rows = 40 + number
        lengths, names = draw.integers(1, 40, rows), [f"{number}-{at}" for at in range(rows)]
        plain = [np.arange(rows, dtype=np.uint32), names, lengths, 100 * lengths]
        table = pa.table([*plain, pa.nulls(rows, pa.string()), pa.nulls(rows, pa.string())], schema=LENGTHS)
        path = home / f"lengths-{number:05d}.parquet"
        write_table(path, table)
        found.shards.append((number, path))
        found.lengths[number], found.ids[number] = lengths, np.asarray(id_hashes(table.column("doc_id")))
        found.levels[number] = draw.choice(np.array([0, 0, 1, 2, NEVER], np.uint8), rows)
    return found


def passes_slowly(
    corpus: Corpus, levels: dict[int, Any], passes: int, order: str
) -> list[list[tuple[int, int]]]:
    """Of each pass the documents that had it not yet, by the mark they have in it among all."""
    everyone = [(number, row) for number in NUMBERS for row in range(len(corpus.lengths[number]))]
    identities = np.concatenate([corpus.ids[number] for number in NUMBERS])
    found = []
    for number in range(passes):
        marks = mark_shuffle(identities, shuffle_key(9, number, "web"))
        by_mark = [everyone[at] for at in np.argsort(marks)] if order == "shuffle" else everyone
        found.append([(shard, row) for shard, row in by_mark if levels[shard][row] <= number])
    return found


def stream_of(
    corpus: Corpus, home: Path, levels: Any, order: Any = "shuffle", *, is_sorted: bool = False
) -> Any:
    runs = None
    if is_sorted:
        total, first, inputs = sum(map(len, corpus.lengths.values())), 0, []
        home.mkdir(parents=True, exist_ok=True)
        for number, path in corpus.shards:
            options = RunOptions(source="web", seed=9, shards=(number,), first=first, documents=total)
            rows = len(corpus.lengths[number])
            task: Task[RunOptions] = Task(
                function="mixture.run",
                key=f"run-{number}",
                options=options,
                inputs=[Input("lengths", str(path), "", rows)],
                directory=str(home),
            )
            made: Made = perform_run(task)
            inputs += [Path(table_input("runs", home, entry).path) for entry in made.files]
            first += rows
        runs = open_runs(inputs, dict.fromkeys(NUMBERS, "web"))["web"]
    shared = StreamOptions(order, 9, "tokens", home, 1)
    return SourceStream("web", "web", corpus.shards, shared, runs, levels=levels and levels.__getitem__)


def taken_of(stream: Any, passes: int, at_once: int = 7) -> list[list[tuple[int, int]]]:
    found, first = [], 0
    for number in range(passes):
        count = sum(len(offered.lengths) for offered in stream.read_epoch(number))
        names: list[tuple[int, int]] = []
        for begin in range(first, first + count, at_once):
            documents = stream.take(np.arange(begin, min(begin + at_once, first + count)))
            table = documents.table.take(pa.array(documents.order))
            names += zip(table.column("shard").to_pylist(), table.column("sequence").to_pylist(), strict=True)
        found.append(names)
        first += count
    return found


@pytest.mark.parametrize("is_sorted", [False, True], ids=["shards", "runs"])
@pytest.mark.parametrize("kind", ["mixed", "none was had", "all were had"])
def test_a_pass_is_of_those_that_had_it_not_yet_in_the_order_it_always_has(
    corpus: Corpus, tmp_path: Path, kind: str, is_sorted: bool
) -> None:
    levels = {
        "mixed": corpus.levels,
        "none was had": {number: np.zeros_like(own) for number, own in corpus.levels.items()},
        "all were had": {number: np.maximum(own, 1) for number, own in corpus.levels.items()},
    }[kind]
    stream = stream_of(corpus, tmp_path, levels, is_sorted=is_sorted)
    slow = passes_slowly(corpus, levels, 4, "shuffle")
    tokens = [sum(int(corpus.lengths[shard][row]) for shard, row in one) for one in slow]
    assert [stream.holding.capacity(passes) for passes in range(5)] == np.cumsum([0, *tokens]).tolist()
    assert taken_of(stream, 4) == slow
    whole = np.concatenate([levels[number] for number in NUMBERS])
    assert (stream.documents, stream.left_out) == (len(whole), int((whole == NEVER).sum()))
    assert stream.used_up(2) == int(((whole >= 2) & (whole != NEVER)).sum())
    assert stream.distinct(-1) == int((whole <= 3).sum())
    assert stream.again() == int(((whole > 0) & (whole <= 3)).sum())


def test_in_the_order_of_the_corpus_too(corpus: Corpus, tmp_path: Path) -> None:
    stream = stream_of(corpus, tmp_path, corpus.levels, "corpus")
    assert taken_of(stream, 3) == passes_slowly(corpus, corpus.levels, 3, "corpus")


def test_no_level_is_the_order_of_a_source_that_knows_of_none(corpus: Corpus, tmp_path: Path) -> None:
    none = {number: np.zeros_like(own) for number, own in corpus.levels.items()}
    plain, levelled = stream_of(corpus, tmp_path, None), stream_of(corpus, tmp_path, none)
    assert taken_of(plain, 3) == taken_of(levelled, 3)
    assert [plain.holding.capacity(passes) for passes in range(4)] == [
        levelled.holding.capacity(passes) for passes in range(4)
    ]


class Listed:
    """A source as a schedule sees it: documents of one length each, some with passes before."""

    def __init__(
        self, name: str, levels: list[int], tokens: int, unit: Literal["tokens", "documents"] = "tokens"
    ) -> None:
        self._levels, self._tokens, self._in_documents = levels, tokens, unit == "documents"
        left = tuple(tokens * sum(level <= at for level in levels) for at in range(max(levels) + 1))
        self.holding = Holding(name, name, tokens * len(levels), tokens, left)

    def read_epoch(self, epoch: int) -> Any:
        count = sum(level <= epoch for level in self._levels)
        costs = np.ones(count, np.int64) if self._in_documents else None
        yield Offered(np.full(count, self._tokens, np.int64), costs)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), min_size=1, max_size=3),
    st.integers(1, 4),
    st.data(),
)
def test_a_schedule_takes_what_is_left_of_its_sources_and_no_more(
    levels: list[list[int]], max_epochs: int, data: Any
) -> None:
    sources = [Listed(f"s{at}", own, 10 + at) for at, own in enumerate(levels)]
    left = [sum(max(max_epochs - level, 0) for level in own) * (10 + at) for at, own in enumerate(levels)]
    assert [source.holding.capacity(max_epochs) for source in sources] == left
    mixture = natural_mixture({source.holding.name: source.holding.tokens for source in sources})
    reach = largest_budget([source.holding for source in sources], mixture, max_epochs)
    asked = data.draw(st.integers(1, max(reach, 1) + 5))
    try:
        scheduling = Scheduling(
            sources, mixture, Target("tokens", asked), exhausted="repeat", max_epochs=max_epochs
        )
        turns = list(scheduling)
    except InputError:
        assert asked > reach
        return
    assert asked <= reach + len(sources) * max_epochs, "each share is rounded down, pass by pass"
    taken = np.zeros(len(sources), np.int64)
    for batch in turns:
        np.add.at(taken, batch.source, np.array([10 + at for at in range(len(sources))])[batch.source])
    assert (taken <= left).all()
    assert scheduling.summary.tokens == taken.tolist()


def test_documents_are_counted_through_the_passes_that_are_left() -> None:
    """To a number of documents: passes that nobody has left are empty, and the next is begun."""
    source = Listed("web", [1, 1, 2], 10, "documents")
    asked = {"exhausted": "repeat", "max_epochs": 3}
    mixture = Mixture({"web": turning.Fraction(1)})
    turns = list(Scheduling([source], mixture, Target("documents", 5), **asked))  # type: ignore[arg-type]
    assert sum(len(batch.source) for batch in turns) == 5
    with pytest.raises(InputError, match="is exhausted"):
        list(Scheduling([source], mixture, Target("documents", 6), **asked))  # type: ignore[arg-type]


@given(st.lists(st.integers(1, 30), min_size=40, max_size=80), st.integers(1, 20), st.integers(1, 7))
@settings(max_examples=40, deadline=None)
def test_a_target_that_ends_its_stage_ends_with_the_document_that_reaches_it(
    lengths: list[int], blocks: int, at_once: int
) -> None:
    class Plain:
        holding = Holding("web", "web", sum(lengths), max(lengths))

        def read_epoch(self, epoch: int) -> Any:
            yield Offered(np.array(lengths, np.int64))

    blocks = min(blocks, sum(lengths) // 16)
    if not blocks:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(turning, "_BATCH_TURNS", at_once)
        mixture = Mixture({"web": turning.Fraction(1)})
        scheduling = Scheduling([Plain()], mixture, Target("blocks", blocks), seq_len=16, ends_at_target=True)
        positions = np.concatenate([batch.position for batch in scheduling]).tolist()
    taken = [lengths[position] for position in positions]
    assert sum(taken) >= 16 * blocks > sum(taken[:-1])
    assert scheduling.summary.tokens == [sum(taken)]
    assert scheduling.summary.documents == [len(taken)]
    # who comes after the last turn was not passed over
    assert scheduling.summary.passed_over == [max(positions) + 1 - len(taken)]
