"""The flow of documents against the tables behind its ribbons, and against the report's."""

from __future__ import annotations

import urllib.parse
from pathlib import Path

import tokmill
from explored import Client, corpus, write_corpus
from tokmill.reports.facts import gather_facts


def filters(query: str) -> list[tuple[str, object]]:
    return [(name, value) for name, value in urllib.parse.parse_qsl(query)]


def test_a_ribbon_shows_exactly_its_documents(client: Client) -> None:
    told = client.json("overview")
    assert told["ribbons"]
    for ribbon in told["ribbons"]:
        found = client.json("documents", [*filters(ribbon["filter"]), ("limit", 1)])
        assert found["total"] == ribbon["documents"], ribbon


def test_what_flows_into_a_node_and_out_of_it_is_what_it_has(client: Client) -> None:
    told = client.json("overview")
    nodes = {node["id"]: node for stage in told["stages"] for node in stage["nodes"]}
    for id, node in nodes.items():
        into = sum(one["documents"] for one in told["ribbons"] if one["to"] == id)
        out = sum(one["documents"] for one in told["ribbons"] if one["from"] == id)
        assert node["documents"] == (into or out)
        if node["kind"] in ("source", "split") or (node["kind"] == "stage" and id != "built"):
            assert out == node["documents"], node


def test_the_report_draws_the_same(client: Client, run: Path) -> None:
    """Its flow is made from ledgers and manifests, with other names; the last stage is of one build."""
    told = client.json("overview")
    flow = gather_facts(run)["flow"]["documents"]
    theirs = {(link["from"], link["to"]): link["value"] for link in flow["links"]}
    ours = {(one["from"], one["to"]): one["documents"] for one in told["ribbons"] if one["to"] != "built"}
    ours = {
        (start, end if " " not in end or end.startswith("split ") else f"drop {end}"): documents
        for (start, end), documents in ours.items()
    }
    for key, value in theirs.items():
        if not key[1].startswith("built "):
            assert ours.pop(key) == value, key
    assert ours == {}


def test_records_that_never_became_documents_are_told_and_have_no_table(tmp_path: Path) -> None:
    recipe = write_corpus(tmp_path)
    with (tmp_path / "web.jsonl").open("a") as file:
        file.write("this is no JSON\n")
    tokmill.run(recipe, tmp_path / "out", workers=1, until="clean")
    with tokmill.explore(tmp_path / "out") as explorer:
        told = Client(explorer).json("overview")
    (ribbon,) = [one for one in told["ribbons"] if one["filter"] is None]
    assert ribbon["documents"] == 1
    assert ribbon["from"] == "source web"
    nodes = {node["id"]: node for stage in told["stages"] for node in stage["nodes"]}
    assert nodes["ingest invalid_json"]["documents"] == 1
    assert nodes["source web"]["documents"] == len(corpus()["web"]) + 1
