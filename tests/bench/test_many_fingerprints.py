"""`bench/many_fingerprints.py` on a few: they go through the step's own tasks, and all copies are found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench"


def bench(tmp_path: Path, *arguments: str) -> tuple[int, dict[str, object]]:
    command = [sys.executable, str(BENCH / "many_fingerprints.py"), "--json", str(tmp_path / "told.json")]
    command += ["--scratch", str(tmp_path), "--documents", "60000", "--shard", "25000", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (tmp_path / "told.json").exists(), done.stderr
    found: dict[str, object] = json.loads((tmp_path / "told.json").read_text())
    return done.returncode, found


def test_copies_are_found_and_the_bound_on_memory_decides(tmp_path: Path) -> None:
    status, told = bench(tmp_path)
    assert status == 0
    assert (told["shards"], told["copies"], told["largest_cluster"]) == (3, 3000, 2)
    assert told["duplicates"] in range(2990, 3001)
    acts = told["acts"]
    assert isinstance(acts, dict)
    assert list(acts) == ["make", "candidates", "verify", "resolve"]
    assert [path.name for path in tmp_path.iterdir()] == ["told.json"], "files are left"
    status, _ = bench(tmp_path, "--most-gb", "0.01")
    assert status == 1
