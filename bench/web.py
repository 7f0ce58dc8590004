"""From web archives to documents, beside datatrove and a plain loop: pages and MB of HTML per CPU second.

    python bench/web.py [--pages DIR] [--megabytes 60] [--rounds 3] [--reference PYTHON] [--json FILE]

    pages of *.jsonl.zst (`html`, `url`), again and again with other ids ─> one .warc.gz, a member per record,
                                                         with request and metadata records as a crawl has them
        tokmill       `warc: {}` as far as its documents, which it writes; one worker
        datatrove     WarcReader, Trafilatura, JsonlWriter, as its FineWeb example has them; one task
        plain loop    FastWARC, Resiliparse's detection of charsets and its main text; nothing is written

All read the same file. A figure is the median of the rounds, of CPU time of the process and its children;
imports are made before, and each reads a small archive first. They find different text: how much is in the
table. datatrove lives in an environment of its own (`make bench` has it); without it, its row is left out.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

import tokmill
from stages import SHARED
from tokmill.storage.disk import ZstdFile

HERE = Path(__file__).parent


class Archive(NamedTuple):
    path: Path
    pages: int
    html_bytes: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--pages", type=Path, default=SHARED / "data/extraction", help="*.jsonl.zst with `html`"
    )
    parser.add_argument("--megabytes", type=float, default=60, help="of HTML in the archive")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--reference",
        default=os.environ.get("TOKMILL_REFERENCE_PYTHON"),
        help="python with datatrove and trafilatura; default: $TOKMILL_REFERENCE_PYTHON",
    )
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    paths = sorted(options.pages.glob("*.jsonl.zst"))
    if not paths:
        print(f"no *.jsonl.zst in {options.pages}: give a directory with --pages", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as place:
        archive = write_archive(paths, Path(place) / "large/a.warc.gz", int(options.megabytes * 1e6))
        small = write_archive(paths, Path(place) / "small/a.warc.gz", 1)
        found = race(archive, small, Path(place), options.rounds, options.reference)
    print_table(archive, found)
    if options.json:
        figures = {"pages": archive.pages, "html_mb": archive.html_bytes / 1e6, "ways": found}
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


# --- the archive ---


def write_archive(paths: list[Path], to: Path, html_bytes: int) -> Archive:
    """`html_bytes` or a page more."""
    to.parent.mkdir()
    size = pages = 0
    with to.open("wb") as file:
        for page in itertools.cycle(load_pages(paths)):
            body = page["html"].encode()
            for record in records_of(pages, page["url"], body):
                file.write(gzip.compress(record, 6, mtime=0))
            pages, size = pages + 1, size + len(body)
            if size >= html_bytes:
                return Archive(to, pages, size)
    raise AssertionError("a cycle has no end")


def load_pages(paths: list[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        with ZstdFile(path) as lines:
            for line in lines:
                yield msgspec.json.decode(line)


def records_of(number: int, url: str, body: bytes) -> Iterator[bytes]:
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(body)}\r\n\r\n"
    yield record(
        number, "request", "http; msgtype=request", url, b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"
    )
    yield record(number, "response", "http; msgtype=response", url, head.encode() + body)
    yield record(number, "metadata", "warc-fields", url, b"fetchTimeMs: 4\r\ncharset-detected: UTF-8\r\n\r\n")


def record(number: int, kind: str, media: str, url: str, block: bytes) -> bytes:
    lines = [
        "WARC/1.0",
        f"WARC-Type: {kind}",
        "WARC-Date: 2024-05-18T01:58:10Z",
        f"WARC-Record-ID: <urn:uuid:{kind}-{number}>",
        f"Content-Length: {len(block)}",
        f"Content-Type: application/{media}",
        f"WARC-Target-URI: {url}",
        *(["WARC-Identified-Payload-Type: text/html"] if kind == "response" else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + block + b"\r\n\r\n"


# --- the race ---


def race(
    archive: Archive, small: Archive, place: Path, rounds: int, reference: str | None
) -> list[dict[str, Any]]:
    """The ways take turns, so that a busy minute is not one's alone."""
    ask_tokmill(small, place / "warm")
    theirs = {"FastWARC + Resiliparse, plain loop": [sys.executable, "loop"]}
    if reference and Path(reference).exists():
        theirs["datatrove: WarcReader, Trafilatura"] = [reference, "datatrove"]
    else:
        print("no datatrove: name a python that has it with --reference", file=sys.stderr)
    samples: dict[str, list[dict[str, Any]]] = {}
    for number in range(rounds):
        samples.setdefault("tokmill: ingest", []).append(ask_tokmill(archive, place / f"tokmill-{number}"))
        for name, (python, way) in theirs.items():
            out = str(place / f"{way}-{number}")
            asked = [python, str(HERE / "web_reference.py"), way, str(archive.path), str(small.path), out]
            done = subprocess.run(asked, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{' '.join(asked)} failed:\n{done.stderr[-3000:]}")
            samples.setdefault(name, []).append(json.loads(done.stdout.splitlines()[-1]))
    found = []
    for name, rounds_of_it in samples.items():
        seconds = statistics.median(sample["cpu_s"] for sample in rounds_of_it)
        speeds = {
            "pages_per_cpu_s": archive.pages / seconds,
            "mb_per_cpu_s": archive.html_bytes / 1e6 / seconds,
        }
        found.append({"way": name, **rounds_of_it[0], "cpu_s": seconds, **speeds})
    return found


def ask_tokmill(archive: Archive, out: Path) -> dict[str, Any]:
    source = {"name": "web", "files": str(archive.path), "warc": {}}
    before = cpu_seconds()
    done = tokmill.run({"name": "web", "sources": [source]}, out, workers=1, until="ingest/web")
    seconds = cpu_seconds() - before
    texts = [
        text
        for path in sorted((done.out / "ingest/web").glob("documents-*.parquet"))
        for text in pq.read_table(path, columns=["text"])["text"].to_pylist()
    ]
    return {
        "version": tokmill.__version__,
        "cpu_s": seconds,
        "documents": len(texts),
        "text_mb": sum(len(text.encode()) for text in texts) / 1e6,
    }


def cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    spent = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)


def print_table(archive: Archive, found: list[dict[str, Any]]) -> None:
    title = f"{archive.pages:,} pages, {archive.html_bytes / 1e6:.1f} MB of HTML, one core"
    table = Table(title=title)
    for name in ("way", "version", "documents", "MB of text", "pages / CPU s", "MB of HTML / CPU s"):
        table.add_column(name, justify="left" if name in ("way", "version") else "right")
    for f in found:
        speeds = (f"{f['pages_per_cpu_s']:,.1f}", f"{f['mb_per_cpu_s']:.2f}")
        table.add_row(f["way"], f["version"], f"{f['documents']:,}", f"{f['text_mb']:.2f}", *speeds)
    Console(soft_wrap=True).print(table)


if __name__ == "__main__":
    sys.exit(main())
