"""When the workers of a run had nothing to do, and what they waited for.

    timeline of the manifest ─ describe_idleness ─> facts ─┬─ chart: workers at work, by kind of step
                                                           └─ table: idle seconds by what was waited for

A worker has nothing to do when no task waits; what is not begun needs what is at work. So the idle time of a
span goes to the steps that had workers in it, or, where none had, to the step that the driver was at.
"""

from __future__ import annotations

from typing import Any

from tokmill.artifacts.manifest import Json
from tokmill.reports.charts import WIDTH, at, bar, number, percent, seconds, shown, svg, table

_START = "the first task"  # nothing is at work yet, or workers are being started
_FEW = 8  # lines of the table


def describe_idleness(timeline: Any) -> Json | None:
    """None where the run has no timeline: it was made by an earlier version, or did nothing."""
    if not timeline or not timeline["spans"]:
        return None
    workers, spans = timeline["workers"], timeline["spans"]
    width = timeline["seconds"] / len(spans)
    waits: dict[str, float] = {}
    rows = []
    for span in spans:
        busy = min(sum(span["workers"].values()), workers * width)
        idle = workers * width - busy
        label = _waited_for(span)
        waits[label] = waits.get(label, 0.0) + idle
        kinds: dict[str, float] = {}
        for step, spent in span["workers"].items():
            kind = step.partition("/")[0]
            kinds[kind] = round(kinds.get(kind, 0.0) + spent, 4)
        rows.append({"busy": kinds, "waited_for": label if idle > 0.05 * workers * width else None})
    whole = workers * timeline["seconds"]
    ordered = sorted(waits.items(), key=lambda pair: (-pair[1], pair[0]))
    return {
        "seconds": timeline["seconds"],
        "workers": workers,
        "busy_share": round(1 - sum(waits.values()) / whole, 4) if whole else None,
        "idle_seconds": round(sum(waits.values()), 3),
        "waits": [{"for": label, "seconds": round(idle, 3)} for label, idle in ordered if idle >= 0.001],
        "spans": rows,
    }


def _waited_for(span: Json) -> str:
    if span["workers"]:
        return ", ".join(sorted(span["workers"]))
    if span["driver"]:
        return f"the driver: {max(sorted(span['driver']), key=lambda step: span['driver'][step])}"
    return _START


def show_idleness(idleness: Json | None) -> str:
    """A chart and a table; nothing where one worker did it all, or nobody took notes."""
    if idleness is None or idleness["workers"] < 2 or not idleness["seconds"]:
        return ""
    head = ["Idle workers waited for", "", "worker time", "of all"]
    most = idleness["waits"][0]["seconds"] if idleness["waits"] else 0
    whole = idleness["workers"] * idleness["seconds"]
    rows = [
        [
            shown(wait["for"]),
            bar(wait["seconds"] / most if most else 0, "pad", 120),
            seconds(wait["seconds"]),
            percent(wait["seconds"] / whole),
        ]
        for wait in idleness["waits"][:_FEW]
    ]
    return _chart(idleness) + (table(head, rows, 2) if rows else "")


def _chart(idleness: Json) -> str:
    """A column for each span: what was at work from the bottom up, kind by kind; the rest was idle."""
    height, left, bottom, top = 190, 54, 34, 22
    plot_w, plot_h = WIDTH - left - 8, height - bottom - top
    workers, spans = idleness["workers"], idleness["spans"]
    slot, width = plot_w / len(spans), idleness["seconds"] / len(spans)
    kinds = list(dict.fromkeys(kind for span in spans for kind in span["busy"]))
    marks = [f'<rect class="track" x="{left}" y="{top}" width="{at(plot_w)}" height="{at(plot_h)}"/>']
    for column, span in enumerate(spans):
        y = float(top + plot_h)
        for kind in kinds:
            if spent := span["busy"].get(kind, 0.0):
                tall = min(spent / (workers * width) * plot_h, y - top)
                y -= tall
                tip = f"{kind}: {number(spent / width)} of {workers} workers"
                if span["waited_for"]:
                    tip += f"; idle ones waited for {span['waited_for']}"
                marks.append(
                    f'<rect class="mark c{kinds.index(kind) % 6}" x="{at(left + column * slot)}" y="{at(y)}" '
                    f'width="{at(max(slot - 0.5, 0.5))}" height="{at(tall)}" data-tip="{shown(tip)}"/>'
                )
    for line in sorted({0, workers}):
        y = top + plot_h - line / workers * plot_h
        marks.append(f'<text class="axis" x="{left - 8}" y="{at(y + 4)}" text-anchor="end">{line}</text>')
    for part, anchor in ((0, "start"), (1, "end")):
        label = shown(seconds(idleness["seconds"] * part))
        x = left + part * plot_w
        marks.append(
            f'<text class="axis" x="{at(x)}" y="{height - 14}" text-anchor="{anchor}">{label}</text>'
        )
    for place, kind in enumerate(kinds):
        x = left + place * 110
        marks.append(f'<rect class="mark c{place % 6}" x="{x}" y="4" width="10" height="10"/>')
        marks.append(f'<text class="axis" x="{x + 15}" y="13">{shown(kind)}</text>')
    described = (
        f"{workers} workers were at work for {percent(idleness['busy_share'])} of "
        f"{seconds(idleness['seconds'])}; columns show how many, and at which steps"
    )
    return svg("busy", "Workers at work over time", described, height, marks)
