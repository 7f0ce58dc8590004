"""A recipe in miniature: its own steps over a share of its documents.

    files of a source ─ some of them, spread ─ one chunk in so many ─ drawn by place ─> some of its documents
    what limits let in ─ drawn from it
    samples, quotas of splits, targets, selections, text to train a tokenizer on ─> as much smaller

One share for all sources, so that what they are to each other stays: duplicates across sources, weights of a
mixture, who runs out first. Scores alone learn from all that is read: labels are rare, and a share of them
makes no model.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tokmill.artifacts.step import Step
from tokmill.errors import TokmillError
from tokmill.pipeline.documents import is_left_out, kept_languages, those_before
from tokmill.pipeline.plan import alone, plan_steps
from tokmill.recipe import Mixture, Recipe, Split, Stage
from tokmill.recipe.curriculum import MOST_PASSES
from tokmill.schema import PERCENTILE, SCORE
from tokmill.sources.hub import resolve_revision
from tokmill.sources.readers import Chunks, list_hub_of_language, list_source, resolve_reader, resolve_reading
from tokmill.stages.ingest.options import Part
from tokmill.storage.location import InputFile

# Of documents, and at least so much text.
_SHARE = Decimal("0.005")
TEXT_BYTES = 20_000_000
# To draw evenly more is read than is drawn: bytes of files. Reading is 5 to 30 times as fast as the rest.
READ_BYTES = 48_000_000
_READ_SHARE = Decimal("0.015")
_MIN_FILES = 8
# Text in a byte of a file, before anything is known of it.
_PACKED = (".zst", ".gz", ".bz2", ".xz", ".lz4", ".parquet", ".7z")
_UNPACKED = 4
_HEADS = ("head", "shuffle_buffer")
# Times what is drawn of a source, before it is said to be too little. In a sixteenth of 1,500 documents, some
# of them 40 times as long as others, one had 0.68 of its share.
_SLACK = 2

# Apart from all seeds of recipes, so that who is drawn has nothing to do with samples and splits.
_SEED = 0x657374


class Drawn(NamedTuple):
    """How a source is read."""

    files: list[InputFile]
    stride: int
    read: Decimal  # share of the bytes


class Miniature(NamedTuple):
    share: Decimal
    learned: Decimal  # share of the documents that scores learn from: as much as is read
    sources: dict[str, Drawn]
    file_bytes: int  # of all sources, as they lie on the disk


def choose_share(
    recipe: Recipe, base: Path, text_bytes: int = TEXT_BYTES, read_bytes: int = READ_BYTES
) -> Miniature:
    """How much of the sources is enough, and which files it is read from."""
    files = {
        source.name: _files_of(recipe, source.name, base)
        for source in recipe.sources
        if not is_left_out(recipe, source)
    }
    total = sum(file.bytes for found in files.values() for file in found)
    text = sum(
        file.bytes * (_UNPACKED if file.name.endswith(_PACKED) else 1)
        for found in files.values()
        for file in found
    )
    share = min(max(_SHARE, Decimal(text_bytes) / max(text, 1)), Decimal(1))
    wanted = max(min(Decimal(read_bytes) / max(total, 1), Decimal(1)), _READ_SHARE, share)
    sources = {source.name: source for source in recipe.sources}
    bounded = {source.fallback for source in recipe.sources}  # what another one leaves of its limit
    drawn = {}
    for name, found in files.items():
        # the head of a source is read in order, or it is another head
        sample = sources[name].sample
        is_head = name in bounded or sources[name].limit is not None
        is_head = is_head or (sample is not None and sample.method in _HEADS)
        drawn[name] = Drawn(found, 1, Decimal(1)) if is_head else _spread(recipe, base, name, found, wanted)
    return Miniature(share, wanted, drawn, total)


def _files_of(recipe: Recipe, name: str, base: Path) -> list[InputFile]:
    (source,) = (source for source in recipe.sources if source.name == name)
    try:
        if source.hub is None:
            return list_source(source, base)
        revision = resolve_revision(source.hub.dataset, source.hub.revision)
        return list_hub_of_language(source.hub, revision, kept_languages(recipe, source))[1]
    except TokmillError:
        if those_before(recipe, source):  # the step says so where it is needed
            return []
        raise


def _spread(recipe: Recipe, base: Path, name: str, files: list[InputFile], wanted: Decimal) -> Drawn:
    """Files and parts of them that are about the share that is wanted, from the first to the last."""
    (source,) = (source for source in recipe.sources if source.name == name)
    total = sum(file.bytes for file in files)
    if wanted >= 1 or not total or source.format == "stackexchange":  # a dump is joined, and read whole
        return Drawn(files, 1, Decimal(1))
    count = min(max(int(len(files) * wanted), _MIN_FILES), len(files))
    chosen = [files[(2 * number + 1) * len(files) // (2 * count)] for number in range(count)]
    read = Decimal(sum(file.bytes for file in chosen)) / total
    stride = 1
    if read > wanted and resolve_reader(source, base).read_from is None:
        chunks = len(Chunks(chosen, resolve_reading(source, chosen, base), recipe.shards.bytes))
        stride = min(max(int(read / wanted), 1), chunks)
        read *= Decimal(len(range(stride // 2, chunks, stride))) / max(chunks, 1)
    return Drawn(chosen, stride, read)


def steps_in_miniature(
    recipe: Recipe, base: Path, out: Path, miniature: Miniature, share: Decimal
) -> list[Step]:
    """At most the miniature's own share; a smaller one has some of the same documents."""
    sources = miniature.sources

    def choose(name: str, files: list[InputFile]) -> list[InputFile]:
        wanted = {str(file.path) for file in sources[name].files}
        return [file for file in files if str(file.path) in wanted]

    # of less than the miniature's share a source may be a few documents, too few to judge it by
    slack = _SLACK if share >= miniature.share else MOST_PASSES
    steps = []
    for step in plan_steps(_smaller(recipe, share, slack), base, out, choose=choose):
        if step.kind == "clean" and share < miniature.share:
            unjudged = replace(step.extra, max_nul_fraction=Decimal(1), max_nul_documents=Decimal(1))
            step = replace(step, extra=unjudged)
        if step.kind == "ingest":
            drawn = sources[step.name.removeprefix("ingest/")]
            part = Part(share=share, drawn=min(share / drawn.read, Decimal(1)), seed=_SEED)
            step = replace(
                alone(step),
                options=msgspec.structs.replace(step.options, part=part, forgotten=None),
                extra=replace(alone(step).extra, stride=drawn.stride),
            )
        steps.append(step)
    return steps


