"""Every figure of a report, counted again from the files of the run."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from audit.figures import (
    Json,
    Milled,
    Packed,
    distinct,
    mixed,
    named_in_build,
    pack_again,
    tokens_at_hand,
    whole_build,
)
from reviews.variants import DOMAINS

pytestmark = pytest.mark.xdist_group("figures")


def test_totals_and_sources_of_a_report_are_counted_from_documents_and_rows(
    milled: Milled, report: Json
) -> None:
    counted = milled.counted
    own = {source: [doc for doc in counted.documents if doc.source == source] for source in DOMAINS}
    by_split = {split: sum(doc.tokens for doc in counted.in_split(split)) for split in counted.splits()}
    totals = report["totals"]
    assert totals["records"] == sum(counted.records(source) for source in DOMAINS)
    assert totals["kept"] == sum(doc.split is not None for doc in counted.documents)
    assert totals["tokens_by_split"] == by_split
    assert totals["tokens"] == sum(by_split.values())
    assert totals["tokens_written"] == {build: whole_build(milled, build).written for build in milled.builds}
    in_builds: set[tuple[str, str]] = set()
    for build in milled.builds:
        docs = {
            (turn.doc.source, turn.doc.doc_id)
            for split in milled.splits(build)
            for turn in counted.built(build, split).turns
        }
        assert totals["documents_built"][build] == len(docs), build
        in_builds |= docs
    assert totals["documents_in_builds"] == len(in_builds)
    assert totals["text_bytes"] == sum(len(doc.text.encode()) for doc in counted.documents)
    for row in report["sources"]:
        mine = own[row["name"]]
        assert (row["records"], row["ingested"]) == (counted.records(row["name"]), len(mine))
        assert row["kept_by_clean"] == counted.kept_by("clean", row["name"])
        licenses = Counter(doc.license or "unknown" for doc in mine if not doc.gone or doc.gone[0] != "clean")
        assert {name: total["docs"] for name, total in row["licenses"].items()} == licenses


def test_drops_of_a_report_are_those_of_the_ledgers(milled: Milled, report: Json) -> None:
    expected: Counter[tuple[str, str, str, str]] = Counter()
    for stage in ("ingest", "clean", "dedup", "split"):
        for line in milled.counted.ledger(stage):
            expected[stage, line["verdict"], line["reason"], line["source"]] += 1
    found = {
        (drop["stage"], drop["verdict"], drop["reason"], source): docs
        for drop in report["drops"]
        for source, docs in drop["by_source"].items()
    }
    assert found == expected
    assert all(drop["docs"] == sum(drop["by_source"].values()) for drop in report["drops"])


def test_shares_of_a_report_are_those_of_the_documents_and_of_the_rows(milled: Milled, report: Json) -> None:
    for of, rows in report["shares"].items():
        expected = tokens_at_hand(milled, of)
        whole = sum(amounts["tokens"] for amounts in expected.values())
        assert {
            row["name"]: {key: row[key] for key in ("docs", "tokens", "bytes")} for row in rows
        } == expected
        assert all(row["share"] == round(row["tokens"] / whole, 6) for row in rows)
    for build in report["builds"]:
        for of, rows in build["shares"].items():
            expected = _named_once(milled, build["name"], of)
            whole = sum(amounts["tokens"] for amounts in expected.values())
            assert {row["name"]: {key: row[key] for key in ("docs", "tokens")} for row in rows} == expected
            assert all(row["share"] == round(row["tokens"] / whole, 6) for row in rows)


def _named_once(milled: Milled, build: str, of: str) -> Json:
    """As `named_in_build`, but for documents: each counts once."""
    found = named_in_build(milled, build, of)
    for name, amounts in found.items():
        amounts["docs"] = distinct(
            [
                turn.doc
                for split in milled.splits(build)
                for turn in milled.counted.built(build, split).turns
                if (getattr(turn.doc, of) or "unknown") == name
            ]
        )
    return found


def test_packing_of_a_report_is_that_of_the_rows(milled: Milled, report: Json) -> None:
    for build in report["builds"]:
        whole = whole_build(milled, build["name"])
        assert (build["docs"], build["rows"]) == (whole.docs, whole.rows)
        _check_packing(build["packing"], whole)
        for split in build["splits"]:
            packed = pack_again(milled, build["name"], split["split"])
            assert (split["docs"], split["rows"]) == (packed.docs, packed.rows)
            _check_packing(split["packing"], packed)


def _check_packing(found: Json, packed: Packed) -> None:
    expected = packed.tokens()
    assert {key: found[key] for key in expected} == expected
    lost = packed.tail_dropped + packed.truncated + packed.left_out
    columns = packed.written + packed.padding
    assert found["padding_share"] == (round(packed.padding / columns, 6) if columns else None)
    assert found["lost_share"] == (round(lost / packed.given, 6) if packed.given else None)


def test_the_flow_of_documents_ends_in_what_was_built(milled: Milled, report: Json) -> None:
    counted = milled.counted
    links = {(link["from"], link["to"]): link["value"] for link in report["flow"]["documents"]["links"]}
    for source in DOMAINS:
        assert links[f"source {source}", "clean"] == counted.kept_by("clean", source)
    assert links["clean", "dedup"] == counted.kept_by("dedup")
    for split in counted.splits():
        assert links["dedup", f"split {split}"] == len(counted.in_split(split))
    if "mixture" in milled.recipe:
        for split in mixed(milled):
            docs, kept = len(counted.in_split(split)), distinct(counted.turns(split))
            assert links.get((f"split {split}", f"mixed {split}"), 0) == kept
            assert (
                docs - kept
                == sum(
                    value
                    for (start, end), value in links.items()
                    if start == f"split {split}" and end.startswith("drop mixture")
                )
                or len(mixed(milled)) > 1
            )
    built = {
        split: distinct([turn.doc for turn in counted.built("rows", split).turns])
        for split in milled.splits("rows")
    }
    ends = {
        end.removeprefix("built "): value for (_, end), value in links.items() if end.startswith("built ")
    }
    assert ends == {split: docs for split, docs in built.items() if docs}
    records = sum(counted.records(source) for source in DOMAINS)
    left = sum(value for (_, end), value in links.items() if end.startswith("drop "))
    assert left == records - sum(built.values())


def test_the_flow_of_tokens_ends_in_the_rows_of_the_first_build(milled: Milled, report: Json) -> None:
    counted, flow = milled.counted, report["flow"]["tokens"]
    links = Counter({(link["from"], link["to"]): link["value"] for link in flow["links"]})
    assert flow["build"] == "rows"
    for split in counted.splits():
        for source in DOMAINS:
            tokens = sum(doc.tokens for doc in counted.in_split(split, [source]))
            assert links[f"source {source}", f"split {split}"] == tokens
        packed, turns = pack_again(milled, "rows", split), counted.turns(split)
        taken = {(doc.source, doc.doc_id): doc.tokens for doc in turns}
        assert links[f"split {split}", f"written {split}"] == packed.written
        unused = sum(doc.tokens for doc in counted.in_split(split)) - sum(taken.values())
        repeated = sum(doc.tokens for doc in turns) - sum(taken.values())
        for key in ("tail_dropped", "truncated", "left_out"):
            assert links[f"split {split}", f"drop {key}"] == getattr(packed, key), key
        assert links[f"split {split}", "drop unused"] == unused
        assert links[f"repeats {split}", f"split {split}"] == repeated
        for source in DOMAINS:
            own = [doc for doc in turns if doc.source == source]
            once = sum({doc.doc_id: doc.tokens for doc in own}.values())
            assert links[f"source {source}", f"repeats {split}"] == sum(doc.tokens for doc in own) - once


def test_histograms_of_a_report_count_every_document(milled: Milled, report: Json) -> None:
    counted = milled.counted
    came, lengths = counted.documents, report["lengths"]
    kept = [doc for doc in came if doc.gone is None or doc.gone[0] != "clean"]
    for bars, values in (
        (lengths["chars"]["cleaned"], [len(doc.text) for doc in came]),
        (lengths["chars"]["kept"], [len(doc.text) for doc in kept]),
        (lengths["tokens"], [doc.tokens for doc in came if doc.split]),
    ):
        assert [bar["docs"] for bar in bars] == [
            sum(bar["from"] <= value < bar["below"] for value in values) for bar in bars
        ]
        assert sum(bar["docs"] for bar in bars) == len(values)


def test_fertility_of_a_report_is_that_of_the_texts(milled: Milled, report: Json) -> None:
    for of in ("source", "language"):
        for row in report["fertility"][of]:
            mine = [
                d
                for d in milled.counted.documents
                if d.split and (getattr(d, of) or "unknown") == row["name"]
            ]
            tokens = sum(doc.tokens - 1 for doc in mine)
            assert (row["docs"], row["text_tokens"]) == (len(mine), tokens)
            assert row["bytes_per_token"] == round(sum(len(d.text.encode()) for d in mine) / tokens, 4)
            assert row["chars_per_token"] == round(sum(len(d.text) for d in mine) / tokens, 4)
            assert row["tokens_per_doc"] == round((tokens + len(mine)) / len(mine), 4)
            assert row["words_counted_in_docs"] == len(mine)


def test_the_mixture_of_a_report_is_what_was_asked_and_what_came_into_rows(
    milled: Milled, report: Json
) -> None:
    if "mixture" not in milled.recipe:
        assert report["mixture"] is None
        return
    counted, asked = milled.counted, milled.recipe["mixture"]
    assert [row["split"] for row in report["mixture"]["splits"]] == [
        s for s in ("train", "valid", "test") if s in mixed(milled)
    ]
    repeats = 0
    for row in report["mixture"]["splits"]:
        turns = counted.turns(row["split"])
        built = counted.built("rows", row["split"])
        repeats += len(turns) - distinct(turns)
        assert row["tokens"] == built.written
        is_weighed = "weights" in asked
        assert [one["name"] for one in row["domains"] or []] == (
            list(dict.fromkeys(DOMAINS[source["name"]] for source in row["sources"])) if is_weighed else []
        )
        for of, one in [
            *(("source", s) for s in row["sources"]),
            *(("domain", d) for d in row["domains"] or []),
        ]:
            mine = [turn for turn in built.turns if getattr(turn.doc, of) == one["name"]]
            there = sum(
                doc.tokens for doc in counted.in_split(row["split"]) if getattr(doc, of) == one["name"]
            )
            tokens = sum(turn.written for turn in mine)
            docs = distinct([turn.doc for turn in mine])
            assert (one["tokens"], one["documents"], one["available"]) == (tokens, docs, there)
            assert math.isclose(one["built"], tokens / built.written if built.written else 0, abs_tol=1e-8)
            read = sum(turn.doc.tokens for turn in mine if turn.written)
            assert math.isclose(one["epochs"], read / there, abs_tol=1e-5)
            if row["split"] == "train" and is_weighed:
                domain = one["name"] if of == "domain" else DOMAINS[one["name"]]
                assert math.isclose(one["wanted"], float(asked["weights"][domain]))
    assert report["mixture"]["repeats"] == repeats


def test_fates_in_a_report_say_whether_a_document_is_built(milled: Milled, report: Json) -> None:
    counted = milled.counted
    in_rows = {
        (turn.doc.source, turn.doc.doc_id)
        for build in milled.builds
        for split in milled.splits(build)
        for turn in counted.built(build, split).turns
    }
    by_name = {(doc.source, doc.doc_id): doc for doc in counted.documents}
    assert report["documents"]["documents"] == len(by_name) == len(report["documents"]["rows"])
    for row in report["documents"]["rows"]:
        doc = by_name[row["source"], row["doc_id"]]
        if doc.gone is not None:
            assert row["outcome"] == f"dropped by {doc.gone[0]}: {doc.gone[2]}"
        else:
            assert row["tokens"] == doc.tokens
            is_built = (doc.source, doc.doc_id) in in_rows
            assert row["outcome"] == (f"kept, {doc.split}" if is_built else f"kept, {doc.split}, in no build")


def test_figures_in_the_warnings_of_a_report_are_right(milled: Milled, report: Json) -> None:
    said = {(one["where"], one["what"]) for one in [*report["warnings"], *report["notes"]]}
    counted = milled.counted
    licenses = {build: named_in_build(milled, build, "license") for build in milled.builds}
    unlicensed = {build: own.get("unknown", {"tokens": 0})["tokens"] for build, own in licenses.items()}
    most = max(unlicensed, key=lambda build: unlicensed[build])
    if unlicensed[most]:
        whole = sum(amounts["tokens"] for amounts in licenses[most].values())
        told = (
            f"{unlicensed[most]:,} tokens ({100 * unlicensed[most] / whole:.2f} %) are of documents without"
        )
        assert any(where == f"build/{most}" and what.startswith(told) for where, what in said), said
    for build in milled.builds:
        cut = whole_build(milled, build).truncated
        mine = {what for where, what in said if where == f"build/{build}"}
        assert (f"{cut:,} tokens were cut off documents longer than a row" in mine) == bool(cut)
    bad = counted.reasons("ingest", "math", "quarantine").total()
    assert ("ingest/math", f"{bad:,} of {counted.records('math'):,} records are quarantined") in said
