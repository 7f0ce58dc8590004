"""The flow of documents against the tables behind its ribbons, and against the report's."""

from __future__ import annotations

import urllib.parse
from pathlib import Path

import pytest

import tokmill
from explored import Client, corpus, write_corpus
from explorer.browsed import open_explored
from tokmill.reports.facts import gather_facts


def filters(query: str) -> list[tuple[str, object]]:
    return [(name, value) for name, value in urllib.parse.parse_qsl(query)]


def test_a_ribbon_shows_exactly_its_documents(client: Client) -> None:
    told = client.json("overview")
    assert told["ribbons"]
    for ribbon in told["ribbons"]:
        found = client.json("documents", [*filters(ribbon["filter"]), ("limit", 1)])
        assert found["total"] == ribbon["documents"], ribbon


@pytest.fixture(scope="module")
def unnamed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source and a reason that are called as what is missing is."""
    directory = tmp_path_factory.mktemp("unnamed")
    recipe = write_corpus(
        directory,
        sources=[
            {"name": "null", "domain": "web", "license": "MIT", "files": "web.jsonl"},
            {"name": "books", "domain": "prose", "license": "MIT", "files": "books.jsonl"},
        ],
        filters=[{"measure": "words", "min": 50, "reason": "null"}],
    )
    return tokmill.run(recipe, directory / "out", workers=1, until="clean").out


def test_a_ribbon_of_a_source_called_null_shows_its_documents(unnamed: Path) -> None:
    with tokmill.explore(unnamed) as explorer:
        client = Client(explorer)
        ribbons = client.json("overview")["ribbons"]
        for ribbon in ribbons:
            found = client.json("documents", [*filters(ribbon["filter"]), ("limit", 1)])
            assert found["total"] == ribbon["documents"], ribbon
    assert sum(one["documents"] for one in ribbons if one["from"] == "source null") == len(corpus()["web"])


def test_links_of_the_page_to_a_source_called_null_show_its_documents(unnamed: Path) -> None:
    number = len(corpus()["web"])
    with open_explored(unnamed) as opened:
        for view, selector in (
            ("", "td a[href^='#/documents']"),
            ("document?id=web-001", ".facts a"),
        ):
            opened.go(view)
            opened.press(lambda one=selector: opened.page.run(f"document.querySelector({one!r}).click()"))
            assert opened.text("main h1") == f"{number} documents"
            assert opened.text(".chip") == "source null×"
        opened.go("documents")
        opened.press(lambda: opened.page.run("document.querySelector('td button.value').click()"))
        assert opened.text("main h1") == f"{number} documents"
        opened.go("threshold?rule=words.min&source=null")
        assert opened.page.run("document.querySelectorAll('figure svg rect').length") > 0
        assert opened.texts(".fault") == []
        assert opened.page.complaints == []


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
