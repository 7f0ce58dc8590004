"""What checks and answers are given: evidence, measured when it is first asked for, and once.

    Subject ─ Evidence ─┬─ @check(advice): findings, and what was taken for granted
                        └─ Answering: sentences, figures, what they rest on, what was not measured

What cannot be measured is `NotMeasured`, with the reason; asked for again it is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar, cast

import pyarrow as pa

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.history import HISTORY_FILE, History, load_history
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.upstream import mixture_of, mixtures_of
from tokmill.audit.places import BuiltSplit, RunPlaces, load_built
from tokmill.audit.verification import Verification
from tokmill.audit.verify import verify
from tokmill.errors import TokmillError
from tokmill.recipe import Recipe
from tokmill.reviews import overlap
from tokmill.reviews.finding import Answer, Found, NotMeasured
from tokmill.reviews.probe import Probe, probe
from tokmill.reviews.rows import Boundaries, BuildRows, classes, find_boundaries, scan_rows
from tokmill.reviews.subject import (
    TRAIN,
    Build,
    InRows,
    Lengths,
    Subject,
    Trained,
    Turns,
    join_turns,
    load_turns,
    tally_lengths,
    tokens_in_rows,
)
from tokmill.reviews.texts import SCANNED_BYTES, Scan, scan_texts
from tokmill.stages.build.contents import Contents, load_contents

T = TypeVar("T")


RECIPE_ALONE = "a recipe alone has no documents, tokens or files"


class Limits(NamedTuple):
    """How much is read of what is large."""

    scanned_bytes: int = SCANNED_BYTES
    eval_documents: int = overlap.EVAL_DOCUMENTS
    train_bytes: int = overlap.TRAIN_BYTES
    reads_every_byte: bool = True


class Evidence:
    def __init__(self, subject: Subject, limits: Limits | None = None) -> None:
        self.subject = subject
        self.limits = limits or Limits()
        self._measured: dict[str, object] = {}

    # --- what there is ---

    @property
    def recipe(self) -> Recipe:
        if self.subject.recipe is None:
            if self.subject.found is None:
                raise NotMeasured("a published build does not hold its recipe")
            if self.subject.asked:
                raise NotMeasured("the recipe in manifest.json is not one that this version reads")
            raise NotMeasured("the run was cut short before it wrote its recipe down")
        return self.subject.recipe

    def artifact(self, step: str) -> Artifact:
        if step in self.subject.artifacts:
            return self.subject.artifacts[step]
        if self.subject.kind == "recipe":
            raise NotMeasured(RECIPE_ALONE)
        found = self.subject.found
        if found is None:
            raise NotMeasured(f"needs the step {step}, which a build by itself does not have")
        if step in found.set_aside:
            raise NotMeasured(f"needs the step {step}, which {found.set_aside[step]}")
        raise NotMeasured(f"needs the step {step}, which the run does not have")

    @property
    def has_stages(self) -> bool:
        """Each has weights and a target of its own: there is no mixture of the whole."""
        is_staged = any(name.startswith("stage/") for name in self.subject.artifacts)
        return is_staged and not self.has("mixture")

    @property
    def stages(self) -> list[str]:
        """One after the other."""
        mixtures = mixtures_of(self.subject.artifacts) if self.has_stages else []
        return [one.manifest.config["stage"]["name"] for one in mixtures]

    @property
    def is_rest(self) -> bool:
        """Of a run that was trained on before."""
        return self.has("mixture") and "continues" in self.artifact("mixture").manifest.config

    def has(self, step: str) -> bool:
        return step in self.subject.artifacts

    def ingested(self) -> dict[str, Artifact]:
        """By source."""
        found = self.subject.of_kind("ingest")
        if not found:
            self.artifact("ingest")
        return found

    def builds(self) -> list[Build]:
        if not self.subject.builds:
            self.artifact("build")
        return self.subject.builds

    def trained(self) -> list[Trained]:
        """What a model may be trained on, each by itself. Of the build of one stage, with those of the
        others."""
        found: dict[str, Trained] = {}
        for build in self.builds():
            stage = self._stage_of(build)
            if stage is None:
                found[build.name] = Trained(build.name, [build])
                continue
            name = build.name.removesuffix(stage)
            whole = self.subject.of_kind("build")
            steps = [f"{name}{own}" for own in self.stages if f"{name}{own}" in whole]
            builds = [Build(step, whole[step]) for step in steps]
            is_all = len(steps) == len(self.stages)
            told = "all stages" if is_all else " and ".join(step.removeprefix(name) for step in steps)
            found[name] = Trained(f"{name.removesuffix('-')} ({told})", builds)
        return list(found.values())

    def _stage_of(self, build: Build) -> str | None:
        mixture = mixture_of(self.subject.artifacts, build.artifact)
        stage: Json | None = mixture.manifest.config.get("stage") if mixture is not None else None
        return stage["name"] if stage is not None else None

    @property
    def main(self) -> Trained | None:
        """What is told of where one tells for all: the first of all sources, or that with most tokens."""
        trained = self.trained() if self.subject.builds else []
        return next(
            (one for one in trained if one.is_whole),
            max(trained, key=lambda one: sum(one.train_tokens().values()), default=None),
        )

    def train_tokens(self, trained: Trained) -> dict[str, int]:
        """Of each source; in the rest of a run with those that were trained on before."""
        own: list[str] = trained.first.artifact.manifest.config.get("sources") or list(self._before)
        before = {source: tokens for source, tokens in self._before.items() if source in own}
        return dict(Counter(trained.train_tokens()) + Counter(before))

    def named_whole(self, trained: list[Trained]) -> str:
        return f"{named(trained)}, with what was trained on before" if self.is_rest else named(trained)

    @property
    def _before(self) -> dict[str, int]:
        return self._once("before", self._load_before) if self.is_rest else {}

    def _load_before(self) -> dict[str, int]:
        assert self.subject.found is not None, "it has a mixture"
        path = self.subject.found.directory / HISTORY_FILE
        continues = self.artifact("mixture").manifest.config["continues"]
        history = History(load_history(path, continues["history"]))
        return {source: history.tokens(source) for source in history.sources}

    # --- what is measured ---

    def _once(self, name: str, measure: Callable[[], T]) -> T:
        """A figure is measured once; so is the failure to measure it."""
        if name not in self._measured:
            try:
                self._measured[name] = measure()
            except (NotMeasured, *READ_ERRORS) as error:
                self._measured[name] = NotMeasured(told(error, self.subject.directory))
        found = self._measured[name]
        if isinstance(found, NotMeasured):
            raise found
        return cast("T", found)

    @property
    def lengths(self) -> Lengths:
        self.artifact("tokens")
        return self._once("lengths", lambda: tally_lengths(self.subject.artifacts))

    @property
    def turns(self) -> Turns:
        """Of all stages, one after the other."""
        return self._once("turns", lambda: join_turns(self.turns_of_stages))

    @property
    def turns_of_stages(self) -> list[Turns]:
        """Of a mixture without stages it is one."""
        self.artifact("tokens")
        built = [self.built(build, TRAIN) for build in self._train_builds]
        found = self._once("turns of stages", lambda: load_turns(self.subject.artifacts, built))
        if sum(len(turns.lengths) for turns in found) < 2:
            raise NotMeasured("there are fewer than two training documents")
        return found

    @property
    def stages_of_turns(self) -> list[str]:
        """The name of each of them, "" without stages."""
        if not self.has_stages:
            return [""]
        return [self._stage_of(build) or "" for build in self._train_builds] or self.stages

    @property
    def _train_builds(self) -> list[Build]:
        return [build for build in self.main.builds if TRAIN in build.splits] if self.main else []

    @property
    def texts(self) -> Scan:
        self.artifact("split")
        literals, limit = self.control_literals(), self.limits.scanned_bytes
        return self._once("texts", lambda: scan_texts(self.subject.artifacts, literals, limit))

    @property
    def exact_overlap(self) -> overlap.Exact:
        self.artifact("split")
        return self._once("exact", lambda: overlap.find_exact(self.subject.artifacts))

    @property
    def near_overlap(self) -> overlap.NearOverlap:
        copies, limits = self.exact_overlap.copies, (self.limits.eval_documents, self.limits.train_bytes)
        return self._once("near", lambda: overlap.find_near_overlap(self.subject.artifacts, copies, *limits))

    @property
    def verification(self) -> Verification:
        if self.subject.kind == "recipe":
            raise NotMeasured(RECIPE_ALONE)
        if not self.limits.reads_every_byte:
            raise NotMeasured("it was asked not to read every byte")
        is_part = self.subject.kind == "build"
        directory = self.subject.builds[0].artifact.directory if is_part else self.subject.directory
        return self._once("verification", lambda: verify(directory))

    def built(self, build: Build, split: str) -> BuiltSplit:
        """Of a build that lies in its run."""
        return self._once(f"built {build.name} {split}", lambda: self._load_built(build, split))

    def tokens_in_rows(self, name: str, builds: list[Build]) -> dict[str, InRows]:
        """By source, of training documents that stand in a row. The turns behind it, 16 bytes each, are not
        kept."""
        return self._once(
            f"in rows {name}", lambda: tokens_in_rows([self._load_built(build, TRAIN) for build in builds])
        )

    def _load_built(self, build: Build, split: str) -> BuiltSplit:
        self.artifact("tokens")
        places = RunPlaces(self.subject.directory, self.subject.artifacts, [])
        return load_built(places, f"build/{build.name}", split)

    @property
    def contents(self) -> Contents:
        """Of the builds that are told of: in training rows of all stages, and what the first holds out."""
        self.artifact("tokens")
        return self._once("contents", self._load_contents)

    def _load_contents(self) -> Contents:
        assert self.main is not None, "asked of a run with builds"
        names = {build.name for build in self.main.builds}
        others = [name for name in self.subject.of_kind("build") if name not in names]
        artifacts = {
            step: artifact
            for step, artifact in self.subject.artifacts.items()
            if step not in [f"build/{name}" for name in others]
        }
        contents, first = load_contents(artifacts), self.main.first.name
        return contents._replace(
            held=[one for one in contents.held if one.split == TRAIN or one.build == first]
        )

    def rows(self, build: Build) -> BuildRows:
        return self._once(f"rows {build.name}", lambda: scan_rows(build))

    def probe(self, build: Build) -> Probe:
        """Whether surface tokens tell its domains apart; of a build by itself, its sources."""
        facts = build.artifact.manifest.facts.get("tokenizer", {})
        return self._once(f"probe {build.name}", lambda: probe(build, classes(self.subject, build), facts))

    def boundaries(self, build: Build) -> Boundaries:
        facts = build.artifact.manifest.facts.get("tokenizer", {})
        return self._once(
            f"boundaries {build.name}",
            lambda: find_boundaries(build, classes(self.subject, build), facts.get("eos_id")),
        )

    def control_literals(self) -> list[str]:
        """Strings that the run's tokenizer has control tokens for."""
        config: Json = {}
        if self.has("tokenizer"):
            config = self.artifact("tokenizer").manifest.config
        elif self.subject.recipe is not None and self.subject.recipe.tokenizer is not None:
            config = self.subject.recipe.tokenizer.model_dump(mode="json")
        listed = [config.get("eos"), *config.get("control", [])]
        listed += (config.get("train") or {}).get("control_symbols", [])
        return [token for token in listed if isinstance(token, str)]


