"""The two rivers, and how long documents are."""

from __future__ import annotations

from tokmill.audit.report.charts import histogram
from tokmill.audit.report.markup import brief, percent, plural, shown
from tokmill.audit.report.sankey import sankey
from tokmill.audit.report.sections.section import Section, nothing
from tokmill.manifest import Json


def flow_section(facts: Json) -> Section:
    totals = facts["totals"]
    share = percent(totals["kept"] / totals["records"]) if totals["records"] else "none"
    says = (
        f"Of {plural(totals['records'], 'record')} read, {totals['kept']:,} ({share}) stay{_built(totals)}. "
        "Ribbons that turn red are documents that leave, with the reason where they end."
    )
    body = f'<figure><div class="scroll wide">{sankey("documents-flow", "Documents through the steps", facts["flow"]["documents"])}</div></figure>'
    tokens = facts["flow"]["tokens"]
    if tokens is None:
        body += nothing("Nothing was encoded, so there are no tokens to follow.")
    else:
        where = f" and into the build {tokens['build']}" if tokens["build"] else ""
        body += (
            f"<h3>The same in tokens</h3><p>{brief(totals['tokens'])} tokens, by source, into the splits{where}.</p>"
            f'<figure><div class="scroll wide">{sankey("tokens-flow", "Tokens from sources to rows", tokens)}</div></figure>'
        )
    return Section("flow", "Flow", says, body)


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
    says = "How long documents are. Each bar is half an octave wide: a document of twice the length is two bars on."
    return Section("lengths", "Lengths", says, body or nothing("No document was measured."))


def _legend(first: str, second: str) -> str:
    return f'<p class="legend"><i class="s0"></i>{first} <i class="s1"></i>{second} (the narrower bar inside)</p>'


def _figure(chart: str) -> str:
    return f'<figure><div class="scroll">{chart}</div></figure>'
