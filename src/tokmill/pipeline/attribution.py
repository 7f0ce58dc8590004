"""ATTRIBUTION.md: whose work a run holds, by licence and source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import FileEntry, Json, file_entry
from tokmill.artifacts.runs import ATTRIBUTION
from tokmill.artifacts.upstream import UNKNOWN
from tokmill.clean.license_policy import LicenseTotals, attribution
from tokmill.stages.build.contents import Contents, load_contents
from tokmill.storage.disk import commit_bytes, remove_file


def write_attribution(out: Path, artifacts: Mapping[str, Artifact]) -> list[FileEntry]:
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
