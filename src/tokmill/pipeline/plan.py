"""The plan: a recipe as ordered steps, each with all that can change a byte of its artifact.

    ingest/<source> ─ clean/<source> ┐
    ingest/<source> ─ clean/<source> ┴ dedup ─ split ─ tokenizer ─ tokens ─ mixture ─ build/<name> …

    how a source is cleaned      sources[].clean  >  domains.<domain>  >  the recipe's own sections

A step knows what it needs; `run_manifest.assess` says whether it is up to date. Packs and languages are for prose: a
source of the domain `code` is judged by them only where its own name, or its domain's, asks for it.

    tokenizer    path: the file's sha256     train: options with their defaults, the sample and the shares of sources in it
    mixture      which documents, in which order; without one, all, in corpus order
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from tokmill.artifacts.manifest import Json, config_of
from tokmill.artifacts.plugins import find_plugin
from tokmill.artifacts.snapshot import wrong_shard
from tokmill.artifacts.step import Step, open_artifact
from tokmill.artifacts.tombstones import FORGOTTEN_FILE, digest_of_source, load_forgotten
from tokmill.clean.edits import NormalizeOptions
from tokmill.clean.examine import CleanOptions
from tokmill.clean.language import (
    LanguageOptions,
    LanguagePlan,
    known_languages,
    model_sha256,
    primary_code,
    score_for_recall,
)
from tokmill.clean.license_policy import make_policy
from tokmill.clean.rules import compile_filters
from tokmill.duplicates.near import choose_bands
from tokmill.errors import RecipeError, TokenizerError, TokenizerMismatch, TokmillError
from tokmill.formats import find_format, format_names, resolve_format
from tokmill.packing.mixture import check_weights
from tokmill.recipe import (
    Build,
    Corpus,
    Dedup,
    Hub,
    Language,
    License,
    Mixture,
    Pack,
    Recipe,
    Source,
    Training,
    format_mistakes,
)
from tokmill.sources.hub import is_pinned, resolve_revision
from tokmill.sources.readers import (
    list_corpus,
    list_hub_of_language,
    list_source,
    resolve_reader,
    resolve_reading,
)
from tokmill.sources.reading import Reading
from tokmill.stages.build.blocks import BuildOptions, PackOptions
from tokmill.stages.build.mixture import MixtureOptions
from tokmill.stages.clean import CleanExtra, cleaning_task
from tokmill.stages.dedup.method import OWN_SOURCE, DedupExtra
from tokmill.stages.dedup.stage import AllOptions
from tokmill.stages.ingest.shards import (
    HubConfig,
    HubOptions,
    IngestExtra,
    IngestOptions,
    LimitOptions,
    SampleOptions,
)
from tokmill.stages.ingest.stage import INPUT_STATS
from tokmill.stages.registry import STAGES
from tokmill.stages.sampling import SplitOptions
from tokmill.stages.tokens.stage import TokensExtra, TokensOptions
from tokmill.stages.tokens.tokenizer import Shares, TokenizerExtra, TokenizerOptions
from tokmill.storage.location import InputFile, file_sha256, find_files, local_path
from tokmill.tokenizers.load import check_dtype, load_tokenizer
from tokmill.tokenizers.train import resolve_options

CODE = "code"


def own_section(section: str, recipe: Recipe, source: Source) -> Any:
    """What the source says of itself, or else the domain; None where neither says anything."""
    for cleaning in (source.clean, recipe.domains.get(source.domain)):
        found = getattr(cleaning, section, None)
        if found is not None:
            return found
    return None


def check_cleaning(recipe: Recipe, base: Path) -> None:
    """Packs, measures, licences and plugins that a recipe names are there: all that can be known without its files."""
    for source in recipe.sources:
        resolve_cleaning(recipe, source, base)
        resolve_reader(source, base)
    if recipe.tokenizer is not None and recipe.tokenizer.plugin is not None:
        find_plugin("tokenizers", recipe.tokenizer.plugin, base, "tokenizer.plugin")
    for build in recipe.builds:
        resolve_format(build.format, base, f"builds.{build.name}")


def resolve_cleaning(recipe: Recipe, source: Source, base: Path) -> CleanOptions:
    """The options of a source's cleaning."""
    own_filters = own_section("filters", recipe, source)
    filters = recipe.filters if own_filters is None else own_filters
    # packs and languages are of prose; code is judged by them only where its own name asks for it
    is_code = source.domain == CODE
    sieve = compile_filters(filters, base, skip_packs=own_filters is None and is_code)
    language: Language | None = own_section("language", recipe, source) or (
        None if is_code else recipe.language
    )
    redact = own_section("redact", recipe, source)
    normalize = own_section("normalize", recipe, source) or recipe.normalize
    license: License | None = own_section("license", recipe, source) or recipe.license
    own_transforms = own_section("transforms", recipe, source)
    names = recipe.transforms if own_transforms is None else own_transforms
    transforms = tuple(find_plugin("transforms", name, base, "transforms") for name in names)
    return CleanOptions(
        source=source.name,
        normalize=msgspec.convert(normalize, NormalizeOptions, from_attributes=True),
        license=make_policy(license.allow, license.deny, license.unknown) if license else None,
        language=_language_plan(language, source) if language else None,
        sieve=sieve,
        redact=tuple(sorted(recipe.redact if redact is None else redact)),
        transforms=transforms or msgspec.UNSET,
    )


