"""A run of any size, made by writing the files of its artifacts: asked by tracing.py and explore.py.

Documents have a few words, but for the shards that are asked about, which have 32 MB of text as a recipe's
have. Files that tracing does not read (rows, tokens of other shards) are left out.
"""

from __future__ import annotations

import argparse
import base64
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tokmill.artifacts.directory import Artifact, finish
from tokmill.artifacts.manifest import FileEntry, Json, Receipt, build_manifest, file_entry, write_manifest
from tokmill.artifacts.upstream import write_shard_table
from tokmill.formats.index import PLACES, RowSpans, write_places, write_row_index
from tokmill.formats.megatron import write_megatron
from tokmill.schema import DOCUMENTS, LABELS, LENGTHS, MARKS, ORDER, VERDICTS, ledger_table
from tokmill.stages.ingest.shards import no_counts, write_documents_shard, write_ids_of
from tokmill.storage.disk import Written, commit_bytes
from tokmill.storage.location import file_sha256

WORDS = "document of few words"  # all ASCII: a token is a byte
FULL_SHARD_BYTES = 32 << 20
ROW = 2048
BLOCK = 1 << 17


Measure = Callable[[Path, int, int, int], Json]  # of a directory, documents, shards, rounds


def main_of(told: str | None, make: type[Corpus], measure: Measure, rounds: int) -> int:
    """The command line of a bench on a made run."""
    parser = argparse.ArgumentParser(description=told.split("\n")[0] if told else None)
    parser.add_argument("--documents", type=int, default=10_000_000)
    parser.add_argument("--shards", type=int, default=1_700)
    parser.add_argument("--keep", type=Path, help="make the run here, or use the one that is")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    directory = options.keep or Path(tempfile.mkdtemp(prefix="made-"))
    try:
        if not (directory / "manifest.json").is_file():
            began = time.monotonic()
            make(directory, options.documents, options.shards).write()
            print(f"made in {time.monotonic() - began:.0f} s", file=sys.stderr)
        figures = measure(directory, options.documents, options.shards, options.rounds)
    finally:
        if options.keep is None:
            shutil.rmtree(directory)
    print(json.dumps(figures, indent=1))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


