"""A review as people and programs read it."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from reviews.reviewed import Corpus, mill
from tokmill import review
from tokmill.cli import main
from tokmill.reviews.finding import SEVERITIES, Finding, Measure, Review
from tokmill.reviews.review import CHECKS, QUESTIONS

DOCS = Path(__file__).resolve().parents[2] / "docs" / "review.md"
HOSTILE = "<script>|\x1b[31m`*"
SECTIONS = ("Findings", "Assumptions", "Recommendations", "Questions")
FORMATS = ("text", "markdown", "json")


def spoil(corpus: Corpus, recipe: dict[str, Any]) -> None:
    for record in corpus["math"]:
        record["text"] = HOSTILE + record["text"]
    for record in corpus["math"][:60]:
        record["label"] = "other-style"
        record["text"] += "\n#### 7"
    recipe["pack"] = {"length": 1024}
    recipe["dedup"] = {"exact": True}
    recipe["license"] = None
    del recipe["license"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mill(tmp_path_factory.mktemp("shown"), spoil)


@pytest.fixture(scope="module")
def found(run: Path) -> Any:
    return review(run)


def written(run: Path, form: str) -> str:
    """As the command writes it to a file."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "review"
        asked = CliRunner().invoke(main, ["review", str(run), "--format", form, "--out", str(path)])
        assert asked.exit_code == 0, asked.output
        return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def rendered(run: Path) -> dict[str, str]:
    return {form: written(run, form) for form in FORMATS}


def test_sections_come_in_their_order_in_every_format(rendered: dict[str, str]) -> None:
    text, markdown = rendered["text"], rendered["markdown"]
    places = [text.index(f"\n{section}\n") for section in SECTIONS]
    assert places == sorted(places)
    places = [markdown.index(f"\n## {section}\n") for section in SECTIONS]
    assert places == sorted(places)
    keys = list(json.loads(rendered["json"]))
    assert [key for key in keys if key.capitalize() in SECTIONS] == [section.lower() for section in SECTIONS]


def test_every_finding_shows_its_figures_and_its_threshold(found: Any, rendered: dict[str, str]) -> None:
    text, markdown = rendered["text"], rendered["markdown"]
    assert {finding.check for finding in found.findings} == {
        "constant_prefix",
        "hidden_characters",
        "surface_shortcut",
        "tail_drop",
    }
    for finding in found.findings:
        for shown in (text, re.sub(r"\\(.)", r"\1", markdown)):
            assert finding.check in shown
            assert finding.threshold.name in shown
            for measure in finding.evidence:
                assert measure.read_from.split(",")[0] in shown
    assert text.count("threshold:") == len(found.findings)
    assert found.findings[0].severity == "high"
    assert text.index("HIGH") < text.index("MEDIUM")


def test_words_of_documents_are_inert(rendered: dict[str, str]) -> None:
    assert not [form for form, text in rendered.items() if "\x1b" in text]
    markdown = rendered["markdown"]
    assert "<script>" not in markdown.replace("\\<script\\>", "")


@pytest.mark.parametrize("form", FORMATS)
def test_the_same_review_is_the_same_text(run: Path, rendered: dict[str, str], form: str) -> None:
    assert written(run, form) == rendered[form]
    assert rendered[form].endswith("\n")
    assert not rendered[form].endswith("\n\n")


def test_lines_of_the_text_are_short_and_a_reason_that_checks_share_is_said_once(
    found: Any, rendered: dict[str, str]
) -> None:
    lines = rendered["text"].splitlines()
    assert max(map(len, lines)) <= 110
    said = [assumption.says for assumption in found.assumptions]
    for says in set(said):
        assert sum(says in " ".join(lines[at : at + 3]) for at in range(len(lines))) >= 1


def test_ten_questions_are_answered_with_figures_and_say_what_they_rest_on(found: Any) -> None:
    assert len(found.questions) == 10
    for answer in found.questions:
        assert answer.based_on, answer.question
        assert any(re.search(r"\d", sentence) for sentence in answer.says), answer.question
    told = {answer.question: " ".join(answer.says) for answer in found.questions}
    sources, size, balance, code, styles, left, held_out, packing, surface, risks = told.values()
    assert "prose (prose): 120 records, 120 of them kept" in sources
    assert re.search(r"There are [\d,]+ training tokens in \d+ documents", size)
    assert "Asked for: code 33.3 %, math 33.3 %, prose 33.3 %." in balance
    assert "python 100 % (120 documents). Told 120 by label in meta; 0 not known." in code
    assert "math: none of the marks looked for; 100 % begin with" in left
    assert re.search(r"[\d.,]+ passes over [\d,]+ training tokens", size)
    assert re.search(r"known to ± [\d.]+ %", held_out)
    assert re.search(r"All tokens of a row: [\d.]+ % right \([\d.,]+ of [\d,]+ rows\)", surface)
    assert "rows: " in packing
    assert "stand in a row without their beginning" in packing
    assert "math, other-style: 50 % of it; forms: #### n 100 %" in styles
    assert re.search(r"valid \d+ documents, [\d,]+ tokens", held_out)
    assert "0 of" in held_out
    assert "Build rows (concat, rows of 1,024): padding 0 % of the columns, tail dropped" in packing
    assert "100 % of math begin with" in risks
    (last,) = found.questions[-1].not_measured
    assert "no benchmark was given" in last


def test_a_finding_without_a_figure_cannot_be_made() -> None:
    with pytest.raises(AssertionError, match="without evidence"):
        Finding("low", "a build", "looks bad", (), Measure("padding", 2, "%", ""))


def test_it_fails_on_a_severity_and_on_worse_ones() -> None:
    def with_finding(severity: Any) -> Review:
        figure = Measure("padding", 3.0, "%", "manifest.json")
        finding = Finding(severity, "a build", "3 % hold nothing", (figure,), figure)
        return Review("x", "run", (), (), (finding,), (), (), ())

    table = {(found, at): with_finding(found).fails(at) for found in SEVERITIES for at in SEVERITIES}
    assert [table[pair] for pair in table] == [True, True, True, False, True, True, False, False, True]
    assert not with_finding("high").fails(None)


def test_the_page_lists_every_check_and_every_question() -> None:
    page = DOCS.read_text(encoding="utf-8")
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == [check.name for check in CHECKS]
    for question, _ in QUESTIONS:
        assert question in page
