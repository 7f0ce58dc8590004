"""Sections of the page about documents: how they flow, how long they are, who left and why,
and who is nearly the same.

facts ─ flow, totals ─ lengths ─ drops ─ clusters ─> a Section each, with the documents
                                                     nearest to each threshold
"""

from __future__ import annotations

from tokmill.artifacts.manifest import Json
from tokmill.errors import plural
from tokmill.reports.charts import (
    Section,
    bar,
    brief,
    count,
    histogram,
    nothing,
    number,
    percent,
    sankey,
    shown,
    shown_id,
    spoken,
    table,
)
from tokmill.reports.edits import decided_by

_SHOWN_PAIRS = 12  # sources of the matrix of duplicates, either way
_STAGES = {
    "ingest": "Before cleaning",
    "clean": "Cleaning",
    "scores": "Percentiles of scores",
    "dedup": "Deduplication",
    "split": "Split",
}


def drops_section(facts: Json) -> Section:
    drops = facts["drops"]
    gone = sum(drop["docs"] for drop in drops)
    says = (
        f"{plural(gone, 'document')} left, for {plural(len(drops), 'reason')}. Open one to read the "
        "documents nearest to its line: the last that went, and the last that stayed."
    )
    most = max((drop["docs"] for drop in drops), default=0)
    body = ""
    for stage, title in _STAGES.items():
        own = [drop for drop in drops if drop["stage"] == stage]
        if own:
            total = sum(drop["docs"] for drop in own)
            body += f"<h3>{title} <small>{total:,}</small></h3>"
            body += "".join(_drop(drop, most, gone) for drop in own)
    body = body or nothing("Nothing was dropped.")
    body += _left_out(facts) + _earlier(facts) + _decontaminated(facts) + _redacted(facts)
    return Section("drops", "Drops", says, body)


def _left_out(facts: Json) -> str:
    if not facts["left_out"]:
        return ""
    rows = [
        [shown(row["step"]), shown(row["split"]), shown(spoken(row["reason"])), count(row["docs"])]
        for row in facts["left_out"]
    ]
    return (
        "<h3>Kept, and left out of the training data</h3><p>By mixtures and builds, each by itself: one may "
        f"have what another leaves out.</p>{table(['Step', 'split', 'reason', 'documents'], rows, 3)}"
    )


def _earlier(facts: Json) -> str:
    told = facts["earlier"]
    if told is None:
        return ""
    rows = [
        [shown(corpus["name"]), shown(decided_by(corpus)), count(corpus["equal"]), count(corpus["similar"])]
        for corpus in told["corpora"]
    ]
    head = ["Corpus", "similar by", "equal", "similar"]
    return (
        f"<h3>Earlier corpora <small>{told['dropped']:,} dropped</small></h3><p>Documents that were there "
        f"before. One that is in several is told of the one that has it equal, or most similar.</p>"
        f"{table(head, rows, 2)}"
    )


def _decontaminated(facts: Json) -> str:
    told = facts["decontamination"]
    if told is None:
        return ""
    rows = [
        [shown(file["name"]), *(count(file[key]) for key in ("items", "docs", "dropped", "built"))]
        for file in told["files"]
    ]
    head = ["Benchmark", "items found", "in documents", "dropped for it", "still in a build"]
    unused = told["unused_items"]
    short = f" {plural(unused, 'item')} had too few words to be looked for." if unused else ""
    return (
        f"<h3>Decontamination <small>{told['dropped']:,} dropped</small></h3><p>{told['docs']:,} documents "
        "hold "
        f"{told['ngram']} words in a row of a benchmark item.{short}</p>{table(head, rows)}"
    )


def _redacted(facts: Json) -> str:
    rows = facts["redactions"]
    if rows is None:
        return ""
    title = f"<h3>Redactions <small>{sum(row['values'] for row in rows):,} values</small></h3>"
    if not rows:
        return title + nothing("Nothing that was to be redacted was found.")
    keys = ("values", "docs", *(("built_values", "built_docs") if facts["builds"] else ()))
    cells = [
        [shown(row["source"]), shown(spoken(row["kind"])), *(count(row[key]) for key in keys)] for row in rows
    ]
    head = ["Source", "kind", "values", "in documents", "in builds: values", "in documents"]
    return title + table(head[: 2 + len(keys)], cells, 2)


