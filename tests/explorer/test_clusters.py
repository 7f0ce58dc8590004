"""Clusters, neighbours and word diffs, against the table of clusters and the verb `clusters`."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

import tokmill
from cleaned import prose
from explored import Client, corpus, write_corpus
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


def test_a_neighbour_has_a_similarity_only_where_the_two_were_compared(client: Client, run: Path) -> None:
    rows = load_table(run / "dedup/clusters.parquet").to_pylist()
    pairs = {}
    for row in rows:
        own, survivor = (row["shard"], row["row"]), (row["survivor_shard"], row["survivor_row"])
        if own != survivor:
            pairs[frozenset(f"{shard}:{number}" for shard, number in (own, survivor))] = row["similarity"]
    seen = 0
    for row in rows:
        place = f"{row['shard']}:{row['row']}"
        for one in client.json("neighbours", place=place)["neighbours"]:
            assert one["similarity"] == pairs.get(frozenset((place, one["place"])))
            seen += one["similarity"] is None
    assert seen > 0


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


def test_a_cluster_of_hundreds_has_all_of_its_sources(tmp_path: Path) -> None:
    """The only member of the other source is the least alike but one."""
    chance = random.Random(14)
    base = prose(14, 30).split()

    def changed(number: int, times: int) -> str:
        words = list(base)
        for at in chance.sample(range(len(words)), times):
            words[at] = f"other{number}x{at}"
        return " ".join(words)

    many = [{"id": f"m{n}", "text": changed(n, 1 if n < 130 else 12)} for n in range(131)]
    few = [{"id": "f0", "text": changed(999, 8)}]
    for name, documents in (("many", many), ("few", few)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in documents))
    recipe = write_corpus(
        tmp_path,
        sources=[
            {"name": name, "domain": "web", "license": "MIT", "files": f"{name}.jsonl"}
            for name in ("many", "few")
        ],
    )
    tokmill.run(recipe, tmp_path / "out", workers=1, until="dedup")
    rows = load_table(tmp_path / "out/dedup/clusters.parquet").to_pylist()
    (number, size), *_ = Counter(row["cluster"] for row in rows).most_common()
    members = [row for row in rows if row["cluster"] == number]
    assert size > 101
    assert {row["shard"].partition("/")[0] for row in members} == {"many", "few"}
    with tokmill.explore(tmp_path / "out") as explorer:
        told = Client(explorer).json("clusters")["clusters"][0]
    assert (told["size"], told["sources"]) == (size, ["few", "many"])
