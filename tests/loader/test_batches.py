"""The global order is the contract: every sample once, whatever cuts it, and the same after any stop."""

from __future__ import annotations

import json
import pickle
import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.builds import EOS, documents, write_build, write_split
from loader.test_mixture import slow_turns
from tokmill.errors import CorruptFile, InputError, TokenizerMismatch
from tokmill.loader import Batches, Bucketing, collate, open_dataset
from tokmill.loader.order import Order, Permutation
from written import write_rows, write_shards


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    """A function: a dataset of n examples whose first id is their number. Of any n the same one."""
    made = {}

    def of(count: int, offset: int = 0):
        if (count, offset) not in made:
            directory = tmp_path_factory.mktemp("numbered") / "train"
            docs = [[10 + offset + n, *[7] * (n * 7919 % 23), EOS] for n in range(count)]
            write_split(directory, "token_cache", docs)
            made[count, offset] = open_dataset(directory)
        return made[count, offset]

    return of


def numbers(batch) -> list[int]:
    return (batch["tokens"][:, 0] - 10).tolist() if batch["tokens"].size else []


def stream(batches, epochs: int = 1) -> list[list[int]]:
    return [numbers(batch) for _ in range(epochs) for batch in batches]


def flat(parts) -> list[int]:
    return [number for part in parts for number in part]


bucketings = st.one_of(
    st.none(), st.builds(lambda run, runs: Bucketing(run * runs, run), st.integers(1, 5), st.integers(1, 8))
)


