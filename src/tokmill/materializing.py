"""Bring one source into a container (`tokmill.container`): read, normalize, write shards, then the manifest.

    source ─ ingest ─ clean ─> working shards ─ kept rows, edits laid over ─> <split>-00000.jsonl.zst …
                                   removed at the end                          manifests/<dataset>_<revision>.json

A container that was asked for in the same words is there already: nothing is read and no network is touched. A
branch that was resolved once stays resolved.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from tokmill.artifact import Artifact
from tokmill.container import (
    CORPORA,
    MANIFESTS,
    ContainedShard,
    Container,
    build_container,
    folder_name,
    load_container,
    write_container,
)
from tokmill.errors import TokmillError
from tokmill.manifest import Json
from tokmill.progress import Progress
from tokmill.recipe import Recipe
from tokmill.running import run_recipe
from tokmill.stages.step import Shard, list_shards
from tokmill.stages.texts import estimate_tokens, load_clean
from tokmill.storage.jsonl import write_jsonl
from tokmill.storage.location import file_sha256
from tokmill.storage.streams import plain_sha256
from tokmill.tokenizers.load import load_tokenizer
from tokmill.tokenizers.protocol import Tokenizer

_LANGUAGE_FIELDS = ("language", "lang", "language_code")
_ENGLISH = ("en", "eng", "english", "eng_latn")


def materialize_source(
    recipe: Recipe,
    base: Path,
    root: Path,
    dataset: str,
    *,
    tokenizer: Path | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> tuple[Path, Container]:
    """The path of the manifest, and what it says. `recipe` has one source and asks for nothing after cleaning."""
    (source,) = recipe.sources
    asked: Json = {
        "source": source.model_dump(mode="json", exclude={"files", "name"}, exclude_defaults=True),
        "normalize": recipe.normalize.model_dump(mode="json"),
        "shards": recipe.shards.model_dump(mode="json"),
        "tokenizer": file_sha256(tokenizer) if tokenizer else None,
    }
    if source.hub is not None:  # files of the hub do not change at their commit, local ones may
        held = _held(root, dataset, asked)
        if held is not None:
            return held
    work = root / f".materialize-{folder_name(dataset)}"
    own = {source.name: ("source", "domain")}
    result = run_recipe(recipe, base, work, workers=workers, until="clean", progress=progress, own=own)
    ingested, cleaned = result.artifacts.values()
    hub = ingested.manifest.config["hub"]
    revision = hub["revision"] if hub else ingested.manifest.facts["corpus_digest"]
    folder = Path(CORPORA) / folder_name(dataset) / revision
    split = source.hub.split if source.hub else "train"
    (root / folder).mkdir(parents=True, exist_ok=True)
    loaded = load_tokenizer(tokenizer) if tokenizer else None
    shards = [
        _write_shard(root, folder / f"{split}-{number:05d}.jsonl.zst", shard, loaded)
        for number, shard in enumerate(list_shards(result.artifacts))
    ]
    about = {"asked": asked, **_about(ingested, cleaned)}
    container = build_container(
        "container", dataset, revision, about, shards, tokens_are_estimated=tokenizer is None
    )
    listed = {root / shard.path for shard in shards}
    for path in sorted((root / folder).glob("*.jsonl.zst")):
        if path not in listed:  # of an earlier, larger one
            path.unlink()
    path = root / MANIFESTS / f"{folder_name(dataset)}_{revision}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_container(path, container)
    shutil.rmtree(work)
    return path, container


def _held(root: Path, dataset: str, asked: Json) -> tuple[Path, Container] | None:
    """The container of an earlier, equal request, if its shards are all there."""
    for path in sorted((root / MANIFESTS).glob(f"{folder_name(dataset)}_*.json")):
        with contextlib.suppress(TokmillError, OSError):
            container = load_container(path)
            places = [(root / shard.path, shard.bytes) for shard in container.shards]
            if container.about.get("asked") == asked and all(
                place.stat().st_size == size for place, size in places
            ):
                return path, container
    return None


def _write_shard(root: Path, name: Path, shard: Shard, tokenizer: Tokenizer | None) -> ContainedShard:
    documents, chars = load_clean(shard.inputs())
    written = write_jsonl(root / name, documents)
    if tokenizer is None:
        tokens = estimate_tokens(chars)
    else:
        tokens = int(tokenizer.encode(documents.column("text").to_pylist()).lengths.sum())
    return ContainedShard(
        path=name.as_posix(),
        bytes=written.bytes,
        rows=documents.num_rows,
        chars=int(np.sum(chars)),
        tokens=tokens,
        sha256=written.sha256,
        content_sha256=plain_sha256(root / name),
    )


def _about(ingested: Artifact, cleaned: Artifact) -> Json:
    read, kept = ingested.manifest, cleaned.manifest
    hub: dict[str, Any] = read.config["hub"] or {}
    where, applied = read.config["where"], read.facts.get("where_applied", {})
    return {
        "hub": {key: hub["asked"][key] for key in ("config", "split")} if hub else None,
        "inputs": read.inputs,
        "fields": read.config["reading"]["options"],
        "language": {
            "asked": where,
            "applied": applied,
            "english_filter_applied": any(
                applied.get(key) and str(where[key]).lower() in _ENGLISH for key in _LANGUAGE_FIELDS
            ),
        },
        "normalization": kept.config["normalize"],
        "nul_chars": kept.counts["nul_chars"],
        "scanned": read.facts["scanned"],
        "corpus_digest": read.facts["corpus_digest"],
        "counts": {
            stage: {key: manifest.counts[key] for key in ("in", "kept", "dropped", "quarantined")}
            for stage, manifest in (("ingest", read), ("clean", kept))
        },
    }
