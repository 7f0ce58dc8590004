"""Clusters, neighbours and word diffs, against the table of clusters and the verb `clusters`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import tokmill
from explored import Client, corpus
from written import load_table

TEXTS = {(source, name): text for source, own in corpus().items() for name, text in own}


def test_clusters_are_those_of_the_table_largest_first(client: Client, run: Path) -> None:
    rows = load_table(run / "dedup/clusters.parquet").to_pylist()
    sizes = Counter(row["cluster"] for row in rows)
    told = client.json("clusters")
    assert told["total"] == len(sizes)
    expected = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    assert [(one["id"], one["size"]) for one in told["clusters"]] == expected
    assert sizes[told["clusters"][0]["id"]] == 6
    for one in told["clusters"]:
        own = [row for row in rows if row["cluster"] == one["id"]]
        assert one["kept"] == sum(row["kept"] for row in own)
        assert one["sources"] == sorted({row["shard"].rpartition("/")[0] for row in own})
        assert client.json("document", place=one["kept_place"])["columns"]["verdict"] == "kept"
    assert client.json("clusters", offset=1, limit=2)["clusters"] == told["clusters"][1:3]


def test_members_and_what_they_do_not_share_are_those_of_the_verb(client: Client, run: Path) -> None:
    (first, *_) = tokmill.clusters(run, count=1, members=6, diff=True).as_json()["clusters"]
    told = client.json("cluster", id=first["cluster"])
    assert told["size"] == first["size"] == 6
    assert [one["id"] for one in told["members"]] == [one["doc_id"] for one in first["members"]]
    assert [one["similarity"] for one in told["members"]] == [one["similarity"] for one in first["members"]]
    assert told["members"][0]["differences"] is None
    assert told["members"][-1]["differences"] == first["differences"] != []
    assert client.get("cluster", id=10**9).status == 400
    assert client.get("cluster", id="x").status == 400


def test_neighbours_are_the_cluster_and_who_was_dropped_for_it(client: Client) -> None:
    near = client.json("neighbours", id="near-0")["neighbours"]
    assert {one["id"] for one in near} == {f"near-{n}" for n in range(1, 6)}
    assert {one["kind"] for one in near} == {"near"}
    assert not any(one["kept"] for one in near)
    kept = client.json("neighbours", id="same-1")
    assert [(one["id"], one["kind"], one["kept"]) for one in kept["neighbours"]] == [
        ("same-2", "exact", False)
    ]
    assert kept["dropped_for_it"] == 1
    gone = client.json("neighbours", id="same-2")
    assert [(one["id"], one["kind"], one["kept"]) for one in gone["neighbours"]] == [
        ("same-1", "exact", True)
    ]
    assert client.json("neighbours", id="book-00") == {"neighbours": [], "dropped_for_it": 0}


@pytest.mark.parametrize(("one", "other"), [("near-1", "near-4"), ("same-1", "same-2"), ("bidi", "astral")])
def test_a_word_diff_has_all_of_both_texts(client: Client, one: str, other: str) -> None:
    told = client.json("differ", id=one, other=other)
    left = "".join(part["text"] for part in told["parts"] if part["op"] in ("same", "left"))
    right = "".join(part["text"] for part in told["parts"] if part["op"] in ("same", "right"))
    by_id = {name: text for (_, name), text in TEXTS.items()}
    assert left == by_id[one]
    assert right == by_id[other]
    if one == "same-1":
        assert [part["op"] for part in told["parts"]] == ["same"]
    if one == "near-1":
        words = [part["text"] for part in told["parts"] if part["op"] != "same"]
        assert {"other1", "other4"} <= set(words)


def test_a_diff_of_millions_of_characters_is_bounded(client: Client) -> None:
    told = client.json("differ", id="long-line", other="many-lines")
    assert told["truncated"]
    assert sum(len(part["text"]) for part in told["parts"]) <= 80_000


def test_a_run_without_near_duplicates_says_so(tmp_path: Path) -> None:
    from explored import mill_corpus

    out = mill_corpus(tmp_path, dedup={"exact": True})
    with tokmill.explore(out) as explorer:
        client = Client(explorer)
        assert client.get("clusters").status == 400
        kept = client.json("neighbours", id="same-1")
        assert [one["id"] for one in kept["neighbours"]] == ["same-2"]
