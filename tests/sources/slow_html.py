"""HTML fragments as plain text, a string at a time: the slow, obvious twin of `tokmill.sources.posts`.

It has its own tables of tags, Python's decoder of entities, and patterns where the kernel walks bytes.
"""

from __future__ import annotations

import html as entities
import re

HIDDEN = ["script", "style", "template", "noframes", "iframe"]
TAG = re.compile(
    "(<(?:(?=[sStTnNiI])(?i:"
    + "|".join(rf"{name}(?=[\s/>]).*?(?:</{name}[^>]*+(?:>|\Z)|\Z)" for name in HIDDEN)
    + r""")|/?[a-zA-Z](?:[^>"'=]++|=[ \t\r\n\f]*+(?:"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z))?|["'])*+(?:>|\Z)"""
    r"""|!--.*?(?:--!?>|\Z)|[!?/][^>]*+(?:>|\Z)))""",
    re.DOTALL,
)
NAME = re.compile(r"<(/?[a-zA-Z][^\s/>]*+)")
START = re.compile(r"\sstart\s*=\s*[\"']?([0-9]{1,9})", re.IGNORECASE)
ENDLESS_NUMBER = re.compile(r"&#(?:[0-9]{16,}|[xX][0-9a-fA-F]{16,});?")
BLOCKS = """
    p div h1 h2 h3 h4 h5 h6 blockquote hr dl dt dd section article header footer main nav aside figure
    figcaption address form fieldset details summary center caption option body
"""
ENDS_CELL = {"table", "/table", "tr", "/tr", "td", "th"}


def html_to_text(html: str) -> str:
    page = _Page()
    for position, piece in enumerate(TAG.split(html)):
        if position % 2 == 0:
            page.inline += entities.unescape(ENDLESS_NUMBER.sub("\ufffd", piece))
        elif name := NAME.match(piece):
            page.take(name[1].lower(), piece)
    page.end_block()
    return "".join(page.out)


class _Page:
    """What is laid out so far, and the block that is being filled."""

    def __init__(self) -> None:
        self.out: list[str] = []
        self.inline = ""  # text of the current line (of the current cell, in a table)
        self._lines: list[str] = []  # lines of the current block that <br> has ended
        self._cells: list[str] | None = None  # of the current row of a table
        self._is_in_cell = False
        self._gap = 2  # newlines before the next block
        self._marker = ""  # "- " or "1. " that waits for the first block of its item
        self._lists: list[int] = []  # per open list the next number; -1 for bullets
        self._items = 0  # items of the innermost list so far
        self._is_pre = False

    def take(self, name: str, tag: str) -> None:
        act = "block" if name.removeprefix("/") in BLOCKS.split() else name
        if act == "/br":
            act = "br"
        method = getattr(self, "_take_" + act.replace("/", "end_"), None)
        if method is None:
            return
        if self._cells is not None and act not in ENDS_CELL:
            self.inline += " "  # a cell is one line, whatever it holds
        elif self._is_pre and act != "/pre":
            if act == "br":
                self.inline += "\n"
        else:
            method(tag)

    def end_block(self) -> None:
        if self._cells is not None:
            self._end_cell()
            block = "\t".join(self._cells)
            self._cells = None
            has_text = bool(block.strip("\t"))
        elif self._is_pre:
            block = self.inline.removeprefix("\n").rstrip("\n")
            self.inline = ""
            has_text = bool(block.strip())
            if has_text and self._marker:
                block, self._marker = f"\n{block}", self._marker.rstrip()
        else:
            block = "\n".join([*self._lines, self._line()]).strip("\n")
            self._lines = []
            has_text = bool(block)
        if not has_text:
            return
        if self.out:
            self.out.append("\n" * self._gap)
        self.out.append(self._marker + block)
        self._marker = ""
        self._gap = 2

    def _line(self) -> str:
        line = re.sub("[ \n\t\r\f]+", " ", self.inline).strip(" ")
        self.inline = ""
        return line

    def _take_block(self, _: str) -> None:
        self.end_block()
        if not self._marker:
            self._gap = 2

    _take_table = _take_block

    def _take_br(self, _: str) -> None:
        self._lines.append(self._line())

    def _take_pre(self, tag: str) -> None:
        self._take_block(tag)
        self._is_pre = True

    def _take_end_pre(self, _: str) -> None:
        self.end_block()
        self._is_pre = False

    def _take_ul(self, _: str, first: int = -1) -> None:
        self.end_block()
        self._gap = 1 if self._lists else 2
        self._lists.append(first)
        self._items = 0

    def _take_ol(self, tag: str) -> None:
        start = START.search(tag, 3, 200)
        self._take_ul(tag, int(start[1]) if start else 1)

    def _take_end_ul(self, _: str) -> None:
        self.end_block()
        if self._lists:
            self._lists.pop()
        self._marker = ""
        self._gap = 1 if self._lists else 2
        self._items = 1

    _take_end_ol = _take_end_ul

    def _take_li(self, _: str) -> None:
        self.end_block()
        if self._items or not self._lists:
            self._gap = 1
        self._items += 1
        number = self._lists[-1] if self._lists else -1
        bullet = "- "
        if number >= 0:
            bullet = f"{number}. "
            self._lists[-1] += 1
        self._marker = "  " * min(len(self._lists) - 1, 8) + bullet

    def _take_end_li(self, _: str) -> None:
        self.end_block()
        self._marker = ""
        self._gap = 1 if self._lists else 2

    def _take_end_table(self, _: str) -> None:
        self.end_block()
        self._gap = 2

    def _take_tr(self, _: str) -> None:
        self.end_block()
        self._cells, self._is_in_cell = [], False

    def _take_end_tr(self, _: str) -> None:
        if self._cells is not None:
            self.end_block()
            self._gap = 1

    def _take_td(self, _: str) -> None:
        if self._cells is None:
            self.end_block()
            self._cells = []
        self._end_cell()
        self._is_in_cell = True

    _take_th = _take_td

    def _end_cell(self) -> None:
        line = self._line()
        if self._cells is not None and (line or self._is_in_cell):
            self._cells.append(line)
        self._is_in_cell = False
