"""Whether steps are up to date, where a build comes from, and the run's own manifest.

assess        a step and its artifact ─> Freshness: up to date, or the reasons why not; from manifests alone
origin_of     what a build was made from, for its own manifest: a trainer has the build, and seldom the run
write_run_manifest
    artifacts ─┬─ ATTRIBUTION.md          by licence and source: what the builds hold
               └─ <out>/manifest.json     names every artifact with its digests; written last

origin        hub               per source: dataset, config, split and the commit that was read, pinned or not
              split, budget     the rule that held documents out; the target and what was reached
              skipped           per step: what was dropped or quarantined, by reason
              config_sha256     of the settings of every step before it

Artifacts of sources and builds that the recipe no longer has are removed first. Origins are facts,
and no part of what a build holds: a run that finds other ones writes the manifest again, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tokmill.artifacts.cache import discard_cache
from tokmill.artifacts.directory import Artifact, discard, has_all_files, open_artifact
from tokmill.artifacts.history import history_entry, load_continues
from tokmill.artifacts.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    FileEntry,
    Json,
    Manifest,
    Receipt,
    build_manifest,
    explain_changes,
    file_entry,
    fingerprint_of,
    step_fingerprint,
    write_manifest,
)
from tokmill.artifacts.previous import find_previous, set_aside
from tokmill.artifacts.step import Step
from tokmill.artifacts.tombstones import FORGOTTEN_FILE, PENDING_FILE, forgotten_facts
from tokmill.artifacts.upstream import UNKNOWN, is_chat, mixture_of
from tokmill.clean.examine import CleanOptions
from tokmill.clean.license_policy import LicenseTotals, attribution
from tokmill.errors import OutOfMemory, StorageError, TokmillError
from tokmill.stages.build.contents import Contents, load_contents
from tokmill.stages.dedup.stage import said_versions
from tokmill.storage.disk import commit_bytes, remove_file
from tokmill.storage.location import file_sha256

# kinds of which there is a directory for each source, score or build
_NAMED = ("ingest", "inference", "examples", "score", "clean", "stage", "build", "texts")
# and those of which there is one
_SINGLE = ("scores", "dedup", "split", "tokenizer", "tokens", "mixture", "curriculum")
_ORDER = "order of sources"  # among the inputs of a step that reads several

# --- where a build comes from ---


def hub_commits(artifacts: Mapping[str, Artifact]) -> dict[str, Json]:
    """Of every source that was read from the hub."""
    found = {}
    for name, artifact in artifacts.items():
        hub = artifact.manifest.config.get("hub") if name.startswith("ingest/") else None
        if hub:
            asked = {key: hub["asked"][key] for key in ("dataset", "config", "split")}
            found[name.removeprefix("ingest/")] = {**asked, "revision": hub["revision"]}
    return found


def origin_of(artifacts: Mapping[str, Artifact], build: Artifact | None = None) -> Json:
    """The steps before a build, in a few words."""
    made_from_them = ("build", "texts", "curriculum", "run")
    steps = {name: a.manifest for name, a in artifacts.items() if a.manifest.kind not in made_from_them}
    mixed = mixture_of(artifacts, build)
    mixture = mixed.manifest if mixed is not None else None
    target = mixture.config["target"] if mixture is not None else None
    hub = hub_commits(artifacts)
    return {
        "config_sha256": fingerprint_of({name: manifest.config for name, manifest in steps.items()}),
        "tokenizer_sha256": steps["tokenizer"].facts["sha256"],
        "split": steps["split"].config,
        "budget": {
            "target": dict([target]) if target else {},
            "splits": {
                name: {key: facts[key] for key in ("tokens", "reached", "left_over")}
                for name, facts in (mixture.facts["splits"].items() if mixture is not None else ())
            },
        },
        "skipped": {
            name: {
                key: manifest.counts[key] for key in ("dropped", "quarantined") if manifest.counts.get(key)
            }
            for name, manifest in steps.items()
            if manifest.counts.get("dropped") or manifest.counts.get("quarantined")
        },
        **({"hub": hub} if hub else {}),
    }


def with_origin(artifact: Artifact, origin: Json) -> Artifact:
    """The build with these facts in its manifest."""
    former = artifact.manifest
    body = {name: getattr(former, name) for name in ("kind", "step", "config", "inputs", "counts")}
    manifest = build_manifest(
        **body,
        receipts=former.receipts(),
        facts={**{key: value for key, value in former.facts.items() if key != "hub"}, **origin},
        experiment_id=former.experiment_id,
        environment=former.environment,
    )
    return artifact._replace(manifest=manifest)


def stale_origins(artifacts: Mapping[str, Artifact]) -> dict[str, Artifact]:
    """Builds whose manifests do not say so yet, or say something else, as they should be."""
    builds = {name: a for name, a in artifacts.items() if a.manifest.kind == "build"}
    if not builds:
        return {}
    stamped = {
        name: with_origin(build, _as_read(origin_of(artifacts, build))) for name, build in builds.items()
    }
    return {name: a for name, a in stamped.items() if a.manifest.digest != builds[name].manifest.digest}


def _as_read(facts: Json) -> Any:
    """As they are in a manifest that is loaded: a tuple is a list there."""
    return msgspec.json.decode(msgspec.json.encode(facts))


# --- freshness ---


def step_inputs(step: Step, upstream: Mapping[str, Artifact]) -> dict[str, str]:
    """What the step's fingerprint sees of its inputs: content, never places."""
    inputs = {f"step {name}": upstream[name].manifest.identity for name in step.needs}
    inputs.update((f"file {name}", digest) for name, digest in step.files.items())
    # Documents are in the order of their sources, and so is who of two equal ones is kept. The keys of a
    # fingerprint are sorted: they do not tell.
    sources = [name.removeprefix("ingest/") for name in step.needs if name.startswith("ingest/")]
    if len(sources) > 1:
        inputs[_ORDER] = ", ".join(sources)
    inputs.update(_orders_of_files(step))
    # `keep: best` goes by how far a document is from being dropped: a bound that moves and drops nobody
    # leaves the content of a clean step as it was, and changes who is kept.
    if step.kind == "dedup" and step.options.keep == "best":
        for name in (name for name in step.needs if name.startswith("clean/")):
            rules = upstream[name].manifest.options(CleanOptions).sieve.rules
            inputs[f"rules of {name}"] = fingerprint_of(msgspec.to_builtins(rules))
    if step.kind == "dedup":
        has_chats = any(is_chat(upstream[name]) for name in step.needs if name.startswith("ingest/"))
        inputs.update(said_versions(step.options, has_chats=has_chats))
    return inputs


