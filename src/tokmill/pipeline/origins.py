"""What a build was made from, for its own manifest: a trainer has the build, and seldom the run.

hub               per source: dataset, config, split and the commit that was read, pinned or not
split, budget     the rule that held documents out; the target and what was reached
skipped           per step: what was dropped or quarantined, by reason
config_sha256     of the settings of every step before it

Origins are facts, and no part of what a build holds: a run that finds other ones writes the manifest again,
and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import Json, build_manifest, fingerprint_of
from tokmill.artifacts.upstream import mixture_of


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
        name: with_origin(build, as_read(origin_of(artifacts, build))) for name, build in builds.items()
    }
    return {name: a for name, a in stamped.items() if a.manifest.digest != builds[name].manifest.digest}


def as_read(facts: Json) -> Any:
    """As they are in a manifest that is loaded: a tuple is a list there."""
    return msgspec.json.decode(msgspec.json.encode(facts))
