"""What a proof says: of how many files, what is wrong, and what mends it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokmill.artifacts.cells import short_repr
from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.history import HISTORY_FILE
from tokmill.artifacts.manifest import Json, fingerprint_of
from tokmill.audit.listings import NOTHING_HERE, Listing
from tokmill.audit.proofs import Problem


@short_repr
@dataclasses.dataclass(frozen=True)
class Verification:
    directory: Path | str  # or the URL of a published run
    digest: str  # of all artifacts; empty where there is none
    artifacts: int
    files: int
    bytes: int
    problems: list[Problem]
    next: str = ""  # what mends it, where anything is wrong
    warnings: list[Problem] = dataclasses.field(default_factory=list)  # of takedowns: nothing is damaged

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_json(self) -> Json:
        return {"ok": self.ok, **dataclasses.asdict(self), "directory": str(self.directory)}


def verification_of(
    directory: Path | str,
    artifacts: Mapping[str, Artifact],
    problems: list[Problem],
    listings: Sequence[Listing] = (),
) -> Verification:
    steps = {name: artifact for name, artifact in artifacts.items() if artifact.manifest.kind != "run"}
    others = dict(file for listing in listings for file in listing.files)  # two may list the same shard
    entries = [*(entry for a in steps.values() for entry in a.manifest.files), *others.values()]
    identities = [[name, artifact.manifest.identity] for name, artifact in steps.items()]
    proven = sorted([*identities, *([each.name, each.identity] for each in listings)])
    return Verification(
        directory=directory,
        digest=fingerprint_of(proven) if proven else "",
        artifacts=len(steps) + len(listings),
        files=len(entries),
        bytes=sum(entry.bytes for entry in entries),
        problems=sorted(set(problems), key=lambda problem: (problem.where, problem.what)),
        next=_what_mends(directory, problems, has_listings=bool(listings), is_run=bool(artifacts))
        if problems
        else "",
        warnings=[
            Problem(name, line)
            for name, artifact in steps.items()
            if artifact.manifest.kind == "ingest"
            for line in artifact.manifest.facts.get("warnings", [])
        ],
    )


EXTRA = "extra file: no manifest lists it"
UNREAD = "cannot be read ("  # by the system: of what was read Arrow speaks, as what Parquet


def _what_mends(directory: Path | str, problems: list[Problem], *, has_listings: bool, is_run: bool) -> str:
    if not is_run and any(problem.what.startswith(NOTHING_HERE) for problem in problems):
        return "name the directory of a run, such as out/NAME, of one of its artifacts, or of a corpus"
    if all(problem.what.startswith(UNREAD) for problem in problems):
        return "look at the disk and its permissions, then verify again: of these files nothing is known"
    if isinstance(directory, str):
        return f"publish it again: `tokmill run RECIPE --out {directory} --replace`"
    if all(problem.what == EXTRA for problem in problems):
        return "move these files elsewhere, or remove them: nothing needs them"
    if any(problem.where == HISTORY_FILE and problem.what != EXTRA for problem in problems):
        return "give the same `tokmill continue` again: the recipe alone does not know what was trained on"
    if (directory / "ingest").is_dir():
        run = f"`tokmill run RECIPE --out {directory} --verify`"
        return f"{run} makes what is damaged again, and nothing else"
    if has_listings:
        return "give the command that wrote it again, with `--replace`; or copy the files again"
    return "copy it again from where it was made, or run its recipe there with `--verify`"
