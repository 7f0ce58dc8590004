"""A build taken out of its run: the files by themselves, with a manifest that says what they were made from.

<run>/build/<name>/<split>/…  ─ moved ─> <target>/<split>/…  tokenizer/<file>  manifest.json (last)
                                         <target>/…          where there is one split only

`tokmill verify` proves it, and a trainer opens it, wherever it is copied.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from tokmill.artifact import Artifact
from tokmill.manifest import (
    MANIFEST,
    FileEntry,
    Json,
    Manifest,
    Receipt,
    build_manifest,
    file_entry,
    fingerprint_of,
    write_manifest,
)
from tokmill.storage.commit import commit_bytes, move_committed, remove_file
from tokmill.storage.location import read_whole
from tokmill.storage.reading import load_bytes

_META = "meta.json"
_TOKENIZER = "tokenizer"
_MAX_TOKENIZER_BYTES = 1 << 30


def publish(
    build: Artifact, tokenizer: Artifact, target: Path, facts: Json, *, only_split: str | None = None
) -> Manifest:
    """The build's files and its tokenizer in `target`; `facts` come to those of the build."""
    remove_file(target / MANIFEST)  # until all is there, nothing is
    strip = f"{only_split}/" if only_split else ""
    files = [_moved(build, entry, target, strip) for entry in build.manifest.files]
    files.append(copy_tokenizer(tokenizer, target))
    made = build.manifest
    receipt = Receipt(key="build", fingerprint=made.fingerprint, files=files, counts=made.counts)
    manifest = build_manifest(
        kind=made.kind,
        step=made.step,
        config=made.config,
        inputs=made.inputs,
        receipts=[receipt],
        counts=made.counts,
        facts={**made.facts, **facts},
        experiment_id=made.experiment_id,
        environment=made.environment,
    )
    write_manifest(target, manifest)
    _remove_strangers(target, manifest)
    return manifest


def _moved(build: Artifact, entry: FileEntry, target: Path, strip: str) -> FileEntry:
    path, name = build.path(entry), entry.path.removeprefix(strip)
    if path.name != _META:
        move_committed(path, target / name)
        return msgspec.structs.replace(entry, path=name)
    described = json.loads(load_bytes(path))
    up = "../" * name.count("/")
    described["tokenizer_path"] = f"{up}{_TOKENIZER}/{Path(described['tokenizer_path']).name}"
    data = json.dumps(described, indent=2, sort_keys=True, ensure_ascii=False).encode() + b"\n"
    written = commit_bytes(target / name, data)
    del described["created_at"]
    return file_entry(name, entry.table, written, rows=entry.rows, content_sha256=fingerprint_of(described))


def copy_tokenizer(tokenizer: Artifact, target: Path) -> FileEntry:
    (entry,) = tokenizer.manifest.entries("tokenizer")
    name = f"{_TOKENIZER}/{Path(entry.path).name}"
    written = commit_bytes(target / name, read_whole(tokenizer.path(entry), _MAX_TOKENIZER_BYTES))
    return file_entry(name, "tokenizer", written, rows=entry.rows)


def _remove_strangers(target: Path, manifest: Manifest) -> None:
    """What an earlier, larger build left: shards beside ours."""
    listed = {entry.path for entry in manifest.files}
    for directory in sorted({(target / path).parent for path in listed}):
        for path in sorted(directory.glob("shard_*")):
            if path.relative_to(target).as_posix() not in listed:
                remove_file(path)
