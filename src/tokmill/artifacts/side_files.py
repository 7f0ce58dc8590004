"""Side files: what a verb or a step writes beside documents, and a pattern must not take for them.

    find_data_files(patterns, base) ─ find_all_files ─ without side files ─> InputFile, …, and a warning
    is_side_file(path)

    decisions.jsonl.zst, NAME.decisions.jsonl.zst,        by name, and the keys of the first records
    passages.jsonl.zst, index.jsonl.zst
    manifest.json, NAME.manifest.json,                    by name, and the first bytes
    MANIFEST.meta.json, ENCODE.meta.json
    ledger-00000.parquet, marks-00000.parquet, …          by the nearest manifest.json, which lists them

A side file that is asked for alone is read: its decisions may be what somebody wants to look at.
"""

from __future__ import annotations

import functools
import json
import logging
import re
from collections.abc import Iterable
from pathlib import Path

from tokmill.artifacts.manifest import MANIFEST
from tokmill.errors import TokmillError
from tokmill.storage import codecs
from tokmill.storage.location import AnyPath, InputFile, read_whole
from tokmill.storage.patterns import find_all_files

DECISIONS = "decisions.jsonl.zst"
PASSAGES = "passages.jsonl.zst"

_LOG = logging.getLogger("tokmill.sources")
_NAME = re.compile(
    r"(^|\.)(decisions|passages|index)\.jsonl\.zst$|(^|\.)(manifest\.json)$|^(MANIFEST|ENCODE)\.meta\.json$"
)
_KEYS = {"decisions": {"doc_id", "keep"}, "passages": {"doc_id", "first_doc_id"}, "index": {"row", "docs"}}
_BEGINNINGS = (b'{\n "kind": ', b'{\n "shard_path": ')
_OF_META = (b'"experiment_id"', b'"model_sha256"')
# Tables of a step that hold documents or rows for trainers; all others are about them.
_DATA = ("documents", "texts", "shard", "tokens", "sequences")
_MAX_MANIFEST_BYTES = 64 << 20
_PARENTS = 2  # a build has a directory for each split, and its manifest above them
_NAMED = 3


def find_data_files(patterns: Iterable[str], base: Path) -> list[InputFile]:
    """Files in the order of `find_all_files`, without side files, unless there are no others."""
    files = find_all_files(patterns, base)
    sides = [file for file in files if is_side_file(file.path)]
    if not sides or len(sides) == len(files):
        return files
    named = ", ".join(file.written for file in sides[:_NAMED])
    more = f" and {len(sides) - _NAMED:,} more" if len(sides) > _NAMED else ""
    _LOG.warning("not read, as tokmill wrote it beside documents and it holds none: %s%s", named, more)
    left_out = set(sides)
    return [file for file in files if file not in left_out]


def is_named_side_file(path: Path) -> bool:
    """The same without a look at manifests: of a directory every file is a document, and there may be a
    million."""
    return bool(_NAME.search(path.name)) and is_side_file(path)


def is_side_file(path: AnyPath) -> bool:
    named = _NAME.search(path.name)
    if named and named[2]:
        return _has_keys(path, _KEYS[named[2]])
    if not isinstance(path, Path):
        return False
    if named:
        with path.open("rb") as file:
            head = file.read(1 << 20)
        return head.startswith(_BEGINNINGS) if named[4] else any(key in head for key in _OF_META)
    directory = path.parent
    for _ in range(_PARENTS):
        if (manifest := directory / MANIFEST).is_file():
            modified_ns = manifest.stat().st_mtime_ns
            return path.relative_to(directory).as_posix() in _side_tables(manifest, modified_ns)
        directory = directory.parent
    return False


def _has_keys(path: AnyPath, keys: set[str]) -> bool:
    """True of an empty table too, from which nothing is lost."""
    try:
        found = set(codecs.peek(path, max_record_bytes=1 << 20).keys)
    except TokmillError:  # its reader says what is wrong with it
        return False
    return not found or keys <= found


@functools.lru_cache(maxsize=1024)
def _side_tables(manifest: Path, modified_ns: int) -> frozenset[str]:
    """Paths below its directory that a manifest of ours lists as tables without documents."""
    try:
        files = json.loads(read_whole(manifest, _MAX_MANIFEST_BYTES))["files"]
        return frozenset(entry["path"] for entry in files if entry["table"] not in _DATA)
    except (TokmillError, ValueError, KeyError, TypeError, RecursionError):  # somebody else's
        return frozenset()
