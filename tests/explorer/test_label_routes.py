"""Labels over a socket: given, read, taken back; samples and precision, against the tables of the run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tokmill
from explored import HOSTILE, Client
from explorer.browsed import Counted
from explorer.test_labels import plain


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    return tmp_path / "labels.jsonl"


@pytest.fixture
def desk(run: Path, labels: Path) -> Iterator[Client]:
    with tokmill.explore(run, labels=labels) as explorer:
        yield Client(explorer)


@pytest.fixture(scope="module")
def counted(run: Path) -> Counted:
    return Counted(run)


def test_a_label_is_in_the_file_when_it_is_acknowledged(desk: Client, labels: Path) -> None:
    for number, doc_id in enumerate(["web-001", "web-002"], 1):
        told = desk.post("labels", {"id": doc_id, "label": "good", "tags": ["a", "b"], "sample": "random"})
        assert (told.status, told.json["saved"]) == (200, number)
        assert plain(labels)[doc_id] == "good"
    (first,) = desk.json("labels", id="web-001")["labels"]
    assert (first["label"], first["tags"], first["sample"], first["source"]) == (
        "good",
        ["a", "b"],
        "random",
        "web",
    )
    assert desk.post("labels", {"id": "web-001", "label": None}).json["saved"] == 1
    assert plain(labels) == {"web-002": "good"}


def test_every_hostile_id_can_be_labelled_and_read_back(desk: Client, labels: Path) -> None:
    for doc_id in HOSTILE:
        told = desk.post("labels", {"id": doc_id, "label": "bad"})
        assert told.status == 200, (doc_id[:40], told.body[:300])
    assert set(plain(labels)) == set(HOSTILE)


@pytest.mark.parametrize(
    "body",
    [
        {"label": "good"},
        {"id": "web-001"},
        {"id": "no such document", "label": "good"},
        {"id": "web-001", "label": ""},
        {"id": "web-001", "label": 5},
        {"id": "web-001", "label": "good", "tags": ["x" * 300]},
        {"id": "web-001", "label": "good", "path": "/etc/passwd"},
        ["web-001"],
    ],
)
def test_what_is_no_label_is_refused_and_nothing_is_written(desk: Client, labels: Path, body: Any) -> None:
    told = desk.post("labels", body)
    assert told.status == 400
    assert set(told.json["error"]) == {"what", "where", "next"}
    assert not labels.exists()


def test_without_a_file_labels_are_refused_and_how_to_have_them_is_said(client: Client) -> None:
    told = client.post("labels", {"id": "web-001", "label": "good"})
    assert told.status == 400
    assert "--labels" in told.json["error"]["next"]


def test_a_random_sample_has_no_document_twice_and_none_with_a_label(desk: Client, counted: Counted) -> None:
    first = desk.json("label_sample", kind="random", count=30)["documents"]
    assert len({one["place"] for one in first}) == 30
    assert desk.json("label_sample", kind="random", count=30)["documents"] == first
    assert desk.json("label_sample", kind="random", count=30, seed=2)["documents"] != first
    for one in first[:10]:
        desk.post("labels", {"place": one["place"], "label": "good"})
    assert desk.json("label_sample", kind="random", count=20)["documents"] == first[10:]
    everyone = desk.json("label_sample", kind="random", count=500)["documents"]
    assert len(everyone) == len(counted.documents) - 10


def test_a_random_sample_of_a_rule_is_of_those_that_it_drops(desk: Client, counted: Counted) -> None:
    drawn = desk.json("label_sample", kind="random", rule="words.min", count=500)["documents"]
    wanted = {(one["source"], one["id"]) for one in counted.documents if one["measures"]["words"] < 50}
    assert {(one["source"], one["id"]) for one in drawn} == wanted


def test_a_sample_at_the_border_has_the_nearest_of_both_sides(desk: Client, counted: Counted) -> None:
    drawn = desk.json("label_sample", kind="border", rule="words.min", count=10)["documents"]
    words = {(one["source"], one["id"]): one["measures"]["words"] for one in counted.documents}
    found = [words[one["source"], one["id"]] for one in drawn]
    below = sorted((value for value in words.values() if value < 50), reverse=True)[:5]
    above = sorted(value for value in words.values() if value >= 50)[:5]
    assert found[0::2] == below
    assert found[1::2] == above


def test_a_sample_in_dispute_begins_with_who_breaks_one_rule_alone(desk: Client, counted: Counted) -> None:
    drawn = desk.json("label_sample", kind="disagreement", count=6)["documents"]
    own = {(one["source"], one["id"]): one["measures"] for one in counted.documents}
    broken = [
        sum((m["words"] < 50, m["digit_share"] > 0.08, m["chars"] < 10))
        for m in (own[one["source"], one["id"]] for one in drawn)
    ]
    assert broken == [1, 0, 1, 0, 1, 0]


@pytest.mark.parametrize(
    "fields", [{"kind": "no"}, {"kind": "border"}, {"kind": "border", "rule": "no"}, {"count": "x"}]
)
def test_a_sample_that_cannot_be_is_refused(desk: Client, fields: dict[str, str]) -> None:
    assert desk.get("label_sample", **fields).status == 400


def test_precision_is_counted_among_the_labelled_that_the_rule_drops(
    desk: Client, labels: Path, counted: Counted
) -> None:
    said = {}
    for number, one in enumerate(counted.documents):
        if number % 3 == 0 and (one["source"], one["id"]) not in said and one["id"] != "twice":
            said[one["source"], one["id"]] = ("bad" if number % 4 else "good", one["measures"]["digit_share"])
    labels.write_text(
        "".join(
            json.dumps({"doc_id": doc_id, "source": source, "label": word}) + "\n"
            for (source, doc_id), (word, _) in said.items()
        )
        + '{"doc_id": "of another run", "source": "web", "label": "bad"}\n'
    )
    dropped = [word for word, share in said.values() if share > 0.08]
    assert len(dropped) > 3
    told = desk.json("precision", rule="digit_share.max")
    assert (told["labelled"], told["right"]) == (len(dropped), dropped.count("bad"))
    assert told["precision"] == pytest.approx(dropped.count("bad") / len(dropped))
    assert told["low"] < told["precision"] < told["high"]
    assert told["random"]["labelled"] == 0


def test_a_recipe_learns_from_the_file_as_it_was_saved(
    desk: Client, labels: Path, run: Path, tmp_path: Path
) -> None:
    """Long documents are good here; the model is made of the labels and nothing else."""
    for one in desk.json("label_sample", kind="random", count=80)["documents"]:
        words = desk.json("document", place=one["place"])["columns"]["words"]
        desk.post("labels", {"place": one["place"], "label": "good" if words > 90 else "bad"})
    recipe = json.loads((run.parent / "recipe.yaml").read_text())
    for source in recipe["sources"]:
        source["files"] = str(run.parent / source["files"])
    recipe["scores"] = [{"name": "mine", "train": {"labels": str(labels), "label": "good", "min_docs": 1}}]
    path = tmp_path / "recipe.yaml"
    path.write_text(json.dumps(recipe))
    made = tokmill.run(path, tmp_path / "out", workers=1)
    card = json.loads((made.out / "score" / "mine" / "card.json").read_text())
    said = Counter(plain(labels).values())
    learned = Counter(card["examples"]) + Counter(card["held_out"])
    assert learned == said
    assert said.total() == 80
