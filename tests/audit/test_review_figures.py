"""Every figure of a review's findings and answers, counted again from the files of the run."""

from __future__ import annotations

import json
import math
import unicodedata
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from audit.figures import (
    Json,
    Milled,
    distinct,
    named_in_build,
    pack_again,
    whole_build,
)
from recount import Built
from reviews.variants import DOMAINS

pytestmark = pytest.mark.xdist_group("figures")


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
    sums: Counter[tuple[str, str]] = Counter()
    for turn in turns:
        sums[turn.doc.source, turn.doc.doc_id] += turn.written
    longest = sums[source, doc_id]
    assert longest == max(sums.values())
    yield "its tokens", longest
    yield "of the training tokens", 100 * longest / sum(sums.values())


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
    """One file, in which every document is of the same origin,
    read to the document at which the limit was reached."""
    lines = (milled.out.parent.parent / "web.jsonl").read_bytes().splitlines(keepends=True)
    records = milled.counted.records("web")
    assert unit == "% of the bytes, at most"
    read = sum(map(len, lines[:records]))
    assert 0 < read < sum(map(len, lines)), "the figure is of the piece that reading stopped in"
    yield "scanned", 100.0
    yield "records read", records
    kept = [doc for doc in milled.counted.documents if doc.source == "web" and doc.split]
    assert records == milled.recipe["sources"][0]["limit"]["docs"] < len(lines)
    yield "longest run of one origin (web.jsonl)", len(kept)


def _beginnings(milled: Milled, about: str, unit: str) -> Expected:
    """The share is of the beginning that is told; of documents without the commonest one,
    where that is left aside."""
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
    """By weight: what is scheduled; where rows are balanced:
    what is in them, or was cut off a document that is."""
    at_hand = {
        name: sum(doc.tokens for doc in milled.counted.in_split("train") if doc.domain == name)
        for name in DOMAINS.values()
    }
    name, used = "scheduled", sum(doc.tokens for doc in milled.counted.turns("train"))
    if about != "mixture":
        build = _builds_about(about)[0]
        packed = pack_again(milled, build, "train")
        name = "of documents in rows"
        used, at_hand = (
            packed.written + packed.truncated,
            {name: tokens for name, tokens in at_hand.items() if name in (milled.builds[build] or at_hand)},
        )
    yield from ((name, used), ("at hand", sum(at_hand.values())))
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


def _docs_by_license(turns: list[Any]) -> dict[str, int]:
    docs = {(turn.doc.shard, turn.doc.row): turn.doc.license or "unknown" for turn in turns}
    return dict(Counter(docs.values()))


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
            "licenses": _docs_by_license(turns),
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
