"""Filters of a recipe as rules in order, and judge against a loop over documents and rules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleaned import clean, sieve_of
from tokmill.clean.measures import MEASURES
from tokmill.clean.rules import PACKS, CompiledFilters, Rule, compile_filters, judge, load_pack
from tokmill.errors import RecipeError
from tokmill.recipe import Filter
from tokmill.reference.ledger import REASONS

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
    found = clean(
        ({"text": "x" * size} for size in range(1, 6)), filters=[{"measure": "chars", "min": 2, "max": 4}]
    )
    told = {row: (line["reason"], line["value"], line["threshold"]) for row, line in found.faults.items()}
    assert told == {0: ("too_few_chars", 1.0, 2.0), 4: ("too_many_chars", 5.0, 4.0)}


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
    asked = {"min_words": 7, "max_short_line_share": 0.5, "min_sentences": 0}
    plain = sieve_of("web-en")["rules"]
    other = sieve_of({"pack": "web-en", "set": asked})["rules"]
    changed = {
        rule["name"]: rule["threshold"] for rule, before in zip(other, plain, strict=True) if rule != before
    }
    assert changed == {
        "gopher-quality.min_words": 7,
        "fineweb.max_short_line_share": 0.5,
        "c4.min_sentences": 0,
    }
    assert [rule["reason"] for rule in other] == [rule["reason"] for rule in plain]


def test_rules_from_the_line_edits_on_judge_what_the_edits_left() -> None:
    own = {"measure": "digit_share", "max": 0.3}
    compiled = sieve_of(own, "gopher-quality", "c4", own)
    after = {rule["name"] for rule in compiled["rules"] if rule["column"].startswith("after.")}
    assert after == {"c4.max_lorem_ipsum", "c4.max_open_braces", "c4.min_sentences", "digit_share.max"}
    assert [rule["column"] for rule in compiled["rules"] if rule["name"] == "digit_share.max"] == [
        "digit_share",
        "after.digit_share",
    ]
    assert compiled["line_edits"] is not None


def test_rules_of_ones_own_are_named_after_measure_and_bound() -> None:
    compiled = sieve_of(
        {"measure": "words", "min": 3, "max": 9}, {"measure": "urls", "max": 1, "reason": "ads"}
    )
    assert [(rule["name"], rule["threshold"], rule["reason"]) for rule in compiled["rules"]] == [
        ("words.min", 3, "too_few_words"),
        ("words.max", 9, "too_many_words"),
        ("urls.max", 1, "ads"),
    ]


def test_a_source_inherits_the_packs_made_for_its_kind_of_text_and_all_other_rules() -> None:
    filters = [
        Filter(pack="web-en"),
        Filter(measure="chars", min=5),
        Filter(pack="stage-a"),
        Filter(pack="code"),
    ]
    code = compile_filters(filters, Path(), inherited_by="code")
    assert [rule.name for rule in code.rules if not rule.name.startswith("code.")] == ["chars.min"]
    assert {rule.column.partition(".")[0] for rule in code.rules} == {r.column for r in code.rules}, (
        "no edited lines"
    )
    assert (list(code.packs), code.skipped_packs, code.line_edits) == (["code"], ("web-en", "stage-a"), None)
    prose = compile_filters(filters, Path(), inherited_by="prose")
    assert (list(prose.packs), prose.skipped_packs) == (["web-en", "stage-a"], ("code",))
    asked_for = compile_filters(filters, Path())
    assert (list(asked_for.packs), asked_for.skipped_packs) == (["web-en", "stage-a", "code"], ())


@pytest.mark.parametrize(
    ("filters", "what", "hint"),
    [
        (["gopher-qualty"], "no filter pack 'gopher-qualty'", "'gopher-quality'"),
        ([{"measure": "digits_share", "max": 1}], "no measure `digits_share`", "`digit_share`"),
        ([{"pack": "web-en", "set": {"min_word": 1}}], "web-en has no rule `min_word`", "`min_words`"),
        ([{"pack": "c4", "set": {"zzz": 1}}], "c4 has no rule `zzz`", "max_lorem_ipsum, max_open_braces"),
        (["c4", "web-en"], "two packs edit lines", "keep one"),
    ],
)
def test_a_name_that_does_not_exist_is_an_error_that_knows_a_near_one(
    filters: list[Any], what: str, hint: str
) -> None:
    with pytest.raises(RecipeError) as caught:
        sieve_of(*filters)
    assert what in caught.value.what
    assert hint in caught.value.next


def test_compiled_filters_survive_their_manifest() -> None:
    compiled = compile_filters([Filter(pack="web-en"), Filter(measure="chars", max=10**30)], Path())
    spelled = msgspec.json.decode(msgspec.json.encode(msgspec.to_builtins(compiled)))
    assert msgspec.convert(spelled, CompiledFilters) == compiled


OF_OUR_OWN = [
    reason.replace("<word>", "noai")
    for kind in (("clean", "drop", "Documents, before the rules"), ("dedup", "drop", "Copies"))
    for reason in REASONS[kind]
]


@pytest.mark.parametrize("reason", OF_OUR_OWN)
def test_a_rule_has_no_reason_that_tokmill_gives_for_something_else(reason: str) -> None:
    with pytest.raises(RecipeError, match=f"`{reason}` is a reason of tokmill's own") as caught:
        clean([{"text": "some text"}], filters=[{"measure": "chars", "min": 5, "reason": reason}])
    assert caught.value.next == "give the rule another `reason`"
    score = {"measure": "score.edu.percentile", "min": 5, "reason": reason}
    with pytest.raises(RecipeError, match="a reason of tokmill's own"):
        compile_filters([Filter(**score)], Path())  # type: ignore[arg-type]


def test_a_hook_whose_name_makes_such_a_reason_needs_one_of_its_rule(tmp_path: Path) -> None:
    (tmp_path / "hooks.py").write_text(
        "def robots_share(columns):\n    return [3 for _ in columns['text']]\n"
    )
    rule = {"measure": f"{tmp_path / 'hooks.py'}:robots_share", "max": 2}
    with pytest.raises(RecipeError, match="`robots_share_too_high` is a reason of tokmill's own"):
        clean([{"text": "some text"}], filters=[rule])
    found = clean([{"text": "some text"}], filters=[{**rule, "reason": "too_many_robots"}])
    assert found.outcomes == {0: ("drop", "too_many_robots")}
