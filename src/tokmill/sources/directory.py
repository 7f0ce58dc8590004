"""A directory, one document per file: source code, notes, a git checkout.

    part of the listing (tokmill.storage.tree) ─ load ─┬─ text ─────────────────────────────> record
                                                       ├─ .html ─ laid out as plain text ───> record
                                                       ├─ .ipynb ─ source of its cells ─────> record
                                                       ├─ NUL in its first 8 KB ────────────> dropped: binary
                                                       ├─ not UTF-8, no notebook, too large > bad record
                                                       └─ link, ignored, special file ──────> dropped

    record   id: the path, with slashes      meta: {"path": …, "language": "Python"}

A byte order mark says UTF-16 or UTF-8 and is no part of the text; without one a file is UTF-8, or a bad
record. Of a notebook (nbformat 3 and 4, https://nbformat.readthedocs.io) the cells of Markdown and code are
joined by a blank line; what code printed is left out.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from tokmill.artifacts.manifest import Json
from tokmill.recipe import Directory, Source
from tokmill.sources.extract.engines import Broken, Engine, engine_version, open_engine
from tokmill.sources.extract.page import parse_page
from tokmill.sources.posts import html_column
from tokmill.sources.reading import RECORDS, Dropped, Reader, Reading, Taken, whole_file
from tokmill.storage.blocks import UTF8_BOM
from tokmill.storage.location import AnyPath, InputFile
from tokmill.storage.records import BadRecord, Span, too_large
from tokmill.storage.tree import Entry, FileList

_BATCH_BYTES = 4 << 20
_LOOKED_AT = 8192  # bytes, for a NUL: as git does
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
HTML, _NOTEBOOK = (".html", ".htm"), ".ipynb"

# the names that GitHub's linguist has for them (https://github.com/github-linguist/linguist)
_LANGUAGES = {
    "Assembly": "asm s", "Batchfile": "bat cmd", "C": "c h", "C#": "cs", "C++": "cc cpp cxx hh hpp hxx",
    "CMake": "cmake", "CSS": "css", "Clojure": "clj cljs", "Cuda": "cu cuh", "Dart": "dart",
    "Dockerfile": "dockerfile", "Elixir": "ex exs", "Erlang": "erl hrl", "Fortran": "f f90 f95 for",
    "Go": "go", "HTML": "htm html", "Haskell": "hs", "JSON": "json", "Java": "java",
    "JavaScript": "cjs js jsx mjs", "Julia": "jl", "Jupyter Notebook": "ipynb", "Kotlin": "kt kts",
    "Lean": "lean", "Lua": "lua", "Makefile": "mk", "Markdown": "markdown md", "OCaml": "ml mli",
    "PHP": "php", "Perl": "pl pm", "PowerShell": "ps1", "Python": "py pyi", "R": "r", "Ruby": "rb",
    "Rust": "rs", "SQL": "sql", "Scala": "scala", "Shell": "bash sh", "Swift": "swift", "TOML": "toml",
    "TSX": "tsx", "TeX": "bib cls sty tex", "TypeScript": "cts mts ts", "Vue": "vue", "XML": "xml",
    "YAML": "yaml yml", "Zig": "zig", "reStructuredText": "rst",
}  # fmt: skip
_BY_SUFFIX = {suffix: name for name, suffixes in _LANGUAGES.items() for suffix in suffixes.split()}


def resolve(source: Source, files: list[InputFile]) -> Json:
    section = source.directory or Directory(path=".")
    options: Json = section.model_dump(mode="json", exclude={"path"})  # where it lies changes nothing
    if source.extract is not None:
        options["extract"] = source.extract.model_dump(mode="json")
        open_engine(options["extract"], main_text=True)
        options["extractor"] = engine_version(options["extract"])
    return options


def read(path: AnyPath, name: str, span: Span, reading: Reading) -> Iterator[Taken]:
    assert isinstance(path, FileList), "a task of a directory is told which files"
    asked = reading.options.get("extract")
    engine = open_engine(asked, main_text=True) if asked else None
    entries: list[Entry] = []
    contents: list[bytes] = []
    size = 0
    for entry, content in zip(path.entries, path.load(), strict=True):
        if entries and size + len(content) > _BATCH_BYTES:
            yield _taken(entries, contents, engine, reading.max_record_bytes)
            entries, contents, size = [], [], 0
        entries.append(entry)
        contents.append(content)
        size += len(content)
    yield _taken(entries, contents, engine, reading.max_record_bytes)


def _taken(
    entries: list[Entry], contents: list[bytes], engine: Engine | None, max_record_bytes: int
) -> Taken:
    bad: list[BadRecord] = []
    dropped: list[Dropped] = []
    names: list[str] = []
    texts: list[bytes] = []
    for (name, size, reason), content in zip(entries, contents, strict=True):
        if reason:
            if reason == "too_large":
                bad.append(too_large(0, size, max_record_bytes, "file")._replace(file=name))
            elif reason == "bad_name":
                bad.append(BadRecord(0, "bad_name", "the name of the file is not UTF-8", name))
            else:
                dropped.append(_left_out(name, reason))
            continue
        try:
            content = _as_utf8(content)
        except UnicodeDecodeError as error:
            bad.append(BadRecord(0, "invalid_utf16", f"byte {error.start + 2}: {error.reason}", name))
            continue
        if content.find(b"\0", 0, _LOOKED_AT) >= 0:
            dropped.append(_left_out(name, "binary"))
            continue
        names.append(name)
        texts.append(content.removeprefix(UTF8_BOM))
    column = _strings(names, texts, bad)
    if any(name.lower().endswith(_NOTEBOOK) for name in names):
        column = _strings(names, _notebooks(names, texts, bad), bad)
    if engine is not None and any(name.lower().endswith(HTML) for name in names):
        column = _strings(names, _pages(names, texts, bad, engine), bad)
    is_page = np.array([name.lower().endswith(HTML) for name in names], np.bool_)
    if is_page.any() and engine is None:
        column = _laid_out(column, is_page)
    metas = [_meta(name) for name in names]
    nothing = pa.nulls(len(names), pa.string())
    table = pa.table([column, names, nothing, nothing, metas], schema=RECORDS)
    return Taken(table, [record._replace(id=record.file) for record in bad], dropped)


def _as_utf8(content: bytes) -> bytes:
    return content[2:].decode(_UTF16[content[:2]]).encode() if content[:2] in _UTF16 else content


def decode(content: bytes) -> str:
    """As it is read from the directory; what is not UTF-8 is an error."""
    return _as_utf8(content).removeprefix(UTF8_BOM).decode()


def _left_out(name: str, reason: str) -> Dropped:
    return Dropped(0, name, reason, file=name)


def _meta(name: str) -> str:
    language = _BY_SUFFIX.get(name.rpartition(".")[2].lower())
    return msgspec.json.encode({"path": name, "language": language} if language else {"path": name}).decode()


def _strings(names: list[str], texts: list[bytes], bad: list[BadRecord]) -> Any:
    """As one column, checked at once. Where a text is not UTF-8, it leaves both lists for `bad`."""
    try:
        return pa.array(texts, pa.large_binary()).cast(pa.large_string())
    except pa.ArrowInvalid:
        pass
    faults: dict[int, BadRecord] = {}
    for row, (name, text) in enumerate(zip(names, texts, strict=True)):
        try:
            text.decode()
        except UnicodeDecodeError as error:
            faults[row] = BadRecord(0, "invalid_utf8", f"byte {error.start}: {error.reason}", name)
    _take_out(names, texts, bad, faults)
    return pa.array(texts, pa.large_binary()).cast(pa.large_string())


def _take_out(
    names: list[str], texts: list[bytes], bad: list[BadRecord], faults: dict[int, BadRecord]
) -> None:
    bad += faults.values()
    names[:] = [name for row, name in enumerate(names) if row not in faults]
    texts[:] = [text for row, text in enumerate(texts) if row not in faults]


def _pages(names: list[str], texts: list[bytes], bad: list[BadRecord], engine: Engine) -> list[bytes]:
    """Texts with the main ones of pages in their place; what the engine refuses leaves both lists."""
    faults: dict[int, BadRecord] = {}
    for row, name in enumerate(names):
        if name.lower().endswith(HTML):
            try:
                texts[row] = engine(texts[row].decode(), *parse_page(texts[row])).encode()
            except Broken as error:
                faults[row] = BadRecord(0, *error.args)._replace(file=name)
    _take_out(names, texts, bad, faults)
    return texts


def _laid_out(column: Any, is_page: Any) -> Any:
    """The pages as plain text, all in one pass; the rest as it is."""
    pages = column.filter(pa.array(is_page))
    _, offsets, data = pages.buffers()
    starts = np.frombuffer(offsets, np.int64)[pages.offset : pages.offset + len(pages) + 1]
    texts = html_column(np.frombuffer(data if data is not None and data.size else b"\0", np.uint8), starts)
    order = np.where(is_page, len(column) + np.cumsum(is_page) - 1, np.arange(len(column)))
    return pa.concat_arrays([column, texts]).take(pa.array(order))


# --- notebooks ---


class _Cell(msgspec.Struct):
    cell_type: str
    source: str | list[str] | None = None
    input: str | list[str] | None = None  # of code in nbformat 3


class _Sheet(msgspec.Struct):
    cells: list[_Cell]


class _Notebook(msgspec.Struct):
    cells: list[_Cell] | None = None
    worksheets: list[_Sheet] | None = None  # nbformat 3


_NOTEBOOKS = msgspec.json.Decoder(_Notebook)


def _notebooks(names: list[str], texts: list[bytes], bad: list[BadRecord]) -> list[bytes]:
    """Texts with those of cells in the place of notebooks; what is none leaves both lists for `bad`."""
    faults: dict[int, BadRecord] = {}
    for row, name in enumerate(names):
        if name.lower().endswith(_NOTEBOOK):
            try:
                texts[row] = _cells(texts[row])
            except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
                faults[row] = BadRecord(0, "bad_notebook", str(error) or "nested too deep", name)
    _take_out(names, texts, bad, faults)
    return texts


def _cells(data: bytes) -> bytes:
    notebook = _NOTEBOOKS.decode(data)
    cells = notebook.cells
    if cells is None:
        if notebook.worksheets is None:
            raise msgspec.ValidationError("no `cells`")
        cells = [cell for sheet in notebook.worksheets for cell in sheet.cells]
    sources = (
        cell.source if cell.source is not None else cell.input
        for cell in cells
        if cell.cell_type in ("markdown", "code", "heading")
    )
    texts = ("".join(source) if isinstance(source, list) else source for source in sources if source)
    return "\n\n".join(text for text in texts if text.strip()).encode()


READER = Reader(resolve, whole_file, read)
