"""The page on file formats is true: a build is read by its tables, with `struct` and nothing of tokmill.

reference/formats.md ─ offset, bytes, struct, field of every table ─┬─ unpack ─> the same documents
a small build of every format ──────────────────────────────────────┘            in all of them
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import re
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from mill import small_corpus, tokmill

PAGE = Path(__file__).parents[2] / "docs/reference/formats.md"

_HEADING = re.compile(r"^## .*\{ #(?P<anchor>[\w-]+) \}$")
_ROW = re.compile(r"^\| `(?P<offset>[^`]+)` \| `(?P<bytes>[^`]+)` \| `(?P<code>[^`]+)` \| (?P<name>\w+) \|")

LENGTH = 64

# of every format with documents end to end, the file of train
FLAT = {
    "nanogpt": "train.bin",
    "llmc": "train_000000.bin",
    "nanotron": "tokens.ds",
    "olmo": "ids/part-00000.npy",
}


class Field(NamedTuple):
    name: str
    offset: str
    bytes: str
    code: str


def _layouts() -> dict[str, list[Field]]:
    found: dict[str, list[Field]] = {}
    anchor = ""
    for line in PAGE.read_text(encoding="utf-8").split("\n"):
        if heading := _HEADING.match(line):
            anchor = heading["anchor"]
        elif row := _ROW.match(line):
            found.setdefault(anchor, []).append(Field(row["name"], row["offset"], row["bytes"], row["code"]))
    return found


LAYOUTS = _layouts()


def _number(expression: str, sizes: Mapping[str, int]) -> int:
    """34 + 12*S."""

    def value(node: ast.expr) -> int:
        if isinstance(node, ast.Constant):
            return int(node.value)  # type: ignore[arg-type]
        if isinstance(node, ast.Name):
            return sizes[node.id]
        assert isinstance(node, ast.BinOp), expression
        left, right = value(node.left), value(node.right)
        return {ast.Add: left + right, ast.Sub: left - right, ast.Mult: left * right}[type(node.op)]

    return value(ast.parse(expression, mode="eval").body)


def _read(anchor: str, name: str, data: bytes, **sizes: int) -> Any:
    """One field by the page: a value, or a tuple where it is an array."""
    (field,) = (field for field in LAYOUTS[anchor] if field.name == name)
    offset, size = _number(field.offset, sizes), _number(field.bytes, sizes)
    assert 0 <= offset <= offset + size <= len(data), f"{anchor} {name}: beyond the end of the file"
    if field.code == "s":
        return data[offset : offset + size]
    count = size // struct.calcsize(f"<{field.code}")
    code = field.code if count == 1 and field.code[0].isdigit() else f"{count}{field.code}"
    assert struct.calcsize(f"<{code}") == size, f"{anchor} {name}: {size} bytes are no {code}"
    found = struct.unpack_from(f"<{code}", data, offset)
    is_array = any(letter.isalpha() for letter in field.bytes) or (
        field.code[0].isdigit() and field.code[-1] != "s"
    )
    return found if is_array else found[0]


def _assert_no_gap(anchor: str, data: bytes, *, first: str = "", **sizes: int) -> None:
    """Where one field ends the next begins, up to the last byte of the file;
    from `first` on, or from byte 0."""
    names = [field.name for field in LAYOUTS[anchor]]
    fields = LAYOUTS[anchor][names.index(first) if first else 0 :]
    at = _number(fields[0].offset, sizes) if first else 0
    for field in fields:
        assert _number(field.offset, sizes) == at, f"{anchor} {field.name} begins at {field.offset}"
        at += _number(field.bytes, sizes)
    assert at == len(data), f"{anchor} ends at {at}, the file at {len(data)}"


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("formats")
    formats = (
        "memmap",
        "megatron",
        "npy",
        "parquet",
        "token_cache",
        *FLAT,
        "mds",
        "litdata",
        "arrow",
        "levanter",
    )
    recipe = small_corpus(
        directory,
        pack={"length": LENGTH},
        builds=[{"name": name, "format": name} for name in formats],
    )
    done = tokmill("run", recipe, "--out", directory / "out")
    assert done.returncode == 0, done.stderr
    return directory / "out"


def _split(out: Path, build: str) -> Path:
    return out / "build" / build / "train"


def _sequences(out: Path) -> list[tuple[int, ...]]:
    """Documents, by the pages of tokens.idx and tokens.bin."""
    index, ids = ((_split(out, "megatron") / f"tokens.{end}").read_bytes() for end in ("idx", "bin"))
    assert _read("megatron-idx", "magic", index) == b"MMIDIDX\0\0"
    assert _read("megatron-idx", "version", index) == 1
    assert _read("megatron-idx", "dtype", index) == 4
    sizes = {"S": _read("megatron-idx", "sequences", index), "D": _read("megatron-idx", "documents", index)}
    _assert_no_gap("megatron-idx", index, **sizes)
    lengths = _read("megatron-idx", "lengths", index, **sizes)
    pointers = _read("megatron-idx", "pointers", index, **sizes)
    assert _read("megatron-idx", "document_starts", index, **sizes) == tuple(range(sizes["S"] + 1))
    _assert_no_gap("megatron-bin", ids, W=4, T=sum(lengths))
    tokens = _read("megatron-bin", "ids", ids, W=4, T=sum(lengths))
    return [tokens[at // 4 : at // 4 + length] for at, length in zip(pointers, lengths, strict=True)]


def test_megatron_is_as_the_page_says(out: Path) -> None:
    sequences = _sequences(out)
    assert len(sequences) > 40
    ends = {sequence[-1] for sequence in sequences}
    meta = json.loads((_split(out, "memmap") / "meta.json").read_bytes())
    assert ends == {meta["eos_id"]}


def _rows(out: Path) -> list[tuple[int, ...]]:
    meta = json.loads((_split(out, "memmap") / "meta.json").read_bytes())
    data = (_split(out, "memmap") / "input_ids.mmap").read_bytes()
    sizes = {"W": {"int32": 4, "uint16": 2}[meta["dtype"]], "N": meta["n_seqs"], "L": meta["seq_len"]}
    _assert_no_gap("memmap-ids", data, **sizes)
    ids = _read("memmap-ids", "ids", data, **sizes)
    return [ids[at : at + LENGTH] for at in range(0, len(ids), LENGTH)]


def test_memmap_holds_the_documents_one_after_the_other(out: Path) -> None:
    stream = [token for sequence in _sequences(out) for token in sequence]
    rows = [token for row in _rows(out) for token in row]
    assert len(rows) > 10 * LENGTH
    assert rows == stream[: len(rows)]


def test_npy_shards_hold_the_same_rows(out: Path) -> None:
    data = (_split(out, "npy") / "shard_00000.npy").read_bytes()
    assert _read("npy", "magic", data) == b"\x93NUMPY"
    assert _read("npy", "version", data) == (1, 0)
    header_bytes = _read("npy", "header_bytes", data)
    facts = ast.literal_eval(_read("npy", "header", data, H=header_bytes + 10).decode())
    assert (facts["descr"], facts["fortran_order"]) == ("<i4", False)
    sizes = {"H": header_bytes + 10, "N": facts["shape"][0], "L": facts["shape"][1]}
    assert sizes["H"] in (64, 128)
    _assert_no_gap("npy", data, **sizes)
    ids = _read("npy", "ids", data, **sizes)
    assert [ids[at : at + LENGTH] for at in range(0, len(ids), LENGTH)] == _rows(out)


def test_parquet_shards_hold_the_same_rows_and_their_digest_is_as_the_page_says(out: Path) -> None:
    rows = pq.read_table(_split(out, "parquet") / "shard_00000.parquet").column("input_ids").to_pylist()
    assert [tuple(row) for row in rows] == _rows(out)
    meta = json.loads((_split(out, "parquet") / "meta.json").read_bytes())
    content = struct.pack(f"<{len(rows)}q", *map(len, rows))
    content += b"".join(struct.pack(f"<{len(row)}i", *row) for row in rows)
    assert meta["shards"][0]["content_sha256"] == hashlib.sha256(content).hexdigest()


def test_a_part_of_a_token_cache_holds_the_same_documents(out: Path) -> None:
    data = (_split(out, "token_cache") / "token_cache/part-00000.npz").read_bytes()
    expected = _sequences(out)
    anchor, sizes = "token-cache-part", {"E": len(expected), "T": sum(map(len, expected))}
    assert _read(anchor, "magic", data) == _read(anchor, "next_magic", data, **sizes) == b"PK\x03\x04"
    assert [_read(anchor, name, data) for name in ("needs", "flags", "method")] == [45, 0, 0]
    assert _read(anchor, "date", data) == (0, 33)  # 1980-01-01 in the way of DOS
    assert _read(anchor, "sizes", data) == (0xFFFFFFFF, 0xFFFFFFFF)
    assert (_read(anchor, "name_bytes", data), _read(anchor, "extra_bytes", data)) == (11, 20)
    assert _read(anchor, "name", data) == b"lengths.npy"
    assert _read(anchor, "extra", data) == (1, 16)
    assert _read(anchor, "crc32", data) == zlib.crc32(data[61 : 61 + 128 + 8 * sizes["E"]])
    assert _read(anchor, "true_sizes", data) == (128 + 8 * sizes["E"],) * 2
    assert f"'<i8', 'fortran_order': False, 'shape': ({sizes['E']},)".encode() in _read(
        anchor, "header", data
    )
    assert list(_read(anchor, "lengths", data, **sizes)) == [len(sequence) for sequence in expected]
    assert list(_read(anchor, "ids", data, **sizes)) == [token for sequence in expected for token in sequence]


@pytest.mark.parametrize("name", FLAT)
def test_a_flat_file_holds_the_same_tokens_end_to_end(name: str, out: Path) -> None:
    data = (_split(out, name) / FLAT[name]).read_bytes()
    meta = json.loads((_split(out, name) / "meta.json").read_bytes())
    sizes = {"W": {"uint16": 2, "uint32": 4}[meta["dtype"]], "T": meta["n_tokens"]}
    _assert_no_gap(name, data, **sizes)
    if name == "llmc":
        header = [_read("llmc", field, data) for field in ("magic", "version", "tokens")]
        assert header == [20240801, 7, sizes["T"]]
        assert set(_read("llmc", "zeros", data)) == {0}
        ids = list(struct.unpack(f"<{sizes['T']}I", data[1024:]))
    else:
        ids = list(_read(name, "ids", data, **sizes))
    expected = _rows(out) if name == "olmo" else _sequences(out)
    assert ids == [token for sequence in expected for token in sequence]
    if name != "olmo":
        index = "tokens.ds.index" if name == "nanotron" else "documents.index"
        ends = _read("documents-index", "ends", (_split(out, name) / index).read_bytes(), D=len(expected))
        assert list(ends) == list(itertools.accumulate(map(len, expected)))


def test_chunks_of_litdata_hold_the_same_rows(out: Path) -> None:
    data = (_split(out, "litdata") / "chunk-0-0.bin").read_bytes()
    rows = _rows(out)
    sizes = {"N": _read("litdata", "items", data), "T": LENGTH * len(rows)}
    _assert_no_gap("litdata", data, **sizes)
    offsets = _read("litdata", "offsets", data, **sizes)
    assert [data[start:end] for start, end in itertools.pairwise(offsets)] == [
        struct.pack(f"<{LENGTH}i", *row) for row in rows
    ]


def test_samples_of_mds_are_as_the_page_says(out: Path) -> None:
    data = (_split(out, "mds") / "shard.00000.mds").read_bytes()
    (shard,) = json.loads((_split(out, "mds") / "index.json").read_bytes())["shards"]
    count = _read("mds", "samples", data)
    offsets = _read("mds", "offsets", data, N=count)
    sizes = {"N": count, "C": offsets[0] - 8 - 4 * count}
    columns = json.loads(_read("mds", "columns", data, **sizes))
    assert columns == {key: shard[key] for key in columns}
    assert shard["samples"] == count
    for row, start, end in zip(_rows(out), offsets[:-1], offsets[1:], strict=True):
        assert data[start:end] == struct.pack(f"<IBB{LENGTH}i", 2 + 4 * LENGTH, 4, LENGTH, *row)


def test_streams_of_arrow_hold_the_same_rows_and_end_as_the_page_says(out: Path) -> None:
    path = _split(out, "arrow") / "data-00000-of-00001.arrow"
    data = path.read_bytes()
    assert _read("arrow", "continuation", data) == 0xFFFFFFFF
    assert _read("arrow", "end", data, B=len(data)) == (0xFFFFFFFF, 0)
    # the second message begins where the schema ends, and begins alike
    assert data[8 + _read("arrow", "schema_bytes", data) :].startswith(b"\xff" * 4)
    rows = pa.ipc.open_stream(path).read_all().column("input_ids").to_pylist()
    assert [tuple(row) for row in rows] == _rows(out)
    (part,) = json.loads((_split(out, "arrow") / "meta.json").read_bytes())["parts"]
    content = struct.pack(f"<{len(rows)}q", *map(len, rows))
    content += b"".join(struct.pack(f"<{len(row)}i", *row) for row in rows)
    assert part["content_sha256"] == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(("name", "width", "code"), [("data", 4, "i"), ("offsets", 8, "q")])
def test_arrays_of_levanter_hold_the_same_rows(name: str, width: int, code: str, out: Path) -> None:
    data = (_split(out, "levanter") / "input_ids" / name / "c/0").read_bytes()
    rows, sizes = _rows(out), {"W": width, "K": 1}
    _assert_no_gap("levanter", data, **sizes)
    assert _read("levanter", "frame", data) == (2, 1, 0x23, width)
    assert _read("levanter", "sizes", data) == (width << 18, width << 17, (width << 18) + 16)
    table = _read("levanter", "table", data, **sizes)
    assert table == (0, 16 + (width << 18), *[(1 << 64) - 1] * 1022)
    if name == "data":
        expected = [token for row in rows for token in row]
    else:
        expected = [len(rows), *range(LENGTH, LENGTH * len(rows) + 1, LENGTH)]
    assert list(struct.unpack_from(f"<{len(expected)}{code}", data, 16)) == expected


def _index(path: Path) -> list[Any]:
    """The lines of an index, frame by frame through its table."""
    data = path.read_bytes()
    count = _read("index", "count", data, B=len(data))
    sizes = {"B": len(data), "F": count}
    _assert_no_gap("index", data, first="skippable", **sizes)
    assert _read("index", "first_frame", data) == 0xFD2FB528
    assert _read("index", "skippable", data, **sizes) == 0x184D2A5E
    assert _read("index", "table_bytes", data, **sizes) == 8 * count + 9
    assert (_read("index", "descriptor", data, **sizes), _read("index", "seekable", data, **sizes)) == (
        0,
        0x8F92EAB1,
    )
    frames = _read("index", "frames", data, **sizes)
    lines, at = b"", 0
    for packed, plain in zip(frames[::2], frames[1::2], strict=True):
        lines += zstandard.ZstdDecompressor().decompress(data[at : at + packed], max_output_size=plain)
        at += packed
    return [json.loads(line) for line in lines.splitlines()]


def test_the_index_leads_from_every_column_to_a_token_of_a_document(out: Path) -> None:
    names = [entry["docs"][0]["doc_id"] for entry in _index(_split(out, "megatron") / "index.jsonl.zst")]
    documents = dict(zip(names, _sequences(out), strict=True))
    entries = _index(_split(out, "memmap") / "index.jsonl.zst")
    assert [entry["row"] for entry in entries] == list(range(len(entries)))
    for row, entry in zip(_rows(out), entries, strict=True):
        for span in entry["docs"]:
            here = row[span["start"] : span["end"]]
            assert here == documents[span["doc_id"]][span["offset"] : span["offset"] + len(here)]
        assert sum(span["end"] - span["start"] for span in entry["docs"]) == LENGTH


def test_places_are_the_index_the_other_way_round(out: Path) -> None:
    data = (_split(out, "memmap") / "places.npy").read_bytes()
    entries = _index(_split(out, "memmap") / "index.jsonl.zst")
    meetings = sum(len(entry["docs"]) for entry in entries)
    assert _read("places", "magic", data) == b"\x93NUMPY"
    assert _read("places", "header_bytes", data) == 118
    numbers = _read("places", "meetings", data, M=meetings)
    assert len(data) == 128 + 20 * meetings
    found = [numbers[at : at + 5] for at in range(0, len(numbers), 5)]
    assert found == sorted(found, key=lambda place: (place[0], place[4]))
    spans = sorted((e["row"], d["start"], d["end"], d["offset"]) for e in entries for d in e["docs"])
    assert sorted(place[1:] for place in found) == spans


def test_ids_of_a_shard_are_found_by_their_hash(out: Path) -> None:
    documents = (
        pq.read_table(out / "ingest/problems/documents-00000-000.parquet").column("doc_id").to_pylist()
    )
    data = (out / "ingest/problems/ids-00000-000.npy").read_bytes()
    sizes = {"K": len(documents)}
    assert _read("ids", "magic", data) == b"\x93NUMPY"
    assert _read("ids", "header_bytes", data) == 118
    hashes, rows = _read("ids", "hashes", data, **sizes), _read("ids", "rows", data, **sizes)
    assert list(hashes) == sorted(hashes)
    for value, row in zip(hashes, rows, strict=True):
        assert hashlib.sha256(documents[row].encode()).digest()[:8] == struct.pack(">Q", value)


def test_an_index_of_a_run_is_as_the_page_says(out: Path) -> None:
    index = out.parent / "run.index"
    assert tokmill("index", out, "--out", index, "--splits", "train", "--ids").returncode == 0
    entries, bands = ((index / f"{name}-00000.bin").read_bytes() for name in ("entries", "bands"))
    count = pq.read_table(index / "ids-00000.parquet").num_rows
    assert count == len(_sequences(out))
    _assert_no_gap("index-entries", entries, N=count)
    high, low = (_read("index-entries", name, entries, N=count) for name in ("high", "low"))
    assert list(zip(high, low, strict=True)) == sorted(zip(high, low, strict=True))
    assert len(_read("index-entries", "sketch", entries, N=count)) == 8 * count
    facts = json.loads((index / "manifest.json").read_bytes())
    (keys,) = (entry["rows"] for entry in facts["files"] if entry["table"] == "bands")
    sizes = {"B": keys, "P": -(-4 * keys // 8) * 8}
    assert len(bands) == 2 * sizes["P"]
    found = [_read("index-bands", name, bands, **sizes) for name in ("keys", "documents")]
    assert list(zip(*found, strict=True)) == sorted(zip(*found, strict=True))
    assert set(found[1]) == set(range(count))


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def test_a_manifest_has_the_keys_and_digests_of_the_page(out: Path) -> None:
    page = PAGE.read_text(encoding="utf-8").partition("{ #manifestjson }")[2].partition("\n## ")[0]
    keys = [key for line in re.findall(r"^\| (`.*?`) \|", page, re.M) for key in re.findall(r"`(\w+)`", line)]
    for path in sorted(out.rglob("manifest.json")):
        manifest = json.loads(path.read_bytes())
        assert sorted(manifest) == sorted(keys), path
        environment, seal, digest = (manifest.pop(key) for key in ("environment", "seal", "digest"))
        assert digest == hashlib.sha256(_canonical(manifest)).hexdigest()
        assert seal == hashlib.sha256(_canonical({"digest": digest, "environment": environment})).hexdigest()
        for entry in manifest["files"]:
            data = (path.parent / entry["path"]).read_bytes()
            assert (entry["bytes"], entry["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
        content = sorted(
            [entry["path"], entry["rows"], entry["content_sha256"]] for entry in manifest["files"]
        )
        identity = _canonical({"kind": manifest["kind"], "files": content})
        assert manifest["identity"] == hashlib.sha256(identity).hexdigest()
