"""Tensors: the same stream through DataLoader, with any number of workers, and back from any state."""

from __future__ import annotations

import numpy as np
import pytest

from loader.builds import EOS, documents, write_split
from tokmill.errors import CorruptFile, InputError
from tokmill.loader import Batches, Bucketing, open_dataset

torch = pytest.importorskip("torch", reason="the extra `torch`")

from torch.utils.data import DataLoader  # noqa: E402

from tokmill.loader.torch import Feed, Rows, Stream, as_tensors  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # those of torch are its own


@pytest.fixture(scope="module", params=["memmap", "token_cache"])
def ds(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("torch") / "train"
    write_split(directory, request.param, documents(45), part_tokens=500)
    return open_dataset(directory)


def stream(loader) -> list:
    return [batch["tokens"].tolist() for batch in loader]


def test_tensors_share_the_memory_of_the_arrays(ds):
    batch = next(iter(Batches(ds, 4)))
    tensors = as_tensors(batch)
    for name in ("tokens", "targets", "attn_mask"):
        assert tensors[name].data_ptr() == batch[name].ctypes.data
    assert tensors["attn_mask"].dtype == torch.bool
    wide = as_tensors(next(iter(Batches(ds, 4, dtype=np.int64, mask="documents", varlen=True))))
    assert wide["tokens"].dtype == wide["targets"].dtype == torch.int64
    assert wide["cu_seqlens"].dtype == torch.int32


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_any_number_of_workers_gives_the_order_of_one_process(ds, workers, drop_last):
    how = {"drop_last": drop_last, "bucketing": Bucketing(16, 4)}
    plain = [batch["tokens"].tolist() for batch in Batches(ds, 4, 1, **how)]
    loader = DataLoader(Stream(Batches(ds, 4, 1, **how)), batch_size=None, num_workers=workers)
    assert stream(loader) == plain
    assert stream(Feed(Batches(ds, 4, 1, **how), workers)) == plain


@pytest.mark.parametrize("workers", [0, 2])
def test_a_feed_tells_what_drop_last_left_out(ds, workers):
    feed = Feed(Batches(ds, 7, 1, drop_last=True), workers)
    plain = Batches(ds, 7, 1, drop_last=True)
    assert stream(feed) == stream(plain)
    left_out = len(ds) % 7
    assert left_out
    assert feed.batches.state_dict() == plain.state_dict()
    assert plain.state_dict()["left_out"] == [[0, len(ds) - left_out]]
    # what is left of the next epoch fills no step
    wider = Batches(ds, len(ds) - 1, 1, drop_last=True)
    wider.load_state_dict({**plain.state_dict(), "position": 8})
    assert stream(Feed(wider, workers)) == []
    assert wider.state_dict()["left_out"] == [[0, len(ds) - left_out], [1, 8]]


@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_feed_is_resumed_with_other_workers_ranks_and_batches(ds, before):
    whole = [row for part in stream(Batches(ds, 1, 3, length=60)) for row in part]
    whole += [row for part in stream(_at_epoch(Batches(ds, 1, 3, length=60), 1)) for row in part]
    batches = Batches(ds, 4, 3, length=60)
    got = []
    for taken, batch in enumerate(Feed(batches, before), 1):
        got += batch["tokens"].tolist()
        if taken == 3:
            break
    state = batches.state_dict()
    for workers, size, world_size in ((0, 5, 1), (2, 3, 1), (2, 2, 2)):
        ranks = [Batches(ds, size, 3, length=60, rank=r, world_size=world_size) for r in range(world_size)]
        rest = []
        for one in ranks:
            one.load_state_dict(state)
        while ranks[0].epoch < 2:
            parts = [stream(Feed(one, workers)) for one in ranks]
            rest += [row for step in zip(*parts, strict=True) for part in step for row in part]
        assert got + rest == whole


def _at_epoch(batches, epoch):
    batches.epoch = epoch
    return batches


def test_epochs_go_on_also_in_workers_that_stay(ds):
    plain = Batches(ds, 4, 1)
    wanted = [stream(plain) for _ in range(3)]
    feed = Feed(Batches(ds, 4, 1), 2)
    assert [stream(feed) for _ in range(3)] == wanted
    staying = DataLoader(Stream(Batches(ds, 4, 1)), batch_size=None, num_workers=2, persistent_workers=True)
    assert [stream(staying) for _ in range(3)] == wanted
    told = Stream(Batches(ds, 4, 1))
    fresh = DataLoader(told, batch_size=None, num_workers=2)
    for epoch in range(3):
        told.set_epoch(epoch)
        assert stream(fresh) == wanted[epoch]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_trainer_that_counts_its_steps_goes_from_epoch_to_epoch(ds, workers):
    feed, counted = Feed(Batches(ds, 4, 1, drop_last=True), workers), []
    for epoch in range(3):
        assert (feed.batches.epoch, feed.batches.position) == (epoch, 0)
        steps = iter(feed)
        counted.append([next(steps)["tokens"].tolist() for _ in range(len(feed))])
    plain = Batches(ds, 4, 1, drop_last=True)
    assert counted == [stream(plain) for _ in range(3)]


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_stateful_loader_of_torchdata_resumes_at_every_step(ds, workers):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def loader():
        return stateful(Stream(Batches(ds, 6, 1)), batch_size=None, num_workers=workers)

    first, whole, states = loader(), [], []
    for batch in first:
        whole.append(batch["tokens"].tolist())
        states.append(first.state_dict())
    assert whole == stream(Batches(ds, 6, 1))
    for taken, state in enumerate(states[:-1], 1):
        again = loader()
        again.load_state_dict(state)
        assert whole[:taken] + stream(again) == whole


class Telling(Stream):
    """Each batch with the state of the worker that made it, as a stateful loader keeps it."""

    def __iter__(self):
        for batch in super().__iter__():
            yield batch["tokens"].tolist(), self.state_dict()


@pytest.mark.parametrize("how", [{"batch_size": 3}, {"batch_size": 12}, {"batch_size": 6, "world_size": 2}])
def test_the_state_of_a_worker_is_refused_by_steps_of_another_size(ds, how):
    """Places of the workers lie between each other by the size of a step: with another one, samples would
    come twice and others never."""
    told = list(DataLoader(Telling(Batches(ds, 6, 1)), batch_size=None, num_workers=2))
    before = 3  # of both workers: steps 0 and 2, step 1
    last = {number % 2: state for number, (_, state) in enumerate(told[:before])}

    def rest(states, **how):
        def restore(worker):
            torch.utils.data.get_worker_info().dataset.load_state_dict(states[worker])

        stream = Stream(Batches(ds, **{"batch_size": 6, "seed": 1, **how}))
        options = {"worker_init_fn": restore, "multiprocessing_context": "fork"}
        loader = DataLoader(stream, batch_size=None, num_workers=2, **options)
        return [batch["tokens"].tolist() for batch in loader]

    wanted = sorted(tokens for tokens, _ in told[before:])
    assert sorted(rest(last)) == wanted
    with pytest.raises(InputError, match=r"samples(.|\n)*Feed"):
        rest(last, **how)
    # one of before, which does not say how large its steps were
    older = {worker: {**state, "next": state["next"][:4]} for worker, state in last.items()}
    assert sorted(rest(older)) == wanted


@pytest.mark.parametrize("drop_last", [False, True])
def test_after_the_last_step_of_an_epoch_workers_go_on_with_steps_of_another_size(ds, drop_last):
    how = {"seed": 1, "drop_last": drop_last}
    told = list(DataLoader(Telling(Batches(ds, 7, **how)), batch_size=None, num_workers=2))
    states = {number % 2: state for number, (_, state) in enumerate(told)}

    def restore(worker):
        torch.utils.data.get_worker_info().dataset.load_state_dict(states[worker])

    options = {"worker_init_fn": restore, "multiprocessing_context": "fork", "persistent_workers": True}
    loader = DataLoader(Stream(Batches(ds, 2, **how)), batch_size=None, num_workers=2, **options)
    assert stream(loader) == []
    assert stream(loader) == stream(_at_epoch(Batches(ds, 2, **how), 1))


@pytest.mark.parametrize("feed", [True, False])
def test_a_file_that_shrank_meanwhile_is_found_before_the_next_epoch_of_workers(feed, tmp_path):
    """Read through its map it would end the worker."""
    write_split(tmp_path / "train", "memmap", documents(60))
    batches = Batches(open_dataset(tmp_path / "train"), 4)
    loader = Feed(batches, 1) if feed else DataLoader(Stream(batches), batch_size=None, num_workers=1)
    assert len(stream(loader)) == len(batches)
    path = tmp_path / "train/input_ids.mmap"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 2)
    with pytest.raises(CorruptFile, match="truncated"):
        stream(loader)


