"""Which licences a corpus may have, and what they ask for: one verdict per distinct tag, and ATTRIBUTION.md.

    tags ─ distinct ─ parse ─ judge each ─> verdict and reason per row

    one licence       in deny: denied    in allow, or allow is empty: passes    else: not allowed
    A OR B            the better of the two            A AND B    the worse of the two
    X WITH E, X+      by an entry for exactly that, if there is one; else by the entries for X
    not a licence     what `unknown` says: drop, keep or quarantine

    LicenseTotals per (source, licence) ─ sum, sort ─> ATTRIBUTION.md: a table of licences,
                                                       then a section for each

An entry of the policy is one licence, in any spelling, or a family: `CC-BY-*` is every version (and port) of
CC-BY and CC-BY without a version, but not CC-BY-SA-4.0, because `*` stands for a version. The same totals
give the same attribution, in whatever order they come.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from tokmill.clean.licenses import Expression, Leaf, known, leaves, parse_license
from tokmill.errors import RecipeError

Unknown = Literal["drop", "keep", "quarantine"]

KEEP, DROP, QUARANTINE = np.uint8(0), np.uint8(1), np.uint8(2)
DENIED, NOT_ALLOWED, UNKNOWN = "license_denied", "license_not_allowed", "license_unknown"

# How bad a verdict on a licence is: OR takes the least, AND the worst.
_PASSES, _IS_NOT_ALLOWED, _IS_DENIED = 0, 1, 2
_REASONS = (None, NOT_ALLOWED, DENIED)
_UNKNOWN_VERDICTS = {"keep": KEEP, "drop": DROP, "quarantine": QUARANTINE}


class LicensePolicy(msgspec.Struct, frozen=True):
    """Entries in canonical form, sorted. Made by make_policy."""

    allow: tuple[str, ...]  # empty: whatever is not denied
    deny: tuple[str, ...]
    unknown: Unknown


class Judged(NamedTuple):
    """Per row: the canonical expression (null: unknown), the verdict,
    and the reason (null where nothing is wrong).

    A row of an unknown licence that is kept all the same has the verdict KEEP and the reason license_unknown.
    """

    spdx: Any  # dictionary<int32, string>
    verdict: np.ndarray[Any, np.dtype[np.uint8]]
    reason: Any  # dictionary<int32, string>


_TYPO_RATIO = 0.8  # Apach-2.0 and Apache-2.0 have 0.95, internal and Intel 0.77


def make_policy(
    allow: Sequence[str] | None = None, deny: Sequence[str] | None = None, unknown: Unknown = "drop"
) -> LicensePolicy:
    if unknown not in _UNKNOWN_VERDICTS:
        raise RecipeError(f"{unknown!r} is not drop, keep or quarantine", where="license.unknown")
    return LicensePolicy(_entries(allow, "license.allow"), _entries(deny, "license.deny"), unknown)


def judge_licenses(tags: Any, policy: LicensePolicy) -> Judged:
    """`tags` is a string column; null where neither the document nor its source says one."""
    column = tags.combine_chunks() if isinstance(tags, pa.ChunkedArray) else tags
    coded = column.dictionary_encode()
    codes = coded.indices.fill_null(len(coded.dictionary)).to_numpy(zero_copy_only=False)
    judged = [_judge(tag, policy) for tag in [*coded.dictionary.to_pylist(), None]]
    return Judged(
        spdx=_spread([spdx for spdx, _, _ in judged], codes),
        verdict=np.array([verdict for _, verdict, _ in judged], np.uint8)[codes],
        reason=_spread([reason for _, _, reason in judged], codes),
    )


def _judge(tag: str | None, policy: LicensePolicy) -> tuple[str | None, np.uint8, str | None]:
    expression = parse_license(tag) if tag is not None else None
    if expression is None:
        return None, _UNKNOWN_VERDICTS[policy.unknown], UNKNOWN
    badness = _badness(expression, policy)
    return str(expression), DROP if badness else KEEP, _REASONS[badness]


def _badness(expression: Expression, policy: LicensePolicy) -> int:
    if isinstance(expression, Leaf):
        return _leaf_badness(expression, policy)
    each = [_badness(operand, policy) for operand in expression.operands]
    return min(each) if expression.operator == "OR" else max(each)


def _leaf_badness(leaf: Leaf, policy: LicensePolicy) -> int:
    whole, plain = str(leaf), leaf.license.removesuffix("+")
    for name in (whole, plain):
        if any(_covers(entry, name) for entry in policy.deny):
            return _IS_DENIED
        if any(_covers(entry, name) for entry in policy.allow):
            return _PASSES
    return _IS_NOT_ALLOWED if policy.allow else _PASSES


def _covers(entry: str, name: str) -> bool:
    if not entry.endswith("-*"):
        return entry == name
    family = re.escape(entry.removesuffix("-*"))
    return bool(re.fullmatch(rf"(?:LicenseRef-)?{family}(?:-\d[^ ]*)?", name))


def _entries(entries: Sequence[str] | None, where: str) -> tuple[str, ...]:
    return tuple(sorted({_entry(entry, where) for entry in entries or ()}))


def _entry(entry: str, where: str) -> str:
    if entry.endswith("-*"):
        names = [*known().licenses, *known().references]
        families = {_family(name).lower(): _family(name) for name in names}
        family = families.get(entry.removesuffix("-*").lower())
        if family is not None:
            return f"{family}-*"
        raise _not_a_license(entry, [f"{name}-*" for name in sorted(set(families.values()))], where)
    expression = parse_license(entry)
    if isinstance(expression, Leaf):
        return str(expression)
    if expression is not None:
        raise RecipeError(f"{entry!r} is more than one licence", where=where, next="give each its own entry")
    raise _not_a_license(entry, sorted([*known().licenses, *known().references]), where)


def _family(name: str) -> str:
    return re.split(r"-\d", name.removeprefix("LicenseRef-"), maxsplit=1)[0]


def check_label(label: str) -> None:
    """Refuse a source's licence that is nearly the name of one: its documents would have no known licence.
    Any other label may be one's own."""
    if parse_license(label) is not None:
        return
    names = {name.lower(): name for name in known().licenses}
    near = difflib.get_close_matches(label.lower()[:200], list(names), n=1, cutoff=0.6)
    if near and (
        sorted(near[0]) == sorted(label.lower())
        or difflib.SequenceMatcher(a=label.lower(), b=near[0]).ratio() >= _TYPO_RATIO
    ):
        raise RecipeError(
            f"{label!r} is not a known licence",
            next=f"did you mean {names[near[0]]}? A licence of your own is `LicenseRef-NAME`",
        )


