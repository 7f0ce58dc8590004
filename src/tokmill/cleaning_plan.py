"""How each source is cleaned: what it says of itself, else its domain, else the recipe.

    sources[].clean  >  domains.<domain>  >  the recipe's own sections

Packs and languages are of prose: a source of the domain `code` is judged by them only where its own name, or its
domain's, asks for it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokmill.clean.detectors import known_languages, model_sha256, score_for_recall
from tokmill.clean.examine import examine_config
from tokmill.clean.hooks import hook_path
from tokmill.clean.language_policy import LanguagePlan, primary_code
from tokmill.clean.license_policy import make_policy
from tokmill.clean.rules import settle_sieve
from tokmill.errors import RecipeError
from tokmill.manifest import Json
from tokmill.recipe import Language, License, Recipe, Source

CODE = "code"


def own_section(section: str, recipe: Recipe, source: Source) -> Any:
    """What the source says of itself, or else the domain; None where neither says anything."""
    for cleaning in (source.clean, recipe.domains.get(source.domain)):
        found = getattr(cleaning, section, None)
        if found is not None:
            return found
    return None


def check_cleaning(recipe: Recipe, base: Path) -> None:
    """Packs, measures, licences and hooks that a recipe names are there: all that can be known without its files."""
    for source in recipe.sources:
        settle_cleaning(recipe, source, base)


def settle_cleaning(recipe: Recipe, source: Source, base: Path) -> tuple[Json, dict[str, str]]:
    """The config of a source's cleaning, and where its hooks lie."""
    own_filters = own_section("filters", recipe, source)
    filters = recipe.filters if own_filters is None else own_filters
    # packs and languages are of prose; code is judged by them only where its own name asks for it
    is_code = source.domain == CODE
    sieve = settle_sieve(filters, base, skip_packs=own_filters is None and is_code)
    language: Language | None = own_section("language", recipe, source) or (
        None if is_code else recipe.language
    )
    redact = own_section("redact", recipe, source)
    config = examine_config(
        source.name,
        own_section("normalize", recipe, source) or recipe.normalize,
        _settled_license(own_section("license", recipe, source) or recipe.license),
        _language_plan(language, source) if language else None,
        sieve,
        recipe.redact if redact is None else redact,
    )
    return config, {hook: str(hook_path(hook, base)) for hook in sieve.hooks}


def _settled_license(license: License | None) -> License | None:
    """In canonical spelling, so that another spelling of the same licence is no change."""
    if license is None:
        return None
    policy = make_policy(license.allow, license.deny, license.unknown)
    return License(allow=list(policy.allow), deny=list(policy.deny), unknown=policy.unknown)


def _language_plan(language: Language, source: Source) -> LanguagePlan:
    asked = language.model_dump(mode="json")
    if language.method == "detect":
        _refuse_unknown_codes(language)
        if language.recall is not None:
            del asked["recall"]
            asked["min_score"] = str(score_for_recall(language.detector, language.recall))
        return LanguagePlan(asked, "detect", model=model_sha256(language.detector))
    key = source.fields.language
    return LanguagePlan(asked, "field" if language.method == "field" and key else "none", key)


def _refuse_unknown_codes(language: Language) -> None:
    """A code that the detector never answers would keep nothing, and say nothing."""
    known = known_languages(language.detector) if language.keep else frozenset()
    strange = [code for code in language.keep if primary_code(code) not in known]
    if strange:
        near = sorted({code for wanted in strange for code in known if code[:2] == primary_code(wanted)[:2]})
        raise RecipeError(
            f"{language.detector} knows no language {', '.join(map(repr, strange))}",
            where="language.keep",
            next=f"its codes are ISO 639-1 where there is one{', such as ' + ', '.join(near) if near else ''}",
        )
