"""The files of a format from the tokens of a split, by its writer: ours, or a plugin's, which is checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tokmill.artifacts.manifest import FileEntry
from tokmill.artifacts.plugins import SAMPLE, Plugin
from tokmill.formats import Format, Parts, find_format
from tokmill.formats.description import FilePart
from tokmill.stages.build.tokens import SplitTokens
from tokmill.storage.location import file_sha256


def cut_format(tokens: SplitTokens) -> list[tuple[int, int]] | None:
    """Rows and tokens of each file, where files are written each by itself."""
    parts = _format(tokens).parts
    cut = parts.cut(tokens) if parts is not None and tokens.options.plugin is None else None
    return None if cut is None else list(cut)


def write_parts(directory: Path, tokens: SplitTokens, first_file: int) -> list[FilePart]:
    return _parts(tokens).write(directory, tokens, first_file)


def describe_parts(directory: Path, tokens: SplitTokens, written: Sequence[FilePart]) -> list[FileEntry]:
    """The entries of the description alone: the others have their receipts."""
    assert sum(part.rows for part in written) == tokens.rows, f"{directory}: files do not hold all rows"
    known = {part.entry.path for part in written}
    entries = _parts(tokens).describe(directory, tokens, written)
    return [entry for entry in entries if entry.path not in known]


def _parts(tokens: SplitTokens) -> Parts:
    parts = _format(tokens).parts
    assert parts is not None, f"{tokens.options.format} is written as a whole"
    return parts


def _format(tokens: SplitTokens) -> Format:
    return find_format(tokens.options.format, tokens.options.plugin)


def write_format(directory: Path, tokens: SplitTokens) -> list[FileEntry]:
    plugin = tokens.options.plugin
    format = find_format(tokens.options.format, plugin)
    assert format.write is not None, "a recipe names no format that is only read"
    if plugin is None:
        return format.write(directory, tokens)
    with plugin.blamed():
        entries = format.write(directory, tokens)
    if not isinstance(entries, list) or not all(isinstance(entry, FileEntry) for entry in entries):
        raise plugin.fault(
            f"wrote {tokens.split} and returned {entries!r:.60}",
            "return the FileEntry of each file, in a list",
        )
    for entry in entries:
        path = directory / entry.path
        if not path.is_file() or file_sha256(path) != entry.sha256:
            raise plugin.fault(
                f"says that it wrote {entry.path}, and no such file has the sha256 {entry.sha256}",
                "return what `storage.commit` says of the file",
            )
    if tokens.rows:
        _read_back(directory, tokens, plugin, format)
    return entries


def _read_back(directory: Path, tokens: SplitTokens, plugin: Plugin, format: Format) -> None:
    """The number of rows and the first of them are what was written."""
    with plugin.blamed():
        part = tokens.split if format.list_splits(directory) else None
        store = format.open_store(directory, part)
        found = [store.view(row).tolist() for row in range(min(store.size, SAMPLE))]
    first = next(iter(tokens.read_sequences()))
    ends = np.cumsum(first.lengths[:SAMPLE])
    written = [ids.tolist() for ids in np.split(first.ids, ends)[: len(ends)]]
    if store.size != tokens.rows or found[: len(written)] != written:
        raise plugin.fault(
            f"wrote {tokens.rows:,} rows of {tokens.split}, and its reader finds {store.size:,}"
            + (" others" if store.size == tokens.rows else ""),
            "let `open_store` give back what `write` was given",
        )
