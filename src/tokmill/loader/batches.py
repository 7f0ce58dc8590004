"""Batches of one global order, cut for ranks and workers, exact to the step.

    global order     s0 s1 s2 s3 s4 s5 s6 s7 s8 s9 …          order.py: a function of (seed, epoch)
    step             |───────── 0 ─────────|── 1 ──           world_size * batch_size samples
    rank             |─ 0 ─|─ 1 ─|─ 2 ─|─ 3|                  batch_size each, side by side
    state            (epoch, position)                        samples that all ranks took together
                     left_out                                 epochs that ended before their last sample

A state says how far the global order was used, and what it is the order of. So a run may go on with another
number of ranks, workers or samples per batch: it gets the samples that come next, each once.

The last step of an epoch may have fewer samples than ranks have room for. They are then divided evenly,
so that every rank takes the same number of steps; a rank's share may be empty. `drop_last` leaves them out,
and the state says of which epochs.

Batches made ahead on a thread of their own, while the trainer computes.

    thread    make ─ put ─ make ─ put ─ wait …         at most `depth` wait to be taken
    caller           take ─ train ─────── take …       an error in the thread is raised here, in its place

The thread ends with the loop: at the last batch, at `break`, at an error on either side.
"""

from __future__ import annotations

import operator
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tokmill.errors import InputError, TokenizerMismatch
from tokmill.loader.collating import (
    Collation,
    Mask,
    Targets,
    TooLong,
    collate_block,
    collate_ids,
    collate_padded,
    collate_plain,
    filled_masks,
    named,
)
from tokmill.loader.dataset import Dataset
from tokmill.loader.naming import IGNORE_INDEX, Batch, Names
from tokmill.loader.order import Bucketing, Order, Placed, Shuffle
from tokmill.loader.origins import Origins, origins_of

T = TypeVar("T")


class _End:
    def __init__(self, error: BaseException | None) -> None:
        self.error = error


class Ahead(Generic[T]):
    """The items of an iterator, up to `depth` of them made before they are asked for."""

    def __init__(self, items: Iterator[T], depth: int) -> None:
        assert depth >= 1, "nothing would be made ahead"
        self._items = items
        self._made: queue.Queue[T | _End] = queue.Queue(maxsize=depth)
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._make, name="tokmill-prefetch", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[T]:
        try:
            while True:
                item = self._made.get()
                if isinstance(item, _End):
                    if item.error is not None:
                        raise item.error
                    return
                yield item
        finally:
            self.close()

    def close(self) -> None:
        """No more is made. Returns when the thread has ended."""
        self._is_over.set()
        while self._thread.is_alive():
            try:  # it may wait for room
                self._made.get_nowait()
            except queue.Empty:
                self._thread.join(timeout=0.01)

    def _make(self) -> None:
        error: BaseException | None = None
        try:
            for item in self._items:
                self._made.put(item)
                if self._is_over.is_set():
                    return
        except BaseException as caught:  # noqa: BLE001 - raised again where the batch was wanted
            error = caught
        self._made.put(_End(error))


_STATE_VERSION = 1

# Rows that are looked up at a time, as the order places them:
# 1.4 µs for a batch by itself, of a thousand 0.1 each.
_ROWS_AHEAD = 8192


class Step(NamedTuple):
    """Samples start … stop - 1 of an epoch, all ranks together."""

    epoch: int
    start: int
    stop: int


