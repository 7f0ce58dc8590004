"""The pages that extraction is measured on, and the folds that it is trained in.

    articles.jsonl.zst     id, url, html, text           an article's whole text, by hand
    segments.jsonl.zst     id, url, html, with, without  what belongs to the text and what does not, by hand
    structure.jsonl.zst    id, host, html, code, tables, formulas, text   by bench/structure_pages.py

    url ─ host ─ registered host ─ SHA-256 ─> one of five folds

A host is in one fold in every set, so that a model trained without a fold has seen no page of its hosts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
import zstandard

from tokmill.clean.language import detect_languages

FOLDS = 5
# Second levels below which names are registered: example.co.uk, example.com.br.
_SECOND_LEVELS = frozenset(
    re.findall(r"\w+", "ac co com edu gob gov govt gv ltd me mil ne net nhs or org sch")
)
_LANG = re.compile(r"<html\b[^>]*?\s(?:xml:)?lang\s*=\s*[\"']?([A-Za-z]{2,3})\b", re.IGNORECASE)


class Page(NamedTuple):
    set: str
    id: str
    url: str | None
    host: str
    html: str
    gold: dict[str, Any]
    language: str

    @property
    def fold(self) -> int:
        return fold_of(self.host)

    @property
    def key(self) -> str:
        """What an engine's answer depends on."""
        return hashlib.sha256(self.html.encode()).hexdigest()[:32]


def host_of(url: str) -> str:
    """The registered host: the name that someone rents, by a rule of thumb. A platform's blogs are one host:
    they share a template."""
    name = (urlsplit(url if "//" in url else f"//{url}").hostname or "").rstrip(".").lower()
    labels = name.split(".")
    if labels[-1].isdigit():  # an address
        return name
    has_second_level = len(labels) > 2 and len(labels[-1]) == 2 and labels[-2] in _SECOND_LEVELS
    return ".".join(labels[-3 if has_second_level else -2 :])


def fold_of(host: str) -> int:
    return int.from_bytes(hashlib.sha256(host.encode()).digest()[:8], "big") % FOLDS


def load_pages(path: Path) -> list[Page]:
    """All pages of a set, whose name is that of the file."""
    name = path.name.split(".")[0]
    rows = list(read_rows(path))
    return [
        Page(
            name,
            row["id"],
            row.get("url"),
            row.get("host") or host_of(row["url"]),
            row["html"],
            {key: value for key, value in row.items() if key not in ("id", "url", "host", "html")},
            language,
        )
        for row, language in zip(rows, languages_of(rows), strict=True)
    ]


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        text = zstandard.ZstdDecompressor().stream_reader(file).read()
    yield from msgspec.json.Decoder(dict[str, Any]).decode_lines(text)


def languages_of(rows: list[dict[str, Any]]) -> list[str]:
    """As the page declares on its root element; else what the language detector says of the gold text."""
    gold = pa.array([row.get("text") or "\n".join(row.get("with", [])) for row in rows], pa.large_string())
    detected = detect_languages(gold).codes.to_pylist()
    declared = [_LANG.search(row["html"][:20_000]) for row in rows]
    return [found[1].lower() if found else str(code) for found, code in zip(declared, detected, strict=True)]
