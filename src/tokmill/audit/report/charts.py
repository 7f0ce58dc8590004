"""Charts as SVG, drawn with integers and a few fixed decimals: the same figures give the same bytes.

Each has a title and a description for who cannot see it; labels carry the meaning, colour only helps.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokmill.audit.report.markup import brief, count, percent, shown
from tokmill.manifest import Json

WIDTH = 960

# an axis may end at one of these times a power of ten; then it has so many parts
_PARTS = {1: 5, 2: 2, 3: 3, 4: 4, 5: 5, 6: 3, 8: 4}


def svg(
    name: str, title: str, description: str, height: int, marks: Sequence[str], width: int = WIDTH
) -> str:
    return (
        f'<svg class="chart {name}" viewBox="0 0 {width} {height}" role="img" aria-labelledby="{name}-t {name}-d">'
        f'<title id="{name}-t">{shown(title)}</title><desc id="{name}-d">{shown(description)}</desc>'
        f"{''.join(marks)}</svg>"
    )


def at(value: float) -> str:
    """A coordinate."""
    text = f"{value:.1f}"
    return text.removesuffix(".0")


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


def histogram(name: str, title: str, unit: str, series: Sequence[tuple[str, list[Json]]]) -> str:
    """Bars on a scale where each octave is as wide as the next. A second series is drawn inside the first."""
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
        marks.append(
            f'<text class="axis" x="{left - 8}" y="{at(y + 4)}" text-anchor="end">{brief(line)}</text>'
        )
    place = {pair: number for number, pair in enumerate(bars)}
    for number, (label, rows) in enumerate(series):
        inset = 0.08 + 0.14 * number
        for row in rows:
            if not row["docs"]:
                continue
            x = left + (place[row["from"], row["below"]] + inset) * slot
            tall = max(row["docs"] * scale, 1)
            tip = f"{row['from']:,} to {row['below'] - 1:,} {unit}: {row['docs']:,} documents ({label})"
            marks.append(
                f'<rect class="mark s{number}" x="{at(x)}" y="{at(top + plot_h - tall)}" '
                f'width="{at(slot * (1 - 2 * inset))}" height="{at(tall)}" data-tip="{shown(tip)}"/>'
            )
    step = max(1, -(-len(bars) // 14))
    for number, (low, _) in enumerate(bars):
        if number % step == 0:
            x = left + number * slot
            marks.append(
                f'<text class="axis" x="{at(x)}" y="{height - 30}" text-anchor="start">{brief(low)}</text>'
            )
    marks.append(
        f'<text class="axis" x="{WIDTH - 8}" y="{height - 8}" text-anchor="end">{shown(unit)} per document</text>'
    )
    total = sum(row["docs"] for row in series[0][1])
    described = f"{total:,} documents in {len(bars)} bars from {bars[0][0]:,} to {bars[-1][1]:,} {unit}; the highest bar has {highest:,}"
    return svg(name, title, described, height, marks)


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
    told = [build for build in builds if build["packing"]]
    if not told:
        return ""
    left, row = 170, 58
    most = max(sum(build["packing"].get(key, 0) for key, _, _ in PACKED) for build in told)
    marks, spoken = [], []
    for number, build in enumerate(told):
        y, x = 8 + number * row, float(left)
        packed = build["packing"]
        whole = sum(packed.get(key, 0) for key, _, _ in PACKED) or 1
        form = " · ".join(str(part) for part in (build["format"], build["layout"], build["length"]) if part)
        marks.append(f'<text class="label" x="0" y="{y + 14}">{shown(build["name"])}</text>')
        marks.append(f'<text class="axis" x="0" y="{y + 32}">{shown(form)}</text>')
        notes = []
        for key, kind, label in PACKED:
            amount = packed.get(key, 0)
            if not amount:
                continue
            wide = max(amount / (most or 1) * (WIDTH - left - 8), 1.5)
            tip = f"{build['name']}: {amount:,} tokens {label} ({percent(amount / whole, 2)})"
            marks.append(
                f'<rect class="mark {kind}" x="{at(x)}" y="{y}" width="{at(wide)}" height="22" data-tip="{shown(tip)}"/>'
            )
            x += wide
            notes.append(
                f"{count(amount)} {label}" + ("" if key == "written" else f" ({percent(amount / whole, 2)})")
            )
        marks.append(f'<text class="axis" x="{left}" y="{y + 38}">{shown(" · ".join(notes))}</text>')
        spoken.append(f"{build['name']}: {', '.join(notes)}")
    return svg("packing", "Tokens of each build", "; ".join(spoken), len(told) * row + 4, marks)
