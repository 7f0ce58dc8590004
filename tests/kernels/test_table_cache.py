"""Tables that are kept beside compiled kernels: the same as made, or made again."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokmill.kernels import table_cache, wordclasses
from tokmill.kernels.table_cache import cached_table, table_path


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The machine's own tables stay as they are."""
    monkeypatch.setattr(
        table_cache, "table_path", lambda function: tmp_path / (table_path(function) or Path("nowhere")).name
    )
    return tmp_path


def made_tables() -> list[tuple[Any, Any]]:
    return [
        (table, table.__wrapped__.__wrapped__) for table in (wordclasses.fold_table, wordclasses._categories)
    ]


def test_a_table_that_was_kept_is_the_one_that_was_made(elsewhere: Path) -> None:
    for _, make in made_tables():
        made = cached_table(make)()
        found = cached_table(make)()
        assert type(made) is type(found)
        parts = list(zip(made, found, strict=True)) if isinstance(made, tuple) else [(made, found)]
        for one, other in parts:
            assert np.array_equal(one, other)
            assert getattr(one, "dtype", int) == getattr(other, "dtype", int)
    assert len(list(elsewhere.iterdir())) == 2


@pytest.mark.parametrize("at", [0, 4, 40, -1])
def test_a_file_that_is_damaged_or_cut_is_made_again(elsewhere: Path, at: int) -> None:
    make = made_tables()[1][1]
    made = cached_table(make)()
    (path,) = elsewhere.iterdir()
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[at] ^= 1
    for other in (bytes(damaged), whole[:at] if at > 0 else b"", whole[:-1]):
        path.write_bytes(other)
        assert np.array_equal(cached_table(make)(), made)
        assert path.read_bytes() == whole, "and the file too"


def test_a_table_of_another_version_goes_and_one_of_another_python_stays(elsewhere: Path) -> None:
    make = made_tables()[1][1]
    series = table_cache._series("_categories")
    former, other = elsewhere / f"{series}-0000", elsewhere / f"{series.rpartition('-')[0]}-2-0000"
    former.touch()
    other.touch()
    cached_table(make)()
    assert not former.exists()
    assert other.exists()


def test_where_nothing_can_be_kept_the_table_is_made(
    monkeypatch: pytest.MonkeyPatch, elsewhere: Path
) -> None:
    make = made_tables()[1][1]
    made = make()
    for place in (None, elsewhere / "not" / "there"):
        monkeypatch.setattr(table_cache, "table_path", lambda function, place=place: place)
        assert np.array_equal(cached_table(make)(), made)


def test_another_process_finds_what_one_has_kept(elsewhere: Path) -> None:
    """By the text of the modules and the version of Unicode alone."""
    code = (
        "from tokmill.kernels import wordclasses as w; from tokmill.kernels.table_cache import table_path; "
        "print(table_path(w._categories.__wrapped__))"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert Path(told.stdout.strip()) == table_path(made_tables()[1][1])
    shutil.rmtree(elsewhere)
