"""report.html and report.json, beside the run or where asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from tokmill.audit.report.facts import gather_facts
from tokmill.audit.report.page import render_page
from tokmill.manifest import Json
from tokmill.storage.commit import commit_bytes

PAGE, FIGURES = "report.html", "report.json"


class Report(NamedTuple):
    page: Path
    figures: Path
    facts: Json

    def as_json(self) -> Json:
        run = self.facts["run"]
        return {
            "page": str(self.page),
            "figures": str(self.figures),
            "bytes": self.page.stat().st_size,
            **{key: run[key] for key in ("name", "digest", "is_finished", "missing")},
        }


def report(directory: str | Path, out: str | Path | None = None) -> Report:
    """`out`: the page, or a directory for it; the figures go beside it. The run itself is only read."""
    page = page_path(Path(directory), out)
    facts = gather_facts(directory)
    text = json.dumps(facts, ensure_ascii=False, indent=1, allow_nan=False)
    commit_bytes(page, render_page(facts).encode())
    figures = page.with_suffix(".json")
    commit_bytes(figures, text.encode() + b"\n")
    return Report(page, figures, facts)


def page_path(directory: Path, out: str | Path | None) -> Path:
    if out is None:
        return directory / PAGE
    chosen = Path(out)
    return chosen if chosen.suffix in (".html", ".htm") else chosen / PAGE
