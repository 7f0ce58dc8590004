"""Filters of a recipe as rules in order, and judge against a loop over documents and rules."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.clean.measures import MEASURES
from tokmill.clean.rules import PACKS, CompiledFilters, Rule, compile_filters, judge, load_pack
from tokmill.errors import RecipeError
from tokmill.recipe import Filter

COLUMNS = ("chars", "after.chars", "hook.hooks.py:loud")
NUMBERS = st.integers(-3, 12) | st.sampled_from([0.5, 2.5, -0.25, 1e30])


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    column, bound = draw(st.sampled_from(COLUMNS)), draw(st.sampled_from(["min", "max"]))
    reason = draw(st.sampled_from(["too_odd", "too_plain"]))
    return Rule(f"{column}.{bound}", column, bound, draw(NUMBERS), reason)  # type: ignore[arg-type]


@st.composite
def measured(draw: st.DrawFn) -> dict[str, list[float]]:
    count = draw(st.integers(0, 8))
    of_numbers = st.lists(NUMBERS.filter(lambda number: number < 1e20), min_size=count, max_size=count)
    return {column: draw(of_numbers) for column in COLUMNS}


def slow_judge(columns: dict[str, list[float]], rules: list[Rule]) -> list[tuple[int, float, float] | None]:
    found: list[tuple[int, float, float] | None] = []
    for row in range(len(columns["chars"])):
        fault = None
        for index, rule in enumerate(rules):
            value = columns[rule.column][row]
            is_broken = value < rule.threshold if rule.bound == "min" else value > rule.threshold
            if fault is None and is_broken:
                fault = (index, float(value), float(rule.threshold))
        found.append(fault)
    return found


def judged(columns: dict[str, list[float]], rules: list[Rule]) -> list[tuple[int, float, float] | None]:
    arrays = {
        name: np.array(values, np.float64 if any(isinstance(v, float) for v in values) else np.int64)
        for name, values in columns.items()
    }
    count = len(columns["chars"])
    found = judge(arrays, rules, count)
    assert [array.dtype for array in found] == [np.int64, np.float64, np.float64]
    return [
        None if first == len(rules) else (first, value, threshold)
        for first, value, threshold in zip(*(array.tolist() for array in found), strict=True)
    ]


@settings(deadline=None, max_examples=300)
@given(measured(), st.lists(rules(), max_size=5))
def test_each_document_gets_the_first_rule_that_it_breaks(
    columns: dict[str, list[float]], rules: list[Rule]
) -> None:
    assert judged(columns, rules) == slow_judge(columns, rules)


@settings(deadline=None, max_examples=100)
@given(measured(), rules())
def test_a_margin_is_negative_exactly_where_the_rule_is_broken(
    columns: dict[str, list[float]], rule: Rule
) -> None:
    values = np.array(columns[rule.column], np.float64)
    assert ((rule.margins(values) < 0) == rule.breaks(values)).all()


def test_the_bounds_themselves_are_kept() -> None:
    both = compile_filters([Filter(measure="chars", min=2, max=4)], Path()).rules
    columns = {"chars": [1, 2, 3, 4, 5]}
    assert judged(columns, both) == [(0, 1.0, 2.0), None, None, None, (1, 5.0, 4.0)]


def test_a_pack_by_its_name_has_all_its_rules_in_order() -> None:
    for name in PACKS:
        compiled = compile_filters([Filter(pack=name)], Path())
        pack = load_pack(name)
        assert [rule.name for rule in compiled.rules] == [
            f"{part.name}.{rule.name}" for part in pack.simple() for rule in part.rules
        ]
        assert compiled.packs == {name: pack.version}
        assert {column.removeprefix("after.") for column in compiled.columns()} <= set(MEASURES)


def test_set_changes_the_bounds_that_it_names_and_no_others() -> None:
    plain = compile_filters([Filter(pack="web-en")], Path())
    other = compile_filters(
        [Filter(pack="web-en", set={"min_words": 7, "max_short_line_share": 0.5, "min_sentences": 0})], Path()
    )
    changed = {
        rule.name: rule.threshold
        for rule, before in zip(other.rules, plain.rules, strict=True)
        if rule != before
    }
    assert changed == {
        "gopher-quality.min_words": 7,
        "fineweb.max_short_line_share": 0.5,
        "c4.min_sentences": 0,
    }
    assert [rule.reason for rule in other.rules] == [rule.reason for rule in plain.rules]


def test_rules_from_the_line_edits_on_judge_what_the_edits_left() -> None:
    own = Filter(measure="digit_share", max=0.3)
    compiled = compile_filters([own, Filter(pack="gopher-quality"), Filter(pack="c4"), own], Path())
    after = {rule.name for rule in compiled.rules if rule.column.startswith("after.")}
    assert after == {"c4.max_lorem_ipsum", "c4.max_open_braces", "c4.min_sentences", "digit_share.max"}
    assert [rule.column for rule in compiled.rules if rule.name == "digit_share.max"] == [
        "digit_share",
        "after.digit_share",
    ]
    assert compiled.line_edits is not None


def test_rules_of_ones_own_are_named_after_measure_and_bound() -> None:
    compiled = compile_filters(
        [Filter(measure="words", min=3, max=9), Filter(measure="urls", max=1, reason="ads")], Path()
    )
    assert [(rule.name, rule.threshold, rule.reason) for rule in compiled.rules] == [
        ("words.min", 3, "too_few_words"),
        ("words.max", 9, "too_many_words"),
        ("urls.max", 1, "ads"),
    ]


def test_where_packs_are_skipped_the_recipe_s_own_rules_stay_and_the_packs_are_named() -> None:
    filters = [Filter(pack="web-en"), Filter(measure="chars", min=5), Filter(pack="stage-a")]
    compiled = compile_filters(filters, Path(), skip_packs=True)
    assert [rule.name for rule in compiled.rules] == ["chars.min"]
    assert [rule.column for rule in compiled.rules] == ["chars"], "no pack edits lines here"
    assert (compiled.packs, compiled.skipped_packs, compiled.line_edits) == ({}, ("web-en", "stage-a"), None)


@pytest.mark.parametrize(
    ("filters", "what", "hint"),
    [
        ([Filter(pack="gopher-qualty")], "no filter pack 'gopher-qualty'", "'gopher-quality'"),
        ([Filter(measure="digits_share", max=1)], "no measure `digits_share`", "`digit_share`"),
        ([Filter(pack="web-en", set={"min_word": 1})], "web-en has no rule `min_word`", "`min_words`"),
        ([Filter(pack="c4", set={"zzz": 1})], "c4 has no rule `zzz`", "max_lorem_ipsum, max_open_braces"),
        ([Filter(pack="c4"), Filter(pack="web-en")], "two packs edit lines", "keep one"),
    ],
)
def test_a_name_that_does_not_exist_is_an_error_that_knows_a_near_one(
    filters: list[Filter], what: str, hint: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        compile_filters(filters, Path())
    assert what in caught.value.what
    assert hint in caught.value.next


def test_compiled_filters_survive_their_manifest() -> None:
    compiled = compile_filters([Filter(pack="web-en"), Filter(measure="chars", max=10**30)], Path())
    spelled = msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(compiled)))
    assert msgspec.convert(spelled, CompiledFilters) == compiled
