"""What is under review, opened: a recipe, a run (finished or cut short), or a build,
and the lengths of its documents.

recipe.yaml            ─> recipe
out/NAME               ─> recipe as the run wrote it down, artifacts
out/NAME/build/ROWS    ─> the same, and of the builds only this one
anywhere/              ─> a published build: its manifest and its files, no texts

lengths-<shard>  (tokens, language)  ─> sums by split, domain and source
the rows of a build, turn by turn ────> the first half of the training documents, and the last
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray

from tokmill.artifacts.directory import Artifact, open_artifact
from tokmill.artifacts.manifest import MANIFEST, Json, add_counts
from tokmill.artifacts.upstream import mixtures_of, tally
from tokmill.audit.opened import Found, find_artifacts
from tokmill.audit.places import BuiltSplit, load_scheduled
from tokmill.errors import InputError, RecipeError, TokmillError
from tokmill.pipeline.run_manifest import REVIEW
from tokmill.recipe import Recipe, TrainingPlan
from tokmill.recipe.file import load_recipe, parse_recipe, parse_recorded
from tokmill.stages.tokens.stage import SplitShard, shards_of_split
from tokmill.storage.location import read_whole
from tokmill.storage.tables import load_table

TRAIN = "train"
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

    def counts(self, split: str) -> Json:
        """Of one split; of a published build without its receipts, of all splits together."""
        manifest = self.artifact.manifest
        return next((one.counts for one in manifest.receipts() if one.key == split), manifest.counts)

    def train_tokens(self, by: Literal["domains", "sources"]) -> dict[str, int]:
        """Of each; of a published build without its receipts, of all its splits together."""
        return {name: int(total["tokens"]) for name, total in self.counts(TRAIN).get(by, {}).items()}


@dataclass(frozen=True)
class Trained:
    """What one training goes through: a build; of a mixture with stages those of all of them, in turn.
    Held-out splits are those of the first: each has the same documents."""

    name: str
    builds: list[Build]

    @property
    def first(self) -> Build:
        return self.builds[0]

    @property
    def is_whole(self) -> bool:
        """Of all sources."""
        return not self.first.artifact.manifest.config.get("sources")

    def train_tokens(self) -> dict[str, int]:
        """Of each source."""
        sums: Counter[str] = Counter()
        for build in self.builds:
            sums.update(build.train_tokens("sources"))
        return dict(sums)


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
    training: TrainingPlan = field(default_factory=TrainingPlan)  # on it, as far as it is said

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
            return replace(subject, kind="build", directory=run, name=mine[0].name, builds=mine)
    return _published(path, here)


def _run(path: Path) -> Subject:
    found = find_artifacts(path)
    asked = found.root.config if found.root is not None else {}
    recipe = parse_recorded(asked) if asked else None
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
        asked = _take_remote_code(tree) if tree is not None else {}
        if not remote_code_keys(asked):
            raise
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


def _tree(path: Path) -> Any:
    """The nodes of the file, or None where it cannot be read so either."""
    try:
        data = read_whole(path, _MAX_RECIPE_BYTES)
        if b"*" in data and any(isinstance(token, yaml.AliasToken) for token in yaml.scan(data)):
            return None  # a few aliases expand to gigabytes; the mill has none
        return yaml.compose(data, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        return None


def _take_remote_code(node: Any) -> Any:
    """Out of the nodes; and what they were, as plain values."""
    if isinstance(node, yaml.MappingNode):
        plain = {str(key.value): _take_remote_code(value) for key, value in node.value}
        node.value = [(key, value) for key, value in node.value if key.value not in REMOTE_CODE]
        return plain
    if isinstance(node, yaml.SequenceNode):
        return [_take_remote_code(item) for item in node.value]
    return node.value


# --- tokens, document by document ---


class Part(NamedTuple):
    """Documents of one source in one split."""

    split: str
    domain: str
    source: str
    docs: int
    tokens: int
    languages: Json  # name -> {docs, tokens}


class Lengths(NamedTuple):
    parts: list[Part]

    def sums(self, amount: Literal["docs", "tokens"], by: str, split: str | None = None) -> dict[str, int]:
        """Of each domain, source or split, in the order of the recipe."""
        sums: dict[str, int] = {}
        for part in self.parts:
            if split in (None, part.split):
                name = getattr(part, by)
                sums[name] = sums.get(name, 0) + getattr(part, amount)
        return sums


def tally_lengths(artifacts: Mapping[str, Artifact]) -> Lengths:
    parts: dict[tuple[str, str, str], Part] = {}
    for split in artifacts["tokens"].manifest.facts["splits"]:
        for shard in shards_of_split(artifacts, split):
            table = load_table(Path(shard.lengths.path), ["tokens", "language"])
            lengths = np.asarray(table.column("tokens"))
            languages = tally(table.column("language").combine_chunks(), tokens=lengths)
            key = split, shard.domain, shard.source
            before = parts.get(key, Part(*key, 0, 0, {}))
            parts[key] = Part(
                *key,
                before.docs + len(lengths),
                before.tokens + int(lengths.sum()),
                add_counts(before.languages, languages),
            )
    return Lengths(list(parts.values()))


# --- first and last half ---


class Turns(NamedTuple):
    """Training documents in the order in which they are built: 32 bytes a turn. Sums by document take 8 more
    of each."""

    shards: list[SplitShard]
    lengths: NDArray[np.int64]
    sizes: NDArray[np.int64]
    shard: NDArray[np.int64]  # place in `shards`
    position: NDArray[np.int64]  # among the documents of all of them

    def longest(self) -> tuple[int, str, str, int]:
        """Tokens, id and source of the one with most in all of its turns; and the tokens of all turns."""
        sums = np.zeros(sum(shard.lengths.rows for shard in self.shards), np.int64)
        np.add.at(sums, self.position, self.lengths)
        at = int(np.argmax(sums))
        first = 0
        for shard in self.shards:
            if at < first + shard.lengths.rows:
                break
            first += shard.lengths.rows
        names = load_table(Path(shard.lengths.path), ["doc_id"]).column("doc_id")
        return int(sums[at]), str(names[at - first].as_py()), shard.source, int(self.lengths.sum())

    def halves(self) -> tuple[Turns, Turns]:
        """Parted where half of the tokens are."""
        ends = np.cumsum(self.lengths)
        middle = int(np.searchsorted(ends, ends[-1] // 2, side="left")) + 1
        middle = min(max(middle, 1), len(self.lengths) - 1)
        first, last = (
            Turns(self.shards, *(column[part] for column in self[1:]))
            for part in (slice(middle), slice(middle, None))
        )
        return first, last

    def mean_length(self) -> tuple[float, float]:
        """Tokens a document, and the variance of that mean."""
        return _ratio(self.lengths, np.ones(len(self.lengths)))

    def bytes_per_token(self) -> tuple[float, float]:
        return _ratio(self.sizes, self.lengths)

    def share(self, source: str) -> tuple[float, float]:
        """Of the source in the tokens."""
        is_mine = np.array([shard.source == source for shard in self.shards])[self.shard]
        return _ratio(np.where(is_mine, self.lengths, 0), self.lengths)


def _ratio(parts: NDArray[Any], wholes: NDArray[Any]) -> tuple[float, float]:
    """Of two sums over documents, and its variance, documents being drawn."""
    whole = float(wholes.sum())
    rate = float(parts.sum()) / whole
    return rate, float(((parts - rate * wholes) ** 2).sum()) / whole**2


def load_turns(artifacts: Mapping[str, Artifact], built: Sequence[BuiltSplit] = ()) -> list[Turns]:
    """As the build has them, in the order of its turns: what no row holds is not there, and of a document
    that was cut the part that is. Without a build, whole documents in the order of the mixture or of the
    corpus. Of stages, those of each."""
    if built:
        return [_turns_of(one) for one in built]
    mixtures: list[Artifact | None] = [*mixtures_of(artifacts)] or [None]
    return [_turns_of(load_scheduled(artifacts, mixture, TRAIN)) for mixture in mixtures]


def join_turns(parts: list[Turns]) -> Turns:
    """Of stages, one after the other."""
    if len(parts) == 1:
        return parts[0]
    columns = zip(*(part[1:] for part in parts), strict=True)
    return Turns(parts[0].shards, *(np.concatenate(column) for column in columns))


def _turns_of(built: BuiltSplit) -> Turns:
    is_in = built.written > 0
    written, position = built.written[is_in], built.position[is_in]
    whole, sizes = (built.turns.column(name)[is_in] for name in ("tokens", "text_bytes"))
    own = sizes * written // np.maximum(whole, 1)
    return Turns(built.turns.shards, written, own, built.turns.shard_at(position), position)


class InRows(NamedTuple):
    """Tokens of documents that stand in a row, whole ones, whatever is cut off."""

    tokens: int  # each time that one does
    once: int


def tokens_in_rows(built: Sequence[BuiltSplit]) -> dict[str, InRows]:
    """By source; of all stages together."""
    shards = built[0].turns.shards
    position = np.concatenate([one.position[one.written > 0] for one in built])
    tokens = np.concatenate([one.turns.column("tokens")[one.written > 0] for one in built])
    _, first = np.unique(position, return_index=True)
    shard, sums = built[0].turns.shard_at(position), np.zeros((2, len(shards)), np.int64)
    np.add.at(sums[0], shard, tokens)
    np.add.at(sums[1], shard[first], tokens[first])
    found: dict[str, InRows] = {}
    for own, count, once in zip(shards, *sums.tolist(), strict=True):
        before = found.get(own.source, InRows(0, 0))
        found[own.source] = InRows(before.tokens + count, before.once + once)
    return found
