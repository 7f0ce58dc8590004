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

import numpy as np

from tokmill.artifacts.progress import Progress
from tokmill.errors import InputError, MissingExtra, install_hint, plural
from tokmill.loader.dataset import Dataset
from tokmill.proxy.held_out import By, HeldOut, Texts, load_held_out, load_text
from tokmill.proxy.items import Items, load_items
from tokmill.proxy.schedule import Schedule
from tokmill.proxy.shapes import find_size
from tokmill.proxy.targets import Target
from tokmill.scores.device import Device, choose_device

_STEPS = 1000  # of a schedule, where nothing else is asked for
_LEAST_TOKENS, _MOST_TOKENS = 1 << 11, 1 << 19  # of a step
_LENGTH = 512  # of pieces, where a build has no rows
_SAMPLED_ROWS = 1 << 14  # of which it is known how many tokens they have, where they have not all as many

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
    tokens: int  # that went through all its models, without padding
    learned: int  # of those
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
        notes += _budget_notes(target, schedule, learned[0].tokens, asked)
        if (epochs := learned[0].epochs) > 1:
            notes.append(
                f"{target.name}: the budget is larger than the data, which is seen {epochs:.1f} times"
            )
    _add_mean(scores, [one.name for one in texts[: len(texts) - len(asked.text)]], asked.by)
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
        learned=sum(one.learned for one in learned),
        flops=tokens * schedule.shape.flops_per_token(target.vocab_size, schedule.length),
        seconds=math.fsum(one.seconds for one in learned),
        last_losses=[_end_of(one.losses) for one in learned],
    )


def _budget_notes(target: Target, schedule: Schedule, tokens: int, asked: Asked) -> Iterator[str]:
    if abs(tokens - asked.tokens) > asked.tokens / 100:
        yield (
            f"{target.name}: a model is trained on {tokens:,} tokens, in {plural(schedule.steps, 'step')}; "
            f"{asked.tokens:,} were asked for"
        )
    if (unseen := 1 - _supply(target.train, schedule.length).seen) > 0.01:
        yield (
            f"{target.name}: its documents are cut at {schedule.length:,} tokens (`--length`), and no model "
            f"sees the rest, {unseen:.0%} of all"
        )


def _end_of(losses: Sequence[float]) -> float:
    last = losses[-max(len(losses) // 20, 1) :]
    return math.fsum(last) / len(last)


def _add_mean(scores: Scores, domains: Sequence[str], by: By) -> None:
    """Of held-out domains or sources, each as much as any other."""
    if len(domains) < 2:
        return
    metric = next(metric for name, metric in scores if name == domains[0])
    by_target: dict[str, list[float]] = {}
    for target, values in scores[domains[0], metric].items():
        by_target[target] = [
            math.fsum(scores[domain, metric][target][at] for domain in domains) / len(domains)
            for at in range(len(values))
        ]
    scores[f"mean of {by}s", metric] = by_target


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
    """Of every target: as many steps and tokens of a step for all, as many rows as that makes of its own.
    Exactly, where rows are full; of documents and padded rows on average."""
    widths = [target.train.facts.seq_len for target in targets]
    length = asked.length or min((own for own in widths if own is not None), default=_LENGTH)
    for target, own in zip(targets, widths, strict=True):
        if own is not None and own % length:
            raise InputError(
                f"its rows have {own:,} tokens, which is no multiple of {length:,}",
                where=str(target.directory),
                next=f"set `--length` to a number that divides {own:,}",
            )
    supplies = [_supply(target.train, length) for target in targets]
    unit = math.lcm(*(int(supply.row) for supply in supplies if supply.is_full))
    wanted = asked.batch_tokens
    if wanted is None:
        most = min(int(len(target.train) * one.row) for target, one in zip(targets, supplies, strict=True))
        least = min(max(asked.tokens // _STEPS, _LEAST_TOKENS), _MOST_TOKENS, most)
        wanted = max(1 << max(least, 1).bit_length() - 1, unit)
    batch = wanted - wanted % unit
    steps = max(round(asked.tokens / max(batch, 1)), 1)
    schedules = []
    for target, supply in zip(targets, supplies, strict=True):
        rows = round(batch / supply.row) if supply.is_full else max(round(batch / supply.row), 1)
        if not 1 <= rows <= len(target.train):
            has = f"{plural(len(target.train), 'row')} of {supply.row:,.0f} tokens"
            raise InputError(
                f"has {has}, and a step takes {wanted:,}",
                where=str(target.directory),
                next=_other_batch(rows, unit, max(int(one.row) for one in supplies)),
            )
        schedules.append(Schedule(find_size(asked.size), steps, rows, length, asked.rate, mask=asked.mask))
    return schedules


def _other_batch(rows: int, unit: int, longest: int) -> str:
    if rows < 1:
        return f"set `--batch-tokens` to {unit} or more"
    if unit > longest:
        return "build them with lengths of which one divides the other, so that a step can be smaller"
    return "set a smaller `--batch-tokens`, or build it from more documents"


class _Supply(NamedTuple):
    """What a row, or a document, of a build gives to a step."""

    row: float  # tokens, without padding
    seen: float  # share of all tokens that is not cut off
    is_full: bool  # every row has as many


def _supply(train: Dataset, length: int) -> _Supply:
    facts = train.facts
    if facts.seq_len is not None and facts.pad_id is None:
        return _Supply(facts.seq_len, 1.0, is_full=True)
    some = np.linspace(0, len(train) - 1, min(len(train), _SAMPLED_ROWS)).astype(np.int64)
    lengths = train.lengths(some)
    seen = np.minimum(lengths, length) if facts.seq_len is None else lengths
    return _Supply(max(float(seen.mean()), 1.0), float(seen.sum() / max(lengths.sum(), 1)), is_full=False)


def _experiments() -> Any:
    try:
        from tokmill.proxy import experiments
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtra(
            "PyTorch is not installed", where="tokmill ablate", next=install_hint("torch")
        ) from error
    return experiments
