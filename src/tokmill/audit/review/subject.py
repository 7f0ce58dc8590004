"""What is under review, opened: a recipe, a run (finished or cut short), or a build, with what can be known of it.

recipe.yaml            ─> recipe
out/NAME               ─> recipe as the run wrote it down, artifacts
out/NAME/build/ROWS    ─> the same, and of the builds only this one
anywhere/              ─> a published build: its manifest and its files, no texts
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic_core import to_jsonable_python

from tokmill.artifact import Artifact, open_artifact
from tokmill.audit.report.found import Found, find_artifacts
from tokmill.errors import InputError, RecipeError, TokmillError
from tokmill.manifest import MANIFEST, Json
from tokmill.recipe import Build as RecipeBuild
from tokmill.recipe import Recipe, Section, Source, TrainingPlan
from tokmill.recipe_file import load_recipe, parse_recipe
from tokmill.run_manifest import REVIEW
from tokmill.storage.location import read_whole

Kind = Literal["run", "build", "recipe"]

# Keys that other tools have for running code that comes with a dataset. The mill has none, and refuses them.
REMOTE_CODE = ("trust_remote_code", "allow_remote_code", "remote_code")

_MAX_RECIPE_BYTES = 4 << 20


@dataclass(frozen=True)
class Build:
    """`name` as in the recipe; "." for one that was taken out of its run."""

    name: str
    artifact: Artifact

    @property
    def splits(self) -> list[str]:
        """By the files: a published build of one split has them at its top, as the split \"\"."""
        names = [entry.path.rpartition("/")[0] for entry in self.artifact.manifest.entries("index")]
        return sorted(names, key=lambda name: (name not in ("train", ""), name))


@dataclass(frozen=True)
class Subject:
    kind: Kind
    directory: Path  # that findings name their files from; of a recipe, the one it lies in
    name: str
    recipe: Recipe | None
    asked: Json  # the recipe as plain values, with keys that the mill does not know
    found: Found | None  # of a run
    builds: list[Build] = field(default_factory=list)
    recipe_file: str = ""
    training: TrainingPlan = field(
        default_factory=TrainingPlan
    )  # what is to be trained on it, as far as it is said

    @property
    def artifacts(self) -> dict[str, Artifact]:
        return self.found.artifacts if self.found is not None else {}

    def of_kind(self, kind: str) -> dict[str, Artifact]:
        return self.found.of_kind(kind) if self.found is not None else {}


def open_subject(target: str | Path) -> Subject:
    path = Path(target)
    if path.is_file():
        if path.name == MANIFEST:
            return open_subject(path.parent)
        return _recipe(path)
    if not path.is_dir():
        raise InputError(
            "no such file or directory", where=str(path), next="give a run, a build or a recipe to review"
        )
    here = open_artifact(path)
    if here is None or here.manifest.kind == "run":
        return _run(path)
    if here.manifest.kind != "build":
        raise InputError(
            f"is the artifact of the step {here.manifest.step}, not a run or a build",
            where=str(path),
            next="give the directory of the run",
        )
    run = path.resolve().parent.parent
    if path.resolve().parent.name == "build":
        try:
            subject = _run(run)
        except TokmillError:
            return _published(path, here)
        mine = [build for build in subject.builds if build.artifact.directory.name == path.resolve().name]
        if mine:
            return Subject(
                "build",
                run,
                mine[0].name,
                subject.recipe,
                subject.asked,
                subject.found,
                mine,
                subject.recipe_file,
                subject.training,
            )
    return _published(path, here)


def _run(path: Path) -> Subject:
    found = find_artifacts(path)
    asked = found.root.config if found.root is not None else {}
    recipe = None
    if asked:
        # JSON is YAML: the run wrote down the recipe that it had validated
        plain = _without(asked)
        for key, section in (("sources", Source), ("builds", RecipeBuild)):
            plain[key] = [_as_given(section, item) for item in plain.get(key, [])]
        with contextlib.suppress(RecipeError):  # of a version that took other recipes
            recipe = parse_recipe(json.dumps(plain, ensure_ascii=False).encode(), MANIFEST)
    builds = [Build(name, artifact) for name, artifact in found.of_kind("build").items()]
    training = _training(found.root.environment.get(REVIEW) if found.root is not None else None)
    return Subject("run", path, found.name, recipe, asked, found, builds, MANIFEST, training)


def _training(said: Any) -> TrainingPlan:
    """As the run wrote it down, beside its digests."""
    with contextlib.suppress(ValueError):
        return TrainingPlan.model_validate(said or {})
    return TrainingPlan()


def _published(path: Path, artifact: Artifact) -> Subject:
    return Subject("build", path, path.resolve().name, None, {}, None, [Build(".", artifact)], "")


def _recipe(path: Path) -> Subject:
    try:
        recipe = load_recipe(path)
    except RecipeError as mistakes:
        tree = _tree(path)
        if tree is None or not remote_code_keys(_plain(tree)):
            raise
        asked = _plain(tree)
        _remove_remote_code(tree)
        try:
            recipe = parse_recipe(yaml.serialize(tree, allow_unicode=True).encode(), str(path))
        except RecipeError:
            raise mistakes from None  # there is more that is wrong: told with lines that are right
    else:
        asked = recipe.model_dump(mode="json")
    training = recipe.review or TrainingPlan()
    return Subject(
        "recipe", path.parent, recipe.name, recipe, asked, None, recipe_file=path.name, training=training
    )


def _as_given(section: type[Section], written: Json) -> Json:
    """Without the defaults that were written down with it: a build of npy has a dtype, but may not be given one."""
    optional = {key: field for key, field in section.model_fields.items() if not field.is_required()}
    defaults = {key: to_jsonable_python(field.default) for key, field in optional.items()}
    return {key: value for key, value in written.items() if key not in defaults or value != defaults[key]}


# --- recipes that ask for code ---


def remote_code_keys(asked: Any, place: str = "") -> list[tuple[str, str]]:
    """(key path, value) of every key that asks for code from elsewhere."""
    found: list[tuple[str, str]] = []
    if isinstance(asked, dict):
        for key, value in asked.items():
            below = f"{place}.{key}" if place else str(key)
            if key in REMOTE_CODE and str(value).lower() not in ("false", "none", "null", ""):
                found.append((below, str(value).lower()))
            else:
                found += remote_code_keys(value, below)
    elif isinstance(asked, list):
        for number, value in enumerate(asked):
            found += remote_code_keys(value, f"{place}[{number}]")
    return found


def _without(asked: Any) -> Any:
    if isinstance(asked, dict):
        return {key: _without(value) for key, value in asked.items() if key not in REMOTE_CODE}
    return [_without(value) for value in asked] if isinstance(asked, list) else asked


def _tree(path: Path) -> Any:
    """The nodes of the file, or None where it cannot be read so either."""
    try:
        data = read_whole(path, _MAX_RECIPE_BYTES)
        if b"*" in data and any(isinstance(token, yaml.AliasToken) for token in yaml.scan(data)):
            return None  # a few aliases expand to gigabytes; the mill has none
        return yaml.compose(data, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        return None


def _plain(node: Any) -> Any:
    if isinstance(node, yaml.MappingNode):
        return {str(key.value): _plain(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item) for item in node.value]
    return node.value


def _remove_remote_code(node: Any) -> None:
    if isinstance(node, yaml.MappingNode):
        node.value = [(key, value) for key, value in node.value if key.value not in REMOTE_CODE]
    for item in node.value if isinstance(node, (yaml.MappingNode, yaml.SequenceNode)) else ():
        for part in item if isinstance(item, tuple) else (item,):
            _remove_remote_code(part)
