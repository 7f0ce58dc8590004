"""Packs, licences, languages, lists, scores and the code of others: each section where it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokmill.clean.license_policy import check_label, make_policy
from tokmill.clean.rules import compile_filters
from tokmill.clean.url_policy import check_domain
from tokmill.pipeline.documents import find_transform, language_plan, refuse_idle_packs, url_lists
from tokmill.pipeline.examination.mistakes import Found
from tokmill.pipeline.scores import check_score
from tokmill.pipeline.training import check_score_training
from tokmill.recipe import Recipe
from tokmill.recipe.section import Path_


def look_at_cleaning(found: Found, recipe: Recipe, base: Path) -> None:
    """Each section where it is written: of the recipe, a domain or a source."""
    holders: list[tuple[Path_, Any]] = [((), recipe)]
    holders += [(("domains", name), own) for name, own in recipe.domains.items()]
    holders += [(("sources", index, "clean"), source.clean) for index, source in enumerate(recipe.sources)]
    for place, own in holders:
        filters = getattr(own, "filters", None) or []
        each = [
            found.holds((*place, "filters", number), compile_filters, [rule], base)
            for number, rule in enumerate(filters)
        ]
        if all(each):
            found.holds((*place, "filters"), compile_filters, filters, base)
        for number, name in enumerate(getattr(own, "transforms", None) or ()):
            found.holds((*place, "transforms", number), find_transform, name, base)
        if license := getattr(own, "license", None):
            for key in ("allow", "deny"):
                for number, entry in enumerate(getattr(license, key)):
                    found.holds((*place, "license", key, number), make_policy, [entry])
        if urls := getattr(own, "urls", None):
            for number, domain in enumerate(urls.block.domains):
                found.holds((*place, "urls", "block", "domains", number), check_domain, domain)
            found.holds((*place, "urls", "block", "lists"), url_lists, urls, base)
        if language := getattr(own, "language", None):
            found.holds((*place, "language"), language_plan, language, recipe.sources[0])
    for number, source in enumerate(recipe.sources):
        if source.license is not None:
            found.holds(("sources", number, "license"), check_label, source.license)
    for number, score in enumerate(recipe.scores):
        if score.train is not None:
            found.holds(("scores", number, "train"), check_score_training, recipe, score, base)
        else:
            found.holds(("scores", number), check_score, score, base)
    if not found.mistakes:
        found.holds(("filters",), refuse_idle_packs, recipe)