def _orders_of_files(step: Step) -> Iterator[tuple[str, str]]:
    """Of documents that files hold, and of corpora and benchmarks: of two that hold a text the first is told.
    Where it is that of their names nothing needs to say so."""
    kinds = {"ingest": ("",), "dedup": ("reference ", "against ")}
    for prefix in kinds.get(step.kind, ()):
        names = [name for name in step.files if name.startswith(prefix)]
        if names != sorted(names):
            yield f"order of {prefix or 'files'}".rstrip(), ", ".join(names)


class Freshness:
    """Whether a step is up to date, and if not, why."""

    def __init__(self, artifact: Artifact | None, reasons: list[str], *, is_damaged: bool = False) -> None:
        self.artifact = artifact
        self.reasons = reasons
        self.is_damaged = is_damaged  # the artifact is the right one, and its files are not
        self.previous: Artifact | None = None  # what the step asks for, as it was before: to be brought back

    @property
    def is_current(self) -> bool:
        return not self.reasons


def assess(
    step: Step, upstream: Mapping[str, Artifact], why: Callable[[Step], list[str]] | None = None
) -> Freshness:
    """`why`: what was changed in the recipe that the step is made from."""
    found = _compare(step, upstream, why or (lambda step: []))
    if not found.is_current and all(name in upstream for name in step.needs):
        fingerprint = step_fingerprint(step.kind, step.config, step_inputs(step, upstream))
        found.previous = find_previous(out_of(step), step.name, fingerprint)
    return found


def out_of(step: Step) -> Path:
    """The directory of the run: a step is below it under its name."""
    return step.directory.parents[step.name.count("/")]


def _compare(step: Step, upstream: Mapping[str, Artifact], why: Callable[[Step], list[str]]) -> Freshness:
    try:
        artifact = open_artifact(step.directory)
    except (StorageError, OutOfMemory):
        raise  # what cannot be read may be sound: no reason to make its files again
    except TokmillError as error:
        return Freshness(None, [error.what])
    if artifact is None:
        return Freshness(None, ["not built yet"])
    missing = [name for name in step.needs if name not in upstream]
    if missing:
        return Freshness(artifact, [f"depends on {missing[0]}, which is to be rebuilt"])
    inputs = step_inputs(step, upstream)
    if artifact.manifest.fingerprint == step_fingerprint(step.kind, step.config, inputs):
        if has_all_files(artifact):
            return Freshness(artifact, [])
        return Freshness(artifact, ["a file is missing or has another size"], is_damaged=True)
    return Freshness(artifact, _differences(artifact.manifest, step, inputs, why))