def _not_a_license(entry: str, names: list[str], where: str) -> RecipeError:
    by_lower = {name.lower(): name for name in names}
    near = difflib.get_close_matches(entry.lower()[:200], list(by_lower), n=3, cutoff=0.5)
    hint = (
        "did you mean " + " or ".join(by_lower[name] for name in near) + "?"
        if near
        else "see docs/licenses.md"
    )
    return RecipeError(f"{entry[:200]!r} is not a known licence", where=where, next=hint)


def _spread(values: list[str | None], codes: np.ndarray[Any, Any]) -> Any:
    """A dictionary column: the value of each code, equal values under one code."""
    distinct = pa.array(values, pa.string()).dictionary_encode()
    return pa.DictionaryArray.from_arrays(distinct.indices.take(pa.array(codes)), distinct.dictionary)


WHOLE = "What this corpus is made of, by licence and by source."
_UNKNOWN = "Unknown"
_UNKNOWN_NOTE = (
    "No licence is known for these documents. Whoever passes them on should find out first: without a "
    "licence, all rights are reserved."
)
_CC_NOTES = [
    ("-NC", "non-commercial use only"),
    ("-ND", "no derivatives may be shared"),
    ("-SA", "ShareAlike: adaptations under the same licence"),
]
_SHARE_ALIKE = ("ODbL-", "GFDL-", "CDLA-Sharing-", "CC-SA-")
_COPYLEFT = ("GPL-", "AGPL-", "LGPL-", "MPL-", "EPL-", "EUPL-", "CDDL-", "OSL-", "SSPL-")
# Of the SPDX list, beside those of Creative Commons: what says who may use it, or for what.
_NON_COMMERCIAL = ("PolyForm-Noncommercial-", "NCGL-UK-")
_RESTRICTED = (
    *("BUSL-", "Elastic-", "PolyForm-", "Hippocratic-", "Aladdin", "C-UDA-"),
    "BSD-3-Clause-No-Military-License",
)
_FREE = ("CC0-", "PDDL-", "Unlicense", "0BSD", "CC-PD", "WTFPL", "LicenseRef-Public-Domain", "MIT-0")