# What a damaged or missing file shows itself as. `counts_and_hashes` names the file;
# other checks say they cannot be made.
READ_ERRORS = (TokmillError, OSError, pa.ArrowException)


def told(error: BaseException, directory: Path) -> str:
    """One line, with no path of this machine in it."""
    if isinstance(error, NotMeasured):
        return str(error)
    if isinstance(error, TokmillError):
        text = f"{error.where}: {error.what}"
    else:
        text = f"{type(error).__name__}: {error}"
    return text.splitlines()[0].replace(f"{directory.resolve()}/", "").replace(f"{directory}/", "")


class Check(NamedTuple):
    name: str
    make: Callable[[Evidence], Found]
    advice: str  # what to do about what it finds


def check(advice: str) -> Callable[[Callable[[Evidence], Found]], Check]:
    """A function becomes the check of its name; its docstring is the question that it asks."""
    return lambda make: Check(make.__name__, make, advice)


B = TypeVar("B", Build, Trained)


def together(builds: Iterable[B], figures: Callable[[B], T | None]) -> list[tuple[list[B], T]]:
    """Builds of one run with equal figures are told once."""
    groups: list[tuple[list[B], T]] = []
    for build in builds:
        figure = figures(build)
        if figure is None:
            continue
        for members, known in groups:
            if known == figure:
                members.append(build)
                break
        else:
            groups.append(([build], figure))
    return groups


