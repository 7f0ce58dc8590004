"""The same batches as tensors, for `torch.utils.data.DataLoader` and `torchdata`'s `StatefulDataLoader`.

Rows(ds)               map-style: examples by number, for a sampler and a collate function of your own
Stream(batches)        iterable: whole batches, so DataLoader(Stream(batches), batch_size=None, num_workers=2)
Feed(batches, …)       such a DataLoader that knows where it is: batches.state_dict() is right at every step,
                       and may be loaded with another number of workers, ranks or samples per batch

worker 0   step 0     step 2     step 4          each worker makes every num_workers-th step, and DataLoader
worker 1        step 1     step 3     …          takes from them in turns: the order is that of one process

Tensors share the memory of the arrays; `pin_memory=True` copies them once, to where a GPU can fetch them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tokmill.errors import InputError, MissingExtra, install_hint
from tokmill.loader.batches import Batches, Step
from tokmill.loader.curriculum import Curriculum
from tokmill.loader.dataset import Dataset
from tokmill.loader.naming import Batch

try:
    import torch
    from torch.utils.data import DataLoader, IterableDataset, get_worker_info
    from torch.utils.data import Dataset as MapDataset
except ImportError as error:
    raise MissingExtra(
        "PyTorch is not installed", where="tokmill.loader.torch", next=install_hint("torch")
    ) from error


def as_tensors(batch: Batch) -> dict[str, Any]:
    """Arrays become tensors of the same memory. Views of files are read-only, which tensors cannot be:
    those are copied."""
    return {name: _tensor(value) if isinstance(value, np.ndarray) else value for name, value in batch.items()}


def _tensor(array: Any) -> Any:
    return torch.from_numpy(array if array.flags.writeable else array.copy())


class Rows(MapDataset):  # type: ignore[misc]
    """`rows[i]` is {"ids": tensor, "length"}: one example, without padding; of conversations with
    "loss_mask", True where an id is learned."""

    def __init__(self, dataset: Dataset, dtype: Any = torch.int64) -> None:
        self.dataset, self.dtype = dataset, dtype

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> dict[str, Any]:
        example = self.dataset[row]
        # int32 on the way: torch knows no uint16 to speak of
        ids = torch.from_numpy(example["ids"].astype(np.int32)).to(self.dtype)
        found = {"ids": ids, "length": example["length"]}
        if "loss_mask" in example:
            found["loss_mask"] = torch.from_numpy(example["loss_mask"] == 1)
        return found

    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        return [self[row] for row in rows]


class Stream(IterableDataset):  # type: ignore[misc]
    """The rest of the current epoch, batch by batch; `set_epoch` begins another.

    In a worker of a DataLoader it gives that worker's steps. Its state is the worker's own:
    StatefulDataLoader keeps one for each, and wants the same number of workers back; within an epoch also
    steps of the same size.
    """

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        # epoch, position, worker, workers, and samples of a step, which older states lack
        self._next: tuple[int, ...] | None = None

    def __len__(self) -> int:
        return len(self.batches)

    def set_epoch(self, epoch: int) -> None:
        self.batches.epoch, self.batches.position, self._next = epoch, 0, None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        batches, info = self.batches, get_worker_info()
        if info is None:
            for batch in batches:
                yield as_tensors(batch)
            return
        epoch, position, worker, workers = batches.epoch, batches.position, info.id, info.num_workers
        stride = batches.batch_size * batches.world_size
        batches.check_unchanged()
        end = batches.epoch_samples
        if self._next is not None and self._next[2:4] == (worker, workers):
            if self._next[1] < end:
                _check_stride(self._next, stride)
            epoch, position = self._next[0], self._next[1] - worker * stride
        for step in batches.steps(epoch, position, worker, workers):
            start = step.start + workers * stride
            if batches.drop_last and start + stride > end:
                start = end
            self._next = (epoch, start, worker, workers, stride)
            yield as_tensors(batches.batch_of(step))
        batches.end_epoch(epoch, batches.position)
        self._next = None

    def state_dict(self) -> dict[str, Any]:
        return {**self.batches.state_dict(), "next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        state = dict(state)
        following = state.pop("next", None)
        self.batches.load_state_dict(state)
        self._next = None if following is None else tuple(following)


def _check_stride(following: tuple[int, ...], stride: int) -> None:
    if following[4:] not in ((), (stride,)):
        raise InputError(
            f"steps of {following[4]:,} samples there, but of {stride:,} here: workers would give samples "
            "twice, and leave out others",
            where="load_state_dict",
            next="keep batch size and ranks until the end of the epoch, or train from "
            "a Feed, where they may change",
        )


class Feed:
    """Tensors of `batches`, made by `num_workers` processes; `batches` says at every step how far it is."""

    def __init__(
        self, batches: Batches | Curriculum, num_workers: int = 0, *, pin_memory: bool = False, **options: Any
    ) -> None:
        if num_workers and not isinstance(batches, Batches):
            raise InputError(
                "a curriculum is read by one process",
                where="num_workers",
                next="leave it out, and give the curriculum `prefetch`",
            )
        self.batches, self._workers, self._options = batches, num_workers, options
        self._pin_memory = pin_memory

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rest of the current epoch, or of a curriculum."""
        batches, workers = self.batches, self._workers
        if workers == 0 or not isinstance(batches, Batches):
            for batch in batches:
                tensors = as_tensors(batch)
                yield (
                    {name: _pinned(value) for name, value in tensors.items()} if self._pin_memory else tensors
                )
            return
        epoch = batches.epoch
        batches.check_unchanged()
        steps: Iterator[Step] = batches.steps(epoch, batches.position)
        loader = DataLoader(
            Stream(batches),
            batch_size=None,
            num_workers=workers,
            pin_memory=self._pin_memory,
            **self._options,
        )
        for step, batch in zip(steps, loader, strict=True):
            batches.took(epoch, step.stop)
            yield batch
        if batches.epoch == epoch:  # nothing was left of it
            batches.end_epoch(epoch, batches.position)


def _pinned(value: Any) -> Any:
    return value.pin_memory() if isinstance(value, torch.Tensor) else value
