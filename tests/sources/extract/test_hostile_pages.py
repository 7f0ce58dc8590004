"""Pages made to hurt: none raises, none takes more memory than its size allows, all are read alike again."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sources.extract.hostile_pages import hostile_pages
from tokmill.sources.extract.engines import open_engine
from tokmill.sources.extract.page import find_blocks, judge, parse_page


def read_all(count: int, seed: int) -> None:
    engines = [
        open_engine({"markup": markup, "links": links}, main_text=main)
        for markup, links, main in [
            ("text", False, True),
            ("markdown", True, True),
            ("markdown", False, False),
        ]
    ]
    for number, page in enumerate(hostile_pages(count, seed)):
        html = page.decode("utf-8", "replace")
        data, tree = parse_page(html.encode())
        texts = [engine(html, data, tree) for engine in engines]
        assert all(isinstance(text, str) for text in texts)
        if number % 50 == 0:
            first, again = (judge(find_blocks(*parse_page(html.encode()))) for _ in range(2))
            assert all((a == b).all() for a, b in zip(first, again, strict=True))


def test_mutated_pages_are_read() -> None:
    read_all(400, seed=1)


@pytest.mark.slow_faults
def test_very_many_mutated_pages_are_read() -> None:
    read_all(20_000, seed=2)


# Bytes beyond what the process has, for each of a page; measured: 32, 56, 40, 46, 2 and 14.
MEMORY = {"<a>": 50, "<p>a": 85, "<div>a": 60, "<td>a": 70, "a ": 6, "<b x=y>": 25}


@pytest.mark.parametrize("piece", MEMORY)
def test_memory_is_bounded_by_the_size_of_a_page(piece: str) -> None:
    code = f"""
import resource
from tokmill.sources.extract.page import extract
extract(b"<p>a")
page = {piece.encode()!r} * (3_000_000 // {len(piece)})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
extract(page, markup="markdown", links=True)
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print((after - before) * 1024 / len(page))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(run.stdout) < MEMORY[piece]
