"""judge against a loop over documents and rules."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.clean.rules import judge
from tokmill.recipe import Filter

Fault = tuple[int, str, float, float]


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    low = draw(st.none() | st.integers(0, 10))
    high = draw(st.integers(low or 0, 12) if low is None else st.none() | st.integers(low, 12))
    reason = draw(st.none() | st.sampled_from(["too_odd", "too_plain"]))
    return Filter(measure=draw(st.sampled_from(["chars", "bytes"])), min=low, max=high, reason=reason)


DOCUMENTS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12), st.booleans()), max_size=8)


def slow_judge(documents: list[tuple[int, int, bool]], rules: list[Filter]) -> list[Fault]:
    faults = []
    for row, (chars, size, is_blank) in enumerate(documents):
        fault = first_fault({"chars": chars, "bytes": size}, is_blank, rules)
        if fault:
            faults.append((row, *fault))
    return faults


def first_fault(
    measured: dict[str, int], is_blank: bool, rules: list[Filter]
) -> tuple[str, float, float] | None:
    if is_blank:
        return "empty", 0, 1
    for rule in rules:
        value = measured[rule.measure]
        if rule.min is not None and value < rule.min:
            return rule.reason or f"too_few_{rule.measure}", value, rule.min
        if rule.max is not None and value > rule.max:
            return rule.reason or f"too_many_{rule.measure}", value, rule.max
    return None


def judged(documents: list[tuple[int, int, bool]], rules: list[Filter]) -> list[Fault]:
    chars, sizes, is_blank = (
        np.array([document[part] for document in documents], kind)
        for part, kind in enumerate((np.int64, np.int64, np.bool_))
    )
    found = judge({"chars": chars, "bytes": sizes}, rules, is_blank)
    columns = (found.rows.tolist(), found.reasons, found.values.tolist(), found.thresholds.tolist())
    return list(zip(*columns, strict=True))


@settings(deadline=None, max_examples=300)
@given(DOCUMENTS, st.lists(filters(), max_size=4))
def test_each_document_gets_the_first_rule_that_it_breaks(
    documents: list[tuple[int, int, bool]], rules: list[Filter]
) -> None:
    assert judged(documents, rules) == slow_judge(documents, rules)


def test_the_order_of_the_recipe_decides_which_reason_is_told() -> None:
    short = Filter(measure="chars", min=5)
    long = Filter(measure="bytes", max=9, reason="too_heavy")
    documents = [(3, 12, False)]
    assert judged(documents, [short, long]) == [(0, "too_few_chars", 3, 5)]
    assert judged(documents, [long, short]) == [(0, "too_heavy", 12, 9)]


def test_the_bounds_themselves_are_kept() -> None:
    rule = Filter(measure="chars", min=2, max=4)
    documents = [(chars, 0, False) for chars in range(1, 6)]
    assert judged(documents, [rule]) == [(0, "too_few_chars", 1, 2), (4, "too_many_chars", 5, 4)]


def test_a_blank_document_is_empty_whatever_the_rules_say() -> None:
    assert judged([(0, 0, True), (7, 7, True)], []) == [(0, "empty", 0, 1), (1, "empty", 0, 1)]
    assert judged([(0, 0, True)], [Filter(measure="chars", min=1)]) == [(0, "empty", 0, 1)]


def test_without_rules_everything_that_is_visible_stays() -> None:
    assert judged([(1, 1, False), (0, 0, False)], []) == []
    assert judged([], [Filter(measure="chars", min=1)]) == []


def test_a_bound_beyond_any_document_is_no_overflow() -> None:
    documents = [(5, 5, False)]
    assert judged(documents, [Filter(measure="chars", max=10**30)]) == []
    assert judged(documents, [Filter(measure="chars", min=10**30)]) == [(0, "too_few_chars", 5, 1e30)]
