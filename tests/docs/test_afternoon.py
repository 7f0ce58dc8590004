"""A first afternoon, typed by a script: seven sources, mistakes, six changes of mind, the way back, damage,
questions.

afternoon.sh ─ in an empty directory, as its reader would ─> what it prints is afternoon.txt, line by line
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from docs.pages import REPOSITORY, reader_environment

_SCRIPT = REPOSITORY / "tests/docs/afternoon.sh"


@pytest.mark.slow_docs
def test_an_afternoon_goes_as_it_is_told(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    done = subprocess.run(
        ["bash", str(_SCRIPT)],
        cwd=work,
        env=reader_environment(tmp_path / "home"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == _SCRIPT.with_suffix(".txt").read_text("utf-8").splitlines()
