"""Words in texts, against a look through the corpus that was written."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import tokmill
from explored import Client, corpus
from tokmill.explorer import search

TEXTS = [(source, name, text) for source, own in corpus().items() for name, text in own]


def found_by(client: Client, pairs: list[tuple[str, object]]) -> Any:
    for _ in range(200):
        answer = client.get("documents", pairs)
        if answer.status == 200:
            return answer.json
        assert answer.status == 202
        assert 0 <= answer.json["indexing"] < 1
        time.sleep(0.05)
    raise AssertionError("the search does not end")


@pytest.mark.parametrize(
    "words",
    ["brook-mill.net", "<script>", "OTHER3", "quiet harvest", "\u202e", "%", "_", ".*", "\\", "' OR 1=1"],
)
def test_every_document_with_the_words_is_found_in_any_case(client: Client, words: str) -> None:
    told = found_by(client, [("q", words), ("columns", "source,doc_id"), ("limit", 500)])
    expected = [(source, name) for source, name, text in TEXTS if words.lower() in text.lower()]
    assert told["total"] == len(expected)
    assert [tuple(row) for row in told["rows"]] == [
        (source, name.replace("\0", "\ufffd")[:2000]) for source, name in expected
    ]


def test_words_and_filters_are_joined_and_have_next_and_previous(client: Client) -> None:
    pairs: list[tuple[str, object]] = [("q", "river"), ("f", "verdict:dropped"), ("sort", "-words")]
    told = found_by(client, pairs)
    with_river = found_by(client, [("q", "river")])["total"]
    assert 2 < told["total"] < with_river
    around = client.json("neighbours_in_query", [*pairs, ("place", told["places"][1])])
    assert (around["previous"]["place"], around["position"], around["next"]["place"]) == (
        told["places"][0],
        1,
        told["places"][2],
    )
    assert around["total"] == told["total"]


def test_how_far_it_is_is_told_until_it_is_done(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search.Searches.find, "__kwdefaults__", {"wait": 0.0})
    statuses = set()
    for number in range(50):
        statuses.add(client.get("documents", q=f"words that nobody asked for {number}").status)
    assert 202 in statuses
    monkeypatch.undo()
    assert found_by(client, [("q", "words that nobody asked for 49")])["total"] == 0


def test_a_text_that_is_too_long_is_refused(client: Client) -> None:
    assert client.get("documents", q="x" * 201).status == 400


def test_the_verb_looks_for_words_too(run: Path) -> None:
    told = tokmill.documents(run, text="brook-mill.net", columns="doc_id").as_json()
    assert [row[0] for row in told["rows"]] == ["mail-0", "mail-1", "mail-2"]
