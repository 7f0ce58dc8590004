"""The steps that documents go through: how a source is read and cleaned, and what is looked for among all.

    how a source is cleaned      sources[].clean  >  domains.<domain>  >  the recipe's own sections

Packs and languages are for prose: a source of the domain `code` is judged by them only where its own name,
or its domain's, asks for it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from tokmill.artifacts.directory import open_artifact
from tokmill.artifacts.manifest import Json, config_of
from tokmill.artifacts.plugins import Plugin, find_plugin
from tokmill.artifacts.side_files import find_data_files
from tokmill.artifacts.snapshot import wrong_shard
from tokmill.artifacts.step import Step
from tokmill.artifacts.stored import RunFiles
from tokmill.artifacts.tombstones import FORGOTTEN_FILE
from tokmill.clean.edits import NormalizeOptions
from tokmill.clean.examine import CleanOptions, version_of
from tokmill.clean.language import (
    LanguageOptions,
    LanguagePlan,
    known_languages,
    model_sha256,
    primary_code,
    score_for_recall,
)
from tokmill.clean.license_policy import make_policy
from tokmill.clean.rules import Kind, Rule, compile_filters, load_pack, score_rules
from tokmill.clean.url_policy import RobotsPolicy, UrlPolicy, find_lists
from tokmill.duplicates.near import choose_bands
from tokmill.errors import RecipeError, TokmillError
from tokmill.pipeline.hashing import hashing_files
from tokmill.pipeline.references import open_references
from tokmill.pipeline.scores import has_stored_scores, model_files, plan_scores, stored_model_files
from tokmill.recipe import (
    CleanLimits,
    Corpus,
    Dedup,
    Hub,
    Language,
    License,
    Mixture,
    Recipe,
    Robots,
    Sample,
    Source,
    Urls,
)
from tokmill.schema import PERCENTILE, SCORE
from tokmill.sources.hub import is_pinned, resolve_revision
from tokmill.sources.readers import list_corpus, list_hub_of_language, list_source, resolve_reading
from tokmill.sources.reading import Reading
from tokmill.stages.clean import CleanExtra, cleaning_task, list_inputs, model_inputs
from tokmill.stages.dedup.method import OWN_SOURCE, DedupExtra
from tokmill.stages.dedup.stage import AllOptions
from tokmill.stages.inference import InferenceExtra, InferenceOptions
from tokmill.stages.ingest.options import (
    HubConfig,
    HubOptions,
    IngestExtra,
    IngestOptions,
    LimitOptions,
    SampleOptions,
)
from tokmill.stages.ingest.stage import INPUT_STATS
from tokmill.stages.ranking import RankedScore, RankOptions
from tokmill.storage.location import (
    InputFile,
    ObjectFile,
    file_sha256,
    local_path,
    marks_of_place,
)
from tokmill.storage.on_demand import place_of

CODE = "code"


_LOG = logging.getLogger("tokmill.pipeline")

# of each source of a recipe, which labels its documents keep where their records carry them
Own = Mapping[str, Sequence[str]]


def own_section(section: str, recipe: Recipe, source: Source) -> Any:
    """What the source says of itself, or else the domain; None where neither says anything."""
    for cleaning in (source.clean, recipe.domains.get(source.domain)):
        found = getattr(cleaning, section, None)
        if found is not None:
            return found
    return None


def kept_languages(recipe: Recipe, source: Source) -> list[str]:
    """Of a dataset with a config for each language they choose one."""
    language: Language | None = own_section("language", recipe, source) or recipe.language
    return language.keep if language else []


def refuse_idle_packs(recipe: Recipe) -> None:
    """A pack of the whole recipe that is for code, where no source is:
    it would judge nothing, without a word."""
    for rule in recipe.filters:
        is_for_code = rule.pack is not None and load_pack(rule.pack).judges == "code"
        if is_for_code and CODE not in {source.domain for source in recipe.sources}:
            raise RecipeError(
                f"the pack `{rule.pack}` judges sources of `domain: {CODE}`, and there is none",
                where="filters",
                next=f"say `domain: {CODE}` in the sources that are code, "
                f"or give them `clean: {{filters: [{rule.pack}]}}`",
            )


def resolve_cleaning(recipe: Recipe, source: Source, base: Path) -> CleanOptions:
    """The options of a source's cleaning."""
    own_filters = own_section("filters", recipe, source)
    filters = recipe.filters if own_filters is None else own_filters
    # a pack is made for prose or for code, languages are of prose;
    # a source is judged by others where its own name asks
    is_code = source.domain == CODE
    kind: Kind = "code" if is_code else "prose"
    sieve = compile_filters(filters, base, inherited_by=kind if own_filters is None else None)
    if source.chat is not None and sieve.line_edits is not None:
        raise RecipeError(
            f"{', '.join(sieve.packs)} takes lines out of texts, and {source.name} has conversations",
            where="filters",
            next=f"give {source.name} filters of its own: `clean: {{filters: []}}`",
        )
    language: Language | None = own_section("language", recipe, source) or (
        None if is_code else recipe.language
    )
    redact = own_section("redact", recipe, source)
    normalize = own_section("normalize", recipe, source) or recipe.normalize
    license: License | None = own_section("license", recipe, source) or recipe.license
    urls: Urls | None = own_section("urls", recipe, source) or recipe.urls
    robots: Robots | None = own_section("robots", recipe, source) or recipe.robots
    own_transforms = own_section("transforms", recipe, source)
    names = recipe.transforms if own_transforms is None else own_transforms
    transforms = tuple(find_transform(name, base) for name in names)
    scores = plan_scores(recipe.scores, base)[0]
    if source.chat is not None:
        scores = tuple(structs.replace(plan, without_marks=True) for plan in scores)
    return CleanOptions(
        source=source.name,
        normalize=msgspec.convert(normalize, NormalizeOptions, from_attributes=True),
        license=make_policy(license.allow, license.deny, license.unknown) if license else None,
        language=language_plan(language, source) if language else None,
        sieve=sieve,
        redact=tuple(sorted(recipe.redact if redact is None else redact)),
        transforms=transforms or msgspec.UNSET,
        is_chat=True if transforms and source.chat is not None else msgspec.UNSET,
        urls=url_policy(urls, base) if urls else msgspec.UNSET,
        robots=RobotsPolicy(robots.field, tuple(dict.fromkeys(robots.drop))) if robots else msgspec.UNSET,
        scores=scores or msgspec.UNSET,
        version=version_of(sieve, scores),
    )


