"""The section about scores: a histogram of each, and one for every source and domain, on the same axis.

facts ─ scores ─> a chart with the bounds of rules as lines, and how many pass them and are kept
"""

from __future__ import annotations

from tokmill.artifacts.manifest import Json
from tokmill.errors import plural
from tokmill.reports.charts import Section, count, histogram, nothing, percent, short, shown, spread, table


def scores_section(facts: Json) -> Section:
    """Of a run that has some."""
    scores: list[Json] = facts["scores"]
    says = (
        f"What {plural(len(scores), 'model')} said of each document. Dashed lines are the bounds of rules; "
        "`tokmill whatif` moves one without reading a text."
    )
    return Section(
        "scores", "Scores", says, "".join(_score(number, one) for number, one in enumerate(scores))
    )


def _score(number: int, told: Json) -> str:
    name = told["measure"].removeprefix("score.")
    title = f"<h3>{shown(name)} <small>{told['docs']:,} documents</small></h3>"
    if not told["docs"]:
        return title + nothing("No document was scored.")
    series = [("scored", _rows(told, "bars")), ("kept", _rows(told, "bars_kept"))]
    lines = _lines(told)
    chart = histogram(f"score-{number}-histogram", f"Documents by {told['measure']}", name, series, lines)
    return (
        f"{title}<p>{_spoken(told)}</p>"
        '<p class="legend"><i class="s0"></i>scored <i class="s1"></i>kept (the narrower bar inside)</p>'
        f'<figure><div class="scroll">{chart}</div></figure>'
        f"{_groups(told, 'source')}{_groups(told, 'domain')}"
    )


def _rows(told: Json, key: str) -> list[Json]:
    edges = told["edges"]
    return [{"from": edges[at], "below": edges[at + 1], "docs": docs} for at, docs in enumerate(told[key])]


def _lines(told: Json) -> list[tuple[float, str]]:
    """Bounds on the score itself, each once."""
    own = [bound for bound in told["bounds"] if bound["measure"] == told["measure"]]
    return sorted({(bound["threshold"], f"{bound['bound']} {short(bound['threshold'])}") for bound in own})


def _spoken(told: Json) -> str:
    docs, judged, passes = told["docs"], told["judged"], told["passes"]
    parts = [f"{told['kept']:,} ({percent(told['kept'] / docs)}) are kept"]
    if passes is not None:
        share = f" ({percent(passes / judged)})" if judged else ""
        parts.insert(0, f"{passes:,}{share} hold {shown(_demands(told))}")
        if judged < docs:
            parts.insert(1, f"{docs - judged:,} are judged by no rule")
    ranked = [bound for bound in told["bounds"] if bound["measure"] != told["measure"]]
    spelled = sorted({f"percentile {bound['bound']} {short(bound['threshold'])}" for bound in ranked})
    parts += [f"a rule: {shown(one)}" for one in spelled]
    outside = [
        f"{told[key]:,} {side} the bars, counted in the {bar}"
        for key, side, bar in (("below", "below", "first"), ("above", "above", "last"))
        if told[key]
    ]
    return "; ".join([*parts, *outside]) + "."


def _demands(told: Json) -> str:
    """What a source demands must all hold; sources that demand something else are named."""
    by_source: dict[str, list[str]] = {}
    for bound in told["bounds"]:
        if bound["measure"] == told["measure"]:
            own = by_source.setdefault(bound["source"], [])
            own.append(f"{bound['bound']} {short(bound['threshold'])}")
    sources: dict[str, list[str]] = {}
    for source, bounds in by_source.items():
        sources.setdefault(" and ".join(bounds), []).append(source)
    if len(sources) == 1:
        return next(iter(sources))
    return "; ".join(f"{bounds} ({', '.join(names)})" for bounds, names in sources.items())


def _groups(told: Json, by: str) -> str:
    edges = told["edges"]
    wide = edges[-1] - edges[0]
    rows = []
    for group in told["by"][by]:
        own = {
            bound["threshold"]
            for bound in told["bounds"]
            if bound["measure"] == told["measure"] and bound[by] == group["name"]
        }
        places = [(value - edges[0]) / wide for value in sorted(own) if edges[0] <= value <= edges[-1]]
        docs, judged, passes = group["docs"], group["judged"], group["passes"]
        rows.append(
            [
                shown(group["name"]),
                spread(group["bars"], group["bars_kept"], places if passes is not None else []),
                count(docs),
                percent(passes / judged) if judged else "–",
                percent(group["kept"] / docs) if docs else "–",
            ]
        )
    return table([by.capitalize(), "spread", "scored", "hold the bounds", "kept"], rows, 2)
