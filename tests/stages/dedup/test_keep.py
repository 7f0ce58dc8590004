"""Which of equal documents stays with `keep: newest`: by dates that can be read, and no others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from mill import tokmill, write_recipe
from tokmill.stages.dedup.method import rank_documents
from written import load_table

ISO = [
    *(
        "2024",
        "2024-05",
        "202405",
        "2024-05-01",
        "20240501",
        "2024/05/01",
        "2024-05-01T12",
        "2024-05-01 12:30",
    ),
    *("2024-05-01T12:30:15", "20240501T123015Z", "20240501123015", "2024-05-01T12:30:15.250+02:00"),
    *("2024-05-01 12:30:15 UTC", "2024-05-01T12:30:15,5Z", " 2024-05-01\n", "1714566615", "1714566615.25"),
]
OTHER = [
    *("Mon, 20 Mar 2023", "Fri, 05 Jan 2024 10:00:00 +0000", "20 Mar 2023", "03/20/2023", "20.03.2023"),
    *("2024-5-1", "2024-05-1", "2024-W05", "May 2024", "yesterday", "202", ""),
]


@pytest.mark.parametrize("date", ISO)
def test_a_date_counts_by_its_digits(date: str) -> None:
    digits = "".join(filter(str.isdigit, date))[:14].ljust(14, "0")
    ranks = rank_documents("newest", 0, np.ones(1, np.int64), created_at=pa.array([date]))
    assert (1 << 48) - 1 - ranks[0] == int(digits)


@pytest.mark.parametrize("date", OTHER)
def test_what_is_no_date_of_that_form_comes_last(date: str) -> None:
    dates = pa.array([None, date])
    first, second = rank_documents("newest", 0, np.ones(2, np.int64), created_at=dates).tolist()
    assert first == second == (1 << 48) - 1


def run_newest(directory: Path, dates: list[str | None]) -> tuple[str, list[int]]:
    """What it said, and which of equal texts stayed."""
    records = [{"text": "the same"} | ({} if date is None else {"created_at": date}) for date in dates]
    (directory / "all.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    none = dict.fromkeys(("filters", "normalize", "split", "tokenizer", "builds", "pack"))
    recipe = write_recipe(
        directory, sources=[{"name": "all", "files": "all.jsonl"}], dedup={"keep": "newest"}, **none
    )
    done = tokmill("run", recipe, "--out", directory / "out")
    kept = [
        row
        for path in sorted((directory / "out/dedup").glob("verdicts-*.parquet"))
        for row, is_kept in enumerate(load_table(path).column("kept").to_pylist())
        if is_kept
    ]
    return done.stderr, kept


def test_dates_in_words_are_told_and_lose_to_any_other(tmp_path: Path) -> None:
    dates = [None, "Mon, 20 Mar 2023", "2019-01-02", "Fri, 05 Jan 2024", "2021"]
    said, kept = run_newest(tmp_path, dates)
    assert kept == [4]
    assert "1 of 5 documents have no `created_at` and come last in `keep: newest` (1 of all)" in said
    told = (
        "2 of 5 documents have a `created_at` that does not begin with the year, month and day, such as "
        "`Mon, 20 Mar 2023`, and come last in `keep: newest` (2 of all)"
    )
    assert told in " ".join(said.split())


def test_nothing_but_dates_in_words_is_an_error(tmp_path: Path) -> None:
    said, kept = run_newest(tmp_path, ["Mon, 20 Mar 2023", "Fri, 05 Jan 2024"])
    assert kept == []
    assert "none of 2 documents has a date that can be compared" in said
    assert "Mon, 20 Mar 2023" in said
    assert "2024-05-31" in said, "how to write it"


def test_dates_that_can_all_be_read_are_not_spoken_of(tmp_path: Path) -> None:
    said, kept = run_newest(tmp_path, ["2023-01-02", "2024-05-06T07:08:09Z", "2024-05-06"])
    assert kept == [1]
    assert "created_at" not in said
