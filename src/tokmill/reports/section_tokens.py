"""Sections of the page about tokens, and about the run: sources, shares, mixture, packing, tokenizer; warnings, pace, chain.

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
    seconds,
    shown,
    size,
    table,
)


def warnings_section(facts: Json) -> Section:
    warnings = facts["warnings"]
    rows = "".join(f"<li><b>{shown(w['where'])}</b> {shown(w['what'])}</li>" for w in warnings)
    says = "What the run itself noticed. It is not a review: `tokmill review` looks further."
    body = f'<ul class="warnings">{rows}</ul>' if rows else nothing("Nothing.")
    return Section("warnings", "Warnings", says, body)


def pace_section(facts: Json) -> Section:
    pace = facts["pace"]
    longest = max((row["seconds"] or 0 for row in pace), default=0)
    rows = [
        [
            shown(row["kind"]),
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
        "How long each kind of step took, as its manifest says. Steps that work side by side count from their common start; "
        "the first run on a machine also compiles."
    )
    head = ["Step", "", "time", "documents", "text", "rate", "written"]
    body = table(head, rows, 2) + f'<p class="meta">{shown(" · ".join(part for part in told if part))}</p>'
    return Section("pace", "Pace", says, body)


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
    body += table(["Step", "content", "experiment", "made from", "files", "bytes"], rows, 4)
    files = [
        [shown(step["step"].partition("/")[2] or step["step"]), shown(name), f"<code>{shown(sha256)}</code>"]
        for step in facts["chain"]
        for name, sha256 in step["files"].items()
    ]
    if files:
        shown_files = files[:40]
        more = f'<p class="faint">and {len(files) - 40:,} more, in report.json</p>' if len(files) > 40 else ""
        body += f"<details><summary>{plural(len(files), 'input file')}</summary>{table(['For', 'file', 'sha256'], shown_files, 3)}{more}</details>"
    return Section("chain", "Provenance", says, body)


def _origin(step: Json) -> str:
    if step["from"]:
        kinds = list(dict.fromkeys(name.partition("/")[0] for name in step["from"]))
        return ", ".join(kinds)
    files = plural(len(step["files"]), "file")
    return f"{files} at revision {step['revision'][:12]}" if step["revision"] else files


def sources_section(facts: Json) -> Section:
    rows = [
        [
            shown(source["name"]),
            shown(source["domain"] or "–"),
            shown(source["dataset"] or "files"),
            shown(_licenses(source)),
            count(source["records"]),
            count(source["ingested"]),
            count(source["kept_by_clean"]) if source["kept_by_clean"] is not None else "–",
            size(source["text_bytes"]),
        ]
        for source in facts["sources"]
    ]
    head = ["Source", "domain", "from", "licences kept", "records", "documents", "kept by clean", "text"]
    says = "What was read, and how much of it is left after cleaning."
    return Section(
        "sources", "Sources", says, table(head, rows, 4) if rows else nothing("Nothing was ingested yet.")
    )


def _licenses(source: Json) -> str:
    found = source["licenses"]
    if not found:
        return source["declared_license"] or "–"
    ranked = sorted(found, key=lambda name: (-found[name].get("docs", 0), name))
    return ", ".join(ranked[:2]) + (f" and {len(ranked) - 2} more" if len(ranked) > 2 else "")


_NAMES = {
    "domain": "Domain",
    "source": "Source",
    "language": "Language",
    "license": "Licence",
    "split": "Split",
}
_SHOWN_ROWS = 16


def shares_section(facts: Json) -> Section:
    shares = facts["shares"]
    if shares is None:
        return Section("shares", "Shares", "What the tokens are made of.", nothing("Nothing was encoded."))
    build = next((b for b in facts["builds"] if b["shares"].get("source")), None)
    says = "What the tokens are made of: shares are of tokens, not of documents."
    if build is not None:
        says += f" The last column is the build {build['name']}, after mixing and packing."
    body = "".join(_shares(key, title, shares[key], build) for key, title in _NAMES.items())
    return Section("shares", "Shares", says, f'<div class="grid">{body}</div>')


def _shares(key: str, title: str, rows: list[Json], build: Json | None) -> str:
    built = {row["name"]: row["share"] for row in (build["shares"].get(key) or [])} if build else {}
    head = [title, "", "tokens", "share", "docs"]
    if built:
        head.append(f"in {shown(build['name'])}" if build else "")
    cells = []
    for row in rows[:_SHOWN_ROWS]:
        line = [
            shown(row["name"]),
            bar(row["share"], "c0", 90),
            count(row["tokens"]),
            percent(row["share"]),
            count(row["docs"]),
        ]
        cells.append([*line, percent(built.get(row["name"], 0.0))] if built else line)
    hidden = rows[_SHOWN_ROWS:]
    if hidden:
        line = [
            f'<span class="faint">{len(hidden)} more</span>',
            "",
            count(sum(row["tokens"] for row in hidden)),
            percent(sum(row["share"] for row in hidden)),
            count(sum(row["docs"] for row in hidden)),
        ]
        rest = sum(built.get(row["name"], 0.0) or 0.0 for row in hidden)
        cells.append([*line, percent(rest)] if built else line)
    return f"<div>{table(head, cells, 2)}</div>"


def packing_section(facts: Json) -> Section:
    says = "What each build wrote of the tokens it was given. Padding is written and teaches nothing; the rest of the bar that is not in rows is lost."
    chart = packing(facts["builds"])
    if not chart:
        return Section("packing", "Packing", says, nothing("Nothing was built."))
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
    return Section("packing", "Packing", says, body)


def tokenizer_section(facts: Json) -> Section:
    tokenizer = facts["tokenizer"]
    says = "How the text was cut. More characters in a token, or fewer tokens for a word, is text that the vocabulary knows well."
    if tokenizer is None:
        return Section(
            "tokenizer", "Tokenizer", says, nothing("This run has no tokenizer, or did not get there.")
        )
    told = [
        ("file", tokenizer["file"]),
        ("kind", f"{tokenizer['kind']}{', trained by this run' if tokenizer['trained'] else ''}"),
        ("vocabulary", f"{tokenizer['vocab_size']:,}" if tokenizer["vocab_size"] else None),
        ("end of document", f"{tokenizer['eos']} = {tokenizer['eos_id']}"),
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
            body += f'<p class="meta">Words are counted where a rule needs them ({shown(", ".join(counted))}), in some or all of the documents; the token that ends a document is not counted as text.</p>'
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
        why = "This recipe has no mixture: builds hold every document that was kept, in the order of the corpus."
        return Section("mixture", "Mixture", says, nothing(why))
    says += " The bar is what was built, the upright line what was wanted."
    return Section("mixture", "Mixture", says, "".join(_mixed(split) for split in mixture["splits"]))


def _mixed(split: Json) -> str:
    sources = sorted(split["sources"], key=lambda source: (-source.get("wanted", 0), source["name"]))
    top = max((max(s.get("wanted", 0), s.get("built", 0)) for s in sources), default=0)
    rows = [
        [
            shown(source["name"]),
            bullet(source.get("built", 0), source.get("wanted", 0), top),
            percent(source.get("wanted")),
            percent(source.get("built")),
            count(source.get("tokens")),
            count(source.get("available")),
            f"{source['epochs']:.2f}" if source.get("epochs") is not None else NOT_MEASURED,
        ]
        for source in sources
    ]
    head = ["Source", "", "wanted", "built", "tokens", "available", "times read"]
    return f"<h3>{shown(split['split'])} <small>{count(split['tokens'])} tokens</small></h3>{table(head, rows, 2)}"
