"""A suite of cases: which is drawn next, which pairs of options were met, and what is left of one that fails.

draw      a recipe with two options that were seldom drawn together
shrink    sections, options, sources, documents and lines are taken out, as long as the same fault remains
"""

from __future__ import annotations

import copy
import itertools
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from random_recipes.oracles import Fault, Refused, try_case
from random_recipes.recipes import Case, draw_case, drawable, options, repaired


class Pairs:
    """How often each two options were in one recipe: drawn, and milled to its end."""

    def __init__(self) -> None:
        self.drawn: Counter[tuple[str, ...]] = Counter()
        self.met: Counter[tuple[str, ...]] = Counter()
        self.seen: set[str] = set()

    def rarest(self, rng: random.Random, among: int = 300) -> frozenset[str]:
        """Words of two options that were seldom drawn together."""
        names = sorted(drawable() | self.seen)
        pairs = [tuple(sorted(rng.sample(names, 2))) for _ in range(among)]
        one, other = min(pairs, key=lambda pair: self.drawn[pair])
        return frozenset(re.split(r"[.=]", f"{one}.{other}"))

    def add(self, names: list[str]) -> None:
        self.seen |= set(names)
        self.drawn.update(itertools.combinations(names, 2))

    def table(self) -> str:
        """Option, option, in how many recipes; least first."""
        lines = [
            f"{count}\t{one}\t{other}"
            for (one, other), count in sorted(self.met.items(), key=lambda item: (item[1], item[0]))
        ]
        return "\n".join(["met\toption\tand", *lines]) + "\n"


@dataclass
class Found:
    name: str
    case: Case
    what: str
    times: int = 1


class Suite:
    def __init__(self, seed: str, scratch: Path, dear: float = 1.0, shrink_seconds: float = 60) -> None:
        self.seed, self.scratch, self.dear, self.shrink_seconds = seed, scratch, dear, shrink_seconds
        self.rng = random.Random(f"random recipes {seed}")
        self.begun = time.monotonic()
        self.pairs = Pairs()
        self.faults: dict[str, Found] = {}
        self.refusals: Counter[str] = Counter()
        self.examples: dict[str, str] = {}
        self.did: Counter[str] = Counter()

    def draw(self) -> Case:
        while True:
            rng = random.Random(self.rng.getrandbits(64))
            if (case := draw_case(rng, self.pairs.rarest(rng))) is not None:
                self.pairs.add(sorted(options(case.recipe)))
                return case

    def try_one(self, name: str, case: Case) -> None:
        try:
            trial = try_case(case, self.scratch / "case", self.dear)
        except Refused as refused:
            place, _, what = str(refused).partition(": ")
            self.refusals[place] += 1
            self.examples[place] = what[:150].replace("\n", " ")
            return
        self.did.update(trial.did)
        self.did["milled"] += 1
        self.pairs.met.update(itertools.combinations(sorted(options(case.recipe)), 2))
        for fault in trial.faults:
            if fault.kind in self.faults:
                self.faults[fault.kind].times += 1
                continue
            print(f"case {name}: {fault.kind}", flush=True)
            smaller = shrink(case, fault, self.scratch / "shrunk", self.dear, self.shrink_seconds)
            self.faults[fault.kind] = Found(name, *smaller)

    def told(self) -> str:
        done = f"{dict(self.did)}, {self.refusals.total()} refused, {len(self.pairs.met)} pairs met"
        lines = [f"seed {self.seed}: {time.monotonic() - self.begun:.0f} s, {done}"]
        lines += [
            f"  refused {count} times: {place}, as: {self.examples[place]}"
            for place, count in self.refusals.most_common(30)
        ]
        for kind, found in sorted(self.faults.items(), key=lambda item: -item[1].times):
            lines += [
                f"\n=== {kind}   ({found.times} times, first case {found.name})",
                found.what,
                repr(found.case.as_json())[:6000],
            ]
        return "\n".join(lines)


def shrink(case: Case, fault: Fault, scratch: Path, dear: float, seconds: float) -> tuple[Case, str]:
    """The least of the case that still has the fault, as far as the time goes, and what is said of it."""
    deadline, what = time.monotonic() + seconds, fault.what
    went_on = True
    while went_on:
        went_on = False
        for smaller in _smaller(case):
            if time.monotonic() > deadline:
                return case, what
            try:
                faults = try_case(smaller, scratch, dear).faults
            except Exception:  # refused, or not to be drawn as such: what it says is nothing
                continue
            if others := [other.what for other in faults if other.kind == fault.kind]:
                case, what, went_on = smaller, others[0], True
                break
    return case, what


def _smaller(case: Case) -> Iterator[Case]:
    """Without a half of a file's records, a source, a section, an option, …: the largest parts first."""
    for path in list(case.files):
        records = case.files[path]
        step = (len(records) + 1) // 2
        while step:
            for start in range(0, len(records), step):
                yield Case(
                    case.recipe,
                    {**case.files, path: records[:start] + records[start + step :]},
                    case.neighbour,
                    case.seed,
                )
            step = step // 2
    for place in _places(case.recipe, ()):
        recipe, neighbour = _without(case.recipe, place), _without(case.neighbour, place)
        if recipe is not None:
            mentioned = str([recipe, neighbour])
            files = {
                path: records
                for path, records in case.files.items()
                if any(part in mentioned for part in path.split("/"))
            }
            yield Case(recipe, files, neighbour or recipe, case.seed)
    for path, records in case.files.items():
        for index, record in enumerate(records):
            if isinstance(record, dict):
                for key, value in record.items():
                    if isinstance(value, str) and len(value) > 60:
                        smaller: Any = {**record, key: value[: len(value) // 2]}
                    elif key != "text":
                        smaller = {name: own for name, own in record.items() if name != key}
                    else:
                        continue
                    yield Case(
                        case.recipe,
                        {**case.files, path: [*records[:index], smaller, *records[index + 1 :]]},
                        case.neighbour,
                        case.seed,
                    )


def _places(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """From the outside in, the last of a list first."""
    keys = (
        list(value)
        if isinstance(value, dict)
        else list(reversed(range(len(value))))
        if isinstance(value, list)
        else []
    )
    for key in keys:
        yield (*path, key)
    for key in keys:
        yield from _places(value[key], (*path, key))


def _without(recipe: Any, place: tuple[Any, ...]) -> Any:
    smaller = copy.deepcopy(recipe)
    holder = smaller
    for part in place[:-1]:
        if not (
            (isinstance(holder, dict) and part in holder)
            or (isinstance(holder, list) and isinstance(part, int) and part < len(holder))
        ):
            return None
        holder = holder[part]
    if (isinstance(holder, dict) and place[-1] in holder) or (
        isinstance(holder, list) and place[-1] < len(holder)
    ):
        del holder[place[-1]]
        return repaired(smaller)
    return None
