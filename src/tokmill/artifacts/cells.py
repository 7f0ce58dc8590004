"""A result as a cell of a notebook shows it: HTML that needs no style sheet and no script.

    cell(title, parts…)     a block with a heading
    table(heads, rows)      numbers to the right, with commas
    passage(text)           a text, as it is, in a frame that scrolls
    @short_repr             a `repr` of a few lines, whatever a result holds

Texts are anybody's: markup is escaped, and what turns a line or draws nothing is spelled out as [U+202E].
Colours are those of the notebook, light or dark; only what was dropped has one of its own.
"""

from __future__ import annotations

import html
import re
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

# controls but tab and newline, marks of direction, widths of zero, separators of lines,
# halves of surrogate pairs, which no encoder takes, tags
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
_MAX_CHARS = 4_000  # of one text in a cell: a notebook keeps what it shows
_FRAME = "border-bottom:1px solid rgba(128,128,128,.25);padding:.2em .8em .2em 0;vertical-align:top"


_SHORT = reprlib.Repr()
_SHORT.maxlevel = 2
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = _SHORT.maxset = 3  # entries
_SHORT.maxstring = _SHORT.maxother = 60  # characters of one


Result = TypeVar("Result")


def short_repr(kind: type[Result]) -> type[Result]:
    """Give a class of results a `repr` of all its fields, and of each what a line has room for. `as_json` has
    the rest."""

    def spell(result: Any) -> str:
        names: Iterable[str] = getattr(kind, "_fields", ()) or getattr(kind, "__dataclass_fields__", ())
        told = ", ".join(f"{name}={_SHORT.repr(getattr(result, name))}" for name in names)
        return f"{kind.__name__}({told})"

    kind.__repr__ = spell  # type: ignore[method-assign]
    return kind


class Markup(str):
    """HTML that is ours: it is put in as it is."""

    __slots__ = ()


def visible(text: str) -> str:
    return _UNSEEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)


def shown(value: object) -> Markup:
    """Any value, for between tags or inside a quoted attribute."""
    if isinstance(value, Markup):
        return value
    if value is None:
        return Markup("")
    if isinstance(value, bool):
        return Markup("yes" if value else "no")
    if isinstance(value, int):
        return Markup(f"{value:,}")
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return Markup(html.escape(visible(text), quote=True))


def cell(title: str, said: object, parts: Iterable[Markup]) -> str:
    head = f"<div><b>{shown(title)}</b> <span style='opacity:.7'>{shown(said)}</span></div>"
    return f"<div style='margin:.3em 0 1em;overflow-x:auto'>{head}{''.join(parts)}</div>"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Markup:
    lines = "".join(f"<tr>{''.join(map(_entry, row))}</tr>" for row in rows)
    style = f"{_FRAME};text-align:left;font-weight:500;opacity:.7"
    named = "".join(f"<th style='{style}'>{shown(head)}</th>" for head in heads)
    return Markup(
        "<table style='border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.4em 0'>"
        f"<thead><tr>{named}</tr></thead><tbody>{lines}</tbody></table>"
    )


def passage(text: str) -> Markup:
    more = f"\n… {len(text) - _MAX_CHARS:,} characters more" if len(text) > _MAX_CHARS else ""
    return Markup(
        "<pre dir='auto' style='margin:.3em 0;padding:.5em .7em;max-height:16em;overflow:auto;"
        "white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid rgba(128,128,128,.3);"
        "border-radius:.4em;background:none'>"
        f"{shown(text[:_MAX_CHARS])}{shown(more)}</pre>"
    )


def broken(value: object) -> Markup:
    """What stands on the wrong side of a threshold, or was dropped."""
    return Markup(f"<span style='color:#c2553b;font-weight:600'>{shown(value)}</span>")


def _entry(value: object) -> str:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"<td style='{_FRAME};text-align:{'right' if is_number else 'left'}'>{shown(value)}</td>"
