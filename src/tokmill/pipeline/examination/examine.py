"""The recipe, if nothing is wrong with it; else an error that lists all that is."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tokmill.engines.forking import Answer
from tokmill.engines.local import Resources
from tokmill.engines.slurm_jobs import require_slurm
from tokmill.engines.slurm_options import Pools, parse_slurm
from tokmill.errors import MissingExtra, RecipeError, install_hint
from tokmill.pipeline.documents import is_left_out
from tokmill.pipeline.examination.cleaning import look_at_cleaning
from tokmill.pipeline.examination.mistakes import NONE, Found, patterns_at
from tokmill.pipeline.examination.mixture import look_at_mixture
from tokmill.pipeline.examination.places import check_disk, check_writable, nothing_shared
from tokmill.pipeline.examination.sources import look_at_source
from tokmill.pipeline.examination.tokens import look_at_conversations, look_at_tokens
from tokmill.pipeline.hashing import Hashing
from tokmill.pipeline.plan import check_until, step_names
from tokmill.pipeline.references import open_references
from tokmill.recipe import Recipe
from tokmill.recipe.file import Written, refuse
from tokmill.stages.registry import FUNCTIONS, STAGES
from tokmill.storage.patterns import find_files

_PACKAGES = {"ray": "ray", "dask": "distributed"}


def examine(
    written: Written,
    base: Path,
    out: Path,
    *,
    resources: Resources | None = None,
    until: str | None = None,
    opening: Answer | None = None,
    hashing: Hashing | None = None,
    shares_disk: bool = True,
) -> Recipe:
    """The recipe, if nothing is wrong with it; else an error that lists all that is.
    Paths are relative to `base`. `opening`: a process that opens the tokenizer meanwhile. `hashing`: begins
    with the files of sources meanwhile. `shares_disk`:
    workers see the files of this machine, and `out` has the shards; otherwise they see a store alone."""
    recipe: Recipe | None = written.content
    found = Found(written)
    if recipe is not None:
        sizes = {
            source.name: NONE
            if is_left_out(recipe, source)
            else look_at_source(found, index, recipe, base, out, hashing)
            for index, source in enumerate(recipe.sources)
        }
        look_at_cleaning(found, recipe, base)
        for place, pattern in patterns_at(("dedup", "against", "files"), recipe.dedup.against):
            found.holds(place, find_files, pattern, base)
        found.holds(("dedup", "reference"), open_references, recipe.dedup, base, out)
        look_at_tokens(found, recipe, base, out, opening)
        look_at_conversations(recipe, base, out)
        look_at_mixture(found, recipe, sizes, base, out)
        if found.holds(("--out",), check_writable, out) and shares_disk:
            found.holds(("--out",), check_disk, recipe, out, sizes)
        if not shares_disk:
            nothing_shared(found, recipe)
        if until is not None and not written.mistakes:
            found.holds(("--until",), check_until, until, step_names(recipe))
    engine = resources.engine if resources is not None else "local"
    if engine in _PACKAGES and importlib.util.find_spec(_PACKAGES[engine]) is None:
        missing = f"the engine {engine} needs the package {_PACKAGES[engine]}"
        found.note(("--engine",), MissingExtra(missing, next=install_hint(engine)))
    if resources is not None and engine == "slurm":
        found.holds(("--engine",), require_slurm)
        found.holds(("--slurm",), _check_stages, parse_slurm(resources.slurm))
    if found.mistakes:
        refuse(written.where, found.mistakes)
    return written.recipe


def _check_stages(pools: Pools) -> None:
    for stage in pools.stages:
        if stage not in STAGES and stage not in FUNCTIONS:
            raise RecipeError(
                f"there is no stage {stage}", where="--slurm", next=f"one of {', '.join(sorted(STAGES))}"
            )