class Batches:
    """Iterating gives the rest of the current epoch, then the next epoch is the current one.

    Rows come in a new order in each epoch (`shuffle="epoch"`), or as they lie ("none"), which is the default
    where a build says that its rows are in order. Several datasets need `weights`, one for each. `prefetch`
    batches are made ahead on a thread. With `origins` a batch says whose its rows and tokens are: `source`
    and `domain` (B,), `token_source` and `token_domain` (B, T), by their numbers in `batches.sources` and
    `batches.domains`; padding is -1.
    `names="huggingface"` gives what models of transformers are called with: see naming.py.
    """

    def __init__(
        self,
        dataset: Dataset | Sequence[Dataset],
        batch_size: int,
        seed: int = 0,
        *,
        weights: Sequence[float | str] | None = None,
        shuffle: Shuffle | None = None,
        bucketing: Bucketing | None = None,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        prefetch: int = 0,
        length: int | None = None,
        pad_id: int | None = None,
        mask: Mask = "tokens",
        targets: Targets = "stream",
        varlen: bool = False,
        too_long: TooLong = "refuse",
        ignore_index: int = IGNORE_INDEX,
        dtype: DTypeLike | None = None,
        origins: bool = False,
        names: Names = "tokmill",
    ) -> None:
        self.datasets = [dataset] if isinstance(dataset, Dataset) else list(dataset)
        _check_datasets(self.datasets)
        if shuffle is None:
            shuffle = "none" if any(one.is_in_order for one in self.datasets) else "epoch"
        batch_size, rank = whole_number("batch_size", batch_size), whole_number("rank", rank)
        world_size, prefetch = whole_number("world_size", world_size), whole_number("prefetch", prefetch)
        seed = whole_number("seed", seed)
        _check_numbers(batch_size, rank, world_size, prefetch, shuffle)
        if weights is None:
            if len(self.datasets) > 1:
                raise InputError(
                    f"{len(self.datasets)} datasets and no weights",
                    where="weights",
                    next="give one for each dataset, in any proportion: [0.7, 0.3]",
                )
            weights = [1]
        self.batch_size, self.rank, self.world_size = batch_size, rank, world_size
        self.drop_last, self.prefetch = drop_last, prefetch
        facts = self.datasets[0].facts
        if pad_id is None:
            pad_id = next(id for id in (facts.pad_id, facts.eos_id, 0) if id is not None)
        self.how = Collation(
            pad_id, length, mask, targets, varlen, facts.eos_id, too_long, ignore_index, dtype, names
        ).checked()
        self.order = Order(
            [len(one) for one in self.datasets],
            weights,
            seed,
            shuffle,
            None if bucketing is None else _pair(bucketing),
            self._lengths,
        )
        self.epoch, self.position = 0, 0
        self.left_out: dict[int, int] = {}  # by epoch: of one that ended early, the samples that were taken
        self._numbered: tuple[list[str], list[str]] | None = None
        seq_lens = {one.facts.seq_len for one in self.datasets}
        self._is_block = len(seq_lens) == 1 and all(
            one.store.seq_len is not None and one.index is None for one in self.datasets
        )
        self._is_masked = any(one.store.loss is not None for one in self.datasets)
        self._plain = self._plain_way()
        self._origins = self._shared_origins() if origins else None

    def __getstate__(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "_plain": None,
            "_origins": self._origins is not None,
        }  # ways into files: found again where they are mapped again

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._plain = self._plain_way()
        self._origins = self._shared_origins() if state["_origins"] else None

    @property
    def sources(self) -> list[str]:
        """Of all datasets together, by their numbers."""
        if self._numbered is not None:
            return self._numbered[0]
        return sorted({name for one in self.datasets for name in one.sources})

    @property
    def domains(self) -> list[str]:
        if self._numbered is not None:
            return self._numbered[1]
        return sorted({name for one in self.datasets for name in one.domains})

    def number_among(self, sources: list[str], domains: list[str]) -> None:
        """By longer lists, which others share."""
        self._numbered = sources, domains
        self._origins = self._shared_origins()

    def _shared_origins(self) -> list[Origins]:
        """Of each dataset, numbered alike."""
        sources, domains = self.sources, self.domains
        return [one.origins.renumbered(sources, domains) for one in self.datasets]

    def _plain_way(self) -> Callable[[NDArray[np.int64]], Batch] | None:
        """The way of most, from rows of one dataset to a batch:
        as they are, with the padding that they have."""
        how, dataset = self.how, self.datasets[0]
        block, facts = dataset.store.block, dataset.facts
        is_plain = self._is_block and how.is_plain and how.length in (None, facts.seq_len)
        is_plain = is_plain and dataset.store.loss is None
        if not is_plain or len(self.datasets) > 1 or facts.pad_id not in (None, how.pad_id):
            return None
        if facts.pad_id is None:
            return lambda rows: collate_plain(block(rows), how)
        return lambda rows: collate_padded(taken := block(rows), dataset.ends(taken), how)

    def _lengths(self, source: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.datasets[source].lengths(rows)

    @property
    def epoch_samples(self) -> int:
        return self.order.epoch_samples

    def __len__(self) -> int:
        """Steps of a whole epoch."""
        samples, of_a_step = self.epoch_samples, self.batch_size * self.world_size
        return samples // of_a_step if self.drop_last else -(-samples // of_a_step)

    def __iter__(self) -> Iterator[Batch]:
        return self._handed_over(self.epoch, self.position)

    def _handed_over(self, epoch: int, position: int) -> Iterator[Batch]:
        """The position is set before a batch is used: a state taken in the loop is that after this batch."""
        self.check_unchanged()
        if self.prefetch:
            steps = self.steps(epoch, position)
            for step, batch in Ahead(((step, self.batch_of(step)) for step in steps), self.prefetch):
                self.took(epoch, step.stop)
                yield batch
        else:
            if self._plain is not None and self._origins is None and self.how.names == "tokmill":
                plain, of_a_step = self._plain, self.batch_size * self.world_size
                # what `batch_of` gives, 4 µs sooner of 24
                for rows in self._rows_of_full_steps(epoch, position):
                    batch = plain(rows)
                    position += of_a_step
                    self.took(epoch, position)
                    yield batch
            for step in self.steps(epoch, position):
                batch = self.batch_of(step)
                self.took(epoch, step.stop)
                yield batch
        if self.epoch == epoch:  # nothing was left of it
            self.end_epoch(epoch, position)

    def check_unchanged(self) -> None:
        for dataset in self.datasets:
            dataset.check_unchanged()

    def took(self, epoch: int, position: int) -> None:
        """All samples before this one are handed out. After the last step of an epoch the next one is the
        current one: a trainer that counts its steps does not ask whether there is another."""
        of_a_step = self.batch_size * self.world_size if self.drop_last else 1
        is_last = position + of_a_step > self.epoch_samples
        if is_last:
            self.end_epoch(epoch, position)
        else:
            self.epoch, self.position = epoch, position

    def end_epoch(self, epoch: int, position: int) -> None:
        """All steps from this sample on are taken: the next epoch is the current one."""
        left = self.epoch_samples - position
        over = left % (self.batch_size * self.world_size) if self.drop_last else 0
        self.left_out.pop(epoch, None)  # it may have been walked before
        if over:
            self.left_out[epoch] = self.epoch_samples - over
        self.epoch, self.position = epoch + 1, 0

    def _rows_of_full_steps(self, epoch: int, position: int) -> Iterator[NDArray[np.int64]]:
        """This rank's rows of each step that all ranks have a whole batch of, in the only dataset."""
        of_a_step, mine = self.batch_size * self.world_size, self.rank * self.batch_size
        last = position + (self.epoch_samples - position) // of_a_step * of_a_step
        while position < last:
            # as many whole steps as end in the same block of the order, or one that does not
            left = (_ROWS_AHEAD - position % _ROWS_AHEAD) // of_a_step * of_a_step
            stop = min(position + max(left, of_a_step), last)
            rows = self.order.between(epoch, position, stop).row
            yield from rows.reshape(-1, of_a_step)[:, mine : mine + self.batch_size]
            position = stop

    def steps(self, epoch: int, position: int, worker: int = 0, workers: int = 1) -> Iterator[Step]:
        """The steps of what is left of an epoch; of those, every `workers`-th from the `worker`-th on."""
        of_a_step = self.batch_size * self.world_size
        end = self.epoch_samples
        for start in range(position + worker * of_a_step, end, workers * of_a_step):
            stop = min(start + of_a_step, end)
            if stop - start == of_a_step or not self.drop_last:
                yield Step(epoch, start, stop)

    def part_of(self, step: Step, rank: int) -> tuple[int, int]:
        """The samples of an epoch that are a rank's part of a step."""
        start, samples, world_size = step.start, step.stop - step.start, self.world_size
        return start + samples * rank // world_size, start + samples * (rank + 1) // world_size

    def batch_of(self, step: Step) -> Batch:
        """This rank's part of a step."""
        placed = self.order.between(step.epoch, *self.part_of(step, self.rank))
        batch = self._plain(placed.row) if self._plain is not None else self._collated(placed)
        if self._origins is not None:
            batch = {**batch, **self._origins_of(placed, batch)}
        return named(batch, self.how)

    def _origins_of(self, placed: Placed, batch: Batch) -> Batch:
        assert self._origins is not None, "was asked for"
        width = batch["tokens"].shape[1]
        if len(self._origins) == 1:
            return origins_of(self._origins[0], placed.row, batch["lengths"], width)
        found: Batch = {}
        for number, origins in enumerate(self._origins):
            mine = np.flatnonzero(placed.source == number)
            own = origins_of(origins, placed.row[mine], batch["lengths"][mine], width)
            for name, values in own.items():
                whole = found.setdefault(name, np.empty((len(placed.row), *values.shape[1:]), np.int32))
                whole[mine] = values
        return found

    def sample(self, epoch: int, number: int) -> tuple[int, int]:
        """Which row of which dataset is the n-th sample of an epoch."""
        placed = self.order.between(epoch, number, number + 1)
        return int(placed.source[0]), int(placed.row[0])

    def _collated(self, placed: Placed) -> Batch:
        if self._is_block:
            return collate_block(*self._block(placed), self.how, self._loss_block(placed))
        examples = [
            self.datasets[source][row]
            for source, row in zip(placed.source.tolist(), placed.row.tolist(), strict=True)
        ]
        starts = [example.get("starts") for example in examples]
        known = None if any(one is None for one in starts) else starts
        ids = [example["ids"] for example in examples]
        masks = (
            filled_masks([example.get("loss_mask") for example in examples], ids) if self._is_masked else None
        )
        return collate_ids(ids, known or None, self.how, masks)

    def _loss_block(self, placed: Placed) -> NDArray[np.integer] | None:
        """What is learned of the same rows: all, where a dataset has no mask; None where none has one."""
        if not self._is_masked:
            return None
        mask = np.ones((len(placed.row), self.datasets[0].facts.seq_len or 0), np.uint8)
        for number, dataset in enumerate(self.datasets):
            mine = np.flatnonzero(placed.source == number)
            if mine.size and dataset.store.loss is not None:
                mask[mine] = dataset.store.loss.block(placed.row[mine])
        return mask

    def _block(self, placed: Placed) -> tuple[NDArray[np.integer], NDArray[np.int64]]:
        width = self.datasets[0].facts.seq_len
        block = np.empty((len(placed.row), width or 0), np.int32)
        lengths = np.full(len(placed.row), width, np.int64)
        for number, dataset in enumerate(self.datasets):
            mine = np.flatnonzero(placed.source == number)
            if mine.size:
                block[mine] = dataset.store.block(placed.row[mine])
                if dataset.facts.pad_id is not None:
                    lengths[mine] = dataset.ends(block[mine])
        return block, lengths

    def identity(self) -> dict[str, Any]:
        """What the global order is a function of."""
        order = self.order
        return {
            "version": _STATE_VERSION,
            "seed": order.seed,
            "shuffle": order.shuffle,
            "bucketing": None if order.bucketing is None else list(order.bucketing),
            "weights": order.turns.weights,
            "datasets": [{"fingerprint": one.fingerprint, "samples": len(one)} for one in self.datasets],
        }

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and strings: how far the global order was handed out."""
        state = {**self.identity(), "epoch": self.epoch, "position": self.position}
        left_out = [[epoch, taken] for epoch, taken in sorted(self.left_out.items()) if epoch < self.epoch]
        return {**state, "left_out": left_out} if left_out else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there, with the next loop that is begun."""
        for name, mine in self.identity().items():
            if name not in state or state[name] != mine:
                raise InputError(
                    f"{name} is {state.get(name)} there, but {mine} here: another order of samples",
                    where="load_state_dict",
                    next="open the datasets that the state was saved with, with the same seed and weights; "
                    "batch size, ranks and workers may change",
                )
        epoch, position = state.get("epoch"), state.get("position")
        if not isinstance(epoch, WHOLE) or not isinstance(position, WHOLE) or epoch < 0:
            raise InputError(f"epoch {epoch}, position {position}", where="load_state_dict")
        epoch, position = int(epoch), int(position)
        if not 0 <= position <= self.epoch_samples:
            raise InputError(
                f"position {position:,} in an epoch of {self.epoch_samples:,}", where="load_state_dict"
            )
        left_out = left_out_of(state, [self.epoch_samples] * epoch)
        self.epoch, self.position, self.left_out = epoch, position, left_out


def left_out_of(state: Mapping[str, Any], samples: Sequence[int]) -> dict[int, int]:
    """Of parts of an order that are over and have so many samples each: what was taken of those that ended
    before their last one. A state that does not say it had all."""
    try:
        pairs = [(int(number), int(taken)) for number, taken in state.get("left_out", [])]
        if all(number >= 0 and 0 <= taken < samples[number] for number, taken in pairs):
            return dict(pairs)
    except (TypeError, ValueError, IndexError):
        pass
    raise InputError(f"left out {state['left_out']!r:.60}", where="load_state_dict")


WHOLE = (int, np.integer)


def whole_number(name: str, value: Any) -> int:
    """One of NumPy's is one of Python's from here on: states are written as JSON."""
    try:
        return operator.index(value)
    except TypeError:
        raise InputError(f"{value!r} is no whole number", where=name, next="give one, such as 8") from None


def _pair(bucketing: Any) -> Bucketing:
    try:
        window, run = bucketing
    except (TypeError, ValueError):
        raise InputError(
            f"{bucketing!r} is no window and run", where="bucketing", next="give both, such as (4096, 64)"
        ) from None
    return Bucketing(whole_number("bucketing", window), whole_number("bucketing", run))


def _check_numbers(batch_size: int, rank: int, world_size: int, prefetch: int, shuffle: str) -> None:
    for name, value, least in (
        ("batch_size", batch_size, 1),
        ("world_size", world_size, 1),
        ("rank", rank, 0),
        ("prefetch", prefetch, 0),
    ):
        if value < least:
            raise InputError(f"{value} is below {least}", where=name, next=f"set {least} or more")
    if rank >= world_size:
        raise InputError(f"rank {rank} of {world_size}", where="rank", next="ranks count from 0")
    if shuffle not in ("epoch", "none"):
        raise InputError(f"{shuffle!r} is not known", where="shuffle", next='set "epoch" or "none"')


def _check_datasets(datasets: list[Dataset]) -> None:
    """Ids of one batch must mean the same."""
    if not datasets:
        raise InputError("no dataset", where="Batches", next="give one, or some and their weights")
    for dataset in datasets:
        if not len(dataset):
            raise InputError("has no examples", where=str(dataset.directory), next="leave it out")
        for name in ("tokenizer_sha256", "eos_id"):
            told = [getattr(one.facts, name) for one in (datasets[0], dataset)]
            if None not in told and told[0] != told[1]:
                raise TokenizerMismatch(
                    f"{name} is {told[1]}, but {told[0]} in {datasets[0].directory}",
                    where=str(dataset.directory),
                    next="mix datasets of one tokenizer",
                )