def _language_plan(language: Language, source: Source) -> LanguagePlan:
    asked = msgspec.convert(language, LanguageOptions, from_attributes=True)
    if language.method == "detect":
        _refuse_unknown_codes(language)
        if language.recall is not None:
            least = Decimal(str(score_for_recall(language.detector, language.recall)))
            asked = structs.replace(asked, min_score=least)
        return LanguagePlan(asked, "detect", model=model_sha256(language.detector))
    key = source.fields.language
    return LanguagePlan(asked, "field" if language.method == "field" and key else "none", key)


def _refuse_unknown_codes(language: Language) -> None:
    """A code that the detector never answers would keep nothing, and say nothing."""
    known = known_languages(language.detector) if language.keep else frozenset()
    strange = [code for code in language.keep if primary_code(code) not in known]
    if strange:
        near = sorted({code for wanted in strange for code in known if code[:2] == primary_code(wanted)[:2]})
        raise RecipeError(
            f"{language.detector} knows no language {', '.join(map(repr, strange))}",
            where="language.keep",
            next=f"its codes are ISO 639-1 where there is one{', such as ' + ', '.join(near) if near else ''}",
        )


_LOG = logging.getLogger("tokmill.pipeline.plan")

# of each source of a recipe, which labels its documents keep where their records carry them
Own = Mapping[str, Sequence[str]]


def plan_steps(recipe: Recipe, base: Path, out: Path, own: Own | None = None) -> list[Step]:
    """All steps in order. Reads the input listing and the first records; hashes files it has not seen.

    `own`: by source, which of "source" and "domain" documents keep where their records say them.
    """
    steps: list[Step] = []
    for source in recipe.sources:
        if not is_left_out(recipe, source):
            steps += _source_steps(recipe, source, base, out, (own or {}).get(source.name, ()))
    documents = tuple(step.name for step in steps)
    dedup = recipe.dedup
    if dedup.exact or dedup.near or dedup.window or dedup.against:
        steps.append(_dedup_step(dedup, base, out, documents, own or {}))
        documents += ("dedup",)
    split: SplitOptions = msgspec.convert(recipe.split.settings(recipe.seed), SplitOptions)
    steps.append(Step("split", "split", out / "split", split, documents))
    documents += ("split",)
    if recipe.tokenizer is not None:
        steps.append(tokenizer_step(recipe, base, out, documents))
        narrow = TokensExtra(narrow_builds(recipe))
        needs = (*documents, "tokenizer")
        steps.append(Step("tokens", "tokens", out / "tokens", TokensOptions(), needs, extra=narrow))
        steps += build_steps(recipe, base, out, documents)
    return steps


def kernels_needed(steps: Sequence[Step]) -> set[str]:
    """Modules of kernels that these steps call."""
    every_run = {"characters", "wordclasses", "hashing", "jsonlines"}
    return every_run.union(*(STAGES[step.kind].kernels(step.options) for step in steps))


def steps_until(steps: list[Step], until: str | None) -> list[Step]:
    """All steps up to and with the last one that is called `until` or is of that kind."""
    if until is None:
        return steps
    last = max((index for index, step in enumerate(steps) if until in (step.name, step.kind)), default=None)
    if last is None:
        names = ", ".join(dict.fromkeys(name for step in steps for name in (step.kind, step.name)))
        raise RecipeError(f"no step is called {until}", where="--until", next=f"one of: {names}")
    chosen = steps[: last + 1]
    names_chosen = {step.name for step in chosen}
    return [
        replace(step, extra=replace(step.extra, follower=None))  # nobody asked for cleaning
        if step.kind == "ingest" and step.name.replace("ingest/", "clean/", 1) not in names_chosen
        else step
        for step in chosen
    ]


