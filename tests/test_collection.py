"""No test lies where pytest does not look."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def test_every_test_is_below_a_directory_that_is_looked_into(pytestconfig: pytest.Config) -> None:
    left_out: list[str] = pytestconfig.getini("norecursedirs")
    files = [path.relative_to(TESTS) for path in TESTS.rglob("test_*.py")]
    assert len(files) > 200
    unseen = [
        str(path)
        for path in files
        if any(fnmatch(part, pattern) for part in path.parts[:-1] for pattern in left_out)
    ]
    assert unseen == []


def test_what_is_left_for_a_long_suite_is_below_what_its_target_collects() -> None:
    makefile = (TESTS.parent / "Makefile").read_text(encoding="utf-8")
    targets = {
        marker: [TESTS.parent / place for place in places.split()]
        for marker, places in re.findall(r"pytest .*-m (slow_\w+) (.+)", makefile)
    }
    assert len(targets) == 6
    left = [
        (path, marker)
        for path in TESTS.rglob("*.py")
        for marker in set(re.findall(r"pytest\.mark\.(slow_\w+)", path.read_text(encoding="utf-8")))
    ]
    assert {marker for _, marker in left} == targets.keys()
    assert [
        (path, marker)
        for path, marker in left
        if not any(path.is_relative_to(place) for place in targets[marker])
    ] == []
