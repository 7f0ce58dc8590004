"""What a run wrote, read by other code than ours: json, hashlib, pyarrow, NumPy, Zstandard's own library.

Nothing of tokmill is imported here. Every manifest that is read is proved on the way:
its three digests are computed again, as docs/reference/formats.md says they are made.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import tokenizers

if sys.version_info >= (3, 14):
    from compression.zstd import ZstdDecompressor, ZstdFile
else:
    from backports.zstd import ZstdDecompressor, ZstdFile

__all__ = ["ZstdDecompressor", "ZstdFile"]

Json = dict[str, Any]

MANIFEST = "manifest.json"
LOCK, CLAIM = ".lock", "claim.json"  # who is at work in a directory, and in an object store


class FileEntry(NamedTuple):
    path: str
    table: str
    bytes: int
    rows: int
    sha256: str
    content_sha256: str
    sequence: str | None


class Manifest(NamedTuple):
    kind: str
    step: str
    format_version: int
    config: Json
    inputs: dict[str, str]
    fingerprint: str
    files: list[FileEntry]
    tasks: list[Json]
    counts: Json
    facts: Json
    experiment_id: str
    identity: str
    digest: str
    seal: str
    environment: Json

    def entries(self, table: str) -> list[FileEntry]:
        return [entry for entry in self.files if entry.table == table]


def load_manifest(directory: Path, name: str = MANIFEST) -> Manifest:
    body = json.loads((directory / name).read_bytes())
    manifest = Manifest(**{**body, "files": [FileEntry(**entry) for entry in body["files"]]})
    held = [entry for entry in manifest.files if entry.table != "tombstones"]
    content = sorted([entry.path, entry.rows, entry.content_sha256] for entry in held)
    assert manifest.identity == json_sha256({"kind": manifest.kind, "files": content}), directory
    rest = {key: value for key, value in body.items() if key not in ("digest", "seal", "environment")}
    assert manifest.digest == json_sha256(rest), directory
    assert manifest.seal == json_sha256({"digest": manifest.digest, "environment": manifest.environment}), (
        directory
    )
    return manifest


def rewrite_manifest(directory: Path, change: Callable[[Json], None]) -> None:
    """As one who made something else from the start would have written it:
    its digests are those of what it says now."""
    body = json.loads((directory / MANIFEST).read_bytes())
    change(body)
    for name in ("config", "inputs", "tasks", "counts", "facts"):
        body[name] = json.loads(json.dumps(body[name], sort_keys=True))
    held = [entry for entry in body["files"] if entry["table"] != "tombstones"]
    content = sorted([entry["path"], entry["rows"], entry["content_sha256"]] for entry in held)
    body["identity"] = json_sha256({"kind": body["kind"], "files": content})
    rest = {key: value for key, value in body.items() if key not in ("digest", "seal", "environment")}
    body["digest"] = json_sha256(rest)
    body["seal"] = json_sha256({"digest": body["digest"], "environment": body["environment"]})
    text = json.dumps(body, indent=1, ensure_ascii=False) + "\n"
    (directory / MANIFEST).write_text(text, encoding="utf-8")


def began(pid: int) -> int:
    """When a process of this machine began, as its kernel counts."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def leave_note(directory: Path, pid: int, host: str, began: int, **more: str) -> Path:
    """The note that a process leaves where it is at work."""
    directory.mkdir(parents=True)
    note = directory / LOCK
    told = {"pid": pid, "host": host, "began": began, "since": "2026-01-01 00:00:00 UTC", **more}
    note.write_text(json.dumps(told))
    return note


