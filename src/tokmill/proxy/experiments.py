"""One experiment: a build, a seed, a schedule; its model is trained once and judged on any texts.

    models/<key>/checkpoint.safetensors     while it trains
                 weights.safetensors        when it is trained, with its curve
                 scores.json                what it was judged on: how, and digest of the texts -> values

The key is a fingerprint of all that the weights depend on, device and version of PyTorch among it: the same
command goes on where it was killed, and one more build costs its own models only. Models that an older
tokmill trained or judged otherwise are not compared with those of today.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from tokmill.artifacts.manifest import fingerprint_of
from tokmill.proxy.checkpoints import load_arrays, write_arrays
from tokmill.proxy.choices import METRICS, answer_items
from tokmill.proxy.held_out import Texts
from tokmill.proxy.items import Items
from tokmill.proxy.judging import bits_per_byte
from tokmill.proxy.learning import can_compile as can_compile
from tokmill.proxy.learning import deterministic
from tokmill.proxy.model import Decoder
from tokmill.proxy.schedule import Schedule
from tokmill.proxy.targets import Target
from tokmill.proxy.training import Trainer
from tokmill.scores.device import device_name
from tokmill.storage.disk import commit_bytes, load_bytes, make_directory, remove_file

# Raised with every change of what comes out. Judging 2: conversations and control tokens as builds have them.
TRAINING, JUDGING = 1, 2

OnStep = Callable[[int, int], None]
BITS = "bits_per_byte"


class Learned(NamedTuple):
    """What is known of a trained model."""

    losses: list[float]
    tokens: int
    learned: int
    epochs: float
    seconds: float


class Experiment:
    def __init__(
        self, models: Path, target: Target, seed: int, schedule: Schedule, device: str, *, is_compiled: bool
    ) -> None:
        self.target, self.seed, self.schedule, self.device = target, seed, schedule, device
        self._is_compiled = is_compiled
        self._model: Decoder | None = None
        manifest = target.train.manifest
        identity = {
            "build": manifest.digest if manifest is not None else None,
            "train": target.train.fingerprint,
            "vocab_size": target.vocab_size,
            "seed": seed,
            "schedule": msgspec.to_builtins(schedule),
            "device": device_name(device),
            "torch": torch.__version__,
            "training": TRAINING,
        }
        self.directory = models / fingerprint_of(identity)[:24]

    def train(self, on_step: OnStep | None = None) -> Learned:
        weights = self.directory / "weights.safetensors"
        if weights.exists():
            notes = load_arrays(weights).notes
            return Learned(*(notes[name] for name in Learned._fields))
        make_directory(self.directory)
        trainer = Trainer(
            self.target.train,
            self.schedule,
            seed=self.seed,
            vocab_size=self.target.vocab_size,
            device=self.device,
            is_compiled=self._is_compiled,
        )
        checkpoint = self.directory / "checkpoint.safetensors"
        done = trainer.run(checkpoint, on_step=on_step)
        learned = Learned(done.losses, done.tokens, done.learned, done.epochs, done.seconds)
        arrays = {name: weight.detach().cpu().numpy() for name, weight in done.model.named_parameters()}
        write_arrays(weights, arrays, learned._asdict())
        remove_file(checkpoint)
        return learned

    def judge(self, texts: Sequence[Texts], items: Sequence[Items]) -> dict[tuple[str, str], float]:
        """By name and metric."""
        path = self.directory / "scores.json"
        known: dict[str, dict[str, float]] = msgspec.json.decode(load_bytes(path)) if path.exists() else {}
        before = len(known)
        with deterministic(self.device):
            for one in texts:
                if _key(one) not in known:
                    known[_key(one)] = {BITS: bits_per_byte(*self._with(one))}
            for asked in items:
                if _key(asked) not in known:
                    known[_key(asked)] = answer_items(*self._with(asked))
        if len(known) > before:
            commit_bytes(path, msgspec.json.format(msgspec.json.encode(known)))
        self._model = None
        found = {(one.name, BITS): known[_key(one)][BITS] for one in texts}
        return found | {(one.name, name): known[_key(one)][name] for one in items for name in METRICS}

    def _with(self, judged: Any) -> tuple[Decoder, Any, Any, dict[str, int], int | None, str]:
        if (
            self._model is None
        ):  # not the one that was trained: compiled, it would be so again for every shape
            schedule = self.schedule
            self._model = Decoder(
                schedule.shape, self.target.vocab_size, schedule.length, is_tied=schedule.is_tied
            )
            arrays = load_arrays(self.directory / "weights.safetensors").arrays
            self._model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
            self._model.to(self.device)
        target = self.target
        return self._model, judged, target.tokenizer, target.controls, target.context_id, self.device


def _key(judged: Texts | Items) -> str:
    return f"judging {JUDGING}: {judged.digest}"
