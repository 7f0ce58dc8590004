from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cleaned import clean, sieve_of
from tokmill import measure
from tokmill.clean import rules as packs
from tokmill.clean.measures import MEASURES
from tokmill.clean.rules import PACKS, load_pack
from tokmill.errors import RecipeError


def bounds(sieve: dict[str, Any]) -> dict[str, tuple[float | None, float | None]]:
    found: dict[str, tuple[float | None, float | None]] = {}
    for rule in sieve["rules"]:
        measure = rule["column"].removeprefix("after.")
        low, high = found.get(measure, (None, None))
        is_min = rule["bound"] == "min"
        found[measure] = (rule["threshold"] if is_min else low, high if is_min else rule["threshold"])
    return found


def test_every_file_is_a_pack_and_every_pack_a_file() -> None:
    directory = Path(packs.__file__).parent / "packs"
    assert sorted(path.stem for path in directory.iterdir()) == list(PACKS)
    assert all(load_pack(name).name == name for name in PACKS)


@pytest.mark.parametrize("name", PACKS)
def test_a_rule_asks_one_bound_of_one_measure_and_is_named_after_it(name: str) -> None:
    pack = load_pack(name)
    assert bool(pack.rules) != bool(pack.parts)
    assert len({rule.name for rule in pack.rules}) == len(pack.rules)
    for rule in pack.rules:
        assert rule.measure in MEASURES
        assert (rule.min is None) != (rule.max is None)
        assert rule.name.startswith("max_" if rule.min is None else "min_")
        assert re.fullmatch(r"[a-z0-9_]+", rule.reason)


def test_gopher_quality_has_the_bounds_of_the_paper() -> None:
    assert bounds(sieve_of("gopher-quality")) == {
        "non_symbol_words": (50, 100_000),
        "mean_word_length": (3, 10),
        "hash_word_ratio": (None, 0.1),
        "ellipsis_word_ratio": (None, 0.1),
        "bullet_line_share": (None, 0.9),
        "ellipsis_line_share": (None, 0.3),
        "alpha_word_share": (0.8, None),
        "stop_words": (2, None),
    }


def test_gopher_repetition_has_the_bounds_of_the_paper() -> None:
    assert bounds(sieve_of("gopher-repetition")) == {
        "dup_line_share": (None, 0.30),
        "dup_paragraph_share": (None, 0.30),
        "dup_line_char_share": (None, 0.20),
        "dup_paragraph_char_share": (None, 0.20),
        "top_2gram_share": (None, 0.20),
        "top_3gram_share": (None, 0.18),
        "top_4gram_share": (None, 0.16),
        "dup_5gram_share": (None, 0.15),
        "dup_6gram_share": (None, 0.14),
        "dup_7gram_share": (None, 0.13),
        "dup_8gram_share": (None, 0.12),
        "dup_9gram_share": (None, 0.11),
        "dup_10gram_share": (None, 0.10),
    }


def test_c4_edits_lines_and_then_judges_what_is_left() -> None:
    sieve = sieve_of("c4")
    assert sieve["line_edits"] == {
        "min_words": 3,
        "max_word_chars": 1000,
        "citations": True,
        "javascript": True,
        "policy_phrases": True,
        "terminal_punctuation": True,
    }
    assert all(rule["column"].startswith("after.") for rule in sieve["rules"])
    assert bounds(sieve) == {"lorem_ipsum": (None, 0), "open_braces": (None, 0), "sentences": (5, None)}


def test_fineweb_and_stage_a_have_their_bounds() -> None:
    assert bounds(sieve_of("fineweb")) == {
        "terminal_line_share": (0.12, None),
        "short_line_share": (None, 0.67),
        "dup_line_body_share": (None, 0.01),
        "newline_word_ratio": (None, 0.3),
    }
    assert bounds(sieve_of("stage-a")) == {
        "chars": (200, 1_000_000),
        "ascii_share": (0.8, None),
        "symbol_share": (None, 0.45),
        "repeated_line_share": (None, 0.3),
        "boilerplate_line_share": (None, 0.3),
    }


