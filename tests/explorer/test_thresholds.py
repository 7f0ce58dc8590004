"""Moved thresholds against `tokmill whatif`, histograms against a count by hand."""

from __future__ import annotations

import bisect
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tokmill
from explored import Client, mill_corpus, write_corpus
from explorer.browsed import open_explored
from made_fasttext import write_model
from tokmill.errors import InputError
from tokmill.explorer.judging import stable_order
from written import Json, load_table

RULES = {"words.min": 300.0, "digit_share.max": 0.3, "chars.min": 1500.0}


def changes(told: Json) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for one in told["changes"]:
        key = (one["source"], one["becomes"])
        found[key] = found.get(key, 0) + one["docs"]
    return found


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rule=st.sampled_from(sorted(RULES)), share=st.floats(0, 1), source=st.sampled_from([None, "web", "books"])
)
def test_who_changes_sides_is_what_whatif_says(
    client: Client, run: Path, rule: str, share: float, source: str | None
) -> None:
    value = round(share * RULES[rule], 3)
    told = client.json("threshold", rule=rule, value=value, **({"source": source} if source else {}))
    name = f"sources.{source}.{rule}" if source else rule
    expected = tokmill.whatif(run, {name: value}).as_json()
    assert told["now"]["kept"] == expected["kept"]["now"]
    assert told["then"]["kept"] == expected["kept"]["then"]
    moved = changes(expected)
    for one in told["changed"]:
        assert one["gained"] == moved.get((one["source"], "kept"), 0)
        assert one["lost"] == moved.get((one["source"], "dropped"), 0)
    assert {one["source"] for one in told["changed"]} == ({source} if source else {"web", "books"})


@settings(deadline=None)
@given(
    st.one_of(
        st.lists(st.integers(-(2**31), 2**31 - 1)).map(lambda values: np.array(values, np.int32)),
        st.lists(st.integers(-(2**63), 2**63 - 1)).map(lambda values: np.array(values, np.int64)),
        st.lists(st.sampled_from([0.0, -0.0, 1.5, -1.5, 1e-300, math.inf, -math.inf, math.nan])).map(
            lambda values: np.array(values, np.float64)
        ),
        st.lists(st.floats()).map(lambda values: np.array(values, np.float64)),
    )
)
def test_values_are_put_in_order_as_numpy_does_and_equal_ones_stay_in_theirs(values: Any) -> None:
    assert stable_order(values).tolist() == np.argsort(values, kind="stable").tolist()


def test_a_bound_that_no_rule_has_is_one_that_all_keep_to_until_it_moves(client: Client, run: Path) -> None:
    for name, value in (("words.max", 90), ("digit_share.min", 0.03)):
        told = client.json("threshold", rule=name, value=value)
        expected = tokmill.whatif(run, {name: value}).as_json()
        assert told["then"]["kept"] == expected["kept"]["then"] < told["now"]["kept"]


def judged(run: Path) -> dict[str, list[tuple[float, str]]]:
    """Of each source: words and place of who would be kept with no bound on words, by hand."""
    found: dict[str, list[tuple[float, str]]] = {}
    for source in ("web", "books"):
        for path in sorted((run / f"clean/{source}").glob("measures-*.parquet")):
            key = path.stem.removeprefix("measures-")
            for row, one in enumerate(load_table(path).to_pylist()):
                if one["words"] is not None and one["digit_share"] <= 0.08 and one["chars"] >= 10:
                    found.setdefault(source, []).append((one["words"], f"{source}/{key}:{row}"))
    return found


@pytest.mark.parametrize("value", [0, 50, 75.5, 120, 10_000_000])
def test_the_border_has_the_ten_nearest_on_each_side(client: Client, run: Path, value: float) -> None:
    border = client.json("threshold", rule="words.min", value=value)["border"]
    everyone = sorted(pair for pairs in judged(run).values() for pair in pairs)
    at = bisect.bisect_left(everyone, (value, ""))
    dropped, kept = everyone[:at], everyone[at:]
    assert [one["value"] for one in border["kept"]] == [words for words, _ in kept[:10]]
    assert [one["value"] for one in border["dropped"]] == [words for words, _ in dropped[::-1][:10]]
    words_at = {place: words for words, place in everyone}
    for one in (*border["kept"], *border["dropped"]):
        assert words_at[one["place"]] == one["value"]
        assert client.json("document", place=one["place"])["id"] == one["id"]