def waves(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """The steps in groups: all of a group can be worked on at once, when those before are done."""
    done: set[str] = set()
    waiting = list(steps)
    while waiting:
        ready = [step for step in waiting if done.issuperset(step.needs)]
        assert ready, "steps need each other"
        yield ready
        done.update(step.name for step in ready)
        waiting = [step for step in waiting if step.name not in done]


def _source_steps(recipe: Recipe, source: Source, base: Path, out: Path, own: Sequence[str]) -> list[Step]:
    ingest_directory, clean_directory = out / "ingest" / source.name, out / "clean" / source.name
    if source.hub is not None:
        language = own_section("language", recipe, source) or recipe.language
        languages = language.keep if language else []
        found = _find_on_hub(source, source.hub, ingest_directory, languages, base, own)
    else:
        files = list_source(source, base)
        digests = _input_digests(files, ingest_directory)
        if source.corpus is not None:
            _check_listed(source.corpus, base, digests)
        found = _Found(files, digests, resolve_reading(source, files, base, own), None)
    cleaning = resolve_cleaning(recipe, source, base)
    normalize = own_section("normalize", recipe, source) or recipe.normalize
    forgotten = out / FORGOTTEN_FILE
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
            sample=SampleOptions(seed=recipe.seed, **source.sample.model_dump(exclude_none=True))
            if source.sample
            else None,
            forgotten=digest_of_source(load_forgotten(out), source.name) if forgotten.is_file() else None,
        ),
        needs=tuple(f"ingest/{other.name}" for other in recipe.sources if other.fallback == source.name),
        files=found.digests,
        extra=IngestExtra(
            files=found.files,
            hub=found.dataset,
            max_bad_fraction=source.max_bad_fraction,
            forgotten=forgotten,
            follower=cleaning_task(cleaning, clean_directory),
        ),
    )
    clean = Step(
        name=f"clean/{source.name}",
        kind="clean",
        directory=clean_directory,
        options=cleaning,
        needs=(ingest.name,),
        extra=CleanExtra(normalize.max_nul_fraction, recipe.dedup.warn_source_loss),
    )
    return [ingest, clean]


def _dedup_step(dedup: Dedup, base: Path, out: Path, documents: tuple[str, ...], own: Own) -> Step:
    resolved: Json = {}
    if dedup.scope == "per-source" and any("source" in labels for labels in own.values()):
        resolved["scope"] = OWN_SOURCE
    if dedup.near is not None and dedup.near.bands is None:
        bands, rows = choose_bands(float(dedup.near.threshold))
        resolved["near"] = dedup.near.model_copy(update={"bands": bands, "rows": rows})
    options = msgspec.convert(dedup.model_copy(update=resolved), AllOptions, from_attributes=True)
    files: dict[str, str] = {}
    benchmarks: list[InputFile] = []
    if dedup.against is not None:
        benchmarks = list(
            dict.fromkeys(f for pattern in dedup.against.files for f in find_files(pattern, base))
        )
        files = {f"against {file.name}": file_sha256(local_path(file.path)) for file in benchmarks}
    extra = DedupExtra(benchmarks, dedup.warn_source_loss)
    return Step("dedup", "dedup", out / "dedup", options, documents, files, extra)


class _Found(NamedTuple):
    """What a source has: its files (None: known from the manifest, not looked up again), and how to read them."""

    files: list[InputFile] | None
    digests: dict[str, str]
    reading: Reading
    hub: HubOptions | None
    dataset: Hub | None = None  # with the config that is read


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


def _input_digests(files: list[InputFile], directory: Path) -> dict[str, str]:
    """sha256 by name; a file whose size and time are those of the last run keeps its recorded one."""
    known: Mapping[str, list[int | str]] = {}
    try:
        artifact = open_artifact(directory)
        if artifact is not None:
            known = artifact.manifest.environment.get(INPUT_STATS, {})
    except TokmillError:
        pass  # a damaged manifest vouches for nothing
    fresh = [file for file in files if known.get(file.name, [])[:2] != [file.bytes, file.modified_ns]]
    with ThreadPoolExecutor(2) as pool:  # hashing releases the GIL; two are enough to keep a disk busy
        hashed = dict(
            zip((file.name for file in fresh), pool.map(lambda f: file_sha256(f.path), fresh), strict=True)
        )
    return {file.name: hashed.get(file.name) or str(known[file.name][2]) for file in files}


