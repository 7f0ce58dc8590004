"""Other projects' own code, run on what tokmill writes and reads: docs/interop.md.

    corpus ─ tokmill run ─> a build for each of readers/ ─ read in the foreign Python ─> every token equal
    records ─ each of writers/, in the foreign Python ─> files ─ tokmill run ─> every document equal
    records ─ tokmill run ─> texts for each of texts/ ─ read in the foreign Python ─> every document equal
    conversations ─ chat/, in the foreign Python ─> ids, masks ─ tokmill run ─> every id and mask equal
    texts ─ each of tokenizers/, in the foreign Python ─> a tokenizer, ids ─ tokmill run ─> every id equal

    python interop/all.py --python .venv-interop/bin/python [--only nanogpt] [--page docs/interop.md]

A reader is `readers/<name>.py BUILD EXPECTED`: it reads BUILD/train, compares every token with EXPECTED
(.npz: ids, lengths), prints {"package", "version", "compared", "tokens"}, and does not exit with 0 on any
difference. Its constant BUILD is the build it reads, without a name [default: {"format": <name>}].

A writer is `writers/<name>.py RECORDS OUT`: it writes RECORDS (JSON lines: id, text, license, lang, meta)
into the directory OUT and prints {"package", "version"}. Its constant SOURCE is the source section, without
a name, with which tokmill reads OUT; paths in it are relative to OUT. Every id, text and licence must come
back. Where a writer cannot hold them as they are, its constant AS says what they are then: "id" a template of
the id ("notes/{id}.txt"), "license" one for all; what is compared, {"compare": ["text"]}, or "lines" or
"words" of it; and {"encoding": "latin-1"} that records with other texts are not written.

A tokenizer is `tokenizers/<name>.py TEXTS OUT`: it makes one of its own kind in the directory OUT, encodes
TEXTS (JSON lines: id, text) with its own code, leaves OUT/ids.npz (ids, lengths, and the id that ends a
document: eos) and prints {"package", "version", "compared"}. Its constant TOKENIZER is the section of a
recipe; its path is relative to OUT.

A script of texts is `texts/<name>.py TEXTS EXPECTED`: it reads the directory TEXTS, compares every record of
every split with EXPECTED (JSON lines: split, text and the other fields, in order) and prints {"package",
"version", "compared", "documents"}. Its constant BUILD is the build of texts that it reads, without a name.

Conversations and their templates are in conversations.py; chat/ renders and encodes them.

A package that is not installed is a row that says so; a difference is an error.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

import tokmill
from conversations import render_alike
from rows import Differs, Row, row_of, run_script
from tokmill.demos.problems import generate_problems
from tokmill.formats import find_format

HERE = Path(__file__).resolve().parent

LENGTH = 128  # of a row


def scripts(kind: str, only: list[str]) -> list[Path]:
    found = sorted((HERE / kind).glob("[a-z]*.py"))
    return [path for path in found if not only or path.stem in only]


def constant_of(script: Path, name: str) -> dict[str, Any] | None:
    """Read, not run: the packages that the script imports are in the other Python."""
    for node in ast.parse(script.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [getattr(one, "id", None) for one in node.targets] == [name]:
            return dict(ast.literal_eval(node.value))
    return None


# -- readers ---------------------------------------------------------------------------------------


def is_documents(build: dict[str, Any]) -> bool:
    layout = build.get("pack", {}).get("layout")
    return layout == "indexed" or "rows" not in find_format(build["format"]).shapes


def make_builds(readers: list[Path], folder: Path) -> Path:
    """A small corpus in every form that a reader asks for; the run's directory."""
    corpus = folder / "corpus"
    corpus.mkdir(parents=True)
    problems = generate_problems(300, 5)
    (corpus / "problems.jsonl").write_text("".join(json.dumps(one) + "\n" for one in problems))
    (corpus / "paragraphs.txt").write_bytes(files("tokmill.demos").joinpath("paragraphs.txt").read_bytes())
    builds = [
        {"name": path.stem, **(constant_of(path, "BUILD") or {"format": path.stem})} for path in readers
    ]
    recipe = {
        "name": "interop",
        "sources": [
            {
                "name": "problems",
                "files": str(corpus / "problems.jsonl"),
                "template": "{question}\n\n{answer}",
                "license": "MIT",
            },
            {"name": "paragraphs", "files": str(corpus / "paragraphs.txt"), "unit": "paragraph"},
        ],
        "tokenizer": {"train": {"model": "byte_bpe", "vocab_size": 2048}, "eos": "<|endoftext|>"},
        "pack": {"length": LENGTH},
        "builds": [
            {"name": "expected_documents", "format": "megatron"},
            {"name": "expected_rows", "format": "memmap"},
            *builds,
        ],
    }
    return Path(tokmill.run(recipe, folder / "out").out)


