"""Each edit with the rule that made it, and documents that share a passage: texts that every rule meets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tokmill
from cleaned import prose
from explored import Client
from mill import write_recipe

PASSAGE = " ".join(prose(7, 12).split())
MAIL, ADDRESS = "ann.lee@brook-mill.net", "81.23.45.67"
# what is taken out or replaced, and by which rule
MADE = {
    "caf\u0065\u0301": "clean: unicode_nfc",
    "\r\n": "clean: newlines_to_lf",
    "\0": "clean: nul_stripped",
    MAIL: "clean: redacted_email",
    ADDRESS: "clean: redacted_ip",
    "no mark ends this line and it goes": "clean: line_without_terminal_punctuation",
    "Please enable javascript to see it.": "clean: line_with_javascript",
}


def lines_of(number: int) -> list[str]:
    return [f"{line.strip()}." for line in prose(number, 9).split(".") if line.strip()]


def many_edits() -> str:
    own = lines_of(1)
    own[0] += " We met in the caf\u0065\u0301 by the river."
    own[2] += f" Write to {MAIL} about it."
    own[3] += " A NUL \0 stands here."
    own.insert(4, "no mark ends this line and it goes")
    own.insert(6, "Please enable javascript to see it.")
    own[7] += f" The host is {ADDRESS} for now."
    return "\n".join(own[:2]) + "\r\n" + "\n".join(own[2:])


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Path]]:
    directory = tmp_path_factory.mktemp("edited")
    texts = {
        "plain": "\n".join(lines_of(2)),
        "many": many_edits(),
        "first": "\n".join([*lines_of(3), PASSAGE, *lines_of(4)]),
        "second": "\n".join([*lines_of(5), f"Ask {MAIL} for more of this.", PASSAGE, *lines_of(6)]),
        "third": "\n".join([PASSAGE, *lines_of(8)]),
    }
    lines = [json.dumps({"id": name, "text": text}) for name, text in texts.items()]
    (directory / "web.jsonl").write_text("\n".join(lines) + "\n")
    recipe = write_recipe(
        directory,
        name="edited",
        sources=[{"name": "web", "domain": "web", "license": "CC-BY-4.0", "files": "web.jsonl"}],
        normalize={"unicode": "NFC", "nul": "strip", "newlines": "lf"},
        filters=[{"pack": "c4", "set": {"min_sentences": 1}}],
        domains=None,
        redact=["email", "ip"],
        dedup={"window": {"words": 20, "winnow": 5, "policy": "trim", "min_words": 5}},
        split={"valid_fraction": "0"},
    )
    tokmill.run(recipe, directory / "out", workers=1)
    with tokmill.explore(directory / "out") as explorer:
        yield Client(explorer), directory / "out"


def rules_at(told: Any, text: str) -> set[str]:
    """Of the edits that touch these words of the text as received; all of them are ASCII before it."""
    received = told["received"]["text"]
    first = received.index(text)
    return {
        edit["by"]
        for edit in told["edits"]
        if edit["received"][0] < first + len(text) and first < edit["received"][1]
    }


def spans(told: Any) -> list[tuple[str, str, str]]:
    """What each edit took, what it put there, and the rules."""
    received, trained = (
        told[key]["text"].encode("utf-16-le", "surrogatepass") for key in ("received", "trained")
    )

    def cut(data: bytes, first: int, stop: int) -> str:
        return data[2 * first : 2 * stop].decode("utf-16-le")

    return [
        (cut(received, *edit["received"]), cut(trained, *edit["trained"]), edit["by"])
        for edit in told["edits"]
    ]


def test_each_edit_says_which_rule_made_it(edited: tuple[Client, Path]) -> None:
    told = edited[0].json("document", id="many")
    assert told["outcome"].startswith("kept")
    found = spans(told)
    for taken, rule in MADE.items():
        rules = rules_at(told, taken.replace("\0", "\ufffd"))
        assert rules == {rule}, (taken, found)
    assert {by for old, new, by in found if "\u0301" in old or "é" in new} == {"clean: unicode_nfc"}


def test_a_passage_that_was_cut_is_told_apart_from_what_cleaning_did(edited: tuple[Client, Path]) -> None:
    told = edited[0].json("document", id="second")
    found = spans(told)
    assert rules_at(told, MAIL) == {"clean: redacted_email"}
    assert any(by == "dedup: passages_trimmed" and PASSAGE[20:-20] in old for old, _, by in found)


def test_documents_that_share_a_passage_are_told_with_it(edited: tuple[Client, Path]) -> None:
    client, _ = edited
    for name, others in (("first", {"second", "third"}), ("second", {"first"}), ("third", {"first"})):
        told = client.json("passages", id=name)
        assert {one["id"] for one in told["passages"]} >= others
        assert told["total"] == len(told["passages"])
        for one in told["passages"]:
            assert PASSAGE[20:500] in one["here"]["passage"]
            assert PASSAGE[20:500] in one["there"]["passage"]
            assert one["words"] >= 20
    assert client.json("passages", id="plain") == {"passages": [], "total": 0}
    assert client.json("run")["passages"] is True


def test_a_run_that_did_not_look_for_passages_has_none(client: Client) -> None:
    assert client.json("passages", id="web-003") == {"passages": [], "total": 0}
    assert client.json("run")["passages"] is False
