"""Original arithmetic word problems with worked solutions, the same bytes on every Python.

    problem i of seed s  =  Draw("problem", s, i, attempt)  ->  a shape  ->  question, steps, answer

A question that was asked before is drawn again with the next `attempt`, so no two are equal, and the first
n problems of a seed are the same however many are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count as counting

from tokmill.demo.draw import Draw
from tokmill.demo.shapes import hours, money, parts
from tokmill.demo.shapes.worked import Worked

# The order is part of the bytes: append.
SHAPES: tuple[Callable[[Draw], Worked], ...] = (
    *(money.change, money.fence, money.discount, money.saving, money.overtime, money.profit),
    *(hours.two_legs, hours.leaking_tank, hours.timetable, hours.next_bus),
    *(hours.two_machines, hours.reading, hours.lengths, hours.candle),
    *(parts.left_over, parts.tiles, parts.flour, parts.ages, parts.ratio, parts.average),
    *(parts.giving_away, parts.trees, parts.heads_and_legs),
)


def generate_problems(count: int, seed: int) -> list[dict[str, str]]:
    """`id`, `question`, `answer` (steps, then a line `Answer: N`) and `check`, an expression that gives N."""
    asked: set[str] = set()
    problems = []
    for index in range(count):
        for attempt in counting():
            draw = Draw("problem", seed, index, attempt)
            worked = draw.pick(SHAPES)(draw)
            if worked.question not in asked:
                break
        asked.add(worked.question)
        answer = "\n".join([*worked.steps, f"Answer: {worked.value}"])
        problems.append(
            {
                "id": f"problem-{index:05}",
                "question": worked.question,
                "answer": answer,
                "check": worked.check,
            }
        )
    return problems
