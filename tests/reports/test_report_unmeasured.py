"""A run where many documents were out before the rules:
what the report counts of the others, and who is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from cleaned import prose, rows_of, write_documents
from mill import write_recipe
from reports.reported import figures_of
from tokmill import report, run

OUT = {
    **{f"de-{n}": (prose(300 + n, 3), "MIT", "de") for n in range(6)},
    **{f"denied-{n}": (prose(400 + n, 9), "GPL-3.0", "en") for n in range(4)},
    "blank": ("\u3000\n", "MIT", "en"),
    "silent": (prose(500, 2), "MIT", None),
}
KEPT = {f"en-{n}": (prose(n, 2 + n), "MIT", "en") for n in range(12)}
SHORT = {"short": ("Nine words are too few to be kept here.", "MIT", "en")}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("unmeasured")
    documents = [
        {"id": doc_id, "text": text, "license": license, "lang": language}
        for doc_id, (text, license, language) in {**OUT, **SHORT, **KEPT}.items()
    ]
    write_documents(directory / "web.jsonl", documents)
    fields = {"id": "id", "license": "license", "language": "lang"}
    recipe = write_recipe(
        directory,
        sources=[{"name": "web", "domain": "web", "files": "web.jsonl", "fields": fields}],
        license={"deny": ["GPL-3.0"]},
        language={"method": "field", "keep": ["en"]},
        filters=[{"measure": "words", "min": 20}, {"measure": "digit_share", "max": 0.5}],
        dedup={"keep": "best"},
        builds=[{"name": "rows", "format": "memmap"}],
    )
    return run(recipe, workers=1).out


@pytest.fixture(scope="module")
def facts(ran: Path) -> dict[str, Any]:
    return figures_of(ran)


def words_of(ran: Path) -> dict[str, int | None]:
    """As the tables have them."""
    ids = [row["doc_id"] for row in rows_of(ran, "ingest/web", "documents")]
    return dict(zip(ids, (row["words"] for row in rows_of(ran, "clean/web", "measures")), strict=True))


def test_only_documents_that_a_bound_could_decide_about_have_numbers(ran: Path) -> None:
    (path,) = (ran / "clean/web").glob("measures-*.parquet")
    table = pq.read_table(path)
    assert [str(field.type) for field in table.schema] == ["int64", "double"]
    assert {doc_id for doc_id, words in words_of(ran).items() if words is None} == set(OUT)
    assert [column.null_count for column in table.columns] == [len(OUT)] * 2


def test_words_and_lengths_are_counted_of_what_was_encoded(ran: Path, facts: dict[str, Any]) -> None:
    words = words_of(ran)
    counted = sum(words[doc_id] or 0 for doc_id in KEPT)
    rows = [
        row for path in ran.glob("tokens/*/*/lengths-*.parquet") for row in pq.read_table(path).to_pylist()
    ]
    assert len(rows) == len(KEPT)
    (web,) = facts["fertility"]["source"]
    assert web["tokens_per_word"] == round(sum(row["tokens"] - 1 for row in rows) / counted, 4)
    bars = facts["lengths"]["chars"]
    assert sum(bar["docs"] for bar in bars["kept"]) == len(KEPT)
    assert sum(bar["docs"] for bar in bars["cleaned"]) == len({**OUT, **SHORT, **KEPT})
    for bar in bars["cleaned"]:
        texts = [text for text, _, _ in {**OUT, **SHORT, **KEPT}.values()]
        assert bar["docs"] == sum(bar["from"] <= len(text) < bar["below"] for text in texts)


def test_the_nearest_to_a_bound_are_measured_ones(facts: dict[str, Any]) -> None:
    drops = {drop["reason"]: drop for drop in facts["drops"]}
    assert {reason: drop["docs"] for reason, drop in drops.items()} == {
        "other_language": 6,
        "license_denied": 4,
        "empty": 1,
        "language_unsure": 1,
        "too_few_words": 1,
    }
    near = drops["too_few_words"]
    assert [example["doc_id"] for example in near["just_out"]] == ["short"]
    assert near["just_kept"][0]["doc_id"] == "en-0"
    assert all(example["doc_id"] in KEPT and example["value"] >= 20 for example in near["just_kept"])


def test_the_page_and_its_numbers_can_be_written(ran: Path, tmp_path: Path) -> None:
    report(ran, out=tmp_path / "report")
    told = json.loads(next(tmp_path.rglob("report.json")).read_text())
    assert told["totals"]["kept"] == len(KEPT)
