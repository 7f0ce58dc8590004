"""bench/web.py on a few pages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tokmill.storage.disk import ZstdFile

BENCH = Path(__file__).resolve().parents[2] / "bench"


def test_every_way_reads_every_page(tmp_path: Path) -> None:
    pytest.importorskip("fastwarc")
    pages = [
        {
            "url": f"https://example.org/{n}",
            "html": f"<html><body><main><p>{f'Page {n} has é text. ' * 200}</p></main></body></html>",
        }
        for n in range(4)
    ]
    with ZstdFile(tmp_path / "pages.jsonl.zst", "wb") as file:
        file.write(b"".join(json.dumps(page).encode() + b"\n" for page in pages))
    asked = [
        sys.executable,
        str(BENCH / "web.py"),
        "--pages",
        str(tmp_path),
        "--json",
        str(tmp_path / "a.json"),
    ]
    done = subprocess.run(
        [*asked, "--megabytes", "0.03", "--rounds", "1", "--reference", str(tmp_path / "none")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "no datatrove" in done.stderr
    found = json.loads((tmp_path / "a.json").read_text())
    size = [len(page["html"].encode()) for page in pages]
    count = next(n for n in range(1, 99) if sum(size[k % 4] for k in range(n)) >= 30_000)
    assert (found["pages"], found["html_mb"]) == (count, sum(size[k % 4] for k in range(count)) / 1e6)
    for way in found["ways"]:
        assert way["documents"] == count
        assert way["mb_per_cpu_s"] == pytest.approx(found["html_mb"] / way["cpu_s"])
        assert way["pages_per_cpu_s"] == pytest.approx(count / way["cpu_s"])
    assert len(found["ways"]) == 2