def json_sha256(value: Any) -> str:
    """Of its canonical form: sorted keys, no spaces."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def file_sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def load_table(path: Path, columns: Sequence[str] | None = None) -> Any:
    with pq.ParquetFile(path) as file:
        return file.read(columns=columns and list(columns)).combine_chunks()


def load_tables(directory: Path, table: str) -> list[Any]:
    """All files of one table of a step, in the order of its manifest."""
    return [load_table(directory / entry.path) for entry in load_manifest(directory).entries(table)]


def load_lines(path: Path) -> list[Json]:
    """The records of a .jsonl.zst."""
    with ZstdFile(path) as file:
        return [json.loads(line) for line in file]


class Span(NamedTuple):
    doc_id: str
    source: str
    start: int
    end: int
    offset: int


class IndexRow(NamedTuple):
    row: int
    docs: list[Span]


def read_row_index(path: Path) -> Iterator[IndexRow]:
    """Of every row, in order: its documents, and which of its columns are theirs."""
    for number, line in enumerate(load_lines(path)):
        assert line["row"] == number, path
        yield IndexRow(number, [Span(**span) for span in line["docs"]])


def write_rows(directory: Path, ids: Any, dtype: str, meta: Json) -> None:
    """Rows as a memmap build has them, made by NumPy."""
    directory.mkdir(parents=True, exist_ok=True)
    rows = np.asarray(ids, np.dtype(dtype).newbyteorder("<"))
    rows.tofile(directory / "input_ids.mmap")
    whole = {**meta, "n_seqs": rows.shape[0], "seq_len": rows.shape[1], "dtype": dtype}
    (directory / "meta.json").write_text(json.dumps(whole))


def write_shards(directory: Path, ids: Any, rows_per_shard: int, meta: Json) -> None:
    """Rows as an npy build has them, made by NumPy."""
    directory.mkdir(parents=True, exist_ok=True)
    rows = np.asarray(ids, "<i4")
    firsts = range(0, len(rows), rows_per_shard)
    for number, first in enumerate(firsts):
        np.save(directory / f"shard_{number:05d}.npy", rows[first : first + rows_per_shard])
    own = {"n_seqs": len(rows), "seq_len": rows.shape[1], "rows_per_shard": rows_per_shard}
    whole = {**meta, **own, "n_shards": len(firsts), "dtype": "int32"}
    (directory / "meta.json").write_text(json.dumps(whole))


class MemmapRows:
    """Rows of equal length, as their description says."""

    def __init__(self, directory: Path) -> None:
        self.meta = json.loads((directory / "meta.json").read_bytes())
        ids = np.fromfile(directory / "input_ids.mmap", np.dtype(self.meta["dtype"]).newbyteorder("<"))
        self.ids = ids.reshape(self.meta["n_seqs"], self.meta["seq_len"])

    def __len__(self) -> int:
        return len(self.ids)


class MegatronFile:
    """A pair of Megatron's files: a header of 34 bytes, int32 lengths, int64 pointers, int64 documents."""

    def __init__(self, prefix: Path) -> None:
        index = prefix.with_name(f"{prefix.name}.idx").read_bytes()
        assert index[:17] == b"MMIDIDX\0\0" + (1).to_bytes(8, "little")
        codes = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 6: "<f8", 7: "<f4", 8: "<u2"}
        self.dtype = np.dtype(codes[index[17]])
        count, documents = np.frombuffer(index, "<u8", 2, 18).tolist()
        self.lengths = np.frombuffer(index, "<i4", count, 34)
        self.pointers = np.frombuffer(index, "<i8", count, 34 + 4 * count)
        self.documents = np.frombuffer(index, "<i8", documents, 34 + 12 * count)
        assert len(index) == 34 + 12 * count + 8 * documents
        self.ids = np.fromfile(prefix.with_name(f"{prefix.name}.bin"), self.dtype)

    def __len__(self) -> int:
        return len(self.lengths)

    def sequence(self, number: int) -> Any:
        first = int(self.pointers[number]) // self.dtype.itemsize
        return self.ids[first : first + int(self.lengths[number])]


def read_token_cache(directory: Path) -> Iterator[list[int]]:
    """Every example of a token cache, in order."""
    for part in json.loads((directory / "ENCODE.meta.json").read_bytes())["parts"]:
        with np.load(directory / part["file"]) as arrays:
            lengths, ids = arrays["lengths"], arrays["ids"]
        assert (len(lengths), len(ids)) == (part["examples"], part["tokens"])
        for end, length in zip(np.cumsum(lengths).tolist(), lengths.tolist(), strict=True):
            yield ids[end - length : end].tolist()


def decoder_of(run: Path) -> Callable[[Any], str]:
    """From ids to text, by the library whose file the tokenizer of the run is. Special tokens are spelled."""
    tokenizer = tokenizers.Tokenizer.from_file(str(run / "tokenizer/tokenizer.json"))
    return lambda ids: tokenizer.decode(np.asarray(ids).tolist(), skip_special_tokens=False)
