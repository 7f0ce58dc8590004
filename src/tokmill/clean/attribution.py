"""ATTRIBUTION.md: what the corpus is made of, by licence and by source, and what the licences ask for.

    LicenseTotals per (source, licence) ─ sum, sort ─> one table of licences, then one section per licence

The same totals give the same text, in whatever order they come.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tokmill.clean.license_names import known
from tokmill.clean.licenses import leaves, parse_license

_UNKNOWN = "Unknown"
_UNKNOWN_NOTE = (
    "No licence is known for these documents. Whoever passes them on should find out first: without a licence, "
    "all rights are reserved."
)
_CC_NOTES = [
    ("-NC", "non-commercial use only"),
    ("-ND", "no derivatives may be shared"),
    ("-SA", "ShareAlike: adaptations under the same licence"),
]
_SHARE_ALIKE = ("ODbL-", "GFDL-", "CDLA-Sharing-", "CC-SA-")
_COPYLEFT = ("GPL-", "AGPL-", "LGPL-", "MPL-", "EPL-", "EUPL-", "CDDL-", "OSL-")
_FREE = ("CC0-", "PDDL-", "Unlicense", "0BSD", "CC-PD", "WTFPL", "LicenseRef-Public-Domain", "MIT-0")


class LicenseTotals(NamedTuple):
    """What one source has under one licence. `license` is canonical, or None where it is not known."""

    source: str
    license: str | None
    documents: int
    chars: int
    tokens: int | None = None
    urls: Sequence[str] = ()  # where the source comes from


class _Sum(NamedTuple):
    documents: int
    chars: int
    tokens: int | None
    urls: tuple[str, ...]


def attribution(rows: Iterable[LicenseTotals]) -> str:
    by_license: dict[str | None, dict[str, _Sum]] = {}
    for row in rows:
        sources = by_license.setdefault(row.license, {})
        new = _Sum(row.documents, row.chars, row.tokens, tuple(sorted(set(row.urls))))
        sources[row.source] = _added([sources[row.source], new]) if row.source in sources else new
    order = sorted(by_license, key=lambda name: (name is None, (name or "").lower(), name or ""))
    parts = ["# Attribution\n", "What this corpus is made of, by licence and by source.\n"]
    if not order:
        return "\n".join([*parts, "It holds no documents.\n"])
    parts.append(
        _table("licence", {name or _UNKNOWN: _added(list(by_license[name].values())) for name in order})
    )
    parts += [_section(name, by_license[name]) for name in order]
    return "\n".join(parts)


def license_name(spdx: str) -> str:
    """The name of one licence in words; its identifier where there are none."""
    plain = spdx.removesuffix("+")
    if plain in known().references:
        return known().references[plain][0]
    if plain.startswith("LicenseRef-CC-BY"):
        return f"{plain.removeprefix('LicenseRef-').replace('CC-', 'Creative Commons ')}"
    name = known().licenses.get(plain, plain)
    return f"{name} or any later version" if spdx.endswith("+") else name


def license_url(spdx: str) -> str | None:
    """The legal code for Creative Commons, the page of the SPDX list for the rest of it."""
    plain = spdx.removesuffix("+")
    if plain in known().references:
        return known().references[plain][1]
    bare = plain.removeprefix("LicenseRef-").lower()
    if bare.startswith("cc-by"):
        words = bare.removeprefix("cc-").split("-")
        elements = "-".join(word for word in words if word in ("by", "nc", "nd", "sa"))
        rest = [word for word in words if word not in ("by", "nc", "nd", "sa")]
        return (
            "https://creativecommons.org/licenses/"
            + "/".join([elements, *rest] if rest else [])
            + "/" * bool(rest)
        )
    if plain == "CC0-1.0":
        return "https://creativecommons.org/publicdomain/zero/1.0/"
    return f"https://spdx.org/licenses/{plain}.html" if plain in known().licenses else None


def obligations(spdx: str) -> str:
    """What one licence asks for, in a few words. A reminder to read it, not a reading of it."""
    plain = spdx.removeprefix("LicenseRef-")
    if spdx.startswith(_FREE):
        return "no attribution required"
    if plain.startswith("CC-BY"):
        return "; ".join(["attribution required", *(note for mark, note in _CC_NOTES if mark in plain)])
    if plain.startswith(_SHARE_ALIKE):
        return "attribution required; ShareAlike: adaptations under the same licence"
    if plain.startswith(_COPYLEFT):
        return "keep copyright and licence notices; copyleft: derived works under the same licence"
    if spdx in known().licenses or spdx == "LicenseRef-BSD" or spdx == "LicenseRef-Apache":
        return "keep copyright and licence notices"
    return "read its terms"


def _section(name: str | None, sources: dict[str, _Sum]) -> str:
    lines = [f"## {name or _UNKNOWN}\n"]
    expression = parse_license(name) if name is not None else None
    if name is None:
        lines.append(_UNKNOWN_NOTE + "\n")
    elif expression is None:
        lines.append("Not a licence this version knows.\n")
    else:
        for leaf in leaves(expression):
            url = license_url(leaf.license)
            title = f"[{license_name(leaf.license)}]({url})" if url else license_name(leaf.license)
            extra = f" with {known().exceptions[leaf.exception]}" if leaf.exception else ""
            lines.append(f"- {title}{extra}: {obligations(leaf.license)}.")
        lines.append("")
    lines.append(_table("source", dict(sorted(sources.items()))))
    addresses = [f"- {_cell(source)}: <{url}>" for source in sorted(sources) for url in sources[source].urls]
    return "\n".join([*lines, *([*addresses, ""] if addresses else [])])


def _table(first: str, rows: dict[str, _Sum]) -> str:
    has_tokens = any(total.tokens is not None for total in rows.values())
    heads = [first, "documents", "characters", *(["tokens"] if has_tokens else [])]
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " ---: |" * (len(heads) - 1)]
    for name, total in rows.items():
        tokens = [] if not has_tokens else ["" if total.tokens is None else f"{total.tokens:,}"]
        lines.append(
            "| " + " | ".join([_cell(name), f"{total.documents:,}", f"{total.chars:,}", *tokens]) + " |"
        )
    return "\n".join([*lines, ""])


def _added(totals: Sequence[_Sum]) -> _Sum:
    counted = [total.tokens for total in totals if total.tokens is not None]  # a part of a sum is no sum
    return _Sum(
        sum(total.documents for total in totals),
        sum(total.chars for total in totals),
        sum(counted) if len(counted) == len(totals) else None,
        tuple(sorted({url for total in totals for url in total.urls})),
    )


def _cell(text: str) -> str:
    """Names of sources are the user's: nothing in them may end a cell or a line."""
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").split())
