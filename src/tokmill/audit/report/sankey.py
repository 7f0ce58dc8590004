"""A river in columns: nodes as high as what flows through them, ribbons between them.

nodes of a column one below the other, as they come; those that left last
scale     the fullest column fills HEIGHT
ribbons   leave and arrive in the order of the nodes they join, so that none crosses without need
"""

from __future__ import annotations

from typing import NamedTuple

from tokmill.audit.report.charts import WIDTH, at, svg
from tokmill.audit.report.markup import brief, percent, shown, spoken
from tokmill.manifest import Json

HEIGHT = 330
_NODE = 13  # wide
_LABEL = 34  # high: a name and a number
_GAP = 10
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
        marks.append(
            f'<path class="ribbon mark {kind}" d="{_ribbon(start.x + _NODE, y0, end.x, y1, max(thick, 0.7))}" '
            f'data-tip="{shown(tip)}"/>'
        )
    for box in boxes.values():
        marks.append(
            f'<rect class="node mark {box.colour}" x="{at(box.x)}" y="{at(box.y)}" width="{_NODE}" '
            f'height="{at(box.height)}" rx="2"/>'
        )
        label = spoken(box.node["label"])
        amount = f"{brief(box.node['value'])}" + (f" · {percent(box.node['value'] / total)}" if total else "")
        marks.append(
            f'<text class="label" x="{at(box.x + _NODE + 6)}" y="{at(box.y + 11)}">{shown(_short(label))}</text>'
            f'<text class="axis" x="{at(box.x + _NODE + 6)}" y="{at(box.y + 25)}">{shown(amount)}</text>'
        )
    height = max(box.y + max(box.height, _LABEL) for box in boxes.values())
    described = "; ".join(
        f"{spoken(boxes[link['from']].node['label'])} to {spoken(boxes[link['to']].node['label'])} {link['value']:,}"
        for link in links
    )
    return svg(name, title, f"In {flow['unit']}: {described}", round(height) + 4, marks)


def _scale(nodes: list[Json]) -> float:
    fullest: int = max(
        sum(n["value"] for n in nodes if n["column"] == column) for column in {n["column"] for n in nodes}
    )
    return HEIGHT / fullest


def _lay_out(nodes: list[Json]) -> dict[str, Box]:
    """Sources have colours of their own; everything else is one river, and what left is another colour."""
    scale = _scale(nodes)
    columns = sorted({node["column"] for node in nodes})
    step = (WIDTH - _RIGHT - _NODE) / max(len(columns) - 1, 1)
    boxes: dict[str, Box] = {}
    hue = 0
    for place, column in enumerate(columns):
        y = 4.0
        own = [node for node in nodes if node["column"] == column]
        for node in sorted(own, key=lambda node: node["kind"] == "drop"):
            colour = {"drop": "drop", "source": f"h{hue % 8}", "repeat": "pad"}.get(node["kind"], "c0")
            hue += node["kind"] == "source"
            height = max(node["value"] * scale, 2)
            boxes[node["id"]] = Box(node, place * step, y, height, colour)
            y += max(height, _LABEL) + _GAP
    return boxes


def _ribbon(x0: float, y0: float, x1: float, y1: float, thick: float) -> str:
    middle = (x0 + x1) / 2
    return (
        f"M{at(x0)} {at(y0)}C{at(middle)} {at(y0)} {at(middle)} {at(y1)} {at(x1)} {at(y1)}"
        f"V{at(y1 + thick)}C{at(middle)} {at(y1 + thick)} {at(middle)} {at(y0 + thick)} {at(x0)} {at(y0 + thick)}Z"
    )


def _short(label: str) -> str:
    return label if len(label) <= 26 else f"{label[:25]}…"