def review_plan(
    steps: Sequence[Step], why: Callable[[Step], list[str]] | None = None
) -> list[tuple[Step, Freshness]]:
    """The standing of every step as far as it can be known without running anything."""
    upstream: dict[str, Artifact] = {}
    found = []
    for step in steps:
        freshness = assess(step, upstream, why)
        known = freshness.artifact if freshness.is_current else freshness.previous
        if known is not None:
            upstream[step.name] = known
        found.append((step, freshness))
    return found


def _differences(
    manifest: Manifest, step: Step, inputs: dict[str, str], why: Callable[[Step], list[str]]
) -> list[str]:
    section = step.name if step.kind in _NAMED else step.kind
    changes = explain_changes(manifest.config, step.config, section)
    reasons = (why(step) or changes) if changes else []
    for name in sorted({*manifest.inputs, *inputs}):
        before, after = manifest.inputs.get(name), inputs.get(name)
        if before != after:
            change = "is new" if before is None else "is gone" if after is None else "has other content"
            reasons.append(f"{name} {change}")
    if manifest.format_version != FORMAT_VERSION:
        reasons.append(f"format version {manifest.format_version} → {FORMAT_VERSION}")
    return reasons or ["its fingerprint is another"]


# --- the run's manifest ---

ATTRIBUTION = "ATTRIBUTION.md"
REVIEW = "review"  # in `environment`: the section of the recipe
SET = "set"  # likewise: keys that the recipe's file has otherwise


class Asked(NamedTuple):
    """What a run is of: its name, its recipe as the manifest has it, how large its shards are,
    and what it is for."""

    name: str
    recipe: Json
    shard_bytes: int
    review: Json | None = None  # beside the digests: no byte hangs on it
    settings: Json | None = None  # keys that its file has otherwise, likewise


def write_run_manifest(
    out: Path,
    asked: Asked,
    steps: Sequence[Step],
    artifacts: dict[str, Artifact],
    environment: Json,
    *,
    has_changed: bool,
    keep: bool = False,
    settle: Callable[[], None] = lambda: None,
) -> None:
    """`settle` waits until nobody else works in the directories of steps: their manifests may be written
    again."""
    for step in steps[len(artifacts) :]:  # later steps, if they still hold
        if all(name in artifacts for name in step.needs):
            freshness = assess(step, artifacts)
            if freshness.is_current and freshness.artifact is not None:
                artifacts[step.name] = freshness.artifact
    stamped = stale_origins(artifacts)
    pending = out / PENDING_FILE  # what a takedown left to do is done with the last step
    environment = {**environment, REVIEW: asked.review} if asked.review else environment
    former = _whole_manifest(out)
    if not has_changed and former is not None and former.inputs == _identities(artifacts):
        # who made it, and how long that took; beside that what is asked for now
        asked_for = {key: environment[key] for key in (SET, REVIEW) if key in environment}
        made = {key: value for key, value in former.environment.items() if key not in (SET, REVIEW)}
        environment = {**made, **asked_for}
        said = (former.step, former.config, former.environment)
        if not stamped and said == (asked.name, _as_read(asked.recipe), _as_read(environment)):
            settle()
            remove_file(pending)
            return
    if stamped:
        remove_file(out / MANIFEST)  # it lists the manifests that are written next
    _remove_former(out, steps, keep=keep)
    attributed = _write_attribution(out, artifacts)
    settle()
    for name, artifact in stamped.items():
        write_manifest(artifact.directory, artifact.manifest)
        artifacts[name] = artifact
    files = [_manifest_entry(out, artifact) for artifact in artifacts.values()]
    files += attributed
    lineage, forgotten = forgotten_facts(out) if (out / FORGOTTEN_FILE).is_file() else ({}, [])
    files += forgotten
    continues, history = load_continues(out), history_entry(out)
    if continues is not None and history is not None:
        lineage |= {"continues": msgspec.to_builtins(continues)}
        files.append(history)
    manifest = build_manifest(
        kind="run",
        step=asked.name,
        config=asked.recipe,
        inputs=_identities(artifacts),
        receipts=[Receipt(key="run", fingerprint="", files=files, counts={})],
        counts={name: artifact.manifest.counts for name, artifact in artifacts.items()},
        facts=lineage,
        experiment_id=fingerprint_of([a.manifest.experiment_id for a in artifacts.values()])[:16],
        environment=environment,
    )
    write_manifest(out, manifest)
    remove_file(pending)


