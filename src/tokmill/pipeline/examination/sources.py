"""Are the files of a source there, and are they what their names say?"""

from __future__ import annotations

import importlib.util
from codecs import getincrementaldecoder
from collections.abc import Sequence
from pathlib import Path

from tokmill.errors import InputError, TokmillError
from tokmill.pipeline.documents import fresh_files, input_stats, those_before
from tokmill.pipeline.examination.mistakes import Files, Found, patterns_at
from tokmill.pipeline.hashing import Hashing
from tokmill.recipe import Recipe, Source
from tokmill.recipe.section import Path_
from tokmill.sources.hubfile import missing_package
from tokmill.sources.readers import list_source, pattern_of, resolve_reading
from tokmill.storage import codecs
from tokmill.storage.blocks import open_stream, read_exactly
from tokmill.storage.location import InputFile, is_url
from tokmill.storage.patterns import find_files
from tokmill.storage.sniff import HEAD_BYTES, refuse_other_packing, unlike_its_name

_OPENED_FILES = 256  # of a source: damage is rarely in one file alone, and the reader tells of it in the end


def look_at_source(
    found: Found, index: int, recipe: Recipe, base: Path, out: Path, hashing: Hashing | None
) -> Files | None:
    source = recipe.sources[index]
    if those_before(recipe, source):  # a fallback may never be read: the plan warns of what it lacks
        found = found.of_recipe_alone()
    place: Path_ = ("sources", index)
    if source.hub is not None and importlib.util.find_spec("huggingface_hub") is None:
        found.note((*place, "hub"), missing_package("huggingface_hub"))
    if source.hub is not None or source.data is not None or any(map(is_url, source.files or ())):
        if source.reader is not None:
            found.holds((*place, "reader"), resolve_reading, source, [], base)
        return None
    matched = [
        found.holds(at, find_files, pattern_of(source, base, pattern), base)
        for at, pattern in patterns_at((*place, "files"), source)
    ]
    if not all(matched):
        return None
    files: list[InputFile] = []
    where: Path_ = (*place, "corpus", "manifest") if source.corpus is not None else (*place, "files")
    where = (*place, "directory", "path") if source.directory is not None else where
    if not found.holds(where, lambda: files.extend(list_source(source, base))):
        return None
    fresh = fresh_files(files, input_stats(out / "ingest" / source.name))
    if hashing is not None:
        hashing.begin([file for file in fresh if isinstance(file.path, Path)])
    section = source.format if source.format in type(source).model_fields else "fields"
    section = "reader" if source.reader else "template" if source.template else section
    section = "chat" if source.chat else section
    if not found.holds(where, _check_files, source, files, fresh):
        return None
    found.holds((*place, section), resolve_reading, source, files, base)
    return Files(files, fresh)


def _check_files(source: Source, files: Sequence[InputFile], fresh: Sequence[InputFile]) -> None:
    """They can be opened, and what they begin with is what their names say."""
    if not any(file.bytes for file in files):
        raise InputError(
            "the file is empty" if len(files) == 1 else "every file is empty",
            where=str(files[0].path),
            next="check that they are the files you meant, and that they were copied whole",
        )
    if source.format != "records":
        return
    unlike: list[TokmillError | None] = []
    for file in fresh[:_OPENED_FILES]:
        if not file.path.name.endswith(codecs.SUFFIXES):
            raise codecs.other_kind(file.path) or codecs.unknown_suffix(file.path)
        refuse_other_packing(file.path)
        if file.path.name.endswith(codecs.COLUMNS):
            codecs.peek(file.path, max_record_bytes=source.max_record_bytes)
            unlike.append(None)
            continue
        with open_stream(file.path) as stream:
            head = read_exactly(stream, HEAD_BYTES, file.path)
        if head:
            unlike.append(_unlike_its_name(file, head, source))
    if unlike and unlike[0] is not None and all(unlike) and source.max_bad_fraction < 1:
        raise unlike[0]


def _unlike_its_name(file: InputFile, head: bytes, source: Source) -> TokmillError | None:
    """What is certainly no text, or no JSON; a few bad records are quarantined, and no mistake."""
    is_text = codecs.is_plain_text(file.path)
    found = unlike_its_name(file.path, head, is_json=codecs.is_json(file.path), is_text=is_text)
    if found is None and is_text and source.unit == "document":
        try:
            getincrementaldecoder("utf-8")().decode(head)  # a character may be cut at its end
        except UnicodeDecodeError as error:
            what = f"is not UTF-8 (byte {error.start:,}: {error.reason})"
            return InputError(what, where=str(file.path), next="convert the file to UTF-8")
    return found
