"""Where everything came from, how long it took, and what to know before use."""

from __future__ import annotations

from tokmill.audit.report.charts import bar
from tokmill.audit.report.markup import count, number, plural, seconds, shown, size, table
from tokmill.audit.report.sections.section import Section, nothing
from tokmill.manifest import Json


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