def url_policy(urls: Urls, base: Path) -> UrlPolicy:
    block = urls.block
    return UrlPolicy(
        field=urls.field,
        domains=tuple(dict.fromkeys(block.domains)),
        words=tuple(dict.fromkeys(word.lower() for word in block.words)),
        lists=tuple(url_lists(urls, base)),
        unknown=urls.unknown,
    )


def url_lists(urls: Urls | None, base: Path) -> dict[str, InputFile]:
    """By name, in the order of the recipe: of two that list a domain the first is told."""
    found: dict[str, InputFile] = {}
    for file in (
        file for pattern in (urls.block.lists if urls else ()) for file in find_lists(pattern, base)
    ):
        if found.setdefault(file.name, file).path != file.path:
            raise RecipeError(
                f"two lists are called {file.name}",
                where="urls.block.lists",
                next="name one of them otherwise: drops are told by these names",
            )
    return found


def url_list_files(recipe: Recipe, source: Source, base: Path) -> dict[str, tuple[Path, str]]:
    """By name, where a list that judges the source is, and its sha256."""
    urls = own_section("urls", recipe, source) or recipe.urls
    return {name: (local_path(file.path), _list_sha256(file)) for name, file in url_lists(urls, base).items()}


@functools.lru_cache(maxsize=1024)
def _list_sha256(file: InputFile) -> str:
    """Once for all sources that it judges."""
    return file_sha256(file.path)


def find_transform(name: str, base: Path) -> Plugin:
    return find_plugin("transforms", name, base, "transforms")


def language_plan(language: Language, source: Source) -> LanguagePlan:
    asked = msgspec.convert(language, LanguageOptions, from_attributes=True)
    if language.method == "detect":
        _refuse_unknown_codes(language)
        if language.recall is not None:
            least = Decimal(str(score_for_recall(language.detector, language.recall)))
            asked = structs.replace(asked, min_score=least)
        return LanguagePlan(asked, "detect", model=model_sha256(language.detector))
    key = source.fields.language
    if language.method == "field" and key:
        return LanguagePlan(asked, "field", key, version=2 if asked.keep else msgspec.UNSET)
    return LanguagePlan(asked, "none", key)


def _refuse_unknown_codes(language: Language) -> None:
    """A code that the detector never answers would keep nothing, and say nothing."""
    known = known_languages(language.detector) if language.keep else frozenset()
    strange = [code for code in language.keep if primary_code(code) not in known]
    if strange:
        near = sorted({code for wanted in strange for code in known if code[:2] == primary_code(wanted)[:2]})
        raise RecipeError(
            f"{language.detector} knows no language {', '.join(map(repr, strange))}",
            where="language.keep",
            next=(
                f"its codes are ISO 639-1 where there is one{', such as ' + ', '.join(near) if near else ''}"
            ),
        )