class Corpus:
    """Two splits, a mixture that shuffles, rows and sequences;
    every hundredth document is a copy of the one before."""

    def __init__(self, directory: Path, documents: int, shards: int) -> None:
        self.directory = directory
        per = -(-documents // shards)
        self.sizes = [min(per, documents - first) for first in range(0, documents, per)]
        self.full = {1}  # shards with as much text as a recipe gives them
        self.artifacts: list[Artifact] = []
        self.cleaning: Json = {"sieve": {"rules": [], "hooks": {}, "pipelines": []}}  # config of clean/web
        self._kept: list[NDArray[np.int64]] = []  # rows of each shard that have tokens

    def write(self) -> None:
        receipts: dict[str, list[Receipt]] = {
            name: [] for name in ("ingest/web", "clean/web", "dedup", "split", "tokens")
        }
        lengths: list[NDArray[np.int64]] = []
        first = 0
        for number, size in enumerate(self.sizes):
            lengths.append(self._shard(number, first, size, receipts))
            first += size
        reading = {"source": "web", "domain": "web", "format": "files", "options": {}}
        self._finish("ingest/web", "ingest", {"reading": reading, "hub": None}, receipts["ingest/web"])
        self._finish(
            "clean/web",
            "clean",
            self.cleaning,
            receipts["clean/web"],
        )
        self._finish("dedup", "dedup", {}, receipts["dedup"])
        self._finish("split", "split", {}, receipts["split"], {"splits": ["train", "valid"]})
        facts = self._tokenizer()
        self._finish(
            "tokens", "tokens", {}, receipts["tokens"], {"splits": ["train", "valid"], "tokenizer": facts}
        )
        self._builds(np.concatenate(lengths), [len(own) for own in lengths])
        self._root()

    def _shard(
        self, number: int, first: int, size: int, receipts: dict[str, list[Receipt]]
    ) -> NDArray[np.int64]:
        """The lengths of the documents that have tokens."""
        ids = pa.array([f"doc-{n}" for n in range(first, first + size)], pa.string())
        text = WORDS
        if number in self.full:
            text = (WORDS + " ") * (FULL_SHARD_BYTES // size // (len(WORDS) + 1))
        nulls = pa.nulls(size, pa.string())
        same = [pa.repeat(pa.scalar(value, pa.string()), size) for value in ("web", "web")]
        texts = pa.repeat(pa.scalar(text, pa.large_string()), size)
        table = pa.table([texts, *same, ids, nulls, nulls, nulls], schema=DOCUMENTS)
        key, name = f"{number:05d}-000", f"{number:05d}"
        ingest, clean = str(self.directory / "ingest/web"), str(self.directory / "clean/web")
        files = [write_documents_shard(ingest, key, table, no_counts()), write_ids_of(ingest, key, table)]
        self._note(receipts, "ingest/web", name, files, {"file": f"part-{name}.jsonl"})
        ones, zeros = np.ones(size, np.int64), np.zeros(size, np.uint64)
        marks = pa.table(
            [ones.astype(bool), ones * len(text), ones * len(text), zeros, zeros, nulls, nulls], schema=MARKS
        )
        files = [write_shard_table(clean, f"marks-{key}.parquet", "marks", marks)]
        rows = np.arange(size, dtype=np.uint32)
        is_copy = rows % 100 == 1
        more, is_out = self._cleaned(number, clean, key, ids, marks)
        is_copy &= ~is_out
        self._note(receipts, "clean/web", key, more or files)
        shards = pa.repeat(pa.scalar(f"web/{key}", pa.string()), size)
        verdicts = pa.table(
            [
                ~is_copy,
                pa.array(["exact_dup"] * size, pa.string(), mask=~is_copy),
                pa.array(shards.to_pylist(), pa.string(), mask=~is_copy),
                pa.array(rows - 1, pa.uint32(), mask=~is_copy),
                pa.array(ones.astype(float), pa.float64(), mask=~is_copy),
                pa.nulls(size, pa.int64()),
                pa.nulls(size, pa.int64()),
            ],
            schema=VERDICTS,
        )
        dedup, at = str(self.directory / "dedup"), np.flatnonzero(is_copy)
        ledger = ledger_table(
            {
                "shard": f"web/{key}",
                "row": at,
                "source": "web",
                "doc_id": ids.take(pa.array(at)),
                "stage": "dedup",
                "verdict": "drop",
                "reason": "exact_dup",
                "match_shard": f"web/{key}",
                "match_row": at - 1,
                "similarity": 1.0,
            },
            len(at),
        )
        files = [
            write_shard_table(dedup, f"verdicts-{name}.parquet", "verdicts", verdicts),
            write_shard_table(dedup, f"ledger-{name}.parquet", "ledger", ledger),
        ]
        self._note(receipts, "dedup", name, files)
        is_gone = is_copy | is_out
        labels = pa.table([np.where(is_gone, 255, 0).astype(np.uint8)], schema=LABELS)
        split = str(self.directory / "split")
        self._note(
            receipts, "split", name, [write_shard_table(split, f"labels-{name}.parquet", "labels", labels)]
        )
        kept = np.flatnonzero(~is_gone)
        self._kept.append(kept)
        lengths = np.full(len(kept), len(text) + 1, np.int64)
        stem, tokens = f"train/web/tokens-{name}", self.directory / "tokens"
        table = pa.table(
            [
                pa.array(kept, pa.uint32()),
                ids.take(pa.array(kept)),
                lengths,
                lengths,
                nulls.slice(0, len(kept)),
                nulls.slice(0, len(kept)),
            ],
            schema=LENGTHS,
        )
        files = [write_shard_table(str(tokens), f"train/web/lengths-{name}.parquet", "lengths", table)]
        written = {f"tokens-{name}.bin": Written(0, ""), f"tokens-{name}.idx": Written(0, "")}
        if number in self.full:
            one = np.append(np.frombuffer(text.encode(), np.uint8).astype(np.int64), 100257)
            written = write_megatron(tokens / stem, (one for _ in kept), lengths, dtype="int32")
        files += [
            file_entry(f"{stem}.bin", "tokens", written[f"tokens-{name}.bin"], rows=len(kept)),
            file_entry(f"{stem}.idx", "sequences", written[f"tokens-{name}.idx"], rows=len(kept)),
        ]
        self._note(receipts, "tokens", name, files)
        return lengths

    def _cleaned(
        self, number: int, directory: str, key: str, ids: Any, marks: Any
    ) -> tuple[list[FileEntry], NDArray[np.bool_]]:
        """What cleaning wrote besides marks, none here; and who it dropped."""
        return [], np.zeros(marks.num_rows, np.bool_)

    def _note(
        self,
        receipts: dict[str, list[Receipt]],
        step: str,
        key: str,
        files: list[FileEntry],
        facts: Json | None = None,
    ) -> None:
        receipts[step].append(
            Receipt(key=key, fingerprint=f"{step}{key}", files=files, counts={}, facts=facts or {})
        )

    def _tokenizer(self) -> Json:
        lines = b"".join(base64.b64encode(bytes([byte])) + b" %d\n" % byte for byte in range(256))
        written = commit_bytes(self.directory / "tokenizer/ranks.tiktoken", lines)
        facts: Json = {
            "kind": "tiktoken",
            "file": "ranks.tiktoken",
            "sha256": written.sha256,
            "encoding": "cl100k_base",
        }
        facts |= {"vocab_size": 100277, "eos_id": 100257, "controls": {}}
        entry = file_entry("ranks.tiktoken", "tokenizer", written, rows=256)
        receipt = Receipt(key="tokenizer", fingerprint="", files=[entry], counts={}, facts=facts)
        self._finish("tokenizer", "tokenizer", {}, [receipt], facts)
        return facts

    def _builds(self, lengths: NDArray[np.int64], counts: list[int]) -> None:
        order = np.random.default_rng(1).permutation(len(lengths))
        starts = np.cumsum([0, *counts])
        shard = np.searchsorted(starts, order, side="right") - 1
        table = pa.table(
            [pa.array(shard, pa.uint32()), pa.array(order - starts[shard], pa.uint32())], schema=ORDER
        )
        entry = write_shard_table(str(self.directory / "mixture"), "order-train.parquet", "order", table)
        self._finish(
            "mixture", "mixture", {}, [Receipt(key="train", fingerprint="", files=[entry], counts={})]
        )
        per = max(self.sizes)
        in_shard = np.concatenate(self._kept)[order]  # the row of a document that has tokens
        names = pa.array(np.char.add("doc-", (shard * per + in_shard).astype(str)), pa.string())
        sources = pa.DictionaryArray.from_arrays(np.zeros(len(names), np.int32), pa.array(["web"]))
        own = lengths[order]
        ends = np.cumsum(own)
        meetings = int(sum(-(-int(e) // ROW) - int(s) // ROW for s, e in _pairs(ends - own, ends)))
        rows = -(-int(ends[-1]) // ROW)
        for build, is_rows in (("rows", True), ("mega", False)):
            directory = self.directory / "build" / build / "train"
            spans = _concat(own, ends) if is_rows else _one_each(own)
            written = write_row_index(directory / "index.jsonl.zst", spans, names, sources)
            files = [
                file_entry("train/index.jsonl.zst", "index", written, rows=rows if is_rows else len(own))
            ]
            if is_rows:
                placed = write_places(directory / PLACES, meetings, _concat(own, ends))
                files.append(file_entry(f"train/{PLACES}", "places", placed, rows=meetings))
            else:
                made = write_megatron(directory / "tokens", _zeros(int(ends[-1])), own, dtype="int32")
                for name, table in (("tokens.bin", "tokens"), ("tokens.idx", "sequences")):
                    files.append(file_entry(f"train/{name}", table, made[name], rows=len(own)))
            config: Json = {"name": build, "format": "memmap" if is_rows else "megatron", "sources": []}
            config["pack"] = {"layout": "concat", "length": ROW} if is_rows else {"layout": "indexed"}
            self._finish(
                f"build/{build}",
                "build",
                config,
                [Receipt(key="train", fingerprint="", files=files, counts={})],
            )

    def _finish(
        self, step: str, kind: str, config: Json, receipts: list[Receipt], facts: Json | None = None
    ) -> None:
        manifest = build_manifest(
            kind=kind,
            step=step,
            config=config,
            inputs={},
            receipts=receipts,
            counts={},
            facts=facts or {},
            experiment_id="",
            environment={},
        )
        self.artifacts.append(finish(self.directory / step, manifest))

    def _root(self) -> None:
        files = []
        for artifact in self.artifacts:
            path = artifact.directory / "manifest.json"
            written = Written(path.stat().st_size, file_sha256(path))
            files.append(file_entry(path.relative_to(self.directory).as_posix(), "manifest", written, rows=1))
        receipt = Receipt(key="run", fingerprint="", files=files, counts={})
        root = build_manifest(
            kind="run",
            step="bench",
            config={},
            inputs={},
            receipts=[receipt],
            counts={},
            facts={},
            experiment_id="",
            environment={},
        )
        write_manifest(self.directory, root)


def _zeros(count: int) -> Iterator[NDArray[np.int64]]:
    """Ids that nobody reads: those of a document are in its token shard."""
    for first in range(0, count, 1 << 22):
        yield np.zeros(min(1 << 22, count - first), np.int64)


def _pairs(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    return zip(starts.tolist(), ends.tolist(), strict=True)


def _concat(lengths: NDArray[np.int64], ends: NDArray[np.int64]) -> Iterator[RowSpans]:
    """Documents one after the other in rows, in pieces of whole rows."""
    begins = ends - lengths
    for first_row in range(0, -(-int(ends[-1]) // ROW), BLOCK):
        low, high = first_row * ROW, (first_row + BLOCK) * ROW
        documents = np.arange(np.searchsorted(ends, low, side="right"), np.searchsorted(begins, high))
        begin, end = np.maximum(begins[documents], low), np.minimum(ends[documents], high)
        times = (end - 1) // ROW - begin // ROW + 1
        document = np.repeat(documents, times)
        row = (
            np.repeat(begin // ROW, times)
            + np.arange(len(document))
            - np.repeat(np.cumsum(times) - times, times)
        )
        start = np.maximum(np.repeat(begin, times), row * ROW)
        stop = np.minimum(np.repeat(end, times), (row + 1) * ROW)
        yield RowSpans(row, document, start - row * ROW, stop - row * ROW, start - begins[document])


def _one_each(lengths: NDArray[np.int64]) -> Iterator[RowSpans]:
    for first in range(0, len(lengths), BLOCK):
        number = np.arange(first, min(first + BLOCK, len(lengths)))
        none = np.zeros(len(number), np.int64)
        yield RowSpans(number, number, none, lengths[number], none)