@pytest.mark.parametrize(
    "fields",
    [
        {"rule": "nothing.min", "value": 1},
        {"rule": "words.min", "value": "nan"},
        {"rule": "words.min", "value": "inf"},
        {"rule": "words.min", "value": "much"},
        {"rule": "words.min"},
        {"value": 1},
        {"rule": "words.min", "value": 1, "source": "nobody"},
        {"rule": "__proto__.min", "value": 1},
        {"rule": "doc_id.min", "value": 1},
    ],
)
def test_a_threshold_that_cannot_be_moved_is_told(client: Client, fields: dict[str, Any]) -> None:
    assert client.get("threshold", **fields).status == 400


@pytest.mark.parametrize("measure", ["words", "digit_share", "chars", "tokens", "measured.chars"])
@pytest.mark.parametrize("by", ["source", "verdict", "edited", ""])
def test_a_histogram_counts_every_document_once(client: Client, measure: str, by: str) -> None:
    told = client.json("histogram", measure=measure, by=by, bins=20)
    columns = f"{measure},{by or 'source'}"
    rows = [row for row in client.json("documents", columns=columns, limit=500)["rows"] if row[0] is not None]
    edges = told["edges"]
    assert edges == sorted(set(edges))
    expected: dict[str, list[int]] = {}
    for value, group in rows:
        name = {True: "True", False: "False", None: "none"}.get(group, group) if by else "all"
        counts = expected.setdefault(name, [0] * (len(edges) - 1))
        counts[min(max(bisect.bisect_right(edges, value) - 1, 0), len(counts) - 1)] += 1
    assert {one["name"]: one["counts"] for one in told["series"]} == expected
    assert told["documents"] == len(rows)


def test_a_histogram_of_a_filter_is_of_those_documents(client: Client) -> None:
    pairs = [("f", "verdict:kept"), ("f", "words:60..200")]
    told = client.json("histogram", [*pairs, ("measure", "words")])
    total = client.json("documents", pairs)["total"]
    assert sum(sum(one["counts"]) for one in told["series"]) == total > 0
    assert {(one["source"], one["rule"], one["value"]) for one in told["thresholds"]} == {
        (source, "words.min", 50) for source in ("web", "books")
    }


def test_documents_without_the_measure_are_those_of_the_filter(client: Client, run: Path) -> None:
    number, documents, counted = 0, 0, 0
    for source in ("web", "books"):
        for path in sorted((run / f"ingest/{source}").glob("documents-*.parquet")):
            if source == "books":
                documents += len(load_table(path))
                counted += sum(
                    len(load_table(own)) for own in run.glob(f"tokens/*/*/lengths-{number:05d}.parquet")
                )
            number += 1
    told = client.json("histogram", [("f", "source:books"), ("measure", "tokens")])
    assert (told["documents"], told["without"]) == (counted, documents - counted)
    assert documents > counted > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"measure": "doc_id"},
        {"measure": "nothing"},
        {},
        {"measure": "words", "by": "words"},
        {"measure": "reason"},
    ],
)
def test_what_has_no_histogram_is_told(client: Client, fields: dict[str, Any]) -> None:
    assert client.get("histogram", **fields).status == 400


def test_bins_are_bounded(client: Client) -> None:
    assert len(client.json("histogram", measure="words", bins=10**9)["edges"]) <= 401
    assert len(client.json("histogram", measure="words", bins=0)["edges"]) >= 2


@pytest.mark.parametrize("value", [0.7, 0.75, 0.9, 0.97, 1.0])
def test_the_threshold_of_near_duplicates_is_moved_as_whatif_moves_it(
    client: Client, run: Path, value: float
) -> None:
    name = "dedup.near.threshold"
    told = client.json("threshold", rule=name, value=value)
    expected = tokmill.whatif(run, {name: value}).as_json()
    assert told["step"] == expected["step"] == "dedup"
    assert (told["now"]["kept"], told["then"]["kept"]) == (expected["kept"]["now"], expected["kept"]["then"])
    moved = changes(expected)
    for one in told["changed"]:
        assert one["gained"] == moved.get((one["source"], "kept"), 0)
        assert one["lost"] == moved.get((one["source"], "dropped"), 0)
    assert all(one["value"] < value for one in told["border"]["kept"])
    assert all(one["value"] >= value for one in told["border"]["dropped"])
    assert len(told["border"]["kept"]) + len(told["border"]["dropped"]) == 5
    assert told["then"]["kept"] > told["now"]["kept"] or value < 0.97


