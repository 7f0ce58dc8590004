"""No test lies where pytest does not look."""

from __future__ import annotations

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
