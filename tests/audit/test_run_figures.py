"""Every figure that `run` shows, counted again from the files of the run."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from audit.figures import (
    Milled,
    distinct,
    mixed,
    named_in_build,
    whole_build,
)
from reviews.variants import DOMAINS

pytestmark = pytest.mark.xdist_group("figures")


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