def learning_steps(recipe: Recipe, base: Path, out: Path, miniature: Miniature) -> list[Step]:
    """Of scores that learn: what they read, as much of it as is read at all, and the models."""
    if all(score.train is None for score in recipe.scores):
        return []
    steps = steps_in_miniature(recipe, base, out, miniature, miniature.learned)
    by_name = {step.name: step for step in steps}
    waiting = [step.name for step in steps if step.kind == "score"]
    needed: set[str] = set()
    while waiting:
        name = waiting.pop()
        needed.add(name)
        waiting += by_name[name].needs
    return [step for step in steps if step.name in needed]


def without_score(recipe: Recipe, name: str) -> tuple[Recipe, list[str]]:
    """Without the score, and the rules that ask for it; and where these were."""
    names, where = (f"{SCORE}{name}", f"{SCORE}{name}{PERCENTILE}"), []

    def leave_out(place: str, holder: Any, key: str, attribute: str) -> Any:
        rules = getattr(holder, key, None)
        others = [rule for rule in rules or () if getattr(rule, attribute) not in names]
        if rules is None or len(others) == len(rules):
            return holder
        where.append(place)
        return holder.model_copy(update={key: others})

    recipe = leave_out("filters", recipe, "filters", "measure")
    changed: dict[str, Any] = {
        "scores": [score for score in recipe.scores if score.name != name],
        "domains": {
            domain: leave_out(f"domains.{domain}.filters", own, "filters", "measure")
            for domain, own in recipe.domains.items()
        },
        "sources": [
            source.model_copy(
                update={
                    "clean": leave_out(f"sources.{source.name}.filters", source.clean, "filters", "measure")
                }
            )
            for source in recipe.sources
        ],
    }
    if (mixture := recipe.mixture) is not None:
        chosen = {
            key: None for key in ("repeat", "select") if (one := getattr(mixture, key)) and one.by in names
        }
        where += [f"mixture.{key}" for key in chosen]
        stages = [leave_out(f"mixture.stages.{one.name}.where", one, "where", "by") for one in mixture.stages]
        changed["mixture"] = mixture.model_copy(update={**chosen, "stages": stages})
    rest = recipe.model_copy(update=changed)
    # a source of no weight may have been read for the score alone
    where += [
        f"sources.{source.name}"
        for source in rest.sources
        if is_left_out(rest, source) and not is_left_out(recipe, source)
    ]
    return rest, where


