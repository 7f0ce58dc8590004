"""The same recipes on real text, where there is some: other files in stand-in/, and nothing else."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import tokmill
from mill import SHARED
from recipes.shelved import Shelved
from tokmill.demos.stand_in import write_stand_in
from tokmill.recipe.examples import STAND_IN, copy_recipe, recipe_names

DATA, BENCH = SHARED / "data", SHARED / "bench"

pytestmark = [
    pytest.mark.slow_recipes,
    pytest.mark.skipif(not (DATA.is_dir() and BENCH.is_dir()), reason="no ../shared here"),
]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Shelved:
    directory = tmp_path_factory.mktemp("real")
    lay_out(directory / STAND_IN)
    write_stand_in(directory / STAND_IN)  # generated, where there is nothing real
    for name in recipe_names():
        copy_recipe(name, directory / f"{name}.yaml", offline=True)
    (directory / "tok").symlink_to(DATA / "tokenizers" / "tiktoken")
    return Shelved(directory)


def lay_out(stand_in: Path) -> None:
    for folder in ("wiki/AA", "qa", "books"):
        (stand_in / folder).mkdir(parents=True)
    pairs = lines(DATA / "fr_en" / "ntrex_0-999.jsonl")
    write_lines(stand_in / "pairs.jsonl", ({"translation": {"en": p["en"], "fr": p["fr"]}} for p in pairs))
    web = ({"id": d["id"], "text": d["text"], "date": None, "language": "en"} for d in bench("web", 400))
    write_zst(stand_in / "web.jsonl.zst", web)
    write_zst(stand_in / "slimpajama.jsonl.zst", ({"text": d["text"]} for d in bench("prose", 300)))
    code = itertools.islice(lines(DATA / "code" / "python.jsonl"), 150)
    write_zst(
        stand_in / "code.jsonl.zst",
        ({"hash": d["id"], "content": d["text"], "path": d["id"], "license": "BSD-3-Clause"} for d in code),
    )
    articles = [{"id": d["id"], "title": d["id"], "text": d["text"]} for d in bench("prose", 900)][300:]
    pq.write_table(pa.Table.from_pylist(articles), stand_in / "encyclopedia.parquet")
    wikitext = (
        (DATA / "prose" / "wikitext-2" / "valid.txt").read_text(encoding="utf-8").splitlines(keepends=True)
    )
    lines_of_it = [{"text": line if line.strip() else ""} for line in wikitext]
    pq.write_table(pa.Table.from_pylist(lines_of_it), stand_in / "wikitext.parquet")
    (stand_in / "problems.jsonl").symlink_to(DATA / "math" / "gsm8k" / "test.jsonl")
    competition = lines(DATA / "math" / "MATH" / "test_0000-1499.jsonl")
    write_lines(
        stand_in / "competition.jsonl",
        (
            {"problem": d["question"], "solution": d["answer"], "level": d["level"], "type": d["type"]}
            for d in competition
        ),
    )
    math = ({"url": str(n), "text": d["text"], "date": None} for n, d in enumerate(bench("math", 500)))
    write_zst(stand_in / "webmath.jsonl.zst", math)
    (stand_in / "wiki" / "AA" / "wiki_00").symlink_to(DATA / "wikiextractor" / "en" / "AA" / "wiki_00")
    (stand_in / "qa" / "Posts.xml").symlink_to(
        DATA / "stackexchange" / "coffee.stackexchange.com" / "Posts.xml"
    )
    for number, book in enumerate(sorted((DATA / "prose" / "gutenberg").glob("*.md"))):
        (stand_in / "books" / f"book-{number}.txt").symlink_to(book)


def lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from map(json.loads, file)


def bench(name: str, count: int) -> Iterator[dict[str, Any]]:
    with (
        (BENCH / f"{name}.jsonl.zst").open("rb") as file,
        zstandard.ZstdDecompressor().stream_reader(file) as stream,
    ):
        data = stream.read(count * 20_000)
    yield from map(json.loads, data.split(b"\n")[:count])


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    path.write_bytes(spelled(records))


def write_zst(path: Path, records: Iterable[dict[str, Any]]) -> None:
    path.write_bytes(zstandard.ZstdCompressor(write_checksum=True).compress(spelled(records)))


def spelled(records: Iterable[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_mills_real_text_twice_to_the_same_digest(real: Shelved, tmp_path: Path, name: str) -> None:
    first = tokmill.run(real.path(name), tmp_path / "first", workers=1)
    second = tokmill.run(real.path(name), tmp_path / "second", workers=1)
    verified = tokmill.verify(first.out)
    assert verified.problems == []
    assert tokmill.verify(second.out).digest == verified.digest
    (build,) = (artifact for step, artifact in first.artifacts.items() if step.startswith("build/"))
    assert build.manifest.counts["tokens"]["written"] > 2_000
