"""Every figure that `run`, `report` and `review` show, counted again from the files of the run by recount.py."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from audit.recount import Built, Doc, Recount
from mill import tokmill
from reviews.variants import BENCH, DOMAINS, VARIANTS, write_variant
from tokmill.reports.facts import gather_facts
from tokmill.reviews.reviewing import review

pytestmark = pytest.mark.xdist_group("figures")

Json = dict[str, Any]

_REAL = ("plain", "weighted", "budgeted", "balanced", "truncated", "repeated")
_PARAMETERS = [
    *(pytest.param((variant, "generated"), id=variant) for variant in VARIANTS),
    *(
        pytest.param(
            (variant, "real"),
            id=f"{variant}-real",
            marks=pytest.mark.skipif(not BENCH.is_dir(), reason="no ../shared here"),
        )
        for variant in _REAL
    ),
]


class Milled(NamedTuple):
    variant: str
    recipe: Json
    said: str  # on stderr, by `tokmill run`
    told: Json  # on stdout, with --json
    counted: Recount

    @property
    def out(self) -> Path:
        return self.counted.run

    @property
    def builds(self) -> dict[str, list[str] | None]:
        """With the sources of each, None: all."""
        return {build["name"]: build.get("sources") for build in self.recipe["builds"]}

    def pack(self, build: str) -> Json:
        return {"layout": "indexed"} if build == "mega" else {"layout": "concat", **self.recipe["pack"]}

    def splits(self, build: str) -> list[str]:
        found = [path.parent.name for path in (self.out / "build" / build).glob("*/index.jsonl.zst")]
        return [split for split in ("train", "valid", "test") if split in found]


@pytest.fixture(scope="module", params=_PARAMETERS)
def milled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Milled:
    variant, texts = request.param
    recipe = write_variant(tmp_path_factory.mktemp("figures") / texts, variant, texts)
    found = tokmill("run", recipe, "--json")
    assert found.returncode == 0, found.stderr
    told = json.loads(found.stdout)
    return Milled(
        variant,
        json.loads(recipe.read_text()),
        found.stderr,
        told,
        Recount(Path(told["out"]), DOMAINS),
    )


@pytest.fixture(scope="module")
def report(milled: Milled) -> Json:
    return gather_facts(milled.out)


@pytest.fixture(scope="module")
def reviewed(milled: Milled) -> Json:
    return review(milled.out).as_json()


# --- the second way ---


class Packed(NamedTuple):
    """Tokens of one split of a build, by where they went."""

    taken: int  # documents that came to be packed, repeats again
    docs: int  # in rows
    rows: int
    given: int
    written: int
    tail_dropped: int
    truncated: int
    left_out: int
    padding: int
    lost_docs: Counter[str]

    def tokens(self) -> Json:
        names = ("written", "tail_dropped", "truncated", "left_out", "padding")
        return {"in": self.given, **{name: getattr(self, name) for name in names}}


def pack_again(milled: Milled, build: str, split: str) -> Packed:
    """What is not in a row was truncated (its document is in one), was in the tail, or was left out."""
    counted, pack = milled.counted, milled.pack(build)
    turns = counted.turns(split, milled.builds[build])
    built = counted.built(build, split)
    given = sum(doc.tokens for doc in turns)
    truncated = tail = 0
    in_tail = 0
    if pack["layout"] == "pad":
        truncated = sum(max(turn.doc.tokens - pack["length"], 0) for turn in built.turns)
    elif pack["layout"] == "concat" and pack.get("tail", "drop") == "drop":
        is_apart = milled.recipe.get("mixture", {}).get("balance") == "smallest"
        for stream in streams(turns, is_apart):
            ends = np.cumsum([doc.tokens for doc in stream])
            whole = int(ends[-1]) // pack["length"] * pack["length"]
            tail += int(ends[-1]) - whole
            in_tail += sum(int(end) - doc.tokens >= whole for end, doc in zip(ends, stream, strict=True))
    left_out = given - built.written - truncated - tail
    gone = len(turns) - len(built.turns)
    lost = Counter({"tail": min(in_tail, gone), "left_out": gone - min(in_tail, gone)})
    return Packed(
        len(turns),
        len(built.turns),
        len(built.rows),
        given,
        built.written,
        tail,
        truncated,
        left_out,
        built.columns - built.written,
        +lost,
    )


def streams(turns: list[Doc], is_apart: bool) -> Iterator[list[Doc]]:
    domains = dict.fromkeys(doc.domain for doc in turns)
    for domain in domains if is_apart else [None]:
        own = [doc for doc in turns if domain in (None, doc.domain)]
        if own:
            yield own


def whole_build(milled: Milled, build: str) -> Packed:
    parts = [pack_again(milled, build, split) for split in milled.splits(build)]
    return Packed(
        *(sum(column) for column in list(zip(*parts, strict=True))[:-1]),
        sum((p.lost_docs for p in parts), Counter()),
    )


def named_in_build(milled: Milled, build: str, of: str, splits: list[str] | None = None) -> Json:
    found: dict[str, dict[str, int]] = {}
    for split in splits or milled.splits(build):
        for name, amounts in milled.counted.built(build, split).named(of).items():
            one = found.setdefault(name, {"docs": 0, "tokens": 0})
            for key, amount in amounts.items():
                one[key] += amount
    return found


def tokens_at_hand(milled: Milled, of: str, split: str | None = None) -> Json:
    found: dict[str, dict[str, int]] = {}
    for doc in milled.counted.documents:
        if doc.split is not None and split in (None, doc.split):
            one = found.setdefault(getattr(doc, of) or "unknown", {"docs": 0, "tokens": 0, "bytes": 0})
            one["docs"] += 1
            one["tokens"] += doc.tokens
            one["bytes"] += len(doc.text.encode())
    return found


def mixed(milled: Milled) -> list[str]:
    return [
        path.stem.removeprefix("order-") for path in sorted((milled.out / "mixture").glob("order-*.parquet"))
    ]


def distinct(turns: list[Doc]) -> int:
    return len({(doc.source, doc.doc_id) for doc in turns})


# --- run ---


def test_every_line_of_a_run_says_what_its_files_hold(milled: Milled) -> None:
    lines = {
        found[1]: found[2]
        for line in milled.said.splitlines()
        if (found := re.match(r"✓ (\S+) +[\d.]+ s  ?(.*)", line))
    }
    assert sorted(lines) == sorted(milled.told["steps"])
    for step, said in lines.items():
        assert said == " · ".join(_line_of(milled, step)), step


def _line_of(milled: Milled, step: str) -> list[str]:
    counted = milled.counted
    kind, _, name = step.partition("/")
    everyone = counted.splits()
    if kind == "ingest":
        docs = sum(doc.source == name for doc in counted.documents)
        bad = counted.reasons("ingest", name, "quarantine")
        return [
            f"{docs:,} of {counted.records(name):,} documents",
            *(f"quarantined {n:,} {r}" for r, n in sorted(bad.items())),
        ]
    if kind in ("clean", "dedup", "split"):
        source = name or None
        before = {"clean": None, "dedup": "clean", "split": "dedup"}[kind]
        came = (
            counted.kept_by(before, source)
            if before
            else sum(doc.source == name for doc in counted.documents)
        )
        drops = counted.reasons(kind, source)
        kept = counted.kept_by(kind, source)
        return [f"{kept:,} of {came:,} documents", *(f"dropped {n:,} {r}" for r, n in sorted(drops.items()))]
    if kind == "tokens":
        docs = sum(len(counted.in_split(split)) for split in everyone)
        by_split = {split: sum(doc.tokens for doc in counted.in_split(split)) for split in everyone}
        return [
            f"{docs:,} of {docs:,} documents",
            ", ".join(f"{tokens:,} tokens {split}" for split, tokens in sorted(by_split.items())),
        ]
    if kind == "mixture":
        docs = [len(counted.in_split(split)) for split in mixed(milled)]
        kept = sum(distinct(counted.turns(split)) for split in mixed(milled))
        turns = sum(len(counted.turns(split)) for split in mixed(milled))
        said = [f"{kept:,} of {sum(docs):,} documents"]
        said += [f"dropped {sum(docs) - kept:,} over_budget"] if kept < sum(docs) else []
        return said + ([f"{turns - kept:,} repeats"] if turns > kept else [])
    if kind == "build":
        packed = whole_build(milled, name)
        said = [f"{packed.docs:,} of {packed.taken:,} documents"]
        said += [f"dropped {n:,} {reason}" for reason, n in sorted(packed.lost_docs.items())]
        lost = [
            ("tail_dropped", "after the last whole row"),
            ("truncated", "truncated"),
            ("left_out", "left out"),
        ]
        told = [
            f"{packed.written:,} tokens written",
            *(f"{getattr(packed, key):,} {label}" for key, label in lost if getattr(packed, key)),
        ]
        return [*said, ", ".join([*told, f"{packed.padding:,} padding"])]
    return [""]


def test_counts_of_every_step_of_a_run_are_those_of_its_files(milled: Milled) -> None:
    counted, told = milled.counted, {step: found["counts"] for step, found in milled.told["steps"].items()}
    for source in DOMAINS:
        own = [doc for doc in counted.documents if doc.source == source]
        ingested, cleaned = told[f"ingest/{source}"], told[f"clean/{source}"]
        assert (ingested["in"], ingested["kept"]) == (counted.records(source), len(own))
        assert ingested["quarantined"] == counted.reasons("ingest", source, "quarantine")
        assert ingested["text_bytes"] == sum(len(doc.text.encode()) for doc in own)
        assert ingested["text_chars"] == sum(len(doc.text) for doc in own)
        kept = [doc for doc in own if doc.gone is None or doc.gone[0] != "clean"]
        assert (cleaned["in"], cleaned["kept"]) == (len(own), len(kept))
        assert cleaned["dropped"] == counted.reasons("clean", source)
        assert cleaned["kept_bytes"] == sum(len(doc.text.encode()) for doc in kept)
        for of, name in (("license", "licenses"), ("language", "languages")):
            docs = Counter(getattr(doc, of) or "unknown" for doc in kept)
            assert {key: total["docs"] for key, total in cleaned[name].items()} in (docs, {})  # {}: not asked
    assert told["dedup"]["dropped"] == counted.reasons("dedup")
    assert (told["dedup"]["in"], told["dedup"]["kept"]) == (
        counted.kept_by("clean"),
        counted.kept_by("dedup"),
    )
    by_split = {split: len(counted.in_split(split)) for split in ("train", "valid", "test")}
    assert {split: told["split"][split] for split in by_split} == by_split
    tokens = {split: sum(doc.tokens for doc in counted.in_split(split)) for split in counted.splits()}
    assert told["tokens"]["tokens"] == tokens
    if "mixture" in told:
        turns = {split: counted.turns(split) for split in mixed(milled)}
        assert told["mixture"]["kept"] == sum(distinct(own) for own in turns.values())
        assert told["mixture"]["repeats"] == sum(len(own) - distinct(own) for own in turns.values())
    for build in milled.builds:
        counts, packed = told[f"build/{build}"], whole_build(milled, build)
        assert counts["tokens"] == packed.tokens(), build
        assert (counts["in"], counts["kept"], counts["rows"]) == (packed.taken, packed.docs, packed.rows)
        assert counts["dropped"] == packed.lost_docs, build
        for of in ("source", "domain", "language", "license"):
            assert counts[f"{of}s"] == named_in_build(milled, build, of), (build, of)


# --- report ---


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
    for build in milled.builds:
        docs = {
            (turn.doc.source, turn.doc.doc_id)
            for split in milled.splits(build)
            for turn in counted.built(build, split).turns
        }
        assert totals["documents_built"][build] == len(docs), build
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
            expected = named_in_build(milled, build["name"], of)
            whole = sum(amounts["tokens"] for amounts in expected.values())
            assert {row["name"]: {key: row[key] for key in ("docs", "tokens")} for row in rows} == expected
            assert all(row["share"] == round(row["tokens"] / whole, 6) for row in rows)


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
    assert sum(value for (_, end), value in links.items() if end.startswith("drop ")) == (
        sum(counted.records(source) for source in DOMAINS)
        - sum(
            distinct(counted.turns(split))
            for split in counted.splits()
            if split in mixed(milled) or not mixed(milled)
        )
    )


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
        assert links["repeats", f"split {split}"] == repeated


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


def test_the_mixture_of_a_report_is_that_of_its_order(milled: Milled, report: Json) -> None:
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
        whole = sum(doc.tokens for doc in turns)
        repeats += len(turns) - distinct(turns)
        assert row["tokens"] == whole
        for source in row["sources"]:
            mine = [doc for doc in turns if doc.source == source["name"]]
            there = sum(doc.tokens for doc in counted.in_split(row["split"], [source["name"]]))
            tokens = sum(doc.tokens for doc in mine)
            assert (source["tokens"], source["documents"], source["available"]) == (tokens, len(mine), there)
            assert math.isclose(source["built"], tokens / whole if whole else 0, abs_tol=1e-8)
            assert math.isclose(source["epochs"], tokens / there, abs_tol=1e-5)
            if row["split"] == "train" and "weights" in asked:
                assert math.isclose(source["wanted"], float(asked["weights"][DOMAINS[source["name"]]]))
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
            assert row["fate"] == f"dropped by {doc.gone[0]}: {doc.gone[2]}"
        else:
            assert row["tokens"] == doc.tokens
            is_built = (doc.source, doc.doc_id) in in_rows
            assert row["fate"] == (f"kept, {doc.split}" if is_built else f"kept, {doc.split}, in no build")


def test_figures_in_the_warnings_of_a_report_are_right(milled: Milled, report: Json) -> None:
    said = {(warning["where"], warning["what"]) for warning in report["warnings"]}
    counted = milled.counted
    unlicensed = tokens_at_hand(milled, "license").get("unknown", {"tokens": 0})["tokens"]
    whole = sum(amounts["tokens"] for amounts in tokens_at_hand(milled, "split").values())
    if unlicensed:
        share = f"{100 * unlicensed / whole:.2f}".rstrip("0").rstrip(".")
        assert any(what.startswith(f"{unlicensed:,} tokens ({share}") for _, what in said), said
    for build in milled.builds:
        cut = whole_build(milled, build).truncated
        mine = {what for where, what in said if where == f"build/{build}"}
        assert (f"{cut:,} tokens were cut off documents longer than a row" in mine) == bool(cut)
    bad = counted.reasons("ingest", "math", "quarantine").total()
    assert ("ingest/math", f"{bad:,} of {counted.records('math'):,} records are quarantined") in said


# --- review ---


def test_every_figure_of_a_finding_is_counted_from_the_files(milled: Milled, reviewed: Json) -> None:
    for finding in reviewed["findings"]:
        if finding["check"] in _COUNTED_ELSEWHERE:
            continue
        expected = dict(_EXPECTED[finding["check"]](milled, finding["about"], finding["evidence"][0]["unit"]))
        for measure in finding["evidence"]:
            name, value = measure["name"], measure["value"]
            wanted = expected[name]
            assert value == wanted or math.isclose(value, wanted, rel_tol=1e-5, abs_tol=1e-6), (
                finding,
                wanted,
            )


Expected = Iterator[tuple[str, Any]]


def _builds_about(about: str) -> list[str]:
    return about.removeprefix("builds ").removeprefix("build ").split(", ")


def _of_packing(amount: str, name: str, share: str) -> Any:
    def expected(milled: Milled, about: str, unit: str) -> Expected:
        packed = whole_build(milled, _builds_about(about)[0])
        lost = getattr(packed, amount)
        yield name, lost
        yield share, 100 * lost / (packed.written + packed.padding if amount == "padding" else packed.given)

    return expected


def _licenses(milled: Milled, about: str, unit: str) -> Expected:
    mine = [
        doc for doc in milled.counted.documents if doc.split and doc.source == about.removeprefix("source ")
    ]
    unknown = [doc for doc in mine if doc.license is None]
    yield "without a licence", len(unknown)
    yield "of them", sum(doc.tokens for doc in unknown)
    yield "of the source", 100 * len(unknown) / len(mine)


def _labels(milled: Milled, about: str, unit: str) -> Expected:
    mine = [
        doc for doc in milled.counted.documents if doc.split and doc.source == about.removeprefix("source ")
    ]
    yield "without a label", len(mine)
    yield "of the source", 100.0


def _imbalance(milled: Milled, about: str, unit: str) -> Expected:
    build = _builds_about(about)[0]
    tokens = {
        name: found["tokens"] for name, found in named_in_build(milled, build, "domain", ["train"]).items()
    }
    for one in tokens:
        yield f"domain {one}", tokens[one]
        for other in tokens:
            yield f"{one} to {other}", tokens[one] / tokens[other]


def _held_out(milled: Milled, about: str, unit: str) -> Expected:
    build = _builds_about(about)[0]
    tokens = {split: milled.counted.built(build, split).written for split in milled.splits(build)}
    yield from tokens.items()
    yield "held out", 100 * (1 - tokens["train"] / sum(tokens.values()))


def _longest(milled: Milled, about: str, unit: str) -> Expected:
    turns = milled.counted.built("rows", "train").turns
    source, _, doc_id = about.removeprefix("document ").partition("/")
    (longest, *_) = sorted(
        (turn.written for turn in turns if (turn.doc.source, turn.doc.doc_id) == (source, doc_id)),
        reverse=True,
    )
    assert longest == max(turn.written for turn in turns)
    yield "its tokens", longest
    yield "of the training tokens", 100 * longest / sum(turn.written for turn in turns)


def _mix(milled: Milled, about: str, unit: str) -> Expected:
    tokens = named_in_build(milled, _builds_about(about)[0], "domain", ["train"])
    whole = sum(found["tokens"] for found in tokens.values())
    for name, weight in milled.recipe["mixture"]["weights"].items():
        share = 100 * tokens.get(name, {"tokens": 0})["tokens"] / whole
        yield f"domain {name}: built less asked for", share - 100 * float(weight)


def _repeats(milled: Milled, about: str, unit: str) -> Expected:
    source = about.removeprefix("source ")
    built = sum(doc.tokens for doc in milled.counted.turns("train") if doc.source == source)
    there = sum(doc.tokens for doc in milled.counted.in_split("train", [source]))
    yield from (("built", built), ("there are", there), ("epochs", built / there))


def _budget(milled: Milled, about: str, unit: str) -> Expected:
    source, asked = about.removeprefix("source "), milled.recipe["mixture"]
    target = asked["tokens"] if "tokens" in asked else asked["blocks"] * milled.recipe["pack"]["length"]
    of_train = int(target * (1 - Fraction("0.1") - Fraction("0.05")))
    there = sum(doc.tokens for doc in milled.counted.in_split("train", [source]))
    part = of_train * float(asked["weights"][DOMAINS[source]])
    yield from (
        ("there are", there),
        ("its part of the budget", round(part)),
        ("epochs that the budget implies", part / there),
    )


def _languages(milled: Milled, about: str, unit: str) -> Expected:
    mine = [doc for doc in milled.counted.documents if doc.split and f"domain {doc.domain}" == about]
    whole = sum(doc.tokens for doc in mine)
    for name in {doc.language for doc in mine}:
        tokens = sum(doc.tokens for doc in mine if doc.language == name)
        yield name or "unknown", 100 * tokens / whole
    yield "documents without a language label", len(mine)
    yield "documents", len(mine)


def _drift(milled: Milled, about: str, unit: str) -> Expected:
    """Over documents as far as they are in rows, in their turn; errors by the residuals of each document."""
    written: dict[tuple[str, str], list[int]] = {}
    for turn in milled.counted.built("rows", "train").turns:
        written.setdefault((turn.doc.source, turn.doc.doc_id), []).append(turn.written)
    tokens, sizes, sources = [], [], []
    for doc in milled.counted.turns("train"):
        own = written.get((doc.source, doc.doc_id))
        if own:
            tokens.append(own.pop(0))
            sizes.append(len(doc.text.encode()) * tokens[-1] // doc.tokens)
            sources.append(f"source {doc.source}")
    lengths, text_bytes = np.array(tokens, float), np.array(sizes, float)
    middle = next(at for at in range(len(tokens)) if sum(tokens[: at + 1]) >= sum(tokens) // 2) + 1
    means, variances = [], []
    for half in (slice(middle), slice(middle, None)):
        x, whole = lengths[half], lengths[half].sum()
        if unit == "tokens a document":
            means.append(x.mean())
            variances.append(x.var() / len(x))
            continue
        y = text_bytes[half] if unit == "bytes of text a token" else x * (np.array(sources[half]) == about)
        means.append(y.sum() / whole)
        variances.append(((y - means[-1] * x) ** 2).sum() / whole**2)
    scale = 100 if about.startswith("source ") else 1
    over = 1 if about.startswith("source ") else sum(means) / 2
    yield from (("first half", scale * means[0]), ("last half", scale * means[1]))
    yield "change", 100 * (means[1] - means[0]) / over
    yield "one standard error of that", 100 * math.sqrt(sum(variances)) / over


def _head(milled: Milled, about: str, unit: str) -> Expected:
    """One file, in which every document is of the same origin, read to the document at which the limit was reached."""
    lines = (milled.out.parent.parent / "web.jsonl").read_bytes().splitlines(keepends=True)
    records = milled.counted.records("web")
    yield "scanned", 100.0
    yield "records read", records
    kept = [doc for doc in milled.counted.documents if doc.source == "web" and doc.split]
    assert records == milled.recipe["sources"][0]["limit"]["docs"] < len(lines)
    yield "longest run of one origin (web.jsonl)", len(kept)


def _beginnings(milled: Milled, about: str, unit: str) -> Expected:
    """The share is of the beginning that is told; of documents without the commonest one, where that is left aside."""
    texts = [doc.text for doc in milled.counted.documents if doc.split and about == f"domain {doc.domain}"]
    prefix, docs = Counter(text[:8] for text in texts).most_common(1)[0]
    bound = len(texts) * (0.5 if docs > 0.5 * len(texts) else 0.2)
    for size in (8, 12, 16, 24, 32):
        beginning, own = Counter(text[:size] for text in texts).most_common(1)[0]
        if own > bound:
            yield f"begin with {_quoted(beginning)}", own
            yield "of the domain", 100 * own / len(texts)
    others = [text for text in texts if docs <= 0.2 * len(texts) or not text.startswith(prefix)]
    for character, own in Counter(text[0] for text in others).most_common(1):
        yield f"begin with {_quoted(character)}", own
        yield "of the domain, but for a constant prefix", 100 * own / len(others)


def _hidden(milled: Milled, about: str, unit: str) -> Expected:
    spelling = "\t\n\r\u200c\u200d"
    for domain in DOMAINS.values():
        texts = [doc.text for doc in milled.counted.documents if doc.split and doc.domain == domain]
        spaced = sum(text[0].isspace() for text in texts)
        unseen = sum(
            any(unicodedata.category(c) in ("Cc", "Cf") and c not in spelling for c in text) for text in texts
        )
        for what, docs in (("begin with whitespace", spaced), ("hold invisible characters", unseen)):
            yield f"{domain}: {what}", 100 * docs / len(texts)
            if about == f"domain {domain}" and docs > 0.01 * len(texts):
                yield what, docs
                yield "of the domain", 100 * docs / len(texts)


def _quoted(text: str) -> str:
    return f'"{"".join(c if c.isprintable() else repr(c)[1:-1] for c in text)}"'


def _starved(milled: Milled, about: str, unit: str) -> Expected:
    """By weight: what is scheduled; where rows are balanced: what is in them, or was cut off a document that is."""
    at_hand = {
        name: sum(doc.tokens for doc in milled.counted.in_split("train") if doc.domain == name)
        for name in DOMAINS.values()
    }
    used = sum(doc.tokens for doc in milled.counted.turns("train"))
    if about != "mixture":
        build = _builds_about(about)[0]
        packed = pack_again(milled, build, "train")
        used, at_hand = (
            packed.written + packed.truncated,
            {name: tokens for name, tokens in at_hand.items() if name in (milled.builds[build] or at_hand)},
        )
    yield from (("built", used), ("at hand", sum(at_hand.values())))
    yield "of the tokens at hand", 100 * used / sum(at_hand.values())
    asked = milled.recipe["mixture"].get("weights")
    first = min(at_hand, key=lambda name: at_hand[name] / (float(asked[name]) if asked else 1))
    if asked is None and milled.recipe["pack"].get("layout") == "pad":
        docs = Counter(doc.domain for doc in milled.counted.in_split("train") if doc.domain in at_hand)
        first = min(docs, key=lambda name: docs[name])
    yield f"{first} has", at_hand[first]


# Checks whose figures are counted again where they are tested.
_COUNTED_ELSEWHERE = {
    *("dataset_artefacts", "held_out_noise", "plan_epochs", "surface_shortcut", "tokens_per_parameter"),
}

_EXPECTED = {
    "starved_build": _starved,
    "constant_prefix": _beginnings,
    "first_character": _beginnings,
    "hidden_characters": _hidden,
    "tail_drop": _of_packing("tail_dropped", "tail dropped", "of the tokens"),
    "padding": _of_packing("padding", "padding", "of the columns"),
    "truncation": _of_packing("truncated", "truncated", "of the tokens"),
    "license_missing": _licenses,
    "subsource_labels": _labels,
    "domain_imbalance": _imbalance,
    "held_out": _held_out,
    "giant_document": _longest,
    "built_mix": _mix,
    "source_repeats": _repeats,
    "budget_epochs": _budget,
    "language_mixture": _languages,
    "head_sampling": _head,
    "drift": _drift,
}


def answer_of(reviewed: Json, question: str) -> Json:
    return next(answer for answer in reviewed["questions"] if question in answer["question"])


def test_a_source_is_said_to_be_built_as_far_as_it_is_in_rows(milled: Milled, reviewed: Json) -> None:
    figures = answer_of(reviewed, "Which sources")["figures"]
    for source in DOMAINS:
        mine = [doc for doc in milled.counted.documents if doc.source == source and doc.split]
        turns = [
            turn
            for split in milled.splits("rows")
            for turn in milled.counted.built("rows", split).turns
            if turn.doc.source == source
        ]
        expected = {
            "records": milled.counted.records(source),
            "documents": len(mine),
            "tokens": sum(doc.tokens for doc in mine),
            "built_documents": distinct([turn.doc for turn in turns]),
            "built_tokens": sum(turn.written for turn in turns),
        }
        assert {key: figures[source][key] for key in expected} == expected


def test_boundaries_of_a_review_are_those_of_the_rows_that_were_built(milled: Milled, reviewed: Json) -> None:
    figures = answer_of(reviewed, "packing cost")["figures"]
    for build in milled.builds:
        assert {key: figures[build][key] for key in ("in", "written", "padding")} == {
            key: whole_build(milled, build).tokens()[key] for key in ("in", "written", "padding")
        }
        built = milled.counted.built(build, "train")
        expected = {
            "documents": len(built.turns),
            "fragmented_documents": sum(len(turn.rows) > 1 for turn in built.turns),
            "without_beginning": sum(not turn.has_beginning for turn in built.turns),
            "without_end": sum(not turn.has_end for turn in built.turns),
            "incomplete_documents": sum(turn.written < turn.doc.tokens for turn in built.turns),
            "rows": len(built.rows),
            "rows_of_several": built.rows_of_several,
            "cross_document_tokens": built.after_another,
        }
        assert {key: figures[build][key] for key in expected} == expected, build


def test_ends_of_documents_are_where_the_index_says(milled: Milled) -> None:
    """The id that ends a document stands once in every piece that has its end, and nowhere else."""
    (eos,) = {
        json.loads(path.read_bytes())["eos_id"] for path in (milled.out / "build").glob("*/*/meta.json")
    }
    for build in milled.builds:
        for split in milled.splits(build):
            built = milled.counted.built(build, split)
            ends = sum(turn.has_end for turn in built.turns)
            assert _inside(built, eos) == ends


def _inside(built: Built, eos: int) -> int:
    used = [max((end for *_, end, _ in row), default=0) for row in built.rows]
    return sum(int(np.count_nonzero(ids[:end] == eos)) for ids, end in zip(built.ids, used, strict=True))