def only_read(miniature: Miniature, recipe: Recipe) -> Miniature:
    """Of the sources that this recipe reads."""
    names = {source.name for source in recipe.sources if not is_left_out(recipe, source)}
    return miniature._replace(sources={name: one for name, one in miniature.sources.items() if name in names})


def _smaller(recipe: Recipe, share: Decimal, slack: int) -> Recipe:
    changed: dict[str, object] = {"split": _smaller_split(recipe.split, share)}
    if recipe.mixture is not None:
        changed["mixture"] = _smaller_mixture(recipe.mixture, share, slack)
    if recipe.tokenizer is not None and recipe.tokenizer.train is not None:
        size = _times(recipe.tokenizer.train.sample_megabytes, share)
        training = recipe.tokenizer.train.model_copy(update={"sample_megabytes": size})
        changed["tokenizer"] = recipe.tokenizer.model_copy(update={"train": training})
    return recipe.model_copy(update=changed)


def _smaller_split(split: Split, share: Decimal) -> Split:
    if split.counts is None:
        return split
    sizes = {name: size and _times(size, share) for name, size in split.counts}
    if share < 1:  # it may have less than is asked for: those that are too many go afterwards
        sizes["train"] = None
    return split.model_copy(update={"counts": split.counts.model_copy(update=sizes)})


def passes_of(mixture: Mixture) -> int:
    """That a mixture with a target may take of a document."""
    return mixture.max_epochs if mixture.exhausted == "repeat" else 1


def _smaller_mixture(mixture: Mixture, share: Decimal, slack: int) -> Mixture:
    changed: dict[str, object] = {}
    is_bounded = mixture.target is not None or bool(mixture.stages)
    if share < 1 and is_bounded and mixture.exhausted != "renormalize" and mixture.repeat is None:
        # what is drawn of a source may have less than its share of the tokens: none is used up by that
        changed = {"exhausted": "repeat", "max_epochs": min(slack * passes_of(mixture), MOST_PASSES)}
    if mixture.stages:
        stages = [_smaller_stage(one, share) for one in mixture.stages]
        return mixture.model_copy(update={**changed, "stages": stages})
    if mixture.target is not None:
        unit, size = mixture.target
        changed[unit] = _times(size, share)
    if (select := mixture.select) is not None:
        changed["select"] = select.model_copy(update={"tokens": _times(select.tokens, share)})
    return mixture.model_copy(update=changed)


def _smaller_stage(stage: Stage, share: Decimal) -> Stage:
    key, size = ("steps", stage.steps) if stage.steps is not None else ("tokens", stage.tokens)
    assert size is not None, "one of them is given"
    return stage.model_copy(update={key: _times(size, share)})


def _times(size: int, share: Decimal) -> int:
    return max(int(size * share), 1)
