"""Whether a step is up to date, read from its manifest alone; and if not, why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokmill.artifact import Artifact, has_all_files, open_artifact
from tokmill.errors import OutOfMemory, StorageError, TokmillError
from tokmill.manifest import FORMAT_VERSION, Manifest, explain_changes, step_fingerprint
from tokmill.stages.step import Step


def step_inputs(step: Step, upstream: Mapping[str, Artifact]) -> dict[str, str]:
    """What the step's fingerprint sees of its inputs: content, never places."""
    inputs = {f"step {name}": upstream[name].manifest.identity for name in step.needs}
    inputs.update((f"file {name}", digest) for name, digest in step.files.items())
    return inputs


class Standing:
    """Whether a step is up to date, and if not, why."""

    def __init__(self, artifact: Artifact | None, reasons: list[str]) -> None:
        self.artifact = artifact
        self.reasons = reasons

    @property
    def is_current(self) -> bool:
        return not self.reasons


def assess(step: Step, upstream: Mapping[str, Artifact]) -> Standing:
    try:
        artifact = open_artifact(step.directory)
    except (StorageError, OutOfMemory):
        raise  # what cannot be read may be sound: no reason to make its files again
    except TokmillError as error:
        return Standing(None, [error.what])
    if artifact is None:
        return Standing(None, ["not built yet"])
    missing = [name for name in step.needs if name not in upstream]
    if missing:
        return Standing(artifact, [f"depends on {missing[0]}, which is to be rebuilt"])
    inputs = step_inputs(step, upstream)
    if artifact.manifest.fingerprint == step_fingerprint(step.kind, step.config, inputs):
        return Standing(
            artifact, [] if has_all_files(artifact) else ["a file is missing or has another size"]
        )
    return Standing(artifact, _differences(artifact.manifest, step, inputs))


def review_plan(steps: Sequence[Step]) -> list[tuple[Step, Standing]]:
    """The standing of every step as far as it can be known without running anything."""
    upstream: dict[str, Artifact] = {}
    found = []
    for step in steps:
        standing = assess(step, upstream)
        if standing.is_current and standing.artifact is not None:
            upstream[step.name] = standing.artifact
        found.append((step, standing))
    return found


def _differences(manifest: Manifest, step: Step, inputs: dict[str, str]) -> list[str]:
    section = step.name if step.kind in ("ingest", "clean", "build") else step.kind
    reasons = explain_changes(manifest.config, step.config, section)
    for name in sorted({*manifest.inputs, *inputs}):
        before, after = manifest.inputs.get(name), inputs.get(name)
        if before != after:
            change = "is new" if before is None else "is gone" if after is None else "has other content"
            reasons.append(f"{name} {change}")
    if manifest.format_version != FORMAT_VERSION:
        reasons.append(f"format version {manifest.format_version} → {FORMAT_VERSION}")
    return reasons or ["its fingerprint is another"]
