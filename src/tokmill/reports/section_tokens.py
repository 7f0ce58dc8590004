"""Sections of the page about tokens, and about the run: sources, shares, mixture, packing, tokenizer;
warnings, pace, chain.

facts ─> a Section each: what the tokens are made of, how they are laid into rows, where everything came from
"""

from __future__ import annotations

from tokmill.artifacts.manifest import Json
from tokmill.errors import plural
from tokmill.reports.charts import (
    NOT_MEASURED,
    Section,
    bar,
    bullet,
    count,
    nothing,
    number,
    packing,
    percent,
    prose,
    seconds,
    shown,
    size,
    table,
)
from tokmill.reports.idleness import show_idleness


def _lines(told: list[Json]) -> str:
    rows = "".join(f"<li><b>{shown(one['where'])}</b> {prose(one['what'])}</li>" for one in told)
    return f'<ul class="warnings">{rows}</ul>' if rows else ""


def warnings_section(facts: Json) -> Section:
    """Those that need a decision; what is routine is folded."""
    says = (
        "What the run noticed and somebody has to decide about. It is not a review: `tokmill review` looks "
        "further."
    )
    body = _lines(facts["warnings"]) or nothing("Nothing.")
    notes = facts["notes"]
    if notes:
        body += f"<details><summary>{plural(len(notes), 'routine note')}</summary>{_lines(notes)}</details>"
    return Section("warnings", "Warnings", says, body)


def pace_section(facts: Json) -> Section:
    pace = facts["pace"]
    longest = max((row["seconds"] or 0 for row in pace), default=0)
    rows = [
        [
            shown(row["kind"]) + _part(row),
            bar((row["seconds"] or 0) / longest if longest else 0, "c0", 120),
            seconds(row["seconds"]),
            count(row["docs"]) if row["docs"] is not None else "–",
            size(row["text_bytes"]) if row["text_bytes"] is not None else "–",
            f"{number(row['megabytes_per_second'])} MB/s" if row["megabytes_per_second"] else "–",
            size(row["written_bytes"]),
        ]
        for row in pace
    ]
    environment = facts["environment"]
    told = [
        plural(environment["workers"], "worker") if environment["workers"] else None,
        f"{plural(environment['cores'], 'core')}, {environment['machine']}" if environment["cores"] else None,
        f"Python {environment['python']}" if environment["python"] else None,
        *(f"{name} {version}" for name, version in (environment["packages"] or {}).items() if version),
    ]
    says = (
        "How long each kind of step was at work, as its manifest says, without the time that it waited for "
        "others; and when workers had nothing to do. Steps work side by side where neither needs the other, "
        "so their times are no sum. Where a run did some tasks of a step again, the figures are of those."
    )
    head = ["Step", "", "time", "documents", "text", "rate", "written"]
    body = table(head, rows, 2) + show_idleness(facts["idleness"])
    body += f'<p class="meta">{shown(" · ".join(part for part in told if part))}</p>'
    return Section("pace", "Pace", says, body + _estimated(facts["estimate"]))


def _part(row: Json) -> str:
    if row["timed_tasks"] == row["tasks"]:
        return ""
    return f" <small>{row['timed_tasks']:,} of {plural(row['tasks'], 'task')}</small>"


def _estimated(compared: list[Json]) -> str:
    """What `plan --estimate` said of the run before it was there."""
    if not compared:
        return ""
    written = {"bytes": size, "seconds": seconds}
    rows = []
    for row in compared:
        tell = written.get(row["what"], count)
        value, *bounds = (tell(round(one, 1) if tell is seconds else round(one)) for one in row["estimated"])
        rows.append(
            [
                shown("disk" if row["what"] == "bytes" else row["what"]),
                value,
                " – ".join(bounds),
                tell(row["actual"]),
                f"{row['estimated'][0] / row['actual'] - 1:+.1%}" if row["actual"] else "–",
            ]
        )
    head = ["Estimated before", "", "", "it was", "off by"]
    return table(head, rows, 1)


