"""Receipts and manifests: the evidence that every artifact carries.

    task     -> files + receipts/<key>.json       written when the files have their final names
    step     -> manifest.json                     written last; a directory without it is not an artifact

Three digests, each over canonical JSON (sorted keys, no spaces):

    identity = files (path, rows, content_sha256)                      what the artifact holds; a list of what
                                                                       it must not hold is no part of it
    digest   = all of the manifest but `environment`                   … and how it was made
    seal     = digest + environment                                    … and that nobody edited the file

A step is up to date when its fingerprint, made from kind, config and the identities of its inputs, is the one
in the manifest. Identities chain steps together, so a step that was rebuilt to the same content rebuilds
nothing after it. `environment` is what may differ between two equal runs: when, where and with what it was
made.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, TypeVar, overload

import msgspec

from tokmill.errors import ConservationBroken, ManifestDamaged
from tokmill.storage.disk import Written, commit_bytes, read_regular
from tokmill.storage.location import is_within, read_whole

# Raised whenever the same recipe and inputs give other bytes; see "Changes output bytes" in CHANGELOG.md.
FORMAT_VERSION = 2

MANIFEST = "manifest.json"
STALE_MANIFEST = "manifest.stale.json"
RECEIPTS = "receipts"
TOMBSTONES = "tombstones"  # table of what an artifact must never hold, which is nothing that it holds

_MAX_MANIFEST_BYTES = 1 << 30

Json = dict[str, Any]
T = TypeVar("T")


class FileEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One file of an artifact. `rows` are documents, ledger rows or sequences, whatever the table counts."""

    path: str  # relative to the artifact
    table: str
    bytes: int
    rows: int
    sha256: str
    content_sha256: str
    sequence: str | None = None  # digest of the rows in order, which joins across files


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What one task made."""

    key: str
    fingerprint: str
    files: list[FileEntry]
    counts: Json
    facts: Json = {}


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    step: str
    format_version: int
    config: Json
    inputs: dict[str, str]  # step or file -> identity or sha256
    fingerprint: str
    files: list[FileEntry]
    tasks: list[Json]  # receipts, with the paths of their files
    counts: Json
    facts: Json  # what the step found out and later steps read: vocab_size, corpus_digest, …
    experiment_id: str
    identity: str
    digest: str
    seal: str
    environment: Json

    @overload
    def options(self, kind: type[T]) -> T: ...
    @overload
    def options(self, kind: UnionType) -> Any: ...
    def options(self, kind: Any) -> Any:
        """The config as the options it was made from."""
        try:
            return msgspec.convert(self.config, kind)
        except msgspec.ValidationError as error:
            raise ManifestDamaged(
                f"its config is not one that this version writes ({error})",
                where=self.step,
                next="run the recipe again, or read it with the version that made it",
            ) from error

    def entries(self, table: str) -> list[FileEntry]:
        return [entry for entry in self.files if entry.table == table]

    def receipts(self) -> list[Receipt]:
        """The tasks as receipts, so that a rebuild can keep the ones that still hold."""
        by_path = {entry.path: entry for entry in self.files}
        return [
            Receipt(**{**task, "files": [by_path[path] for path in task["files"]]}) for task in self.tasks
        ]


def file_entry(path: str, table: str, written: Written, *, rows: int, content_sha256: str = "") -> FileEntry:
    """An entry for a file whose content is its bytes, unless a content digest is given."""
    return FileEntry(
        path=path,
        table=table,
        bytes=written.bytes,
        rows=rows,
        sha256=written.sha256,
        content_sha256=content_sha256 or written.sha256,
    )


def canonical(value: Any) -> bytes:
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def config_of(options: Any) -> Json:
    """Options as the JSON of a fingerprint or a manifest: decimals are strings, tuples are lists."""
    if isinstance(options, dict):
        return options
    config: Json = msgspec.json.decode(msgspec.json.encode(options))
    _omit_defaults(options, config)
    return config


def _omit_defaults(options: Any, config: Any) -> None:
    """msgspec leaves out a value that *is* the default. One that came from another process equals it and is
    another object: the same options would have two fingerprints, and a receipt would never be found again."""
    if not isinstance(options, msgspec.Struct) or not isinstance(config, dict):
        return
    for field in _fields(type(options)):
        value = getattr(options, field.name)
        is_default = type(value) is type(field.default) and value == field.default
        if is_default and options.__struct_config__.omit_defaults:
            config.pop(field.encode_name, None)
        else:
            _omit_defaults(value, config.get(field.encode_name))


@functools.cache
def _fields(kind: type[msgspec.Struct]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """msgspec evaluates the annotations each time: 0.4 ms for the options of a task."""
    return msgspec.structs.fields(kind)


def fingerprint_of(value: Any) -> str:
    return hashlib.sha256(canonical(value)).hexdigest()


def build_manifest(
    *,
    kind: str,
    step: str,
    config: Json,
    inputs: Mapping[str, str],
    receipts: Iterable[Receipt],
    counts: Json,
    facts: Json,
    experiment_id: str,
    environment: Json,
) -> Manifest:
    receipts = list(receipts)
    files = [entry for receipt in receipts for entry in receipt.files]
    body: Json = {
        "kind": kind,
        "step": step,
        "format_version": FORMAT_VERSION,
        "config": config,
        "inputs": dict(inputs),
        "fingerprint": step_fingerprint(kind, config, inputs),
        "files": [msgspec.to_builtins(entry) for entry in files],
        "tasks": [
            {**msgspec.structs.asdict(receipt), "files": [entry.path for entry in receipt.files]}
            for receipt in receipts
        ],
        "counts": counts,
        "facts": facts,
        "experiment_id": experiment_id,
        "identity": identity_of(kind, files),
    }
    digest = fingerprint_of(body)
    seal = fingerprint_of({"digest": digest, "environment": environment})
    return msgspec.convert({**body, "digest": digest, "seal": seal, "environment": environment}, Manifest)


def identity_of(kind: str, files: Iterable[FileEntry]) -> str:
    content = sorted(
        (entry.path, entry.rows, entry.content_sha256) for entry in files if entry.table != TOMBSTONES
    )
    return fingerprint_of({"kind": kind, "files": content})


def step_fingerprint(kind: str, config: Json, inputs: Mapping[str, str]) -> str:
    return fingerprint_of(
        {"kind": kind, "format_version": FORMAT_VERSION, "config": config, "inputs": dict(inputs)}
    )


def write_manifest(directory: Path, manifest: Manifest) -> None:
    commit_bytes(directory / MANIFEST, _serialize(manifest))


def load_manifest(directory: Path, name: str = MANIFEST) -> Manifest:
    """Read and prove: canonical form, identity, digest and seal must all agree."""
    path = directory / name
    data = read_whole(path, _MAX_MANIFEST_BYTES)
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
        body = json.loads(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _damaged(path, f"not a manifest ({error})") from error
    environment = body.pop("environment")
    seal, digest = body.pop("seal"), body.pop("digest")
    if digest != fingerprint_of(body) or seal != fingerprint_of(
        {"digest": digest, "environment": environment}
    ):
        raise _damaged(path, "its digest does not match its content: it was edited")
    if manifest.identity != identity_of(manifest.kind, manifest.files):
        raise _damaged(path, "its identity does not match its files")
    if not all(is_within(entry.path) for entry in manifest.files):
        raise _damaged(path, "it lists a file outside of its directory")
    if data != _serialize(manifest):
        raise _damaged(path, "it was reformatted: not the bytes that tokmill wrote")
    return manifest


def write_receipt(directory: Path, receipt: Receipt) -> None:
    commit_bytes(
        directory / RECEIPTS / f"{receipt.key}.json", canonical(msgspec.to_builtins(receipt)) + b"\n"
    )


def load_receipts(directory: Path) -> list[Receipt]:
    """Receipts of an unfinished step; one that cannot be read counts as absent, its task runs again."""
    found = []
    for path in sorted((directory / RECEIPTS).glob("*.json")):
        try:
            found.append(msgspec.json.decode(read_regular(path), type=Receipt))
        except (OSError, msgspec.MsgspecError, ValueError, RecursionError):
            continue
    return found


# What a step counts when there was nothing for it to do.
NO_DOCUMENTS: Json = {"in": 0, "kept": 0, "dropped": {}, "quarantined": {}}


def add_counts(total: Json, more: Json) -> Json:
    """Sum of two trees of counts."""
    out = dict(total)
    for key, value in more.items():
        out[key] = add_counts(out.get(key, {}), value) if isinstance(value, dict) else out.get(key, 0) + value
    return out


def sum_counts(receipts: Iterable[Receipt]) -> Json:
    total: Json = {}
    for receipt in receipts:
        total = add_counts(total, receipt.counts)
    return total


def check_conservation(counts: Json, where: str) -> None:
    """in = kept + dropped + quarantined, the last two by reason. A gap is a bug of ours and stops the run."""
    dropped = sum(counts.get("dropped", {}).values())
    quarantined = sum(counts.get("quarantined", {}).values())
    accounted = counts["kept"] + dropped + quarantined
    if counts["in"] != accounted:
        raise ConservationBroken(
            f"{counts['in']:,} documents went in but {accounted:,} are accounted for "
            f"({counts['kept']:,} kept, {dropped:,} dropped, {quarantined:,} quarantined)",
            where=where,
            next="this is a bug in tokmill; please report it with the manifest",
        )


class Change(NamedTuple):
    path: tuple[str, ...]  # keys, and the names of items that have one; no places in lists
    said: str


def explain_changes(old: Any, new: Any, path: str = "") -> list[str]:
    """Field by field: "`dedup.near.bands` changed 14 → 20"."""
    return [change.said for change in compared(old, new, (), path)]


def compared(old: Any, new: Any, path: tuple[str, ...] = (), spelled: str = "") -> Iterator[Change]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({*old, *new}):
            below = f"{spelled}.{key}" if spelled else key
            if key in old and key in new:
                yield from compared(old[key], new[key], (*path, key), below)
            else:
                yield _told((*path, key), below, old.get(key), new.get(key))
    elif _is_named(old) and _is_named(new):
        befores, afters = ({item["name"]: item for item in items} for items in (old, new))
        for name in (*afters, *(name for name in befores if name not in afters)):
            below = f"{spelled}.{name}"
            if name in befores and name in afters:
                yield from compared(befores[name], afters[name], (*path, name), below)
            else:
                yield _told((*path, name), below, befores.get(name), afters.get(name))
    elif isinstance(old, list) and isinstance(new, list):
        yield from __compared_lists(old, new, path, spelled)
    elif _short(old) != _short(new):
        yield _told(path, spelled, old, new)


def __compared_lists(old: list[Any], new: list[Any], path: tuple[str, ...], spelled: str) -> Iterator[Change]:
    """Item by item; what was put in or taken out moves the others, and is told alone."""
    keys = [[json.dumps(item, sort_keys=True) for item in items] for items in (old, new)]
    for kind, a, b, c, d in difflib.SequenceMatcher(a=keys[0], b=keys[1], autojunk=False).get_opcodes():
        if kind == "replace" and b - a == d - c:
            for at, (before, after) in enumerate(zip(old[a:b], new[c:d], strict=True)):
                yield from compared(before, after, path, f"{spelled}[{c + at}]")
        elif kind != "equal":
            yield from (_told(path, f"{spelled}[{a + at}]", item, None) for at, item in enumerate(old[a:b]))
            yield from (_told(path, f"{spelled}[{c + at}]", None, item) for at, item in enumerate(new[c:d]))


def _told(path: tuple[str, ...], spelled: str, old: Any, new: Any) -> Change:
    if old is None:
        return Change(path, f"`{spelled}` added: {_short(new)}")
    if new is None:
        return Change(path, f"`{spelled}` removed (was {_short(old)})")
    return Change(path, f"`{spelled}` changed {_short(old)} → {_short(new)}")


def _is_named(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) and "name" in item for item in value)


def _serialize(manifest: Manifest) -> bytes:
    """One layout: fields as declared, keys of mappings sorted, so that no two can change places unseen."""
    body = msgspec.to_builtins(manifest, order="deterministic")
    # as json.dumps(indent=1) writes it, which is Python and takes four times as long
    plain = json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
    return msgspec.json.format(plain, indent=1) + b"\n"


def _short(value: Any) -> str:
    if isinstance(value, dict):  # what says nothing is left out
        value = {key: item for key, item in value.items() if item not in (None, [], {})}
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _damaged(path: Path, what: str) -> ManifestDamaged:
    return ManifestDamaged(
        what,
        where=str(path),
        next="restore the file, or run the recipe again: it makes the step again",
    )


_PACKAGES = (
    "tokmill", "numpy", "numba", "pyarrow", "msgspec", "tokenizers", "tiktoken", "sentencepiece",
    "datasets", "huggingface_hub",
)  # fmt: skip


def available_cores() -> int:
    """Cores this process may use, which in a container is fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def package_version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def describe_environment(*, workers: int, engine: str, recipe_directory: Path) -> Json:
    return {
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "engine": engine,
        "workers": workers,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": available_cores(),
        "packages": {name: package_version(name) for name in _PACKAGES},
        **_git(recipe_directory),
    }


@functools.cache
def _git(directory: Path) -> Json:
    """The commit of the recipe's repository, where there is one. Nothing else is asked: a command that looks
    at files (`git status`) runs programs that the repository's own config names."""
    command = ["git", "--no-pager", "-C", str(directory), "rev-parse", "HEAD"]
    # no command of git's own takes a lock, asks anybody, or fetches what is not there
    settings = {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_ALLOW_PROTOCOL": ""}
    try:
        found = subprocess.run(
            command, env=os.environ | settings, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        found = None
    return {"git_sha": found.stdout.strip() or None if found and not found.returncode else None}
