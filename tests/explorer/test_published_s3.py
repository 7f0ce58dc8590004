"""A run that is published on an S3 server, explored there: what is asked for is counted by a proxy."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import tokmill
from browser import open_page
from explored import Client, write_corpus
from explorer.browsed import Explored
from object_servers import Bucket, Proxy, Request, environment, make_bucket, open_moto, open_proxy

PREFIX = "runs/looked-at"


class Stored(NamedTuple):
    proxy: Proxy
    url: str
    bytes: int  # of all objects
    brought: list[int]  # sizes of answers

    def begin(self) -> None:
        self.proxy.seen.clear()
        self.brought.clear()

    def objects(self) -> list[str]:
        """Files of the run that were asked for, in order."""
        paths = [urllib.parse.urlsplit(one.path).path for one in self.proxy.seen if one.method == "GET"]
        return [path.partition(f"{PREFIX}/")[2] for path in paths if f"{PREFIX}/" in path]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    with open_moto() as endpoint, open_proxy(endpoint) as proxy, pytest.MonkeyPatch.context() as patch:
        make_bucket(endpoint, "explored")
        for name, value in environment(proxy.endpoint).items():
            patch.setenv(name, value)
        url = f"s3://explored/{PREFIX}"
        work = tmp_path_factory.mktemp("work")
        tokmill.run(write_corpus(tmp_path_factory.mktemp("published")), url, work=work, workers=1)
        whole = sum(Bucket(endpoint, "explored").sizes(PREFIX).values())
        brought: list[int] = []

        def count(request: Request, body: bytes) -> bytes:
            brought.append(len(body))
            return body

        proxy.edit = count
        yield Stored(proxy, url, whole, brought)


def test_a_run_on_s3_is_explored_as_the_one_on_disk_and_not_fetched_whole(
    stored: Stored, client: Client
) -> None:
    stored.begin()
    with tokmill.explore(stored.url) as explorer:
        far = Client(explorer)
        assert far.json("run")["digest"] == client.json("run")["digest"]
        # of each source one table, to know which measures there are
        tables = [name for name in stored.objects() if not name.endswith("manifest.json")]
        assert [name.rpartition("/")[2].partition("-")[0] for name in tables] == ["measures", "measures"]
        stored.begin()
        asked = [("f", "verdict:kept"), ("sort", "-words"), ("columns", "words,verdict")]
        mine, theirs = far.json("documents", asked), client.json("documents", asked)
        assert (mine["rows"], mine["total"]) == (theirs["rows"], theirs["total"])
        names = {name.rpartition("/")[2].partition("-")[0] for name in stored.objects()}
        assert names == {"labels", "measures"}
        assert 0 < sum(stored.brought) < stored.bytes / 20
        assert len(stored.brought) < 40
        stored.begin()
        assert far.json("documents", asked)["rows"] == mine["rows"]
        assert stored.objects() == []  # it is here now
        place = mine["places"][0]
        far.json("document", place=place)
        source, _, rest = place.partition("/")
        key = rest.partition(":")[0]
        texts = [name for name in stored.objects() if "/documents-" in name]
        assert [name.partition("/")[2] for name in texts] == [f"ingest/{source}/documents-{key}.parquet"]
        assert far.get("documents", q="river").status == 400  # all texts would be brought


def test_the_page_shows_a_run_on_s3_and_brings_no_more_than_it_shows(stored: Stored, run: Path) -> None:
    stored.begin()
    with tokmill.explore(stored.url) as explorer, open_page() as page:
        seen = Explored(page, explorer.url)
        seen.start()
        assert seen.text("h1")
        seen.go("documents?f=verdict:dropped&sort=-words")
        assert len(seen.texts("table.documents tbody tr")) > 10
        seen.go("threshold?rule=words.min&value=60")
        assert seen.texts("[data-then]")
        assert not [name for name in stored.objects() if "tokens-" in name and name.endswith(".bin")]
        assert sum(stored.brought) < stored.bytes / 2
        assert page.complaints == []
        assert seen.leaks() == []
