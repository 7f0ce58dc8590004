"""A report over what stand-alone verbs left in a directory, and below it.

    *.manifest.json      shards of normalize and filter, what dedup kept ─┐
    manifest.json        what shard or build made                         ├ gather_steps ─> report.json,
    ENCODE.meta.json     a token cache of encode                         ─┘                 report.html

Each directory is a step, in the order of their names; the shards of a source are one. Tokens are those that
were written, or estimates (four characters each) where nothing was tokenized yet: the two are never added up.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokmill.artifacts.directory import open_artifact
from tokmill.artifacts.manifest import MANIFEST, Json, add_counts
from tokmill.artifacts.progress import load_journal
from tokmill.errors import RecipeError, StorageError, TokmillError, plural
from tokmill.reports.builds import describe_build
from tokmill.reports.cards import write_cards
from tokmill.reports.charts import (
    Section,
    bar,
    brief,
    count,
    nothing,
    percent,
    shown,
    size,
    spoken,
    table,
)
from tokmill.reports.page import Report, frame, write_report
from tokmill.reports.page import report as report_run
from tokmill.storage.disk import read_regular

_SHARDS, _CACHE = "*.manifest.json", "ENCODE.meta.json"
_CLEAN, _BUILD, _CACHED = "clean", "build", "token cache"


def is_of_verbs(directory: Path) -> bool:
    """Not a run of a recipe, finished or not, and something that a verb has written."""
    root = _open(directory)
    if (root is not None and root.manifest.kind == "run") or load_journal(directory) is not None:
        return False
    if any(_open(path) is not None for path in sorted((directory / "ingest").glob("*/"))):
        return False  # a run that was cut short, and lost its journal
    return next(_places(directory), None) is not None


def report(
    directory: str | Path,
    *,
    out: str | Path | None = None,
    cards: bool = False,
    state: Mapping[str, Any] | str | Path | None = None,
) -> Report:
    """Of a run, or of what verbs left. `out`: the page, or a directory for it; the figures go beside it.

    `cards`: also DATACARD.md and croissant.json of a run, for publishing. `state`: of a loader of its builds
    (a mapping, or a file of JSON), for a section about what was trained on by then.
    """
    if Path(directory).is_dir() and is_of_verbs(Path(directory)):
        if state is not None:
            raise RecipeError(
                "--state needs the run of a recipe", where=str(directory), next="give a run, or no state"
            )
        if cards:
            raise RecipeError(
                "--cards needs the run of a recipe", where=str(directory), next="give a run, or no cards"
            )
        facts = gather_steps(Path(directory))
        return write_report(Path(directory), out, facts, _page(facts))
    made = report_run(directory, out, state)
    return made._replace(cards=tuple(write_cards(directory, made.page.parent, made.facts))) if cards else made


def gather_steps(directory: Path) -> Json:
    """Every step with its counts, its drops and its tokens by domain."""
    steps = [step for place in _places(directory) for step in _steps(directory, place)]
    if not steps:
        raise StorageError(
            "no manifest of a run or of a verb lies here",
            where=str(directory),
            next=(
                "give a directory that `tokmill run`, `tokmill normalize`, `tokmill filter`, `tokmill dedup` "
                "or `tokmill build` has written"
            ),
        )
    names = sorted({name for step in steps for name in step["domains"]})
    return {
        "run": {"name": directory.resolve().name, "digest": None, "is_finished": True, "missing": []},
        "steps": steps,
        "domains": {
            name: {step["name"]: step["domains"][name] for step in steps if name in step["domains"]}
            for name in names
        },
    }


def _places(directory: Path) -> Iterator[Path]:
    """Directories with something to tell; working directories and the runs of recipes are passed over."""
    paths = [directory, *sorted(path for path in directory.rglob("*") if path.is_dir())]
    runs: list[Path] = []
    for path in paths:
        if any(part.startswith(".") for part in path.relative_to(directory).parts):
            continue
        if any(path.is_relative_to(run) for run in runs):
            continue
        artifact = _open(path)
        if artifact is not None and artifact.manifest.kind == "run":
            runs.append(path)
        elif (
            (artifact is not None and artifact.manifest.kind == _BUILD)
            or (path / _CACHE).is_file()
            or any(path.glob(_SHARDS))
        ):
            yield path


def _steps(root: Path, place: Path) -> Iterator[Json]:
    name = place.relative_to(root).as_posix()
    name = root.resolve().name if name == "." else name
    sources: dict[str, list[Json]] = {}
    for path in sorted(place.glob(_SHARDS)):
        told = _load(path)
        if {"shard_path", "counts", "drops"} <= told.keys():
            sources.setdefault(told.get("source") or told.get("kind") or "files", []).append(told)
    for source, manifests in sources.items():
        yield _shards(name if len(sources) == 1 else f"{name}/{source}", manifests)
    artifact = _open(place)
    if artifact is not None and artifact.manifest.kind == _BUILD:
        yield _built(name, artifact)
    if (place / _CACHE).is_file():
        meta = _load(place / _CACHE)
        docs = meta.get("examples")
        yield _step(name, _CACHED, 1, docs_in=docs, docs=docs, tokens=meta.get("tokens"))


def _shards(name: str, manifests: list[Json]) -> Json:
    counts: Json = {}
    drops: Json = {}
    domains: Json = {}
    for manifest in manifests:
        own = {key: manifest["counts"][key] for key in ("docs", "bytes", "est_tokens")}
        counts, drops = add_counts(counts, own), add_counts(drops, manifest["drops"])
        domains = add_counts(domains, manifest.get("domains") or {manifest.get("domain", "default"): own})
    return _step(
        name,
        manifests[0].get("kind", _CLEAN),
        len(manifests),
        docs_in=counts["docs"] + sum(drops.values()),
        **counts,
        drops=dict(sorted(drops.items())),
        domains=dict(sorted(domains.items())),
        **{key: manifests[0][key] for key in ("hub",) if key in manifests[0]},
    )


def _built(name: str, artifact: Any) -> Json:
    build = describe_build(name, artifact)
    shares = build["shares"]["domain"] or []
    counts = artifact.manifest.counts
    return _step(
        name,
        _BUILD,
        build["files"],
        docs_in=counts.get("in"),
        tokens=build["packing"]["written"],
        **{key: build[key] for key in ("docs", "bytes", "rows", "packing", "format")},
        drops=dict(sorted((counts.get("dropped") or {}).items())),
        domains={row["name"]: {"docs": row.get("docs"), "tokens": row.get("tokens")} for row in shares},
    )


def _step(name: str, kind: str, files: int, **figures: Any) -> Json:
    """What a step does not know is None."""
    unknown = dict.fromkeys(("docs_in", "docs", "bytes", "est_tokens", "tokens", "rows"))
    return {"name": name, "kind": kind, "files": files, **unknown, "drops": {}, "domains": {}, **figures}


def _open(directory: Path) -> Any:
    if not (directory / MANIFEST).is_file():
        return None
    try:
        return open_artifact(directory)
    except TokmillError:
        return None


def _load(path: Path) -> Json:
    try:
        found = json.loads(read_regular(path))
    except (OSError, ValueError) as error:
        raise StorageError(
            f"cannot be read ({error})", where=str(path), next="run its command again, or remove it"
        ) from error
    return found if isinstance(found, dict) else {}


# -- the page --------------------------------------------------------------------------------------


def _page(facts: Json) -> str:
    sections = [_steps_section(facts), _drops_section(facts), _domains_section(facts)]
    header = (
        f'<header><div class="top"><p class="brand">tokmill report</p></div>'
        f"<h1>{shown(facts['run']['name'])}</h1><p>{plural(len(facts['steps']), 'step')} of verbs without a "
        "recipe</p></header>"
    )
    return frame(
        facts["run"]["name"],
        header,
        sections,
        "<p>Written by tokmill from the manifests of the verbs alone. report.json has the same figures.</p>",
    )


def _tokens(told: Json) -> str:
    if told.get("tokens") is not None:
        return brief(told["tokens"])
    return f"~{brief(told['est_tokens'])}" if told.get("est_tokens") is not None else "–"


def _steps_section(facts: Json) -> Section:
    rows = [
        [
            shown(step["name"]),
            step["kind"],
            count(step["docs_in"]),
            count(step["docs"]),
            percent(step["docs"] / step["docs_in"]) if step["docs_in"] else "–",
            count(step["rows"]) if step["rows"] is not None else "–",
            _tokens(step),
            size(step["bytes"]) if step["bytes"] is not None else "–",
        ]
        for step in facts["steps"]
    ]
    head = ["step", "kind", "documents in", "kept", "share", "rows", "tokens", "bytes"]
    says = (
        "Every directory that a verb has written, by its manifests. ~ is an estimate: four characters a "
        "token."
    )
    return Section("steps", "Steps", says, table(head, rows, left=2))


def _drops_section(facts: Json) -> Section:
    rows = [
        [shown(step["name"]), shown(spoken(reason)), f"{dropped:,}", percent(dropped / step["docs_in"])]
        for step in facts["steps"]
        for reason, dropped in sorted(step["drops"].items(), key=lambda item: (-item[1], item[0]))
    ]
    body = table(["step", "reason", "documents", "of those in"], rows, left=2) if rows else nothing("None.")
    says = "Documents that a step did not keep, and why; its `decisions.jsonl.zst` has each of them."
    return Section("drops", "Drops", says, body)


def _domains_section(facts: Json) -> Section:
    rows = []
    for step in facts["steps"]:
        key = "tokens" if step["tokens"] is not None else "est_tokens"
        whole = sum(own.get(key) or 0 for own in step["domains"].values())
        for name, own in step["domains"].items():
            share = (own.get(key) or 0) / whole if whole else 0.0
            rows.append(
                [
                    shown(step["name"]),
                    shown(name),
                    count(own.get("docs")),
                    _tokens(own),
                    percent(share),
                    bar(share),
                ]
            )
    head = ["step", "domain", "documents", "tokens", "share", ""]
    body = table(head, rows, left=2) if rows else nothing("No step knows the domains of its documents.")
    return Section("domains", "Tokens by domain", "What each step has of each domain.", body)
