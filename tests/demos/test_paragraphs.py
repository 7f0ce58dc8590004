from __future__ import annotations

import unicodedata
from collections import Counter
from importlib.resources import files

RAW = files("tokmill.demos").joinpath("paragraphs.txt").read_bytes()
PARAGRAPHS = RAW.decode("utf-8").removesuffix("\n").split("\n\n")


def script_of(text: str) -> str:
    """The script of most of its letters; any kana makes Han Japanese."""
    scripts = Counter(unicodedata.name(letter).split()[0] for letter in text if letter.isalpha())
    return "HIRAGANA" if "HIRAGANA" in scripts else scripts.most_common(1)[0][0]


def test_paragraphs_are_lines_parted_by_one_blank_line() -> None:
    assert RAW.endswith(b"\n")
    assert not RAW.endswith(b"\n\n")
    assert b"\r" not in RAW
    assert all(text and text == text.strip() and "\n" not in text for text in PARAGRAPHS)


def test_text_is_composed_so_that_normalizing_changes_nothing() -> None:
    assert unicodedata.is_normalized("NFC", RAW.decode("utf-8"))


def test_ten_languages_have_six_to_ten_paragraphs_each() -> None:
    scripts = Counter(script_of(text) for text in PARAGRAPHS)
    latin = scripts.pop("LATIN")
    assert set(scripts) == {"ARABIC", "CJK", "CYRILLIC", "DEVANAGARI", "GREEK", "HIRAGANA"}
    assert all(6 <= count <= 10 for count in scripts.values())
    assert 4 * 6 <= latin <= 4 * 10


def test_every_paragraph_is_its_own_and_long_enough_for_the_recipe() -> None:
    assert len(set(PARAGRAPHS)) == len(PARAGRAPHS)
    assert min(len(text) for text in PARAGRAPHS) >= 80