def test_what_is_not_known_of_near_duplicates_is_told(client: Client) -> None:
    for fields in ({"value": 0.5}, {"value": 1.5}, {"value": 0.9, "source": "web"}):
        answer = client.get("threshold", rule="dedup.near.threshold", **fields)
        assert answer.status == 400
        assert answer.json["error"]["next"]


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Path]]:
    """A run with a score of few words, its percentiles, and a rule on them."""
    directory = tmp_path_factory.mktemp("ranked")
    write_model(directory / "edu.bin")
    out = mill_corpus(
        directory,
        scores=[{"name": "edu", "fasttext": {"path": "edu.bin", "label": "good"}, "percentile": "corpus"}],
        filters=[
            {"measure": "words", "min": 50, "reason": "too_few_words"},
            {"measure": "score.edu.percentile", "min": 20, "reason": "low_rank"},
        ],
    )
    with tokmill.explore(out) as explorer:
        yield Client(explorer), out


@pytest.mark.parametrize("name", ["score.edu.percentile.min", "score.edu.percentile.max"])
@pytest.mark.parametrize("value", [0, 10, 20, 35.5, 80, 100])
def test_a_rule_on_percentiles_is_moved_as_whatif_moves_it(
    ranked: tuple[Client, Path], name: str, value: float
) -> None:
    client, out = ranked
    told = client.json("threshold", rule=name, value=value)
    expected = tokmill.whatif(out, {name: value}).as_json()
    assert told["step"] == expected["step"] == "scores"
    assert (told["now"]["kept"], told["then"]["kept"]) == (expected["kept"]["now"], expected["kept"]["then"])
    for source in ("web", "books"):
        (one,) = (own for own in told["changed"] if own["source"] == source)
        only = tokmill.whatif(out, {f"sources.{source}.{name}": value}).as_json()
        assert one["gained"] - one["lost"] == only["kept"]["then"] - only["kept"]["now"]
    rules = {(rule["name"], rule["step"], rule["threshold"]) for rule in client.json("run")["rules"]}
    assert ("score.edu.percentile.min", "scores", 20) in rules
    assert ("dedup.near.threshold", "dedup", 0.7) in rules
    spread = client.json("histogram", measure="score.edu.percentile")
    assert {one["value"] for one in spread["thresholds"]} == {20}


LENGTHS = (25, 30, 33, 36, 38, 40, 42, 44, 46, 52, 60, 90)
ONE_WORD = "Lone.\n"  # a line that c4 takes out