def is_left_out(recipe: Recipe, source: Source) -> bool:
    """A weight of 0, in every stage if there are any: such a source is not read, and needs no files, unless
    others are compared with it, or a score learns from it, or may: labels can be of any source."""
    trained = [score.train for score in recipe.scores if score.train is not None]
    is_learned_from = any(train.labels is not None or source.name in train.sources for train in trained)
    if recipe.mixture is None or source.name in recipe.dedup.reference or is_learned_from:
        return False
    mixture, length = recipe.mixture, recipe.pack.length
    # each stage has weights of its own: one that gives the source any is enough
    staged = [mixture.of_stage(stage, stage.length or length) for stage in mixture.stages]
    return all(has_no_share(one, source) for one in staged or [mixture])


def refuse_unread_fallback(recipe: Recipe, source: Source) -> None:
    """What a source lacks of its limit is known where it is read."""
    other = next((other for other in recipe.sources if other.name == source.fallback), None)
    if other is not None and is_left_out(recipe, source) and not is_left_out(recipe, other):
        raise RecipeError(
            f"{source.name} has a weight of 0 and is not read: how much of {other.name} is needed "
            "is not known",
            where="fallback",
            next=f"leave `fallback` out, and {other.name} is read for itself, or give {source.name} a weight",
        )


def has_no_share(mixture: Mixture, source: Source) -> bool:
    within = mixture.sources.get(source.domain, {})
    return mixture.weights.get(source.domain, 1) == 0 or within.get(source.name, 1) == 0


def those_before(recipe: Recipe, source: Source) -> list[str]:
    """Sources that this one is the fallback of."""
    return [other.name for other in recipe.sources if other.fallback == source.name]


# of an estimate: some files of a source
Choose = Callable[[str, list[InputFile]], list[InputFile]]


def source_steps(
    recipe: Recipe, source: Source, base: Path, out: Path, own: Sequence[str], choose: Choose | None = None
) -> list[Step]:
    ingest_directory, clean_directory = out / "ingest" / source.name, out / "clean" / source.name
    found = _find(recipe, source, base, ingest_directory, own, choose)
    cleaning = resolve_cleaning(recipe, source, base)
    lists = url_list_files(recipe, source, base)
    models = model_files(recipe.scores, base)
    inputs = (*list_inputs(lists), *model_inputs(models))
    learned = tuple(f"score/{score.name}" for score in recipe.scores if score.train is not None)
    normalize = own_section("normalize", recipe, source) or recipe.normalize
    ingest = Step(
        name=f"ingest/{source.name}",
        kind="ingest",
        directory=ingest_directory,
        options=IngestOptions(
            reading=found.reading,
            hub=found.hub,
            where=source.where,
            shard_bytes=recipe.shards.bytes,
            on_bad_record=source.on_bad_record,
            limit=msgspec.convert(source.limit, LimitOptions | None, from_attributes=True),
            sample=_sample_options(source.sample, recipe.seed) if source.sample else None,
        ),
        needs=tuple(f"ingest/{name}" for name in those_before(recipe, source)),
        files=found.digests,
        extra=IngestExtra(
            files=found.files,
            hub=found.dataset,
            max_bad_fraction=source.max_bad_fraction,
            forgotten=out / FORGOTTEN_FILE,
            missing=found.missing,
            # models that are still to be trained and scores that are stored are made of what is read, and
            # cleaning needs them: it is a pass of its own then
            follower=None
            if learned or has_stored_scores(recipe)
            else cleaning_task(cleaning, clean_directory, inputs),
        ),
    )
    inference = _inference_step(recipe, source, cleaning, base, out, ingest.name)
    clean = Step(
        name=f"clean/{source.name}",
        kind="clean",
        directory=clean_directory,
        options=cleaning,
        needs=(ingest.name, *(step.name for step in inference), *learned),
        files={
            **{f"urls {name}": digest for name, (_, digest) in lists.items()},
            **{f"score {name}": digest for name, (_, digest) in models.items()},
        },
        extra=CleanExtra(
            normalize.max_nul_fraction, normalize.max_nul_documents, recipe.clean or CleanLimits(), inputs
        ),
    )
    return [ingest, *inference, clean]


def _sample_options(sample: Sample, seed: int) -> SampleOptions:
    version = 2 if sample.method == "hash" else 1
    return SampleOptions(seed=seed, version=version, **sample.model_dump(exclude_none=True))


