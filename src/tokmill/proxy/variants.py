"""Runs of a recipe that differ in one thing: without one source, without one rule, or with other weights.

    recipe ─ run ─> runs/whole ─ linked ─> runs/without-web ─ run with `set` ─> what has changed is made again

A variant is the same recipe with keys set, as `tokmill run --set` sets them; its manifest has them. It begins
as a copy of the whole run (hard links: files are replaced and never written over), so that ingest, and all
steps that the change does not touch, are up to date. Where the recipe trains a tokenizer, variants without a
source or a rule use the one of the whole run: what is compared is data.

All variants are read before the first run: a recipe that cannot be changed so is told at once.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import MANIFEST
from tokmill.artifacts.progress import Progress
from tokmill.artifacts.runs import link_run, open_run
from tokmill.errors import InputError, RecipeError
from tokmill.pipeline.run import run
from tokmill.pipeline.tokens import resolved_weights
from tokmill.proxy.omissions import without_rules, without_sources
from tokmill.proxy.targets import Target, choose_build, find_build, open_target
from tokmill.recipe import Mixture, Recipe
from tokmill.recipe.file import load_recipe, read_recipe

Parts = Literal["sources", "rules"]
WHOLE = "whole"

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
    asked = {name.replace("-", " ", 1): {**one, **_fixed_tokenizer(recipe)} for name, one in changes.items()}
    refuse_variants(path, build, asked)
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
    domains = list(dict.fromkeys(source.domain for source in recipe.sources))
    _refuse_one(_own_weights(recipe) or dict.fromkeys(domains, 1.0), path)
    _refuse_stage(recipe, choose_build(_build_names(recipe), build, str(path)), path)
    refuse_variants(path, build, {"with other weights": {"mixture.weights": dict.fromkeys(domains, "1")}})
    run(path, runs / WHOLE, workers=workers, progress=progress)
    present = present_weights(recipe, runs / WHOLE)
    _refuse_one(present, path)
    others = {domain: "0" for domain in domains if domain not in present}  # a weight for every domain
    weights = {WHOLE: present}
    for number, drawn in enumerate(draw_weights(present, count, spread), 1):
        name = f"mixture-{number:03d}"
        weights[name] = drawn
        texts = {domain: f"{weight:.{_PLACES}f}" for domain, weight in drawn.items()}
        _run_variant(path, runs, name, {"mixture.weights": {**texts, **others}}, workers, progress)
    return Drawn([_opened(runs / name, name, build) for name in weights], weights, present)


def _refuse_one(weights: Mapping[str, float], path: Path) -> None:
    if len(weights) < 2:
        raise InputError(
            "has one domain, whose weight is 1", where=str(path), next="give a recipe with several domains"
        )


def _refuse_stage(recipe: Recipe, chosen: str, path: Path) -> None:
    """Whose own weights stand before those that are drawn."""
    for stage in recipe.mixture.stages if recipe.mixture is not None else []:
        if stage.weights and chosen in {f"{build.name}-{stage.name}" for build in recipe.builds}:
            raise InputError(
                f"the stage {stage.name} has weights of its own, which other `mixture.weights` do not change",
                where=f"{path}: {chosen}",
                next="set them as `mixture.weights`, not in the stage; or compare the build of another stage",
            )


def refuse_variants(path: Path, build: str | None, changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Unless the recipe and each of its variants can be run, with the build that is compared."""
    choose_build(_build_names(load_recipe(path)), build, str(path))
    for name, settings in changes.items():
        written = read_recipe(path, settings)
        mistakes = [f"{mistake.place.removeprefix('--set ')}: {mistake.what}" for mistake in written.mistakes]
        if not mistakes:
            mistakes = list(_weight_faults(written.recipe))
        if not mistakes and not _build_names(written.recipe, build):
            mistakes = ["builds: the one that is compared has nothing left"]
        if mistakes:
            raise RecipeError(
                f"cannot be run {name}: {'; '.join(mistakes)}",
                where=str(path),
                next="change what needs it; or make the runs yourself, and compare those: "
                "`tokmill ablate A B`",
            )


def _build_names(recipe: Recipe, only: str | None = None) -> list[str]:
    """Of tokens, as they are called in a run."""
    stages = [f"-{stage.name}" for stage in recipe.mixture.stages] if recipe.mixture is not None else []
    names = [build.name + stage for build in recipe.builds if not build.is_text for stage in stages or [""]]
    return [name for name in names if only in (None, name)]


def _weight_faults(recipe: Recipe) -> Iterator[str]:
    mixture = recipe.mixture
    if mixture is None:
        return
    places: list[tuple[str, Mixture]] = [("", mixture)]
    places += [
        (f"stage {stage.name}: ", mixture.of_stage(stage, stage.length or recipe.pack.length))
        for stage in mixture.stages
    ]
    for place, one in places:
        try:
            resolved_weights(recipe, one)
        except RecipeError as error:
            yield f"{place}{error.where}: {error.what}"


def _opened(directory: Path, name: str, build: str | None) -> Target:
    return open_target(name, find_build(directory, build))


def _run_variant(
    path: Path, runs: Path, name: str, settings: Mapping[str, Any], workers: int | None, progress: Progress
) -> None:
    if not (runs / name / MANIFEST).exists():
        link_run(runs / WHOLE, runs / name)
    run(path, runs / name, set=settings, workers=workers, progress=progress)


def _trained_tokenizer(recipe: Recipe, path: Path, whole: Path) -> dict[str, Any]:
    """That of the whole run, for its variants, where the recipe trains one."""
    if not _fixed_tokenizer(recipe):
        return {}
    artifact = open_run(whole)["tokenizer"]
    (file, *_) = [artifact.path(entry) for entry in artifact.manifest.entries("tokenizer")]
    return _fixed_tokenizer(recipe, os.path.relpath(file.absolute(), path.absolute().parent))


def _fixed_tokenizer(recipe: Recipe, file: str = "tokenizer.json") -> dict[str, Any]:
    """Its section with a file instead of training."""
    tokenizer = recipe.tokenizer
    if tokenizer is None or tokenizer.train is None:
        return {}
    return {"tokenizer": {**_untrained(tokenizer.model_dump(mode="json", exclude_unset=True)), "path": file}}


def _untrained(section: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key != "train"}


def present_weights(recipe: Recipe, whole: Path) -> dict[str, float]:
    """Of the recipe; where it has none, the shares that domains have of what the whole run trains on."""
    raw = _own_weights(recipe) or _shares_of(open_run(whole))
    total = sum(raw.values())
    return {name: raw[name] / total for name in sorted(raw) if raw[name] > 0}


def _own_weights(recipe: Recipe) -> dict[str, float]:
    weights = recipe.mixture.weights if recipe.mixture is not None else {}
    return {name: float(weight) for name, weight in weights.items() if weight > 0}


def _shares_of(run: Mapping[str, Artifact]) -> dict[str, float]:
    """Tokens of a mixture, where there is one: it may repeat documents, and leave some out."""
    raw: dict[str, float] = {}
    if "mixture" in run:
        mixture = run["mixture"].manifest
        for source, facts in mixture.facts["splits"]["train"]["sources"].items():
            domain = mixture.config["domain_of"][source]
            raw[domain] = raw.get(domain, 0.0) + facts["tokens"]
        return raw
    for entry in run["tokens"].manifest.entries("tokens"):
        split, domain, _ = entry.path.split("/", 2)
        if split == "train":
            raw[domain] = raw.get(domain, 0.0) + entry.bytes
    return raw


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
