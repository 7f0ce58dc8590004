"""Which build is better to train on? Small models are trained on each of them, with several seeds, and judged
on the same texts.

    A B …                             builds, or runs: the first is what the others are compared with
    recipe --leave-one-out sources    variants.py: the recipe, and the recipe without each of its sources
    recipe --grid 32                  variants.py, mixtures.py: other weights, and those that would be better
        ─ trials.py ─ comparing.py ─> Ablation ─> out/ablation.json, out/ablation.md, a table

All that took time lies below `out`, so the same command goes on where it was killed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.plugins import show_hooks
from tokmill.artifacts.progress import Progress, Silence
from tokmill.errors import InputError, plural
from tokmill.proxy.comparing import Difference, compare
from tokmill.proxy.held_out import By, HeldOut
from tokmill.proxy.mixtures import LEAST_MIXTURES, propose
from tokmill.proxy.page import page_of
from tokmill.proxy.shapes import Size, find_size
from tokmill.proxy.targets import Target, open_targets
from tokmill.proxy.trials import Asked, Scores, Trial, refuse_trials, run_trials
from tokmill.proxy.variants import Parts, run_grid, run_without
from tokmill.recipe.names import parse_amount
from tokmill.scores.device import Device, choose_device, device_name
from tokmill.storage.disk import commit_bytes, make_directory
from tokmill.storage.lease import open_lease

# Found at widths 64 and 256 (docs/decisions/0029-proxy-models.md): widths.py makes it that of all.
RATE = 0.002

HIGHER_IS_BETTER = frozenset({"accuracy", "accuracy_by_bytes"})


@short_repr
@dataclasses.dataclass(frozen=True)
class Ablation:
    out: Path
    asked: dict[str, Any]
    trials: list[Trial]
    texts: list[dict[str, Any]]  # what was judged on
    scores: list[dict[str, Any]]  # of every model
    differences: list[Difference]  # from the first build
    notes: list[str]  # what has to be known to read them
    mixture: dict[str, Any] | None = None  # proposed weights

    @property
    def seconds(self) -> float:
        return math.fsum(trial.seconds for trial in self.trials)

    def as_json(self) -> dict[str, Any]:
        return {
            "out": str(self.out),
            "asked": self.asked,
            "targets": [trial.as_json() for trial in self.trials],
            "texts": self.texts,
            "scores": self.scores,
            "differences": [one._asdict() for one in self.differences],
            "notes": self.notes,
            **({"mixture": self.mixture} if self.mixture is not None else {}),
            "seconds": round(self.seconds, 3),
        }


def ablate(
    targets: Sequence[str | Path],
    *,
    build: str | None = None,
    seeds: int = 5,
    size: Size = "8M",
    tokens: int | str = 20_000_000,
    length: int | None = None,
    batch_tokens: int | str | None = None,
    rate: float = RATE,
    mask: Literal["causal", "documents"] = "causal",
    device: Device = "auto",
    held_out: HeldOut = "first",
    by: By = "domain",
    held_out_bytes: int | str = 1_000_000,
    text: Sequence[str | Path] = (),
    choices: Sequence[str | Path] = (),
    confidence: float = 0.99,
    leave_one_out: Parts | None = None,
    grid: int | None = None,
    spread: float = 8.0,
    hooks: str | Path | None = None,
    workers: int | None = None,
    out: str | Path = "ablation",
    progress: Progress | None = None,
) -> Ablation:
    """Train small models on builds, and say on which texts one is better than the first, and how sure.

    `targets` are builds, or runs of which `build` is compared; with `leave_one_out` or `grid` one recipe,
    whose variants are run below `out`. `seeds` models of `size` see `tokens` of each build. They are judged
    in bits per byte on documents that are held out (`held_out`: of the first build, of all, or those common
    to all; `by` domain or source; at most `held_out_bytes` of each), on files (`text`), and on questions
    (`choices`). `grid`: so many mixtures around the recipe's weights, the closer the larger `spread` is.
    `hooks` is the Python file of a recipe that builds have their format or tokenizer of: it is run.
    """
    asked = Asked(
        size=size,
        tokens=_amount(tokens, "tokens"),
        seeds=seeds,
        rate=rate,
        length=length,
        batch_tokens=None if batch_tokens is None else _amount(batch_tokens, "batch_tokens"),
        mask=mask,
        device=device,
        confidence=confidence,
        held_out=held_out,
        by=by,
        held_out_bytes=_amount(held_out_bytes, "held_out_bytes"),
        text=_paths(text),
        choices=_paths(choices),
    )
    _check(asked, leave_one_out, grid, spread)
    if hooks is not None:
        show_hooks(Path(hooks))
    place, listener = Path(out), progress or Silence()
    make_directory(place)
    with open_lease(place, "ablation"):
        if leave_one_out is None and grid is None:
            result = _ablated(open_targets(targets, build), asked, place, listener)
        else:
            recipe = _one_recipe(targets)
            refuse_trials(asked)
            if leave_one_out is not None:
                variants = run_without(recipe, leave_one_out, place / "runs", build, workers, listener)
                result = _ablated(variants, asked, place, listener)
            else:
                assert grid is not None, "one of the two"
                drawn = run_grid(recipe, grid, spread, place / "runs", build, workers, listener)
                result = _ablated(drawn.targets, asked, place, listener)
                _write(result)  # whatever becomes of the proposal
                proposal = propose(drawn.weights, _by_target(result), drawn.present)
                result = dataclasses.replace(result, mixture=proposal.as_json())
        _write(result)
    return result


def _ablated(targets: Sequence[Target], asked: Asked, out: Path, progress: Progress) -> Ablation:
    found = run_trials(targets, asked, out, progress)
    return Ablation(
        out=out,
        asked={**asked.as_json(), "device": device_name(choose_device(asked.device))},
        trials=found.trials,
        texts=found.texts,
        scores=list(_flat(found.scores)),
        differences=compare(found.scores, confidence=asked.confidence, higher_is_better=HIGHER_IS_BETTER),
        notes=[*found.notes, *_warnings(asked)],
    )


def _flat(scores: Scores) -> Iterator[dict[str, Any]]:
    for (name, metric), by_target in scores.items():
        for target, values in by_target.items():
            for seed, value in enumerate(values, 1):
                yield {"target": target, "seed": seed, "name": name, "metric": metric, "value": value}


def _warnings(asked: Asked) -> Iterator[str]:
    if asked.seeds == 1:
        yield "one seed: luck and effect cannot be told apart; `--seeds 3` or more can"


def _by_target(result: Ablation) -> dict[str, list[float]]:
    """Of every variant, by seed: bits per byte, the mean of all that was judged in them."""
    found: dict[str, dict[int, list[float]]] = {}
    names = {text["name"] for text in result.texts}
    for one in result.scores:
        if one["metric"] == "bits_per_byte" and one["name"] in names:
            found.setdefault(one["target"], {}).setdefault(one["seed"], []).append(one["value"])
    assert found, "there is a text, or the grid was refused"
    return {
        target: [math.fsum(values) / len(values) for values in by_seed.values()]
        for target, by_seed in found.items()
    }


def _write(result: Ablation) -> None:
    data = msgspec.json.format(msgspec.json.encode(result.as_json()), indent=1)
    commit_bytes(result.out / "ablation.json", data + b"\n")
    commit_bytes(result.out / "ablation.md", page_of(result).encode())


def _one_recipe(targets: Sequence[str | Path]) -> Path:
    if len(targets) != 1 or not Path(targets[0]).is_file():
        raise InputError(
            "variants are made of one recipe",
            where=", ".join(map(str, targets)),
            next="give its file; `tokmill ablate A B` compares builds that are there already",
        )
    return Path(targets[0])


def _amount(value: int | str, name: str) -> int:
    try:
        return parse_amount(value)
    except ValueError as error:
        raise InputError(str(error), where=name, next="write 20M, or 500k") from error


def _paths(given: Sequence[str | Path]) -> tuple[Path, ...]:
    return tuple(Path(one) for one in ([given] if isinstance(given, (str, Path)) else given))


def _check(asked: Asked, leave_one_out: Parts | None, grid: int | None, spread: float) -> None:
    find_size(asked.size)
    for name, value, good in (("rate", asked.rate, RATE), ("spread", spread, 8)):
        if not 0 < value < math.inf:
            raise InputError(f"{value}", where=name, next=f"set a number above 0: {good}")
    if asked.seeds < 1:
        raise InputError(f"{asked.seeds} seeds", where="seeds", next="set 1 or more; 5 is a good number")
    if not 0.5 <= asked.confidence < 1:
        raise InputError(f"{asked.confidence}", where="confidence", next="set it between 0.5 and 1: 0.99")
    if leave_one_out is not None and grid is not None:
        raise InputError("both were asked for", where="grid", next="leave out `--grid` or `--leave-one-out`")
    if grid is not None:
        _check_grid(asked, grid)


def _check_grid(asked: Asked, grid: int) -> None:
    if grid + 1 < LEAST_MIXTURES:
        raise InputError(
            f"{plural(grid, 'mixture')} and that of the recipe are too few for a regression",
            where="grid",
            next=f"set `--grid` to {LEAST_MIXTURES - 1} or more; 8 for every domain is a good number",
        )
    if asked.held_out == "none" and not asked.text:
        raise InputError(
            "weights are proposed by bits per byte, and there is no text to measure them on",
            where="grid",
            next="give `--text FILE`, or hold texts out",
        )
