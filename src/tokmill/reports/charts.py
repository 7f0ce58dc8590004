"""Text, numbers, tables and charts as they may stand in a page: the same figures give the same bytes.

    shown, prose, visible     texts are anybody's: markup is escaped, and what turns a line or draws nothing
                              is spelled out
    count, brief, size, …     numbers as people read them
    Section, table            an anchor, a heading, a sentence that says what one sees, and the body
    histogram, packing, bars  SVG, drawn with integers and a few fixed decimals
    sankey                    nodes as high as what flows through them, one below the other in columns; those
                              that left last; the fullest column fills HEIGHT, and ribbons meet nodes in the
                              order of those they join

Each chart has a title and a description for who cannot see it; labels carry the meaning, colour only helps.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from tokmill.artifacts.cells import visible
from tokmill.artifacts.manifest import Json

NOT_MEASURED = "not measured"
_ID_CHARS = 160
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


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


def table(head: list[str], rows: list[list[str]], left: int = 1) -> str:
    """Cells are markup already; the first `left` columns are text, the others numbers."""
    side = ["" if at < left else ' class="n"' for at in range(len(head))]
    top = "".join(f'<th scope="col"{side[at]}>{cell}</th>' for at, cell in enumerate(head))
    body = "".join(
        "<tr>" + "".join(f"<td{side[at]}>{cell}</td>" for at, cell in enumerate(row)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


class Section(NamedTuple):
    key: str  # of the anchor
    title: str
    says: str  # plain text; `commands` stand out
    body: str  # markup

    def render(self) -> str:
        return (
            f'<section id="{self.key}"><h2><a href="#{self.key}">{shown(self.title)}</a></h2>'
            f'<p class="says">{prose(self.says)}</p>{self.body}</section>'
        )


def nothing(why: str) -> str:
    return f'<p class="none">{shown(why)}</p>'


WIDTH = 960

# an axis may end at one of these times a power of ten; then it has so many parts
_PARTS = {1: 5, 2: 2, 3: 3, 4: 4, 5: 5, 6: 3, 8: 4}


def svg(name: str, title: str, description: str, height: int, marks: Sequence[str]) -> str:
    return (
        f'<svg class="chart {name}" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="{name}-t '
        f'{name}-d">'
        f'<title id="{name}-t">{shown(title)}</title><desc id="{name}-d">{shown(description)}</desc>'
        f"{''.join(marks)}</svg>"
    )


def at(value: float) -> str:
    """A coordinate."""
    text = f"{value:.1f}"
    return text.removesuffix(".0")


def _text(kind: str, x: float, y: float, label: str, anchor: str = "") -> str:
    side = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text class="{kind}" x="{at(x)}" y="{at(y)}"{side}>{shown(label)}</text>'


def bar(share: float, kind: str = "c0", width: int = 160) -> str:
    """A bar inside a table: of the width, `share`. What it shows stands beside it in numbers."""
    long = max(share * width, 1.0) if share > 0 else 0
    return (
        f'<svg class="bar" viewBox="0 0 {width} 10" width="{width}" height="10" aria-hidden="true" '
        f'preserveAspectRatio="none"><rect class="track" width="{width}" height="10" rx="2"/>'
        f'<rect class="mark {kind}" width="{at(min(long, width))}" height="10" rx="2"/></svg>'
    )


def bullet(built: float, wanted: float, top: float, width: int = 220) -> str:
    """Built is the bar, wanted the line across it."""
    scale = width / top if top else 0
    return (
        f'<svg class="bar" viewBox="0 0 {width} 16" width="{width}" height="16" aria-hidden="true">'
        f'<rect class="track" y="3" width="{width}" height="10" rx="2"/>'
        f'<rect class="mark c0" y="3" width="{at(built * scale)}" height="10" rx="2"/>'
        f'<rect class="goal" x="{at(max(wanted * scale - 1, 0))}" width="2.5" height="16"/></svg>'
    )


def histogram(
    name: str,
    title: str,
    unit: str,
    series: Sequence[tuple[str, list[Json]]],
    bounds: Sequence[tuple[float, str]] = (),
) -> str:
    """Bars of equal width: octaves of whole numbers, or equal steps of floats, on which `bounds` are lines.
    A second series is drawn inside the first."""
    bars = sorted({(row["from"], row["below"]) for _, rows in series for row in rows})
    if not bars:
        return ""
    height, left, bottom, top = 264, 54, 48, 14
    plot_w, plot_h = WIDTH - left - 8, height - bottom - top
    highest = max(row["docs"] for _, rows in series for row in rows)
    scale, slot = plot_h / _rounded_up(highest), plot_w / len(bars)
    marks = []
    for line in _ticks(highest):
        y = top + plot_h - line * scale
        marks.append(f'<line class="gridline" x1="{left}" x2="{WIDTH - 8}" y1="{at(y)}" y2="{at(y)}"/>')
        marks.append(_text("axis", left - 8, y + 4, brief(line), "end"))
    place = {pair: number for number, pair in enumerate(bars)}
    for number, (label, rows) in enumerate(series):
        inset = 0.08 + 0.14 * number
        for row in rows:
            if not row["docs"]:
                continue
            x = left + (place[row["from"], row["below"]] + inset) * slot
            tall = max(row["docs"] * scale, 1)
            tip = f"{_between(row, unit)}: {row['docs']:,} documents ({label})"
            marks.append(
                f'<rect class="mark s{number}" x="{at(x)}" y="{at(top + plot_h - tall)}" '
                f'width="{at(slot * (1 - 2 * inset))}" height="{at(tall)}" data-tip="{shown(tip)}"/>'
            )
    step = max(1, -(-len(bars) // 14))
    for number, (low, _) in enumerate(bars):
        if number % step == 0:
            label = short(low) if isinstance(low, float) else brief(low)
            marks.append(_text("axis", left + number * slot, height - 30, label, "start"))
    low, step = bars[0][0], bars[0][1] - bars[0][0]
    for value, label in bounds:
        x = left + min(max((value - low) / step, 0), len(bars)) * slot
        marks.append(f'<line class="bound-line" x1="{at(x)}" x2="{at(x)}" y1="{top}" y2="{top + plot_h}"/>')
        side = "end" if x > WIDTH - 160 else "start"
        marks.append(_text("label", x + (-6 if side == "end" else 6), top + 11, label, side))
    marks.append(_text("axis", WIDTH - 8, height - 8, f"{unit} per document", "end"))
    total = sum(row["docs"] for row in series[0][1])
    described = (
        f"{total:,} documents in {len(bars)} bars from {bars[0][0]:,} to {bars[-1][1]:,} {unit}; the highest "
        f"bar has {highest:,}"
    )
    described += "".join(f"; a line at {label}" for _, label in bounds)
    return svg(name, title, described, height, marks)


def _between(row: Json, unit: str) -> str:
    if isinstance(row["from"], float):
        return f"{unit} {short(row['from'])} to {short(row['below'])}"
    return f"{row['from']:,} to {row['below'] - 1:,} {unit}"


def short(value: float) -> str:
    """An edge of a bar, which is a round number: without the zeros behind it."""
    return f"{value:.10g}"


def spread(bars: Sequence[int], kept: Sequence[int], bounds: Sequence[float], width: int = 240) -> str:
    """A histogram inside a table; `bounds` are places on it, from 0 to 1."""
    high = 34
    highest, slot = max([*bars, 1]), width / len(bars)
    marks = []
    for number, docs in enumerate(bars):
        for kind, amount in (("s0", docs), ("s1", kept[number])):
            if amount:
                tall = max(amount / highest * high, 1.0)
                marks.append(
                    f'<rect class="mark {kind}" x="{at(number * slot)}" y="{at(high - tall)}" '
                    f'width="{at(max(slot - 0.6, 0.6))}" height="{at(tall)}"/>'
                )
    marks += [
        f'<line class="bound-line" x1="{at(place * width)}" x2="{at(place * width)}" y1="0" y2="{high}"/>'
        for place in bounds
    ]
    return (
        f'<svg class="bar" viewBox="0 0 {width} {high}" width="{width}" height="{high}" aria-hidden="true">'
        f"{''.join(marks)}</svg>"
    )


def _rounded_up(value: int) -> int:
    """A small number times a power of ten, at least the value."""
    step = 1
    while True:
        for factor in _PARTS:
            if factor * step >= value:
                return factor * step
        step *= 10


def _ticks(highest: int) -> list[int]:
    top = _rounded_up(highest)
    parts = 1 if top == 1 else _PARTS[int(str(top)[0])]
    return [top * part // parts for part in range(parts + 1)]


# which part of a row's tokens is drawn how, and how it is called
PACKED = (
    ("written", "c0", "in rows"),
    ("tail_dropped", "drop", "cut at the end"),
    ("truncated", "drop2", "cut off"),
    ("left_out", "drop3", "left out"),
    ("padding", "pad", "padding"),
)


def packing(builds: Sequence[Json]) -> str:
    """One bar per build: where the tokens that it was given went, and the padding it added."""
    if not builds:
        return ""
    left, row = 170, 58
    most = max(sum(build["packing"][key] for key, _, _ in PACKED) for build in builds)
    marks, spoken = [], []
    for number, build in enumerate(builds):
        y, x = 8 + number * row, float(left)
        packed = build["packing"]
        whole = sum(packed[key] for key, _, _ in PACKED) or 1
        form = " · ".join(str(part) for part in (build["format"], build["layout"], build["length"]) if part)
        marks += [_text("label", 0, y + 14, build["name"]), _text("axis", 0, y + 32, form)]
        notes = []
        for key, kind, label in PACKED:
            amount = packed[key]
            if not amount:
                continue
            wide = max(amount / (most or 1) * (WIDTH - left - 8), 1.5)
            tip = f"{build['name']}: {amount:,} tokens {label} ({percent(amount / whole, 2)})"
            marks.append(
                f'<rect class="mark {kind}" x="{at(x)}" y="{y}" width="{at(wide)}" height="22" '
                f'data-tip="{shown(tip)}"/>'
            )
            x += wide
            notes.append(
                f"{count(amount)} {label}" + ("" if key == "written" else f" ({percent(amount / whole, 2)})")
            )
        marks.append(_text("axis", left, y + 38, " · ".join(notes)))
        spoken.append(f"{build['name']}: {', '.join(notes)}")
    return svg("packing", "Tokens of each build", "; ".join(spoken), len(builds) * row + 4, marks)


HEIGHT = 330
_NODE = 13  # wide
_LABEL = 34  # high: a name and a number
_GAP = 10
_LETTER = 7  # wide, in a name
_RIGHT = 176  # room for the labels of the last column


class Box(NamedTuple):
    node: Json
    x: float
    y: float
    height: float
    colour: str


def sankey(name: str, title: str, flow: Json) -> str:
    nodes: list[Json] = flow["nodes"]
    if not nodes:
        return ""
    boxes = _lay_out(nodes)
    scale = _scale(nodes)
    left_used, right_used = dict.fromkeys(boxes, 0.0), dict.fromkeys(boxes, 0.0)
    total = sum(node["value"] for node in nodes if node["column"] == 0)
    order = {node["id"]: boxes[node["id"]].y for node in nodes}
    ribbons = {}
    links = sorted(
        flow["links"], key=lambda link: (boxes[link["from"]].x, order[link["from"]], order[link["to"]])
    )
    for link in links:
        start = boxes[link["from"]]
        ribbons[link["from"], link["to"]] = [start.y + left_used[link["from"]], 0.0, link["value"] * scale]
        left_used[link["from"]] += link["value"] * scale
    for link in sorted(links, key=lambda link: (order[link["to"]], order[link["from"]])):
        ribbons[link["from"], link["to"]][1] = boxes[link["to"]].y + right_used[link["to"]]
        right_used[link["to"]] += link["value"] * scale
    marks = []
    for link in links:
        start, end = boxes[link["from"]], boxes[link["to"]]
        y0, y1, thick = ribbons[link["from"], link["to"]]
        kind = "drop" if end.node["kind"] == "drop" else start.colour
        tip = (
            f"{spoken(start.node['label'])} → {spoken(end.node['label'])}: {link['value']:,} {flow['unit']}"
            f" ({percent(link['value'] / start.node['value'])} of {spoken(start.node['label'])})"
        )
        ribbon = _ribbon(start.x + _NODE, y0, end.x, y1, max(thick, 0.7))
        marks.append(f'<path class="ribbon mark {kind}" d="{ribbon}" data-tip="{shown(tip)}"/>')
    columns = len({node["column"] for node in nodes})
    room = min(26, round((_step(columns) - _NODE - 12) / _LETTER))
    for box in boxes.values():
        marks.append(
            f'<rect class="node mark {box.colour}" x="{at(box.x)}" y="{at(box.y)}" width="{_NODE}" '
            f'height="{at(box.height)}" rx="2"/>'
        )
        label = spoken(box.node["label"])
        short = label if len(label) <= room else f"{label[: room - 1]}…"
        value, again = box.node["value"], box.node.get("repeated", 0)
        amount = f"{brief(value - again)} + {brief(again)} again" if again else brief(value)
        amount += f" · {percent(value / total)}" if total else ""
        x = box.x + _NODE + 6
        marks += [_text("label", x, box.y + 11, short), _text("axis", x, box.y + 25, amount)]
    height = max(box.y + max(box.height, _LABEL) for box in boxes.values())
    described = "; ".join(
        f"{spoken(boxes[link['from']].node['label'])} to {spoken(boxes[link['to']].node['label'])} "
        f"{link['value']:,}"
        for link in links
    )
    return svg(name, title, f"In {flow['unit']}: {described}", round(height) + 4, marks)


def _scale(nodes: list[Json]) -> float:
    fullest: int = max(
        sum(n["value"] for n in nodes if n["column"] == column) for column in {n["column"] for n in nodes}
    )
    return HEIGHT / fullest


def _step(columns: int) -> float:
    """From one to the next."""
    return (WIDTH - _RIGHT - _NODE) / max(columns - 1, 1)


def _lay_out(nodes: list[Json]) -> dict[str, Box]:
    """Sources have colours of their own; everything else is one river, and what left is another colour."""
    scale = _scale(nodes)
    columns = sorted({node["column"] for node in nodes})
    step = _step(len(columns))
    boxes: dict[str, Box] = {}
    hue = 0
    for place, column in enumerate(columns):
        y = 4.0
        own = [node for node in nodes if node["column"] == column]
        for node in sorted(own, key=lambda node: node["kind"] == "drop"):
            colour = {"drop": "drop", "source": f"h{hue % 8}", "repeat": "pad"}.get(node["kind"], "c0")
            hue += node["kind"] == "source"
            height = max(node["value"] * scale, 2)
            if node["kind"] == "repeat":  # below the ribbons that pass by
                y = max(y, *(box.y + box.height for box in boxes.values()))
            boxes[node["id"]] = Box(node, place * step, y, height, colour)
            y += max(height, _LABEL) + _GAP
    return boxes


def _ribbon(x0: float, y0: float, x1: float, y1: float, thick: float) -> str:
    middle = (x0 + x1) / 2
    return (
        f"M{at(x0)} {at(y0)}C{at(middle)} {at(y0)} {at(middle)} {at(y1)} {at(x1)} {at(y1)}"
        f"V{at(y1 + thick)}"
        f"C{at(middle)} {at(y1 + thick)} {at(middle)} {at(y0 + thick)} {at(x0)} {at(y0 + thick)}Z"
    )