def test_accelerate_does_not_divide_a_feed_again(ds):
    accelerate = pytest.importorskip("accelerate", reason="not among our extras")
    feed = Feed(Batches(ds, 4, 1))
    assert accelerate.Accelerator(cpu=True).prepare(feed) is feed


def test_examples_by_number_for_a_sampler_of_ones_own(ds):
    rows = Rows(ds)
    assert len(rows) == len(ds)
    assert rows[3]["ids"].tolist() == ds[3]["ids"].tolist()
    assert rows[3]["ids"].dtype == torch.int64
    loader = DataLoader(rows, batch_size=5, collate_fn=lambda examples: [one["length"] for one in examples])
    assert [n for part in loader for n in part] == ds.lengths().tolist()


def test_attention_of_torch_takes_the_mask(ds):
    batch = as_tensors(next(iter(Batches(ds, 3, mask="documents", pad_id=0))))
    width = batch["tokens"].shape[1]
    query = torch.randn(3, 1, width, 8)
    out = torch.nn.functional.scaled_dot_product_attention(
        query, query, query, attn_mask=batch["attn_mask"][:, None]
    )
    assert torch.isfinite(out).all()
    loss = torch.nn.functional.cross_entropy(torch.zeros(3 * width, 600), batch["targets"].long().reshape(-1))
    assert loss.item() == pytest.approx(np.log(600), rel=1e-5)
    assert EOS in batch["tokens"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("workers", [0, 2])
def test_pinned_batches(ds, workers):
    for batch in Feed(Batches(ds, 4), workers, pin_memory=True):
        assert batch["tokens"].is_pinned()
