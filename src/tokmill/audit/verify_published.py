"""Prove a published run, object by object, without bringing it here.

    <url>/manifest.json   sealed? ─ every manifest it names: there, of its sha256, sealed?
    every file of those   there, of its size, with its sha256?      what is not named is not looked for
    the manifests         in = kept + dropped + quarantined, and out of one step = into the next?

Builds are not opened as a trainer would, and takedowns not searched for: both need the files, so fetch and verify.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tokmill.artifact import Artifact
from tokmill.audit.verification import Problem, Verification, chain_problems, flow_problems, verification_of
from tokmill.errors import CorruptFile, InputChanged
from tokmill.manifest import load_manifest
from tokmill.publication import Publication, list_files, open_manifests, open_publication


def verify_published(url: str, on_bytes: Callable[[int, int], None] | None = None) -> Verification:
    """Read every byte of every object that the manifest at `url` names."""
    try:
        publication = open_publication(url)
        with open_manifests(publication) as mirror:
            artifacts = {
                name: Artifact(mirror.directory / name, load_manifest(mirror.directory / name))
                for name in mirror.entries
            }
            problems = list(_objects(publication, artifacts, on_bytes or (lambda done, total: None)))
            problems += chain_problems(artifacts)
            problems += flow_problems(artifacts)
            return verification_of(url, artifacts, problems)
    except CorruptFile as error:  # a manifest: without it nothing else can be named
        problem = Problem(error.where.removeprefix(f"{url.rstrip('/')}/"), error.what)
        return verification_of(url, {}, [problem])


def _objects(
    publication: Publication, artifacts: dict[str, Artifact], on_bytes: Callable[[int, int], None]
) -> Iterator[Problem]:
    children = {name: artifact.manifest for name, artifact in artifacts.items() if name != "."}
    files = [
        entry for entry in list_files(publication.manifest, children) if entry.table != "manifest"
    ]  # those are proven
    total, done = sum(entry.bytes for entry in files), 0
    for entry in files:
        try:
            for piece in publication.read(entry):
                done += len(piece)
                on_bytes(done, total)
        except (CorruptFile, InputChanged) as error:
            yield Problem(entry.path, error.what)
