"""The builds of a curriculum that were trained on, and how far each: by a state of it, or by a step or a
state of one of them alone.

    state ─ stages up to the one it stands in ─ fingerprints ─┬─> build, and the state of it alone
    builds that are given, and those that the curriculum of ──┘
    their runs names beside them

A stage that is over was handed out once, but for what its last step left out; the one under way up to its
position. Of a build alone, those of the stages before it were handed out whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tokmill.artifacts.manifest import MANIFEST
from tokmill.artifacts.upstream import mixtures_of
from tokmill.audit.seen import stage_alone, stage_of
from tokmill.audit.trace import open_build
from tokmill.errors import InputError
from tokmill.loader.dataset import open_dataset


class WalkedStage(NamedTuple):
    build: Path
    state: Mapping[str, Any]  # of a curriculum that has no other stage


def walked_stages(
    state: Mapping[str, Any], builds: Sequence[str | Path], split: str | None
) -> list[WalkedStage]:
    """In their order, with the one that the state stands in."""
    stages, now = state["stages"], state["stage"]
    if not isinstance(now, int) or not 0 <= now <= len(stages):
        raise InputError(f"stands in stage {now} of {len(stages)}", where="state")
    wanted = {_fingerprint(stage) for stage in stages}
    known: dict[str, Path] = {}
    for path in map(Path, builds):
        found = open_dataset(path, split).fingerprint
        if found not in wanted:
            raise InputError(
                "is of none of the stages that the state has",
                where=str(path),
                next="give the builds that the curriculum was opened with, such as out/NAME/build/rows-main",
            )
        known.setdefault(found, path)
    needed = {_fingerprint(stage) for stage in stages[: now + 1]}
    for path in _builds_beside(builds, split) if not needed <= known.keys() else ():
        known.setdefault(open_dataset(path, split).fingerprint, path)
    walked = []
    for number, stage in enumerate(stages[: now + 1]):
        build = known.get(_fingerprint(stage))
        if build is None:
            raise InputError(
                f"stage {stage['name']} was trained on before, and its build is not here",
                where="state",
                next="give it too: what all stages had is added up",
            )
        walked.append(WalkedStage(build, stage_alone(state, number)))
    return walked


def builds_before(builds: Sequence[str | Path], split: str | None) -> list[Path]:
    """Those of the stages before these, but for what is given."""
    opened = [open_build(path, split) for path in builds]
    found: dict[Path, None] = {}
    for build in opened:
        own = stage_of(build)
        if own is None or build.run is None:
            continue
        stages = [mixture.manifest.config["stage"]["name"] for mixture in mixtures_of(build.run.artifacts)]
        for stage in stages[: stages.index(own)]:
            found[build.run.artifacts[f"{build.name.removesuffix(own)}{stage}"].directory] = None
    given = {build.build.directory.resolve() for build in opened}
    return [path for path in found if path.resolve() not in given]


def _fingerprint(stage: Mapping[str, Any]) -> str:
    (dataset,) = stage["datasets"]
    return str(dataset["fingerprint"])


def _builds_beside(builds: Sequence[str | Path], split: str | None) -> Iterator[Path]:
    """Those of the other stages, as far as they are there."""
    for run in dict.fromkeys(one.directory for path in builds if (one := open_build(path, split).run)):
        for file in sorted((run / "curriculum").glob("*.json")):
            told = json.loads(file.read_bytes()) if file.name != MANIFEST else {}
            for stage in told.get("stages", ()):
                if (run / stage["directory"] / MANIFEST).is_file():
                    yield run / stage["directory"]
