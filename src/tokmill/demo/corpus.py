"""Writes the demo's corpus and the recipe that mills it.

    write_corpus(directory / "corpus")   code.jsonl.zst  topics.parquet  problems.jsonl  paragraphs.txt
    write_recipe(directory)              recipe.yaml, whose paths begin with corpus/

`problems.jsonl` and `paragraphs.txt` are the same bytes everywhere. `code.jsonl.zst` and `topics.parquet` are
those of the Python that runs: another Python has other modules.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tokmill.demo.problems import generate_problems
from tokmill.errors import InputError
from tokmill.storage.commit import commit_bytes, open_commit
from tokmill.storage.reading import ZstdCompressor, frame_options

PROBLEMS = 2_000
SEED = 42

# Other projects' packages, tests, a copy of the topics, what was generated on or for this machine.
_SKIPPED_FOLDERS = {
    *("__pycache__", "site-packages", "dist-packages", "_bundled"),
    *("test", "tests", "idlelib", "lib2to3", "turtledemo", "pydoc_data"),
}
_SKIPPED_PREFIXES = ("_sysconfigdata", "config-", "sitecustomize", "usercustomize")

RECIPE = """\
# A recipe says everything that can change a byte of the result. How many workers run it, and where it
# writes, are options of the command: tokmill run recipe.yaml

name: demo          # the result goes to <out>/demo
seed: 42            # every random choice derives from this number and from the document it is about

# Where documents come from. Paths are relative to this file; the ending says how to read it.
sources:
  - name: stdlib
    domain: code                                # what a mixture weighs and a report groups by
    license: PSF-2.0                            # goes with each document all the way to its tokens
    files: corpus/code.jsonl.zst                # a glob works too: corpus/*.jsonl.zst
    fields: {text: content, id: path, license: license}   # our column: their column
  - name: topics
    domain: prose
    license: PSF-2.0
    files: corpus/topics.parquet
    fields: {text: text, id: topic}
  - name: problems
    domain: math
    license: Apache-2.0
    files: corpus/problems.jsonl
    fields: {id: id}
    template: "Problem: {question}\\n\\nSolution: {answer}"   # the text, put together from several fields
  - name: languages
    domain: multilingual
    license: Apache-2.0
    files: corpus/paragraphs.txt
    unit: paragraph                             # blank lines part the documents of a plain text file

# The text itself: composed Unicode, no NUL, newlines as \\n.
normalize: {unicode: NFC, nul: strip, newlines: lf}

# Measure, then decide. What is dropped stays in the ledger with the measured value and the threshold:
# here, a few modules that are all but empty. Try `tokmill why`.
filters:
  - {measure: chars, min: 40, reason: too_short}

# The first of equal documents stays, whichever source the others are in.
dedup: {exact: true, scope: global}

# A document's own hash decides, so that adding documents moves none from one side to the other.
split: {method: hash, valid_fraction: 0.05}

# Trained on these documents. {path: ..., sha256: ...} uses a tokenizer you already have.
tokenizer: {train: {model: byte_bpe, vocab_size: 4096}, eos: "<|endoftext|>"}

# Documents one after another, cut into rows of 512 tokens; the last, short row is left out.
pack: {layout: concat, length: 512, tail: drop}

# The same rows in as many formats as you like.
builds:
  - {name: rows, format: memmap}
  - {name: mega, format: megatron}
"""


def write_corpus(directory: Path) -> list[Path]:
    """The four files, in the order of the recipe's sources."""
    directory = Path(directory)
    code, topics, problems, paragraphs = (
        directory / name for name in ("code.jsonl.zst", "topics.parquet", "problems.jsonl", "paragraphs.txt")
    )
    encoder = msgspec.json.Encoder()

    compressor = ZstdCompressor(options=frame_options())
    with open_commit(code) as file:
        for module in read_modules(Path(sysconfig.get_paths()["stdlib"])):
            file.write(compressor.compress(encoder.encode(module) + b"\n"))
        file.write(compressor.flush())

    sink = pa.BufferOutputStream()
    pq.write_table(load_topics(), sink, compression="zstd")
    commit_bytes(topics, sink.getvalue())

    records = [
        {"id": problem["id"], "question": problem["question"], "answer": problem["answer"]}
        for problem in generate_problems(PROBLEMS, SEED)
    ]
    commit_bytes(problems, encoder.encode_lines(records))

    commit_bytes(paragraphs, files("tokmill.demo").joinpath("paragraphs.txt").read_bytes())
    return [code, topics, problems, paragraphs]


def write_recipe(directory: Path) -> Path:
    """`recipe.yaml`, for a directory whose `corpus/` was written by `write_corpus`."""
    path = Path(directory) / "recipe.yaml"
    commit_bytes(path, RECIPE.encode())
    return path


def read_modules(library: Path) -> Iterator[dict[str, str]]:
    """The modules of a standard library by path; one that is not UTF-8 is left out."""
    paths = []
    for folder, folders, names in os.walk(library):
        folders[:] = [name for name in folders if name not in _SKIPPED_FOLDERS and not _is_skipped(name)]
        paths += [Path(folder, name) for name in names if name.endswith(".py") and not _is_skipped(name)]
    if not paths:
        raise InputError(
            "this Python carries no sources of its standard library, which the demo mills",
            where=str(library),
            next="run the demo with a Python whose standard library is .py files (most are)",
        )
    for path in sorted(paths, key=os.fsencode):
        try:
            content = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError:
            continue
        yield {"path": path.relative_to(library).as_posix(), "content": content, "license": "PSF-2.0"}


def _is_skipped(name: str) -> bool:
    return name.startswith(_SKIPPED_PREFIXES)


def load_topics() -> pa.Table:
    """The reference pages behind `help("topics")`."""
    try:
        from pydoc_data.topics import topics  # half a megabyte, and some distributions leave it out
    except ModuleNotFoundError:
        raise InputError(
            "this Python comes without pydoc_data.topics, which the demo mills",
            where=sysconfig.get_paths()["stdlib"],
            next="install your distribution's full Python standard library, or use another Python",
        ) from None
    names = sorted(topics)
    return pa.table({"topic": names, "text": [topics[name] for name in names]})
