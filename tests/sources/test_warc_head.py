"""What pages of a web archive say of themselves, as it lies in the documents."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sources.ingested import ingest_source

pytest.importorskip("fastwarc")
pytest.importorskip("resiliparse")

DEED = "https://creativecommons.org/licenses/by/4.0/"
PROSE = "This is a sentence of a page that has many of them, one after the other. " * 12
HEAD = f"""<html lang="en-GB"><head><title>The number {{}} - Numbers</title>
<meta property="og:site_name" content="Numbers"><meta name="robots" content="index, noai, noindex">
<meta property="article:published_time" content="2019-11-20T08:30:00Z">
<link rel="canonical" href="/canonical/{{}}"><link rel="license" href="{DEED}"></head>"""


def archive(path: Path, pages: list[tuple[str, list[str]]], said: Sequence[str] = ()) -> None:
    """Each a page, and the lines that its server sent. `said` by the archive: a line for each."""
    members = []
    for number, (html, lines) in enumerate(pages):
        http = "\r\n".join(["HTTP/1.1 200 OK", "Content-Type: text/html", *lines, "", html]).encode()
        head = [
            "WARC/1.0",
            "WARC-Type: response",
            f"WARC-Record-ID: <urn:uuid:{number}>",
            "WARC-Date: 2024-05-18T01:58:10Z",
            "WARC-Identified-Content-Language: eng",
            f"WARC-Target-URI: https://example.org/{number}",
            "Content-Type: application/http; msgtype=response",
            f"Content-Length: {len(http)}",
            *said[number : number + 1],
        ]
        record = "\r\n".join([*head, "", ""]).encode() + http + b"\r\n\r\n"
        members.append(gzip.compress(record, mtime=0))
    path.write_bytes(b"".join(members))


def page(number: int) -> str:
    return f"{HEAD.format(number, number)}<body><main><p>{PROSE} {number}</p></main></body></html>"


def read(path: Path, **source: Any) -> list[dict[str, Any]]:
    return ingest_source(**{"files": str(path), "warc": {}, "license": "MIT", **source}).documents


def test_a_document_has_what_its_page_says_beside_what_the_archive_says(tmp_path: Path) -> None:
    archive(tmp_path / "a.warc.gz", [(page(0), ["X-Robots-Tag: noindex, nofollow"])])
    (document,) = read(tmp_path / "a.warc.gz")
    assert (document["created_at"], document["license_tag"]) == ("2024-05-18T01:58:10Z", "MIT")
    assert json.loads(document["meta"]) == {
        "url": "https://example.org/0",
        "date": "2024-05-18T01:58:10Z",
        "content_type": "text/html",
        "status": 200,
        "language": "eng",
        "title": "The number 0",
        "published": "2019-11-20T08:30:00Z",
        "declared_language": "en",
        "canonical_url": "https://example.org/canonical/0",
        "license": "CC-BY-4.0",
        "license_link": DEED,
        "robots": "noindex, nofollow, noai",
    }


def test_the_licence_of_a_page_is_that_of_the_document_where_it_is_asked_for(tmp_path: Path) -> None:
    silent = f"<p>{PROSE}</p>"
    by_header = f'Link: <{DEED.replace("by/", "by-sa/")}>; rel="license"'
    archive(
        tmp_path / "a.warc.gz", [(page(0), []), (silent, []), (silent, [by_header]), (page(3), [by_header])]
    )
    documents = read(tmp_path / "a.warc.gz", warc={"license": "page"})
    assert [row["license_tag"] for row in documents] == ["CC-BY-4.0", "MIT", "CC-BY-SA-4.0", "MIT"]
    assert json.loads(documents[3]["meta"])["license_link"].split() == [DEED.replace("by/", "by-sa/"), DEED]
    assert {row["license_tag"] for row in read(tmp_path / "a.warc.gz")} == {"MIT"}


def test_a_document_says_that_the_archive_has_only_the_beginning_of_its_page(tmp_path: Path) -> None:
    reasons = ["length", "time", "disconnect", "unspecified"]
    lines = [f"WARC-Truncated: {reason}" for reason in reasons]
    archive(tmp_path / "a.warc.gz", [(f"<p>{PROSE}", [])] * 6, [*lines, "warc-truncated:", "X: y"])
    metas = [json.loads(row["meta"]) for row in read(tmp_path / "a.warc.gz")]
    assert [meta.get("truncated") for meta in metas] == [*reasons, None, None]
    assert ["truncated" in meta for meta in metas] == [True] * 4 + [False] * 2


@pytest.mark.usefixtures("forked_workers")
def test_pages_are_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    archive(tmp_path / "a.warc.gz", [(page(n), ["X-Robots-Tag: noai"] if n % 2 else []) for n in range(40)])
    archive(tmp_path / "b.warc.gz", [(page(n), []) for n in range(40, 60)])
    source = {"files": str(tmp_path / "*.warc.gz"), "warc": {"license": "page"}}
    one, two = (ingest_source(workers=workers, **source) for workers in (1, 2))
    assert one.corpus_digest == two.corpus_digest
    assert one.documents == two.documents
    titles = [json.loads(row["meta"])["title"] for row in one.documents]
    assert titles == [f"The number {n}" for n in range(60)]
