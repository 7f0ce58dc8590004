"""Runs of a recipe that differ in one thing: without one source, without one rule, or with other weights.

    recipe ─ run ─> runs/whole ─ linked ─> runs/without-web ─ run with `set` ─> what has changed is made again

A variant is the same recipe with keys set, as `tokmill run --set` sets them; its manifest has them. It begins
as a copy of the whole run (hard links: files are replaced and never written over), so that ingest, and all
steps that the change does not touch, are up to date. Where the recipe trains a tokenizer, variants without a
source or a rule use the one of the whole run: what is compared is data.

Rules: every item of `filters`, and `language` and `dedup` as a whole.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from tokmill.artifacts.manifest import MANIFEST
from tokmill.artifacts.progress import Progress
from tokmill.artifacts.runs import link_run, open_run
from tokmill.errors import InputError
from tokmill.pipeline.run import run
from tokmill.proxy.targets import Target, find_build, open_target
from tokmill.recipe import Recipe
from tokmill.recipe.file import load_recipe

Parts = Literal["sources", "rules"]
WHOLE = "whole"

_OFF = {"language": None, "dedup": {"exact": False}}
_PLACES = 4  # of weights: manifests have them, and people read them


class Drawn(NamedTuple):
    targets: list[Target]
    weights: dict[str, dict[str, float]]  # by variant, by domain
    present: dict[str, float]


def run_without(
    path: Path, parts: Parts, runs: Path, build: str | None, workers: int | None, progress: Progress
) -> list[Target]:
    """The whole, and one variant for each part."""
    recipe = load_recipe(path)
    changes = dict(without_sources(recipe) if parts == "sources" else without_rules(recipe))
    if not changes or (parts == "sources" and len(changes) < 2):
        raise InputError(
            f"has {'fewer than two sources' if parts == 'sources' else 'no rule'} to leave out",
            where=str(path),
            next="give a recipe with more" if parts == "sources" else "give one with `filters`",
        )
    run(path, runs / WHOLE, workers=workers, progress=progress)
    fixed = _trained_tokenizer(recipe, path, runs / WHOLE)
    for name, settings in changes.items():
        _run_variant(path, runs, name, {**settings, **fixed}, workers, progress)
    return [_opened(runs / name, name, build) for name in (WHOLE, *changes)]


def run_grid(
    path: Path,
    count: int,
    spread: float,
    runs: Path,
    build: str | None,
    workers: int | None,
    progress: Progress,
) -> Drawn:
    """The recipe as it is, and with weights drawn around its own."""
    recipe = load_recipe(path)
    run(path, runs / WHOLE, workers=workers, progress=progress)
    present = present_weights(recipe, runs / WHOLE)
    if len(present) < 2:
        raise InputError(
            "has one domain, whose weight is 1", where=str(path), next="give a recipe with several domains"
        )
    weights = {WHOLE: present}
    for number, drawn in enumerate(draw_weights(present, count, spread), 1):
        name = f"mixture-{number:03d}"
        weights[name] = drawn
        texts = {domain: f"{weight:.{_PLACES}f}" for domain, weight in drawn.items()}
        _run_variant(path, runs, name, {"mixture.weights": texts}, workers, progress)
    return Drawn([_opened(runs / name, name, build) for name in weights], weights, present)


def _opened(directory: Path, name: str, build: str | None) -> Target:
    return open_target(name, find_build(directory, build))


def _run_variant(
    path: Path, runs: Path, name: str, settings: Mapping[str, Any], workers: int | None, progress: Progress
) -> None:
    if not (runs / name / MANIFEST).exists():
        link_run(runs / WHOLE, runs / name)
    run(path, runs / name, set=settings, workers=workers, progress=progress)


def without_sources(recipe: Recipe) -> Iterator[tuple[str, dict[str, Any]]]:
    whole = recipe.model_dump(mode="json", exclude_unset=True)
    for source in whole["sources"]:
        left = [dict(one) for one in whole["sources"] if one is not source]
        for one in left:
            if one.get("fallback") == source["name"]:
                del one["fallback"]
        settings: dict[str, Any] = {"sources": left}
        domains = {one.get("domain") for one in left}
        mixture = whole.get("mixture") or {}
        if mixture.get("weights"):
            settings["mixture.weights"] = {
                name: weight for name, weight in mixture["weights"].items() if name in domains
            }
            settings["mixture.normalize"] = True
        if mixture.get("sources"):
            own = {
                domain: {name: weight for name, weight in weights.items() if name != source["name"]}
                for domain, weights in mixture["sources"].items()
            }
            settings["mixture.sources"] = {domain: weights for domain, weights in own.items() if weights}
        yield f"without-{source['name']}", settings


def without_rules(recipe: Recipe) -> Iterator[tuple[str, dict[str, Any]]]:
    whole = recipe.model_dump(mode="json", exclude_unset=True)
    filters = whole.get("filters") or []
    seen: dict[str, int] = {}
    for at, rule in enumerate(filters):
        name = (
            rule if isinstance(rule, str) else rule.get("pack") or rule.get("reason") or rule.get("measure")
        )
        seen[str(name)] = seen.get(str(name), 0) + 1
        label = str(name) if seen[str(name)] == 1 else f"{name}-{seen[str(name)]}"
        yield f"without-{label}", {"filters": [one for number, one in enumerate(filters) if number != at]}
    for section, off in _OFF.items():
        if whole.get(section):
            yield f"without-{section}", {section: off}


def _trained_tokenizer(recipe: Recipe, path: Path, whole: Path) -> dict[str, Any]:
    """That of the whole run, for its variants, where the recipe trains one."""
    tokenizer = recipe.tokenizer
    if tokenizer is None or tokenizer.train is None:
        return {}
    artifact = open_run(whole)["tokenizer"]
    (file, *_) = [artifact.path(entry) for entry in artifact.manifest.entries("tokenizer")]
    told = tokenizer.model_dump(mode="json", exclude_unset=True)
    del told["train"]
    return {"tokenizer": {**told, "path": os.path.relpath(file.absolute(), path.absolute().parent)}}


def present_weights(recipe: Recipe, whole: Path) -> dict[str, float]:
    """Of the recipe; where it has none, the shares of tokens that the domains have."""
    if recipe.mixture is not None and recipe.mixture.weights:
        raw = {name: float(weight) for name, weight in recipe.mixture.weights.items() if weight > 0}
    else:
        raw = {}
        for entry in open_run(whole)["tokens"].manifest.entries("tokens"):
            split, domain, _ = entry.path.split("/", 2)
            if split == "train":
                raw[domain] = raw.get(domain, 0.0) + entry.bytes
    total = sum(raw.values())
    return {name: raw[name] / total for name in sorted(raw)}


def draw_weights(present: Mapping[str, float], count: int, spread: float) -> Iterator[dict[str, float]]:
    """From a Dirichlet distribution around the present ones; the same for every machine."""
    seed = hashlib.sha256(f"proxy/grid/{sorted(present.items())}/{spread}".encode()).digest()[:8]
    draw = np.random.Generator(np.random.PCG64(int.from_bytes(seed)))
    names = list(present)
    around = np.array([present[name] for name in names]) * spread * len(names)
    for _ in range(count):
        parts = np.round(draw.dirichlet(np.maximum(around, 0.1)) * 10**_PLACES)
        parts[np.argmax(parts)] += 10**_PLACES - parts.sum()
        yield {name: float(part) / 10**_PLACES for name, part in zip(names, parts, strict=True)}
