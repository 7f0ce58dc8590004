"""The plan: a recipe as ordered steps, each with all that can change a byte of its artifact.

    ingest/<source> ─ clean/<source> ┐
    ingest/<source> ─ clean/<source> ┴ dedup ─ split ─ tokenizer ─ tokens ─ mixture ─ build/<name> …

    how a source is cleaned      sources[].clean  >  domains.<domain>  >  the recipe's own sections

A step knows what it needs; `run_manifest.assess` says whether it is up to date. Packs and languages are for prose: a
source of the domain `code` is judged by them only where its own name, or its domain's, asks for it.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tokmill.artifacts.artifact import open_artifact
from tokmill.artifacts.manifest import Json
from tokmill.artifacts.snapshot import wrong_shard
from tokmill.artifacts.step import Step
from tokmill.artifacts.tombstones import FORGOTTEN_FILE, forgotten_settings
from tokmill.clean.examine import examine_config, examine_kernels
from tokmill.clean.hooks import hook_path
from tokmill.clean.language import LanguagePlan, known_languages, model_sha256, primary_code, score_for_recall
from tokmill.clean.license_policy import make_policy
from tokmill.clean.rules import compile_filters
from tokmill.duplicates.near import choose_bands
from tokmill.errors import RecipeError, TokmillError
from tokmill.pipeline.plan_tokens import build_steps, is_left_out, narrow_builds, tokenizer_step
from tokmill.recipe import Corpus, Dedup, Hub, Language, License, Recipe, Source
from tokmill.sources.hub import is_pinned, resolve_revision
from tokmill.sources.readers import (
    list_corpus,
    list_hub_of_language,
    list_source,
    reading_config,
    resolve_reading,
)
from tokmill.stages.dedup.exact import OWN_SOURCE
from tokmill.storage.location import InputFile, file_sha256, find_files, local_path

CODE = "code"


def own_section(section: str, recipe: Recipe, source: Source) -> Any:
    """What the source says of itself, or else the domain; None where neither says anything."""
    for cleaning in (source.clean, recipe.domains.get(source.domain)):
        found = getattr(cleaning, section, None)
        if found is not None:
            return found
    return None


def check_cleaning(recipe: Recipe, base: Path) -> None:
    """Packs, measures, licences and hooks that a recipe names are there: all that can be known without its files."""
    for source in recipe.sources:
        settle_cleaning(recipe, source, base)


def settle_cleaning(recipe: Recipe, source: Source, base: Path) -> tuple[Json, dict[str, str]]:
    """The config of a source's cleaning, and where its hooks lie."""
    own_filters = own_section("filters", recipe, source)
    filters = recipe.filters if own_filters is None else own_filters
    # packs and languages are of prose; code is judged by them only where its own name asks for it
    is_code = source.domain == CODE
    sieve = compile_filters(filters, base, skip_packs=own_filters is None and is_code)
    language: Language | None = own_section("language", recipe, source) or (
        None if is_code else recipe.language
    )
    redact = own_section("redact", recipe, source)
    config = examine_config(
        source.name,
        own_section("normalize", recipe, source) or recipe.normalize,
        _settled_license(own_section("license", recipe, source) or recipe.license),
        _language_plan(language, source) if language else None,
        sieve,
        recipe.redact if redact is None else redact,
    )
    return config, {hook: str(hook_path(hook, base)) for hook in sieve.hooks}


def _settled_license(license: License | None) -> License | None:
    """In canonical spelling, so that another spelling of the same licence is no change."""
    if license is None:
        return None
    policy = make_policy(license.allow, license.deny, license.unknown)
    return License(allow=list(policy.allow), deny=list(policy.deny), unknown=policy.unknown)


def _language_plan(language: Language, source: Source) -> LanguagePlan:
    asked = language.model_dump(mode="json")
    if language.method == "detect":
        _refuse_unknown_codes(language)
        if language.recall is not None:
            del asked["recall"]
            asked["min_score"] = str(score_for_recall(language.detector, language.recall))
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

# environment key of an ingest manifest: size, mtime and sha256 of each input, so that a file that was not
# touched is not hashed again
INPUT_STATS = "input_stats"


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
    split_config = recipe.split.settings(recipe.seed)
    steps.append(Step("split", "split", out / "split", split_config, documents))
    documents += ("split",)
    if recipe.tokenizer is not None:
        steps.append(tokenizer_step(recipe, base, out, documents))
        narrow = {"narrow": narrow_builds(recipe)}
        steps.append(Step("tokens", "tokens", out / "tokens", {}, (*documents, "tokenizer"), extra=narrow))
        steps += build_steps(recipe, out, documents)
    return steps


