"""HTML fragments as plain text: one pass, no tree, no recursion, whatever the input.

    html ─ cut at tags ─ text, tag, text, tag, … ─ blocks ─ joined by one or two newlines

    <p>, <h1>, <div>, …     a block of its own, a blank line before it; white space collapsed
    <pre>                   every space and newline kept
    <ul>, <ol>, <li>        "- item", "1. item", nested lists indented by two spaces
    <br>                    a newline
    <table>                 a row is a line, its cells separated by tabs
    <script>, comments      dropped with what they hold; images too
    anything else           its text

A tag ends at the first ">" that is not inside a quoted value, or with the input, as in the HTML standard's own
tokenizer. So no character is looked at twice: a tree builder needs 25 s for 100,000 nested <div>, this takes time by
the byte.
"""

from __future__ import annotations

import functools
from html import unescape
from html.entities import html5
from typing import Any

import numpy as np

from tokmill.kernels import htmltext as kernel
from tokmill.kernels.jit import Bytes, Offsets, frozen
from tokmill.schema import large_strings

_MAX_INDENTED_LISTS = 8  # deeper ones stay there: 100,000 nested lists must not make 10 GB of spaces

_BLOCKS = (
    "p div h1 h2 h3 h4 h5 h6 blockquote hr dl dt dd section article header footer main nav aside figure figcaption "
    "address form fieldset details summary center caption option body"
)
_HIDDEN = "script style template noframes iframe"
# What the opening and the closing tag do.
_ACTS = dict.fromkeys(_BLOCKS.split(), (kernel.BLOCK, kernel.BLOCK)) | {
    "br": (kernel.BREAK, kernel.BREAK),
    "pre": (kernel.PRE, kernel.PRE_END),
    "ul": (kernel.LIST, kernel.LIST_END),
    "ol": (kernel.NUMBERED, kernel.LIST_END),
    "li": (kernel.ITEM, kernel.ITEM_END),
    "table": (kernel.TABLE, kernel.TABLE_END),
    "tr": (kernel.ROW, kernel.ROW_END),
    "td": (kernel.CELL, kernel.INLINE),
    "th": (kernel.CELL, kernel.INLINE),
    **dict.fromkeys(_HIDDEN.split(), (kernel.HIDDEN, kernel.INLINE)),
}


def html_column(data: Bytes, offsets: Offsets) -> Any:
    """The texts of a column of fragments, laid out as the module says."""
    tags, entities = _tables()
    return large_strings(
        *kernel.lay_out(data, offsets, tags, entities, max_indented_lists=_MAX_INDENTED_LISTS)
    )


def html_to_text(html: str) -> str:
    """The text of one fragment."""
    data = np.frombuffer(html.encode(), np.uint8)
    text: str = html_column(data, np.array([0, data.size]))[0].as_py()
    return text


@functools.cache
def _tables() -> tuple[kernel.Names, kernel.Entities]:
    tags = {name: opening | closing << 8 for name, (opening, closing) in _ACTS.items()}
    entities = {
        name[:-1]: kernel.packed_text(text, is_bare=name[:-1] in html5)
        for name, text in html5.items()
        if name.endswith(";")
    }
    # Numbers of control characters: some mean a character of Windows-1252, some nothing.
    texts = [unescape(f"&#{code};") for code in range(0xA0)]
    controls = np.array([ord(text) if text else -1 for text in texts], np.int32)
    return kernel.name_table(tags), kernel.Entities(kernel.name_table(entities), frozen(controls, np.int32))
