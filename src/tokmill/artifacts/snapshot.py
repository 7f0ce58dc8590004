"""A snapshot of a corpus: compressed shards in a place of their own, and a small manifest to commit.

<root>/corpora/<dataset>/<revision>/<split>-00000.jsonl.zst …      on a volume, in an image
<root>/manifests/<dataset>_<revision>.json                         in git: what they hold, and their sha256

    snapshot    everything that one revision of a dataset gave                     kind: container
    selection   some shards of a snapshot, chosen once; names it by its digest     kind: selection

Both list shards the same way, so a recipe takes either (`corpus: {manifest: …}`), and reads no shard whose
bytes are not the listed ones. Nothing in a manifest depends on the time or the place where it was written.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from tokmill.artifacts.manifest import Json, explain_changes, fingerprint_of
from tokmill.errors import InputError, ManifestDamaged, TokmillError, plural
from tokmill.storage.disk import commit_bytes
from tokmill.storage.location import InputFile, file_sha256, is_within, read_whole

VERSION = 1
CORPORA, MANIFESTS = "corpora", "manifests"
_MAX_BYTES = 1 << 30
_INHERITED = (
    "hub",
    "language",
    "normalization",
    "split",
)  # what a selection says of its texts as its parent does


class SnapshotShard(msgspec.Struct, frozen=True, kw_only=True):
    path: str  # relative to the root
    bytes: int
    rows: int
    chars: int
    tokens: int
    sha256: str  # of the file
    content_sha256: str  # of what it holds when decompressed


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    kind: Literal["container", "selection"]
    version: int
    dataset: str
    revision: str
    about: Json  # of a snapshot how it was made, of a selection what it was chosen from and how
    tokens_are_estimated: bool
    invariants: dict[str, int]  # shards, rows, chars, tokens, bytes: the sums of what is listed
    shards: list[SnapshotShard]
    digest: str


def build_snapshot(
    kind: Literal["container", "selection"],
    dataset: str,
    revision: str,
    about: Json,
    shards: Sequence[SnapshotShard],
    *,
    tokens_are_estimated: bool,
) -> Snapshot:
    body = {
        "kind": kind,
        "version": VERSION,
        "dataset": dataset,
        "revision": revision,
        "about": about,
        "tokens_are_estimated": tokens_are_estimated,
        "invariants": _sums(shards),
        "shards": [msgspec.to_builtins(shard) for shard in shards],
    }
    return msgspec.convert({**body, "digest": fingerprint_of(body)}, Snapshot)


def write_snapshot(path: Path, snapshot: Snapshot) -> None:
    body = msgspec.to_builtins(snapshot, order="deterministic")
    commit_bytes(path, json.dumps(body, indent=1, ensure_ascii=False).encode() + b"\n")


def write_selection(path: Path, selection: Snapshot, *, replace: bool = False) -> None:
    """A selection of that name is replaced only with `replace`, a snapshot never."""
    if path.exists():
        try:
            former: Snapshot | None = load_snapshot(path)
        except TokmillError:
            former = None
        if former == selection:
            return
        if former is None or former.kind != "selection":
            raise InputError(
                "is there and is not a selection",
                where=str(path),
                next="give another name with `tokmill select --out`",
            )
        if not replace:
            changes = explain_changes(former.about, selection.about) or ["its shards are others"]
            raise InputError(
                f"there is another selection of this name: {'; '.join(changes)}",
                where=str(path),
                next=(
                    "give another name with `tokmill select --out`, or replace it with `tokmill select "
                    "--replace`"
                ),
            )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_snapshot(path, selection)


def load_snapshot(path: Path) -> Snapshot:
    """Read and prove: its digest is of what it says, and its sums are of what it lists."""
    data = read_whole(path, _MAX_BYTES)
    try:
        snapshot = msgspec.json.decode(data, type=Snapshot)
        body = json.loads(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InputError(
            f"not a manifest of a snapshot ({error})",
            where=str(path),
            next="`tokmill materialize` and `tokmill select` write them",
        ) from error
    outside = [shard.path for shard in snapshot.shards if not is_within(shard.path)]
    if outside:
        raise InputError(
            f"lists a shard outside of its root: {outside[0]!r}",
            where=str(path),
            next="do not use this manifest: nothing that tokmill writes looks like this",
        )
    if snapshot.version > VERSION:
        raise InputError(
            f"version {snapshot.version} of the layout is newer than this tokmill knows ({VERSION})",
            where=str(path),
            next="upgrade tokmill",
        )
    body.pop("digest")
    if snapshot.digest != fingerprint_of(body) or snapshot.invariants != _sums(snapshot.shards):
        raise ManifestDamaged(
            "its digest does not match its content: it was edited",
            where=str(path),
            next="restore the file, or write it again with `tokmill materialize` or `tokmill select`",
        )
    return snapshot


def list_shards(path: Path, root: Path | None) -> list[tuple[InputFile, str]]:
    """Every listed shard with the sha256 that it must have.
    Without a `root`, the one the manifest lies in."""
    base = root or default_root(path)
    found = []
    for shard in load_snapshot(path).shards:
        place = base / shard.path
        if not place.is_file():
            raise InputError(
                "a shard of the snapshot is missing",
                where=str(place),
                next=(
                    f"fetch it, or set `corpus.root` to the directory that holds {CORPORA}/ (listed in "
                    f"{path.name})"
                ),
            )
        stat = place.stat()
        found.append((InputFile(shard.path, place, stat.st_size, stat.st_mtime_ns), shard.sha256))
    return found


def default_root(path: Path) -> Path:
    """The directory above manifests/; of a manifest that lies elsewhere, its own."""
    parent = path.absolute().parent
    return parent.parent if parent.name == MANIFESTS else parent


def check_shards(snapshot: Snapshot, root: Path) -> None:
    """Every byte of every listed shard is the one that was written."""
    for shard in snapshot.shards:
        actual = file_sha256(root / shard.path)
        if actual != shard.sha256:
            raise wrong_shard(root / shard.path, actual, shard.sha256)


def wrong_shard(path: Any, actual: str, expected: str) -> InputError:
    return InputError(
        f"the manifest lists this shard with sha256 {expected}, but it is {actual}",
        where=str(path),
        next="fetch the shard again, or use the manifest that belongs to it",
    )


def select_shards(
    snapshot: Snapshot,
    *,
    patterns: Sequence[str] = (),
    count: int | None = None,
    rows: int | None = None,
    tokens: int | None = None,
    seed: int | None = None,
    split: Json | None = None,
    parent: Path | None = None,
) -> Snapshot:
    """Shards that match a pattern, in their order or by a seed's, until a bound is reached;
    listed in their order.

    The last shard is the one that reaches the limit: a selection has at least what was requested, if there is
    as much. It says of itself what its texts are: whose shards (`parent`, the manifest of the snapshot), how
    they were normalized, whether by language, and the rule by which they will be `split`.
    """
    pool = [
        shard
        for shard in snapshot.shards
        if not patterns
        or any(fnmatch.fnmatch(shard.path, p) or fnmatch.fnmatch(Path(shard.path).name, p) for p in patterns)
    ]
    if seed is not None:
        pool.sort(key=lambda shard: fingerprint_of([seed, shard.path, shard.content_sha256]))
    limits = {"shards": count, "rows": rows, "tokens": tokens}
    bounds = {name: bound for name, bound in limits.items() if bound is not None}
    chosen: list[SnapshotShard] = []
    for shard in pool:
        have = _sums(chosen)
        if any(have[name] >= bound for name, bound in bounds.items()):
            break
        chosen.append(shard)
    if not chosen:
        raise InputError(
            f"none of {plural(len(snapshot.shards), 'shard')} is selected",
            where=f"{snapshot.dataset} at {snapshot.revision}",
            next="loosen the patterns; `*-0000[0-3].jsonl.zst` matches the first four",
        )
    have = _sums(chosen)
    for name, bound in bounds.items():
        if have[name] < bound:
            raise InputError(
                f"{bound:,} {name} are requested, and the matching shards hold {have[name]:,}",
                where=f"{snapshot.dataset} at {snapshot.revision}",
                next="request less, or select from a larger snapshot",
            )
    about = {
        "of": {
            "kind": snapshot.kind,
            "digest": snapshot.digest,
            "shards": len(snapshot.shards),
            **({"name": parent.name, "sha256": file_sha256(parent)} if parent is not None else {}),
        },
        **{key: snapshot.about[key] for key in _INHERITED if key in snapshot.about},
        **({"split": split} if split is not None else {}),
        "chosen_by": {"patterns": list(patterns), **limits, "seed": seed},
    }
    kept = {shard.path for shard in chosen}
    listed = [shard for shard in snapshot.shards if shard.path in kept]
    return build_snapshot(
        "selection",
        snapshot.dataset,
        snapshot.revision,
        about,
        listed,
        tokens_are_estimated=snapshot.tokens_are_estimated,
    )


def folder_name(dataset: str) -> str:
    """One directory per dataset: `owner/name` as `owner--name`."""
    return dataset.replace("/", "--")


def _sums(shards: Sequence[SnapshotShard]) -> dict[str, int]:
    return {
        "shards": len(shards),
        "rows": sum(shard.rows for shard in shards),
        "chars": sum(shard.chars for shard in shards),
        "tokens": sum(shard.tokens for shard in shards),
        "bytes": sum(shard.bytes for shard in shards),
    }
