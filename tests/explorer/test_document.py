"""One document: texts, edits, rules, tokens, against the files and the corpus that was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tokmill
from explored import HOSTILE, Client, corpus
from tokmill.explorer.passages import Units, find_changes
from written import load_table

TEXTS = {(source, name): text for source, own in corpus().items() for name, text in own}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_a_hostile_document_is_shown_as_it_is(client: Client, name: str) -> None:
    answer = client.get("document", id=name, source="books")
    assert answer.status == 200, answer.body[:300]
    assert answer.headers["content-type"] == "application/json"
    told = answer.json
    text = HOSTILE[name]
    shown = told["received"]["text"]
    assert told["id"] == name
    assert shown == text[: len(shown)].replace("\0", "\ufffd")
    assert told["received"]["chars"] == len(text)
    assert told["received"]["truncated"] == (len(shown) < len(text))
    assert any("U+FFFD" in note for note in told["notes"]) == ("\0" in text)
    assert len(answer.body) < 4_000_000


def test_a_long_text_comes_in_pages_that_join_to_all_of_it(client: Client) -> None:
    text, parts, offset = HOSTILE["long-line"], [], 0
    while True:
        page = client.json("text", id="long-line", which="received", offset=offset, limit=10**9)
        assert page["chars"] == len(text)
        parts.append(page["text"])
        offset = page["end"]
        if offset == len(text):
            break
    assert "".join(parts) == text
    assert len(parts) == 25


def utf16(text: str, first: int, stop: int) -> str:
    """As `slice` of a browser."""
    return text.encode("utf-16-le")[2 * first : 2 * stop].decode("utf-16-le")


@pytest.mark.parametrize("name", ["mail-0", "mail-2", "cafe", "web-007", "astral"])
def test_edits_lead_from_what_was_received_to_what_was_trained_on(client: Client, name: str) -> None:
    told = client.json("document", id=name)
    received, trained = told["received"]["text"], told["trained"]["text"]
    made, at = "", 0
    for edit in told["edits"]:
        first, stop = edit["received"]
        made += utf16(received, at, first) + utf16(trained, *edit["trained"])
        at = stop
    made += utf16(received, at, len(received) * 2)
    assert made == trained
    assert bool(told["edits"]) == (received != trained)
    if name.startswith("mail"):
        assert "ann.lee@brook-mill.net" in received
        assert "ann.lee@brook-mill.net" not in trained
        assert {edit["by"] for edit in told["edits"]} == {"clean: redacted_email"}


@given(old=st.text("ab \n😀é", max_size=60), new=st.text("ab \n😀é", max_size=60))
def test_changes_rebuild_any_text_from_any_other(old: str, new: str) -> None:
    made, at = "", 0
    for one in find_changes(old, new):
        assert one.start >= at
        made += old[at : one.start] + new[one.new_start : one.new_end]
        at = one.end
    assert made + old[at:] == new
    units = Units(old)
    for place in range(len(old) + 1):
        assert units(place) == len(old[:place].encode("utf-16-le")) // 2


def test_rules_have_value_threshold_and_margin_as_the_measures_say(client: Client, run: Path) -> None:
    for name in ("web-003", "short", "long-line"):
        told = client.json("document", id=name)
        source, _, rest = told["place"].partition("/")
        key, _, row = rest.rpartition(":")
        measures = load_table(run / f"clean/{source}/measures-{key}.parquet").to_pylist()[int(row)]
        rules = {
            "words.min": ("words", 50),
            "digit_share.max": ("digit_share", 0.08),
            "chars.min": ("chars", 10),
        }
        assert [one["rule"] for one in told["rules"]] == list(rules)
        for one in told["rules"]:
            measure, threshold = rules[one["rule"]]
            assert one["value"] == measures[measure]
            assert one["threshold"] == threshold
            inside = one["value"] >= threshold if one["keep"] == "min" else one["value"] <= threshold
            assert one["passes"] == inside == (one["margin"] >= 0)


@pytest.mark.parametrize("name", ["book-01", "astral", "web-007", "mail-1", "bidi"])
def test_tokens_are_those_of_the_build_and_spell_the_text(client: Client, run: Path, name: str) -> None:
    told = client.json("document", id=name)
    assert told["trained"]["text"] is not None
    rows = {
        split: np.fromfile(run / f"build/rows/{split}/input_ids.mmap", _dtype(run, split)).reshape(-1, 64)
        for split in ("train", "valid")
    }
    ids = [*told["encoded"]["begins"], *told["encoded"]["ids"], *told["encoded"]["ends"]]
    stored: list[int] = []
    places = [one for one in told["tokens"] if one["build"] == "rows"]
    for one in places:
        stored += rows[one["split"]][one["row"]][one["column"] : one["column"] + one["count"]].tolist()
    assert stored == ids[: len(stored)]
    assert len(ids) - len(stored) < 64  # the last row, if it was not full, is left out
    text = told["trained"]["text"]
    starts = [*told["encoded"]["starts"], len(text.encode("utf-16-le")) // 2]
    for piece, first, stop in zip(told["encoded"]["pieces"], starts[:-1], starts[1:], strict=True):
        if "\ufffd" not in piece:
            assert utf16(text, first, stop) == piece


def _dtype(run: Path, split: str) -> Any:
    return json.loads((run / f"build/rows/{split}/meta.json").read_bytes())["dtype"]


def test_two_documents_of_one_id_are_both_found(client: Client) -> None:
    told = client.json("document", id="twice")
    assert told["source"] == "web"
    (other,) = told["others"]
    assert client.json("document", place=other["place"])["received"]["text"] == TEXTS["books", "twice"]
    assert client.json("document", id="twice", source="books")["place"] == other["place"]


def test_what_was_dropped_was_not_trained_on_and_says_for_whom(client: Client) -> None:
    told = client.json("document", id="same-2")
    assert told["trained"]["text"] is None
    assert told["outcome"] == "dropped by dedup: exact_dup"
    assert [(one["id"], one["kind"]) for one in told["neighbours"]] == [("same-1", "exact")]
    assert client.get("text", id="same-2", which="trained").status == 400


def test_the_history_is_that_of_why(client: Client, run: Path) -> None:
    for name in ("near-3", "mail-0", "short"):
        (expected,) = tokmill.why(run, name).as_json()["documents"]
        told = client.json("document", id=name)
        assert told["outcome"] == expected["outcome"]
        for key in ("ingest", "clean", "dedup", "split"):
            assert told["history"][key] == json.loads(json.dumps(expected[key]))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"id": ""},
        {"id": "nobody"},
        {"id": "book-01", "source": "nobody"},
        {"place": "web/00000-000:99999999"},
        {"place": "web/00000-000:-1"},
        {"place": "web/00000-000:1e3"},
        {"place": "../../etc/passwd:0"},
        {"place": "__proto__:0"},
        {"place": ":"},
        {"place": "web/../books/00000-000:0"},
    ],
)
def test_a_document_that_is_not_there_is_told(client: Client, fields: dict[str, str]) -> None:
    answer = client.get("document", **fields)
    assert answer.status == 400
    assert set(answer.json["error"]) == {"what", "where", "next"}