def chain_section(facts: Json) -> Section:
    run = facts["run"]
    rows = [
        [
            shown(step["step"]),
            f'<code title="{step["identity"]}">{step["identity"][:16]}</code>',
            f"<code>{shown(step['experiment_id'])}</code>",
            shown(_origin(step)),
            count(step["made"]),
            size(step["bytes"]),
        ]
        for step in facts["chain"]
    ]
    says = (
        "Each step names the content of those it was made from, down to the files that were read; "
        "`tokmill verify` proves the whole chain from the bytes. Two runs are equal when their digests are."
    )
    body = f'<dl class="facts"><div><dt>digest</dt><dd><code>{shown(run["digest"])}</code></dd></div>'
    if run["experiment_id"]:
        body += f"<div><dt>experiment</dt><dd><code>{shown(run['experiment_id'])}</code></dd></div>"
    if run["seed"] is not None:
        body += f"<div><dt>seed</dt><dd>{run['seed']}</dd></div>"
    body += "</dl>"
    if facts["recipe"] is not None:
        body += (
            "<details><summary>The recipe, without what it leaves to the defaults</summary>"
            f"<pre>{shown(facts['recipe'])}</pre></details>"
        )
    body += table(["Step", "content", "experiment", "made from", "files", "bytes"], rows, 4)
    files = [
        [shown(step["step"].partition("/")[2] or step["step"]), shown(name), f"<code>{shown(sha256)}</code>"]
        for step in facts["chain"]
        for name, sha256 in step["files"].items()
    ]
    if files:
        shown_files = files[:40]
        more = f'<p class="faint">and {len(files) - 40:,} more, in report.json</p>' if len(files) > 40 else ""
        body += (
            f"<details><summary>{plural(len(files), 'input file')}"
            f"</summary>{table(['For', 'file', 'sha256'], shown_files, 3)}{more}</details>"
        )
    return Section("chain", "Provenance", says, body)


def _origin(step: Json) -> str:
    if step["from"]:
        kinds = list(dict.fromkeys(name.partition("/")[0] for name in step["from"]))
        return ", ".join(kinds)
    files = plural(len(step["files"]), "file")
    return f"{files} at revision {step['revision'][:12]}" if step["revision"] else files


def sources_section(facts: Json) -> Section:
    builds = [build["name"] for build in facts["builds"]]
    rows = [
        [
            shown(source["name"]),
            shown(source["domain"] or "–"),
            shown(source["dataset"] or "files"),
            shown(_licenses(source)),
            count(source["records"]),
            count(source["kept_by_clean"]) if source["kept_by_clean"] is not None else "–",
            count(sum(source["built"]["licenses"].values())) if builds else "–",
            *(map(count, source["built"]["tokens"].values()) if builds else ()),
        ]
        for source in facts["sources"]
    ]
    head = ["Source", "domain", "from", "licences", "records", "kept by clean", "built"]
    head += [f"tokens in {shown(build)}" for build in builds]
    says = (
        "What was read, how much of it cleaning kept, and how much of it is in a build, by the licences of "
        "its documents."
    )
    return Section(
        "sources", "Sources", says, table(head, rows, 4) if rows else nothing("Nothing was ingested yet.")
    )


def _licenses(source: Json) -> str:
    """With their documents: of what was built, or else kept; before that, what the recipe says."""
    docs = {name: total.get("docs", 0) for name, total in (source["licenses"] or {}).items()}
    if source["built"] is not None:
        docs = source["built"]["licenses"]
    if not docs:
        return "–" if source["built"] is not None else source["declared_license"] or "–"
    ranked = sorted(docs, key=lambda name: (-docs[name], name))
    told = [f"{name} {docs[name]:,}" for name in ranked[:3]]
    return ", ".join([*told, f"{len(ranked) - 3} more"] if len(ranked) > 3 else told)


_NAMES = {
    "domain": "Domain",
    "source": "Source",
    "language": "Language",
    "license": "Licence",
    "split": "Split",
}
_SHOWN_ROWS = 16


def main_build(facts: Json) -> Json | None:
    """The one that the flow goes into: the first of all sources, else the first."""
    builds = facts["builds"]
    return next((build for build in builds if not build["sources"]), next(iter(builds), None))


def shares_section(facts: Json) -> Section:
    shares = facts["shares"]
    if shares is None:
        return Section("shares", "Shares", "What the tokens are made of.", nothing("Nothing was encoded."))
    build = main_build(facts)
    if build is None:
        says = (
            "What the encoded tokens are made of: shares are of tokens, not of documents. Nothing was built "
            "of them."
        )
        body = "".join(_shares(title, shares[key], None) for key, title in _NAMES.items())
    else:
        says = (
            f"What the build {build['name']} is made of: shares are of its tokens, as often as they repeat; "
            "documents count once. The last column is what was encoded, before mixing and packing."
        )
        body = "".join(_shares(title, build["shares"][key], shares[key]) for key, title in _NAMES.items())
    return Section("shares", "Shares", says, f'<div class="grid">{body}</div>')


