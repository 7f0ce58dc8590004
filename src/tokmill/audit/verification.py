"""What a proof of a run says, and the part of it that needs the manifests alone.

chain   inputs the ones its neighbours hold?
flow    in = kept + dropped + quarantined, and out of one step = into the next?
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from tokmill.artifact import Artifact
from tokmill.errors import TokmillError
from tokmill.manifest import FileEntry, Json, Manifest, check_conservation, fingerprint_of, sum_counts

_COUNTED = ("ingest", "clean", "dedup", "split", "tokens", "mixture", "build")


@dataclasses.dataclass(frozen=True)
class Problem:
    where: str  # relative to the verified directory
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@dataclasses.dataclass(frozen=True)
class Verification:
    directory: Path | str  # or the URL of a published run
    problems: list[Problem]
    digest: str
    artifacts: int
    files: int
    bytes: int

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_json(self) -> Json:
        return {
            "ok": self.ok,
            "directory": str(self.directory),
            "digest": self.digest,
            "artifacts": self.artifacts,
            "files": self.files,
            "bytes": self.bytes,
            "problems": [dataclasses.asdict(problem) for problem in self.problems],
        }


class Listed(Protocol):
    """Of what is not an artifact: its name, one string for its content, and its files."""

    @property
    def name(self) -> str: ...
    @property
    def identity(self) -> str: ...
    @property
    def files(self) -> Sequence[tuple[Path, FileEntry]]: ...


def verification_of(
    directory: Path | str,
    artifacts: Mapping[str, Artifact],
    problems: list[Problem],
    listings: Sequence[Listed] = (),
) -> Verification:
    steps = {name: artifact for name, artifact in artifacts.items() if artifact.manifest.kind != "run"}
    others = dict(file for listing in listings for file in listing.files)  # two may list the same shard
    entries = [*(entry for a in steps.values() for entry in a.manifest.files), *others.values()]
    identities = [[name, artifact.manifest.identity] for name, artifact in steps.items()]
    return Verification(
        directory=directory,
        problems=sorted(set(problems), key=lambda problem: (problem.where, problem.what)),
        digest=fingerprint_of(sorted([*identities, *([each.name, each.identity] for each in listings)])),
        artifacts=len(steps) + len(listings),
        files=len(entries),
        bytes=sum(entry.bytes for entry in entries),
    )


def chain_problems(artifacts: dict[str, Artifact]) -> Iterator[Problem]:
    """An input that lies in the same directory must be the one that the step was made from."""
    by_step = {
        artifact.manifest.step: artifact for artifact in artifacts.values() if artifact.manifest.kind != "run"
    }
    for name, artifact in artifacts.items():
        for label, identity in artifact.manifest.inputs.items():
            neighbour = by_step.get(label.removeprefix("step "))
            if neighbour is not None and neighbour.manifest.identity != identity:
                yield Problem(name, f"was made from another {label.removeprefix('step ')} than the one here")


def flow_problems(artifacts: dict[str, Artifact]) -> Iterator[Problem]:
    by_step = {artifact.manifest.step: artifact.manifest for artifact in artifacts.values()}
    for name, artifact in artifacts.items():
        manifest = artifact.manifest
        if manifest.kind not in _COUNTED:
            continue
        try:
            check_conservation(manifest.counts, where=name)
        except TokmillError as error:
            yield Problem(name, error.what)
        if manifest.kind == "dedup":
            counted = sum_counts(receipt for receipt in manifest.receipts() if receipt.counts)
        else:
            counted = sum_counts(manifest.receipts())
        if counted != manifest.counts and manifest.tasks:
            yield Problem(name, "the counts of its tasks do not add up to its own")
    for into, out_of in (("clean", "ingest"), ("dedup", "clean"), ("split", "dedup"), ("tokens", "split")):
        takers = [m for m in by_step.values() if m.kind == into]
        givers = [m for m in by_step.values() if m.kind == out_of]
        if takers and givers:
            taken, given = sum(m.counts["in"] for m in takers), sum(m.counts["kept"] for m in givers)
            if taken != given:
                yield Problem(into, f"{given:,} documents left {out_of} but {taken:,} arrived")
    if "tokens" in by_step:
        yield from _flow_of_tokens(by_step["tokens"], by_step)


def _flow_of_tokens(tokens: Manifest, by_step: Mapping[str, Manifest]) -> Iterator[Problem]:
    """A build holds every document of every split, or those that the mixture gave a turn, each turn once."""
    documents = dict.fromkeys(tokens.facts["splits"], 0)
    for entry in tokens.entries("lengths"):
        documents[entry.path.partition("/")[0]] += entry.rows
    mixture = by_step.get("mixture")
    expected = dict(documents)
    if mixture is not None:
        turns = {entry.path: entry.rows for entry in mixture.entries("order")}
        mixed = [split for split in documents if f"order-{split}.parquet" in turns]
        offered = sum(documents[split] for split in mixed)
        if mixture.counts["in"] != offered:
            yield Problem(
                "mixture", f"{offered:,} documents were to be mixed but {mixture.counts['in']:,} were"
            )
        expected |= {split: turns[f"order-{split}.parquet"] for split in mixed}
    for manifest in by_step.values():
        if manifest.kind != "build" or manifest.config["sources"]:
            continue
        if manifest.counts["in"] != sum(expected.values()):
            yield Problem(
                manifest.step,
                f"was made from {manifest.counts['in']:,} of {sum(expected.values()):,} documents",
            )
