"""What cleaning makes of a document: its text, and the first fault in a fixed order (docs/measures.md).

    text ─ normalize ─ empty? ─ licence ─ URL ─ robots ─ language ─ line edits ─ rules ─> verdict

Of a document that is empty, has no licence to be here, or comes from a page that is not wanted, nothing
else is looked at.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from plain.measures import ascii_lower, measure
from plain.reading import Document, Json
from plain.urls import is_blocked, normalize_url
from plain.words import JAVASCRIPT, POLICY_PHRASES

# Rules that are counts are called too_few_, too_many_ by default; others are too low, or too high.
COUNTS = frozenset(
    name
    for name, value in measure("One two. Three\n").items()
    if isinstance(value, int) and not name.endswith(("_share", "_ratio")) and name != "longest_line"
)


@dataclass(frozen=True)
class Verdict:
    """`reason` is None for a document that is kept; `verdict` is drop or quarantine."""

    text: str
    reason: str | None = None
    value: float | None = None
    threshold: float | None = None
    verdict: str = "drop"
    license: str | None = None


@dataclass(frozen=True)
class Rule:
    measure: str
    bound: str
    threshold: float
    reason: str
    is_after: bool  # judges what the line edits of a pack left


@dataclass(frozen=True)
class Rules:
    rules: tuple[Rule, ...]
    line_edits: Json | None


def settings_of(recipe: Json, source: Json, key: str) -> Any:
    """What a source says itself goes before its domain, and that before the recipe."""
    for own in (source.get("clean"), recipe.get("domains", {}).get(source.get("domain", "default"))):
        if own and own.get(key) is not None:
            return own[key]
    return recipe.get(key)


def clean(document: Document, recipe: Json, source: Json, packs: Mapping[str, Json]) -> Verdict:
    text = normalize(document.text, settings_of(recipe, source, "normalize") or {})
    if not text.split():
        return Verdict(text, "empty", 0, 1)
    spdx = canonical_license(document.license_tag)
    policy = settings_of(recipe, source, "license")
    if policy is not None and (fault := judge_license(spdx, policy)):
        word = (
            "quarantine" if fault == "license_unknown" and policy.get("unknown") == "quarantine" else "drop"
        )
        return Verdict(text, fault, verdict=word, license=spdx)
    page = judge_page(document, settings_of(recipe, source, "urls"), settings_of(recipe, source, "robots"))
    if page is not None:
        return Verdict(text, page, license=spdx)
    language = settings_of(recipe, source, "language")
    if language and language.get("method") == "field" and language.get("keep"):
        said = (document.meta or {}).get((source.get("fields") or {}).get("language") or "language")
        if said not in language["keep"]:
            return Verdict(text, "other_language", license=spdx)
    rules = compile_rules(settings_of(recipe, source, "filters") or [], packs)
    edited = edit_lines(text, rules.line_edits) if rules.line_edits is not None else text
    before, after = measure(text), measure(edited)
    for rule in rules.rules:
        value = (after if rule.is_after else before)[rule.measure]
        if value < rule.threshold if rule.bound == "min" else value > rule.threshold:
            return Verdict(edited, rule.reason, value, rule.threshold, license=spdx)
    if not edited.split():
        return Verdict(edited, "empty", 0, 1, license=spdx)
    return Verdict(edited, license=spdx)


# --- text ---


def normalize(text: str, asked: Json) -> str:
    """NULs, then line ends, then the form of Unicode."""
    if asked.get("nul", "strip") == "strip":
        text = text.replace("\0", "")
    if asked.get("newlines", "keep") == "lf":
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    form = asked.get("unicode", "none")
    return text if form == "none" else unicodedata.normalize(form, text)


def edit_lines(text: str, asked: Json) -> str:
    """The line edits of C4: what is left of each line, and which lines are left (docs/measures.md)."""
    kept = []
    for line in map(str.strip, text.split("\n")):
        words = line.split()
        if max(map(len, words), default=0) > asked["max_word_chars"]:
            continue
        if asked["citations"]:
            line, citations = re.subn(r"\[[0-9]*\]|\[edit\]|\[citation needed\]", "", line)
            line = line.strip() if citations else line
        ends_well = line.endswith((".", "?", "!", '"', "'")) and not line.endswith("...")
        says = ascii_lower(line)
        if (
            line
            and (ends_well or not asked["terminal_punctuation"])
            and len(words) >= asked["min_words"]
            and not (asked["javascript"] and any(phrase in says for phrase in JAVASCRIPT))
            and not (asked["policy_phrases"] and any(phrase in says for phrase in POLICY_PHRASES))
        ):
            kept.append(line)
    return "\n".join(kept)


# --- rules ---


def compile_rules(filters: list[Any], packs: Mapping[str, Json]) -> Rules:
    """Packs and rules of a recipe, in order. `packs` are the files that say what a pack is, by name."""
    rules: list[Rule] = []
    edits: Json | None = None
    for one in filters:
        one = {"pack": one} if isinstance(one, str) else one
        if one.get("pack") is None:
            rules += _own_rules(one, edits is not None)
            continue
        for part in parts_of(packs[one["pack"]], packs):
            edits = part.get("line_edits") or edits
            for rule in part.get("rules", []):
                bound = "min" if rule.get("min") is not None else "max"
                threshold = one.get("set", {}).get(rule["name"], rule[bound])
                rules.append(
                    Rule(rule["measure"], bound, float(threshold), rule["reason"], edits is not None)
                )
    return Rules(tuple(rules), edits)


def parts_of(pack: Json, packs: Mapping[str, Json]) -> list[Json]:
    """The packs with rules that a pack stands for, with the edits that it asks of them."""
    if not pack.get("packs"):
        return [pack]
    found = []
    for part in pack["packs"]:
        whole = dict(packs[part["pack"]])
        if part.get("line_edits") and whole.get("line_edits"):
            whole["line_edits"] = {**whole["line_edits"], **part["line_edits"]}
        found.append(whole)
    return found


def _own_rules(rule: Json, is_after: bool) -> list[Rule]:
    name = rule["measure"]
    words = {"min": ("few", "low"), "max": ("many", "high")}
    return [
        Rule(
            name,
            bound,
            float(Fraction(str(rule[bound]))),
            rule.get("reason") or (f"too_{count}_{name}" if name in COUNTS else f"{name}_too_{size}"),
            is_after,
        )
        for bound, (count, size) in words.items()
        if rule.get(bound) is not None
    ]


# --- licences ---

# Of docs/licenses.md: spellings that corpora here use. A tag that is none of these is unknown.
SPELLINGS = {
    "mit": "MIT",
    "apache-2.0": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache2": "Apache-2.0",
    "cc-by-4.0": "CC-BY-4.0",
    "cc by 4.0": "CC-BY-4.0",
    "cc-by-sa-3.0": "CC-BY-SA-3.0",
    "cc-by-nc-4.0": "CC-BY-NC-4.0",
    "cc-by": "LicenseRef-CC-BY",
    "cc0-1.0": "CC0-1.0",
    "gpl-3.0": "GPL-3.0-only",
    "gpl-3.0+": "GPL-3.0-or-later",
    "psf-2.0": "PSF-2.0",
    "bsd": "LicenseRef-BSD",
    "public domain": "LicenseRef-Public-Domain",
}


def canonical_license(tag: str | None) -> str | None:
    """Operands are flattened, sorted and without repetition; where one part is unknown, all of it is."""
    if tag is None:
        return None
    if (either := re.split(r"\s+OR\s+", tag.strip())) != [tag.strip()]:
        return _joined([canonical_license(part) for part in either], " OR ")
    if (both := re.split(r"\s+AND\s+", tag.strip().strip("()"))) != [tag.strip().strip("()")]:
        return _joined([canonical_license(part) for part in both], " AND ")
    return SPELLINGS.get(tag.strip().strip("()").lower())


def _joined(parts: list[str | None], word: str) -> str | None:
    known = [part for part in parts if part is not None]
    return word.join(sorted(set(known))) if len(known) == len(parts) else None


def judge_license(spdx: str | None, policy: Json) -> str | None:
    """The reason for a fault, or None: OR passes with one part, AND with all."""
    if spdx is None:
        return None if policy.get("unknown", "drop") == "keep" else "license_unknown"
    faults = []
    for choice in spdx.split(" OR "):
        found = [_judge_one(one, policy) for one in choice.split(" AND ")]
        faults.append(
            "license_denied" if "license_denied" in found else next((f for f in found if f is not None), None)
        )
    if None in faults:
        return None
    return "license_denied" if "license_denied" in faults else faults[0]


def _judge_one(spdx: str, policy: Json) -> str | None:
    if any(_covers(entry, spdx) for entry in policy.get("deny", [])):
        return "license_denied"
    allow = policy.get("allow", [])
    return None if not allow or any(_covers(entry, spdx) for entry in allow) else "license_not_allowed"


def _covers(entry: str, spdx: str) -> bool:
    """`CC-BY-*`: the star stands for a version, or for none."""
    if not entry.endswith("-*"):
        return canonical_license(entry) == spdx
    family = entry.removesuffix("-*")
    return (
        spdx == f"LicenseRef-{family}"
        or re.fullmatch(re.escape(family) + r"-\d[\w.]*(-([A-Z]{2}|only|or-later))?", spdx) is not None
    )


# --- pages (docs/urls.md) ---


def judge_page(document: Document, urls: Json | None, robots: Json | None) -> str | None:
    meta = document.meta or {}
    if urls is not None:
        url = normalize_url(str(meta.get(urls.get("field", "url")) or ""))
        block = urls.get("block", {})
        if url is None and urls.get("unknown", "keep") == "drop":
            return "no_url"
        if url is not None:
            domain, _ = is_blocked(url, set(block.get("domains", [])), set())
            if domain is not None:
                return "blocked_domain"
            if any(_has_word(url, word) for word in block.get("words", [])):
                return "blocked_word"
    if robots is not None:
        said = {
            word.rpartition(":")[2].strip().lower()
            for word in str(meta.get(robots.get("field", "robots")) or "").split(",")
        }
        said |= {"noindex", "nofollow"} if "none" in said else set()
        for word in robots["drop"]:
            if word in said:
                return f"robots_{word}"
    return None


def _has_word(url: str, word: str) -> bool:
    """A word between characters that are no letters or digits; a star: also as a part of a longer one."""
    start = "" if word.startswith("*") else r"(?<![a-z0-9])"
    end = "" if word.endswith("*") else r"(?![a-z0-9])"
    return re.search(start + re.escape(word.strip("*").lower()) + end, url.lower()) is not None
