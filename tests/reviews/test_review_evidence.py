"""What a review measures, against slow and obvious ways to measure it;
and how much it reads of what is large."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reviews.reviewed import Corpus, mill, words
from tokmill import review
from tokmill.artifacts.upstream import Shard
from tokmill.reviews.evidence import Evidence, Limits
from tokmill.reviews.overlap import find_exact, find_near_overlap
from tokmill.reviews.rows import scan_rows
from tokmill.reviews.subject import Subject, load_turns, open_subject, tally_lengths
from tokmill.reviews.texts import choose_shards, scan_texts
from written import load_manifest, load_table

INVISIBLE = "\u200b"


def spoil(corpus: Corpus, recipe: dict[str, Any]) -> None:
    """Copies, exact and near, over all splits; odd beginnings; three splits; long documents; short shards."""
    rng = random.Random(9)
    for record in corpus["prose"][:60]:
        corpus["prose"].append({**record, "id": f"copy-{record['id']}", "text": record["text"].upper()})
    for record in corpus["math"][:60]:
        changed = record["text"].split()
        for _ in range(rng.randint(1, 6)):
            changed[rng.randrange(len(changed))] = "changed"
        corpus["math"].append({**record, "id": f"again-{record['id']}", "text": " ".join(changed)})
    for record in corpus["code"][:30]:
        record["text"] = f"  {INVISIBLE}{record['text']}"
    corpus["code"].append({**corpus["code"][0], "id": "long.py", "text": words(rng, 900)})
    recipe["dedup"] = {"exact": False}
    recipe["split"] = {"valid_fraction": "0.2", "test_fraction": "0.2"}
    del recipe["mixture"]["tokens"]
    recipe["builds"] += [
        {"name": "fit", "format": "npy", "pack": {"layout": "best_fit", "length": 64}},
        {"name": "whole", "format": "memmap", "pack": {"layout": "document", "length": 150}},
        {"name": "cut", "format": "memmap", "pack": {"layout": "pad", "length": 64}},
        {"name": "table", "format": "parquet", "pack": {"layout": "indexed"}},
        {"name": "cache", "format": "token_cache"},
    ]


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    return open_subject(mill(tmp_path_factory.mktemp("measured"), spoil))


class Document:
    def __init__(self, source: str, shard: int, row: int, doc_id: str, text: str, split: int) -> None:
        self.source, self.place, self.doc_id, self.text, self.split = (
            source,
            (shard, row),
            doc_id,
            text,
            split,
        )


@pytest.fixture(scope="module")
def documents(subject: Subject) -> list[Document]:
    """Every document with its split, as plain objects."""
    found = []
    names = [name.removeprefix("ingest/") for name in subject.artifacts if name.startswith("ingest/")]
    for number, source in enumerate(names):
        (path,) = (subject.directory / "ingest" / source).glob("documents-*.parquet")
        labels = load_table(subject.directory / "split" / f"labels-{number:05d}.parquet").column("split")
        for row, record in enumerate(load_table(path).to_pylist()):
            split = labels[row].as_py()
            found.append(Document(source, number, row, record["doc_id"], record["text"], split))
    return found


@functools.cache
def folded(text: str) -> str:
    return " ".join(text.casefold().split())


@functools.cache
def shingles(text: str) -> set[tuple[str, ...]]:
    units = "".join(c if c.isalnum() else " " for c in text.casefold()).split()
    return {tuple(units[at : at + 5]) for at in range(max(len(units) - 4, 1))}


def jaccard(one: str, two: str) -> float:
    a, b = shingles(one), shingles(two)
    return len(a & b) / len(a | b)


def test_exact_overlap_is_what_comparing_all_with_all_finds(
    subject: Subject, documents: list[Document]
) -> None:
    slow = {
        mine.place
        for mine in documents
        if mine.split != 0
        and any(o.split != mine.split and folded(o.text) == folded(mine.text) for o in documents)
    }
    found = find_exact(subject.artifacts)
    assert found.copies == slow
    assert found.overlapping == len(slow) > 5
    assert found.held_out == sum(document.split != 0 for document in documents)


def test_near_overlap_finds_no_pair_that_is_not_there_and_nearly_all_that_are(
    subject: Subject, documents: list[Document]
) -> None:
    """14 bands of 8 find 92 % of pairs at Jaccard 0.8, and nothing below it is told."""
    copies = find_exact(subject.artifacts).copies
    found = find_near_overlap(subject.artifacts, copies)
    likeness = {}
    for mine in documents:
        if mine.split != 0 and mine.place not in copies:
            others = [o for o in documents if o.split != mine.split]
            likeness[mine.doc_id] = max(jaccard(mine.text, other.text) for other in others)
    slow = sum(similarity >= 0.8 for similarity in likeness.values())
    assert slow > 5
    assert 0.85 * slow <= found.overlapping <= slow
    assert found.is_complete
    for example in found.examples:
        assert example.similarity == pytest.approx(likeness[example.doc_id], abs=0.15)
        assert likeness[example.doc_id] >= 0.8


def test_sampled_overlap_is_a_lower_bound_and_is_said(subject: Subject) -> None:
    copies = find_exact(subject.artifacts).copies
    whole = find_near_overlap(subject.artifacts, copies)
    some = find_near_overlap(subject.artifacts, copies, max_held_out=40, max_train_bytes=60_000)
    assert some.overlapping <= whole.overlapping
    assert some.train_documents < some.of_train_documents == whole.train_documents
    assert not some.is_complete
    limits = Limits(scanned_bytes=1, eval_documents=40, train_bytes=60_000)
    said = [one.says for one in review(subject.directory, limits=limits).assumptions]
    assert any(
        f"{some.train_documents:,} of {some.of_train_documents:,} training documents" in s for s in said
    )


def test_how_texts_begin_is_counted_as_by_hand(subject: Subject, documents: list[Document]) -> None:
    scan = scan_texts(subject.artifacts, [])
    for source, tally in scan.sources.items():
        texts = [document.text for document in documents if document.source == source]
        assert tally.docs == len(texts)
        assert tally.leading_space == sum(text[:1].isspace() for text in texts)
        assert tally.invisible == sum(INVISIBLE in text for text in texts)
        assert all(
            count == sum(text.startswith(prefix) or text[:8] == prefix for text in texts)
            for prefix, count in tally.prefixes[8].items()
        )
        assert sum(tally.first.values()) == len(texts)
    assert scan.sources["math"].answers["\\boxed{…}"] > 100
    assert scan.sources["code"].code_docs == {"python": 121}
    assert scan.sources["code"].told_by == {"label in meta": 121}


def test_a_large_corpus_is_looked_at_in_some_shards_of_every_source() -> None:
    nothing: Any = None
    shards = [Shard(n, f"s{n % 3}/{n}", f"s{n % 3}", "d", nothing, nothing, None) for n in range(300)]
    chosen = choose_shards(shards, [1000] * 300, 30_000)
    assert {shards[n].source for n in chosen} == {"s0", "s1", "s2"}
    assert 27 <= len(chosen) <= 30
    assert chosen == choose_shards(shards[:], [1000] * 300, 30_000)
    assert len(choose_shards(shards, [1000] * 300, 1)) == 3, "one of each at least"
    assert len(choose_shards(shards, [1000] * 300, 300_000)) == 300


def test_tokens_are_summed_as_the_steps_counted_them(subject: Subject) -> None:
    lengths = tally_lengths(subject.artifacts)
    counts = load_manifest(subject.directory / "tokens").counts
    assert lengths.sums("tokens", "split") == counts["tokens"]
    assert sum(lengths.sums("docs", "source").values()) == counts["kept"]
    languages = [sum(total["tokens"] for total in part.languages.values()) for part in lengths.parts]
    assert languages == [part.tokens for part in lengths.parts]


def test_turns_are_those_of_the_mixture_and_halves_part_them(subject: Subject) -> None:
    (turns,) = load_turns(subject.artifacts)
    facts = load_manifest(subject.directory / "mixture").facts["splits"]["train"]
    assert turns.lengths.sum() == facts["tokens"]
    first, last = turns.halves()
    docs, tokens = len(first.lengths), [int(half.lengths.sum()) for half in (first, last)]
    assert sum(tokens) == facts["tokens"]
    assert docs + len(last.lengths) == len(turns.lengths)
    for source, told in facts["sources"].items():
        shares = [half.share(source)[0] for half in (first, last)]
        assert np.dot(shares, tokens) == pytest.approx(told["tokens"])
    mean, variance = first.mean_length()
    assert mean == pytest.approx(turns.lengths[:docs].mean())
    assert variance == pytest.approx(turns.lengths[:docs].var() / docs)
    longest, _, _, whole = turns.longest()
    assert (longest, whole) == (turns.lengths.max(), facts["tokens"])


@pytest.mark.parametrize("build", ["rows", "mega", "fit", "whole", "cut", "table", "cache"])
def test_every_known_end_of_a_good_build_is_an_end(subject: Subject, build: str) -> None:
    chosen = next(one for one in subject.builds if one.name == build)
    found = scan_rows(chosen)
    counts = {task["key"]: task["counts"] for task in chosen.artifact.manifest.tasks}
    for rows in found.splits:
        assert rows.tokens == counts[rows.split]["tokens"]["written"]
        assert (rows.ends_without_eos, rows.eos_inside) == (0, 0)
        assert rows.ends > 0 or build == "cut"
        if build in ("mega", "table", "cache"):
            assert rows.ends == counts[rows.split]["kept"]
    assert found.cut == []


def test_evidence_is_measured_once(subject: Subject) -> None:
    evidence = Evidence(subject)
    assert evidence.texts is evidence.texts
    assert evidence.rows(subject.builds[0]) is evidence.rows(subject.builds[0])


# --- severities ---


def spoilt_more(corpus: Corpus, recipe: dict[str, Any]) -> None:
    """A third of the documents begin alike; what is repeated, five times; held out, a third."""
    for record in corpus["math"][:40]:
        record["text"] = f"Question: {record['text']}"
    for record in corpus["prose"][:2]:
        record["text"] = f"{INVISIBLE}{record['text']}"
    recipe["mixture"] |= {"tokens": 300_000, "exhausted": "repeat", "max_epochs": 8}
    recipe["split"] = {"valid_fraction": "0.3"}


def test_severity_follows_the_figure(tmp_path: Path) -> None:
    found = review(mill(tmp_path, spoilt_more))
    told = {(finding.check, finding.about): finding for finding in found.findings}
    prefix = told["constant_prefix", "domain math"]
    assert prefix.severity == "medium"
    assert prefix.evidence[1].value == pytest.approx(100 / 3)
    assert prefix.threshold.value == 20
    assert {f.severity for f in found.findings if f.check == "source_repeats"} == {"high"}
    assert "held_out" not in {check for check, _ in told}, (
        "what repeats is trained on: less than a fifth is held out"
    )
    hidden = told["hidden_characters", "domain prose"]
    assert "hold invisible characters" in hidden.says
    assert hidden.evidence[0].value == 2
