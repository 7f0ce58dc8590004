"""What to set in a recipe so that it is without one of its sources, or without one of its rules.

    a source    the source, and its name wherever another section has it: fallbacks, priorities, builds,
                weights, splits; the last of a domain takes along what is said of the domain
    a rule      an item of `filters`, or all of `language` or `dedup`

What has no meaning without the source stays: a score that learns from it, say. Such a recipe is refused when
it is read, before anything is run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tokmill.recipe import Recipe

_OFF = {"language": None, "dedup": {"exact": False}}
_FIM_DOMAINS = ["code"]  # where a recipe says nothing else


def without_sources(recipe: Recipe) -> Iterator[tuple[str, dict[str, Any]]]:
    """Names of variants, each with keys and values."""
    whole = recipe.model_dump(mode="json", exclude_unset=True)
    for gone in whole["sources"]:
        left = list(_other_sources(whole["sources"], gone))
        name, domain = gone["name"], _domain(gone)
        is_last = domain not in {_domain(one) for one in left}
        settings: dict[str, Any] = {"sources": left}
        if is_last and domain in (whole.get("domains") or {}):
            settings["domains"] = _but(whole["domains"], domain)
        settings |= _dedup_without(whole.get("dedup") or {}, name)
        settings |= _split_without(whole.get("split") or {}, name)
        settings |= _fim_without(whole.get("fim"), domain) if is_last else {}
        settings |= _mixture_without(whole.get("mixture") or {}, name, domain if is_last else None)
        if any(name in (build.get("sources") or ()) for build in whole.get("builds") or ()):
            settings["builds"] = list(_builds_without(whole["builds"], name))
        yield f"without-{name}", settings


def _domain(source: dict[str, Any]) -> str:
    return str(source.get("domain", "default"))


def _but(named: dict[str, Any], name: str | None) -> dict[str, Any]:
    return {key: value for key, value in named.items() if key != name}


def _other_sources(sources: list[dict[str, Any]], gone: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A source that falls back on this one falls back on what comes after it; what this one falls back on
    still fills its limit, and no more."""
    after = gone.get("fallback")
    for one in sources:
        if one is gone:
            continue
        changed = dict(one)
        if changed.get("fallback") == gone["name"]:
            changed["fallback"] = after
        if changed["name"] == after:
            own = changed.get("limit") or {}
            changed["limit"] = {
                key: min(limit[key] for limit in (own, gone["limit"]) if limit.get(key) is not None)
                for key in sorted({*own, *gone["limit"]})
                if own.get(key) is not None or gone["limit"].get(key) is not None
            }
        yield changed


def _dedup_without(dedup: dict[str, Any], name: str) -> dict[str, Any]:
    return {
        f"dedup.{key}": [one for one in dedup[key] if one != name]
        for key in ("priority", "reference")
        if name in (dedup.get(key) or ())
    }


def _split_without(split: dict[str, Any], name: str) -> dict[str, Any]:
    values = split.get("values") or {}
    if split.get("field") != "source" or not any(name in (own or ()) for own in values.values()):
        return {}
    return {"split.values": {key: [one for one in own or () if one != name] for key, own in values.items()}}


def _fim_without(fim: dict[str, Any] | None, domain: str) -> dict[str, Any]:
    domains = (fim or {}).get("domains", _FIM_DOMAINS)
    if fim is None or domain not in domains:
        return {}
    left = [one for one in domains if one != domain]
    return {"fim.domains": left} if left else {"fim": None}


def _builds_without(builds: list[dict[str, Any]], name: str) -> Iterator[dict[str, Any]]:
    """A build of this source alone has nothing left: without `sources` it would be one of all."""
    for build in builds:
        sources = build.get("sources") or []
        left = [one for one in sources if one != name]
        if left or not sources:
            yield {**build, "sources": left} if sources else build


def _mixture_without(mixture: dict[str, Any], name: str, domain: str | None) -> dict[str, Any]:
    """Weights that are left are shares of what is left. `domain`: that nobody has any more."""
    settings = {f"mixture.{key}": own for key, own in _weights_without(mixture, name, domain).items()}
    if stages := mixture.get("stages"):
        changed = [{**stage, **_weights_without(stage, name, domain)} for stage in stages]
        if changed != stages:
            settings["mixture.stages"] = changed
    return {**settings, "mixture.normalize": True} if settings else {}


def _weights_without(section: dict[str, Any], name: str, domain: str | None) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    if domain in (section.get("weights") or {}):
        changed["weights"] = _but(section["weights"], domain)
    within = section.get("sources") or {}
    own = {key: left for key, weights in within.items() if (left := _but(weights, name))}
    return changed | ({"sources": own} if own != within else {})


def without_rules(recipe: Recipe) -> Iterator[tuple[str, dict[str, Any]]]:
    """Sections have their own names; rules that are called alike, or as a section is, are numbered."""
    whole = recipe.model_dump(mode="json", exclude_unset=True)
    filters = whole.get("filters") or []
    sections = {key: off for key, off in _OFF.items() if whole.get(key) and whole[key] != off}
    taken = set(sections)
    for at, rule in enumerate(filters):
        name = _numbered(_rule_name(rule), taken)
        taken.add(name)
        yield f"without-{name}", {"filters": [one for number, one in enumerate(filters) if number != at]}
    for section, off in sections.items():
        yield f"without-{section}", {section: off}


def _rule_name(rule: Any) -> str:
    if isinstance(rule, str):
        return rule
    return str(rule.get("pack") or rule.get("reason") or rule.get("measure"))


def _numbered(name: str, taken: set[str]) -> str:
    number, label = 1, name
    while label in taken:
        number += 1
        label = f"{name}-{number}"
    return label