class LicenseTotals(NamedTuple):
    """What one source has under one licence. `license` is canonical, or None where it is not known."""

    source: str
    license: str | None
    documents: int
    amounts: Mapping[str, int]  # by the heading of their column: characters, tokens, tokens in a build
    urls: Sequence[str] = ()  # where the source comes from


def attribution(rows: Iterable[LicenseTotals], holds: str = WHOLE, left_out: Sequence[str] = ()) -> str:
    """`left_out` are sources of which nothing is here: they are named, and asked nothing for."""
    by_license: dict[str | None, dict[str, LicenseTotals]] = {}
    for row in rows:
        sources = by_license.setdefault(row.license, {})
        sources[row.source] = _added([sources[row.source], row] if row.source in sources else [row])
    order = sorted(by_license, key=lambda name: (name is None, (name or "").lower(), name or ""))
    parts = ["# Attribution\n", f"{holds}\n"]
    if left_out:
        parts.append(f"Nothing is from {', '.join(map(_cell, left_out))}.\n")
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
    """Of one licence: the legal code for Creative Commons, the page of the SPDX list for the rest of it."""
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
    spdx = spdx.removesuffix("+")
    plain = spdx.removeprefix("LicenseRef-")
    if spdx.startswith(_FREE):
        return "no attribution required"
    if plain.startswith("CC-BY"):
        return "; ".join(["attribution required", *(note for mark, note in _CC_NOTES if mark in plain)])
    if plain.startswith(_SHARE_ALIKE):
        return "attribution required; ShareAlike: adaptations under the same licence"
    if plain.startswith(_COPYLEFT):
        return "keep copyright and licence notices; copyleft: derived works under the same licence"
    if plain.startswith(_NON_COMMERCIAL):
        return "keep copyright and licence notices; non-commercial use only"
    if plain.startswith(_RESTRICTED):
        return "keep copyright and licence notices; restricted use: read its terms"
    if spdx in known().licenses or spdx == "LicenseRef-BSD" or spdx == "LicenseRef-Apache":
        return "keep copyright and licence notices"
    return "read its terms"


def _section(name: str | None, sources: dict[str, LicenseTotals]) -> str:
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


def _table(first: str, rows: dict[str, LicenseTotals]) -> str:
    heads = list(dict.fromkeys(head for total in rows.values() for head in total.amounts))
    lines = ["| " + " | ".join([first, "documents", *heads]) + " |", "| --- |" + " ---: |" * (len(heads) + 1)]
    for name, total in rows.items():
        amounts = [f"{total.amounts[head]:,}" if head in total.amounts else "" for head in heads]
        lines.append("| " + " | ".join([_cell(name), f"{total.documents:,}", *amounts]) + " |")
    return "\n".join([*lines, ""])


def _added(totals: Sequence[LicenseTotals]) -> LicenseTotals:
    counted = [head for head in totals[0].amounts if all(head in total.amounts for total in totals)]
    return totals[0]._replace(  # a part of a sum is no sum
        documents=sum(total.documents for total in totals),
        amounts={head: sum(total.amounts[head] for total in totals) for head in counted},
        urls=sorted({url for total in totals for url in total.urls}),
    )


def _cell(text: str) -> str:
    """Names of sources are the user's: nothing in them may end a cell or a line."""
    return " ".join(text.replace("\\", "\\\\").replace("|", "\\|").split())