@pytest.fixture(scope="module")
def twofold(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Path]]:
    """Two rules of one name in a source, of the text before and after line edits; in another one of them."""
    directory = tmp_path_factory.mktemp("twofold")
    words = ["river", "mill", "stone", "water", "bread", "cloud", "green", "small", "house", "bird", "road"]
    for source, lines in (("edited", 4), ("whole", 0)):
        documents = []
        for number, length in enumerate(LENGTHS):
            chosen = [words[(number + at * (number + 2)) % len(words)] for at in range(length - lines)]
            sentences = [" ".join(chosen[at : at + 8]).capitalize() + "." for at in range(0, len(chosen), 8)]
            text = ONE_WORD * lines + " ".join(sentences)
            documents.append({"id": f"{source}-{number}", "text": text})
        (directory / f"{source}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in documents))
    few = {"measure": "words", "min": 40, "reason": "few"}
    recipe = write_corpus(
        directory,
        sources=[
            {"name": "edited", "domain": "web", "license": "MIT", "files": "edited.jsonl"},
            {
                "name": "whole",
                "domain": "web",
                "license": "MIT",
                "files": "whole.jsonl",
                "clean": {"filters": [few]},
            },
        ],
        filters=[few, "c4", {"measure": "words", "min": 50, "reason": "few_left"}],
    )
    tokmill.run(recipe, directory / "out", until="clean", workers=1)
    with tokmill.explore(directory / "out", labels=directory / "labels.jsonl") as explorer:
        yield Client(explorer), directory / "out"


def measures_of(run: Path, source: str) -> dict[str, Json]:
    """By id."""
    (documents,) = (run / f"ingest/{source}").glob("documents-*.parquet")
    (measures,) = (run / f"clean/{source}").glob("measures-*.parquet")
    ids = [one["doc_id"] for one in load_table(documents).to_pylist()]
    return dict(zip(ids, load_table(measures).to_pylist(), strict=True))


@pytest.mark.parametrize("value", [0, 30, 41, 45, 47, 50, 55, 75, 100])
def test_rules_of_one_name_move_together_as_whatif_moves_them(
    twofold: tuple[Client, Path], value: float
) -> None:
    client, run = twofold
    told = client.json("threshold", rule="words.min", value=value)
    expected = tokmill.whatif(run, {"words.min": value}).as_json()
    assert (told["now"]["kept"], told["then"]["kept"]) == (expected["kept"]["now"], expected["kept"]["then"])
    moved = changes(expected)
    for one in told["changed"]:
        assert one["gained"] == moved.get((one["source"], "kept"), 0)
        assert one["lost"] == moved.get((one["source"], "dropped"), 0)
    only = client.json("threshold", rule="words.min", value=value, source="edited")
    own = measures_of(run, "edited")
    at_issue = {
        name: min(one["words"], one["after.words"])
        for name, one in own.items()
        if one["after.sentences"] >= 5
    }
    border = only["border"]
    assert {one["id"]: one["value"] for side in border.values() for one in side} == {
        name: least
        for side in (
            sorted((pair for pair in at_issue.items() if pair[1] >= value), key=lambda pair: pair[1])[:10],
            sorted((pair for pair in at_issue.items() if pair[1] < value), key=lambda pair: -pair[1])[:10],
        )
        for name, least in side
    }


def test_a_bound_has_the_names_that_whatif_knows_and_no_others(twofold: tuple[Client, Path]) -> None:
    client, run = twofold
    names = {"words", "sentences", "chars", "digit_share", "mean_word_chars", "nothing", "language_score"}
    names |= {f"after.{name}" for name in names} | {f"measured.{name}" for name in names}
    for source in ("edited", "whole"):
        names |= set(next(iter(measures_of(run, source).values())))
    for name in sorted(f"{own}.{bound}" for own in names for bound in ("min", "max")):
        for value in (0, 1, 6, 45):
            answer = client.get("threshold", rule=name, value=value)
            try:
                kept = tokmill.whatif(run, {name: value}).as_json()["kept"]
            except InputError:
                assert answer.status == 400, name
            else:
                assert answer.status == 200, (name, answer.body)
                assert (answer.json["now"]["kept"], answer.json["then"]["kept"]) == (
                    kept["now"],
                    kept["then"],
                ), (name, value)


def test_a_sample_and_the_precision_of_rules_of_one_name_are_of_all_that_they_drop(
    twofold: tuple[Client, Path],
) -> None:
    client, run = twofold
    drawn = client.json("label_sample", kind="random", rule="words.min", count=100)["documents"]
    wanted = {
        name
        for name, one in measures_of(run, "edited").items()
        if one["words"] < 40 or one["after.words"] < 50
    }
    assert {one["id"] for one in drawn if one["source"] == "edited"} == wanted
    assert {one["id"] for one in drawn if one["source"] == "whole"} == {
        name for name, one in measures_of(run, "whole").items() if one["words"] < 40
    }
    for one in drawn:
        client.post("labels", {"place": one["place"], "label": "bad"})
    assert client.json("precision", rule="words.min")["labelled"] == len(drawn) > len(wanted)


def test_the_page_says_that_rules_of_one_name_move_together(twofold: tuple[Client, Path]) -> None:
    _, run = twofold
    with open_explored(run) as opened:
        opened.go("threshold?rule=words.min&source=edited&value=40")
        assert any("share this name, at 40 and 50" in said for said in opened.texts(".says"))
        kept = tokmill.whatif(run, {"sources.edited.words.min": 40}).as_json()["kept"]
        assert opened.texts(".numbers b")[:2] == [str(kept["now"]), str(kept["then"])]
        assert kept["now"] < kept["then"]
        assert not opened.page.run("document.querySelector('button.main').disabled")
        opened.go("threshold?rule=words.min&source=whole")
        assert not any("share this name" in said for said in opened.texts(".says"))
        assert opened.page.run("document.querySelector('button.main').disabled")
        assert opened.page.complaints == []
