"""What killed drivers leave behind is removed, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tokmill.engines.neighbours import remove_abandoned, require_listener, temp_prefix
from tokmill.errors import EngineError


def test_only_the_directories_of_processes_that_are_gone_are_removed(tmp_path: Path) -> None:
    program = "from tokmill.engines.neighbours import temp_prefix; print(temp_prefix('tm-x'))"
    theirs = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    abandoned = tmp_path / f"{theirs.stdout.strip()}abc"
    reused = tmp_path / f"{temp_prefix('tm-x').rsplit('-', 2)[0]}-1-abc"  # our pid, when it was another's
    kept = [
        tmp_path / f"{temp_prefix('tm-x')}abc",
        tmp_path / "tm-x-0badc0de-1-1-abc",  # of another host
        tmp_path / "tm-y-1-1-abc",
        tmp_path / "tm-x",
    ]
    for directory in (abandoned, reused, *kept):
        (directory / "session").mkdir(parents=True)
    remove_abandoned(tmp_path, "tm-x")
    assert sorted(tmp_path.iterdir()) == sorted(kept)
    assert str(os.getpid()) in kept[0].name


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1:none", "127.0.0.1:99999999", "[::1]:1", ""])
def test_whatever_is_no_address_is_told_with_the_address(address: str) -> None:
    with pytest.raises(EngineError) as caught:
        require_listener(address, 1, "Ray cluster", f"given {address}")
    assert caught.value.where == f"given {address}"
    assert caught.value.next
