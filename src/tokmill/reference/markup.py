"""Markdown out of strings that did not know they would be Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

MARK = "<!-- made from the code; edit the code, not this page -->"

_SPECIAL = re.compile(r"([\\*_\[\]>#|])")
_CODE_SPAN = re.compile(r"(`[^`]+`)")


def text(words: str) -> str:
    """Plain words, with `code` kept as code and everything else taken literally."""
    parts = _CODE_SPAN.split(words)
    parts[::2] = [_SPECIAL.sub(r"\\\1", part).replace("<", "&lt;") for part in parts[::2]]
    return "".join(parts)


def code(words: str) -> str:
    """A code span; a backtick within takes a longer fence. A bar in code divides no table."""
    fence = "``" if "`" in words else "`"
    space = " " if "`" in words else ""
    return f"{fence}{space}{words}{space}{fence}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table's lines, with a blank one before and after; nothing where there are no rows."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if not lines:
        return []
    return ["", f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |", *lines, ""]


def fenced(content: str, language: str = "") -> list[str]:
    return ["", f"```{language}", *content.strip("\n").split("\n"), "```", ""]


def page(*parts: str | Iterable[str]) -> str:
    """Lines and lists of lines, one after the other; runs of blank lines are one."""
    lines = [line for part in parts for line in ([part] if isinstance(part, str) else part)]
    # the mark comes last: a page whose first line is no heading has no title
    return re.sub(r"\n{3,}", "\n\n", "\n".join([*lines, "", MARK])) + "\n"