def named(builds: Sequence[Build | Trained]) -> str:
    if builds[0].name == ".":
        return "this build"
    return f"build{'s' if len(builds) > 1 else ''} {', '.join(build.name for build in builds)}"


def place_of(build: Build) -> str:
    """Where its files are, from where findings name theirs."""
    return "" if build.name == "." else f"build/{build.name}/"


def manifest_of(build: Build | Trained) -> str:
    builds = build.builds if isinstance(build, Trained) else [build]
    return ", ".join(f"{place_of(one)}manifest.json" for one in builds)


class Answering:
    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._says: list[str] = []
        self._based_on: list[str] = []
        self._lacks: list[str] = []
        self.figures: Json = {}

    def say(self, sentence: str) -> Answering:
        self._says.append(sentence)
        return self

    def base(self, *places: str) -> Answering:
        self._based_on += [place for place in places if place]
        return self

    def lack(self, what: str) -> Answering:
        self._lacks.append(what)
        return self

    def attempt(self, measure: Callable[[], T]) -> T | None:
        """The figure, or None: then the answer says why it is not there."""
        try:
            return measure()
        except (NotMeasured, *READ_ERRORS) as error:
            self.lack(told(error, self._evidence.subject.directory))
        return None

    def answer(self, question: str, find: Callable[[Evidence, Answering], None]) -> Answer:
        self.attempt(lambda: find(self._evidence, self))
        says, based_on, lacks = self._says, dict.fromkeys(self._based_on), dict.fromkeys(self._lacks)
        return Answer(question, says or ["Not measured."], self.figures, [*based_on], [*lacks])
