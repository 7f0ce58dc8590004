"""What a build loses to one domain, or a source to one rule, is said at once,
and again by report and review."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mill import tokmill
from recount import Recount
from reports.reported import figures_of
from reviews.variants import DOMAINS, write_variant
from tokmill import review

Recipe = dict[str, Any]


def mill(directory: Path, **sections: Any) -> tuple[str, Recount]:
    """What `tokmill run` said, and the run."""
    path = write_variant(directory, "plain", "generated")
    recipe = json.loads(path.read_text())
    for source in recipe["sources"]:
        source |= sections.get(source["name"], {})
    recipe |= {key: value for key, value in sections.items() if key not in DOMAINS}
    path.write_text(json.dumps(recipe))
    found = tokmill("run", path, "--json")
    assert found.returncode == 0, found.stderr
    return found.stderr, Recount(Path(json.loads(found.stdout)["out"]), DOMAINS)


def warnings_of(run: Recount) -> list[tuple[str, str]]:
    return [(warning["where"], warning["what"]) for warning in figures_of(run.run)["warnings"]]


def high_findings(run: Recount, check: str) -> list[tuple[str, str]]:
    found = [finding for finding in review(run.run).findings if finding.check == check]
    assert all(finding.severity == "high" for finding in found)
    return [(finding.about, finding.says) for finding in found]


def test_a_domain_that_starves_a_mixture_is_named_by_run_report_and_review(tmp_path: Path) -> None:
    weights = {"web": "0.05", "math": "0.05", "code": "0.9"}
    said, run = mill(tmp_path / "run", mixture={"weights": weights})
    there = sum(doc.tokens for doc in run.in_split("train"))
    built = sum(doc.tokens for doc in run.turns("train"))
    code = sum(doc.tokens for doc in run.in_split("train", ["code"]))
    line = (
        f"code limits the build to {100 * built / there:.2g} % of the tokens at hand "
        f"({built:,} of {there:,}): it has {code:,}"
    )
    advice = (
        "; find more of it, lower its weight, or set a target with `exhausted: renormalize` or `exhausted: "
        "repeat`"
    )
    assert f"! mixture: {line}{advice}\n" in said
    assert ("mixture", line + advice) in warnings_of(run)
    assert high_findings(run, "starved_build") == [("mixture", line)]


def test_a_source_with_weights_of_its_own_is_named_as_a_source(tmp_path: Path) -> None:
    shared = {"math": {"domain": "web"}}
    weights = {"weights": {"web": 1, "code": 0}, "sources": {"web": {"web": "0.05", "math": "0.95"}}}
    said, _ = mill(tmp_path / "run", mixture=weights, **shared)
    assert re.search(r"^! mixture: source math limits the build to \d+ % of the tokens at hand", said, re.M)


@pytest.mark.parametrize(
    "mixture",
    [
        {"weights": {"web": "0.6", "math": "0.2", "code": "0.2"}},  # most of what there is is built
        {
            "weights": {"web": "0.05", "math": "0.05", "code": "0.9"},
            "tokens": 3_000,
        },  # as much as was asked for
    ],
    ids=["most is built", "a target"],
)
def test_a_mixture_that_has_what_it_asks_for_is_not_warned_of(tmp_path: Path, mixture: Recipe) -> None:
    said, run = mill(tmp_path / "run", mixture=mixture)
    assert "limits the build" not in said
    assert not [what for _, what in warnings_of(run) if "limits the build" in what]
    assert high_findings(run, "starved_build") == []


def test_rows_that_are_balanced_name_the_smallest_domain(tmp_path: Path) -> None:
    pack = {"layout": "pad", "length": 48}
    said, run = mill(tmp_path / "run", mixture={"balance": "smallest"}, pack=pack)
    there = sum(doc.tokens for doc in run.in_split("train"))
    built = sum(turn.doc.tokens for turn in run.built("rows", "train").turns)
    share = (
        f"code limits the build to {100 * built / there:.2g} % of the tokens at hand ({built:,} of {there:,})"
    )
    assert f"! build/rows: {share}" in said
    assert any(where == "build/rows" and what.startswith(share) for where, what in warnings_of(run))
    assert any(
        about == "build rows" and says.startswith(share)
        for about, says in high_findings(run, "starved_build")
    )


def test_a_held_out_split_that_is_larger_than_training_is_told(tmp_path: Path) -> None:
    weights = {"web": "0.01", "math": "0.01", "code": "0.98"}
    split = {"valid_fraction": "0.5"}
    said, run = mill(tmp_path / "run", mixture={"weights": weights, "held_out": "whole"}, split=split)
    train, valid = (run.built("mega", name).written for name in ("train", "valid"))
    assert train < valid
    line = f"valid has {valid:,} tokens and train {train:,}: more is held out than trained on"
    assert f"! build/mega: {line}; lower `split.valid_fraction`" in said
    assert any(where == "build/mega" and what.startswith(line) for where, what in warnings_of(run))
    found = dict(high_findings(run, "held_out"))
    assert (
        f"valid has more than is trained on: {valid:,} tokens, and {train:,} for training"
        in found["build mega"]
    )


def test_a_source_that_one_rule_empties_is_told_with_the_rule_and_an_example(tmp_path: Path) -> None:
    rule = {"measure": "words", "min": 60, "reason": "too_few_words"}
    said, run = mill(tmp_path / "run", web={"clean": {"filters": [rule]}})
    web = [doc for doc in run.documents if doc.source == "web"]
    lost = [doc for doc in web if doc.gone == ("clean", "drop", "too_few_words")]
    assert len(lost) > len(web) / 2
    (line,) = set(re.findall(r"^! clean/web: (web loses .*)$", said, re.M))
    share = f"{100 * len(lost) / len(web):.2g} %"
    assert line.startswith(
        f"web loses {share} of its documents ({len(lost):,} of {len(web):,}) to too_few_words ("
    )
    assert "words" in line.partition("too_few_words (")[2]
    assert line.rpartition("one of them is ")[2].partition("; ")[0] in {doc.doc_id for doc in lost}
    written = re.sub(r"tokmill why \S+ ", "tokmill why OUT ", line)  # no path of a machine stands in a file
    assert ("clean/web", written) in warnings_of(run)
    assert high_findings(run, "source_loss") == [("source web", written)]


def test_several_rules_that_empty_a_source_together_are_told_too(tmp_path: Path) -> None:
    rules = [
        {"measure": "words", "min": 30, "reason": "too_few_words"},
        {"measure": "words", "max": 55, "reason": "too_many_words"},
    ]
    said, run = mill(tmp_path / "run", web={"clean": {"filters": rules}})
    reasons = run.reasons("clean", "web")
    came = sum(doc.source == "web" for doc in run.documents)
    assert max(reasons.values()) <= came / 2 < reasons.total()
    (first, _), *_ = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    (line,) = set(re.findall(r"^! clean/web: (web loses .*)$", said, re.M))
    assert f"({reasons.total():,} of {came:,}) to {len(reasons)} reasons, {first} (" in line


def test_blank_lines_of_a_source_are_no_documents_that_it_loses(tmp_path: Path) -> None:
    """As WikiText has them on the hub: a row for every line, blank ones and headings among them."""
    long = "It turns all day, and nobody has ever counted how often the wheel went round in number "
    lines = [text for number in range(100) for text in ("", " = Heading = ", f"{long} {number}.", "")]
    del lines[3:160:4]  # 160 blank lines of 360: less than half of them
    rows = "".join(json.dumps({"text": text}) + "\n" for text in lines)
    (tmp_path / "wikitext.jsonl").write_text(rows)
    recipe = {
        "name": "lines",
        "sources": [{"name": "wikitext", "domain": "prose", "files": "wikitext.jsonl", "license": "MIT"}],
        "filters": [{"measure": "chars", "min": 50, "reason": "too_short"}],
        "dedup": {"exact": False},
    }
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(recipe))
    done = tokmill("run", path, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "loses" not in done.stderr
    path.write_text(json.dumps(recipe | {"filters": [{**recipe["filters"][0], "min": 120}]}))
    again = tokmill("run", path, "--out", tmp_path / "more")
    assert "wikitext loses 56 % of its documents (200 of 360)" in again.stderr


def test_a_source_of_copies_is_told_by_dedup(tmp_path: Path) -> None:
    copy = {"files": "web.jsonl", "fields": {"text": "text", "id": "id"}}
    said, run = mill(tmp_path / "run", code=copy)
    code = [doc for doc in run.documents if doc.source == "code" and (not doc.gone or doc.gone[0] != "clean")]
    lost = [doc for doc in code if doc.gone == ("dedup", "drop", "exact_dup")]
    (line,) = set(re.findall(r"^! dedup: (code loses .*)$", said, re.M))
    assert f"({len(lost):,} of {len(code):,}) to exact_dup; one of them is {lost[0].doc_id}" in line
    assert ("dedup", line) in warnings_of(run)
    assert high_findings(run, "source_loss") == [("source code", line)]


def test_a_loss_that_is_meant_is_not_told_and_the_bound_changes_no_byte(tmp_path: Path) -> None:
    rule = {"measure": "words", "min": 60, "reason": "too_few_words"}
    _, told = mill(tmp_path / "told", web={"clean": {"filters": [rule]}})
    said, meant = mill(
        tmp_path / "meant",
        web={"clean": {"filters": [rule]}},
        clean={"warn_source_loss": 1},
    )
    assert "loses" not in said
    assert high_findings(meant, "source_loss") == []
    assert not [what for _, what in warnings_of(meant) if " loses " in what]
    steps = [json.loads((run.run / "clean/web" / "manifest.json").read_bytes()) for run in (told, meant)]
    assert steps[0]["fingerprint"] == steps[1]["fingerprint"]