def _inference_step(
    recipe: Recipe, source: Source, cleaning: CleanOptions, base: Path, out: Path, ingest: str
) -> list[Step]:
    """Where scores are stored: the step that computes them."""
    plans = tuple(plan for plan in cleaning.scores or () if plan.is_stored)
    if not plans:
        return []
    files = stored_model_files(recipe.scores, base)
    return [
        Step(
            name=f"inference/{source.name}",
            kind="inference",
            directory=out / "inference" / source.name,
            options=InferenceOptions(source=source.name, normalize=cleaning.normalize, scores=plans),
            needs=(ingest,),
            files={f"score {name}": digest for name, (_, digest) in files.items()},
            extra=InferenceExtra(model_inputs(files)),
        )
    ]


def ingest_files(recipe: Recipe, source: Source, base: Path, directory: Path) -> Step:
    """Files of examples, which are read as those of a source and are no part of the corpus."""
    files = list_source(source, base)
    return Step(
        name=f"examples/{source.name}",
        kind="examples",
        directory=directory,
        options=IngestOptions(
            reading=resolve_reading(source, files, base, ()),
            hub=None,
            where={},
            shard_bytes=recipe.shards.bytes,
            on_bad_record=source.on_bad_record,
            limit=None,
            sample=None,
            forgotten=None,
        ),
        files=_input_digests(files, directory),
        extra=IngestExtra(files=files, max_bad_fraction=source.max_bad_fraction),
    )


def ranking_step(recipe: Recipe, out: Path, documents: tuple[str, ...]) -> Step:
    """Percentiles, and the rules on them that each source has."""
    ranked = tuple(RankedScore(score.name, score.percentile) for score in recipe.scores if score.percentile)
    rules: dict[str, tuple[Rule, ...]] = {}
    for source in recipe.sources:
        own = own_section("filters", recipe, source)
        filters = recipe.filters if own is None else own
        found = [
            rule
            for one in filters
            if one.measure is not None and one.measure.startswith(SCORE) and one.measure.endswith(PERCENTILE)
            for rule in score_rules(one)
        ]
        if found and f"clean/{source.name}" in documents:
            rules[source.name] = tuple(found)
    return Step("scores", "scores", out / "scores", RankOptions(ranked=ranked, rules=rules), documents)


def dedup_step(dedup: Dedup, base: Path, out: Path, documents: tuple[str, ...], own: Own) -> Step:
    resolved: Json = {}
    if dedup.scope == "per-source" and any("source" in labels for labels in own.values()):
        resolved["scope"] = OWN_SOURCE
    if dedup.near is not None and dedup.near.bands is None:
        bands, rows = choose_bands(float(dedup.near.threshold))
        resolved["near"] = dedup.near.model_copy(update={"bands": bands, "rows": rows})
    asked = msgspec.convert(dedup.model_copy(update=resolved), AllOptions, from_attributes=True)
    options = msgspec.structs.replace(asked, reference=tuple(dedup.reference_sources))
    earlier = open_references(dedup, base, out)  # what is asked of these is in the options already
    files = {f"reference {corpus.name}": corpus.digest for corpus in earlier}
    benchmarks: list[InputFile] = []
    if dedup.against is not None:
        benchmarks = find_data_files(dedup.against.files, base)
        files |= {f"against {file.name}": file_sha256(local_path(file.path)) for file in benchmarks}
    extra = DedupExtra(benchmarks, dedup.warn_source_loss, earlier)
    return Step("dedup", "dedup", out / "dedup", options, documents, files, extra)


class _Found(NamedTuple):
    """What a source has: its files (None: known from the manifest, not looked up again),
    and how to read them."""

    files: list[InputFile] | None
    digests: dict[str, str]
    reading: Reading
    hub: HubOptions | None
    dataset: Hub | None = None  # with the config that is read
    missing: TokmillError | None = None  # of a fallback: why it could not be listed


def _find(
    recipe: Recipe,
    source: Source,
    base: Path,
    directory: Path,
    own: Sequence[str],
    choose: Choose | None,
) -> _Found:
    """Of a fallback that cannot be listed nothing is known until it is needed, and it may never be."""
    try:
        if source.hub is None:
            return _find_files(source, base, directory, own, choose)
        found = _find_on_hub(source, source.hub, directory, kept_languages(recipe, source), base, own)
        return found if choose is None else found._replace(files=choose(source.name, found.files or []))
    except TokmillError as error:
        before = ", ".join(those_before(recipe, source))
        if not before or isinstance(error, RecipeError):
            raise
        where = f"{error.where}: " if error.where else ""
        message = "source %s cannot be read (%s%s); it is needed only if %s has less than its limit"
        _LOG.warning(message, source.name, where, error.what, before)
        return _Found([], {}, resolve_reading(source, [], base, own), None, missing=error)


