from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tokmill.clean import rules as packs
from tokmill.clean.measures import MEASURES, measure
from tokmill.clean.rules import PACKS, LineOptions, Pack, load_pack
from tokmill.errors import RecipeError


def bounds(pack: Pack) -> dict[str, tuple[float | None, float | None]]:
    found: dict[str, tuple[float | None, float | None]] = {}
    for rule in pack.rules:
        low, high = found.get(rule.measure, (None, None))
        found[rule.measure] = (low if rule.min is None else rule.min, high if rule.max is None else rule.max)
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
    assert bounds(load_pack("gopher-quality")) == {
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
    assert bounds(load_pack("gopher-repetition")) == {
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
    pack = load_pack("c4")
    assert pack.line_edits == LineOptions(3, 1000, True, True, True, True)
    assert bounds(pack) == {"lorem_ipsum": (None, 0), "open_braces": (None, 0), "sentences": (5, None)}


def test_fineweb_and_stage_a_have_their_bounds() -> None:
    assert bounds(load_pack("fineweb")) == {
        "terminal_line_share": (0.12, None),
        "short_line_share": (None, 0.67),
        "dup_line_body_share": (None, 0.01),
        "newline_word_ratio": (None, 0.3),
    }
    assert bounds(load_pack("stage-a")) == {
        "chars": (200, 1_000_000),
        "ascii_share": (0.8, None),
        "symbol_share": (None, 0.45),
        "repeated_line_share": (None, 0.3),
        "boilerplate_line_share": (None, 0.3),
    }


def test_web_en_is_four_packs_in_the_order_of_fineweb_with_any_line_end() -> None:
    parts = load_pack("web-en").simple()
    assert [part.name for part in parts] == ["gopher-repetition", "gopher-quality", "c4", "fineweb"]
    assert [part.rules for part in parts] == [load_pack(part.name).rules for part in parts]
    assert parts[2].line_edits == LineOptions(terminal_punctuation=False)
    assert [part.line_edits for part in parts if part.name != "c4"] == [None, None, None]


def test_a_simple_pack_stands_for_itself() -> None:
    pack = load_pack("fineweb")
    assert pack.simple() == (pack,)


@pytest.mark.parametrize(
    ("name", "advice"),
    [("gopher_quality", "did you mean 'gopher-quality'?"), ("xyzzy", "the packs are c4, fineweb, gopher")],
)
def test_an_unknown_pack_names_the_nearest(name: str, advice: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(advice)):
        load_pack(name)


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
