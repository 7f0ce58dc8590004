"""Tables and paragraphs of a page, and the results that fill it."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


class Results:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def json(self, name: str) -> Any:
        path = self._directory / f"{name}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def run(self, name: str) -> dict[str, Any] | None:
        path = self._directory / f"{name}.run"
        return json.loads(path.read_text()) if path.exists() else None

    def text(self, name: str) -> str:
        path = self._directory / f"{name}.txt"
        return path.read_text(errors="replace") if path.exists() else ""


def table(head: Sequence[str], rows: Iterable[Sequence[object]], left: Sequence[int] = (0,)) -> list[str]:
    marks = ["---" if index in left else "---:" for index in range(len(head))]
    body = ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return ["| " + " | ".join(head) + " |", "| " + " | ".join(marks) + " |", *body]


def percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.1f} %"


def paragraph(text: str) -> list[str]:
    return textwrap.wrap(text, 118, break_long_words=False, break_on_hyphens=False)