def kernels_needed(steps: Sequence[Step]) -> set[str]:
    """Modules of kernels that these steps call."""
    needed = {"characters", "wordclasses", "hashing", "jsonlines"}  # every run
    for step in steps:
        if step.kind == "ingest" and step.config["reading"]["format"] == "stackexchange":
            needed |= {"xmlrows", "htmltext"}
        elif step.kind == "clean":
            needed |= examine_kernels(step.config)
        elif step.kind == "dedup":
            if step.config["near"] is not None:
                needed |= {"shingles", "minhash", "survivors"}
            if step.config["window"] is not None or step.config["against"] is not None:
                needed |= {"windows", "passages"}
            if step.config["window"] is not None:
                needed |= {"boundaries", "survivors"}
        elif step.kind == "split":
            if step.config["method"] in ("counts", "formula") or step.config.get("by") == "cluster":
                needed |= {"survivors"}
        elif step.kind == "tokens":
            needed |= {"patterns", "packing"}
        elif step.kind == "mixture":
            needed |= {"mixing"}
        elif step.kind == "build":
            needed |= {"packing"}
            if step.config["balance"] != "none":
                needed |= {"mixing"}
    return needed


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
    for step in chosen:
        if step.kind == "ingest" and step.name.replace("ingest/", "clean/", 1) not in names_chosen:
            step.extra["follower"] = None  # nobody asked for cleaning
    return chosen


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
        found = _find_on_hub(source, source.hub, ingest_directory, language.keep if language else [], own)
    else:
        files = list_source(source, base)
        digests = _input_digests(files, ingest_directory)
        if source.corpus is not None:
            _check_listed(source.corpus, base, digests)
        found = _Found(files, digests, reading_config(resolve_reading(source, files, own)), None)
    cleaning, hooks = settle_cleaning(recipe, source, base)
    normalize = own_section("normalize", recipe, source) or recipe.normalize
    ingest = Step(
        name=f"ingest/{source.name}",
        kind="ingest",
        directory=ingest_directory,
        config={
            "reading": found.reading,
            "hub": found.hub,
            "where": source.where,
            "shard_bytes": recipe.shards.bytes,
            "on_bad_record": source.on_bad_record,
            "limit": source.limit and source.limit.model_dump(mode="json", exclude_none=True),
            "sample": source.sample
            and {"seed": recipe.seed, **source.sample.model_dump(mode="json", exclude_none=True)},
            **forgotten_settings(out, source.name),
        },
        needs=tuple(f"ingest/{other.name}" for other in recipe.sources if other.fallback == source.name),
        files=found.digests,
        extra={
            "files": found.files,
            "hub": found.dataset,
            "max_bad_fraction": source.max_bad_fraction,
            "forgotten": out / FORGOTTEN_FILE,
            "follower": {"config": cleaning, "directory": str(clean_directory), "hooks": hooks},
        },
    )
    clean = Step(
        name=f"clean/{source.name}",
        kind="clean",
        directory=clean_directory,
        config=cleaning,
        needs=(ingest.name,),
        extra={
            "max_nul_fraction": normalize.max_nul_fraction,
            "hooks": hooks,
            "warn_source_loss": recipe.dedup.warn_source_loss,
        },
    )
    return [ingest, clean]


def _dedup_step(dedup: Dedup, base: Path, out: Path, documents: tuple[str, ...], own: Own) -> Step:
    config: Json = dedup.model_dump(mode="json", exclude={"warn_source_loss"})  # it changes no byte
    if dedup.scope == "per-source" and any("source" in labels for labels in own.values()):
        config["scope"] = OWN_SOURCE
    files: dict[str, str] = {}
    benchmarks: list[InputFile] = []
    if dedup.against is not None:
        del config["against"]["files"]
        benchmarks = list(
            dict.fromkeys(f for pattern in dedup.against.files for f in find_files(pattern, base))
        )
        files = {f"against {file.name}": file_sha256(local_path(file.path)) for file in benchmarks}
    if dedup.near is not None and dedup.near.bands is None:
        bands, rows = choose_bands(float(dedup.near.threshold))
        config["near"] |= {"bands": bands, "rows": rows}
    extra = {"against": benchmarks, "warn_source_loss": dedup.warn_source_loss}
    return Step("dedup", "dedup", out / "dedup", config, documents, files, extra)


class _Found(NamedTuple):
    """What a source has: its files (None: known from the manifest, not looked up again), and how to read them."""

    files: list[InputFile] | None
    digests: dict[str, str]
    reading: Json
    hub: Json | None
    dataset: Hub | None = None  # with the config that is read


def _check_listed(corpus: Corpus, base: Path, digests: Mapping[str, str]) -> None:
    """No shard of a snapshot is used whose bytes are not the listed ones."""
    for file, expected in list_corpus(corpus, base):
        if digests[file.name] != expected:
            raise wrong_shard(file.path, digests[file.name], expected)


def _find_on_hub(
    source: Source, hub: Hub, directory: Path, languages: list[str], own: Sequence[str]
) -> _Found:
    """From the manifest of an earlier ingest if it was asked the same; only otherwise from the network."""
    asked = hub.model_dump(mode="json")
    reading = reading_config(resolve_reading(source, [], own))
    revision = None
    with contextlib.suppress(TokmillError):
        artifact = open_artifact(directory)
        known = artifact.manifest.config if artifact else {}
        if artifact and known.get("hub") and known["hub"]["asked"] == asked:
            revision = known["hub"]["revision"]
            chosen = known["hub"].get(
                "chosen", {"languages": languages}
            )  # a config by the language that is kept
            if known["reading"] == reading and chosen["languages"] == languages:
                read = hub.model_copy(update={"config": chosen.get("config", hub.config)})
                labels = artifact.manifest.inputs.items()
                digests = {n.removeprefix("file "): d for n, d in labels if n.startswith("file ")}
                return _Found(None, digests, reading, known["hub"], read)
    if revision is None:
        revision = resolve_revision(hub.dataset, hub.revision)
        if not is_pinned(hub.revision):
            _LOG.warning("%s: %s is commit %s now", hub.dataset, hub.revision or "main", revision)
    read, files = list_hub_of_language(hub, revision, languages)
    digests = {file.name: f"hub:{file.path.sha256 or file.path.oid}" for file in files}  # type: ignore[union-attr]
    resolve_reading(source, files, own)  # a typo is told before anything is downloaded
    found: Json = {"asked": asked, "revision": revision}
    if read.config != hub.config:
        found["chosen"] = {"config": read.config, "languages": languages}
    return _Found(files, digests, reading, found, read)


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
