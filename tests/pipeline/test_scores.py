"""Scores from a recipe to the end of a run: each number recounted from the written texts, by other code."""

from __future__ import annotations

import hashlib
import json
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tokmill as mill
from made_fasttext import WEIGHTS, score_of, write_model
from mill import digest_of, small_corpus, tokmill, write_recipe
from tokmill.errors import TokmillError
from tokmill.scores.scoring import ScorePlan, open_scorer, score_columns
from written import load_lines, load_manifest, load_table

EDU = {"name": "edu", "fasttext": {"path": "edu.bin", "label": "good"}}
LEAST = 0.58


def scored_corpus(directory: Path, scores: list[Any] | None = None, **sections: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    write_model(directory / "edu.bin")
    sections.setdefault("filters", [{"measure": "score.edu", "min": LEAST, "reason": "low_edu"}])
    return small_corpus(directory, scores=scores or [EDU], shards={"megabytes": 1}, **sections)


def measured(out: Path, source: str, column: str) -> list[tuple[str, Any, bool]]:
    """Text, measure and whether it is kept, of every document of a source."""
    found: list[tuple[str, Any, bool]] = []
    for entry in load_manifest(out / "ingest" / source).entries("documents"):
        key = entry.path.removeprefix("documents-")
        texts = load_table(out / "ingest" / source / entry.path, ["text"]).column("text").to_pylist()
        values = load_table(out / "clean" / source / f"measures-{key}").column(column).to_pylist()
        kept = load_table(out / "clean" / source / f"marks-{key}", ["kept"]).column("kept").to_pylist()
        found += zip(texts, values, kept, strict=True)
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mill.run(scored_corpus(tmp_path_factory.mktemp("scored")), workers=1).out


def test_every_document_has_the_score_that_its_words_say(run: Path) -> None:
    rows = [row for source in ("problems", "notes") for row in measured(run, source, "score.edu")]
    assert len(rows) > 60
    for text, value, kept in rows:
        assert value == pytest.approx(score_of(text), abs=1e-6)
        assert kept == (value >= LEAST)
    assert len({value for _, value, _ in rows}) > 8
    assert {kept for _, _, kept in rows} == {True, False}


def test_a_drop_has_the_score_and_the_threshold(run: Path) -> None:
    rows = measured(run, "problems", "score.edu")
    ledgers = [
        line
        for entry in load_manifest(run / "clean/problems").entries("ledger")
        for line in load_table(run / "clean/problems" / entry.path).to_pylist()
        if line["verdict"] == "drop"
    ]
    low = [value for _, value, kept in rows if not kept]
    assert sorted(line["value"] for line in ledgers) == sorted(low)
    assert {(line["reason"], line["threshold"]) for line in ledgers} == {("low_edu", LEAST)}
    assert load_manifest(run / "clean/problems").counts["dropped"] == {"low_edu": len(low)}


@pytest.mark.usefixtures("forked_workers")
def test_any_number_of_workers_gives_one_digest(run: Path, tmp_path: Path) -> None:
    other = mill.run(scored_corpus(tmp_path), workers=3).out
    assert digest_of(other) == digest_of(run)


def test_a_threshold_can_be_moved_without_reading_a_text(run: Path, tmp_path: Path) -> None:
    moved = mill.whatif(run, {"score.edu.min": 0.5})
    filters = [{"measure": "score.edu", "min": 0.5, "reason": "low_edu"}]
    second = mill.run(scored_corpus(tmp_path, filters=filters), workers=1, until="clean").out
    counts = [load_manifest(second / "clean" / source).counts for source in ("problems", "notes")]
    assert moved.kept_then == sum(one["kept"] for one in counts) > moved.kept_now
    assert moved.chars_then == sum(one["kept_chars"] for one in counts)
    assert {mover.reason for mover in moved.movers} == {"low_edu"}


def test_a_bound_that_no_rule_has_can_be_tried(run: Path) -> None:
    rows = [row for source in ("problems", "notes") for row in measured(run, source, "score.edu")]
    moved = mill.whatif(run, {"score.edu.max": 0.6})
    assert moved.kept_then == sum(kept and value <= 0.6 for _, value, kept in rows)


def test_why_tells_the_score_of_a_document(run: Path) -> None:
    (line,) = [
        line
        for entry in load_manifest(run / "clean/problems").entries("ledger")
        for line in load_table(run / "clean/problems" / entry.path).to_pylist()
        if line["verdict"] == "drop"
    ][:1]
    told = json.dumps(mill.why(run, line["doc_id"]).as_json())
    assert "score.edu.min" in told
    assert str(line["value"]) in told


def test_exported_texts_carry_their_scores(tmp_path: Path) -> None:
    builds = [{"name": "out", "format": "jsonl", "content": "text", "measures": True}]
    out = mill.run(scored_corpus(tmp_path, builds=builds), workers=1).out
    lines = [line for path in sorted((out / "texts/out").rglob("*.jsonl*")) for line in load_lines(path)]
    assert lines
    for line in lines:
        assert line["measures"]["score.edu"] == pytest.approx(score_of(line["text"]), abs=1e-6)


@pytest.mark.parametrize(
    ("aggregate", "bound"), [("mean", None), ("max", None), ("min", None), ("share_above", 0.6)]
)
def test_a_document_is_scored_in_windows(aggregate: str, bound: float | None, tmp_path: Path) -> None:
    windows = {"words": 12, "aggregate": aggregate} | ({"bound": bound} if bound else {})
    path = scored_corpus(tmp_path, [EDU | {"windows": windows}], filters=[])
    out = mill.run(path, workers=1, until="clean").out
    seen = set()
    for text, value, _ in measured(out, "problems", "score.edu"):
        words = text.split()
        count = max(-(-len(words) // 12), 1)
        cuts = [len(words) * number // count for number in range(count + 1)]
        found = [score_of(" ".join(words[a:b])) for a, b in pairwise(cuts)]
        expected = {
            "mean": sum(found) / count,
            "max": max(found),
            "min": min(found),
            "share_above": sum(one > (bound or 0) for one in found) / count,
        }
        assert value == pytest.approx(expected[aggregate], abs=1e-6)
        seen.add(count)
    assert max(seen) > 2


def test_a_recipe_without_scores_has_no_key_more(tmp_path: Path) -> None:
    out = mill.run(small_corpus(tmp_path), workers=1, until="clean").out
    assert "scores" not in load_manifest(out / "clean/problems").config
    assert "scores" not in json.dumps(load_manifest(out / "ingest/problems").config)


def test_another_model_is_another_result(run: Path, tmp_path: Path) -> None:
    path = scored_corpus(tmp_path)
    out = mill.run(path, workers=1, until="clean").out
    before = load_manifest(out / "clean/problems").fingerprint
    write_model(tmp_path / "edu.bin", WEIGHTS | {"many": -2.0})
    mill.run(path, workers=1, until="clean")
    assert load_manifest(out / "clean/problems").fingerprint != before
    for text, value, _ in measured(out, "problems", "score.edu"):
        assert value == pytest.approx(score_of(text, WEIGHTS | {"many": -2.0}), abs=1e-6)


HOOK = """
def shouting(columns):
    return [float(text.count("!")) for text in columns["text"]]
"""


def test_a_function_beside_the_recipe_scores_documents(tmp_path: Path) -> None:
    tmp_path.joinpath("hooks.py").write_text(HOOK)
    scores = [{"name": "loud", "hook": "hooks.py:shouting"}]
    filters = [{"measure": "score.loud", "max": 0}]
    out = mill.run(scored_corpus(tmp_path, scores, filters=filters), workers=1, until="clean").out
    for text, value, kept in measured(out, "problems", "score.loud"):
        assert (value, kept) == (text.count("!"), "!" not in text)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def not_a_number(path: Path) -> None:
    data = bytearray(path.read_bytes())
    struct.pack_into("<f", data, len(data) - 4, float("nan"))
    path.write_bytes(data)


def pickle(path: Path) -> None:
    path.write_bytes(b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}\x94.")


@pytest.mark.parametrize(
    ("damage", "changed", "told"),
    [
        (cut, {}, "ends too soon"),
        (not_a_number, {}, "not a finite number"),
        (pickle, {}, "no fastText model"),
        (Path.unlink, {}, "no such model"),
        (None, {"label": "godo"}, "no label `godo`"),
        (None, {"sha256": "0" * 64}, "the recipe pins 0000"),
    ],
)
def test_a_model_that_cannot_be_used_stops_a_run_before_anything_is_written(
    damage: Any, changed: dict[str, Any], told: str, tmp_path: Path
) -> None:
    path = scored_corpus(tmp_path, [{"name": "edu", "fasttext": EDU["fasttext"] | changed}])  # type: ignore[operator]
    if damage is not None:
        damage(tmp_path / "edu.bin")
    with pytest.raises(TokmillError, match=told):
        mill.run(path, workers=1)
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize(
    ("scores", "filters", "told"),
    [
        ([EDU], [{"measure": "score.math", "min": 1}], "no score is called math: `scores` has edu"),
        ([EDU], [{"measure": "score.edu.percentile", "min": 1}], "has no percentiles"),
        ([EDU, EDU], [], r"scores\[0\] is called edu too"),
        (
            [{"name": "x"}],
            [],
            "needs one of `fasttext`, `linear`, `train`, `importance`, `perplexity`, `transformer`, `hook`",
        ),
        ([{"name": "x", "hook": "a.py:f", **EDU}], [], "needs one of"),
        ([EDU | {"windows": {"words": 10, "aggregate": "share_above"}}], [], "bound: is required"),
        ([EDU | {"windows": {"words": 10, "bound": 1}}], [], "belongs to `aggregate: share_above`"),
        ([{"name": "A b", "hook": "a.py:f"}], [], "name"),
        ([EDU | {"name": "percentile"}], [], "`percentile` is what the measure of ranks is called"),
        (
            [EDU | {"percentile": "language"}],
            [],
            "ranks within a language, and no `language` says how documents have one",
        ),
        (
            [
                {
                    "name": "edu",
                    "fasttext": {"path": "edu.bin", "label": "good", "first_words": 5},
                    "windows": {"words": 10},
                }
            ],
            [],
            "`first_words` would be of every window",
        ),
        (
            [
                {
                    "name": "edu",
                    "train": {
                        "positive": [{"source": "notes"}],
                        "negative": [{"source": "problems"}],
                        "rate": 0.000005,
                    },
                }
            ],
            [],
            "a `rate` of 5e-06 is 0 in the 65,536ths that it is counted in",
        ),
    ],
)
def test_mistakes_in_the_section_are_told(
    scores: list[Any], filters: list[Any], told: str, tmp_path: Path
) -> None:
    with pytest.raises(TokmillError, match=told):
        mill.run(scored_corpus(tmp_path, scores, filters=filters), workers=1)


def test_a_source_whose_languages_nobody_looks_for_is_told_where_ranks_go_by_language(tmp_path: Path) -> None:
    score = EDU | {"percentile": "language"}
    recipe = scored_corpus(tmp_path, [score], filters=[], language={"method": "field"})
    own = json.loads(recipe.read_text())
    own["sources"][0]["fields"]["language"] = "answer"
    recipe.write_text(json.dumps(own))
    done = tokmill("run", recipe, "--until", "scores")
    assert done.returncode == 0, done.stderr
    assert (
        "percentiles of edu by language: documents of notes have none, and are ranked together" in done.stderr
    )
    assert "problems have none" not in done.stderr


def test_more_models_than_are_kept_open_otherwise_are_opened_once(tmp_path: Path) -> None:
    path = write_model(tmp_path / "edu.bin")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    plans = [
        ScorePlan(
            name=f"s{words}",
            kind="fasttext",
            options={"label": "good", "first_words": words},
            files=(sha256,),
        )
        for words in range(1, 13)
    ]
    files = {sha256: path}
    texts = pa.array(["Problem: how many"], pa.large_string())
    score_columns(texts, plans, files)
    first = open_scorer(plans[-1], files)
    score_columns(texts, plans, files)
    assert open_scorer(plans[-1], files) is first


def test_why_explains_a_score_by_the_words_that_made_it(run: Path) -> None:
    """Of one document: the words that weigh, and no others; what they add is what the score is made of."""
    ids = load_table(run / "ingest/problems/documents-00000-000.parquet", ["doc_id", "text"]).to_pylist()
    document = next(one for one in ids if {"many", "each"} <= set(one["text"].split()))
    (history,) = mill.why(run, document["doc_id"], explain=True).documents or []
    (told,) = history.explained
    pieces = {one["piece"]: one["contribution"] for key in ("up", "down") for one in told[key]}
    words = [word for word in document["text"].split() if word in WEIGHTS] + ["</s>"]
    assert pieces == pytest.approx(
        {word: WEIGHTS[word] * words.count(word) / len(words) for word in set(words)}, abs=1e-6
    )
    assert all(one["contribution"] > 0 for one in told["up"])
    assert all(one["contribution"] < 0 for one in told["down"])
    assert told["value"] == pytest.approx(score_of(document["text"]), abs=1e-6)
    assert told["note"] is None
    (plain,) = mill.why(run, document["doc_id"]).documents or []
    assert plain.explained == ()


def test_what_is_explained_and_shown_is_the_text_that_was_scored(tmp_path: Path) -> None:
    """Lines of the site are taken out later."""
    write_model(tmp_path / "edu.bin", WEIGHTS)
    score = {"name": "edu", "fasttext": {"path": "edu.bin", "label": "good"}}
    texts = {f"p{at}": f"Many many each Home\nThe {at}th page turns {chr(97 + at)}." for at in range(20)}
    lines = [json.dumps({"id": key, "text": text, "url": f"a.org/{key}"}) for key, text in texts.items()]
    (tmp_path / "site.jsonl").write_text("\n".join(lines) + "\n")
    site = {"name": "site", "files": "site.jsonl", "fields": {"id": "id", "meta": ["url"]}}
    recipe = write_recipe(
        tmp_path, sources=[site], scores=[score], dedup={"exact": False, "templates": {}}, normalize=None,
        filters=None, tokenizer=None, builds=None,
    )  # fmt: skip
    out = mill.run(recipe, workers=1).out
    stripped = load_table(out / "dedup/stripped-00000.parquet").to_pylist()
    assert len(stripped) == len(texts)
    assert not any("many" in one["text"] for one in stripped)
    (history,) = mill.why(out, "p3", explain=True).documents or []
    (told,) = history.explained
    assert told["value"] == pytest.approx(score_of(texts["p3"]), abs=1e-6)
    assert told["note"] is None
    assert {"many", "each"} <= {one["piece"] for one in told["up"] + told["down"]}
    (example,) = mill.score_compare(out, "score.edu", "score.edu", examples=1).examples
    assert example["text"] == texts[example["doc_id"]]


def test_an_explanation_finds_a_model_in_the_home_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    write_model(tmp_path / "home/edu.bin", WEIGHTS)
    score = {"name": "edu", "fasttext": {"path": "~/edu.bin", "label": "good"}}
    out = mill.run(scored_corpus(tmp_path / "here", [score]), workers=1, until="clean").out
    (history,) = mill.why(out, "problem-00001", explain=True).documents or []
    assert history.explained[0]["note"] is None
    assert history.explained[0]["up"]


def test_of_a_dropped_document_the_text_as_received_is_explained_and_called_so(tmp_path: Path) -> None:
    """What is normalized away counts in its words: the score is another one, and nothing of it is kept."""
    write_model(tmp_path / "edu.bin", {"many": 3.0, "\ufb01ne": 2.0, "fine": -2.0})
    score = {"name": "edu", "fasttext": {"path": "edu.bin", "label": "good"}}
    recipe = small_corpus(
        tmp_path,
        scores=[score],
        normalize={"unicode": "NFKC", "max_nul_fraction": "0.01"},
        filters=[{"measure": "score.edu", "min": 0.45, "reason": "low"}],
    )
    own = json.loads(recipe.read_text())
    own["sources"].append({"name": "one", "domain": "x", "files": "one.jsonl", "fields": {"id": "id"}})
    recipe.write_text(json.dumps(own))
    (tmp_path / "one.jsonl").write_text(json.dumps({"id": "it", "text": "a \ufb01ne day"}) + "\n")
    out = mill.run(recipe, workers=1, until="clean").out
    (history,) = mill.why(out, "it", explain=True).documents or []
    (told,) = history.explained
    assert told["value"] < 0.45
    assert "as it was received" in told["note"]
    assert "kept" not in told["note"]


def test_an_explanation_without_the_model_says_so(tmp_path: Path) -> None:
    out = mill.run(scored_corpus(tmp_path), workers=1).out
    write_model(tmp_path / "edu.bin", WEIGHTS | {"many": 3.0})
    (history,) = mill.why(out, "problem-00001", explain=True).documents or []
    assert "--base" in history.explained[0]["note"]
