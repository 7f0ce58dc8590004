"""Damaged and hostile files, by the thousand, through every reader: read or refused, and never anything else.

A refusal is a TokmillError. A reader that hangs, ends its process, asks for memory without bound, raises
anything else, or reads another number of records than an independent count finds, has a bug. What was once
found that way is a case of its own below.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tokmill as mill
from faults import templates
from faults.disk import open_scratch

pytest.importorskip("py7zr")
pytest.importorskip("fastwarc")
pytest.importorskip("mwparserfromhell")
pytest.importorskip("pypdfium2_raw")
pytest.importorskip("jinja2")
if not sys.platform.startswith("linux"):
    pytest.skip("bounds its children with what Linux has", allow_module_level=True)

HERE = Path(__file__).resolve().parent
QUICK, WHOLE = 30, 2000
# A target more or less is not to be missed: the names are part of the test.
TARGETS = [
    "arrow", "arrow stream", "arrow.lz4", "build arrow", "build arrow-documents", "build cache",
    "build levanter", "build levanter-documents", "build litdata", "build llmc", "build mds", "build mega",
    "build nanogpt", "build nanotron", "build olmo", "build rows", "build shards", "build table", "chat",
    "chat config", "chat template", "container", "csv", "file of a directory", "gitignore", "json array",
    "jsonl", "jsonl.gz", "jsonl.lz4", "jsonl.xz", "jsonl.zst", "manifest", "mbox", "mbox.gz", "mediawiki",
    "mediawiki.bz2", "mixture", "notebook", "page of a directory", "pairs.csv", "pairs.jsonl",
    "pairs.parquet", "pairs.tsv", "parquet", "pdf", "posts", "posts.7z", "receipt", "recipe",
    "saved to disk", "tar", "tar.gz", "template", "text as a whole", "text by line", "text by paragraph",
    "tokenizer bpe.model", "tokenizer ranks.tiktoken", "tokenizer tekken.json", "tokenizer tokenizer.json",
    "tokenizer unigram.model", "tsv.gz", "warc", "warc.gz", "wet", "wet.gz", "wikiextractor",
    "wikiextractor lines", "working shard",
]  # fmt: skip
# A few bytes that ask for gigabytes or hours, and what becomes of them.
BOMBS = {
    "gzip": "read", "gzip text": "read", "zstd": "read", "zstd window": "refused", "bzip2": "refused",
    "warc": "read", "7z": "refused", "laughs": "refused", "aliases": "refused", "deep yaml": "refused",
    "deep json": "read", "deep manifest": "refused", "deep container": "refused", "deep xml": "refused",
    "long line": "read", "long tag": "refused", "no newline": "read",
    "long cell": "read", "open quote": "refused", "many columns": "refused", "long element": "read",
    "deep array": "refused", "xz": "read", "lz4": "read", "bzip2 text": "read",
    "pdf forms": "read", "pdf stream": "read", "deep mail": "read", "long mail": "read", "long field": "read",
    "tar": "read", "deep notebook": "read", "stars": "read",
}  # fmt: skip
TEMPLATES = {**templates.TOO_MUCH, **templates.NOT_THE_SAME, **templates.FAILS}
BOMBS |= {f"template: {name}": "read" for name in TEMPLATES}
BOMBS |= {f"template: {name}": "refused" for name in templates.NO_TEMPLATE}
# (target, seed, example): each of these once raised what no reader may raise.
FOUND = [
    ("build rows", 3, 620, "an index whose table has no frame"),
    ("build shards", 2, 16, "a description that is not UTF-8"),
    ("build table", 2, 26, "a description that is not UTF-8"),
    ("mixture", 2, 387, "a template with a single brace"),
    ("tokenizer tokenizer.json", 7, 683, "an id that asks for gigabytes"),
    ("posts", 3, 4, "an encoding that nobody knows"),
    ("posts.7z", 2, 56, "an encoding that nobody knows"),
    ("tokenizer bpe.model", 2, 358, "a model of which the library's own message is not UTF-8"),
    ("working shard", 3, 695, "a column whose name is not UTF-8"),
    ("build table", 7, 1509, "a column whose name is not UTF-8"),
    (
        "parquet",
        7,
        190,
        "counts of levels that are not as many as levels: asking for statistics ended the process",
    ),
]


class Feeder:
    def __init__(self, scratch: Path) -> None:
        path = os.pathsep.join([str(Path(mill.__file__).parents[1]), str(HERE.parent)])
        self._server = subprocess.Popen(
            [sys.executable, HERE / "hostile.py", scratch],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        self.names = self._answer()

    def feed(self, target: str, seed: int, first: int, count: int) -> dict[str, Any]:
        assert self._server.stdin is not None
        asked = {"target": target, "seed": seed, "first": first, "count": count}
        print(json.dumps(asked), file=self._server.stdin, flush=True)
        found: dict[str, Any] = self._answer()
        return found

    def close(self) -> None:
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait()
        self._server.stdout.close()

    def _answer(self) -> Any:
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        assert line, "the process that feeds readers is gone"
        return json.loads(line)


@pytest.fixture(scope="module")
def feeder() -> Iterator[Feeder]:
    with open_scratch() as scratch:
        found = Feeder(scratch)
        yield found
        found.close()


def test_every_reader_is_fed(feeder: Feeder) -> None:
    assert [name for name in feeder.names if not name.startswith("bomb ")] == TARGETS


@pytest.mark.parametrize("bomb", BOMBS)
def test_a_bomb_does_not_go_off(feeder: Feeder, bomb: str) -> None:
    """Read: within the bound on memory, with the record that is too large in quarantine."""
    found = feeder.feed(f"bomb {bomb}", seed=0, first=0, count=1)
    assert found["faults"] == []
    assert found[BOMBS[bomb]] == 1


@pytest.mark.parametrize("target", TARGETS)
def test_a_damaged_file_is_read_or_refused(feeder: Feeder, target: str) -> None:
    found = feeder.feed(target, seed=1, first=0, count=QUICK)
    assert found["faults"] == []
    assert found["read"] + found["refused"] == QUICK


@pytest.mark.parametrize(
    ("target", "seed", "example", "what"), FOUND, ids=[case[3] + " " + case[0] for case in FOUND]
)
def test_what_was_once_found_stays_mended(
    feeder: Feeder, target: str, seed: int, example: int, what: str
) -> None:
    assert feeder.feed(target, seed, example, 1)["faults"] == []


@pytest.mark.slow_faults
@pytest.mark.parametrize("target", TARGETS)
def test_thousands_of_damaged_files_are_read_or_refused(feeder: Feeder, target: str) -> None:
    found = feeder.feed(target, seed=7, first=0, count=WHOLE)
    assert found["faults"] == []
    assert found["read"] + found["refused"] == WHOLE
