"""A published run, explored without being fetched whole."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

import tokmill
from explored import Client, write_corpus
from tokmill.errors import StorageError
from tokmill.explorer import published
from tokmill.explorer.published import open_published
from tokmill.storage.on_demand import at_hand


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = f"memory://{uuid.uuid4().hex}/runs/looked-at"
    tokmill.run(write_corpus(tmp_path_factory.mktemp("published")), place, workers=1)
    return place


def test_every_view_answers_as_for_the_run_on_disk(url: str, client: Client) -> None:
    with tokmill.explore(url) as explorer:
        far = Client(explorer)
        assert far.json("run")["digest"] == client.json("run")["digest"]
        assert far.json("run")["path"] == url
        asked: list[tuple[str, list[tuple[str, object]]]] = [
            ("overview", []),
            ("documents", [("f", "verdict:dropped"), ("sort", "-words"), ("limit", 100)]),
            ("documents", [("f", "source:books"), ("f", "tokens:100.."), ("sort", "tokens")]),
            ("document", [("id", "mail-0")]),
            ("document", [("id", "near-2")]),
            ("text", [("id", "cafe"), ("which", "trained")]),
            ("neighbours", [("id", "near-0")]),
            ("differ", [("id", "near-1"), ("other", "near-2")]),
            ("histogram", [("measure", "words")]),
            ("threshold", [("rule", "words.min"), ("value", 80)]),
            ("clusters", []),
            ("cluster", [("id", client.json("clusters")["clusters"][0]["id"])]),
            ("rows", [("build", "rows"), ("split", "train"), ("first", 3), ("count", 2)]),
            ("rows", [("build", "mega"), ("split", "valid"), ("first", 0), ("count", 2)]),
        ]
        for name, pairs in asked:
            mine, theirs = far.json(name, pairs), client.json(name, pairs)
            assert mine.get("sql") is None  # there is no file to ask
            for told in (mine, theirs):
                told.pop("seconds", None)
                told.pop("command", None)
                told.pop("sql", None)
            assert mine == theirs, name


def test_a_filter_brings_the_tables_that_it_needs_and_no_text(url: str) -> None:
    from tokmill.explorer.listing import list_documents
    from tokmill.explorer.site import Site

    with open_published(url) as (directory, brought):
        assert brought.bytes == 0
        site = Site(directory, url=url)
        told = list_documents(site, filters=["verdict:kept"], sort="-words", columns=["words", "verdict"])
        names = sorted(path.name for path in directory.rglob("*.parquet"))
        assert told["total"] > 0
        assert {name.partition("-")[0] for name in names} == {"labels", "measures"}
        whole = sum(
            entry["bytes"]
            for manifest in directory.rglob("manifest.json")
            for entry in json.loads(manifest.read_bytes())["files"]
        )
        assert 0 < brought.bytes < whole / 20
    assert not directory.exists()


def test_what_was_brought_is_bounded(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "_IN_USE_SECONDS", 0.0)
    monkeypatch.setattr(published, "CACHE_BYTES", 20_000)
    with open_published(url) as (directory, brought):
        for path in sorted(brought._entries):
            brought.bring(path)
            held = [own for own in directory.rglob("*") if own.is_file() and own.name != "manifest.json"]
            assert sum(own.stat().st_size for own in held) <= 20_000
        assert brought.bytes > 1_000_000
        small = min(brought._entries, key=lambda path: (brought._entries[path].bytes, path))
        small.unlink(missing_ok=True)
        assert at_hand(small).exists()  # one that went comes back


def test_nothing_published_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="nothing is published here"):
        tokmill.explore(f"memory://{uuid.uuid4().hex}/none")
