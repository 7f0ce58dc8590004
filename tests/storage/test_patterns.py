from __future__ import annotations

import glob
import os
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tokmill.errors import EmptyGlob
from tokmill.storage.patterns import find_files

LETTERS = st.text("ab.[]*?-é", min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))
PATTERNS = st.lists(
    st.sampled_from(["a", "b", ".", "*", "?", "[ab]", "[!a]", "[", "é", "-"]), min_size=1, max_size=5
)


def named(pattern: str, base: Path) -> list[str]:
    try:
        return [file.name for file in find_files(pattern, base)]
    except EmptyGlob:
        return []


def settle(directory: Path) -> None:
    """As if nobody had touched it for an hour."""
    there = directory.stat()
    os.utime(directory, ns=(there.st_atime_ns, there.st_mtime_ns - 3_600 * 10**9))


@settings(max_examples=200, deadline=None)
@given(st.sets(LETTERS, min_size=1, max_size=8), st.lists(PATTERNS.map("".join), min_size=1, max_size=4))
def test_patterns_of_one_directory_find_what_glob_finds(names, patterns):
    with tempfile.TemporaryDirectory() as place:
        base = Path(place)
        for name in names:
            (base / name).write_text("{}\n")
        settle(base)
        for pattern in patterns:
            if "**" in pattern:
                continue
            matches = [name for name in glob.glob(pattern, root_dir=base) if name not in (".", "..")]  # noqa: PTH207
            assert named(pattern, base) == sorted(matches)


def test_a_file_that_is_new_is_found_and_one_that_is_gone_is_not(tmp_path):
    (tmp_path / "a-1").write_text("{}\n")
    settle(tmp_path)
    assert named("a-*", tmp_path) == ["a-1"]
    for number in range(2, 40):
        (tmp_path / f"a-{number}").write_text("{}\n")
        assert len(named("a-*", tmp_path)) == number
    for number in range(2, 40):
        (tmp_path / f"a-{number}").unlink()
        assert len(named("a-*", tmp_path)) == 40 - number