def write_expected(out: Path, folder: Path) -> dict[bool, Path]:
    """By whether it is documents: ids and lengths of train, read here with NumPy alone."""
    index = (out / "build/expected_documents/train/tokens.idx").read_bytes()
    count = int(np.frombuffer(index, "<u8", 1, 18)[0])
    rows = np.fromfile(out / "build/expected_rows/train/input_ids.mmap", "<i4")
    made: dict[bool, tuple[NDArray[Any], NDArray[Any]]] = {
        True: (
            np.fromfile(out / "build/expected_documents/train/tokens.bin", "<i4"),
            np.frombuffer(index, "<i4", count, 34),
        ),
        False: (rows, np.full(len(rows) // LENGTH, LENGTH)),
    }
    paths = {}
    for documents, (ids, lengths) in made.items():
        paths[documents] = folder / f"expected-{documents}.npz"
        np.savez(paths[documents], ids=ids.astype(np.int64), lengths=lengths.astype(np.int64))
    return paths


def read_builds(python: Path, readers: list[Path], folder: Path) -> list[Row]:
    out = make_builds(readers, folder)
    expected = write_expected(out, folder)
    rows = []
    for script in readers:
        build = constant_of(script, "BUILD") or {"format": script.stem}
        told = run_script(python, script, out / "build" / script.stem, expected[is_documents(build)])
        rows.append(row_of(build["format"] + _variant(build), told, "tokens"))
        print(rows[-1], file=sys.stderr)
    return rows


def _variant(build: dict[str, Any]) -> str:
    words = [build.get("pack", {}).get("layout"), build.get("dtype")]
    said = ", ".join(f"`{word}`" for word in words if word)
    return f" ({said})" if said else ""


# -- writers ---------------------------------------------------------------------------------------


def make_records() -> list[dict[str, Any]]:
    """Texts that a careless writer or reader spoils."""
    texts = [
        "Plain words, and a line\nbelow them.",
        "Quotes \" and ' and commas, and; semicolons\tand tabs.",
        "\u00e9t\u00e9 na\u00efve \u65e5\u672c\u8a9e \U0001f600 \u0627\u0644\u0639\u0631\u0628\u064a\u0629",
        "  spaces before and after  ",
        '{"json": [1, 2]} <p>&amp;</p> \\n \\\\',
        "one\r\ntwo\r\nthree",
        "# a comment?\n\nNaN null None true 007 1e5",
    ]
    problems = [f"{one['question']}\n\n{one['answer']}" for one in generate_problems(200, 9)]
    licenses, langs = ("MIT", "Apache-2.0", "CC-BY-4.0"), ("en", "fr", "de")
    return [
        {
            "id": f"doc-{number:04d}",
            "text": text,
            "license": licenses[number % 3],
            "lang": langs[number % 3],
            "meta": {"number": number, "name": f"n\u00b0 {number}"},
        }
        for number, text in enumerate([*texts, *problems])
    ]


def read_written(python: Path, writers: list[Path], folder: Path) -> list[Row]:
    records, path = make_records(), folder / "records.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one, ensure_ascii=False) + "\n" for one in records), encoding="utf-8")
    rows = []
    for script in writers:
        source = constant_of(script, "SOURCE")
        if source is None:
            raise Differs(f"{script.parent.name}/{script.name}: has no constant SOURCE")
        made = folder / script.stem
        made.mkdir()
        told = run_script(python, script, path, made)
        if "missing" not in told:
            held = constant_of(script, "AS") or {}
            fields = held.get("compare", ["id", "text", "license"])
            *most, last = [{"license": "licence"}.get(field, field.removesuffix("s")) for field in fields]
            written = [_as_held(one, held) for one in records if _fits(one, held.get("encoding", "utf-8"))]
            told |= {
                "compared": f"every {' and '.join(filter(None, [', '.join(most), last]))}",
                "documents": _compare(source, made, written, script, fields),
            }
        rows.append(row_of(script.stem, told, "documents"))
        print(rows[-1], file=sys.stderr)
    return rows


def _fits(record: dict[str, Any], encoding: str) -> bool:
    return record["text"].encode(encoding, "ignore").decode(encoding) == record["text"]


def _as_held(record: dict[str, Any], held: dict[str, Any]) -> dict[str, Any]:
    return record | {key: held[key].format(**record) for key in ("id", "license") if key in held}


def _compare(
    source: dict[str, Any], made: Path, records: list[dict[str, Any]], script: Path, fields: list[str]
) -> int:
    recipe = {"name": "interop", "sources": [{"name": "theirs", **source}]}
    with contextlib.chdir(made):
        out = tokmill.run(recipe, made.with_name(f"{made.name}-out"), until="ingest").out
    rows = []
    for shard in sorted((Path(out) / "ingest/theirs").glob("documents-*.parquet")):
        rows += pq.read_table(shard).to_pylist()
    theirs = [{"id": row["doc_id"], "text": row["text"], "license": row["license_tag"]} for row in rows]
    found, expected = _by_id(theirs, fields), _by_id(records, fields)
    if found != expected:
        wrong = next(id for id in [*expected, *found] if found.get(id) != expected.get(id))
        raise Differs(
            f"{script.parent.name}/{script.name}: document {wrong} is {found.get(wrong)}, "
            f"not {expected.get(wrong)}"
        )
    return len(found)


def _by_id(records: list[dict[str, Any]], fields: list[str]) -> dict[Any, tuple[Any, ...]]:
    """What is compared of each; without ids, in the order in which they were written."""
    cut = {"lines": str.splitlines, "words": str.split}
    return {
        one["id"] if "id" in fields else at: tuple(
            cut[field](one["text"]) if field in cut else one[field] for field in fields if field != "id"
        )
        for at, one in enumerate(records)
    }


# -- texts -----------------------------------------------------------------------------------------


def build_texts(scripts: list[Path], folder: Path) -> tuple[Path, Path]:
    """The directory of a run with a build for each script; and what must be found in it, as JSON lines."""
    folder.mkdir(parents=True)
    records = folder / "records.jsonl"
    records.write_text(
        "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in make_records()), encoding="utf-8"
    )
    builds = [
        {"name": path.stem, "content": "text", **(constant_of(path, "BUILD") or {})} for path in scripts
    ]
    source = {"name": "records", "files": str(records), "fields": {"id": "id", "license": "license"}}
    recipe = {
        "name": "interop",
        "sources": [source],
        "dedup": {"exact": False},
        "split": {"valid_fraction": "0.2"},
        "builds": builds,
    }
    out = Path(tokmill.run(recipe, folder / "out").out)
    labels = pq.read_table(out / "split/labels-00000.parquet").column("split").to_pylist()
    by_id = {one["id"]: one for one in make_records()}
    expected = folder / "expected.jsonl"
    ids = pq.read_table(out / "ingest/records/documents-00000-000.parquet").column("doc_id").to_pylist()
    with expected.open("w", encoding="utf-8") as file:
        for split, name in ((0, "train"), (1, "valid")):
            for doc_id in (one for one, label in zip(ids, labels, strict=True) if label == split):
                record = by_id[doc_id]
                told = {"split": name, "text": record["text"], "source": "records", "domain": "default"}
                told |= {"doc_id": doc_id, "license_tag": record["license"], "meta": record["meta"]}
                file.write(json.dumps(told, ensure_ascii=False) + "\n")
    return out, expected


def read_texts(python: Path, scripts: list[Path], folder: Path) -> list[Row]:
    out, expected = build_texts(scripts, folder)
    rows = []
    for script in scripts:
        told = run_script(python, script, out / "texts" / script.stem, expected)
        rows.append(row_of((constant_of(script, "BUILD") or {})["format"], told, "documents"))
        print(rows[-1], file=sys.stderr)
    return rows


# -- tokenizers ------------------------------------------------------------------------------------


def make_texts() -> list[dict[str, str]]:
    """Those of the writers, and some that two tokenizers may see differently."""
    texts = [one["text"] for one in make_records()]
    texts += [
        "<s>a</s> <s></s> <|endoftext|> <unk> [INST] <0x0A> stay text",
        "it's IT'S don't we'll 12345678 1 22 333 x1y2",
        "def f(x):\n    return {'a': [1, 2.5e-3]}  # ~~ \\\\ //\n\n\n",
        "trailing blanks \n \t ",
        "e\u0301 \ufb01 \u0130 \u00df \u200b\ufeff \u2028 \u3000 end",
    ]
    return [{"id": f"text-{number:04d}", "text": text} for number, text in enumerate(texts)]


def encode_alike(python: Path, tokenizers: list[Path], folder: Path) -> list[Row]:
    texts, path = make_texts(), folder / "texts.jsonl"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(one) + "\n" for one in texts), encoding="utf-8")
    rows = []
    for script in tokenizers:
        section = constant_of(script, "TOKENIZER")
        if section is None:
            raise Differs(f"{script.parent.name}/{script.name}: has no constant TOKENIZER")
        made = folder / script.stem
        made.mkdir()
        told = run_script(python, script, path, made)
        if "missing" not in told:
            told["documents"] = _compare_ids(section, made, texts, script)
        rows.append(row_of(script.stem, told, "documents"))
        print(rows[-1], file=sys.stderr)
    return rows