def _shares(title: str, rows: list[Json], encoded: list[Json] | None) -> str:
    """What was encoded and has no token in a row stands at the end."""
    before = {row["name"]: row["share"] for row in encoded or []}
    known = {row["name"] for row in rows}
    rows = [
        *rows,
        *({"name": name, "tokens": 0, "docs": 0, "share": 0.0} for name in before if name not in known),
    ]
    head = [title, "", "tokens", "share", "docs", *(["encoded"] if encoded is not None else [])]
    cells = []
    for row in rows[:_SHOWN_ROWS]:
        line = [
            shown(row["name"]),
            bar(row["share"] or 0.0, "c0", 90),
            count(row["tokens"]),
            percent(row["share"]),
            count(row["docs"]),
        ]
        cells.append([*line, percent(before.get(row["name"], 0.0))] if encoded is not None else line)
    hidden = rows[_SHOWN_ROWS:]
    if hidden:
        line = [
            f'<span class="faint">{len(hidden)} more</span>',
            "",
            count(sum(row["tokens"] for row in hidden)),
            percent(sum(row["share"] or 0.0 for row in hidden)),
            count(sum(row["docs"] for row in hidden)),
        ]
        rest = sum(before.get(row["name"], 0.0) or 0.0 for row in hidden)
        cells.append([*line, percent(rest)] if encoded is not None else line)
    return f"<div>{table(head, cells, 2)}</div>"


def packing_section(facts: Json) -> Section:
    says = (
        "What each build wrote of the tokens it was given. Padding is written and teaches nothing; the rest "
        "of the bar that is not in rows is lost."
    )
    chart, texts = packing(facts["builds"]), _texts(facts.get("texts", []))
    if not chart:
        told = nothing("No tokens were built.") + texts if texts else nothing("Nothing was built.")
        return Section("packing", "Packing", says, told)
    rows = [
        [
            shown(build["name"]),
            shown(build["format"] or NOT_MEASURED),
            "by document" if build["layout"] == "indexed" or build["rows"] is None else count(build["rows"]),
            count(build["packing"]["written"]),
            percent(build["packing"]["padding_share"], 2),
            percent(build["packing"]["lost_share"], 2),
            size(build["bytes"]),
        ]
        for build in facts["builds"]
    ]
    head = ["Build", "format", "rows", "tokens written", "padding", "lost", "on disk"]
    body = f'<figure><div class="scroll">{chart}</div></figure>{table(head, rows, 2)}'
    return Section("packing", "Packing", says, body + texts)


def _texts(builds: list[Json]) -> str:
    """Builds that hold the documents themselves."""
    if not builds:
        return ""
    head = ["Texts", "format", "split", "documents", "characters", "files of all splits", "on disk"]
    rows = [
        [
            shown(build["name"]),
            shown(build["format"]),
            shown(split),
            count(total["docs"]),
            count(total["chars"]),
            count(build["files"]),
            size(build["bytes"]),
        ]
        for build in builds
        for split, total in build["splits"].items()
    ]
    return f"<div>{table(head, rows, 3)}</div>"


