"""The plan: a recipe as ordered steps, each with all that can change a byte of its artifact.

    ingest/<source> ─ clean/<source> ┐ (scores)
    ingest/<source> ─ clean/<source> ┴ dedup ─ split ─ tokenizer ─ tokens ─ mixture ─ build/<name> …
    documents.py ──────────────────────────┘       │   tokens.py ──────────────┴───────────────┘
                                                   └─ texts/<name> …, after the mixture where there is one
    tokens ─ stage/<first> ─ stage/<next> … ─ build/<name>-<stage> … ─ curriculum        a mixture of stages
    ingest of all, examples/<files> ─ score/<name> ─ clean of all           where a score learns: training.py

Where a recipe has scores that are stored, there is a step inference/<source> between ingest and clean.
Before a run is planned, `carry_forgotten_ids` keeps what was forgotten of sources that are gone out of those
that come. A step knows what it needs; `freshness.assess` says whether it is up to date.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from tokmill.artifacts.manifest import MANIFEST, STALE_MANIFEST
from tokmill.artifacts.step import Step
from tokmill.artifacts.tombstones import (
    FORGOTTEN_FILE,
    carry_forgotten,
    holds_forgotten,
    ids_of,
    known_forgotten,
    orphaned_ids,
    write_forgotten,
)
from tokmill.errors import RecipeError, plural
from tokmill.pipeline.documents import (
    Choose,
    Own,
    dedup_step,
    is_left_out,
    ranking_step,
    refuse_unread_fallback,
    source_steps,
)
from tokmill.pipeline.scores import has_stored_scores
from tokmill.pipeline.tokens import build_steps, narrow_builds, text_steps, tokenizer_step
from tokmill.pipeline.training import training_names, training_steps
from tokmill.recipe import Dedup, Recipe
from tokmill.stages.ingest.options import leave_out
from tokmill.stages.split.options import SplitOptions
from tokmill.stages.tokens.encoding import FimOptions
from tokmill.stages.tokens.stage import TokensExtra, TokensOptions

_LOG = logging.getLogger("tokmill.pipeline")


def plan_steps(
    recipe: Recipe, base: Path, out: Path, own: Own | None = None, choose: Choose | None = None
) -> list[Step]:
    """All steps in order. Reads the input listing and the first records; hashes files it has not seen.

    `own`: by source, which of "source" and "domain" documents keep where their records say them. `choose`:
    which of a source's files there are.
    """
    steps: list[Step] = []
    for source in recipe.sources:
        refuse_unread_fallback(recipe, source)
        if not is_left_out(recipe, source):
            steps += source_steps(recipe, source, base, out, (own or {}).get(source.name, ()), choose)
    steps = _without_forgotten(steps, recipe, out)
    documents = tuple(step.name for step in steps if step.kind != "inference")  # cleaning takes it in
    learning = [score for score in recipe.scores if score.train is not None]
    if learning:  # no document is cleaned before all models are there
        cleaning = [step for step in steps if step.kind == "clean"]
        steps = [step for step in steps if step.kind != "clean"]
        steps += [step for score in learning for step in training_steps(recipe, score, base, out)]
        steps += cleaning
    if any(score.percentile for score in recipe.scores):
        steps.append(ranking_step(recipe, out, documents))
        documents += ("scores",)
    if any(getattr(recipe.dedup, key) for key in Dedup.METHODS):
        steps.append(dedup_step(recipe.dedup, base, out, documents, own or {}))
        documents += ("dedup",)
    split: SplitOptions = msgspec.convert(recipe.split.settings(recipe.seed), SplitOptions)
    steps.append(Step("split", "split", out / "split", split, documents))
    documents += ("split",)
    if recipe.tokenizer is not None:
        steps.append(tokenizer_step(recipe, base, out, documents))
        narrow = TokensExtra(narrow_builds(recipe))
        needs = (*documents, "tokenizer")
        tokens = TokensOptions(_fim_options(recipe))
        steps.append(Step("tokens", "tokens", out / "tokens", tokens, needs, extra=narrow))
        steps += build_steps(recipe, base, out, documents)
    steps += text_steps(recipe, out, documents)
    return steps


def carry_forgotten_ids(recipe: Recipe, out: Path) -> None:
    """Bring the list of takedowns up to date before anything is read, for who has the lock of the run: what
    its file has lost is put back, and new sources leave out what was forgotten under names that the recipe
    no longer has."""
    known = known_forgotten(out)
    whole = _carried(known, recipe, out)
    if not whole.num_rows:
        return
    if not holds_forgotten(out, known):
        _LOG.warning("%s was lost, or an older one: its ids are put back from the sources", FORGOTTEN_FILE)
    elif whole.num_rows == known.num_rows:
        return
    write_forgotten(out, whole)
    gone = ", ".join(orphaned_ids(known, [source.name for source in recipe.sources]))
    for source in recipe.sources:
        count = len(ids_of(whole, source.name)) - len(ids_of(known, source.name))
        if count:
            _LOG.warning(
                "%s: %s that %s forgotten in %s, which %s no source any more, %s left out",
                source.name,
                plural(count, "id"),
                "were" if count > 1 else "was",
                gone,
                "are" if "," in gone else "is",
                "are" if count > 1 else "is",
            )


def _carried(known: Any, recipe: Recipe, out: Path) -> Any:
    names = [source.name for source in recipe.sources]
    new = [name for name in names if not _was_read(out / "ingest" / name)]
    return carry_forgotten(known, names, new)


def _was_read(ingest: Path) -> bool:
    return any((ingest / name).is_file() for name in (MANIFEST, STALE_MANIFEST))


def _without_forgotten(steps: list[Step], recipe: Recipe, out: Path) -> list[Step]:
    """As they will be with the list that `carry_forgotten_ids` writes."""
    whole = _carried(known_forgotten(out), recipe, out)
    if not whole.num_rows:
        return steps
    return [leave_out(step, whole) if step.kind == "ingest" else step for step in steps]


def _fim_options(recipe: Recipe) -> FimOptions | None:
    if recipe.fim is None:
        return None
    return FimOptions(seed=recipe.seed, **{**recipe.fim.model_dump(), "domains": tuple(recipe.fim.domains)})


def steps_until(steps: list[Step], until: str | None) -> list[Step]:
    """All steps up to and with the last one that is called `until`, or `until/…`."""
    if until is None:
        return steps
    check_until(until, [step.name for step in steps])
    chosen = steps[: 1 + max(index for index, step in enumerate(steps) if until in _words_for(step.name))]
    names_chosen = {step.name for step in chosen}
    return [
        alone(step)  # nobody asked for cleaning
        if step.kind == "ingest" and step.name.replace("ingest/", "clean/", 1) not in names_chosen
        else step
        for step in chosen
    ]


def check_until(until: str, names: Sequence[str]) -> None:
    known = dict.fromkeys(word for name in names for word in _words_for(name))
    if until not in known:
        raise RecipeError(f"no step is called {until}", where="--until", next=f"one of: {', '.join(known)}")


def _words_for(name: str) -> tuple[str, str]:
    """What a step can be called: `clean`, `clean/web`."""
    return name.partition("/")[0], name


def step_names(recipe: Recipe) -> list[str]:
    """Of `plan_steps`, without looking at a file."""
    sources = [source.name for source in recipe.sources if not is_left_out(recipe, source)]
    learning = [score for score in recipe.scores if score.train is not None]
    before = ["ingest", *(["inference"] if has_stored_scores(recipe) else [])]
    if learning:
        names = [f"{kind}/{source}" for source in sources for kind in before]
        names += [name for score in learning for name in training_names(score)]
        names += [f"clean/{source}" for source in sources]
    else:
        names = [f"{kind}/{source}" for source in sources for kind in (*before, "clean")]
    names += ["scores"] if any(score.percentile for score in recipe.scores) else []
    names += ["dedup"] if any(getattr(recipe.dedup, key) for key in Dedup.METHODS) else []
    names.append("split")
    if recipe.tokenizer is not None:
        names += ["tokenizer", "tokens"]
        builds = [build.name for build in recipe.builds if not build.is_text]
        stages = [stage.name for stage in recipe.mixture.stages] if recipe.mixture is not None else []
        if stages:
            names += [f"stage/{stage}" for stage in stages]
            names += [f"build/{build}-{stage}" for stage in stages for build in builds]
            names += ["curriculum"] if builds else []
        else:
            names += ["mixture"] if recipe.mixture is not None else []
            names += [f"build/{build}" for build in builds]
    names += [f"texts/{build.name}" for build in recipe.builds if build.is_text]
    return names


def alone(ingest: Step) -> Step:
    """Without cleaning in the same pass."""
    return replace(ingest, extra=replace(ingest.extra, follower=None))


def ready_steps(waiting: Sequence[Step], done: Container[str]) -> list[Step]:
    """Those that can be worked on: all that they need is done."""
    return [step for step in waiting if all(need in done for need in step.needs)]