def _compare_ids(section: dict[str, Any], made: Path, texts: list[dict[str, str]], script: Path) -> int:
    """Documents whose ids are equal: all of them."""
    recipe = {
        "name": "interop",
        "sources": [{"name": "texts", "data": texts}],
        "dedup": {"exact": False},
        "split": {"valid_fraction": 0},
        "tokenizer": section,
        "builds": [{"name": "ids", "format": "megatron", "dtype": "int32"}],
    }
    with contextlib.chdir(made):
        out = Path(tokmill.run(recipe, made.with_name(f"{made.name}-out")).out)
    index = (out / "build/ids/train/tokens.idx").read_bytes()
    count = int(np.frombuffer(index, "<u8", 1, 18)[0])
    ours = np.split(
        np.fromfile(out / "build/ids/train/tokens.bin", "<i4"),
        np.cumsum(np.frombuffer(index, "<i4", count, 34))[:-1],
    )
    with np.load(made / "ids.npz") as arrays:
        theirs = np.split(arrays["ids"], np.cumsum(arrays["lengths"])[:-1])
        end = int(arrays["eos"])
    if len(ours) != len(theirs):
        raise Differs(f"tokenizers/{script.name}: {len(ours)} documents, and {len(theirs)} of theirs")
    for text, mine, other in zip(texts, ours, theirs, strict=True):
        if mine.tolist() != [*other.tolist(), end]:
            raise Differs(
                f"tokenizers/{script.name}: {text} is {mine.tolist()}, not {other.tolist()} and {end}"
            )
    return len(ours)


