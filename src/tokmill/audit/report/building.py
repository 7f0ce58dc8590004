"""The token side as its manifests tell it: tokenizer, mixture, builds. What a manifest does not say is None."""

from __future__ import annotations

from typing import Any

from tokmill.artifact import Artifact
from tokmill.audit.report.found import Found
from tokmill.manifest import Json

_TOKENIZER = ("kind", "file", "vocab_size", "padded_vocab_size", "eos_id", "encoding", "sha256", "engine")
_LOST = ("tail_dropped", "truncated", "left_out")
_NAMED = {"source": "sources", "domain": "domains", "language": "languages", "license": "licenses"}


def describe_tokenizer(found: Found) -> Json | None:
    artifact = found.artifacts.get("tokenizer")
    if artifact is None:
        return None
    facts = artifact.manifest.facts
    tokens = found.artifacts.get("tokens")
    counts: Json = tokens.manifest.counts if tokens is not None else {}
    return {
        **{key: facts.get(key) for key in _TOKENIZER},
        "eos": artifact.manifest.config.get("eos"),
        "trained": artifact.manifest.config.get("train") is not None,
        "training": artifact.manifest.config.get("train"),
        "coverage": facts.get("coverage"),
        "checked_docs": counts.get("checked"),
        "tokens": counts.get("tokens"),
    }


def describe_mixture(found: Found) -> Json | None:
    artifact = found.artifacts.get("mixture")
    if artifact is None:
        return None
    config = artifact.manifest.config
    by_split: Json = artifact.manifest.facts.get("splits", {})
    named: list[str] = found.artifacts["tokens"].manifest.facts["splits"]
    splits = {split: by_split[split] for split in named if split in by_split}  # a manifest sorts its keys
    return {
        "target": config.get("target"),
        "exhausted": config.get("exhausted"),
        "weights": config.get("domains"),
        "repeats": artifact.manifest.counts.get("repeats"),
        "splits": [
            {
                "split": split,
                "tokens": told.get("tokens"),
                "reached": told.get("reached"),
                "left_over": told.get("left_over"),
                "ran_out": told.get("exhausted"),
                "max_error": told.get("max_error"),
                "sources": [{"name": name, **source} for name, source in told.get("sources", {}).items()],
            }
            for split, told in splits.items()
        ],
    }


def describe_builds(found: Found) -> list[Json]:
    return [describe_build(name, artifact) for name, artifact in found.of_kind("build").items()]


def describe_build(name: str, artifact: Artifact) -> Json:
    manifest = artifact.manifest
    pack: Json = manifest.config.get("pack") or {}
    return {
        "name": name,
        "format": manifest.config.get("format"),
        "dtype": manifest.config.get("dtype"),
        "layout": pack.get("layout"),
        "length": pack.get("length"),
        "files": len(manifest.files),
        "bytes": sum(entry.bytes for entry in manifest.files),
        "identity": manifest.identity,
        "docs": manifest.counts.get("kept"),
        "rows": manifest.counts.get("rows"),
        "packing": _packing(manifest.counts),
        "splits": [{"split": task["key"], **_split(task)} for task in manifest.tasks],
        "shares": {key: _shares(manifest.counts.get(name)) for key, name in _NAMED.items()},
        "warnings": [str(warning) for warning in manifest.facts.get("warnings", [])],
    }


def _split(task: Json) -> Json:
    counts: Json = task.get("counts", {})
    return {"docs": counts.get("kept"), "rows": counts.get("rows"), "packing": _packing(counts)}


def _packing(counts: Json) -> Json | None:
    """Where the tokens went, and how much of what was written is padding."""
    tokens: Json = counts.get("tokens", {})
    if "written" not in tokens:
        return None
    padding, written = tokens.get("padding", 0), tokens["written"]
    lost = {key: tokens[key] for key in _LOST if key in tokens}
    return {
        "in": tokens.get("in"),
        "written": written,
        **lost,
        "padding": padding,
        "padding_share": _share(padding, written + padding),
        "lost_share": _share(sum(lost.values()), tokens.get("in")),
    }


def _shares(totals: Any) -> list[Json] | None:
    if not isinstance(totals, dict):
        return None
    whole = sum(total.get("tokens", 0) for total in totals.values())
    rows = [
        {"name": name, **total, "share": _share(total.get("tokens", 0), whole)}
        for name, total in totals.items()
    ]
    return sorted(rows, key=lambda row: (-row.get("tokens", 0), row["name"]))


def _share(part: int, whole: int | None) -> float | None:
    return round(part / whole, 6) if whole else None
