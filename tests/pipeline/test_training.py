"""Scores that learn in the run: one model for any workers, engine and kill; figures recounted."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from faults.dying import die_in_run
from mill import digest_of, tokmill
from scores.reviews import documents
from tokmill.artifacts.progress import Silence
from tokmill.errors import InputError, RecipeError, TokmillError
from written import load_manifest, load_table

SHARE = 0.25
LABELLED = [
    {"source": "posts", "where": {"field": "score", "min": 5}},
    {"source": "posts", "where": {"field": "score", "max": 0}},
]
GOOD: dict[str, Any] = {
    "name": "good",
    "train": {"positive": [LABELLED[0], {"files": "more.jsonl"}], "negative": [LABELLED[1]]},
}


class Done(Silence):
    """Whose tasks were done."""

    def __init__(self) -> None:
        self.tasks: list[str] = []

    def finish_task(self, name: str) -> None:
        self.tasks.append(name)


def posts() -> list[dict[str, Any]]:
    """Every other is liked; every fifth is neither liked nor not."""
    return [
        {
            "id": row["doc_id"],
            "text": row["text"],
            "score": 2 if number % 5 == 4 else 5 + number % 3 if row["label"] else -(number % 3),
        }
        for number, row in enumerate(documents(400))
    ]


def more() -> list[dict[str, Any]]:
    return [{"id": f"m{row['doc_id']}", "text": row["text"]} for row in documents(480)[400:] if row["label"]]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_recipe(directory: Path, files: int = 4, **sections: Any) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    rows = posts()
    for number in range(files):
        write_lines(directory / f"posts-{number}.jsonl", rows[number::files])
    write_lines(directory / "more.jsonl", more())
    pages = [{"id": f"p{row['doc_id']}", "text": row["text"]} for row in documents(560)[480:]]
    write_lines(directory / "pages.jsonl", pages)
    fields = {"id": "id", "meta": ["score"]}
    recipe: dict[str, Any] = {
        "name": "learned",
        "seed": 3,
        "sources": [
            {"name": "posts", "domain": "qa", "files": "posts-*.jsonl", "fields": fields},
            {"name": "pages", "domain": "web", "files": "pages.jsonl", "fields": {"id": "id"}},
        ],
        "scores": [GOOD],
        "filters": [{"measure": "score.good", "min": 0.2, "reason": "not_good"}],
        "split": {"valid_fraction": "0.2", "test_fraction": "0.05"},
        **sections,
    }
    path = directory / "recipe.yaml"
    path.write_text(json.dumps(recipe))
    return path


def model_of(out: Path, name: str = "good") -> bytes:
    return (out / "score" / name / f"{name}.model").read_bytes()


def card_of(out: Path, name: str = "good") -> Any:
    return json.loads((out / "score" / name / "card.json").read_bytes())


def is_held_out(doc_id: str, share: float = SHARE) -> bool:
    return int.from_bytes(hashlib.sha256(doc_id.encode()).digest()[:8], "big") < share * 2**64


def scores_in(out: Path, source: str, score: str = "score.good") -> dict[str, float]:
    found: dict[str, float] = {}
    for entry in load_manifest(out / "ingest" / source).entries("documents"):
        key = entry.path.removeprefix("documents-")
        ids = load_table(out / "ingest" / source / entry.path, ["doc_id"]).column("doc_id").to_pylist()
        values = load_table(out / "clean" / source / f"measures-{key}").column(score).to_pylist()
        found |= dict(zip(ids, values, strict=True))
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mill.run(write_recipe(tmp_path_factory.mktemp("learned")), workers=1).out


# --- one model ---


def test_the_model_is_what_score_train_makes_of_the_same_texts(run: Path, tmp_path: Path) -> None:
    good = write_lines(tmp_path / "good.jsonl", [*more(), *(row for row in posts() if row["score"] >= 5)])
    bad = write_lines(tmp_path / "bad.jsonl", [row for row in posts() if row["score"] <= 0])
    made = mill.score_train(positive=good, negative=bad, out=tmp_path / "m", seed=3, valid_fraction=SHARE)
    assert (tmp_path / "m").read_bytes() == model_of(run)
    assert made.metrics == card_of(run)["metrics"]


@pytest.mark.usefixtures("forked_workers")
def test_three_workers_and_another_cut_into_files_give_the_same_model(run: Path, tmp_path: Path) -> None:
    three = mill.run(write_recipe(tmp_path / "three"), workers=3).out
    assert digest_of(three) == digest_of(run)
    other = mill.run(write_recipe(tmp_path / "one", files=1), workers=1, until="score").out
    assert model_of(other) == model_of(run)


@pytest.mark.slow_faults
def test_ray_gives_the_same_run(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    assert digest_of(mill.run(write_recipe(tmp_path), engine="ray", workers=2).out) == digest_of(run)


# 5 shards: examples, the draft, their measures, the model
@pytest.mark.parametrize("tasks", [1, 5, 6, 9, 12])
def test_a_run_that_is_killed_in_the_step_goes_on_where_it_was(run: Path, tmp_path: Path, tasks: int) -> None:
    recipe, out = write_recipe(tmp_path), tmp_path / "out"
    small = {"TOKMILL_WORKER_MEGABYTES": "0"}
    die_in_run(recipe, out, after="task", name="score/good", count=tasks, environment=small)
    assert not (out / "score/good/manifest.json").exists()
    receipts = len(list((out / "score/good/receipts").iterdir()))
    assert receipts >= tasks
    mill.run(recipe, out, workers=1)
    assert digest_of(out) == digest_of(run)
    assert sorted(path.name for path in (out / "score/good").iterdir()) == [
        "card.json",
        "good.model",
        "manifest.json",
    ]


def test_a_finished_run_has_nothing_to_do(run: Path) -> None:
    again = mill.run(run.parents[1] / "recipe.yaml", run, workers=1)
    assert again.ran == []


# --- what is told of it ---


def test_the_manifest_has_the_digest_of_the_model(run: Path) -> None:
    manifest = json.loads((run / "score/good/manifest.json").read_bytes())
    sha256 = hashlib.sha256(model_of(run)).hexdigest()
    assert manifest["facts"]["sha256"] == sha256 == card_of(run)["model"]["sha256"]
    assert sha256 in {entry["sha256"] for entry in manifest["files"]}


def test_those_that_the_split_holds_out_are_not_learned_from(run: Path) -> None:
    card = card_of(run)
    wanted = [*more(), *(row for row in posts() if row["score"] >= 5)]
    others = [row for row in posts() if row["score"] <= 0]
    for label, rows in (("positive", wanted), ("negative", others)):
        out = sum(is_held_out(row["id"]) for row in rows)
        assert out > 10
        assert (card["held_out"][label], card["examples"][label]) == (out, len(rows) - out)
    held_out = 0
    shards = [
        (source, entry)
        for source in ("posts", "pages")
        for entry in load_manifest(run / "ingest" / source).entries("documents")
    ]
    for number, (source, entry) in enumerate(shards):
        ids = load_table(run / "ingest" / source / entry.path, ["doc_id"]).column("doc_id").to_pylist()
        splits = load_table(run / f"split/labels-{number:05d}.parquet").column("split").to_pylist()
        out = [doc_id for doc_id, split in zip(ids, splits, strict=True) if split in (1, 2)]
        assert all(is_held_out(doc_id) for doc_id in out)
        held_out += len(out)
    assert held_out > 50


def test_the_figures_of_the_card_are_those_of_the_documents_held_out(run: Path) -> None:
    card, scores = card_of(run), scores_in(run, "posts")
    labels = {row["id"]: row["score"] for row in posts() if is_held_out(row["id"])}
    domain = card["domains"]
    assert domain["documents"] == {"qa": len(labels)}
    for threshold, share in zip(domain["thresholds"], domain["kept"]["qa"], strict=True):
        assert share == sum(scores[doc_id] >= threshold for doc_id in labels) / len(labels)
    # files of examples are not in the corpus: without them the figures can be counted here
    directory = run.parents[1] / "posts-alone"
    train = {"positive": [LABELLED[0]], "negative": [LABELLED[1]]}
    out = mill.run(
        write_recipe(directory, scores=[{"name": "good", "train": train}]), workers=1, until="clean"
    ).out
    card, scores = card_of(out), scores_in(out, "posts")
    up = [scores[doc_id] for doc_id, score in labels.items() if score >= 5]
    down = [scores[doc_id] for doc_id, score in labels.items() if score <= 0]
    pairs = [(a > b) + (a == b) / 2 for a in up for b in down]
    assert card["metrics"]["auc"] == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)
    assert card["metrics"]["auc"] > 0.9
    for told in card["metrics"]["thresholds"]:
        right, kept = (sum(score >= told["threshold"] for score in side) for side in (up, up + down))
        assert (told["kept"], told["recall"]) == (kept, right / len(up))
        assert told["precision"] == (right / kept if kept else None)
    assert sum(tenth["documents"] for tenth in card["metrics"]["calibration"]) == len(up) + len(down)
    speaking = {name for name, weight in card["strongest"]["negative"] if weight > 0}
    assert {"bean", "roasted"} & speaking


def test_a_card_says_where_its_figures_are_not_those_of_the_score(run: Path, tmp_path: Path) -> None:
    windows = {"words": 10, "aggregate": "max"}
    other = {**GOOD, "train": {**GOOD["train"], "output": "margin"}, "windows": windows}
    out = mill.run(write_recipe(tmp_path, scores=[other], filters=[]), workers=1, until="clean").out
    card = card_of(out)
    assert card.pop("figures_of") == (
        "probabilities of whole texts; the score has `windows` and `output: margin`"
    )
    assert card == card_of(run)
    assert model_of(out) == model_of(run)
    assert scores_in(out, "posts") != scores_in(run, "posts")


def test_every_document_is_scored_and_dropped_by_the_model(run: Path) -> None:
    kept = {source: load_manifest(run / "clean" / source).counts["kept"] for source in ("posts", "pages")}
    for source, count in kept.items():
        scores = scores_in(run, source)
        assert count == sum(score >= 0.2 for score in scores.values()) < len(scores)
    moved = mill.whatif(run, {"score.good.min": 0.5})
    every = [score for source in kept for score in scores_in(run, source).values()]
    assert moved.kept_then == sum(score >= 0.5 for score in every)


def test_why_explains_a_score_by_the_model_of_the_run(run: Path) -> None:
    told = json.dumps(mill.why(run, "d0", explain=True).as_json())
    assert "not found" not in told
    assert "contribution" in told


# --- labels in a file ---


def labelled(directory: Path, names: tuple[str, str], flipped: int = 0, **train: Any) -> Path:
    rows = [
        {"doc_id": row["id"], "label": names[(row["score"] >= 5) ^ (number < flipped)]}
        for number, row in enumerate(posts())
        if row["score"] != 2
    ]
    directory.mkdir(parents=True, exist_ok=True)
    write_lines(directory / "labels.jsonl", rows)
    other = {"name": "other", "train": {"positive": [LABELLED[0]], "negative": [LABELLED[1]], "epochs": 2}}
    own = {"name": "good", "train": {"labels": "labels.jsonl", **train}}
    return write_recipe(directory, scores=[own, other])


def test_a_file_of_labels_says_the_same_as_rules(run: Path, tmp_path: Path) -> None:
    train = {"positive": [LABELLED[0]], "negative": [LABELLED[1]]}
    rules = write_recipe(tmp_path / "rules", scores=[{"name": "good", "train": train}])
    told = labelled(tmp_path / "file", ("negative", "positive"))
    models = [model_of(mill.run(recipe, workers=1, until="score").out) for recipe in (rules, told)]
    assert models[0] == models[1]


def test_other_labels_train_one_model_anew_and_what_depends_on_it(tmp_path: Path) -> None:
    recipe = labelled(tmp_path, ("bad", "fine"), label="fine")
    first = mill.run(recipe, workers=1)
    before, other = model_of(first.out), model_of(first.out, "other")
    labelled(tmp_path, ("bad", "fine"), flipped=6, label="fine")
    second = mill.run(recipe, workers=1)
    assert "score/good" in second.ran
    assert {"clean/posts", "clean/pages"} <= set(second.ran)
    assert not {"ingest/posts", "ingest/pages", "score/other"} & set(second.ran)
    assert model_of(second.out) != before
    assert model_of(second.out, "other") == other
    fresh = mill.run(labelled(tmp_path / "fresh", ("bad", "fine"), flipped=6, label="fine"), workers=1)
    assert digest_of(fresh.out) == digest_of(second.out)


def test_a_label_that_changes_nobodys_model_cleans_nothing_anew(tmp_path: Path) -> None:
    recipe = labelled(tmp_path, ("bad", "fine"), label="fine")
    mill.run(recipe, workers=1)
    with (tmp_path / "labels.jsonl").open("a") as file:
        file.write('{"doc_id": "nobody", "label": "fine"}\n')
    done = Done()
    again = mill.run(recipe, workers=1, progress=done)
    assert {"score/good", "clean/posts"} <= set(again.ran)  # of another file of labels
    assert set(done.tasks) == {"score/good"}


def test_of_three_labels_the_score_is_the_chance_of_the_one_that_is_asked_for(tmp_path: Path) -> None:
    kinds = {row["doc_id"]: ("bad", "positive", "zest")[row["label"]] for row in documents(300, 3)}
    write_lines(
        tmp_path / "posts.jsonl", [{"id": row["doc_id"], "text": row["text"]} for row in documents(300, 3)]
    )
    labels = [{"doc_id": doc_id, "label": kind, "source": "posts"} for doc_id, kind in kinds.items()]
    write_lines(tmp_path / "labels.jsonl", labels)
    train = {"labels": "labels.jsonl"}
    recipe = {
        "name": "three",
        "sources": [{"name": "posts", "files": "posts.jsonl"}],
        "scores": [{"name": "good", "train": train}, {"name": "bad", "train": {**train, "label": "bad"}}],
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    out = mill.run(tmp_path / "recipe.yaml", workers=1, until="clean").out
    for name, label in (("good", "positive"), ("bad", "bad")):
        scores = scores_in(out, "posts", f"score.{name}")
        inside = [scores[doc_id] for doc_id in kinds if kinds[doc_id] == label]
        outside = [scores[doc_id] for doc_id in kinds if kinds[doc_id] != label]
        assert sum(inside) / len(inside) > 0.6 > 0.4 > sum(outside) / len(outside)
        assert card_of(out, name)["label"] == label
        assert card_of(out, name)["metrics"]["auc"] > 0.9


def write_labels(path: Path, *more: dict[str, Any], first: int = 0) -> None:
    chosen = posts()[first:200]
    rows = [{"doc_id": row["id"], "label": ("bad", "fine")[row["score"] >= 5]} for row in chosen]
    write_lines(path, [*rows, *more])


def test_labels_reach_sources_of_weight_0_too(tmp_path: Path) -> None:
    """Positive and negative examples of such a source are read: so are labelled ones."""
    train = {"labels": "labels.jsonl", "label": "fine"}
    mixed = {
        "mixture": {"weights": {"qa": 0, "web": 1}},
        "tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<|endoftext|>"},
    }
    recipe = write_recipe(tmp_path, scores=trained(**train), filters=[], **mixed)
    write_labels(tmp_path / "labels.jsonl")
    out = mill.run(recipe, workers=1, until="clean").out
    assert sum(card_of(out)["examples"].values()) + sum(card_of(out)["held_out"].values()) == 200
    assert load_manifest(out / "ingest/posts").counts["kept"] == 400


def test_labels_of_no_document_are_counted_and_told(tmp_path: Path) -> None:
    train = {"labels": "labels.jsonl", "label": "fine"}
    recipe = write_recipe(tmp_path, scores=trained(**train), filters=[])
    # d0 is told twice, and is there; d1 is none of the pages
    twice = {"doc_id": "d0", "source": "posts", "label": "bad"}
    strange = [{"doc_id": "nobody", "label": "bad"}, {"doc_id": "d1", "source": "pages", "label": "bad"}]
    write_labels(tmp_path / "labels.jsonl", twice, *strange[:1])
    done = tokmill("run", recipe, "--until", "score")
    assert done.returncode == 0, done.stderr
    assert "1 of 201 labels is of a document that is not there" in done.stderr
    assert card_of(tmp_path / "out/learned")["labels_without_document"] == 1
    write_labels(tmp_path / "labels.jsonl", *strange, first=2)
    done = tokmill("run", recipe, "--until", "score")
    assert "2 of 200 labels are of documents that are not there" in done.stderr
    write_labels(tmp_path / "labels.jsonl", twice)
    done = tokmill("run", recipe, "--until", "score")
    assert "of 200 labels" not in done.stderr
    assert "labels_without_document" not in card_of(tmp_path / "out/learned")


# --- what goes wrong ---


def trained(**train: Any) -> list[Any]:
    return [{"name": "good", "train": train}]


@pytest.mark.parametrize(
    ("train", "why"),
    [
        ({"negative": [LABELLED[1]]}, "is empty: a classifier needs documents of both kinds"),
        ({"positive": [], "negative": [LABELLED[1]]}, "is empty"),
        ({"positive": [{"source": "post"}], "negative": [LABELLED[1]]}, "no source is called post"),
        ({"positive": [{"source": "posts"}], "negative": [LABELLED[1]]}, r"are in `positive\[0\]` too"),
        ({"positive": [{"where": {"field": "a", "min": 1}}], "negative": [LABELLED[1]]}, "needs one of"),
        (
            {"positive": [LABELLED[0]], "negative": [{"source": "posts", "where": {"field": "a"}}]},
            "needs `min`",
        ),
        ({"labels": "labels.jsonl", "negative": [LABELLED[1]]}, "says already which"),
        ({"positive": [LABELLED[0]], "negative": [LABELLED[1]], "label": "best"}, "is for `labels`"),
    ],
)
def test_a_recipe_that_cannot_be_learned_from_is_refused(train: Any, why: str, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, scores=trained(**train))
    with pytest.raises(RecipeError, match=why):
        mill.run(recipe, workers=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("train", "lines", "why"),
    [
        ({"labels": "none.jsonl"}, [], "no such file of labels"),
        (
            {"labels": "labels.jsonl", "label": "best"},
            [("d0", "a"), ("d1", "b")],
            "no document has the label 'best'",
        ),
        ({"labels": "labels.jsonl"}, [("d0", "a"), ("d1", "b")], "no document has the label 'positive'"),
        ({"labels": "labels.jsonl"}, [("d0", "positive")], "one label, positive"),
        ({"labels": "labels.jsonl"}, [("d0", "a"), ("d0", "positive")], "d0 has the labels a and positive"),
        (
            {"labels": "labels.jsonl"},
            [("d0", "negative"), ("d1", "positive", "post")],
            "labels name the source post, and the recipe has none that is called so",
        ),
        (
            {"positive": [{"files": "none-*.jsonl"}], "negative": [LABELLED[1]]},
            [],
            "none-",
        ),
        (
            {
                "positive": [{"source": "posts", "where": {"measure": "wordz", "min": 1}}],
                "negative": [LABELLED[1]],
            },
            [],
            "there is no measure wordz",
        ),
        (
            {
                "positive": [{"source": "posts", "where": {"measure": "parse_error_share", "max": 0.1}}],
                "negative": [LABELLED[1]],
            },
            [],
            "parse_error_share needs the language of a file",
        ),
        (
            {"positive": [LABELLED[0]], "negative": [LABELLED[1]], "words": 0},
            [],
            "neither words nor characters",
        ),
    ],
)
def test_what_can_be_known_ahead_is_told_before_a_document_is_read(
    train: Any, lines: list[tuple[str, ...]], why: str, tmp_path: Path
) -> None:
    recipe = write_recipe(tmp_path, scores=trained(**train))
    keys = ("doc_id", "label", "source")
    write_lines(tmp_path / "labels.jsonl", [dict(zip(keys, line, strict=False)) for line in lines])
    with pytest.raises(TokmillError, match=why):
        mill.run(recipe, workers=1)
    assert not (tmp_path / "out/learned/ingest/posts/manifest.json").exists()
    with pytest.raises(TokmillError, match=why):
        mill.recipe_check(recipe)


@pytest.mark.parametrize(
    ("train", "why"),
    [
        (
            {
                "positive": [{"source": "posts", "where": {"field": "score", "min": 99}}],
                "negative": [LABELLED[1]],
            },
            "no document of source posts is an example of `positive`",
        ),
        (
            {
                "positive": [{"source": "posts", "where": {"field": "points", "min": 5}}],
                "negative": [LABELLED[1]],
            },
            "no document of source posts has `points` in its `meta`",
        ),
        (
            {
                "positive": [{"source": "posts", "where": {"field": "score", "min": 0}}],
                "negative": [LABELLED[1]],
            },
            "is an example of `negative` and of `positive`",
        ),
    ],
)
def test_what_only_documents_tell_stops_the_step_and_leaves_no_model(
    train: Any, why: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=why):
        mill.run(write_recipe(tmp_path, scores=trained(**train)), workers=1)
    step = tmp_path / "out/learned/score/good"
    assert not (step / "manifest.json").exists()
    assert not list(step.glob("*.model"))
    assert not list(step.rglob(".tmp*"))


def test_a_document_without_the_field_is_no_example_whatever_null_is_called(tmp_path: Path) -> None:
    rows = [{"id": f"d{at}", "text": row["text"]} for at, row in enumerate(documents(120))]
    for at, row in enumerate(rows):
        if at % 3:
            row["kind"] = ("null", "page")[at % 3 - 1]
    write_lines(tmp_path / "posts.jsonl", rows)
    where = [{"source": "posts", "where": {"field": "kind", "values": [value]}} for value in ("null", "page")]
    recipe = {
        "name": "learned",
        "sources": [{"name": "posts", "files": "posts.jsonl", "fields": {"id": "id", "meta": ["kind"]}}],
        "scores": [{"name": "good", "train": {"positive": [where[0]], "negative": [where[1]]}}],
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    out = mill.run(tmp_path / "recipe.yaml", workers=1, until="score/good").out
    card = card_of(out)
    for label, kind in (("positive", "null"), ("negative", "page")):
        assert card["examples"][label] + card["held_out"][label] == sum(
            row.get("kind") == kind for row in rows
        )


def test_a_source_that_is_not_built_can_be_learned_from(tmp_path: Path) -> None:
    tokenizer = {"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<|endoftext|>"}
    out = mill.run(
        write_recipe(
            tmp_path,
            scores=trained(positive=[LABELLED[0]], negative=[LABELLED[1]]),
            filters=[],
            tokenizer=tokenizer,
            mixture={"weights": {"qa": 0, "web": 1}},
            builds=[{"name": "rows", "format": "memmap"}],
        ),
        workers=1,
    ).out
    digest_of(out)
    assert card_of(out)["examples"]["positive"] > 50


def test_documents_that_are_forgotten_are_in_no_model(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path / "all")
    out = mill.run(recipe, workers=1).out
    gone = next(row["id"] for row in posts() if row["score"] >= 5 and not is_held_out(row["id"]))
    before = model_of(out)
    mill.forget(out, doc_id=gone, workers=1)
    digest_of(out)
    directory = tmp_path / "less"
    fresh_recipe = write_recipe(directory)
    for path in directory.glob("posts-*.jsonl"):
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        write_lines(path, [row for row in rows if row["id"] != gone])
    fresh = mill.run(fresh_recipe, workers=1).out
    assert model_of(out) == model_of(fresh) != before
