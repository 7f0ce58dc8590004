"""Original arithmetic word problems with worked solutions, the same bytes on every Python.

    problem i of seed s  =  Draw("problem", s, i, attempt)  ->  a shape  ->  question, steps, answer
    draw k of Draw("problem", 42, 7)  =  first 8 bytes of sha256("problem:42:7#k") as a big-endian integer

A question that was asked before is drawn again with the next `attempt`, so no two are equal, and the first n
problems of a seed are the same however many are asked for. `random.Random` promises its sequence only for
`random()`; the methods on top of it have changed between Python versions, and these bytes must not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from itertools import count as counting
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Draw:
    """Draws from an identity."""

    def __init__(self, *identity: str | int) -> None:
        self._key = ":".join(str(part) for part in identity)
        self._count = 0

    def below(self, bound: int) -> int:
        """0 <= result < bound. The bias of the modulo is below bound / 2**64."""
        digest = hashlib.sha256(f"{self._key}#{self._count}".encode()).digest()
        self._count += 1
        return int.from_bytes(digest[:8], "big") % bound

    def between(self, low: int, high: int) -> int:
        """low <= result <= high."""
        return low + self.below(high - low + 1)

    def pick(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def either(self, one: str, other: str) -> str:
        """One of two wordings."""
        return other if self.below(2) else one

    def pick_two(self, items: Sequence[T]) -> tuple[T, T]:
        """Two different positions."""
        first = self.below(len(items))
        second = self.below(len(items) - 1)
        return items[first], items[second + (second >= first)]


class Person(NamedTuple):
    name: str
    she: str


_SHE = """
    Aiko Amara Anahit Aroha Ayşe Beatriz Chiara Dilnoza Ewa Fatou Freya Hana Ingrid Katalin Leila Linh Lucía
    Malia Mei Nadia Noor Olena Priya Rosa Siobhán Tala Thandiwe Wanjiru Yael Zainab
"""
_HE = """
    Arjun Bjørn Cillian Diego Eitan Emeka Gábor Hiroshi Idris João Kamau Keoni Kofi Lars Levan Luca Mateo
    Minjun Nikos Omar Piotr Rangi Rustam Sipho Taras Tariq Tenzin Tuan Wei Yusuf
"""
PEOPLE = [Person(name, "she") for name in _SHE.split()] + [Person(name, "he") for name in _HE.split()]

# Things that are counted, bought a few at a time, and packed.
_GOODS = """
    apples bells bookmarks bowls bracelets buttons candles chisels cups dumplings eggs envelopes figs
    kites lanterns lemons mangoes marbles mugs notebooks oranges pears pencils plums postcards seashells
    spoons stamps stickers
