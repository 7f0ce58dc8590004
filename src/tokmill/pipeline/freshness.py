"""Whether steps are up to date: a step and its artifact ─> Freshness, or the reasons why not; from manifests
alone."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from tokmill.artifacts.directory import Artifact, has_all_files, open_artifact
from tokmill.artifacts.manifest import (
    FORMAT_VERSION,
    Manifest,
    explain_changes,
    fingerprint_of,
    step_fingerprint,
)
from tokmill.artifacts.previous import find_previous
from tokmill.artifacts.step import Step
from tokmill.artifacts.tombstones import REASON, is_hidden
from tokmill.artifacts.upstream import is_chat
from tokmill.clean.examine import CleanOptions
from tokmill.errors import OutOfMemory, StorageError, TokmillError
from tokmill.stages.dedup.stage import said_versions
from tokmill.stages.registry import STAGES

# kinds of which there is a directory for each source, score or build
NAMED = ("ingest", "inference", "examples", "score", "clean", "stage", "build", "texts")
# kinds of which there is one
SINGLE = ("scores", "dedup", "split", "tokenizer", "tokens", "mixture", "curriculum")
_ORDER = "order of sources"  # among the inputs of a step that reads several
_STEP, _FILE = "step ", "file "


def step_inputs(step: Step, upstream: Mapping[str, Artifact]) -> dict[str, str]:
    """Name what the step is made from, for its fingerprint: content, never places."""
    inputs = {f"{_STEP}{name}": upstream[name].manifest.identity for name in step.needs}
    for name in step.needs:
        manifest = upstream[name].manifest
        if handed_on := STAGES[manifest.kind].hand_on(manifest, step.kind):
            inputs[f"facts of {name}"] = fingerprint_of(handed_on)
    hidden = _hidden_names(step)
    for name, digest in step.files.items():
        shown = hidden.get(name, name)
        # a file that was taken down is known by its name: a hash of it would be one of its text
        inputs[f"{_FILE}{shown}"] = REASON if name in hidden and is_hidden(shown) else digest
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


# Files whose order decides which of two equal documents is the first, by the kind of step.
_ORDERED_FILES = {"ingest": ("",), "dedup": ("reference ", "against ")}


def _orders_of_files(step: Step) -> Iterator[tuple[str, str]]:
    """Name the order of documents' files, corpora and benchmarks where it is not that of their names."""
    hidden = _hidden_names(step)
    for prefix in _ORDERED_FILES.get(step.kind, ()):
        names = [hidden.get(name, name) for name in step.files if name.startswith(prefix)]
        if names != sorted(names):
            yield _order_label(prefix), ", ".join(names)


def _order_label(prefix: str) -> str:
    return f"order of {prefix or 'files'}".rstrip()


def recorded_inputs(manifest: Manifest, names: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Read back the `needs` and `files` of a step, in the order in which `step_inputs` saw them.

    `names` are the steps of the run in their order. The keys of a manifest are sorted, so an order that
    matters stands beside them."""
    inputs = manifest.inputs
    needs = [name for name in names if f"{_STEP}{name}" in inputs]
    if _ORDER in inputs:
        ordered = iter(f"ingest/{source}" for source in inputs[_ORDER].split(", "))
        needs = [next(ordered) if name.startswith("ingest/") else name for name in needs]
    files = {label.removeprefix(_FILE): inputs[label] for label in sorted(inputs) if label.startswith(_FILE)}
    for prefix in _ORDERED_FILES.get(manifest.kind, ()):
        label = _order_label(prefix)
        if label in inputs:
            files |= {name: files.pop(name) for name in _listed(inputs[label], files)}
    return tuple(needs), files


def _listed(joined: str, names: Container[str]) -> Iterator[str]:
    """Read a list of names again; a name may have commas of its own."""
    name = ""
    for part in joined.split(", "):
        name = f"{name}, {part}" if name else part
        if name in names:
            yield name
            name = ""


def _hidden_names(step: Step) -> Mapping[str, str]:
    return step.extra.hidden if step.kind == "ingest" else {}


class Freshness:
    """Whether a step is up to date, and if not, why."""

    def __init__(self, artifact: Artifact | None, reasons: list[str], *, is_damaged: bool = False) -> None:
        self.artifact = artifact
        self.reasons = reasons
        self.is_damaged = is_damaged  # the artifact is the right one, and its files are not
        self.previous: Artifact | None = None  # what the step asks for, as it was before: to be brought back

    @property
    def replaced_bytes(self) -> int:
        """Bytes of the finished artifact that is there and is not the one that is asked for."""
        is_replaced = self.artifact is not None and not (self.is_current or self.is_damaged)
        return self.artifact.bytes if is_replaced and self.artifact is not None else 0

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
    section = step.name if step.kind in NAMED else step.kind
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