def build_steps(recipe: Recipe, base: Path, out: Path, documents: Sequence[str]) -> list[Step]:
    """The mixture, if there is one, and the builds; `documents` are the steps that the tokens come from."""
    ingests = tuple(name for name in documents if name.startswith("ingest/"))
    needs: tuple[str, ...] = ("tokens", *ingests)
    steps: list[Step] = []
    if recipe.mixture is not None:
        options = _mixture_options(recipe, recipe.mixture)
        steps.append(Step("mixture", "mixture", out / "mixture", options, (*needs, "split")))
        needs += ("mixture",)
    for build in recipe.builds:
        made = _build_options(recipe, build, base)
        steps.append(Step(f"build/{build.name}", "build", out / "build" / build.name, made, needs))
    return steps


def narrow_builds(recipe: Recipe) -> list[str]:
    """Builds whose ids have two bytes because the recipe says so: a vocabulary may be too large for them."""
    return [build.name for build in recipe.builds if build.dtype == "uint16"]


def is_left_out(recipe: Recipe, source: Source) -> bool:
    """A weight of 0: such a source is not read, and needs no files, unless others are compared with it."""
    if recipe.mixture is None or source.name in recipe.dedup.reference:
        return False
    weights, within = recipe.mixture.weights, recipe.mixture.sources.get(source.domain, {})
    return weights.get(source.domain, 1) == 0 or within.get(source.name, 1) == 0


def resolved_weights(
    recipe: Recipe, mixture: Mixture, *, is_told: bool = True
) -> tuple[dict[str, str] | None, dict[str, dict[str, str]]]:
    """Of domains (None: by what they have), and within domains, as exact fractions; told: a sum that is not 1 was
    spoken of already."""
    normalize = mixture.normalize or is_told
    known: dict[str, list[str]] = {}
    for source in recipe.sources:
        known.setdefault(source.domain, []).append(source.name)
    domains = None
    if mixture.weights:
        checked = check_weights(mixture.weights, list(known), where="mixture.weights", normalize=normalize)
        domains = _written(checked)
    within = {}
    for domain, weights in mixture.sources.items():
        if domain not in known:
            names = ", ".join(known)
            raise RecipeError(
                f"no domain is called {domain}", where="mixture.sources", next=f"one of: {names}"
            )
        where = f"mixture.sources.{domain}"
        within[domain] = _written(
            check_weights(weights, known[domain], where=where, normalize=normalize, kind="source")
        )
    return domains, within


def _mixture_options(recipe: Recipe, mixture: Mixture) -> MixtureOptions:
    domains, within = resolved_weights(recipe, mixture, is_told=False)
    target = mixture.target
    is_padded = recipe.pack.layout == "pad" and all(
        build.pack in (None, recipe.pack) and "rows" in find_format(build.format).shapes
        for build in recipe.builds
    )
    if target is not None and target[0] == "blocks" and is_padded:  # a row is a document, however long
        target = "documents", target[1]
    return MixtureOptions(
        domains=domains,
        sources=within,
        domain_of={source.name: source.domain for source in recipe.sources},
        target=target,
        exhausted=mixture.exhausted,
        max_epochs=mixture.max_epochs,
        order=mixture.order,
        held_out=mixture.held_out,
        seed=recipe.seed,
        seq_len=recipe.pack.length,
        met="from above" if target is not None and target[0] == "blocks" else msgspec.UNSET,
    )


def _written(weights: dict[str, Fraction]) -> dict[str, str]:
    return {name: str(weight) for name, weight in weights.items()}


def _build_options(recipe: Recipe, build: Build, base: Path) -> BuildOptions:
    pack = build.pack or recipe.pack
    balance = recipe.mixture.balance if recipe.mixture is not None else "none"
    format, plugin = resolve_format(build.format, base, f"builds.{build.name}")
    for place, why in format_mistakes(build, format):
        key = ".".join(map(str, place))
        raise RecipeError(why, where=f"builds.{build.name}.{key}", next="change it, or choose another format")
    if "rows" not in format.shapes:
        pack = Pack(layout="indexed")
    if "documents" not in format.shapes and pack.layout == "indexed":
        *others, last = format_names("documents")
        raise RecipeError(
            f"{build.format} is made of rows, and the layout `indexed` has none",
            where=f"builds.{build.name}",
            next=f"choose another layout for it with `pack`, or the format {', '.join(others)} or `{last}`",
        )
    return BuildOptions(
        name=build.name,
        format=build.format,
        plugin=plugin,
        dtype=build.dtype,
        sources=tuple(build.sources),
        rows_per_shard=build.rows_per_shard if format.is_sharded else 0,
        pack=_pack_options(pack, balance),
        balance=balance if pack.layout != "indexed" else "none",
        seed=recipe.seed,
    )


