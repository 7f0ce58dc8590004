"""A run whose documents have a word each that is in no other, and where these words are."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tokmill as mill
from cleaned import prose, write_documents
from mill import write_recipe
from written import ZstdFile

BUILDS = [
    {"name": "rows", "format": "memmap", "pack": {"layout": "concat", "length": 64, "tail": "pad"}},
    {"name": "fit", "format": "npy", "pack": {"layout": "best_fit", "length": 512}},
    {"name": "table", "format": "parquet", "pack": {"layout": "document", "length": 256}},
    {"name": "lists", "format": "parquet", "pack": {"layout": "indexed"}},
    {"name": "mega", "format": "megatron", "dtype": "smallest"},
    {"name": "cache", "format": "token_cache"},
]


def marker(name: str) -> str:
    """A word that is in one document only: of letters, and spelled byte by byte in the vocabulary below."""
    digits = hashlib.sha256(name.encode()).hexdigest()[:14]
    return "zq" + digits.translate(str.maketrans("0123456789abcdef", "abcdefhijklmopqr"))


def text_of(name: str, seed: int) -> str:
    return f"{prose(seed, 4)} {marker(name)} {prose(seed + 1000, 2)}"


def make_corpus(directory: Path, without: frozenset[str] = frozenset()) -> None:
    web = [{"id": f"w{n}", "text": text_of(f"w{n}", n), "license": "MIT"} for n in range(12)]
    odd: list[dict[str, Any]] = [
        {"id": "short", "text": f"x {marker('short')}"},
        {"id": "edited", "text": text_of("edited", 40) + "\r\ncafe\u0301"},
        {"id": "first", "text": text_of("first", 50)},
        {"id": "second", "text": text_of("first", 50).replace("the", "The") + f" {marker('second')}"},
        {"id": "quoting", "text": prose(60, 3) + "\n\n" + text_of("first", 50)},
    ]
    books = [{"id": f"b{n}", "text": text_of(f"b{n}", 100 + n), "license": "GPL-3.0"} for n in range(4)]
    books += [{"id": f"b{n}", "text": text_of(f"b{n}", 100 + n), "license": "MIT"} for n in range(4, 8)]
    more = [{"id": f"m{n}", "text": text_of(f"m{n}", 200 + n)} for n in range(6)]
    for name, records in (("web-a", web), ("web-b", odd), ("books", books), ("more", more)):
        write_documents(directory / f"{name}.jsonl", [r for r in records if r["id"] not in without])


def make_recipe(directory: Path, **sections: Any) -> Path:
    tokens = [bytes([byte]) for byte in range(256)] + [b"the", b" the", b" with", b"ing"]
    lines = b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens))
    (directory / "ranks.tiktoken").write_bytes(lines)
    whole: dict[str, Any] = {
        "sources": [
            {"name": "web", "domain": "web", "files": "web-*.jsonl"},
            {"name": "books", "domain": "prose", "files": "books.jsonl"},
            {"name": "more", "domain": "prose", "files": "more.jsonl"},
        ],
        "license": {"unknown": "keep"},
        "filters": [{"measure": "words", "min": 5, "reason": "too_few_words"}],
        "normalize": {"unicode": "NFC", "newlines": "lf"},
        "dedup": {
            "exact": True,
            "near": {"threshold": "0.7"},
            "window": {"policy": "trim", "words": 20},
            "partitions": 2,
        },
        "split": {"valid_fraction": "0.25"},
        "tokenizer": {"path": "ranks.tiktoken", "encoding": "cl100k_base", "eos": "<|endoftext|>"},
        "builds": BUILDS,
    }
    whole.update(sections)
    return write_recipe(directory, **whole)


SITE = {"name": "site", "domain": "web", "files": "web-*.jsonl"}
BOOKS = {"name": "books", "domain": "prose", "files": "books.jsonl"}


def small_run(directory: Path, **sections: Any) -> tuple[Path, Path]:
    """A run of one build, and its recipe."""
    make_corpus(directory)
    recipe = make_recipe(directory, **{"dedup": {"exact": True}, "builds": BUILDS[:1], **sections})
    return mill.run(recipe, workers=1).out, recipe


def contents(run: Path) -> Iterator[tuple[str, bytes]]:
    """Every file as it is, decompressed, and every column of every table."""
    for path in sorted(path for path in run.rglob("*") if path.is_file()):
        name = path.relative_to(run).as_posix()
        yield name, path.read_bytes()
        if path.suffix == ".zst":
            with ZstdFile(path) as file:
                yield name, file.read()
        elif path.suffix == ".parquet":
            for column in pq.read_table(path).columns:
                yield name, _plain(column)


def _plain(column: Any) -> bytes:
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return np.asarray(column.combine_chunks().flatten()).astype("<i4").tobytes()
    return "\0".join(map(str, column.to_pylist())).encode()


def needles(name: str) -> list[bytes]:
    """The marker as text, and as the tokens that spell it: this vocabulary has bytes, and four words."""
    word = marker(name).encode()
    return [
        word,
        np.frombuffer(word, np.uint8).astype("<u2").tobytes(),
        np.frombuffer(word, np.uint8).astype("<i4").tobytes(),
    ]


def files_with(run: Path, name: str) -> set[str]:
    wanted = needles(name)
    return {path for path, data in contents(run) if any(needle in data for needle in wanted)}


def leaks_of(run: Path, doc_id: str, text: str | None = None) -> set[str]:
    """Files in and beside the run, kept steps and caches among them, that have the id, which may be the name
    of a file; or the text, or a hash of it, or of a directory of it alone: as bytes, or as hex."""
    told = [doc_id, Path(doc_id).name] if "." in doc_id else [doc_id]
    wanted = [name.encode() for name in told]
    if text is not None:
        spelled = text.encode()
        header = f"{doc_id}\0{len(spelled)}\n".encode()  # as a directory lists its only file
        for digest in (hashlib.sha256(spelled), hashlib.sha256(header + spelled), hashlib.md5(spelled)):
            wanted += [digest.hexdigest().encode(), digest.digest()]
        wanted.append(spelled)
    beside = run.parent.glob(f"{run.name}*")
    return {
        path
        for place in beside
        for path, data in (contents(place.parent) if place.is_dir() else [(place.name, place.read_bytes())])
        if path.startswith(place.name) and any(needle in data for needle in wanted)
    }


def tree(directory: Path) -> dict[str, bytes]:
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def ids(*names: str, source: str | None = None) -> dict[str, Any]:
    return {"doc_ids": [(source, name) for name in names]}


def traced_documents(run: Any, doc_id: str, source: str | None = None) -> Any:
    return mill.trace(run, doc_id=doc_id, source=source).documents