def _drop(drop: Json, most: int, gone: int) -> str:
    bounds = list(dict.fromkeys(f"{bound['bound']} {number(bound['threshold'])}" for bound in drop["bounds"]))
    rule = " / ".join(bounds[:3]) + (" / …" if len(bounds) > 3 else "")
    word = " <em>quarantined</em>" if drop["verdict"] == "quarantine" else ""
    sources = ", ".join(f"{shown(source)} {docs:,}" for source, docs in drop["by_source"].items())
    measures = ", ".join(dict.fromkeys(bound["measure"] for bound in drop["bounds"]))
    inside = f'<p class="meta">{sources}{f" · measured: {shown(measures)}" if measures else ""}</p>'
    columns = [
        ("Just out", drop["just_out"], "out"),
        ("Just kept", drop["just_kept"], "kept"),
    ]
    columns = [column for column in columns if column[1]]
    cards = "".join(
        f'<div><h4 class="{kind}">{title}</h4>{"".join(_example(example) for example in examples)}</div>'
        for title, examples, kind in columns
    )
    inside += f'<div class="pair">{cards}</div>' if cards else ""
    inside += "".join(_record(record) for record in drop["records"])
    return (
        f'<details class="drop"><summary><span class="reason">{shown(spoken(drop["reason"]))}{word}</span>'
        f'<span class="bound">{shown(rule)}</span>{bar(drop["docs"] / most, "drop")}'
        f'<span class="n">{drop["docs"]:,}</span><span class="n faint">{percent(drop["docs"] / gone)}</span>'
        "</summary>"
        f"{inside}</details>"
    )


def _example(example: Json) -> str:
    measured = ""
    if "value" in example:
        measured = (
            f' <b>{shown(number(example["value"]))}</b> <span class="faint">against '
            f"{shown(number(example['bound']))}</span>"
        )
    survivor = example.get("survivor")
    kept = f' <span class="faint">kept instead: {shown_id(survivor["doc_id"])}</span>' if survivor else ""
    detail = f' <span class="faint">· {shown(example["detail"])}</span>' if example.get("detail") else ""
    more = "…" if example["chars"] > len(example["text"]) else ""
    return (
        f'<article class="example"><p class="meta">{measured}{kept}{detail}</p>'
        f'<blockquote dir="auto">{shown(example["text"])}{more}</blockquote>'
        f'<p class="meta"><bdi>{shown_id(example["doc_id"])}</bdi> · {shown(example["source"])} · '
        f"{example['chars']:,} characters</p></article>"
    )


def _record(record: Json) -> str:
    told = [
        record["file"],
        f"at {record['offset']:,}" if record["offset"] is not None else None,
        record["detail"],
    ]
    return (
        f'<p class="meta">{shown(record["source"])}: {shown(" · ".join(str(part) for part in told if part))}'
        "</p>"
    )


def clusters_section(facts: Json) -> Section:
    clusters, pairs = facts["clusters"], facts["duplicates"]
    says = "Documents that say the same, or nearly."
    body = _matrix(pairs) if pairs else ""
    if clusters is None:
        why = "This run did not look for near duplicates, or did not get there."
        return Section("clusters", "Duplicates", says, body + nothing(why))
    says += (
        f" {plural(clusters['clusters'], 'cluster')} of documents share at least "
        f"{percent(clusters['threshold'], 0)} of their word sequences. Of the largest, the one that stayed "
        "is on the left, the one least like it on the right; what only one of them says is marked."
    )
    if pairs and clusters["shown"]:
        body += "<h3>The largest clusters</h3>"
    body += "".join(_cluster(cluster, place == 0) for place, cluster in enumerate(clusters["shown"]))
    return Section("clusters", "Duplicates", says, body or nothing("No two documents were that much alike."))


def _matrix(pairs: list[Json]) -> str:
    """A row for each source that lost documents, a column for each that kept what they say;
    those with the most."""
    lost: dict[str, int] = {}
    kept: dict[str, int] = {}
    for pair in pairs:
        lost[pair["source"]] = lost.get(pair["source"], 0) + pair["docs"]
        kept[pair["kept_in"]] = kept.get(pair["kept_in"], 0) + pair["docs"]
    docs = {(pair["source"], pair["kept_in"]): pair["docs"] for pair in pairs}
    rows, columns = (
        sorted(totals, key=lambda name: (-totals[name], name))[:_SHOWN_PAIRS] for totals in (lost, kept)
    )
    cells = []
    for source in rows:
        own = [docs.get((source, name), 0) for name in columns]
        other = [lost[source] - sum(own)] if len(kept) > len(columns) else []
        cells.append([shown(source), *(f"{n:,}" if n else "–" for n in [*own, *other]), f"{lost[source]:,}"])
    head = ["Dropped from", *(f"kept in {shown(name)}" for name in columns)]
    head += ["elsewhere"] if len(kept) > len(columns) else []
    hidden = len(lost) - len(rows)
    more = f'<p class="faint">and {plural(hidden, "more source")}, in report.json</p>' if hidden else ""
    return f"<h3>Which source repeats which</h3>{table([*head, 'in all'], cells)}{more}"


