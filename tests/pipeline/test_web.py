"""From a web archive to tokens: pages in parts, judged block by block, their site's lines taken out."""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from mill import write_recipe
from written import load_manifest, load_tables

pytest.importorskip("fastwarc")

PAGES = 80
NOTICE = "Write to us about this page, and tell your friends what you found here."
WORDS = ("river", "stone", "winter", "harbour", "letter", "garden", "engine", "silver", "window", "bridge")


def prose(chance: random.Random, words: int) -> str:
    return " ".join(chance.choice(WORDS) for _ in range(words)).capitalize() + "."


def write_archive(path: Path) -> None:
    members = []
    for number in range(PAGES):
        chance = random.Random(number)
        paragraphs = "".join(f"<p>{prose(chance, 60)} {prose(chance, 40)}</p>" for _ in range(4))
        html = (
            f"<html><head><title>{prose(chance, 4)}</title></head><body>"
            "<nav><ul><li><a href='/'>Home</a><li><a href='/all'>All pages</a></ul></nav>"
            f"<article><h1>{prose(chance, 4)}</h1>{paragraphs}<p>{NOTICE}</p></article>"
            "<footer><a href='/imprint'>Imprint</a></footer></body></html>"
        )
        http = f"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n{html}".encode()
        head = (
            f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Record-ID: <urn:uuid:{number}>\r\n"
            f"WARC-Date: 2024-05-18T01:58:10Z\r\nWARC-Target-URI: https://example.org/{number}\r\n"
            f"Content-Type: application/http; msgtype=response\r\nContent-Length: {len(http)}\r\n\r\n"
        ).encode()
        members.append(gzip.compress(head + http + b"\r\n\r\n", mtime=0))
    path.write_bytes(b"".join(members))


def run_crawl(base: Path, **options: Any) -> Path:
    base.mkdir()
    write_archive(base / "crawl.warc.gz")
    recipe = write_recipe(
        base,
        sources=[{"name": "crawl", "files": "crawl.warc.gz", "warc": {}, "extract": {"markup": "markdown"}}],
        filters=None,
        dedup={"exact": True, "templates": True},
        tokenizer={"train": {"model": "byte_bpe", "vocab_size": 300}, "eos": "<eos>"},
        builds=[{"name": "rows", "format": "memmap"}],
    )
    return mill.run(recipe, **{"workers": 1, **options}).out


@pytest.mark.usefixtures("forked_workers")
def test_a_crawl_has_one_digest_for_any_workers_and_loses_what_its_site_repeats(tmp_path: Path) -> None:
    one, three = run_crawl(tmp_path / "one"), run_crawl(tmp_path / "three", workers=3)
    assert load_manifest(one).identity == load_manifest(three).identity
    documents = load_tables(one / "ingest/crawl", "documents")
    texts = [text for table in documents for text in table["text"].to_pylist()]
    assert len(texts) == PAGES
    assert all(NOTICE in text and text.startswith("# ") and "All pages" not in text for text in texts)
    stripped = [
        text for table in load_tables(one / "dedup", "stripped") for text in table["text"].to_pylist()
    ]
    assert len(stripped) == PAGES
    assert not any(NOTICE in text for text in stripped)


@pytest.mark.slow_faults
def test_a_crawl_on_a_cluster_has_the_same_digest(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    local, ray = run_crawl(tmp_path / "local"), run_crawl(tmp_path / "ray", engine="ray", workers=2)
    assert load_manifest(local).identity == load_manifest(ray).identity
