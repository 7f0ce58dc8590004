"""Filter packs as they are shipped: where their bounds come from, and every rule.

clean/packs/*.yaml ─ the comment at its top, rules, line edits ─> reference/packs.md
"""

from __future__ import annotations

from importlib.resources import files

from msgspec.structs import asdict

from tokmill.clean.measures import MEASURES
from tokmill.clean.rules import PACKS, LineOptions, Pack, load_pack
from tokmill.reference.markup import code, page, table, text

PATH = "reference/packs.md"

_EDITS = {
    "min_words": "lines of fewer words are taken out",
    "max_word_chars": "lines with a longer word are taken out",
    "javascript": "lines that say javascript are taken out",
    "policy_phrases": "lines that speak of policies or cookies are taken out",
    "terminal_punctuation": "lines that do not end in `.`, `?`, `!`, `\"` or `'` are taken out",
    "citations": "`[12]`, `[edit]` and `[citation needed]` are taken out of lines",
}


def pages() -> dict[str, str]:
    return {
        PATH: page(
            "# Filter packs",
            "",
            "A pack is a list of rules by one name: `filters: [gopher-quality]`, or with another bound "
            "`filters: [{pack: gopher-quality, set: {min_words: 30}}]`. A rule keeps a document when its "
            "[measure](../measures.md) lies within the bound, and the bound itself is inside. The first rule "
            "that a document breaks is the reason in the [ledger](ledger.md). A changed bound means a new "
            "version of the pack, which is part of every fingerprint.",
            "",
            "In the filters of the whole recipe the pack `code` judges sources of the domain `code`, and the "
            "other packs all other sources. What the filters of a source or its domain name judges it in any "
            "case.",
            *(line for name in PACKS for line in _pack(load_pack(name))),
        )
    }


def citation(name: str) -> str:
    """The comment that a pack's file begins with: what it is, and after whom."""
    lines = files("tokmill.clean").joinpath("packs", f"{name}.yaml").read_text(encoding="utf-8").split("\n")
    words = []
    for line in lines:
        if not line.startswith("#"):
            break
        words.append(line.removeprefix("#").strip())
    return " ".join(words)


def _pack(pack: Pack) -> list[str]:
    lines = ["", f"## {pack.name}", "", f"{text(citation(pack.name))} Version {pack.version}."]
    if pack.parts:
        lines += [
            "",
            "These, one after the other; each judges what the line edits of those before it left:",
            "",
        ]
        lines += [f"1. [{part.name}](#{part.name}){_differences(part)}" for part in pack.parts]
    if pack.line_edits is not None:
        lines += ["", "First it edits lines. The rules judge what is left."]
        lines += table(
            ("edit", "value", "what"),
            (
                (code(key), code(str(value).lower()), text(_EDITS[key]))
                for key, value in asdict(pack.line_edits).items()
            ),
        )
    return lines + table(
        ("rule", "keeps", "measure", "reason of a drop"),
        (
            (
                code(rule.name),
                f"≥ {rule.min:g}" if rule.min is not None else f"≤ {rule.max:g}",
                f"{code(rule.measure)}: {text(MEASURES[rule.measure].description)}",
                code(rule.reason),
            )
            for rule in pack.rules
        ),
    )


def _differences(part: Pack) -> str:
    """What a pack within a pack does otherwise than by itself."""
    alone = load_pack(part.name).line_edits or LineOptions()
    mine = part.line_edits or alone
    told = [
        f"`{key}: {str(value).lower()}`"
        for key, value in asdict(mine).items()
        if value != getattr(alone, key)
    ]
    return f", with {', '.join(told)}" if told else ""
