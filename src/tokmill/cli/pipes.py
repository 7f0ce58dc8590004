"""`-`: JSON lines from standard input, and to standard output, for single steps.

    … | tokmill filter - --pack gopher-quality | tokmill dedup - | tokmill encode - --tokenizer tok.json | …

    standard input ─ a file ─ the step, as over any file ─ a directory ─ its documents ─> standard output
                                   └─> figures (--json too), progress and errors ─> stderr

A step reads its texts more than once and from several processes, so what comes in is written down first,
below TMPDIR. A pipe that nobody reads any more (`| head`) ends the command quietly.
"""

from __future__ import annotations

import dataclasses
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tokmill.adhoc.from_files import Ingested
from tokmill.adhoc.single_steps import Output
from tokmill.adhoc.tokens import Encoded
from tokmill.cli.console import answer, results_to_stderr, with_progress
from tokmill.cli.output import write_result
from tokmill.errors import TokmillError
from tokmill.formats.index import INDEX, read_row_index
from tokmill.formats.token_cache import TokenCache
from tokmill.storage.blocks import open_stream, read_exactly
from tokmill.storage.jsonl import write_jsonl_tables
from tokmill.storage.sniff import packing_of
from tokmill.storage.tables import load_table

_STREAM, _STDOUT = "-", "standard output"
_BLOCK_BYTES = 1 << 20


def run_step(
    function: str,
    options: dict[str, Any],
    as_json: bool,
    render: Callable[[Any], None],
    *,
    texts: str = "patterns",
) -> None:
    """A verb over the files of its argument `texts`, where `-` is standard input;
    as --out, standard output."""
    given = options.get(texts, ())
    files = [str(one) for one in given] if isinstance(given, tuple) else [str(given)]
    if _STREAM not in (*files, str(options["out"])):
        answer(with_progress(function, options), as_json, render)
        return
    with tempfile.TemporaryDirectory(prefix="tokmill-pipe-") as scratch:
        received, out = Path(scratch, "input.jsonl"), Path(scratch, "output.jsonl")
        try:
            if _STREAM in files:
                received = _receive(received)
                named = tuple(str(received) if one == _STREAM else one for one in files)
                options = {**options, texts: named if isinstance(given, tuple) else received}
            if str(options["out"]) != _STREAM:
                answer(with_progress(function, options), as_json, render)
                return
            results_to_stderr()
            made = with_progress(function, {**options, "out": out})
            for block in _documents(made, Path(scratch)):
                write_result(block)
            sys.stdout.flush()
            answer(_streamed(made, _STREAM if as_json else _STDOUT), as_json, render)
        except TokmillError as error:
            for part in ("what", "where", "next"):
                told = getattr(error, part).replace(str(received), "standard input")
                setattr(error, part, told.replace(str(out), _STDOUT))
            raise


def _receive(path: Path) -> Path:
    """All of standard input in a file whose name says whether it is compressed."""
    source = sys.stdin.buffer
    head = source.read(8)
    suffix = packing_of(head)
    path = path.with_name(path.name + suffix)
    with path.open("wb") as file:
        file.write(head)
        shutil.copyfileobj(source, file, _BLOCK_BYTES)
    return path


def _documents(made: Any, scratch: Path) -> Iterator[bytes]:
    """What was written, as JSON lines."""
    if isinstance(made, Encoded):
        yield from _examples(made.directory)
        return
    for path in _files(made, scratch):
        with open_stream(path) as stream:
            while block := read_exactly(stream, _BLOCK_BYTES, path):
                yield block


def _files(made: Any, scratch: Path) -> Iterator[Path]:
    if isinstance(made, Ingested):
        for artifact in made.run.artifacts.values():
            for entry in artifact.manifest.entries("documents"):
                path = scratch / "documents.jsonl"
                write_jsonl_tables(path, [load_table(artifact.path(entry))])
                yield path
    elif made.path.is_dir():
        for manifest in sorted(made.path.glob("*.manifest.json")):
            yield manifest.with_name(manifest.name.replace(".manifest.json", ".jsonl.zst"))
    else:
        yield made.path


def _examples(cache: Path) -> Iterator[bytes]:
    rows, encoder = read_row_index(cache / INDEX), msgspec.json.Encoder()
    for part in TokenCache(cache).read_parts():
        pieces = np.split(part.ids, np.cumsum(part.lengths)[:-1]) if len(part.lengths) else []
        for ids, row in zip(pieces, rows, strict=False):  # the index goes on with the next part
            (document,) = row.docs
            line = {"doc_id": document.doc_id, "input_ids": ids.tolist()}
            yield encoder.encode(line) + b"\n"


def _streamed(made: Any, where: str) -> Any:
    """The same result, of which nothing is left on the disk."""
    stream = Path(where)
    if isinstance(made, Output):
        return dataclasses.replace(made, path=stream)
    if isinstance(made, Ingested):
        return made._replace(run=dataclasses.replace(made.run, out=stream), directory=stream)
    return made._replace(directory=stream)
