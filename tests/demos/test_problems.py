from __future__ import annotations

import ast
import hashlib
import operator
import re
from fractions import Fraction

import pytest

from tokmill.demos.problems import Draw, generate_problems

# What everybody knows without being told: minutes, legs, the one more at the end of a row.
KNOWN = {1, 2, 4, 60}

_EQUATION = re.compile(r"(\d+(?: [-+×÷] \d+)+) = (\d+)(?: remainder (\d+))?")
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def evaluate(expression: str) -> Fraction:
    def value(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp):
            return Fraction(_OPERATORS[type(node.op)](value(node.left), value(node.right)))
        if isinstance(node, ast.UnaryOp):
            assert isinstance(node.op, ast.USub)
            return -value(node.operand)
        assert isinstance(node, ast.Constant)
        return Fraction(node.value)

    return value(ast.parse(expression, mode="eval").body)


def numbers(text: str) -> set[int]:
    return {int(digits) for digits in re.findall(r"\d+", text)}


def answer_of(problem: dict[str, str]) -> int:
    last = problem["answer"].split("\n")[-1]
    assert re.fullmatch(r"Answer: \d+", last)
    return int(last.removeprefix("Answer: "))


@pytest.fixture(scope="module")
def problems() -> list[dict[str, str]]:
    return generate_problems(2_000, 42)


def equations(problem: dict[str, str]) -> list[tuple[str, str, str]]:
    return _EQUATION.findall(problem["answer"])


def test_every_equation_starts_from_what_the_question_or_an_earlier_one_gives(
    problems: list[dict[str, str]],
) -> None:
    for problem in problems:
        given = numbers(problem["question"]) | KNOWN
        for left, right, _ in equations(problem):
            assert numbers(left) <= given, problem
            given.add(int(right))


def test_every_number_in_a_question_matters(problems: list[dict[str, str]]) -> None:
    for problem in problems:
        used = set().union(*(numbers(left) for left, _, _ in equations(problem)))
        assert numbers(problem["question"]) - used <= {0}, problem  # 7:00


def test_every_equation_in_a_solution_is_true_and_the_last_one_gives_the_answer(
    problems: list[dict[str, str]],
) -> None:
    for problem in problems:
        found = equations(problem)
        assert len(found) >= 2, problem
        assert problem["answer"].count("=") == len(found), problem
        for left, right, remainder in found:
            left = left.replace("×", "*").replace("÷", "/")
            if remainder:
                total, size = (int(part) for part in left.split(" / "))
                assert divmod(total, size) == (int(right), int(remainder)), problem
            else:
                assert evaluate(left) == int(right), problem
        assert int(found[-1][1]) == answer_of(problem) > 0, problem


def test_no_two_problems_are_equal(problems: list[dict[str, str]]) -> None:
    assert len({problem["question"] for problem in problems}) == len(problems) == 2_000
    assert len({problem["id"] for problem in problems}) == 2_000


def test_solutions_have_several_shapes(problems: list[dict[str, str]]) -> None:
    shapes = {tuple(re.sub(r"\d+", "#", left) for left, _, _ in equations(problem)) for problem in problems}
    assert len(shapes) >= 5


def test_one_of_a_thing_is_not_plural(problems: list[dict[str, str]]) -> None:
    text = "\n".join(problem["question"] + "\n" + problem["answer"] for problem in problems)
    assert re.findall(r"(?<![-+×÷=] )\b1 [a-z]+s\b", text) == []


def test_clock_times_exist(problems: list[dict[str, str]]) -> None:
    times = re.findall(r"(\d+):(\d\d)", "\n".join(problem["question"] for problem in problems))
    assert times
    assert all(int(hour) < 24 and int(minute) < 60 for hour, minute in times)


def test_the_first_problems_do_not_depend_on_how_many_are_asked_for(problems: list[dict[str, str]]) -> None:
    assert generate_problems(50, 42) == problems[:50]
    assert generate_problems(50, 43) != problems[:50]
    assert generate_problems(0, 42) == []


def test_the_bytes_are_the_same_on_every_python(problems: list[dict[str, str]]) -> None:
    digest = hashlib.sha256("\0".join(text for problem in problems for text in problem.values()).encode())
    assert digest.hexdigest() == "5f6a5f5ba738baab65984b7bb853fcaba0c384c24d6425bd215663e9b06e5b7a"


def test_two_picks_are_never_the_same_position() -> None:
    pairs = [Draw("pair", i).pick_two("abc") for i in range(300)]
    assert {"".join(pair) for pair in pairs} == {"ab", "ac", "ba", "bc", "ca", "cb"}


def test_draws_stay_between_their_bounds() -> None:
    draw = Draw("bounds")
    assert {draw.between(3, 7) for _ in range(300)} == {3, 4, 5, 6, 7}
