"""Train one model on one build: a fixed number of tokens, in the loader's own order, with a curve that is the
same for every run on a device, killed or not.

    build ─ Batches(seed) ─ rows (B, T) ─ pieces of `length` ─ micro-batches ─ loss ─ clip ─ AdamW ─> curve
              └ state ──────────────────┐                                              └ moments ─┐
                                        └──── checkpoint, once a minute ───────────────────────────┘

Seeds come from identity: a seed of the ablation gives the first weights (widths.py) and the order of rows,
for every build alike, so that two builds can be compared seed by seed. Rate: 5 % warmup, then a cosine down
to a twentieth. On a GPU products are in bf16 and sums in fp32, with algorithms that give the same result
twice; on a CPU all is fp32.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from tokmill.errors import CorruptFile, InputError
from tokmill.loader.batches import Batches
from tokmill.loader.dataset import Dataset
from tokmill.proxy.checkpoints import Stored, load_arrays, write_arrays
from tokmill.proxy.learning import Learner, deterministic
from tokmill.proxy.model import Decoder
from tokmill.proxy.schedule import Schedule
from tokmill.proxy.widths import seed_of


class Trained(NamedTuple):
    model: Decoder
    losses: list[float]  # nats per target, of every step
    tokens: int  # that went in, without padding
    learned: int  # of those, as targets
    epochs: float
    seconds: float  # of a CPU's time, or of a GPU's; what was resumed counts as it was


class Trainer:
    """One model, its optimizer and its loader; `run` goes on from where a checkpoint says."""

    def __init__(
        self,
        dataset: Dataset,
        schedule: Schedule,
        *,
        seed: int,
        vocab_size: int,
        device: str = "cpu",
        is_compiled: bool = False,
    ) -> None:
        self.dataset, self.schedule, self.device = dataset, schedule, device
        self.batches = Batches(
            dataset,
            schedule.rows,
            seed=seed_of("order", seed),
            drop_last=True,
            prefetch=2 if device == "cuda" else 0,
            length=dataset.facts.seq_len or schedule.length,
            too_long="cut",
            **_masking(schedule.mask),
        )
        self.learner = Learner(
            schedule, seed=seed, vocab_size=vocab_size, device=device, is_compiled=is_compiled
        )
        self.model, self.optimizer = self.learner.model, self.learner.optimizer
        self.losses: list[float] = []
        self.tokens, self.learned, self.seconds = 0, 0, 0.0
        self._unsettled = 0  # steps whose losses are not read yet: reading one waits for the device

    def run(
        self,
        checkpoint: Path | None = None,
        *,
        every_seconds: float = 60.0,
        on_step: Callable[[int, int], None] | None = None,
    ) -> Trained:
        """To the end of the schedule; `on_step(done, all)` hears of it."""
        with deterministic(self.device):
            if checkpoint is not None and checkpoint.exists():
                self._load(load_arrays(checkpoint), checkpoint)
            begun, clock, pending = time.monotonic(), _clock(self.device), []
            started = self.seconds
            for batch in self._rest():
                pending.append(self.step(batch))
                if on_step is not None:
                    on_step(len(self.losses) + len(pending), self.schedule.steps)
                if checkpoint is not None and time.monotonic() - begun >= every_seconds:
                    self._settle(pending)
                    self.seconds = started + _clock(self.device) - clock
                    self._save(checkpoint)
                    begun = time.monotonic()
            self._settle(pending)
            self.seconds = started + _clock(self.device) - clock
        if not np.isfinite(self.losses).all():
            raise InputError(
                f"the loss is not a number from step {int(np.argmin(np.isfinite(self.losses)))} on",
                where=str(self.dataset.directory),
                next="set a smaller `--rate`",
            )
        rows = self.schedule.rows * self.schedule.steps
        epochs = rows / len(self.dataset)
        return Trained(self.model, self.losses, self.tokens, self.learned, epochs, self.seconds)

    def _rest(self) -> Iterator[dict[str, Any]]:
        left = self.schedule.steps - len(self.losses)
        while left > 0:
            for batch in self.batches:
                yield batch
                left -= 1
                if left == 0:
                    return

    def step(self, batch: dict[str, Any]) -> Any:
        """Its loss, still on the device."""
        done = len(self.losses) + self._unsettled
        tokens, targets, allowed, count = self._pieces(batch)
        self.tokens += int(batch["lengths"].sum())
        self.learned += count
        self._unsettled += 1
        return self.learner.learn(done, tokens, targets, allowed, count)

    def _settle(self, pending: list[Any]) -> None:
        if pending:
            self.losses += torch.stack(pending).tolist()
        pending.clear()
        self._unsettled = 0

    def _pieces(self, batch: dict[str, Any]) -> tuple[Any, Any, Any, int]:
        """Rows cut into pieces of the length: no token is lost, since targets were made before."""
        length = self.schedule.length
        arrays = [batch["tokens"].astype(np.int64), batch["targets"].astype(np.int64)]
        if self.dataset.facts.seq_len is not None:
            arrays = [array.reshape(-1, length) for array in arrays]
        allowed = None
        if self.schedule.mask == "documents":
            allowed = torch.from_numpy(np.ascontiguousarray(batch["attn_mask"]))
            if arrays[0].shape[1] != allowed.shape[1]:
                parts = allowed.shape[1] // length
                blocks = [
                    allowed[:, at * length : (at + 1) * length, at * length : (at + 1) * length]
                    for at in range(parts)
                ]
                allowed = torch.stack(blocks, dim=1).reshape(-1, length, length)
            allowed = allowed.to(self.device)
        tensors = [torch.from_numpy(array) for array in arrays]
        if self.device == "cuda":
            tensors = [tensor.pin_memory().to(self.device, non_blocking=True) for tensor in tensors]
        return tensors[0], tensors[1], allowed, int((arrays[1] >= 0).sum())

    def _save(self, path: Path) -> None:
        arrays = {name: _array(weight) for name, weight in self.model.named_parameters()}
        for name, weight in self.model.named_parameters():
            state = self.optimizer.state[weight]
            arrays[f"first:{name}"] = _array(state["exp_avg"])
            arrays[f"second:{name}"] = _array(state["exp_avg_sq"])
        arrays["losses"] = np.array(self.losses, np.float64)
        notes = {
            "loader": self.batches.state_dict(),
            "schedule": _told(self.schedule),
            "steps": len(self.losses),
            "tokens": self.tokens,
            "learned": self.learned,
            "seconds": self.seconds,
        }
        write_arrays(path, arrays, notes)

    def _load(self, stored: Stored, path: Path) -> None:
        arrays, notes = stored
        if notes.get("schedule") != _told(self.schedule):
            raise CorruptFile(
                "is a checkpoint of another training",
                where=str(path),
                next="delete the file: what it is of is trained again",
            )
        self.batches.load_state_dict(notes["loader"])
        step = torch.tensor(float(notes["steps"]))
        with torch.no_grad():
            for name, weight in self.model.named_parameters():
                weight.copy_(torch.from_numpy(arrays[name]))
                moments = [torch.from_numpy(arrays[f"{order}:{name}"]) for order in ("first", "second")]
                self.optimizer.state[weight] = {
                    "step": step.clone().to(self.device),
                    "exp_avg": moments[0].to(self.device),
                    "exp_avg_sq": moments[1].to(self.device),
                }
        self.losses = arrays["losses"].tolist()
        self.tokens, self.learned, self.seconds = notes["tokens"], notes["learned"], notes["seconds"]


def _told(schedule: Schedule) -> Any:
    """As it comes back from JSON."""
    return msgspec.json.decode(msgspec.json.encode(schedule))


def _masking(mask: str) -> Any:
    return {"mask": "documents", "targets": "documents"} if mask == "documents" else {}


def _array(tensor: Any) -> Any:
    return tensor.detach().cpu().numpy()


def _clock(device: str) -> float:
    """Seconds of this process on all its cores; of a GPU, as long as it is held."""
    if device == "cuda":
        torch.cuda.synchronize()
        return time.monotonic()
    return time.process_time()
