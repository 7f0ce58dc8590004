"""What an ablation compares: builds, each with its training data, its tokenizer and the run that it is of.

    out/a/build/rows                the build
    out/a --build rows              the run, and which of its builds; none named: the only one of tokens

Short names are what is different about their paths: `out/raw/build/rows` and `out/clean/build/rows` are raw
and clean.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokmill.artifacts.directory import Artifact, open_artifact
from tokmill.artifacts.runs import open_run
from tokmill.errors import InputError, TokmillError, plural
from tokmill.loader.dataset import Dataset, open_dataset
from tokmill.stages.tokens.beside import find_tokenizer
from tokmill.tokenizers.protocol import Tokenizer


class Target(NamedTuple):
    name: str
    directory: Path
    train: Dataset
    tokenizer: Tokenizer
    vocab_size: int
    run: dict[str, Artifact] | None  # by step; None: it is not beside the build

    @property
    def context_id(self) -> int | None:
        """What stands before a document: BOS, or the EOS of the one before."""
        begin = self._facts.get("bos_id")
        return begin if isinstance(begin, int) else self.train.facts.eos_id

    @property
    def controls(self) -> dict[str, int]:
        """Literals that are control tokens in every text."""
        return self._facts.get("controls") or {}

    @property
    def _facts(self) -> dict[str, Any]:
        return self.train.manifest.facts.get("tokenizer", {}) if self.train.manifest is not None else {}


def open_targets(paths: Sequence[str | Path], build: str | None = None) -> list[Target]:
    if len(paths) < 2:
        raise InputError(
            f"{plural(len(paths), 'build')}, and there is nothing to compare it with",
            where="targets",
            next="give two or more; or a recipe with `--leave-one-out` or `--grid`",
        )
    directories = [find_build(Path(path), build) for path in paths]
    return [
        open_target(name, directory)
        for name, directory in zip(short_names(directories), directories, strict=True)
    ]


def open_target(name: str, directory: Path) -> Target:
    train = open_dataset(directory, "train")
    if not len(train):
        raise InputError(
            "its train split is empty", where=str(directory), next="build it from more documents"
        )
    tokenizer = find_tokenizer(train)
    vocab_size = max(train.facts.vocab_size or 0, tokenizer.vocab_size)
    return Target(name, directory, train, tokenizer, vocab_size, _run_around(directory))


def find_build(path: Path, build: str | None) -> Path:
    """The directory of a build, from itself or from its run."""
    if not path.is_dir():
        raise InputError(
            "no such directory", where=str(path), next="give a build, or a run that `tokmill run` made"
        )
    artifact = open_artifact(path)
    if artifact is None or artifact.manifest.kind != "run":
        return path
    names = [
        step.removeprefix("build/")
        for step, one in open_run(path).items()
        if one.manifest.kind == "build" and step.startswith("build/")
    ]
    return path / "build" / choose_build(names, build, str(path))


def choose_build(names: Sequence[str], build: str | None, where: str) -> str:
    """The one that is asked for, or the only one."""
    if build is None and len(names) == 1:
        return names[0]
    if build is None or build not in names:
        what = "has several builds" if build is None else f"has no build {build!r}"
        raise InputError(
            what if names else "has no build of tokens",
            where=where,
            next=f"set `--build` to one of {', '.join(names)}" if names else "add one to its recipe",
        )
    return build


def _run_around(directory: Path) -> dict[str, Artifact] | None:
    for place in directory.absolute().parents[:2]:
        try:
            artifact = open_artifact(place)
            if artifact is not None and artifact.manifest.kind == "run":
                return open_run(place)
        except TokmillError:  # damage of what is around it is not this build's
            return None
    return None


def _shared(paths: Sequence[tuple[str, ...]]) -> int:
    """Parts that all begin with."""
    levels = [len(set(level)) == 1 for level in zip(*paths, strict=False)]
    return levels.index(False) if False in levels else len(levels)


def short_names(directories: Sequence[Path]) -> list[str]:
    """Without the parts at both ends that all have; the whole path where that leaves nothing or two alike."""
    parts = [directory.absolute().parts for directory in directories]
    before, after = _shared(parts), _shared([one[::-1] for one in parts])
    names = ["/".join(one[before : len(one) - after]) for one in parts]
    if all(names) and len(set(names)) == len(names):
        return names
    seen: dict[str, int] = {}
    numbered = []
    for directory in map(str, directories):
        seen[directory] = seen.get(directory, 0) + 1
        numbered.append(directory if seen[directory] == 1 else f"{directory} ({seen[directory]})")
    return numbered
