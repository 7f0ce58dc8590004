"""Labels over a socket: given, read, taken back; samples and precision, against the tables of the run."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tokmill
from explored import HOSTILE, Client, write_corpus
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


def test_a_label_of_any_source_is_read_replaced_and_taken_back(desk: Client, labels: Path) -> None:
    """A file of other hands need not name sources."""
    labels.write_text('{"id": "short", "label": "good"}\n{"id": "web-099", "label": "bad"}\n')
    for asked in ({"id": "short", "source": "web"}, {"id": "short"}):
        (told,) = desk.json("labels", **asked)["labels"]
        assert (told["id"], told["label"]) == ("short", "good")
    drawn = desk.json("label_sample", kind="random", count=500)["documents"]
    assert "short" not in {one["id"] for one in drawn}
    saved = desk.post("labels", {"id": "short", "source": "web", "label": "bad"})
    assert saved.json["saved"] == 2
    lines = [json.loads(line) for line in labels.read_text().splitlines()]
    assert sorted((one["doc_id"], one["label"]) for one in lines) == [("short", "bad"), ("web-099", "bad")]
    told = desk.json("precision", rule="words.min")
    assert (told["labelled"], told["precision"]) == (2, 1.0)
    assert desk.post("labels", {"id": "web-099", "source": "web", "label": None}).json["saved"] == 1
    assert plain(labels) == {"short": "bad"}


def test_precision_counts_a_document_once_whatever_its_labels(desk: Client, labels: Path) -> None:
    """What is said of a source's document holds; one of any source is of each that has such an id."""
    labels.write_text(
        '{"id": "short", "source": "web", "label": "bad"}\n{"id": "short", "label": "good"}\n'
        '{"id": "twice", "label": "good"}\n'
    )
    told = desk.json("precision", rule="words.min")
    assert (told["labelled"], told["right"]) == (1, 1)
    everyone = desk.json("documents", f="doc_id:twice")["places"]
    assert {place.partition("/")[0] for place in everyone} == {"web", "books"}
    for place in everyone:
        (one,) = desk.json("labels", place=place)["labels"]
        assert one["label"] == "good"


LONG = " ".join(f"Sentence number {n} speaks of a mill by the river." for n in range(12))


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source with ids that two documents have: other texts, and the same one."""
    directory = tmp_path_factory.mktemp("twins")
    documents = [
        ("dup", "one short text"),
        ("dup", LONG),
        ("same", LONG + " Again."),
        ("same", LONG + " Again."),
    ]
    documents += [("own", LONG + " Alone.")]
    (directory / "web.jsonl").write_text(
        "".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in documents)
    )
    recipe = write_corpus(directory)
    (directory / "web.jsonl").write_text(
        "".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in documents)
    )
    return tokmill.run(recipe, directory / "out", workers=1, until="clean").out


def test_a_label_that_two_documents_would_have_is_refused_and_nothing_is_lost(
    twins: Path, labels: Path
) -> None:
    """A recipe learns by source and id: it would take a label of the one for the other's too."""
    with tokmill.explore(twins, labels=labels) as explorer:
        client = Client(explorer)
        short, long = client.json("documents", [("f", "doc_id:dup"), ("f", "source:web")])["places"]
        assert [one["place"] for one in client.json("document", place=short)["others"]] == [long]
        assert [one["place"] for one in client.json("document", place=long)["others"]] == [short]
        for place in (short, long):
            told = client.post("labels", {"place": place, "label": "good"})
            assert told.status == 400
            assert "two documents of web" in told.json["error"]["what"]
        assert not labels.exists()
        # of the same text a label is true of both
        first, second = client.json("documents", f="doc_id:same")["places"]
        assert client.post("labels", {"place": first, "label": "good"}).json["saved"] == 1
        assert [one["label"] for one in client.json("labels", place=second)["labels"]] == ["good"]
        assert client.post("labels", {"place": second, "label": None}).json["saved"] == 0


def test_a_label_of_one_of_two_documents_is_that_of_the_text_it_was_given_to(
    twins: Path, labels: Path
) -> None:
    digest = hashlib.sha256(b"one short text").hexdigest()
    given = {"doc_id": "dup", "source": "web", "label": "bad"}
    with tokmill.explore(twins, labels=labels) as explorer:
        client = Client(explorer)
        short, long = client.json("documents", [("f", "doc_id:dup"), ("f", "source:web")])["places"]
        for text, labelled in ((digest, 1), (hashlib.sha256(LONG.encode()).hexdigest(), 0), (None, 0)):
            labels.write_text(json.dumps({**given, "text_sha256": text}) + "\n")
            assert client.json("precision", rule="words.min")["labelled"] == labelled, text
        labels.write_text(json.dumps({**given, "text_sha256": digest}) + "\n")
        assert [one["label"] for one in client.json("labels", place=short)["labels"]] == ["bad"]
        assert client.json("labels", place=long)["labels"] == []
        assert client.post("labels", {"place": long, "label": None}).status == 400
        assert plain(labels) == {"dup": "bad"}
        assert client.post("labels", {"place": short, "label": None}).json["saved"] == 0


def test_what_was_drawn_for_one_rule_is_no_random_sample_of_another(
    desk: Client, labels: Path, counted: Counted
) -> None:
    drawn = desk.json("label_sample", kind="random", rule="words.min", count=100)
    assert drawn["sample"] == "random:words.min"
    for one in drawn["documents"]:
        desk.post("labels", {"place": one["place"], "label": "bad", "sample": drawn["sample"]})
    measured = {(one["source"], one["id"]): one["measures"] for one in counted.documents}
    short = [one for one in drawn["documents"] if measured[one["source"], one["id"]]["chars"] < 10]
    told = {rule: desk.json("precision", rule=rule) for rule in ("words.min", "chars.min")}
    assert told["words.min"]["random"]["labelled"] == told["words.min"]["labelled"] == len(drawn["documents"])
    assert told["chars.min"]["labelled"] == len(short) > 0
    assert told["chars.min"]["random"]["labelled"] == 0
    # of all documents, as files that were written before have it
    others = desk.json("label_sample", kind="random", count=100)
    assert others["sample"] == "random"
    lines = [json.loads(line) for line in labels.read_text().splitlines()]
    assert {one["sample"] for one in lines} == {"random:words.min"}
    labels.write_text("".join(json.dumps({**one, "sample": "random"}) + "\n" for one in lines))
    assert desk.json("precision", rule="chars.min")["random"]["labelled"] == len(short)


@pytest.mark.parametrize(
    ("sample", "stored"),
    [
        ("random", "random"),
        ("random:words.min", "random:words.min"),
        ("random:nothing.min", None),
        ("border", "border"),
        ("border:words.min", None),
        ("\u202e", None),
    ],
)
def test_only_a_sample_that_there_is_is_stored(
    desk: Client, labels: Path, sample: str, stored: str | None
) -> None:
    desk.post("labels", {"id": "web-001", "label": "good", "sample": sample})
    assert json.loads(labels.read_text())["sample"] == stored


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