@given(
    count=st.integers(1, 70),
    batch_size=st.integers(1, 9),
    world_size=st.integers(1, 5),
    workers=st.integers(1, 4),
    drop_last=st.booleans(),
    bucketing=bucketings,
    seed=st.integers(0, 5),
)
@settings(deadline=None, max_examples=200)
def test_over_an_epoch_every_sample_comes_exactly_once(
    count, batch_size, world_size, workers, drop_last, bucketing, seed, numbered
):
    ds = numbered(count)
    ranks = [
        Batches(
            ds, batch_size, seed, rank=rank, world_size=world_size, drop_last=drop_last, bucketing=bucketing
        )
        for rank in range(world_size)
    ]
    by_step = []
    for batches in ranks:
        # each worker makes its steps; taken in turns they are the steps of one process
        made = [list(batches.steps(0, 0, worker, workers)) for worker in range(workers)]
        in_turns = [made[n % workers][n // workers] for n in range(sum(map(len, made)))]
        assert in_turns == list(batches.steps(0, 0))
        by_step.append([numbers(batches.batch_of(step)) for step in in_turns])
        assert stream(batches) == by_step[-1]
        assert len(batches) == len(by_step[-1])
        assert (batches.epoch, batches.position) == (1, 0)
    whole = flat(flat(step) for step in zip(*by_step, strict=True))
    alone = flat(stream(Batches(ds, 1, seed, bucketing=bucketing)))
    assert sorted(alone) == list(range(count))
    kept = count - count % (batch_size * world_size) if drop_last else count
    assert whole == alone[:kept]
    assert all(
        len(part) == batch_size for rank in by_step for part in rank[: count // (batch_size * world_size)]
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A function: rows of four ids, nothing padded, in a file of this dtype. Of any number the same ones."""
    made = {}

    def of(rows: int, kind: str):
        if (rows, kind) not in made:
            directory = tmp_path_factory.mktemp("plain") / "train"
            ids = np.arange(10, 10 + 4 * rows).reshape(rows, 4)
            meta = {"eos_id": EOS, "pad_id": None, "vocab_size": 60_000, "split": "train"}
            if kind == "npy":
                write_shards(directory, ids, 7, meta)
            else:
                write_rows(directory, ids, kind, meta)
            made[rows, kind] = open_dataset(directory)
        return made[rows, kind]

    return of


@given(
    rows=st.integers(1, 40),
    kind=st.sampled_from(["int32", "uint16", "npy"]),
    batch_size=st.integers(1, 7),
    world_size=st.integers(1, 3),
    drop_last=st.booleans(),
    prefetch=st.sampled_from([0, 2]),
    length=st.sampled_from([None, 4, 6]),
    dtype=st.sampled_from([np.int32, np.int64]),
    of_a_block=st.integers(1, 20),
    data=st.data(),
)
@settings(deadline=None, max_examples=150)
def test_rows_without_padding_become_the_batches_that_one_row_after_the_other_gives(
    rows, kind, batch_size, world_size, drop_last, prefetch, length, dtype, of_a_block, data, plain
):
    """The shortest way, which most batches take, from any position and across the blocks of the order."""
    ds, of_a_step = plain(rows, kind), batch_size * world_size
    whole = Permutation(rows, "5 rows 0 0").at(np.arange(rows)).tolist()
    start = data.draw(st.integers(0, rows))
    ahead = data.draw(st.sampled_from([1, 8, 8192]))
    for rank in range(world_size):
        batches = Batches(
            ds,
            batch_size,
            5,
            rank=rank,
            world_size=world_size,
            drop_last=drop_last,
            prefetch=prefetch,
            length=length,
            dtype=dtype,
        )
        batches.order._samples = of_a_block
        batches.position = at = start
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tokmill.loader.batches._ROWS_AHEAD", ahead)
            made = [(batch, batches.state_dict()["position"]) for batch in batches]
        for batch, position in made:
            step = whole[at : at + of_a_step]
            mine = step[len(step) * rank // world_size : len(step) * (rank + 1) // world_size]
            expected = collate([ds[row] for row in mine], 0 if length == 6 else 9, length or 4, dtype=dtype)
            if length == 6:
                expected["tokens"][:, 4:] = EOS
            assert set(batch) == set(expected)
            for name, array in expected.items():
                assert np.array_equal(batch[name], array), name
                assert batch[name].dtype == array.dtype, name
            assert all(batch[name].flags.writeable for name in ("tokens", "targets", "attn_mask"))
            at += len(step)
            is_last = at + (of_a_step if drop_last else 1) > rows
            assert position == (0 if is_last else at)  # of the next epoch
        kept = rows - (rows - start) % of_a_step if drop_last else rows
        assert at == kept
        assert (batches.epoch, batches.position) == (1, 0)


@given(count=st.integers(1, 60), seed=st.integers(0, 3), epoch=st.integers(0, 4), bucketing=bucketings)
@settings(deadline=None, max_examples=80)
def test_any_sample_of_any_epoch_is_found_at_once(count, seed, epoch, bucketing, numbered):
    batches = Batches(numbered(count), 3, seed, bucketing=bucketing)
    for _ in range(epoch):
        list(batches)
    following = flat(stream(batches))
    fresh = Batches(numbered(count), 7, seed, bucketing=bucketing)
    assert [fresh.sample(epoch, n) for n in reversed(range(count))] == [
        (0, row) for row in reversed(following)
    ]


def test_the_order_is_that_of_the_keyed_permutation(numbered):
    for epoch, rows in enumerate([flat(stream(Batches(numbered(50), 8, 3)))]):
        assert rows == Permutation(50, f"3 rows 0 {epoch}").at(np.arange(50)).tolist()
    assert flat(stream(Batches(numbered(50), 8, shuffle="none"))) == list(range(50))


def test_epochs_and_seeds_give_other_orders(numbered):
    batches = Batches(numbered(60), 60, 1)
    first, second = stream(batches, 2)
    other = flat(stream(Batches(numbered(60), 60, 2)))
    assert sorted(first) == sorted(second) == sorted(other)
    assert len({tuple(first), tuple(second), tuple(other)}) == 3


@given(
    count=st.integers(1, 40),
    batch_size=st.integers(1, 7),
    drop_last=st.booleans(),
    prefetch=st.sampled_from([0, 2]),
    bucketing=bucketings,
    sizes=st.none() | st.just((20, 31)),
)
@settings(deadline=None, max_examples=12)  # each is resumed at every step of three epochs: half a second
def test_killed_at_every_step_and_resumed_the_stream_is_the_same(
    count, batch_size, drop_last, prefetch, bucketing, sizes, numbered
):
    datasets = numbered(count) if sizes is None else [numbered(sizes[0]), numbered(sizes[1], 100)]
    how = {
        "bucketing": bucketing,
        "drop_last": drop_last,
        "weights": sizes and [0.4, 0.6],
        "prefetch": prefetch,
    }
    batches = Batches(datasets, batch_size, 5, **how)
    whole, states = [], []
    for _ in range(3):
        for batch in batches:
            whole.append(numbers(batch))
            states.append(json.dumps(batches.state_dict()))
    assert len(whole) == 3 * len(batches)
    for taken, state in enumerate(states, 1):
        again = Batches(datasets, batch_size, 5, **how)
        again.load_state_dict(json.loads(state))
        rest = []
        while again.epoch < 3:
            rest += stream(again)
        assert whole[:taken] + rest == whole


@given(
    count=st.integers(1, 60),
    before=st.integers(0, 6),
    seed=st.integers(0, 3),
    bucketing=bucketings,
    batch_size=st.integers(1, 6),
    then=st.integers(1, 6),
)
@settings(deadline=None, max_examples=60)
def test_two_ranks_resumed_as_three_one_or_eight_go_on_with_the_same_stream(
    count, before, seed, bucketing, batch_size, then, numbered
):
    ds = numbered(count)

    def ranks(world_size, size):
        return [
            Batches(ds, size, seed, rank=rank, world_size=world_size, bucketing=bucketing)
            for rank in range(world_size)
        ]

    def together(all_ranks, steps, epochs=1):
        """What all ranks got, step by step, in the order of the ranks."""
        got = []
        iterators = [iter(batches) for batches in all_ranks]
        for _ in range(steps):
            parts = [next(one, None) for one in iterators]
            if parts[0] is None:
                assert parts == [None] * len(parts), "ranks take the same number of steps"
                break
            got += flat(numbers(part) for part in parts)
        return got

    alone = flat(stream(Batches(ds, 1, seed, bucketing=bucketing), 2))
    two = ranks(2, batch_size)
    taken = together(two, before)
    states = [batches.state_dict() for batches in two]
    assert states[0] == states[1], "one state for all ranks"
    for world_size in (3, 1, 8):
        resumed = ranks(world_size, then)
        for batches in resumed:
            batches.load_state_dict(states[0])
        rest = []
        while resumed[0].epoch < 2:
            rest += together(resumed, 10**6)
        assert taken + rest == alone


@pytest.mark.parametrize("format", ["memmap", "token_cache"])
@pytest.mark.parametrize("bucketing", [None, Bucketing(8, 4)])
def test_batches_go_to_another_process_without_their_data(format, bucketing, tmp_path):
    docs = [doc for doc in documents(200, seed=3) if len(doc) > 1]
    write_split(tmp_path / "train", format, docs, seq_len=1, part_tokens=5000)
    batches = Batches(open_dataset(tmp_path / "train"), 5, 1, bucketing=bucketing)
    iter_of = [batch["tokens"].tolist() for batch in batches]
    fresh = Batches(open_dataset(tmp_path / "train"), 5, 1, bucketing=bucketing)
    sent = pickle.dumps(fresh)
    assert len(sent) < 4000
    assert [batch["tokens"].tolist() for batch in pickle.loads(sent)] == iter_of  # noqa: S301


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("mask", ["tokens", "causal"])
def test_a_trainer_that_counts_its_steps_goes_from_epoch_to_epoch(drop_last, prefetch, mask, numbered):
    """It takes `len(batches)` of them, never asks whether there is one more, and begins the next epoch."""
    how = {"drop_last": drop_last, "prefetch": prefetch, "mask": mask}
    batches, counted, left = Batches(numbered(22), 4, 1, **how), [], []
    for epoch in range(3):
        assert (batches.epoch, batches.position) == (epoch, 0)
        steps = iter(batches)
        counted.append([numbers(next(steps)) for _ in range(len(batches))])
        left.append(steps)
    assert [list(steps) for steps in left] == [[], [], []]  # nor does it undo anything to ask too late
    assert (batches.epoch, batches.position) == (3, 0)
    whole = Batches(numbered(22), 4, 1, **how)
    assert counted == [[numbers(batch) for batch in whole] for _ in range(3)]


@given(
    count=st.integers(1, 40),
    parts=st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, 3), st.booleans(), st.integers(1, 6)),
        min_size=1,
        max_size=9,
    ),
)
@settings(deadline=None, max_examples=60)
def test_a_state_tells_the_samples_that_drop_last_left_out(count, parts, numbered):
    """Whatever the cut was in each epoch: what a state does not have as left out was handed out."""
    times, state = Counter(), None
    for batch_size, world_size, drop_last, steps in parts:
        ranks = [
            Batches(numbered(count), batch_size, 1, drop_last=drop_last, rank=rank, world_size=world_size)
            for rank in range(world_size)
        ]
        for batches in ranks:
            if state is not None:
                batches.load_state_dict(json.loads(state))
            left = steps
            for _ in range(steps):
                for batch in batches:
                    times.update(numbers(batch))
                    left -= 1
                    if not left:
                        break
                if not left:
                    break
        states = {json.dumps(batches.state_dict()) for batches in ranks}
        assert len(states) == 1
        state = states.pop()
    told = json.loads(state)
    ends = dict.fromkeys(range(told["epoch"]), count) | {told["epoch"]: told["position"]}
    ends |= dict(told.get("left_out", []))
    order = Batches(numbered(count), 1, 1)
    seen = Counter(order.sample(epoch, at)[1] for epoch, end in ends.items() for at in range(end))
    assert seen == times


def test_a_state_without_what_was_left_out_is_read_and_one_that_is_damaged_is_not(numbered):
    batches = Batches(numbered(22), 4, 1, drop_last=True)
    stream(batches, 2)
    state = batches.state_dict()
    assert state["left_out"] == [[0, 20], [1, 20]]
    before = {name: value for name, value in state.items() if name != "left_out"}
    again = Batches(numbered(22), 4, 1, drop_last=True)
    again.load_state_dict(before)
    assert again.state_dict() == before
    assert numbers(next(iter(again))) == numbers(next(iter(batches)))
    whole = Batches(numbered(22), 4, 1)
    stream(whole, 2)
    assert "left_out" not in whole.state_dict()
    for damaged in ([[2, 20]], [[0, 22]], [[0, -1]], [[0]], 3, [["a", "b"]]):
        with pytest.raises(InputError, match="left out"):
            again.load_state_dict({**state, "left_out": damaged})


def test_a_loop_that_was_left_goes_on_where_it_was(numbered):
    for prefetch in (0, 3):
        batches = Batches(numbered(20), 3, 1, prefetch=prefetch)
        whole = stream(Batches(numbered(20), 3, 1))
        got = []
        while batches.epoch == 0:
            for batch in batches:
                got.append(numbers(batch))
                break
        assert got == whole


@given(
    sizes=st.lists(st.integers(1, 30), min_size=2, max_size=4),
    weights=st.data(),
    seed=st.integers(0, 2),
)
@settings(deadline=None, max_examples=60)
def test_a_mixture_is_its_turns_each_with_the_next_sample_of_its_dataset(sizes, weights, seed, numbered):
    shares = weights.draw(st.lists(st.integers(1, 6), min_size=len(sizes), max_size=len(sizes)))
    datasets = [numbered(size, 40 * place) for place, size in enumerate(sizes)]
    batches = Batches(datasets, 4, seed, weights=shares)
    samples, wanted = batches.epoch_samples, []
    reduced = batches.order.turns.weights
    for which, count in slow_turns(reduced, 3 * samples):
        again, place = divmod(count, sizes[which])
        row = Permutation(sizes[which], f"{seed} rows {which} {again}").at(np.array([place]))
        wanted.append(40 * which + int(row[0]))
    assert flat(stream(batches, 3)) == wanted
    assert len(set(wanted[:samples])) == samples, "no sample twice in an epoch"


def test_rows_of_several_files_are_mixed_like_examples(tmp_path):
    for name, seed in (("a", 1), ("b", 2)):
        write_split(tmp_path / name, "memmap", documents(60, seed=seed))
    blocks = [open_dataset(tmp_path / name) for name in ("a", "b")]
    exact = [open_dataset(tmp_path / name, boundaries="index") for name in ("a", "b")]
    fast, slow = (Batches(ds, 4, 1, weights=[0.25, 0.75], mask="documents") for ds in (blocks, exact))
    for one, two in zip(fast, slow, strict=True):
        for name in ("tokens", "targets", "attn_mask", "lengths"):
            assert np.array_equal(one[name], two[name]), name


def padding(batches) -> float:
    cells = real = 0
    for batch in batches:
        cells += batch["tokens"].size
        real += int(batch["lengths"].sum())
    return 1 - real / cells


def test_bucketing_takes_most_of_the_padding_away(tmp_path):
    write_split(tmp_path / "train", "token_cache", documents(2000, longest=200), part_tokens=50_000)
    ds = open_dataset(tmp_path / "train")
    plain = padding(Batches(ds, 8))
    sorted_in_windows = padding(Batches(ds, 8, bucketing=Bucketing(1024, 8)))
    assert plain > 0.4
    assert sorted_in_windows < 0.03


def test_bucketing_does_not_sort_the_epoch(tmp_path):
    write_split(tmp_path / "train", "token_cache", documents(2000, longest=200), part_tokens=50_000)
    means = [
        b["lengths"].mean() for b in Batches(open_dataset(tmp_path / "train"), 8, bucketing=Bucketing(512, 8))
    ]
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.2


def test_a_state_of_something_else_is_refused(numbered):
    state = Batches(numbered(20), 4, 1).state_dict()
    for other, name in (
        (Batches(numbered(20), 4, 2), "seed"),
        (Batches(numbered(21), 4, 1), "datasets"),
        (Batches(numbered(20, 5), 4, 1), "datasets"),
        (Batches(numbered(20), 4, 1, shuffle="none"), "shuffle"),
        (Batches(numbered(20), 4, 1, bucketing=Bucketing(8, 4)), "bucketing"),
        (Batches([numbered(20), numbered(21)], 4, 1, weights=[1, 2]), "weights"),
    ):
        with pytest.raises(InputError, match=f"{name} is .* there, but .* here: another order"):
            other.load_state_dict(state)
    for wrong in ({"position": 21}, {"position": -1}, {"epoch": -1}, {"epoch": None}):
        with pytest.raises(InputError):
            Batches(numbered(20), 4, 1).load_state_dict({**state, **wrong})


def test_what_cannot_be_is_refused(numbered, tmp_path):
    ds = numbered(5)
    for options, where in (
        ({"batch_size": 0}, "batch_size"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"world_size": 0}, "world_size"),
        ({"prefetch": -1}, "prefetch"),
        ({"shuffle": "yes"}, "shuffle"),
        ({"weights": [1, 2]}, "weights"),
        ({"bucketing": Bucketing(4, 8)}, "bucketing"),
        ({"bucketing": 8}, "bucketing"),
        ({"bucketing": (8, 4, 2)}, "bucketing"),
        ({"bucketing": ()}, "bucketing"),
        ({"dtype": "int46"}, "dtype"),
    ):
        with pytest.raises(InputError, match=f"^{where}: "):
            Batches(ds, **{"batch_size": 2, **options})
    with pytest.raises(InputError, match="2 datasets and no weights"):
        Batches([ds, ds], 2)
    with pytest.raises(InputError, match="no dataset"):
        Batches([], 2)
    write_split(tmp_path / "empty", "memmap", [])
    with pytest.raises(InputError, match="has no examples"):
        Batches(open_dataset(tmp_path / "empty"), 2)
    other = write_build(tmp_path / "b", "megatron", {"train": documents(5)}, tokenizer={"sha256": "cd" * 32})
    with pytest.raises(TokenizerMismatch, match="tokenizer_sha256 is cdcd"):
        Batches([ds, open_dataset(other)], 2, weights=[1, 1])


def test_a_file_that_shrank_meanwhile_is_found_before_the_next_epoch(tmp_path):
    write_split(tmp_path / "train", "memmap", documents(60))
    batches = Batches(open_dataset(tmp_path / "train"), 4)
    list(batches)
    path = tmp_path / "train/input_ids.mmap"
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(CorruptFile, match="truncated"):
        next(iter(batches))


def prefetchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "tokmill-prefetch"]


def test_prefetched_batches_are_the_same_and_no_thread_is_left(numbered):
    plain = stream(Batches(numbered(40), 3, 1), 2)
    ahead = Batches(numbered(40), 3, 1, prefetch=2)
    assert stream(ahead, 2) == plain
    assert prefetchers() == []
    loop = iter(ahead)
    next(loop)
    assert len(prefetchers()) == 1
    loop.close()
    assert prefetchers() == []
    for _ in ahead:
        break
    assert prefetchers() == []
    with pytest.raises(ZeroDivisionError):
        list(map(lambda batch: 1 / 0, ahead))  # noqa: C417
    assert prefetchers() == []


def test_an_error_on_the_thread_reaches_the_caller_in_its_place(tmp_path):
    docs = [[5] * (n + 1) for n in range(20)]
    write_split(tmp_path / "train", "token_cache", docs)
    batches = Batches(open_dataset(tmp_path / "train"), 2, shuffle="none", length=10, prefetch=3)
    got: list[list[int]] = []
    with pytest.raises(InputError, match="an example has 12 ids, and the batch 10"):
        got.extend(batch["lengths"].tolist() for batch in batches)
    assert got == [[1, 2], [3, 4], [5, 6], [7, 8], [9, 10]]
    assert batches.state_dict()["position"] == 10
    assert prefetchers() == []


def test_a_billion_samples_are_ordered_without_memory():
    order = Order([1_500_000_000], [1], 1, "epoch", None, lambda source, rows: rows)
    first = order.between(0, 0, 8).row
    far = order.between(7, 1_499_999_992, 1_500_000_000).row
    assert len(set(first.tolist()) | set(far.tolist())) == 16
    assert 0 <= min(far) <= max(far) < 1_500_000_000


def test_the_mini_path_is_ten_lines(tmp_path):
    """120 examples as 96, 12 and 12; T of 64; full batches or small ones; three arrays."""
    docs = documents(120, longest=63)
    for split, part in (("train", docs[:96]), ("valid", docs[96:108]), ("test", docs[108:])):
        write_split(tmp_path / "mini" / split, "token_cache", part)
    mini = tmp_path / "mini"

    from tokmill.loader import Batches, open_dataset

    train, valid, test = (open_dataset(mini, split) for split in ("train", "valid", "test"))
    batches = Batches(train, batch_size=8, seed=1, length=64)
    for _epoch in range(2):
        for batch in batches:
            tokens, targets, attn_mask = batch["tokens"], batch["targets"], batch["attn_mask"]
    (full,) = Batches(train, batch_size=len(train), length=64)

    assert (len(train), len(valid), len(test)) == (96, 12, 12)
    assert len(batches) == 12
    for array in (tokens, targets, attn_mask):
        assert array.shape == (8, 64)
    assert full["tokens"].shape == (96, 64)
    assert sorted(full["tokens"].tolist()) == sorted([doc + [EOS] * (64 - len(doc)) for doc in docs[:96]])


def test_numbers_of_numpy_are_numbers_and_a_state_of_them_is_json(numbered):
    plain = {"batch_size": 4, "seed": 3, "rank": 0, "world_size": 1, "prefetch": 0}
    scalars = {name: np.int64(value) for name, value in plain.items()}
    expected = stream(Batches(numbered(20), **plain, bucketing=Bucketing(8, 4)))
    batches = Batches(numbered(20), **scalars, bucketing=(np.int64(8), 4))
    assert numbers(next(iter(batches))) == expected[0]
    state = json.loads(json.dumps(batches.state_dict()))
    resumed = Batches(numbered(20), **plain, bucketing=Bucketing(8, 4))
    resumed.load_state_dict({**state, "position": np.int64(state["position"])})
    assert json.loads(json.dumps(resumed.state_dict())) == state
    assert stream(resumed) == expected[1:]


@pytest.mark.parametrize("name", ["batch_size", "rank", "world_size", "prefetch"])
def test_what_is_no_whole_number_is_told(numbered, name):
    with pytest.raises(InputError, match=r"2\.5 is no whole number") as error:
        Batches(numbered(20), **{"batch_size": 2, name: 2.5})
    assert error.value.where == name