def _find_files(
    source: Source, base: Path, directory: Path, own: Sequence[str], choose: Choose | None
) -> _Found:
    files = list_source(source, base)
    if choose is not None:
        files = choose(source.name, files)
    digests = _input_digests(files, directory)
    if source.corpus is not None and choose is None:
        _check_listed(source.corpus, base, digests)
    return _Found(files, digests, resolve_reading(source, files, base, own), None)


def _check_listed(corpus: Corpus, base: Path, digests: Mapping[str, str]) -> None:
    """No shard of a snapshot is used whose bytes are not the listed ones."""
    for file, expected in list_corpus(corpus, base):
        if digests[file.name] != expected:
            raise wrong_shard(file.path, digests[file.name], expected)


def _find_on_hub(
    source: Source, hub: Hub, directory: Path, languages: list[str], base: Path, own: Sequence[str]
) -> _Found:
    """From the manifest of an earlier ingest if it was asked the same; only otherwise from the network."""
    asked = hub.model_dump(mode="json")
    reading = resolve_reading(source, [], base, own)
    revision = None
    with contextlib.suppress(TokmillError):
        artifact = open_artifact(directory)
        known = artifact.manifest.options(IngestOptions) if artifact else None
        if artifact and known and known.hub is not None and known.hub.asked == asked:
            revision = known.hub.revision
            before = known.hub.chosen or HubConfig(hub.config, tuple(languages))
            if config_of(known.reading) == config_of(reading) and before.languages == tuple(languages):
                read = hub.model_copy(update={"config": before.config})
                labels = artifact.manifest.inputs.items()
                digests = {n.removeprefix("file "): d for n, d in labels if n.startswith("file ")}
                return _Found(None, digests, reading, known.hub, read)
    if revision is None:
        revision = resolve_revision(hub.dataset, hub.revision)
        if not is_pinned(hub.revision):
            _LOG.warning("%s: %s is commit %s now", hub.dataset, hub.revision or "main", revision)
    read, files = list_hub_of_language(hub, revision, languages)
    digests = {file.name: f"hub:{file.path.sha256 or file.path.oid}" for file in files}  # type: ignore[union-attr]
    resolve_reading(source, files, base, own)  # a typo is told before anything is downloaded
    chosen = HubConfig(read.config, tuple(languages)) if read.config != hub.config else None
    return _Found(files, digests, reading, HubOptions(asked, revision, chosen), read)


def input_stats(directory: Path) -> Mapping[str, list[int | str]]:
    """By name, size, time, sha256 and place of what the last ingest into `directory` has read."""
    with contextlib.suppress(TokmillError):  # a damaged manifest vouches for nothing
        artifact = open_artifact(directory)
        if artifact is not None:
            known: Mapping[str, list[int | str]] = artifact.manifest.environment.get(INPUT_STATS, {})
            return known
    return {}


def _input_digests(files: list[InputFile], directory: Path) -> dict[str, str]:
    """sha256 by name; a file that the last run has read, of this size and time, keeps its recorded one."""
    known = input_stats(directory)
    fresh = fresh_files(files, known)
    place = place_of(directory)
    apart = [file for file in fresh if isinstance(place, RunFiles) and isinstance(file.path, ObjectFile)]
    hashed = place.digests(directory, apart) if isinstance(place, RunFiles) and apart else {}
    with hashing_files() as hashing:
        fresh = [file for file in fresh if file.name not in hashed]
        hashing.begin(fresh)
        hashed |= {file.name: hashing.digest(file) for file in fresh}
    return {file.name: hashed.get(file.name) or str(known[file.name][2]) for file in files}


def fresh_files(files: Sequence[InputFile], known: Mapping[str, list[int | str]]) -> list[InputFile]:
    """Those that the last run has not read, as they are now."""
    return [file for file in files if not _was_there(file, known.get(file.name, []))]


def _was_there(file: InputFile, before: Sequence[int | str]) -> bool:
    """Time and size alone are those of another file too, where both come out of an archive. Runs of earlier
    versions know no places."""
    marks = before[3:]
    is_same = list(before[:2]) == [file.bytes, file.modified_ns]
    return is_same and (not marks or any(mark in marks for mark in marks_of_place(file.path)))