def tokenizer_section(facts: Json) -> Section:
    tokenizer = facts["tokenizer"]
    says = (
        "How the text was cut. More characters in a token, or fewer tokens for a word, is text that the "
        "vocabulary knows well."
    )
    if tokenizer is None:
        return Section(
            "tokenizer", "Tokenizer", says, nothing("This run has no tokenizer, or did not get there.")
        )
    told = [
        ("file", tokenizer["file"]),
        ("kind", f"{tokenizer['kind']}{', trained by this run' if tokenizer['trained'] else ''}"),
        ("vocabulary", f"{tokenizer['vocab_size']:,}" if tokenizer["vocab_size"] else None),
        ("end of document", f"{tokenizer['eos']} = {tokenizer['eos_id']}"),
        *(
            [("begin of document", f"{tokenizer['bos']} = {tokenizer['bos_id']}")]
            if "bos" in tokenizer
            else []
        ),
        (
            "checked",
            f"{plural(tokenizer['checked_docs'], 'document')} against the reference"
            if tokenizer["checked_docs"] is not None
            else None,
        ),
        ("sha256", tokenizer["sha256"]),
    ]
    body = '<dl class="facts">' + "".join(
        f"<div><dt>{label}</dt><dd>{shown(value) if value else NOT_MEASURED}</dd></div>"
        for label, value in told
    )
    body += "</dl>"
    fertility = facts["fertility"]
    if fertility:
        best = max((row["chars_per_token"] or 0 for rows in fertility.values() for row in rows), default=0)
        body += '<div class="grid">' + "".join(
            f"<div>{_fertility(key.capitalize(), fertility[key], best)}</div>"
            for key in ("source", "language")
        )
        body += "</div>"
        counted = sorted({str(column) for column in facts["words_measured_by"].values() if column})
        if counted:
            body += (
                f'<p class="meta">Words are counted where a rule needs them ({shown(", ".join(counted))}), '
                "in some or all of the documents; tokens that end or begin a document are not counted as "
                "text.</p>"
            )
    return Section("tokenizer", "Tokenizer", says, body)


def _fertility(title: str, rows: list[Json], best: float) -> str:
    head = [title, "", "chars / token", "tokens / word", "tokens / doc"]
    cells = [
        [
            shown(row["name"]),
            bar((row["chars_per_token"] or 0) / best if best else 0, "c0", 90),
            _ratio(row["chars_per_token"]),
            _ratio(row["tokens_per_word"]) + _counted(row),
            number(round(row["tokens_per_doc"])) if row["tokens_per_doc"] else NOT_MEASURED,
        ]
        for row in rows[:_SHOWN_ROWS]
    ]
    return table(head, cells, 2)


def _counted(row: Json) -> str:
    """Of how many documents, where words were not counted in all."""
    of = row["words_counted_in_docs"]
    return f' <span class="faint">in {of:,}</span>' if row["tokens_per_word"] and of < row["docs"] else ""


def _ratio(value: float | None) -> str:
    return f"{value:.2f}" if value is not None else f'<span class="faint">{NOT_MEASURED}</span>'


def mixture_section(facts: Json) -> Section:
    mixture = facts["mixture"]
    says = "Shares that were asked for, against those that were built."
    if mixture is None:
        why = (
            "This recipe has no mixture: builds hold every document that was kept, in the order of the "
            "corpus."
        )
        return Section("mixture", "Mixture", says, nothing(why))
    says += " The bar is what was built, the upright line what was wanted."
    builds = list(dict.fromkeys(split["build"] for split in mixture["splits"] if split["build"] is not None))
    if builds:
        named = f"the build{'s' if len(builds) > 1 else ''} {', '.join(builds)}"
        says += (
            f" Tokens are those in rows of {named}; epochs count whole documents, also where a row cuts them."
        )
    return Section("mixture", "Mixture", says, "".join(_mixed(split) for split in mixture["splits"]))


def _mixed(split: Json) -> str:
    """As it was asked: by domain, each with its sources below it where it has several; else by source."""
    domains, sources = split["domains"], split["sources"]
    rows: list[tuple[Json, str]] = []
    for one in _ranked(domains if domains is not None else sources):
        rows.append((one, shown(one["name"])))
        own = [source for source in sources if source["domain"] == one["name"]] if domains is not None else []
        rows += [(s, f'<span class="within">{shown(s["name"])}</span>') for s in _ranked(own) if len(own) > 1]
    top = max((max(one["wanted"], one["built"]) for one, _ in rows), default=0)
    cells = [
        [
            label,
            bullet(one["built"], one["wanted"], top),
            percent(one["wanted"]),
            percent(one["built"]),
            count(one["tokens"]),
            count(one["available"]),
            f"{one['epochs']:.2f}",
        ]
        for one, label in rows
    ]
    head = ["Source" if domains is None else "Domain", "", "wanted", "built", "tokens", "available", "epochs"]
    return (
        f"<h3>{shown(split['split'])} <small>{count(split['tokens'])} tokens</small>"
        f"</h3>{table(head, cells, 2)}"
    )


def _ranked(rows: list[Json]) -> list[Json]:
    return sorted(rows, key=lambda row: (-row["wanted"], row["name"]))