"""
GOODS = _GOODS.split()
_WARES = [
    "backpack",
    "blanket",
    "chair",
    "coat",
    "drum",
    "guitar",
    "kettle",
    "lamp",
    "rug",
    "tent",
    "wheelbarrow",
]
_CURRENCIES = ["crowns", "dirhams", "dollars", "euros", "francs", "pesos", "pounds", "rupees"]
_VEHICLES = ["A camper van", "A coach", "A delivery van", "A freight train", "A night train", "A truck"]
_LEGS = [
    ("hens", "goats"),
    ("ducks", "rabbits"),
    ("geese", "sheep"),
    ("turkeys", "cows"),
    ("ostriches", "llamas"),
]
_RATIOS = [(3, 2), (4, 3), (5, 2), (5, 3), (5, 4), (7, 2), (7, 3), (7, 4), (7, 5), (8, 3), (9, 4), (9, 5)]


class Worked(NamedTuple):
    """What a shape makes of its draws."""

    question: str  # every given quantity in digits
    steps: tuple[str, ...]  # sentences whose equations a reader (and a test) can check one by one
    answer: int


def _change(draw: Draw) -> Worked:
    (who, she), (one, other), money = draw.pick(PEOPLE), draw.pick_two(GOODS), draw.pick(_CURRENCIES)
    n, m, x, y = draw.between(2, 9), draw.between(2, 9), draw.between(2, 12), draw.between(2, 12)
    cost = n * x + m * y
    paid = (cost // 50 + 1) * 50
    question = draw.either(
        f"{who} buys {n} {one} at {x} {money} each and {m} {other} at {y} {money} each, and pays with "
        f"{paid} {money}. How much change does {she} get back?",
        f"At the market, {one} cost {x} {money} apiece and {other} cost {y} {money} apiece. {who} takes {n} "
        f"{one} and {m} {other} and hands over {paid} {money}. How many {money} does the seller give back?",
    )
    steps = (
        f"The {one} cost {n} × {x} = {n * x} {money}.",
        f"The {other} cost {m} × {y} = {m * y} {money}.",
        f"Together that is {n * x} + {m * y} = {cost} {money}.",
        f"The change is {paid} - {cost} = {paid - cost} {money}.",
    )
    return Worked(question, steps, paid - cost)


def _saving(draw: Draw) -> Worked:
    (who, she), ware, money = draw.pick(PEOPLE), draw.pick(_WARES), draw.pick(_CURRENCIES)
    has, weekly, weeks = draw.between(10, 90), draw.between(6, 35), draw.between(3, 20)
    rest = draw.between(1, weekly - 1)
    missing = weekly * weeks + rest
    question = draw.either(
        f"{who} has {has} {money} and puts aside {weekly} {money} every week for a {ware} that costs "
        f"{has + missing} {money}. After how many weeks can {she} buy it?",
        f"A {ware} costs {has + missing} {money}. {who} already owns {has} {money} and earns {weekly} more "
        f"each week by walking dogs. How many weeks does {she} have to work for it?",
    )
    steps = (
        f"{who} still needs {has + missing} - {has} = {missing} {money}.",
        (
            f"{missing} ÷ {weekly} = {weeks} remainder {rest}, so one more week is needed: {weeks} + 1 = "
            f"{weeks + 1}."
        ),
    )
    return Worked(question, steps, weeks + 1)


def _journey(draw: Draw) -> Worked:
    what = draw.pick(_VEHICLES)
    t, u, v, w = draw.between(2, 6), draw.between(2, 6), 5 * draw.between(8, 16), 5 * draw.between(8, 18)
    first, second, rest = t * v, u * w, 10 * draw.between(2, 30)
    route = first + second + rest
    question = draw.either(
        f"{what} has {route} kilometres to go. It travels for {t} hours at {v} kilometres per hour and then "
        f"for {u} hours at {w} kilometres per hour. How many kilometres are still left?",
        f"The way to the coast is {route} kilometres long. {what} sets out at {v} kilometres per hour for "
        f"the first {t} hours and at {w} kilometres per hour for the next {u} hours. How many kilometres "
        "remain after that?",
    )
    steps = (
        f"In the first {t} hours it covers {t} × {v} = {first} kilometres.",
        f"In the next {u} hours it covers {u} × {w} = {second} kilometres.",
        f"That makes {first} + {second} = {first + second} kilometres.",
        f"What is left is {route} - {first + second} = {rest} kilometres.",
    )
    return Worked(question, steps, rest)


def _timetable(draw: Draw) -> Worked:
    first, hours, seats = draw.between(5, 9), draw.between(3, 12), draw.between(18, 80)
    every = draw.pick([10, 12, 15, 20, 30])
    last, gaps = first + hours, hours * 60 // every
    question = draw.either(
        f"The first ferry leaves at {first}:00 and another follows every {every} minutes; the last one "
        f"leaves at {last}:00. Each ferry has room for {seats} passengers. How many passengers can cross in "
        "a day?",
        f"A shuttle bus with {seats} seats leaves the station every {every} minutes, for the first time at "
        f"{first}:00 and for the last time at {last}:00. How many seats does it offer in all?",
    )
    steps = (
        f"From the first departure to the last it is {last} - {first} = {hours} hours.",
        f"In minutes that is {hours} × 60 = {hours * 60}.",
        f"There are {hours * 60} ÷ {every} = {gaps} intervals, and {gaps} + 1 = {gaps + 1} departures.",
        f"Together they have room for {gaps + 1} × {seats} = {(gaps + 1) * seats} people.",
    )
    return Worked(question, steps, (gaps + 1) * seats)


def _ratio(draw: Draw) -> Worked:
    ((one, _), (other, _)), goods = draw.pick_two(PEOPLE), draw.pick(GOODS)
    (a, b), part = draw.pick(_RATIOS), draw.between(3, 40)
    total = (a + b) * part
    question = draw.either(
        f"{one} and {other} divide {total} {goods} in the ratio {a} to {b}. "
        f"How many more does {one} get than {other}?",
        f"For every {a} {goods} that {one} packs, {other} packs {b}. Together they pack {total} {goods}. "
        f"By how many is {one} ahead?",
    )
    steps = (
        f"There are {a} + {b} = {a + b} equal parts.",
        f"One part is {total} ÷ {a + b} = {part} {goods}.",
        f"{one} has {a} × {part} = {a * part} and {other} has {b} × {part} = {b * part}.",
        f"The difference is {a * part} - {b * part} = {(a - b) * part} {goods}.",
    )
    return Worked(question, steps, (a - b) * part)


def _heads_and_legs(draw: Draw) -> Worked:
    (who, she), (birds, beasts) = draw.pick(PEOPLE), draw.pick(_LEGS)
    two, four = draw.between(3, 60), draw.between(3, 60)
    heads, legs = two + four, 2 * two + 4 * four
    question = draw.either(
        f"{who} keeps {birds} and {beasts}. {she.capitalize()} counts {heads} heads and {legs} legs. "
        f"How many {beasts} are there?",
        f"On a farm live {heads} animals, all of them {birds} or {beasts}. Together they have {legs} legs. "
        f"How many {beasts} does {who} have to feed?",
    )
    steps = (
        f"If all of them were {birds}, there would be 2 × {heads} = {2 * heads} legs.",
        f"There are {legs} - {2 * heads} = {legs - 2 * heads} legs more than that.",
        f"Each of the {beasts} brings 4 - 2 = 2 more, so there are {legs - 2 * heads} ÷ 2 = {four} {beasts}.",
    )
    return Worked(question, steps, four)


# The order is part of the bytes: append.
_SHAPES: tuple[Callable[[Draw], Worked], ...] = (
    *(_change, _saving, _journey, _timetable, _ratio, _heads_and_legs),
)


def generate_problems(count: int, seed: int) -> list[dict[str, str]]:
    """`id`, `question` and `answer`: steps, then a line `Answer: N`."""
    asked: set[str] = set()
    problems = []
    for index in range(count):
        for attempt in counting():
            draw = Draw("problem", seed, index, attempt)
            worked = draw.pick(_SHAPES)(draw)
            if worked.question not in asked:
                break
        asked.add(worked.question)
        answer = "\n".join([*worked.steps, f"Answer: {worked.answer}"])
        problems.append({"id": f"problem-{index:05}", "question": worked.question, "answer": answer})
    return problems
