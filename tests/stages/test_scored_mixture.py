"""Mixtures by score, recounted from what was written: turns of a document against its percentile or key."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tokmill as mill
from made_fasttext import write_model
from mill import digest_of, small_corpus
from tokmill.artifacts.step import Task, table_input
from tokmill.artifacts.upstream import write_shard_table
from tokmill.errors import TokmillError
from tokmill.stages.build.scored import SCORES, SelectByScore, perform_select, times_of
from written import load_manifest, load_table

EDU = {"name": "edu", "fasttext": {"path": "edu.bin", "label": "good"}, "percentile": "corpus"}
STEPS = {75: 4, 60: 2, 20: 1, 0: 0}


def mixed_corpus(directory: Path, mixture: dict[str, Any], problems: int = 200) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    write_model(directory / "edu.bin")
    return small_corpus(directory, problems, scores=[EDU], mixture=mixture, filters=[])


class Documents:
    """Every training document of a run: id, tokens, percentile, score, and how many turns it has."""

    def __init__(self, out: Path) -> None:
        self.tokens: dict[tuple[int, int], int] = {}
        self.ids: dict[tuple[int, int], str] = {}
        self.percentiles: dict[tuple[int, int], float] = {}
        self.scores: dict[tuple[int, int], float] = {}
        numbers = [
            (source, entry.path.removeprefix("documents-").removesuffix(".parquet"))
            for source in ("problems", "notes")
            for entry in load_manifest(out / "ingest" / source).entries("documents")
        ]
        for path in sorted((out / "tokens/train").rglob("lengths-*.parquet")):
            number = int(path.stem.rpartition("-")[2])
            source, key = numbers[number]
            ranks = load_table(out / "scores" / f"percentiles-{number:05d}.parquet").column(0).to_pylist()
            scores = (
                load_table(out / "clean" / source / f"measures-{key}.parquet").column("score.edu").to_pylist()
            )
            for sequence, line in enumerate(load_table(path).to_pylist()):
                at = number, sequence
                self.tokens[at], self.ids[at] = line["tokens"], line["doc_id"]
                self.percentiles[at], self.scores[at] = ranks[line["row"]], scores[line["row"]]
        order = load_table(out / "mixture/order-train.parquet").to_pylist()
        self.turns = Counter((line["shard"], line["sequence"]) for line in order)
        self.order = [(line["shard"], line["sequence"]) for line in order]


def times(percentile: float) -> int:
    return next(count for least, count in sorted(STEPS.items(), reverse=True) if percentile >= least)


REPEAT = {"repeat": {"by": "score.edu", "percentiles": STEPS}}


@pytest.mark.parametrize("order", ["shuffle", "corpus"])
def test_a_document_has_as_many_turns_as_its_percentile_says(order: str, tmp_path: Path) -> None:
    whole = REPEAT | {"order": order, "tokens": 10_000_000, "exhausted": "renormalize"}
    out = mill.run(mixed_corpus(tmp_path, whole), workers=1).out
    documents = Documents(out)
    assert {at: documents.turns[at] for at in documents.tokens} == {
        at: times(rank) for at, rank in documents.percentiles.items()
    }
    assert set(documents.turns.values()) == {1, 2, 4}
    manifest = load_manifest(out / "mixture")
    (task,) = [one for one in manifest.tasks if one["key"] == "train"]
    counts = task["counts"]
    assert counts["in"] == len(documents.tokens)
    assert counts["kept"] == len(documents.turns)
    assert counts["repeats"] == sum(documents.turns.values()) - len(documents.turns)
    assert counts["dropped"] == {"left_out_by_score": len(documents.tokens) - len(documents.turns)}
    told = manifest.facts["splits"]["train"]["sources"]
    assert sum(one["tokens_once"] for one in told.values()) == sum(
        documents.tokens[at] for at in documents.turns
    )
    assert sum(one["tokens"] for one in told.values()) == sum(documents.tokens[at] for at in documents.order)
    digest_of(out)


def test_a_review_counts_each_document_once_and_its_turns_as_repeats(tmp_path: Path) -> None:
    """Of each source: the tokens of its turns, by those of documents that have one."""
    steps = {"repeat": {"by": "score.edu", "percentiles": {50: 6, 25: 2, 0: 0}}}
    out = mill.run(mixed_corpus(tmp_path, steps), workers=1).out
    documents = Documents(out)
    sources = [
        source
        for source in ("problems", "notes")
        for _ in load_manifest(out / "ingest" / source).entries("documents")
    ]
    once, read = Counter[str](), Counter[str]()
    for at, turns in documents.turns.items():
        once[sources[at[0]]] += documents.tokens[at]
        read[sources[at[0]]] += documents.tokens[at] * turns
    trained = 2 * read.total()
    found = mill.review(out, no_verify=True, train_tokens=trained)
    repeated = {one.about: one for one in found.findings if one.check == "source_repeats"}
    assert set(repeated) == {f"source {name}" for name in once}
    for name, tokens in once.items():
        values = {measure.name: measure.value for measure in repeated[f"source {name}"].evidence}
        assert values["there are"] == tokens
        assert values["epochs"] == pytest.approx(read[name] / tokens, rel=0.02)  # some stand in no row
        assert repeated[f"source {name}"].severity == ("high" if read[name] > 4 * tokens else "medium")
    passes = next(one for one in found.findings if one.check == "plan_epochs")
    values = {measure.name: measure.value for measure in passes.evidence}
    for name in once:
        assert values[f"source {name} is seen"] == pytest.approx(2 * read[name] / once[name], rel=0.02)
    told = next(one for one in found.questions if "large enough" in one.question).figures["training"]
    new = once.total() * (1 + 15.39 * (1 - math.exp(-(trained / once.total() - 1) / 15.39)))
    assert told["worth_tokens"] == pytest.approx(new, rel=0.02)
    report = json.loads(mill.report(out, out=tmp_path / "report").figures.read_bytes())
    (split,) = (one for one in report["mixture"]["splits"] if one["split"] == "train")
    for one in split["sources"]:
        assert one["available"] == once[one["name"]]
        assert one["epochs"] == pytest.approx(read[one["name"]] / once[one["name"]], rel=0.02)
    said = json.dumps(report["warnings"])
    often = [name for name in once if read[name] > 4 * once[name]]
    assert often
    assert [name for name in once if f"{name} is read " in said] == often


def test_copies_of_a_document_are_spread_and_not_neighbours(tmp_path: Path) -> None:
    whole = REPEAT | {"tokens": 10_000_000, "exhausted": "renormalize"}
    documents = Documents(mill.run(mixed_corpus(tmp_path, whole), workers=1).out)
    neighbours = sum(a == b for a, b in zip(documents.order, documents.order[1:], strict=False))
    assert neighbours <= len(documents.order) // 20
    places = [
        place / len(documents.order) for place, at in enumerate(documents.order) if documents.turns[at] == 4
    ]
    assert 0.3 < sum(places) / len(places) < 0.7


def test_a_budget_cuts_a_repeated_source_and_counts_documents_once(tmp_path: Path) -> None:
    out = mill.run(
        mixed_corpus(tmp_path, REPEAT | {"tokens": 6000, "exhausted": "renormalize"}), workers=1
    ).out
    documents = Documents(out)
    assert sum(documents.tokens[at] for at in documents.order) <= 6000
    assert all(count <= times(documents.percentiles[at]) for at, count in documents.turns.items())
    (task,) = [one for one in load_manifest(out / "mixture").tasks if one["key"] == "train"]
    counts = task["counts"]
    assert counts["kept"] == len(documents.turns)
    assert counts["repeats"] == len(documents.order) - len(documents.turns)
    assert counts["in"] == counts["kept"] + sum(counts["dropped"].values())


@pytest.mark.usefixtures("forked_workers")
def test_any_number_of_workers_gives_one_digest(tmp_path: Path) -> None:
    whole = REPEAT | {"tokens": 10_000_000, "exhausted": "renormalize"}
    digests = {digest_of(mill.run(mixed_corpus(tmp_path / str(n), whole, 60), workers=n).out) for n in (1, 3)}
    assert len(digests) == 1


def slow_key(doc_id: str, score: float, seed: int) -> float:
    """Score and noise, from the identity alone; as docs/how-to/score-documents.md tells it."""
    purpose = f"tokmill.mixture.1 {seed} 0 select score.edu"
    key = int.from_bytes(hashlib.sha256(purpose.encode()).digest()[:8], "big")
    state = int.from_bytes(hashlib.sha256(doc_id.encode()).digest()[:8], "big") ^ key
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        state = ((state ^ (state >> 33)) * factor) % (1 << 64)
    state ^= state >> 33
    uniform = ((state >> 12) + 0.5) / 2**52
    return score - math.log(-math.log(uniform))


def test_a_selection_is_the_largest_keys_that_fit_its_tokens(tmp_path: Path) -> None:
    mixture = {
        "select": {"by": "score.edu", "tokens": 5000},
        "tokens": 10_000_000,
        "exhausted": "renormalize",
    }
    out = mill.run(mixed_corpus(tmp_path, mixture), workers=1).out
    documents = Documents(out)
    ranked = sorted(
        documents.tokens, key=lambda at: slow_key(documents.ids[at], documents.scores[at], 7), reverse=True
    )
    expected, total = set(), 0
    for at in ranked:
        if total + documents.tokens[at] > 5000:
            break
        expected.add(at)
        total += documents.tokens[at]
    assert set(documents.turns) == expected
    assert set(documents.turns.values()) == {1}
    (task,) = [one for one in load_manifest(out / "mixture").tasks if one["key"] == "train"]
    assert task["counts"]["dropped"] == {"left_out_by_score": len(documents.tokens) - len(expected)}


def test_a_selection_is_of_the_sources_that_have_a_share(tmp_path: Path) -> None:
    """Problems are read because a score learns from them: their tokens are not built, and not selected."""
    train = {"positive": [{"source": "notes"}], "negative": [{"source": "problems"}]}
    mixture = {
        "weights": {"math": 0, "prose": 1},
        "select": {"by": "score.edu", "tokens": 150},
        "tokens": 10_000_000,
        "exhausted": "renormalize",
    }
    write_model(tmp_path / "edu.bin")
    scores = [EDU, {"name": "like_notes", "train": train}]
    recipe = small_corpus(tmp_path, 200, scores=scores, mixture=mixture, filters=[], dedup={"exact": False})
    out = mill.run(recipe, workers=1).out
    documents = Documents(out)
    notes = [at for at in documents.tokens if at[0] == 1]
    ranked = sorted(notes, key=lambda at: slow_key(documents.ids[at], documents.scores[at], 7), reverse=True)
    expected, total = set(), 0
    for at in ranked:
        if total + documents.tokens[at] > 150:
            break
        expected.add(at)
        total += documents.tokens[at]
    assert 0 < len(expected) < len(notes)
    assert set(documents.turns) == expected
    (task,) = [one for one in load_manifest(out / "mixture").tasks if one["key"] == "train"]
    assert task["counts"]["dropped"] == {
        "left_out_by_score": len(notes) - len(expected),
        "no_weight": len(documents.tokens) - len(notes),
    }


def test_a_selection_of_more_than_there_is_takes_all(tmp_path: Path) -> None:
    mixture = {
        "select": {"by": "score.edu", "tokens": "1B"},
        "tokens": 10_000_000,
        "exhausted": "renormalize",
    }
    documents = Documents(mill.run(mixed_corpus(tmp_path, mixture, 60), workers=1).out)
    assert set(documents.turns) == set(documents.tokens)


@pytest.mark.parametrize(
    ("mixture", "told"),
    [
        ({"repeat": {"by": "score.math", "percentiles": {0: 1}}}, "no score is called math"),
        ({"repeat": {"by": "score.edu", "percentiles": {50: 1}}}, "says nothing of the lowest"),
        ({"repeat": {"by": "score.edu", "percentiles": {0: 0}}}, "would leave nothing"),
        ({"repeat": {"by": "score.edu", "percentiles": {0: 1, 101: 2}}}, "101 is no percentile"),
        (
            {"repeat": {"by": "score.edu", "percentiles": {"0": 0, 95: 4, "95.0": 1}}},
            "one number is given twice",
        ),
        ({"repeat": {"by": "words", "percentiles": {0: 1}}}, "by"),
        (REPEAT | {"select": {"by": "score.edu", "tokens": 5}}, "keep one"),
    ],
)
def test_mistakes_are_told(mixture: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(TokmillError, match=told):
        mill.run(mixed_corpus(tmp_path, mixture), workers=1)


@pytest.mark.parametrize(
    ("chosen", "told"),
    [
        ({"select": {"by": "score.edu", "tokens": 40}}, "`select` leaves out all of its"),
        (
            {"repeat": {"by": "score.edu", "percentiles": {99: 1, 0: 0}}},
            "`repeat` leaves out all of its [0-9]+ documents? by score.edu.percentile",
        ),
    ],
)
def test_a_domain_of_which_the_score_leaves_nothing_is_named_with_who_did_it(
    chosen: dict[str, Any], told: str, tmp_path: Path
) -> None:
    """It has documents: to be told to give it some would be no help."""
    mixture = {"weights": {"math": "0.5", "prose": "0.5"}, **chosen}
    with pytest.raises(TokmillError, match=f"domain (math|prose) has a weight, and {told}"):
        mill.run(mixed_corpus(tmp_path, mixture), workers=1)


def test_two_selections_overlap_as_draws_by_weight_without_replacement_do(tmp_path: Path) -> None:
    """Against Efraimidis and Spirakis' draw, u ** (1 / w), by NumPy's generator."""
    documents, size = 2000, 500
    draw = np.random.default_rng(7)
    logs = draw.normal(0, 1.5, documents)
    lengths = pa.table(
        {
            "row": np.arange(documents, dtype=np.int64),
            "doc_id": [f"doc {number}" for number in range(documents)],
            "tokens": np.ones(documents, np.int64),
        }
    )
    entries = [
        write_shard_table(str(tmp_path), "lengths.parquet", "lengths", lengths),
        write_shard_table(str(tmp_path), "scores.parquet", SCORES, pa.table({"score.x": logs})),
    ]
    inputs = [table_input(entry.table, tmp_path, entry) for entry in entries]

    def selected(seed: int) -> set[int]:
        asked = SelectByScore("score.x", size, seed)
        task = Task(function="mixture.select", key="s", options=asked, inputs=inputs, directory=str(tmp_path))
        least = perform_select(task).facts["least"]
        times = times_of(tmp_path / "lengths.parquet", tmp_path / "scores.parquet", asked, least)
        return set(np.flatnonzero(times).tolist())

    def drawn() -> set[int]:
        keys = np.log(draw.random(documents)) / np.exp(logs)
        return set(np.argsort(-keys)[:size].tolist())

    ours = [selected(seed) for seed in range(24)]
    theirs = [drawn() for _ in range(400)]
    assert {len(one) for one in ours} == {size}
    apart = np.array([len(a & b) for a, b in zip(theirs[::2], theirs[1::2], strict=True)])
    pairs = np.array([len(a & b) for a, b in zip(ours[::2], ours[1::2], strict=True)])
    assert abs(pairs.mean() - apart.mean()) < 4 * apart.std() / np.sqrt(len(pairs))
    crossed = np.array([len(a & b) for a, b in zip(ours, theirs, strict=False)])
    assert abs(crossed.mean() - apart.mean()) < 4 * apart.std() / np.sqrt(len(crossed))
    assert apart.mean() > 1.5 * size * size / documents  # weights matter: chance would be 125