def _pack_options(pack: Pack, balance: str) -> PackOptions:
    if pack.layout == "indexed":
        return PackOptions(layout="indexed")
    is_mixed = pack.mix_domains
    if is_mixed is None:
        is_mixed = pack.layout == "concat" and balance == "none"
    if is_mixed and balance == "smallest":
        raise RecipeError(
            "rows that mix domains cannot be balanced by domain",
            where="pack.mix_domains",
            next="set `mix_domains: false`, or `balance: none`",
        )
    return PackOptions(
        layout=pack.layout,
        length=pack.length,
        mix_domains=is_mixed,
        tail=pack.tail if pack.layout == "concat" else None,
        # builds of before counted documents, and what `pad` truncates, that are in no row: they are made again
        counted="in rows",
    )


def tokenizer_step(recipe: Recipe, base: Path, out: Path, documents: tuple[str, ...]) -> Step:
    """`documents` are the steps that say which texts there are, for training."""
    tokenizer, directory = recipe.tokenizer, out / "tokenizer"
    assert tokenizer is not None, "a recipe without a tokenizer has no such step"
    options = TokenizerOptions(
        eos=tokenizer.eos,
        control=tuple(tokenizer.control),
        padded_vocab_size=tokenizer.padded_vocab_size,
        encoding=tokenizer.encoding,
        train=None,
    )
    if tokenizer.train is not None:
        options = _trained(options, recipe, tokenizer.train)
        return Step("tokenizer", "tokenizer", directory, options, documents)
    if tokenizer.plugin is not None:
        plugin = find_plugin("tokenizers", tokenizer.plugin, base, "tokenizer.plugin")
        options = structs.replace(options, plugin=plugin, options=tokenizer.options)
        return Step("tokenizer", "tokenizer", directory, options)
    path = base / Path(tokenizer.path or "").expanduser()
    if not path.is_file():
        raise TokenizerError(
            "no such tokenizer file",
            where=str(path),
            next="check `tokenizer.path`; it is relative to the recipe, and tokmill never downloads one",
        )
    actual = file_sha256(path)
    if tokenizer.sha256 is not None and tokenizer.sha256 != actual:
        raise TokenizerMismatch(
            f"its sha256 is {actual}, the recipe pins {tokenizer.sha256}",
            where=str(path),
            next="restore the pinned file, or change `tokenizer.sha256` if the new one is meant",
        )
    narrow = narrow_builds(recipe)
    if narrow:
        known = load_tokenizer(path, encoding=tokenizer.encoding).vocab_size
        check_dtype(max(known, tokenizer.padded_vocab_size or 0), "uint16", where=f"build {narrow[0]}")
    options = structs.replace(options, sha256=actual)
    extra = TokenizerExtra(path)
    return Step("tokenizer", "tokenizer", directory, options, files={path.name: actual}, extra=extra)


def _trained(options: TokenizerOptions, recipe: Recipe, training: Training) -> TokenizerOptions:
    asked = training.options()
    control_symbols = asked.pop("control_symbols")
    return structs.replace(
        options,
        train={**resolve_options(asked), "control_symbols": control_symbols},
        sample_megabytes=training.sample_megabytes,
        shares=_shares(recipe, training),
        datasets={source.name: source.hub.dataset if source.hub else None for source in recipe.sources},
        seed=recipe.seed,
    )


def _shares(recipe: Recipe, training: Training) -> Shares:
    """Of the sources in the sample: as asked for, or as in the mixture; nothing: as much as they have."""
    names = [source.name for source in recipe.sources]
    if training.weights is not None:
        checked = check_weights(training.weights, names, where="tokenizer.train.weights", kind="source")
        return Shares(sources=_written(checked))
    mixture = recipe.mixture
    if mixture is None or not (mixture.weights or mixture.sources):
        return Shares()
    domains, within = resolved_weights(recipe, mixture)
    domain_of = {source.name: source.domain for source in recipe.sources}
    return Shares(domains=domains, within=within, domain_of=domain_of)
