"""Two runs side by side, against `tokmill diff` and the histories of documents in both."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import tokmill
from explored import Client, write_corpus
from tokmill.errors import TokmillError


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other bounds, another split, one document fewer and one with another text."""
    directory = tmp_path_factory.mktemp("before")
    filters = [
        {"measure": "words", "min": 80, "reason": "too_few_words"},
        {"measure": "digit_share", "max": 0.2, "reason": "mostly_digits"},
        {"measure": "chars", "min": 10, "reason": "too_short"},
    ]
    recipe = write_corpus(directory, filters=filters, split={"valid_fraction": "0.2"})
    lines = (directory / "books.jsonl").read_text().splitlines()
    changed = json.loads(lines[3])
    lines[3] = json.dumps({**changed, "text": changed["text"] + " And one more sentence about the mill."})
    del lines[5]
    (directory / "books.jsonl").write_text("\n".join(lines) + "\n")
    tokmill.run(recipe, directory / "out", workers=1)
    return directory / "out"


@pytest.fixture(scope="module")
def comparing(run: Path, before: Path) -> Iterator[Client]:
    with tokmill.explore(run, compare=before) as explorer:
        yield Client(explorer)


def every(client: Client, **fields: object) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    while True:
        told = client.json("compare", offset=len(found), limit=17, **fields)
        found += told["documents"]
        if not told["documents"]:
            assert len(found) == told["total"]
            return found


def test_totals_are_those_of_diff_and_every_document_is_listed(
    comparing: Client, run: Path, before: Path
) -> None:
    expected = tokmill.diff(before, run).as_json()["documents"]
    told = comparing.json("compare")
    totals = {(one["change"], one["why"]): one["documents"] for one in told["totals"]}
    wanted = {
        **{("came", why): count for why, count in expected["came"].items()},
        **{("went", why): count for why, count in expected["went"].items()},
        **{("moved", why): count for why, count in expected["moved"].items()},
        ("changed", "another text"): expected["changed"],
    }
    assert totals == wanted
    assert told["same"] == expected["same"]
    assert all(totals.values())
    assert {name for name, _ in totals} == {"came", "went", "moved", "changed"}
    listed = Counter((one["change"], one["why"]) for one in every(comparing))
    assert listed == totals


def test_what_is_said_of_a_document_is_its_history_in_both(
    comparing: Client, run: Path, before: Path
) -> None:
    for one in every(comparing):
        if one["change"] in ("moved", "changed"):
            continue
        for directory, place, outcome in (
            (run, one["place"], one["now"]),
            (before, one["place_before"], one["before"]),
        ):
            if place is None:
                assert outcome in ("new in the source", "not in the source")
                continue
            histories = tokmill.why(directory, one["id"], source=one["source"]).as_json()["documents"]
            (own,) = [h for h in histories if f"{h['ingest']['shard']}:{h['ingest']['row']}" == place]
            said = own["outcome"].replace("dropped by ", "").partition(",")[0]
            assert said == outcome


def test_changes_are_chosen_by_kind_and_reason(comparing: Client) -> None:
    went = every(comparing, change="went", why="clean: mostly_digits")
    assert went
    assert {(one["change"], one["why"]) for one in went} == {("went", "clean: mostly_digits")}
    assert comparing.json("compare", change="went", why="nothing")["total"] == 0
    assert comparing.get("compare", change="__proto__").status == 400
    assert len(comparing.json("compare", limit=10**12)["documents"]) <= 500


def test_without_another_run_it_is_told(client: Client) -> None:
    assert client.get("compare").status == 400


def test_a_run_to_compare_that_is_none_is_told_at_the_start(run: Path, tmp_path: Path) -> None:
    with pytest.raises(TokmillError, match=str(tmp_path / "nowhere")):
        tokmill.explore(run, compare=tmp_path / "nowhere")
    with pytest.raises(TokmillError, match=str(tmp_path)):
        tokmill.explore(run, compare=tmp_path)
