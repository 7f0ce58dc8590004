"""What a report says of the tokenizer, the mixture, builds and texts: from their manifests what was asked
for, from the index of each build what it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase

from tokmill.artifacts.directory import Artifact
from tokmill.artifacts.manifest import Json, Manifest
from tokmill.artifacts.upstream import mixture_of
from tokmill.audit.opened import Found
from tokmill.formats import all_formats
from tokmill.reports.tally import rank_shares
from tokmill.stages.build.contents import Contents, Held
from tokmill.storage.textfiles import find_text_format

_TOKENIZER = ("kind", "file", "vocab_size", "padded_vocab_size", "eos_id", "encoding", "sha256", "engine")
_MIXED = ("wanted", "tokens", "read", "available", "documents")  # of a domain, the sum of its sources
_LOST = ("tail_dropped", "truncated", "left_out")
_NAMED = {"source": "sources", "domain": "domains", "language": "languages", "license": "licenses"}


def describe_tokenizer(found: Found) -> Json | None:
    artifact = found.artifacts.get("tokenizer")
    if artifact is None:
        return None
    facts = artifact.manifest.facts
    tokens = found.artifacts.get("tokens")
    counts: Json = tokens.manifest.counts if tokens is not None else {}
    config = artifact.manifest.config
    return {
        **{key: facts.get(key) for key in _TOKENIZER},
        "eos": config.get("eos"),
        **({"bos": config.get("bos"), "bos_id": facts["bos_id"]} if "bos_id" in facts else {}),
        "trained": artifact.manifest.config.get("train") is not None,
        "training": artifact.manifest.config.get("train"),
        "coverage": facts.get("coverage"),
        "checked_docs": counts.get("checked"),
        "tokens": counts.get("tokens"),
    }


def describe_mixture(found: Found, contents: Contents) -> Json | None:
    """Wanted, and what came of it in the rows of the first build of all sources;
    without one, as it was scheduled. Of stages, each by itself."""
    stages = {name: one for name, one in found.artifacts.items() if one.manifest.kind == "mixture"}
    told = [(name, _describe_mixture(found, contents, one)) for name, one in stages.items()]
    if not told or "mixture" in stages:
        return told[0][1] if told else None
    named = [
        {**split, "split": f"{split['split']}, {name.removeprefix('stage/')}"}
        for name, one in told
        for split in one["splits"]
    ]
    # turns beyond the first of a document: within a stage, and the first one of a later stage
    repeats = sum(one["repeats"] or 0 for _, one in told) + sum(
        source.get("again", 0)
        for one in stages.values()
        for split in one.manifest.facts.get("splits", {}).values()
        for source in split.get("sources", {}).values()
    )
    return {**told[0][1], "target": None, "repeats": repeats, "build": None, "splits": named}


def _describe_mixture(found: Found, contents: Contents, artifact: Artifact) -> Json:
    config = artifact.manifest.config
    by_split: Json = artifact.manifest.facts.get("splits", {})
    named: list[str] = found.artifacts["tokens"].manifest.facts["splits"]
    splits = {split: by_split[split] for split in named if split in by_split}  # a manifest sorts its keys
    builds = found.of_kind("build").items()
    build = next(
        (
            name
            for name, made in builds
            if not made.manifest.config["sources"] and mixture_of(found.artifacts, made) is artifact
        ),
        None,
    )
    return {
        "target": config.get("target"),
        "exhausted": config.get("exhausted"),
        "weights": config.get("domains"),
        "repeats": artifact.manifest.counts.get("repeats"),
        "build": build,
        "splits": [
            {
                **_mixed(
                    split,
                    told,
                    config,
                    contents.totals("source", split=split, build=build) if build else None,
                ),
                "build": build,
            }
            for split, told in splits.items()
        ],
    }


def _mixed(split: str, told: Json, config: Json, held: Mapping[str, Held] | None) -> Json:
    """One split; by domain as well where the recipe weighs them. Shares are of tokens in rows. Epochs are of
    documents, whole ones: a row that is too short for a document reads it all the same."""
    sources = {name: {**source, "read": source["tokens"]} for name, source in told.get("sources", {}).items()}
    for source in sources.values():  # where a score repeats documents, each of them once
        source["available"] = source.get("tokens_once", source["available"])
    if held is not None:
        for name, source in sources.items():
            own = held.get(name)
            source |= {
                "tokens": own.tokens if own else 0,
                "read": own.read if own else 0,
                "documents": own.docs if own else 0,
            }
    whole = sum(source["tokens"] for source in sources.values())
    domains: dict[str, Json] = {}
    for name, source in sources.items():
        domain = domains.setdefault(config["domain_of"][name], dict.fromkeys(_MIXED, 0))
        domain |= {key: domain[key] + source[key] for key in _MIXED}
    for one in (*sources.values(), *domains.values()):
        one["built"] = round(one["tokens"] / whole, 9) if whole else 0.0
        one["epochs"] = round(one["read"] / one["available"], 6) if one["available"] else 0.0
        one["wanted"] = round(one["wanted"], 9)
    return {
        "split": split,
        "tokens": whole,
        "reached": told.get("reached"),
        "left_over": told.get("left_over"),
        "ran_out": told.get("exhausted"),
        "max_error": told.get("max_error"),
        "domains": [{"name": name, **domain} for name, domain in domains.items()]
        if config.get("domains") is not None
        else None,
        "sources": [
            {"name": name, "domain": config["domain_of"][name], **source} for name, source in sources.items()
        ],
    }


def describe_builds(found: Found, contents: Contents) -> list[Json]:
    """Documents of their shares are counted once, whatever repeats."""
    rows = []
    for name, artifact in found.of_kind("build").items():
        shares = {key: _held_shares(contents.totals(key, build=name)) for key in (*_NAMED, "split")}
        rows.append({**describe_build(name, artifact), "shares": shares})
    return rows


def describe_texts(found: Found) -> list[Json]:
    """Builds of texts; a document that a mixture repeats counts each time."""
    return [
        {
            "name": name,
            "format": artifact.manifest.config["format"],
            "files": len(artifact.manifest.entries("texts")),
            "bytes": sum(entry.bytes for entry in artifact.manifest.files),
            "docs": artifact.manifest.counts["kept"],
            "splits": artifact.manifest.counts["splits"],
            "hub_files": {
                split: pattern
                for split, total in artifact.manifest.counts["splits"].items()
                if total["docs"]
                and (pattern := _pattern_of(artifact.manifest, split, f"*{_suffix_of(artifact)}")) is not None
            },
            "corpus_digest": artifact.manifest.facts["corpus_digest"],
        }
        for name, artifact in found.of_kind("texts").items()
    ]


def _suffix_of(texts: Artifact) -> str:
    return find_text_format(texts.manifest.config["format"]).suffix


def _pattern_of(manifest: Manifest, split: str, files: str | None) -> str | None:
    """What `datasets` loads a split by; None where no file of the manifest fits."""
    pattern = f"{split}/{files}"
    is_there = files is not None and any(fnmatchcase(entry.path, pattern) for entry in manifest.files)
    return pattern if is_there else None


def _held_shares(totals: Mapping[str, Held]) -> list[Json]:
    return rank_shares(
        {name: {"docs": held.docs, "tokens": held.tokens} for name, held in totals.items() if held.tokens}
    )


def describe_build(name: str, artifact: Artifact) -> Json:
    manifest = artifact.manifest
    pack: Json = manifest.config.get("pack") or {}
    hub_files = next(
        (one.hub_files for one in all_formats() if one.name == manifest.config.get("format")), None
    )
    return {
        "name": name,
        "sources": manifest.config.get("sources") or [],
        "format": manifest.config.get("format"),
        "dtype": manifest.config.get("dtype"),
        "layout": pack.get("layout"),
        "length": pack.get("length"),
        "files": len(manifest.files),
        "bytes": sum(entry.bytes for entry in manifest.files),
        "identity": manifest.identity,
        "docs": manifest.counts["kept"],
        "rows": manifest.counts["rows"],
        "packing": _packing(manifest.counts["tokens"]),
        "splits": [
            {
                "split": task["key"],
                "docs": task["counts"]["kept"],
                "rows": task["counts"]["rows"],
                "packing": _packing(task["counts"]["tokens"]),
                "hub_files": _pattern_of(manifest, task["key"], hub_files)
                if task["counts"]["tokens"]["written"]
                else None,
            }
            for task in manifest.tasks
        ],
        "shares": {key: rank_shares(manifest.counts[of]) for key, of in _NAMED.items()},
        "warnings": [str(warning) for warning in manifest.facts.get("warnings", [])],
    }


def describe_left_out(found: Found) -> list[Json]:
    """Documents that every filter kept, and that a mixture gave no turn or a build no row.
    Of stages and builds each by itself: one may have what another leaves out."""
    steps = {name: one for name, one in found.artifacts.items() if one.manifest.kind in ("mixture", "build")}
    return [
        {"step": name, "split": task["key"], "reason": reason, "docs": docs}
        for name, artifact in steps.items()
        for task in artifact.manifest.tasks
        for reason, docs in sorted(task["counts"].get("dropped", {}).items())
    ]


def _packing(tokens: Json) -> Json:
    """Where the tokens went, and how much of what was written is padding."""
    padding, written = tokens["padding"], tokens["written"]
    lost = {key: tokens[key] for key in _LOST}
    return {
        "in": tokens["in"],
        "written": written,
        **lost,
        "padding": padding,
        "padding_share": _share(padding, written + padding),
        "lost_share": _share(sum(lost.values()), tokens["in"]),
    }


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 6) if whole else None
