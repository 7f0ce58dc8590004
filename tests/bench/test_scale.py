"""The page of what terabytes take is what its script writes, and the arithmetic holds for one row by hand."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/scale.md"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.delitem(sys.modules, "scale", raising=False)
    import scale

    yield scale
    sys.modules.pop("scale", None)


def test_the_page_is_what_the_script_writes(script) -> None:
    assert PAGE.read_text() == script.render()


def test_a_terabyte_is_reckoned_from_the_figures_of_the_page_of_benches() -> None:
    """MB per CPU second of each stage are read from that page, and nothing of the script is used."""
    rates = {
        name: float(rate.replace(",", ""))
        for name, rate in re.findall(
            r"^\| ([a-z+]+) \| ([\d.,]+) \|", (ROOT / "docs/performance.md").read_text(), re.MULTILINE
        )
    }
    seconds = 1.16 * 1e6 / rates["tokens"]
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith("| tokens, core hours |"))
    assert float(row.split("|")[2]) == pytest.approx(seconds / 3600, rel=0.02)
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith("| ingest and clean, core"))
    assert float(row.split("|")[2]) == pytest.approx(1.16 * 1e6 / rates["ingest+clean"] / 3600, rel=0.05)
