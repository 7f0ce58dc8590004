"""Why steps are made again, in the words of the recipe:
what was changed in it, and which steps that concerns.

    former recipe, recipe ─ key by key ─> `domains.web.filters[2].min` changed 50 → 100
    a step ─ the sections that it is made from ─> the changes that concern it

The former recipe is in the manifest of the finished run.
Where there is none, a step's own settings are compared.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tokmill.artifacts.directory import open_artifact
from tokmill.artifacts.manifest import Change, Json, compared
from tokmill.artifacts.step import Step
from tokmill.errors import TokmillError

_FOLLOWS = "its text follows the mixture by `tokenizer.train.weights: mixture`"
_CLEANING = (
    "normalize",
    "transforms",
    "license",
    "urls",
    "robots",
    "language",
    "scores",
    "filters",
    "redact",
)


def recipe_changes(out: Path, recipe: Json) -> list[Change]:
    """What differs from the recipe of the finished run in `out`; nothing where there is none."""
    try:
        run = open_artifact(out)
    except TokmillError:
        return []
    if run is None or run.manifest.kind != "run":
        return []
    return list(compared(run.manifest.config, json.loads(json.dumps(recipe))))


def reasons_of(out: Path, recipe: Json) -> Callable[[Step], list[str]]:
    """Of a step, the changes that it is made from."""
    changes = recipe_changes(out, recipe)

    def reasons(step: Step) -> list[str]:
        mine = [change for change in changes if _concerns(step, change.path, recipe)]
        follows = step.kind == "tokenizer" and any(change.path[0] == "mixture" for change in mine)
        return [change.said for change in mine] + ([_FOLLOWS] if follows else [])

    return reasons


def _stages(recipe: Json) -> list[str]:
    return [stage["name"] for stage in (recipe["mixture"] or {}).get("stages", ())]


def _concerns(step: Step, path: tuple[str, ...], recipe: Json) -> bool:
    section, name = path[0], step.name.partition("/")[2]
    own = path[:2] == ("sources", name)
    if step.kind == "ingest":
        return section in ("seed", "shards") or (own and path[2:3] != ("clean",))
    if step.kind == "inference":
        domain = next((source["domain"] for source in recipe["sources"] if source["name"] == name), None)
        return section in ("scores", "normalize") or own or path[:2] == ("domains", domain)
    if step.kind == "clean":
        domain = next((source["domain"] for source in recipe["sources"] if source["name"] == name), None)
        return section in _CLEANING or own or path[:2] == ("domains", domain)
    if step.kind in ("score", "examples"):
        return section in ("seed", "split", "shards") or path[:2] == ("scores", name.partition("-")[0])
    if step.kind == "scores":
        return section in ("scores", "filters", "domains", "sources")
    if step.kind == "build":
        names = [name, *(name.removesuffix(f"-{stage}") for stage in _stages(recipe))]
        is_staged = path[:2] == ("mixture", "stages")
        return section == "pack" or is_staged or (section == "builds" and path[1:2] in [(n,) for n in names])
    if step.kind == "texts":
        return section in ("name", "shards") or path[:2] == ("builds", name)
    if step.kind == "curriculum":
        return section in ("mixture", "builds", "pack")
    if step.kind == "mixture":
        return section in ("mixture", "seed", "pack") or path[2:3] == ("domain",)
    if step.kind == "tokenizer" and section in ("mixture", "sources"):
        train = (recipe["tokenizer"] or {}).get("train") or {}
        return train.get("weights") == "mixture"
    return section in (step.kind, "seed")
