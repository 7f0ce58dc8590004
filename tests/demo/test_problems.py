from __future__ import annotations

import ast
import hashlib
import operator
import re
from fractions import Fraction

import pytest

from tokmill.demo.draw import Draw
from tokmill.demo.problems import generate_problems

# What everybody knows without being told: minutes, grams, percent, legs, the ends of a row.
KNOWN = {1, 2, 4, 5, 10, 60, 100, 1000}

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


def test_the_check_expression_gives_the_answer(problems: list[dict[str, str]]) -> None:
    wrong = [problem for problem in problems if evaluate(problem["check"]) != answer_of(problem)]
    assert wrong == []


def test_the_check_expression_uses_only_what_the_question_gives(problems: list[dict[str, str]]) -> None:
    unsaid = [
        problem for problem in problems if numbers(problem["check"]) - numbers(problem["question"]) - KNOWN
    ]
    assert unsaid == []


def test_every_number_in_a_question_matters(problems: list[dict[str, str]]) -> None:
    idle = [
        (numbers(problem["question"]) - numbers(problem["check"]) - {0, 1, 4}, problem["question"])
        for problem in problems
        if numbers(problem["question"]) - numbers(problem["check"]) - {0, 1, 4}  # 7:00, 1/3, "first 4 days"
    ]
    assert idle == []


def test_every_equation_in_a_solution_is_true_and_the_last_one_gives_the_answer(
    problems: list[dict[str, str]],
) -> None:
    for problem in problems:
        equations = _EQUATION.findall(problem["answer"])
        assert len(equations) >= 2, problem
        assert problem["answer"].count("=") == len(equations), problem
        for left, right, remainder in equations:
            left = left.replace("×", "*").replace("÷", "/")
            if remainder:
                total, size = (int(part) for part in left.split(" / "))
                assert divmod(total, size) == (int(right), int(remainder)), problem
            else:
                assert evaluate(left) == int(right), problem
        assert int(equations[-1][1]) == answer_of(problem) > 0, problem


def test_no_two_problems_are_equal(problems: list[dict[str, str]]) -> None:
    assert len({problem["question"] for problem in problems}) == len(problems) == 2_000
    assert len({problem["id"] for problem in problems}) == 2_000


def test_there_are_a_dozen_shapes_and_more(problems: list[dict[str, str]]) -> None:
    checks = {re.sub(r"\d+", "#", problem["check"]) for problem in problems}
    assert len(checks) >= 12


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
    assert digest.hexdigest() == "20b53f499bf1ddbb51e2e69b60317b5a903ee206ef39b49165002ec9291489b3"


def test_two_picks_are_never_the_same_position() -> None:
    pairs = [Draw("pair", i).pick_two("abc") for i in range(300)]
    assert {"".join(pair) for pair in pairs} == {"ab", "ac", "ba", "bc", "ca", "cb"}


def test_draws_stay_between_their_bounds() -> None:
    draw = Draw("bounds")
    assert {draw.between(3, 7) for _ in range(300)} == {3, 4, 5, 6, 7}
