"""Every build with every seed: trained, judged, and what it cost.

targets ─┬─> schedules: one size, one budget of tokens, as many tokens in a step for all
         ├─> texts: held out, --text, --choices
         └─ build × seed ─ experiments.py ─> scores by (text, metric), build and seed ─> comparing.py
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokmill.artifacts.progress import Progress
from tokmill.errors import InputError, MissingExtra, plural
from tokmill.proxy.held_out import By, HeldOut, Texts, load_held_out, load_text
from tokmill.proxy.items import Items, load_items
from tokmill.proxy.schedule import Schedule
from tokmill.proxy.shapes import find_size
from tokmill.proxy.targets import Target
from tokmill.scores.device import Device, choose_device

MEAN = "mean of domains"

_STEPS = 1000  # of a schedule, where nothing else is asked for
_LEAST_TOKENS, _MOST_TOKENS = 1 << 11, 1 << 19  # of a step
_LENGTH = 512  # of pieces, where a build has no rows

Scores = dict[tuple[str, str], dict[str, list[float]]]  # by (name, metric), by target, by seed


@dataclasses.dataclass(frozen=True)
class Asked:
    """How models are trained and judged, whatever they are trained on."""

    size: str
    tokens: int
    seeds: int
    rate: float
    length: int | None = None
    batch_tokens: int | None = None
    mask: str = "causal"
    device: Device = "auto"
    confidence: float = 0.99
    held_out: HeldOut = "first"
    by: By = "domain"
    held_out_bytes: int = 1_000_000
    text: tuple[Path, ...] = ()
    choices: tuple[Path, ...] = ()

    def as_json(self) -> dict[str, Any]:
        told = dataclasses.asdict(self)
        return {
            **told,
            "text": [str(one) for one in self.text],
            "choices": [str(one) for one in self.choices],
        }


@dataclasses.dataclass(frozen=True)
class Trial:
    """The models of one build."""

    name: str
    directory: Path
    rows: int
    vocab_size: int
    weights: int  # of a model, with its embedding
    epochs: float
    tokens: int  # of all its models
    flops: int
    seconds: float
    last_losses: list[float]  # by seed: the mean of the last twentieth of a curve

    def as_json(self) -> dict[str, Any]:
        told = dataclasses.asdict(self)
        return {**told, "directory": str(self.directory), "seconds": round(self.seconds, 3)}


class Trials(NamedTuple):
    trials: list[Trial]
    scores: Scores
    texts: list[dict[str, Any]]  # what was judged on
    notes: list[str]


def run_trials(targets: Sequence[Target], asked: Asked, out: Path, progress: Progress) -> Trials:
    experiments = _experiments()
    device = choose_device(asked.device)
    texts, items, notes = load_judges(targets, asked)
    schedules = plan_schedules(targets, asked)
    is_compiled = experiments.can_compile(device)
    scores: Scores = {}
    trials = []
    for target, schedule in zip(targets, schedules, strict=True):
        learned = []
        for seed in range(1, asked.seeds + 1):
            experiment = experiments.Experiment(
                out / "models", target, seed, schedule, device, is_compiled=is_compiled
            )
            with _told(progress, f"{target.name}, seed {seed}") as on_step:
                learned.append(experiment.train(on_step))
                judged = experiment.judge(texts, items)
            for place, value in judged.items():
                scores.setdefault(place, {}).setdefault(target.name, []).append(value)
        trials.append(_trial(target, schedule, learned))
        if (epochs := learned[0].epochs) > 1:
            notes.append(
                f"{target.name}: the budget is larger than the data, which is seen {epochs:.1f} times"
            )
    _add_mean(scores, [one.name for one in texts[: len(texts) - len(asked.text)]])
    described: list[dict[str, Any]] = [
        {"name": one.name, "bytes": one.bytes, "documents": len(one.texts), "of": one.of} for one in texts
    ]
    described += [{"name": one.name, "items": len(one.items)} for one in items]
    return Trials(trials, scores, described, notes)


def _trial(target: Target, schedule: Schedule, learned: Sequence[Any]) -> Trial:
    tokens = sum(one.tokens for one in learned)
    return Trial(
        name=target.name,
        directory=target.directory,
        rows=len(target.train),
        vocab_size=target.vocab_size,
        weights=schedule.shape.weights(target.vocab_size, is_tied=schedule.is_tied),
        epochs=round(learned[0].epochs, 4),
        tokens=tokens,
        flops=tokens * schedule.shape.flops_per_token(target.vocab_size, schedule.length),
        seconds=math.fsum(one.seconds for one in learned),
        last_losses=[_end_of(one.losses) for one in learned],
    )


def _end_of(losses: Sequence[float]) -> float:
    last = losses[-max(len(losses) // 20, 1) :]
    return math.fsum(last) / len(last)


def _add_mean(scores: Scores, domains: Sequence[str]) -> None:
    """Of held-out domains, each as much as any other."""
    if len(domains) < 2:
        return
    metric = next(metric for name, metric in scores if name == domains[0])
    by_target: dict[str, list[float]] = {}
    for target, values in scores[domains[0], metric].items():
        by_target[target] = [
            math.fsum(scores[domain, metric][target][at] for domain in domains) / len(domains)
            for at in range(len(values))
        ]
    scores[MEAN, metric] = by_target


@contextlib.contextmanager
def _told(progress: Progress, name: str) -> Iterator[Any]:
    """One model is a step of the run, to whoever listens."""
    progress.begin_step(name, [])
    last = 0

    def on_step(done: int, total: int) -> None:
        nonlocal last
        if done == total or done - last >= max(total // 100, 1):
            last = done
            progress.count(name, done, total, "step")

    yield on_step


def refuse_trials(asked: Asked) -> None:
    """Where it is known already that no model could be trained, or judged."""
    _experiments()
    choose_device(asked.device)
    _load_files(asked)


def _load_files(asked: Asked) -> tuple[list[Texts], list[Items]]:
    if asked.held_out == "none" and not asked.text and not asked.choices:
        raise InputError(
            "there is nothing to judge the models on", where="held_out", next="give `--text FILE`"
        )
    return [load_text(path) for path in asked.text], [load_items(path) for path in asked.choices]


def load_judges(targets: Sequence[Target], asked: Asked) -> tuple[list[Texts], list[Items], list[str]]:
    """Texts, those held out first; items; and what there is to say of them."""
    own, items = _load_files(asked)
    texts: list[Texts] = []
    notes: list[str] = []
    if asked.held_out != "none":
        texts, seen = load_held_out(
            targets, whose=asked.held_out, by=asked.by, max_bytes=asked.held_out_bytes
        )
        if seen:
            notes.append(
                f"{plural(seen, 'held-out text')} left out: in the training data of one of the builds too"
            )
    texts += own
    names = [*(one.name for one in texts), *(one.name for one in items)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(
            f"two of the texts are called {twice[0]!r}", where="text", next="give the file another name"
        )
    return texts, items, notes


def plan_schedules(targets: Sequence[Target], asked: Asked) -> list[Schedule]:
    """Of every target: as many steps and tokens of a step for all, as many rows as that makes of its own."""
    lengths = [target.train.facts.seq_len or asked.length or _LENGTH for target in targets]
    length = asked.length or min(lengths)
    for target, own in zip(targets, lengths, strict=True):
        if own % length:
            raise InputError(
                f"its rows have {own:,} tokens, which is no multiple of {length:,}",
                where=str(target.directory),
                next=f"set `--length` to a number that divides {own:,}",
            )
    batch = asked.batch_tokens
    if batch is None:
        most = min(len(target.train) * own for target, own in zip(targets, lengths, strict=True))
        wanted = min(max(asked.tokens // _STEPS, _LEAST_TOKENS), _MOST_TOKENS, most)
        batch = max(1 << max(wanted, 1).bit_length() - 1, *lengths)
    steps = max(round(asked.tokens / batch), 1)
    schedules = []
    for target, own in zip(targets, lengths, strict=True):
        rows = batch // own
        if not 1 <= rows <= len(target.train):
            raise InputError(
                f"has {plural(len(target.train), 'row')} of {own:,} tokens, and a step takes {batch:,}",
                where=str(target.directory),
                next=f"set `--batch-tokens` to {own} or more"
                if rows < 1
                else "set a smaller `--batch-tokens`, or build it from more documents",
            )
        schedules.append(Schedule(find_size(asked.size), steps, rows, length, asked.rate, mask=asked.mask))
    return schedules


def _experiments() -> Any:
    try:
        from tokmill.proxy import experiments
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtra(
            "PyTorch is not installed", where="tokmill ablate", next="pip install 'tokmill[torch]'"
        ) from error
    return experiments
