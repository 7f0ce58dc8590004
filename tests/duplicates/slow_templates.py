"""Lines of a site in the plainest way: whole texts, regular expressions, a Counter."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})(.*)", re.DOTALL)
STRUCTURE = re.compile(r"[ \t]*(>|#{1,6}[ \t])")
ITEM = re.compile(r"([*+-]|[0-9]+[.)])[ \t]")


def fold(line: str) -> str:
    return re.sub(r"\d+", "0", " ".join(line.split()))


def blocks(text: str, max_chars: int = 300) -> dict[int, str]:
    """Number of the line -> what it says, of all lines that may recur."""
    found, fence = {}, ""
    for number, line in enumerate(text.split("\n")):
        match = FENCE.fullmatch(line)
        mark, rest = match.groups() if match else ("", "")
        if fence:
            if mark.startswith(fence) and not rest.strip(" \t\r"):
                fence = ""
        elif mark and not (mark[0] == "`" and "`" in rest):
            fence = mark
        elif not STRUCTURE.match(line) and not is_indented_code(line):
            said = fold(line)
            is_marked = any(0xFDD0 <= ord(char) <= 0xFDEF for char in said)
            if any(map(str.isalpha, said)) and len(said) <= max_chars and not is_marked:
                found[number] = said
    return found


def is_indented_code(line: str) -> bool:
    rest = line.lstrip(" \t")
    indent = line[: len(line) - len(rest)]
    return ("\t" in indent or len(indent) >= 4) and not ITEM.match(rest)


def without(text: str, gone: set[int]) -> str:
    """By stretches of lines between those that stay and are filled: B is blank, G goes, F is filled."""
    lines = re.findall(r"[^\n]*\n|[^\n]+\Z", text)  # with their ends; only \n ends one
    kinds = "".join(
        "G" if number in gone else "F" if line.strip() else "B" for number, line in enumerate(lines)
    )
    left, is_new_end = "", False
    for match in re.finditer(r"F|[BG]+", kinds):
        stretch, first = match.group(), match.start()
        own = lines[first : match.end()]
        if "G" not in stretch:
            left += "".join(own)
        elif match.end() == len(kinds):
            is_new_end = True
        else:
            has_blank, stays = first == 0, first
            parts = stretch.split("G")
            for part, blank in enumerate(parts):
                if part == 0 or not has_blank:
                    left += "".join(lines[stays : stays + len(blank)])
                    has_blank |= bool(blank)
                stays += len(blank) + 1
    if is_new_end and not text.endswith("\n"):
        left = re.sub(r"\r?\n\Z", "", left)
    return left


def strip_sites(
    texts: Sequence[str],
    hosts: Sequence[str | None],
    *,
    min_pages: int = 10,
    min_share: str = "0.2",
    min_host_pages: int = 20,
    max_chars: int = 300,
) -> list[str]:
    pages = Counter(hosts)
    having = Counter(
        (host, said)
        for text, host in zip(texts, hosts, strict=True)
        for said in set(blocks(text, max_chars).values())
    )
    found = []
    for text, host in zip(texts, hosts, strict=True):
        needed = max(min_pages, Fraction(min_share) * pages[host])
        gone = {
            number
            for number, said in blocks(text, max_chars).items()
            if host is not None and pages[host] >= min_host_pages and having[host, said] >= needed
        }
        found.append(without(text, gone) if gone else text)
    return found
