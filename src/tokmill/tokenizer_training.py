"""Train a tokenizer on the datasets of a mixture file, without a recipe.

    mixture.yaml ─ a recipe of its datasets ─ ingest ─ clean ─ split (nothing held out) ─ tokenizer
                 ─> <out>/spm_<vocabulary>_<model>.model or tokenizer.json, and the log

The working directory `.tokmill` inside the output makes a killed command resume, and goes when it is done. The
log says what was asked for; a tokenizer that was asked for in other words stays, unless it may be replaced.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from decimal import Decimal
from pathlib import Path

from tokmill.errors import InputError
from tokmill.finished_files import options_of, other_options
from tokmill.manifest import Json
from tokmill.mixture_file import MixtureFile, mixture_weights, read_mixture_file, to_sources
from tokmill.progress import Progress
from tokmill.provenance import hub_commits
from tokmill.recipe import Recipe
from tokmill.recipe_file import parse_recipe
from tokmill.running import run_recipe
from tokmill.stages.tokenizer import LOG
from tokmill.storage.commit import commit_bytes
from tokmill.storage.location import read_whole

_WORK = ".tokmill"
_MAX_BYTES = 1 << 30


def train_from_mixture(
    manifest: Path,
    out: Path,
    options: Json,
    *,
    eos: str,
    log_file: Path | None = None,
    seed: int | None = None,
    replace: bool = False,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Json:
    """The log, with where things are. `options` are keys of `tokenizer.train`; those that are None are left out."""
    mixture = read_mixture_file(manifest)
    recipe = _recipe(mixture, options, eos, mixture.seed if seed is None else seed)
    base = manifest.resolve().parent
    asked = options_of(recipe)
    where = log_file or out / LOG
    result = run_recipe(recipe, base, out / _WORK, workers=workers, until="tokenizer", progress=progress)
    made = result.artifacts["tokenizer"]
    (model,) = made.manifest.entries("tokenizer")
    log = json.loads(read_whole(made.directory / LOG, _MAX_BYTES))
    given, commits = {item.name: item for _, item in mixture.listed()}, hub_commits(result.artifacts)
    for told in log["datasets"]:
        item = given[told["name"]]
        told["dataset"] = item.dataset or ", ".join(item.files or [])
        told["revision"] = commits.get(told["name"], {}).get("revision")
    trained = read_whole(made.path(model), _MAX_BYTES)
    if not replace and (refusal := _refusal(out / model.path, trained, where, asked)):
        shutil.rmtree(out / _WORK)
        raise refusal
    commit_bytes(out / model.path, trained)
    log["asked"] = asked
    commit_bytes(where, json.dumps(log, indent=1, ensure_ascii=False).encode() + b"\n")
    shutil.rmtree(out / _WORK)
    return {**log, "path": str(out / model.path), "log": str(where)}


def _refusal(model: Path, trained: bytes, log: Path, asked: Json) -> InputError | None:
    """Models of other sizes and kinds have other names, and may lie beside each other; the log tells of the last."""
    if not model.is_file() or read_whole(model, _MAX_BYTES) == trained:
        return None
    before = None
    with contextlib.suppress(ValueError):
        told = json.loads(read_whole(log, _MAX_BYTES)) if log.is_file() else None
        before = told.get("asked") if isinstance(told, dict) else None
    if before == asked:  # the same options, and other texts
        before = None
    return other_options(model, before, asked)


def _recipe(mixture: MixtureFile, options: Json, eos: str, seed: int) -> Recipe:
    weights = mixture_weights(mixture)
    training = {key: value for key, value in options.items() if value is not None}
    if weights is not None:
        training["weights"] = {
            name: str(round(Decimal(weight.numerator) / weight.denominator, 20))
            for name, weight in weights.items()
        }
    content = {
        "name": "tokenizer",
        "seed": seed,
        "sources": [source.model_dump(mode="json", exclude_defaults=True) for source in to_sources(mixture)],
        "dedup": {"exact": False},
        "split": {"valid_fraction": 0},
        "tokenizer": {"train": training, "eos": eos},
    }
    # JSON is YAML: mistakes in the options are told as those of a recipe
    return parse_recipe(json.dumps(content, ensure_ascii=False).encode(), "the command line")