def _cluster(cluster: Json, is_open: bool) -> str:
    left = right = ""
    for part in cluster["parts"]:
        if part["kind"] == "skip":
            gap = f'<span class="skip">⋯ {plural(part["words"], "word")} alike ⋯</span>'
            left, right = left + gap, right + gap
        elif part["kind"] == "same":
            left, right = left + shown(part["left"]), right + shown(part["right"])
        else:
            left += _marked("del", part["left"])
            right += _marked("ins", part["right"])
    members = "".join(
        f'<li><bdi>{shown_id(member["doc_id"])}</bdi> <span class="faint">{shown(member["source"])} · '
        f"{'kept' if member['kept'] else 'likeness ' + format(member['similarity'], '.3f')}</span></li>"
        for member in cluster["members"]
    )
    likeness = "Stays too" if cluster["similarity"] is None else f"Likeness {cluster['similarity']:.3f}"
    hidden = cluster["size"] - len(cluster["members"])
    more = f'<li class="faint">and {hidden:,} more</li>' if hidden > 0 else ""
    return (
        f'<details class="cluster"{" open" if is_open else ""}><summary><span class="reason">'
        f"<bdi>{shown_id(cluster['left'])}</bdi></span>"
        f'<span class="n">{plural(cluster["size"], "document")}</span>'
        f'<span class="n faint">{cluster["kept"]:,} kept</span></summary>'
        f'<div class="pair"><div><h4 class="kept">Kept <bdi>{shown_id(cluster["left"])}</bdi></h4>'
        f'<blockquote dir="auto">{left}</blockquote></div>'
        f'<div><h4 class="out">{likeness} <bdi>{shown_id(cluster["right"])}</bdi></h4>'
        f'<blockquote dir="auto">{right}</blockquote></div></div>'
        f'<ul class="members">{members}{more}</ul></details>'
    )


def _marked(tag: str, text: str) -> str:
    """White space at the end stays outside the mark."""
    words = text.rstrip()
    return (f"<{tag}>{shown(words)}</{tag}>" if words else "") + shown(text[len(words) :])


def flow_section(facts: Json) -> Section:
    totals = facts["totals"]
    share = percent(totals["kept"] / totals["records"]) if totals["records"] else "none"
    says = (
        f"Of {plural(totals['records'], 'record')} read, {totals['kept']:,} ({share}) stay{_built(totals)}. "
        "Ribbons that turn red are documents that leave, with the reason where they end."
    )
    body = _river("documents-flow", "Documents through the steps", facts["flow"]["documents"])
    tokens = facts["flow"]["tokens"]
    if tokens is None:
        body += nothing("Nothing was encoded, so there are no tokens to follow.")
    else:
        where = f" and into the build {tokens['build']}" if tokens["build"] else ""
        body += (
            f"<h3>The same in tokens</h3><p>{brief(totals['tokens'])} tokens, by source, into the "
            f"splits{where}."
            f"{_repeats(tokens)}</p>{_river('tokens-flow', 'Tokens from sources to rows', tokens)}"
        )
    return Section("flow", "Flow", says, body)


def _river(name: str, title: str, flow: Json) -> str:
    """On a narrow page it is wider than the page, and says so."""
    return (
        f'<figure><p class="hint" aria-hidden="true">The river goes on: scroll sideways →</p>'
        f'<div class="scroll wide" tabindex="0">{sankey(name, title, flow)}</div></figure>'
    )


def _repeats(flow: Json) -> str:
    repeated = sum(node["value"] for node in flow["nodes"] if node["kind"] == "repeat")
    return f" {brief(repeated)} tokens more are repeats, in a ribbon of their own." if repeated else ""


def _built(totals: Json) -> str:
    """How many of them each build has in its rows, where that is not all."""
    fewer = [
        f"{shown(name)} {docs:,}"
        for name, docs in (totals["documents_built"] or {}).items()
        if docs < totals["kept"]
    ]
    return f"; in rows are fewer: {', '.join(fewer)}" if fewer else ""


def lengths_section(facts: Json) -> Section:
    lengths = facts["lengths"]
    body = ""
    chars = lengths["chars"]
    if chars["cleaned"]:
        body += "<h3>Characters</h3>" + _legend("came to cleaning", "kept by it")
        body += _figure(
            histogram(
                "chars-histogram",
                "Documents by characters",
                "characters",
                [("came to cleaning", chars["cleaned"]), ("kept", chars["kept"])],
            )
        )
    if lengths["tokens"]:
        body += "<h3>Tokens</h3>"
        body += _figure(
            histogram("tokens-histogram", "Documents by tokens", "tokens", [("encoded", lengths["tokens"])])
        )
    says = (
        "How long documents are. Each bar is half an octave wide: a document of twice the length is two bars "
        "on."
    )
    return Section("lengths", "Lengths", says, body or nothing("No document was measured."))


def _legend(first: str, second: str) -> str:
    return (
        f'<p class="legend"><i class="s0"></i>{first} <i class="s1"></i>{second} (the narrower bar inside)'
        "</p>"
    )


def _figure(chart: str) -> str:
    return f'<figure><div class="scroll">{chart}</div></figure>'