def test_web_en_is_four_packs_in_the_order_of_fineweb_with_any_line_end() -> None:
    whole = sieve_of("web-en")
    names = ["gopher-repetition", "gopher-quality", "c4", "fineweb"]
    before, after = sieve_of(*names[:2]), sieve_of(*names[2:])
    assert list(dict.fromkeys(rule["name"].partition(".")[0] for rule in whole["rules"])) == names
    assert whole["rules"] == before["rules"] + after["rules"]
    assert whole["line_edits"] == {**after["line_edits"], "terminal_punctuation": False}
    assert before["line_edits"] is None


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("gopher_quality", "did you mean 'gopher-quality'?"),
        ("xyzzy", "the packs are c4, code, fineweb, gopher"),
    ],
)
def test_an_unknown_pack_names_the_nearest(name: str, advice: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(advice)):
        sieve_of(name)


def test_what_fineweb_asks_for_needs_no_ngrams() -> None:
    asked = {rule.measure for name in ("c4", "fineweb") for rule in load_pack(name).rules}
    assert "repetition" not in {MEASURES[name].group for name in asked}


def test_prose_with_one_navigation_passes_stage_a_and_a_menu_does_not() -> None:
    prose = "The navigation of the ship was left to the mate, who had done it for years.\n" + "".join(
        f"On day {day} they saw nothing but the sea, and said nothing of it.\n" for day in range(12)
    )
    menu = "Sign in\nPrivacy policy\nNavigation\nRead more\nBack to top\nA page about something else\n" * 9
    values = measure(
        pa.array([prose, menu], pa.large_string()), ["boilerplate_line_share", "repeated_line_share"]
    )
    assert np.all(values["boilerplate_line_share"] > [0, 0.3])
    assert values["boilerplate_line_share"][0] < 0.3
    assert values["repeated_line_share"].tolist() == [0, 1]


def test_code_has_the_bounds_of_the_papers_and_judges_code() -> None:
    assert bounds(sieve_of("code", domain="code")) == {
        "longest_line": (None, 1000),
        "mean_line_length": (None, 100),
        "lines": (None, 100_000),
        "letter_share": (0.25, None),
        "data_line_share": (None, 0.5),
        "generated_marks": (None, 0),
    }
    assert [name for name in PACKS if load_pack(name).judges == "code"] == ["code"]


FUNCTION = "def turn(mill, speed):\n    return mill.turn(speed)\n\n\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (FUNCTION * 3, None),
        ("# This is how numbers are generated: see the manual.\n" + FUNCTION, None),
        (FUNCTION * 5 + "# generated by hand, says line 21\n", None),
        ("NUMBERS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]\n" + FUNCTION, None),
        ("// " + "-" * 60 + "\n" + FUNCTION, None),
        ("deadbeefcafe_" * 8 + " = 1\n" + FUNCTION, None),
        (FUNCTION + "x = '" + "long " * 200 + "'\n", "line_too_long"),
        (("x = '" + "long " * 30 + "'\n") * 10, "lines_too_long"),
        ("a\n" * 100_001, "too_many_lines"),
        ("{} [] () == != <= >= += -= ;; a\n" * 10, "too_few_letters"),
        ("const png =\n" + ("  'iVBORw0KGgo" + "A1b2C3d4" * 8 + "',\n") * 9, "mostly_data_lines"),
        ("unsigned char table[] = {\n" + ("  " + "0xfa, 0xce, " * 5 + "\n") * 9 + "};\n",
         "mostly_data_lines"),
        ("// Code generated by protoc. DO NOT EDIT.\n" + FUNCTION, "generated_file"),
        ("#!/bin/sh\n#\n# This file was automatically @generated\n" + FUNCTION, "generated_file"),
    ],
)  # fmt: skip
def test_the_code_pack_keeps_what_a_person_wrote(text: str, reason: str | None) -> None:
    found = clean([{"text": text}], {"domain": "code"}, filters=["code"])
    assert found.outcomes == ({} if reason is None else {0: ("drop", reason)})
