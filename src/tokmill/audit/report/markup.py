"""Text and numbers as they may stand in a page.

Texts are anybody's. `shown` makes them inert and visible: markup is escaped, and characters that turn the
direction of a line or draw nothing are spelled out.
"""

from __future__ import annotations

import html
import json
import re
from typing import Any

# controls but tab and newline, marks of direction, widths of zero, separators of lines, private and odd spaces
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
NOT_MEASURED = "not measured"
_ID_CHARS = 160
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def visible(text: str) -> str:
    return _UNSEEN.sub(lambda found: f"[U+{ord(found[0]):04X}]", text)


def shown(value: object) -> str:
    """Any text, for between tags or inside a quoted attribute."""
    return html.escape(visible(str(value)), quote=True)


def shown_id(doc_id: str) -> str:
    """Ids are as long as a source likes."""
    return shown(doc_id if len(doc_id) <= _ID_CHARS else f"{doc_id[:_ID_CHARS]}…")


def prose(text: str) -> str:
    """A sentence of ours: what stands between backticks is a command."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", shown(text))


def safe_json(value: Any) -> str:
    """For inside <script type="application/json">: nothing in it can end the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def count(value: int | None) -> str:
    return NOT_MEASURED if value is None else f"{value:,}"


def brief(value: int | None) -> str:
    """1,234,567 as 1.23 M."""
    if value is None:
        return NOT_MEASURED
    if value < 10_000:
        return f"{value:,}"
    for unit, power in (("k", 10**3), ("M", 10**6), ("G", 10**9)):
        if value < 999.5 * power:
            return f"{value / power:.3g} {unit}"
    return f"{value / 10**12:.3g} T" if value < 999.5e12 else f"{value / 10**12:,.0f} T"


def size(value: int | None) -> str:
    if value is None:
        return NOT_MEASURED
    amount, unit = float(value), 0
    while amount >= 999.5 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:.3g} {_UNITS[unit]}" if unit else f"{value:,} B"


def percent(share: float | None, digits: int = 1) -> str:
    if share is None:
        return NOT_MEASURED
    if 0 < share < 0.5 * 10 ** -(digits + 2):
        return f"< {10**-digits:.{digits}f} %"
    return f"{100 * share:.{digits}f} %"


def number(value: float | None) -> str:
    if value is None:
        return NOT_MEASURED
    if float(value).is_integer() or abs(value) >= 10_000:
        return f"{round(value):,}"
    return f"{value:.4g}"


def seconds(value: float | None) -> str:
    if value is None:
        return NOT_MEASURED
    if value < 100:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def spoken(reason: str) -> str:
    """too_few_words as "too few words"."""
    return reason.replace("_", " ")


def plural(amount: int, noun: str) -> str:
    return f"{amount:,} {noun}" if amount == 1 else f"{amount:,} {noun}s"


def table(head: list[str], rows: list[list[str]], left: int = 1) -> str:
    """Cells are markup already; the first `left` columns are text, the others numbers."""
    side = ["" if at < left else ' class="n"' for at in range(len(head))]
    top = "".join(f'<th scope="col"{side[at]}>{cell}</th>' for at, cell in enumerate(head))
    body = "".join(
        "<tr>" + "".join(f"<td{side[at]}>{cell}</td>" for at, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
