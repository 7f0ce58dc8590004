"""A page of the built site, as a parser sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

_VOID = {"br", "hr", "img", "input", "link", "meta", "source", "wbr"}


@dataclass
class BuiltPage:
    """Ids, texts of code by the heading they stand under, and what a browser would load or follow."""

    ids: set[str] = field(default_factory=set)
    code: dict[str, set[str]] = field(default_factory=dict)
    loaded: list[str] = field(default_factory=list)
    followed: list[str] = field(default_factory=list)
    words: str = ""

    @property
    def all_code(self) -> set[str]:
        return {text for texts in self.code.values() for text in texts}


def read_page(path: Path) -> BuiltPage:
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.page.words = " ".join("".join(reader.words).split())
    return reader.page


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = BuiltPage()
        self.words: list[str] = []
        self._open: list[str] = []
        self._heading = ""
        self._text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.page.ids.add(given["id"])
        if tag in ("script", "img", "iframe", "source", "video", "audio") and given.get("src"):
            self.page.loaded.append(given["src"])
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.page.loaded.append(given["href"])
        if tag == "a" and given.get("href"):
            self.page.followed.append(given["href"])
        if tag not in _VOID:
            self._open.append(tag)
        if tag in ("h1", "h2", "h3", "code"):
            self._text = []

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass
        text = "".join(self._text).removesuffix("¶").strip()
        if tag in ("h1", "h2", "h3"):
            self._heading = text
        elif tag == "code":
            self.page.code.setdefault(self._heading, set()).add(text)

    def handle_data(self, data: str) -> None:
        if not {"script", "style"} & set(self._open):
            self.words.append(data)
            self._text.append(data)