def _remove_former(out: Path, steps: Sequence[Step], *, keep: bool) -> None:
    """Artifacts that no step of the run is for: of sources and builds that the recipe no longer has, and of
    steps after the last one that the run has."""
    planned = {step.directory for step in steps}
    below = [path for parent in _NAMED for path in sorted((out / parent).glob("*/"))]
    single = [out / name for name in _SINGLE]
    for directory in (*below, *single):
        if directory not in planned and _was_ours(directory):
            if keep:
                set_aside(out, directory)
            discard(directory)
            if directory in single:
                discard_cache(out, directory.name)


def _was_ours(directory: Path) -> bool:
    return (directory / MANIFEST).is_file() or (directory / "receipts").is_dir()


def _manifest_entry(out: Path, artifact: Artifact) -> FileEntry:
    path = artifact.directory / MANIFEST
    return FileEntry(
        path=path.relative_to(out).as_posix(),
        table="manifest",
        bytes=path.stat().st_size,
        rows=len(artifact.manifest.files),
        sha256=file_sha256(path),
        content_sha256=artifact.manifest.identity,
    )


def _write_attribution(out: Path, artifacts: Mapping[str, Artifact]) -> list[FileEntry]:
    """ATTRIBUTION.md: of what the builds hold; where there is none, of the texts, of what was encoded, or
    else cleaned."""
    path = out / ATTRIBUTION
    cleaned = {name.removeprefix("clean/"): a for name, a in artifacts.items() if name.startswith("clean/")}
    if not cleaned:
        remove_file(path)
        return []
    builds = [name.removeprefix("build/") for name in artifacts if name.startswith("build/")]
    if builds:
        text = _attribute_builds(load_contents(artifacts), builds, list(cleaned))
    else:
        by_source = {source: a.manifest.counts.get("licenses", {}) for source, a in cleaned.items()}
        texts = [
            a.manifest.counts.get("licenses", {}) for a in artifacts.values() if a.manifest.kind == "texts"
        ]
        if texts:  # what each source has, in the largest of them
            by_source = {source: max((own.get(source, {}) for own in texts), key=_docs) for source in cleaned}
        elif "tokens" in artifacts:
            by_source = artifacts["tokens"].manifest.counts.get("licenses", {})
        heads = {"chars": "characters", "tokens": "tokens"}
        text = attribution(
            LicenseTotals(
                source,
                None if name == UNKNOWN else name,
                total["docs"],
                {head: total[key] for key, head in heads.items() if key in total},
            )
            for source, totals in by_source.items()
            for name, total in totals.items()
        )
    written = commit_bytes(path, text.encode())
    return [file_entry(ATTRIBUTION, "attribution", written, rows=1)]


def _docs(licenses: Json) -> int:
    return sum(total["docs"] for total in licenses.values())


def _attribute_builds(contents: Contents, builds: Sequence[str], sources: Sequence[str]) -> str:
    """Documents that are in any of them, and the tokens of each."""
    tokens = {build: contents.totals("source", "license", build=build) for build in builds}
    totals = contents.totals("source", "license")
    rows = [
        LicenseTotals(
            source,
            None if license == UNKNOWN else license,
            total.new_docs,
            {
                f"tokens in {build}": own[source, license].tokens if (source, license) in own else 0
                for build, own in tokens.items()
            },
        )
        for (source, license), total in totals.items()
        if total.new_docs
    ]
    built = {row.source for row in rows}
    named = f"the build{'s' if len(builds) > 1 else ''} {', '.join(builds)}"
    holds = (
        f"What is in {named}, by licence and by source: documents, each once, and tokens, those of a "
        "document that repeats each time."
    )
    return attribution(rows, holds, [source for source in sources if source not in built])


def _identities(artifacts: Mapping[str, Artifact]) -> dict[str, str]:
    return {name: artifact.manifest.identity for name, artifact in artifacts.items()}


def _whole_manifest(out: Path) -> Manifest | None:
    """Of the run as it was finished last; None: it was not, or files of it are gone."""
    try:
        found = open_artifact(out)
        return found.manifest if found is not None and has_all_files(found) else None
    except TokmillError:
        return None
