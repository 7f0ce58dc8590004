"""The index of texts: what it leaves out has the words nowhere; and its file, whole, stale or damaged."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from explored import corpus
from tokmill.audit.places import RunPlaces, open_places, text_index_path
from tokmill.explorer import text_index
from tokmill.explorer.case_folds import fold, load_folds
from tokmill.explorer.search import Searches
from tokmill.explorer.site import Site
from tokmill.explorer.text_index import TextIndex, build_index, load_index
from tokmill.kernels.trigrams import FOLDED, GRAMS, mark_trigrams
from tokmill.schema import string_column

TEXTS = [text for own in corpus().values() for _, text in own]
# two of one class in a row, the letters whose case leaves ASCII, and what no alphabet has
LETTERS = "aAbBkK\u212asS\u017f\u1e9e\xdfσΣς\u0390\u1fd3ДдЖж漢字\U0001f600\U00010400\U00010428 .-\0\u202e"
WORDS = st.text(st.sampled_from(LETTERS), min_size=1, max_size=6)


def never() -> bool:
    return False


def is_in(texts: list[str], words: str) -> list[bool]:
    """What a look through all texts finds."""
    found: list[bool] = pc.match_substring(
        pa.array(texts, pa.large_string()), words, ignore_case=True
    ).to_pylist()
    return found


def index_of(texts: list[str]) -> TextIndex:
    """A block for each text."""
    column = string_column(pa.array(texts, pa.large_string()))
    bits = np.zeros((GRAMS, (len(texts) + 7) // 8), np.uint8)
    starts = np.arange(len(texts) + 1)
    mark_trigrams(column.data, column.offsets, starts, load_folds(), bits, 0)
    return TextIndex(starts.astype(np.uint32), [bits])


@settings(deadline=None)
@given(st.lists(st.lists(WORDS, max_size=4).map("".join), min_size=1, max_size=20), WORDS)
def test_no_text_that_has_the_words_is_left_out(texts: list[str], words: str) -> None:
    found = index_of(texts).candidates(words)
    assert (found is None) == (len(words) < 3)
    if found is not None:
        assert {at for at, has in enumerate(is_in(texts, words)) if has} <= set(found.tolist())


@settings(deadline=None)
@given(st.text(max_size=60), st.data())
def test_no_part_of_a_text_is_left_out_in_another_case(text: str, data: Any) -> None:
    first = data.draw(st.integers(0, len(text)))
    words = text[first : first + data.draw(st.integers(0, 8))]
    for asked in (words, words.upper(), words.lower(), words.swapcase()):
        found = index_of([text]).candidates(asked)
        assert found is None or found.tolist() == [0] or not is_in([text], asked)[0]


def test_texts_without_any_of_the_words_are_left_out() -> None:
    texts = [f"a text that has the number {number} in it" for number in range(1000, 2000)]
    found = index_of(texts).candidates("number 1234")
    assert found is not None
    assert 234 in found.tolist()
    assert len(found) < 20


def test_characters_that_a_search_takes_for_the_same_are_in_one_class() -> None:
    cases = (str.lower, str.upper, str.title, str.casefold)
    some = [code for code in range(FOLDED) if not 0xD800 <= code < 0xE000]
    cased = [code for code in some if any(case(chr(code)) != chr(code) for case in cases)]
    uncased = set(range(0x110000)) - set(range(0xD800, 0xE000)) - set(cased)
    others = list(map(chr, sorted(uncased)))
    any_of = "(?i)[" + "".join(f"\\x{{{code:x}}}" for code in cased) + "]"
    assert not any(pc.match_substring_regex(pa.array(others), any_of).to_pylist())
    texts, folds = pa.array(list(map(chr, cased))), load_folds()
    for code in cased[::7]:
        alike = np.array(cased)[np.asarray(pc.match_substring(texts, chr(code), ignore_case=True))]
        assert set(folds[alike].tolist()) == {int(folds[code])}
    assert fold("Kelvin").tolist() == fold("\u212aELVIN").tolist()


# --- on the disk ---


@pytest.fixture
def places(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunPlaces:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(text_index, "BLOCK_BYTES", 300)
    return open_places(run)


def test_the_index_of_a_run_is_written_once_and_is_the_same_when_it_is_loaded(places: RunPlaces) -> None:
    assert load_index(places) is None
    shares: list[float] = []
    built = build_index(places, shares.append, never)
    assert built is not None
    assert shares == sorted(shares)
    assert shares[-1] == 1
    loaded = load_index(places)
    assert loaded is not None
    assert [path.name for path in text_index_path(places).parent.iterdir()] == [text_index_path(places).name]
    assert len(loaded.starts) > 100
    assert loaded.starts.tolist() == built.starts.tolist()
    assert loaded.starts[-1] == len(TEXTS)
    assert all(np.array_equal(one, two) for one, two in zip(loaded.segments, built.segments, strict=True))
    assert text_index_path(places).stat().st_size < text_index.most_bytes(places)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_search_with_the_index_finds_what_a_loop_over_the_texts_finds(
    places: RunPlaces, run: Path, data: Any
) -> None:
    if load_index(places) is None:
        build_index(places, lambda share: None, never)
    text = data.draw(st.sampled_from([text for text in TEXTS if text]))
    first = data.draw(st.integers(0, len(text) - 1))
    words = text[first : first + data.draw(st.integers(1, 20))]
    words = data.draw(st.sampled_from([words, words.upper(), words.lower(), words + "q", words[::-1]]))
    found = Searches(Site(run), builds=False).find(words, wait=60)
    assert found.positions is not None
    if not re.search("[iIİı]", words):  # Python takes these four for the same
        pattern = re.compile(re.escape(words), re.IGNORECASE)
        assert found.positions.tolist() == [at for at, own in enumerate(TEXTS) if pattern.search(own)]
    assert found.positions.tolist() == [at for at, has in enumerate(is_in(TEXTS, words)) if has]


@pytest.mark.parametrize("at", [0, 1000, -1, -20, -40, -200])
def test_an_index_that_is_damaged_is_built_anew(places: RunPlaces, at: int) -> None:
    build_index(places, lambda share: None, never)
    path = text_index_path(places)
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[at] ^= 1
    for data in (bytes(damaged), whole[:at], b"", whole + b"x"):
        path.write_bytes(data)
        assert load_index(places) is None
    assert build_index(places, lambda share: None, never) is not None
    assert path.read_bytes() == whole


def test_an_index_of_another_format_or_of_other_texts_is_not_used(
    places: RunPlaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_index(places, lambda share: None, never)
    monkeypatch.setattr(text_index, "_FORMAT", "tokmill trigrams 0")
    assert load_index(places) is None
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(text_index_path(places).parents[2]))


def test_a_build_that_is_stopped_leaves_nothing(places: RunPlaces) -> None:
    stops = iter([False, True])
    with pytest.raises(text_index.Stopped):
        build_index(places, lambda share: None, lambda: next(stops))
    assert list(text_index_path(places).parent.iterdir()) == []


def test_of_all_indexes_those_used_longest_ago_go(places: RunPlaces, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = text_index_path(places).parent
    directory.mkdir(parents=True)
    for age, name in enumerate(("old", "older")):
        path = directory / f"{name}.trigrams"
        path.write_bytes(bytes(1000))
        os.utime(path, (1e9 - age, 1e9 - age))
    build_index(places, lambda share: None, never)
    assert len(list(directory.iterdir())) == 3
    text_index_path(places).unlink()
    size = text_index.most_bytes(places)
    monkeypatch.setattr(text_index, "TOTAL_BYTES", size)
    build_index(places, lambda share: None, never)
    kept = {path.name for path in directory.iterdir()}
    assert text_index_path(places).name in kept
    held = sum(path.stat().st_size for path in directory.iterdir())
    assert held <= size
    assert "old.trigrams" in kept or "older.trigrams" not in kept


def test_where_no_index_can_be_written_all_texts_are_looked_through(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    found = Searches(Site(run)).find("brook-mill.net", wait=60)
    assert found.positions is not None
    assert len(found.positions) == 3
