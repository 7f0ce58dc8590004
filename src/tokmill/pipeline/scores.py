"""Scores of a recipe as plans: models found, hashed and opened once, before anything is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tokmill.artifacts.packages import installed_digest
from tokmill.artifacts.plugins import Plugin, find_plugin
from tokmill.errors import InputChanged, InputError, RecipeError
from tokmill.recipe import Recipe
from tokmill.recipe.scores import Score
from tokmill.scores import ScoreKind, find_kind
from tokmill.scores.labels import POSITIVE
from tokmill.scores.linear import LinearOptions
from tokmill.scores.scoring import HOOK, ScorePlan, WindowPlan, model_sha256, open_scorer
from tokmill.scores.transformerfile import model_digest


class ModelFile(msgspec.Struct, frozen=True):
    path: Path
    sha256: str


def plan_score(score: Score, base: Path) -> tuple[ScorePlan, list[ModelFile]]:
    """What is computed, and where its files are. A file that is not the pinned one is refused."""
    asked = score.windows
    windows = WindowPlan(asked.words, asked.aggregate, float(asked.bound or 0)) if asked else None
    if score.hook is not None:
        plugin = find_plugin("measures", score.hook, base, f"scores.{score.name}.hook")
        options = {"device": score.device} if score.device is not None else {}
        return ScorePlan(name=score.name, kind=HOOK, options=options, plugin=plugin), []
    if score.train is not None:  # its model is a file of the run, known when its step is done
        learned = LinearOptions(label=score.train.label or POSITIVE, output=score.train.output)
        plan = ScorePlan(
            name=score.name,
            kind="linear",
            options=msgspec.to_builtins(learned),
            windows=windows,
            step=f"score/{score.name}",
        )
        return plan, []
    key = score.plugin or score.kind
    kind, plugin_of_kind = find_kind(key), None
    if score.plugin is not None:
        plugin_of_kind = Plugin("scores", key, installed_digest("scores", key))
    section: dict[str, Any] = (
        dict(score.options) if score.plugin else getattr(score, score.kind).model_dump(mode="json")
    )
    if kind.list_files is not None:
        files, names = _directory(section, kind.list_files, score, base)
        section["names"] = names
    else:
        named = [name for name in kind.files if section.get(name) is not None]
        files = [_model_file(section, name, score, base) for name in named]
    return (
        ScorePlan(
            name=score.name,
            kind=key,
            options=msgspec.to_builtins(_options(kind, section, score)),
            files=tuple(file.sha256 for file in files),
            windows=windows,
            plugin=plugin_of_kind,
        ),
        files,
    )


def plan_scores(scores: Iterable[Score], base: Path) -> tuple[tuple[ScorePlan, ...], list[ModelFile]]:
    planned = [plan_score(score, base) for score in scores]
    files = {file.sha256: file for _, own in planned for file in own}
    return tuple(plan for plan, _ in planned), list(files.values())


def check_score(score: Score, base: Path) -> None:
    """The model can be opened, and has what is asked of it."""
    plan, files = plan_score(score, base)
    if plan.kind != HOOK:
        open_scorer(plan, {file.sha256: file.path for file in files})


def is_stored(score: Score) -> bool:
    """Is it computed in a step of its own? Models of the run are not, and hooks if they want a device."""
    if score.hook is not None or score.train is not None:
        return score.device is not None
    return find_kind(score.plugin or score.kind).is_stored


def has_stored_scores(recipe: Recipe) -> bool:
    return any(map(is_stored, recipe.scores))


def _directory(
    section: dict[str, Any], list_files: Callable[[Path], list[str]], score: Score, base: Path
) -> tuple[list[ModelFile], list[str]]:
    """A model of several files, pinned by the digest of them all."""
    path = base / Path(str(section["path"])).expanduser()
    names = list_files(path)
    files = [_model_file({"path": str(path / name)}, "path", score, base) for name in names]
    digest, pinned = model_digest(names, [file.sha256 for file in files]), section.get("sha256")
    if pinned is not None and pinned != digest:
        raise InputChanged(
            f"the files of the model have the sha256 {digest} together, and the recipe pins {pinned}",
            where=str(path),
            next="fetch the pinned model, or pin this one",
        )
    return files, names


def _options(kind: ScoreKind, section: dict[str, Any], score: Score) -> Any:
    pins = {name for file in kind.files for name in (file, _pin(file))}
    try:
        return msgspec.convert(
            {key: value for key, value in section.items() if key not in pins}, kind.options
        )
    except msgspec.ValidationError as error:
        raise RecipeError(
            f"options that {kind.key} does not take: {error}",
            where=f"scores.{score.name}",
            next="correct them",
        ) from None


def _pin(key: str) -> str:
    return "sha256" if key == "path" else f"{key}_sha256"


def _model_file(section: dict[str, Any], key: str, score: Score, base: Path) -> ModelFile:
    path = base / Path(str(section[key])).expanduser()
    if not path.is_file():
        raise InputError(
            "no such model", where=str(path), next=f"the score {score.name} names it, relative to the recipe"
        )
    sha256 = model_sha256(path)
    pinned = section.get(_pin(key))
    if pinned is not None and pinned != sha256:
        raise InputChanged(
            f"the model has the sha256 {sha256}, and the recipe pins {pinned}",
            where=str(path),
            next="fetch the pinned file, or pin this one",
        )
    return ModelFile(path, sha256)


def model_files(scores: Sequence[Score], base: Path) -> dict[str, tuple[Path, str]]:
    """By the name of the score, for the inputs of steps and tasks that clean."""
    return _files_of([score for score in scores if not is_stored(score)], base)


def stored_model_files(scores: Sequence[Score], base: Path) -> dict[str, tuple[Path, str]]:
    """Likewise, for those that compute what is stored."""
    return _files_of([score for score in scores if is_stored(score)], base)


def _files_of(scores: Iterable[Score], base: Path) -> dict[str, tuple[Path, str]]:
    return {
        f"{score.name} {number}": (file.path, file.sha256)
        for score in scores
        for number, file in enumerate(plan_score(score, base)[1])
    }