# -- the page --------------------------------------------------------------------------------------

HEAD = """# Interop

What other projects' own code reads of a build, and what tokmill reads of theirs. `make interop` runs every
row with the packages in `.venv-interop` and writes this page; a difference of one token stops it.
"""

READ = """
## They read our builds

The same corpus in every format. Each reader compares every token it gives with the documents or rows of the
split train, which are read from another build with NumPy alone.

| build | read with | version | what was compared | tokens equal |
| --- | --- | --- | --- | ---: |
"""

WRITTEN = """
## We read their files

The same records, written with the other project's own writer, and read by a source of a recipe.

| files | written with | version | what was compared | documents equal |
| --- | --- | --- | --- | ---: |
"""


TEXTS = """
## They read our texts

The same records as builds of texts, in two splits. Each reader opens the directory, or the files of a split,
and compares every field of every document.

| texts | read with | version | what was compared | documents equal |
| --- | --- | --- | --- | ---: |
"""


ENCODED = """
## We encode as they do

A tokenizer that the other project made, and the ids that its own code gives; every document has the same in
a build, literals of special tokens included, and its end after them.

| tokenizer | encoded with | version | what was compared | documents equal |
| --- | --- | --- | --- | ---: |
"""


RENDERED = """
## We render conversations as they do

The same conversations through chat templates of models, as they are and with blocks of generation, which say
what is learned.

| template | rendered and encoded with | version | what was compared | conversations equal |
| --- | --- | --- | --- | ---: |
"""


# By the folder of the scripts: what runs them, and the head of their table.
KINDS = {
    "readers": (read_builds, READ),
    "texts": (read_texts, TEXTS),
    "writers": (read_written, WRITTEN),
    "tokenizers": (encode_alike, ENCODED),
    "chat": (render_alike, RENDERED),
}


def render(rows: Mapping[str, list[Row]]) -> str:
    """Of the kinds that have rows."""
    return HEAD + "".join(KINDS[kind][1] + "".join(map(_line, of)) for kind, of in rows.items() if of)


def _line(row: Row) -> str:
    name = row.name if row.name.endswith(")") else f"`{row.name}`"
    name = f"`{name.partition(' ')[0]}` {name.partition(' ')[2]}" if name.endswith(")") else name
    if row.missing:
        return f"| {name} | not run: {row.missing} | | | |\n"
    return f"| {name} | {row.package} | {row.version} | {row.compared} | {row.equal:,} |\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--python", type=Path, default=Path(sys.executable), help="that has the other packages"
    )
    parser.add_argument("--only", action="append", default=[], help="this script; no page is written")
    parser.add_argument("--page", type=Path, default=HERE.parent / "docs/interop.md")
    options = parser.parse_args()
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    python = options.python.absolute()  # not resolved: a link is how a venv is told from the Python below it
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind, (run, _) in KINDS.items():
            if found := scripts(kind, options.only):
                rows[kind] = run(python, found, Path(folder) / kind)
    if not options.only:
        options.page.write_text(render(rows), encoding="utf-8")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Differs as error:
        sys.exit(f"interop: {error}")
