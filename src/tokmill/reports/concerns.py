"""What a report warns of, and what it notes; `tokmill review` looks further."""

from __future__ import annotations

from collections.abc import Iterator

from tokmill.artifacts.manifest import Json
from tokmill.artifacts.upstream import UNKNOWN
from tokmill.audit.opened import Found
from tokmill.errors import most_scanned, plural
from tokmill.reports.charts import percent
from tokmill.reports.tally import Tally
from tokmill.stages.warnings import told_by_run

_FEW_EPOCHS = 4  # as good as new text (docs/mixtures.md); more needs a decision
_LITTLE = 0.01  # of the tokens of a build, or percentage points of a share: nothing to decide about


def list_warnings(
    found: Found, tally: Tally | None, builds: list[Json], mixture: Json | None
) -> Iterator[tuple[str, str]]:
    """What somebody has to decide about, each with what was measured; `tokmill review` looks further."""
    if found.root is None:
        yield (
            "run",
            "not finished: it has no manifest of its own; the figures are of the steps that are there",
        )
    for step in found.missing:
        yield step, "has no artifact: the run did not get there"
    for step, why in found.set_aside.items():
        yield step, f"not read: {why}"
    yield from told_by_run(found.artifacts, found.root.config if found.root is not None else {})
    held = [(f"build/{build['name']}", build["shares"]["license"]) for build in builds]
    encoded = [("tokens", tally.shares["license"])] if tally is not None else []
    unlicensed = [(row, where) for where, rows in held or encoded for row in rows if row["name"] == UNKNOWN]
    if unlicensed:
        row, where = max(unlicensed, key=lambda one: one[0]["tokens"])
        tokens = f"{row['tokens']:,} tokens ({percent(row['share'], 2)})"
        yield where, f"{tokens} are of documents without a known licence"
    yield from (told[1:] for told in _amounts(builds, mixture) if told[0])


def list_notes(found: Found, builds: list[Json], mixture: Json | None) -> Iterator[tuple[str, str]]:
    """What is as it is meant to be, or nearly."""
    for name, artifact in found.artifacts.items():
        counts, facts = artifact.manifest.counts, artifact.manifest.facts
        quarantined = sum(counts.get("quarantined", {}).values())
        if quarantined:
            yield name, f"{quarantined:,} of {counts['in']:,} records are quarantined"
        scanned: Json = facts.get("scanned", {})
        if scanned.get("is_complete") is False and scanned.get("fraction") is not None:
            read = most_scanned(scanned["fraction"], percent(scanned["fraction"], 2))
            read = f"{plural(scanned['records'], 'record')} in {read}"
            yield name, f"reading stopped after {read} of its bytes: what is here is not drawn from the whole"
        yield from ((name, str(note)) for note in facts.get("notes", []))
    yield from (told[1:] for told in _amounts(builds, mixture) if not told[0])


def _amounts(builds: list[Json], mixture: Json | None) -> Iterator[tuple[bool, str, str]]:
    """Cut off, run out, repeated: whether it is much, where, and what."""
    for build in builds:
        truncated, came = build["packing"]["truncated"], build["packing"]["in"]
        if truncated:
            what = f"{truncated:,} tokens were cut off documents longer than a row"
            yield truncated > _LITTLE * came, f"build/{build['name']}", what
    for split in mixture["splits"] if mixture else []:
        for source in split["sources"]:
            wanted, built, epochs = source["wanted"], source["built"], source.get("epochs") or 0
            has_less = built < wanted and percent(wanted) != percent(built)
            if source["name"] in (split["ran_out"] or []) and has_less:
                shares = f"{percent(wanted)} wanted, {percent(built)} built"
                what = f"{split['split']}: {source['name']} had too little for its share ({shares})"
                yield wanted - built > _LITTLE, "mixture", what
            if epochs > 1:
                what = f"{source['name']} is read {epochs:.2f} times in {split['split']}"
                yield epochs > _FEW_EPOCHS, "mixture", what
