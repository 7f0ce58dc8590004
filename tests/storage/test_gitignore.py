"""What `.gitignore` leaves out is what git leaves out."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokmill.storage.gitignore import parse_rules

DIRECTORIES = ["a", "b", "ab", "a/b", "a/a", "b/ab", "a/b/a", "ab/éb"]
NAMES = ["x", "a.py", "ba", "é", "-", "ab.py", "b b", "a*", "]", "A"]
FILES = [f"{directory}/{name}".lstrip("/") for directory in ["", *DIRECTORIES] for name in NAMES]
TOKENS = [
    "a", "b", "ab", ".py", "*", "**", "?", "[ab]", "[!a]", "[^a-b]", "/", "**/", "/**", "\\", "\\*", "\\/",
    "[[:alpha:]]", "[[:no:]]", "[]-a]", "[a-", "-", "]", "!", "é", " ", "\\ ", "#", "x", "\r", "[:",
]  # fmt: skip
LINES = st.lists(st.sampled_from(TOKENS), min_size=1, max_size=6).map("".join)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    root = tmp_path_factory.mktemp("checkout")
    git(root, "init", "-q")
    (root / ".git/info/exclude").unlink(missing_ok=True)
    for directory in DIRECTORIES:
        (root / directory).mkdir(parents=True)
    for file in FILES:
        (root / file).touch()
    return root


def git(root: Path, *arguments: str, told: bytes = b"") -> bytes:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    done = subprocess.run(["git", "-C", root, *arguments], input=told, capture_output=True, env=env)
    assert done.returncode in (0, 1), done.stderr
    return done.stdout


def left_out_by_git(root: Path) -> set[str]:
    paths = "\0".join([*FILES, *DIRECTORIES]).encode()
    told = git(root, "check-ignore", "--no-index", "--stdin", "-z", told=paths)
    return {path for path in told.decode().split("\0") if path}


def left_out_here(text: str) -> set[str]:
    rules = parse_rules(text.encode())

    def is_out(path: str) -> bool:
        parts = path.split("/")
        above = ["/".join(parts[:depth]) for depth in range(1, len(parts) + 1)]
        return any(
            rules.verdict(one.encode(), one.rpartition("/")[2].encode(), one in DIRECTORIES) for one in above
        )

    return {path for path in [*FILES, *DIRECTORIES] if is_out(path)}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(st.tuples(st.booleans(), LINES), min_size=1, max_size=5))
def test_any_lines_leave_out_what_git_leaves_out(checkout: Path, lines: list[tuple[bool, str]]) -> None:
    text = "\n".join(("!" if takes_back else "") + line for takes_back, line in lines)
    (checkout / ".gitignore").write_bytes(text.encode())
    assert left_out_here(text) == left_out_by_git(checkout)


@pytest.mark.parametrize(
    ("text", "out", "in_"),
    [
        ("*.py", ["a.py", "a/b/a.py"], ["x"]),
        ("/a.py", ["a.py"], ["a/a.py"]),
        ("a/b", ["a/b", "a/b/x"], ["b/ab"]),
        ("b/", ["b", "b/x", "a/b"], ["a/ba"]),
        ("a/**/a.py", ["a/a.py", "a/b/a/a.py"], ["a.py"]),
        ("**/b/x", ["b/x", "a/b/x"], ["ab/x"]),
        ("a/**", ["a/x", "a/b/x"], ["a", "b"]),
        ("*.py\n!ab.py", ["a.py"], ["ab.py", "a/ab.py"]),
        ("a/\n!a/x", ["a/x"], ["x"]),
        ("\\#x\n#a.py\nx   \nba\\ ", ["x"], ["a.py", "ba"]),
        ("\ufeffx\r\na.py\r\n", ["x", "a.py"], ["ba"]),
        ("?", ["x", "-"], ["é"]),
    ],
)
def test_what_the_manual_of_git_says(text: str, out: list[str], in_: list[str]) -> None:
    found = left_out_here(text)
    assert set(out) <= found
    assert not set(in_) & found


def test_a_pattern_of_many_stars_takes_no_time_to_speak_of() -> None:
    """Tried at every place it would take longer than anyone waits."""
    rules = parse_rules(b"*a" * 60 + b"b\n" + b"**/a/" * 40 + b"b")
    assert rules.verdict(b"a/" * 200 + b"a" * 250, b"a" * 250, False) is None
