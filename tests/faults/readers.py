"""Everything that reads what somebody else wrote: small valid files, and a reader that says what it found.

    Target.files      name -> bytes of valid files, the first of which is read
    Target.wrap       how the bytes are compressed, where damage should also get past the decompressor
    Target.read       reads all of it; (records found, records that an independent count finds, or None)

A reader may raise a TokmillError. Whatever else it raises is a bug.
"""

from __future__ import annotations

import base64
import bz2
import csv
import gzip
import io
import json
import lzma
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import sentencepiece
import zstandard

import tokmill as mill
from faults import templates
from faults.disk import BUILDS, whole_recipe
from pdf_files import giant_stream, make_pdf, nested_forms
from tokmill.adhoc.mixtures import mixture_weights, read_mixture_file, to_sources
from tokmill.artifacts.manifest import load_manifest, load_receipts
from tokmill.artifacts.snapshot import SnapshotShard, build_snapshot, list_shards, write_snapshot
from tokmill.errors import TokmillError
from tokmill.formats.index import find_row, read_row_index
from tokmill.loader import Batches, open_dataset
from tokmill.recipe import Source
from tokmill.recipe.file import load_recipe
from tokmill.sources.readers import Chunks, list_source, read_documents, resolve_reading
from tokmill.storage.disk import ZstdCompressor, frame_options
from tokmill.storage.patterns import find_files
from tokmill.storage.records import WHOLE
from tokmill.storage.tables import load_table
from tokmill.tokenizers.load import load_tokenizer
from tokmill.tokenizers.train import train_byte_bpe

Found = tuple[int, int | None]
MAX_RECORD_BYTES = 1 << 16


class Target(NamedTuple):
    files: dict[str, bytes]
    read: Callable[[Path], Found]
    wrap: Callable[[bytes], bytes] | None = None
    directory: Path | None = None  # a whole directory, one file of which is damaged
    is_bomb: bool = False  # read as it is: it was made to hurt


def _zstd(data: bytes) -> bytes:
    compressor = ZstdCompressor(options=frame_options())
    return bytes(compressor.compress(data) + compressor.flush())


def _bzip2(data: bytes) -> bytes:
    """As Wikipedia packs its dumps: several streams, one behind the other."""
    half = len(data) // 2
    return bz2.compress(data[:half]) + bz2.compress(data[half:])


def _members(data: bytes) -> bytes:
    return b"".join(
        gzip.compress(b"WARC/" + piece, mtime=0) for piece in data.split(b"WARC/")[1:]
    ) or gzip.compress(data)


def _unpacked(path: Path) -> bytes | None:
    """By other libraries than ours; None where they cannot."""
    data = path.read_bytes()
    try:
        if path.suffix == ".gz":
            return gzip.decompress(data)
        if path.suffix == ".zst":
            with zstandard.ZstdDecompressor().stream_reader(
                io.BytesIO(data), read_across_frames=True
            ) as stream:
                return stream.read()
    except (OSError, EOFError, zstandard.ZstdError, ValueError):
        return None
    return data


def _lz4(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "lz4") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


def _elements(path: Path) -> int | None:
    try:
        found = json.loads(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError):
        return None
    return len(found) if isinstance(found, list) else None


def _cells(path: Path) -> int | None:
    """Rows that Python's own reader finds, where it has no other opinion of what ends a line or a quote."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        rows = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error):
        return None
    return None if "\r" in text or "\0" in text else sum(bool(row) for row in rows) - 1


def _arrow(columns: dict[str, list[Any]], *, is_stream: bool, compression: str | None = None) -> bytes:
    sink, table = io.BytesIO(), pa.table(columns)
    open_writer = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with open_writer(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=5)
    return sink.getvalue()


def _csv(rows: list[dict[str, Any]], **options: Any) -> bytes:
    sink = io.StringIO(newline="")
    writer = csv.DictWriter(sink, list(rows[0]), lineterminator="\n", **options)
    writer.writeheader()
    writer.writerows(rows)
    return sink.getvalue().encode()


def saved(directory: Path) -> Found:
    """A dataset that was saved to disk."""
    return source()(directory)


def _lines(path: Path) -> int | None:
    data = _unpacked(path)
    if data is None:
        return None
    return sum(bool(line.strip(b" \t\r")) for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"))


def _parquet_rows(path: Path) -> int | None:
    try:
        return int(pq.read_table(path).num_rows)
    except (OSError, ValueError, pa.ArrowException):
        return None


def source(
    count: Callable[[Path], int | None] = lambda path: None, **section: Any
) -> Callable[[Path], Found]:
    """As ingest reads the files of a source, in parts of 4 KB; a large file in a few."""

    def read(path: Path) -> Found:
        whole = {"name": "s", "files": path.name, "max_record_bytes": MAX_RECORD_BYTES, **section}
        source = Source.model_validate(whole)
        files = find_files(path.name, path.parent)
        reading = resolve_reading(source, files, Path())
        found = 0
        for chunk in Chunks(files, reading, max(4096, files[0].bytes // 4)):
            for batch in read_documents(chunk.file.path, chunk.file.name, chunk.span, reading):
                batch.documents.validate(full=True)
                found += batch.documents.num_rows + len(batch.bad) + len(batch.dropped)
        return found, count(path)

    return read


def _talk() -> list[dict[str, Any]]:
    """Conversations of all kinds: parts of a text, calls of tools, other keys."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"é": [1, None, 2.5]}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    return [
        {
            "messages": [
                {"role": "system", "content": f"You are n° {n}."},
                {"role": "user", "content": [{"type": "text", "text": f"“{n}” <|im_end|>"}], "name": None},
                {"role": "assistant", "content": "  Well, \n", "tool_calls": [call] * (n % 2)},
                {"role": "user", "content": "" if n % 3 else "ok"},
                {"role": "assistant", "content": "bye"},
            ],
            "tools": tools if n % 2 else None,
        }
        for n in range(6)
    ]


def talk(path: Path) -> Found:
    """Conversations of another, by the template that a few have."""
    return source(_lines, chat={"template": "chatml", "tools": "tools"})(path)


def template(path: Path) -> Found:
    """A template of another: a file of Jinja, or in the configuration of a tokenizer."""
    rows = _talk()
    (path.parent / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    chat = {"template": str(path), "tools": "tools"}
    return source(chat=chat)(path.parent / "a.jsonl")[0], len(rows)


def hostile_template(path: Path) -> Found:
    """No conversation is made by it, and not for want of memory."""
    found, refused = 0, 0
    (path.parent / "a.jsonl").write_text(json.dumps(_talk()[0]) + "\n")
    section = {"name": "s", "files": "a.jsonl", "chat": {"template": str(path)}}
    files = find_files("a.jsonl", path.parent)
    reading = resolve_reading(Source.model_validate(section), files, Path())
    for batch in read_documents(files[0].path, "a.jsonl", WHOLE, reading):
        found += batch.documents.num_rows + len(batch.bad)
        refused += sum(
            bad.reason == "template_error" and not bad.detail.startswith("MemoryError") for bad in batch.bad
        )
    assert found == 1
    return refused, 1


def in_directory(path: Path) -> Found:
    """A file as one of a directory, which also has another."""
    (path.parent / "other.md").write_bytes(b"another\n")
    section = {"path": str(path.parent), "suffixes": [path.suffix, ".md"]}
    source = Source.model_validate({"name": "s", "directory": section, "max_record_bytes": MAX_RECORD_BYTES})
    files = list_source(source, Path())
    reading = resolve_reading(source, files, Path())
    found = 0
    for file in files:
        for batch in read_documents(file.path, file.name, WHOLE, reading):
            batch.documents.validate(full=True)
            found += batch.documents.num_rows + len(batch.bad) + len(batch.dropped)
    return found, 2


def ignoring(path: Path) -> Found:
    """A `.gitignore` that may say anything."""
    for name in ("a.py", "b/c.py", "b/d/e.py"):
        (path.parent / name).parent.mkdir(exist_ok=True)
        (path.parent / name).write_bytes(b"x = 1\n")
    section = {"path": str(path.parent), "suffixes": [".py"]}
    files = list_source(Source.model_validate({"name": "s", "directory": section}), Path())
    return sum(file.bytes for file in files) + 1, None


def tokenizer(path: Path) -> Found:
    found = load_tokenizer(path)
    encoded = found.encode(["plain words, déjà vu 日本 \0 <|endoftext|>", "", " " * 100])
    assert all(0 <= number < found.vocab_size for number in encoded.ids)
    return len(encoded.ids), None


def recipe(path: Path) -> Found:
    return len(load_recipe(path).sources), None


def mixture(path: Path) -> Found:
    read = read_mixture_file(path)
    mixture_weights(read)
    return len(to_sources(read)), None


def container(path: Path) -> Found:
    (path.parent / "a.jsonl").write_bytes(b'{"text": "x"}\n')
    return len(list_shards(path, None)), None


def manifest(path: Path) -> Found:
    return len(load_manifest(path.parent).files), None


def receipt(path: Path) -> Found:
    """One that cannot be read counts as absent."""
    (path.parent / "receipts").mkdir(exist_ok=True)
    shutil.copy(path, path.parent / "receipts/00000.json")
    return len(load_receipts(path.parent)), None


def table(path: Path) -> Found:
    """A working shard. What a run reads of its own is proven by sha256 before; this is without."""
    try:
        found = load_table(path)
        found.validate(full=True)
    except (OSError, pa.ArrowException):  # as pyarrow tells it
        return 0, None
    return found.num_rows, None


def build(directory: Path) -> Found:
    """As a trainer reads it: every row, and batches of them; then where documents lie."""
    tried, faults = 0, list[TokmillError]()
    for boundaries in ("eos", "index"):
        try:
            dataset = open_dataset(directory, boundaries=boundaries)  # type: ignore[arg-type]
            for example in dataset:
                tried += int(np.asarray(example["ids"]).sum() >= 0)
            for batch in Batches(dataset, batch_size=4, seed=1):
                tried += len(batch["tokens"])
        except TokmillError as error:
            faults.append(error)
    for act in (
        lambda: sum(1 for _ in read_row_index(directory / "index.jsonl.zst")),
        lambda: find_row(directory / "index.jsonl.zst", 1),
    ):
        try:
            act()
        except TokmillError as error:
            faults.append(error)
    if faults:
        raise faults[0]
    return tried, None


def documents(count: int = 12) -> list[dict[str, Any]]:
    return [
        {"id": f"d{n}", "text": f"document {n}: “words”, numbers {n * 7}\n" + "and more of them " * n,
         "license": "MIT",
         "created_at": "2024-01-02", "more": {"n": [n, None, 1.5]}}
        for n in range(count)
    ]  # fmt: skip


def _parquet(columns: dict[str, list[Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, row_group_size=5, compression="zstd")
    return sink.getvalue()


def _wiki_dump() -> bytes:
    pages = "".join(
        f"<page><title>Page {n}</title><ns>0</ns><id>{n}</id><revision><id>{n}0</id>"
        f"<timestamp>2024-05-06T07:08:09Z</timestamp><model>wikitext</model><format>text/x-wiki</format>"
        f"<text bytes=\"9\" xml:space=\"preserve\">'''Page {n}''' is [[about|a thing]]. {{{{cite|x={n}}}}} "
        "&amp; more.\n== Part ==\n"
        f"* one\n* two &lt;ref&gt;r&lt;/ref&gt;</text></revision></page>\n"
        for n in range(8)
    )
    head = "<siteinfo><base>https://x.org/wiki/Main</base></siteinfo>"
    opening = '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" xml:lang="en">'
    return f"{opening}{head}{pages}</mediawiki>\n".encode()


def _posts() -> bytes:
    rows = []
    for n in range(1, 9):
        rows.append(
            f'<row Id="{n}" PostTypeId="1" CreationDate="2020-01-02T03:04:05.678" Score="{n}" '
            f'AcceptedAnswerId="{n + 100}" Body="&lt;p&gt;How is &lt;code&gt;{n}&lt;/code&gt; '
            f'done?&lt;/p&gt;&#xA;" Title="Question {n}" Tags="&lt;a&gt;" ContentLicense="CC BY-SA 4.0" />'
        )
        rows.append(
            f'<row Id="{n + 100}" PostTypeId="2" ParentId="{n}" CreationDate="2020-01-03T00:00:00.000" '
            f'Score="2" Body="&lt;p&gt;Like {n}.&lt;/p&gt;" />'
        )
    return ('<?xml version="1.0" encoding="utf-8"?>\n<posts>\n' + "\n".join(rows) + "\n</posts>").encode()


def _seven_zip(data: bytes) -> bytes:
    import py7zr

    sink = io.BytesIO()
    # preset 1: the usual one takes 700 MB to compress, and this happens within the bound on memory
    with py7zr.SevenZipFile(sink, "w", filters=[{"id": py7zr.FILTER_LZMA2, "preset": 1}]) as archive:
        archive.writestr(data, "Posts.xml")
    return sink.getvalue()


def _warc(kind: str) -> bytes:
    records = []
    for n in range(6):
        text = f"<p>This is page number {n}. {'It has words. ' * 20}</p>"
        page = f"<html><body><main>{text}</main></body></html>".encode()
        body = b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n\r\n" + page
        media = "application/http; msgtype=response"
        if kind == "conversion":
            body, media = b"extracted words " * 20, "text/plain"
        head = (
            f"WARC/1.0\r\nWARC-Type: {kind}\r\nWARC-Record-ID: <urn:uuid:{n}>\r\nWARC-Date: "
            f"2024-05-18T01:58:10Z\r\nWARC-Target-URI: https://example.org/{n}\r\nContent-Type: "
            f"{media}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        records.append(head.encode() + body + b"\r\n\r\n")
    return b"".join(records)


def _mail(count: int = 8) -> bytes:
    """Plain ones, and one in parts."""
    messages = [
        f"From a@x Tue Jan  2 03:04:05 2024\nSubject: =?utf-8?q?n=C2=B0_{n}?=\nMessage-ID: <{n}@x>\n"
        f"Date: Tue, 2 Jan 2024 03:04:05 +0200\nContent-Type: text/plain; charset=utf-8\n\n"
        f"Message {n}, “words”\n>From there\n\n"
        for n in range(count)
    ]
    messages.append(
        "From b@x Tue Jan  2 03:04:05 2024\nContent-Type: multipart/alternative; boundary=x\n\n--x\n"
        "Content-Transfer-Encoding: base64\n\nd29yZHM=\n--x\nContent-Type: text/html\n\n<p>words\n--x--\n"
    )
    return "".join(messages).encode()


def _mails(path: Path) -> int | None:
    """Lines that begin a message, one by one."""
    data = _unpacked(path)
    if data is None or not data.startswith(b"From "):
        return None
    count, is_blank = 0, True
    for line in data.split(b"\n"):
        count += is_blank and line.startswith(b"From ")
        is_blank = line in (b"", b"\r")
    return count


def _nested_mail(depth: int) -> bytes:
    heads = "".join(f"Content-Type: multipart/mixed; boundary=b{n}\n\n--b{n}\n" for n in range(depth))
    return f"From x\n{heads}\ndeep\n".encode()


def _tar() -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for row in documents():
            key = f"é/{row['id']}" + "x" * (120 if row["id"] == "d3" else 0)
            for end, data in (("txt", row["text"]), ("json", json.dumps(row["more"])), ("cls", "7")):
                member = tarfile.TarInfo(f"{key}.{end}")
                member.size = len(data.encode())
                tar.addfile(member, io.BytesIO(data.encode()))
    return sink.getvalue()


def _tar_bomb() -> bytes:
    """A text of half a gigabyte, in a few kilobytes."""
    member = tarfile.TarInfo("a.txt")
    member.size = 1 << 29
    rest = gzip.compress(bytes(1 << 20), 1) * 512 + gzip.compress(bytes(1024))
    return gzip.compress(member.tobuf(tarfile.GNU_FORMAT)) + rest


def _container(scratch: Path) -> bytes:
    shard = SnapshotShard(
        path="a.jsonl", bytes=14, rows=1, chars=1, tokens=1, sha256="0" * 64, content_sha256="0" * 64
    )
    built = build_snapshot(
        "container", "o/n", "0" * 40, {"by": "hand"}, [shard] * 3, tokens_are_estimated=True
    )
    write_snapshot(scratch / "container.json", built)
    return (scratch / "container.json").read_bytes()


PDF = [["A page of words (one)", "and a hyphen-", "ated one: äöü"], ["日本語 “quoted”"], []]


def _notebook() -> bytes:
    cells = [
        {"cell_type": kind, "source": ["# one\n", "two é"], "metadata": {}, "outputs": [{"text": ["3"]}]}
        for kind in ("markdown", "code", "raw")
    ]
    return json.dumps({"cells": cells, "nbformat": 4, "metadata": {}}, ensure_ascii=False).encode()


_GITIGNORE = (
    b"*.log\n!keep.log\n/build/\ndocs/**/*.html\n[a-c]?[!x].o\n\\#a\nx\\ \n**/b\n*a*b*c*\n[[:alpha:]]z\n"
)
_RECIPE = b"""name: fuzzed
seed: 7
sources:
  - {name: a, domain: web, license: MIT, files: "a/*.jsonl", template: "Q: {question} A: {answer}", limit: {docs: 10}}
  - name: b
    files: [b.txt, "c/*.txt"]
    unit: paragraph
    sample: {method: reservoir, k: 5}
normalize: {unicode: NFC, nul: strip}
license: {allow: [MIT, Apache-2.0], unknown: drop}
filters: [gopher-quality, {measure: digit_share, max: 0.3, reason: mostly_digits}]
redact: [email, ip]
dedup: {exact: true, near: {threshold: 0.8, bands: 14, rows: 8}, window: {policy: trim}}
split: {method: counts, counts: {valid: 5}}
tokenizer: {train: {model: byte_bpe, vocab_size: 300}, eos: "<|endoftext|>"}
mixture: {weights: {web: 0.7, default: 0.3}, tokens: 2M, exhausted: repeat}
pack: {layout: concat, length: 64, tail: pad}
builds: [{name: rows, format: memmap}, {name: mega, format: megatron, dtype: uint16}]
"""  # noqa: E501
_MIXTURE = b"""seed: 3
domains:
  web: {weight: 0.7, sources: [{name: a, files: a.jsonl, weight: 0.5}, {name: b, files: b.jsonl, weight: 0.5}]}
  math: {weight: 0.3, sources: [{name: c, files: c.jsonl, template: "{q} {a}", samples: 10, where: {k: v}}]}
"""  # noqa: E501


def targets(scratch: Path) -> dict[str, Target]:
    """Every target by its name. What takes a run is made in `scratch`."""
    rows = documents()
    jsonl = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    text = b"\n\n".join(str(row["text"]).encode() for row in rows)
    pairs = [{"src_text": f"le mot numéro {n}", "tgt_text": f"the word number {n}"} for n in range(20)]
    tsv = "".join(f"{pair['src_text']}\t{pair['tgt_text']}\n" for pair in pairs).encode()
    pair_lines = "".join(json.dumps(pair) + "\n" for pair in pairs).encode()
    columns = {key: [row[key] for row in rows] for key in ("id", "text", "license", "created_at")}
    flat = [{key: row[key] for key in columns} for row in rows]
    records = source(_lines, fields={"id": "id", "meta": ["more"]})
    extracted = "".join(
        f'<doc id="{n}" url="https://x.org/?curid={n}" title="Page {n}">\nPage {n}\n\nText of page {n} &amp; '
        "more.\n</doc>\n"
        for n in range(10)
    ).encode()
    wiki_lines = "".join(
        json.dumps({"id": str(n), "url": "u", "title": f"Page {n}", "text": f"Text of {n}"}) + "\n"
        for n in range(10)
    ).encode()
    found = {
        "jsonl": Target({"a.jsonl": jsonl}, records),
        "jsonl.gz": Target({"a.jsonl.gz": jsonl}, records, gzip.compress),
        "jsonl.zst": Target({"a.jsonl.zst": jsonl}, records, _zstd),
        "template": Target({"a.jsonl": jsonl}, source(_lines, template="{id}: {text} ({license})")),
        "jsonl.xz": Target({"a.jsonl.xz": jsonl}, source(), lzma.compress),
        "jsonl.lz4": Target({"a.jsonl.lz4": jsonl}, source(), _lz4),
        "json array": Target({"a.json": json.dumps(rows, indent=1).encode()}, source(_elements)),
        "csv": Target({"a.csv": _csv(flat)}, source(_cells, fields={"id": "id"})),
        "tsv.gz": Target({"a.tsv.gz": _csv(flat, delimiter="\t")}, source(), gzip.compress),
        "arrow": Target({"a.arrow": _arrow(columns, is_stream=False)}, source(fields={"id": "id"})),
        "arrow.lz4": Target({"a.feather": _arrow(columns, is_stream=False, compression="lz4")}, source()),
        "arrow stream": Target({"a.arrow": _arrow(columns, is_stream=True)}, source()),
        "saved to disk": Target({}, saved, directory=scratch / "saved"),
        "parquet": Target({"a.parquet": _parquet(columns)}, source(_parquet_rows, fields={"id": "id"})),
        "text by line": Target({"a.txt": text}, source(_lines, unit="line")),
        "text by paragraph": Target({"a.txt": text}, source(unit="paragraph")),
        "text as a whole": Target({"a.txt.gz": text}, source(lambda path: 1, unit="document"), gzip.compress),
        "wikiextractor": Target({"wiki_00": extracted}, source(wikipedia={})),
        "wikiextractor lines": Target({"wiki_00": wiki_lines}, source(wikipedia={})),
        "mediawiki": Target({"dump.xml": _wiki_dump()}, source(wikipedia={})),
        "mediawiki.bz2": Target({"dump.xml.bz2": _wiki_dump()}, source(wikipedia={}), _bzip2),
        "posts": Target({"Posts.xml": _posts()}, source(stackexchange={})),
        "posts.7z": Target({"a.7z": _posts()}, source(stackexchange={}), _seven_zip),
        "pairs.tsv": Target({"a.tsv": tsv}, source(_lines, parallel={})),
        "pairs.csv": Target({"a.csv": _csv(pairs)}, source(parallel={})),
        "pairs.jsonl": Target({"a.jsonl": pair_lines}, source(_lines, parallel={})),
        "pairs.parquet": Target(
            {"a.parquet": _parquet({key: [pair[key] for pair in pairs] for key in pairs[0]})},
            source(_parquet_rows, parallel={}),
        ),
        "warc": Target({"a.warc": _warc("response")}, source(warc={})),
        "warc.gz": Target({"a.warc.gz": _warc("response")}, source(warc={}), _members),
        "wet": Target({"a.wet": _warc("conversion")}, source(warc={})),
        "wet.gz": Target({"a.wet.gz": _warc("conversion")}, source(warc={}), _members),
        "pdf": Target({"a.pdf": make_pdf(PDF, title="t")}, source(lambda path: 1, pdf={"max_seconds": 10})),
        "mbox": Target({"a.mbox": _mail()}, source(_mails, mbox={})),
        "mbox.gz": Target({"a.mbox.gz": _mail()}, source(_mails, mbox={}), gzip.compress),
        "tar": Target({"a.tar": _tar()}, source(webdataset={})),
        "tar.gz": Target({"a.tar.gz": _tar()}, source(webdataset={}), gzip.compress),
        "file of a directory": Target({"a.txt": text}, in_directory),
        "page of a directory": Target({"a.html": b"<p>a &amp; <b>b</b><ul><li>c</ul>" * 20}, in_directory),
        "notebook": Target({"a.ipynb": _notebook()}, in_directory),
        "gitignore": Target({".gitignore": _GITIGNORE}, ignoring),
        "chat": Target({"a.jsonl": "".join(json.dumps(row) + "\n" for row in _talk()).encode()}, talk),
        "chat template": Target({"t.jinja": templates.PLAIN.encode()}, template),
        "chat config": Target(
            {
                "tokenizer_config.json": json.dumps(
                    {"chat_template": templates.PLAIN, "bos_token": "<s>"}
                ).encode()
            },
            template,
        ),
        "recipe": Target({"recipe.yaml": _RECIPE}, recipe),
        "mixture": Target({"mixture.yaml": _MIXTURE}, mixture),
        "container": Target({"container.json": _container(scratch)}, container),
    }
    for path in sorted((scratch / "tokenizers").iterdir()):
        found[f"tokenizer {path.name}"] = Target({path.name: path.read_bytes()}, tokenizer)
    return found | _bombs() | _of_a_run(scratch / "out")


def _bombs() -> dict[str, Target]:
    """A few bytes that ask for gigabytes, or for hours."""
    zeros = b"\0" * (1 << 20)
    gzipped = gzip.compress(zeros * 64, 1) * 8  # half a gigabyte, twice what a child may have
    compressor = zstandard.ZstdCompressor(level=3, write_content_size=False)
    zstd = compressor.compress(zeros * 64) * 8
    # the header of a frame whose window is 2 GB, and a block that repeats one byte
    window = (
        b"\x28\xb5\x2f\xfd" + b"\x00" + bytes([21 << 3]) + (1 << 17 << 3 | 0b011).to_bytes(3, "little") + b"a"
    )
    laughs = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 10))
    declared = f'<!DOCTYPE posts [<!ENTITY e0 "ha">{laughs}]>'
    aliases = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 64))
    deep = b'{"text": "x", "more": ' + b"[" * 200_000 + b"]" * 200_000 + b"}\n"
    records = source(_lines, fields={"meta": ["more"]})
    posts = source(stackexchange={})
    hostile = templates.TOO_MUCH | templates.NOT_THE_SAME | templates.FAILS | templates.NO_TEMPLATE
    return {
        f"bomb template: {name}": Target({"t.jinja": text.encode()}, hostile_template, is_bomb=True)
        for name, text in hostile.items()
    } | {
        f"bomb {name}": Target({file: data}, read, is_bomb=True)
        for name, file, data, read in [
            ("gzip", "a.jsonl.gz", gzipped, source()),
            ("gzip text", "a.txt.gz", gzipped, source(lambda path: 1)),
            ("zstd", "a.jsonl.zst", zstd, source()),
            ("zstd window", "a.jsonl.zst", window, source()),
            ("bzip2", "dump.xml.bz2", bz2.compress(zeros * 8) * 64, source(wikipedia={})),
            ("warc", "a.warc.gz", gzip.compress(_warc("response")[:-2]) + gzipped, source(warc={})),
            ("tar", "a.tar.gz", _tar_bomb(), source(lambda path: 1, webdataset={})),
            ("deep notebook", "a.ipynb", b'{"cells":[{"cell_type":"code","x":' + b"[" * 50_000, in_directory),
            ("stars", ".gitignore", b"*a" * 400 + b"\n" + b"**/a*/" * 200 + b"b\n", ignoring),
            ("7z", "a.7z", _seven_zip(b"<posts>" + b" " * (8 << 20) + b"</posts>"), posts),
            ("laughs", "Posts.xml", f"{declared}<posts><row Id='&e9;'/></posts>".encode(), posts),
            ("aliases", "recipe.yaml", f"name: x\n{aliases}".encode(), recipe),
            ("deep yaml", "recipe.yaml", b"[" * 100_000, recipe),
            ("deep json", "a.jsonl", deep * 3, records),
            ("deep manifest", "manifest.json", b'{"kind":' * 200_000, manifest),
            ("deep container", "container.json", b'{"kind":' * 200_000, container),
            ("deep xml", "dump.xml", b"<mediawiki>" + b"<a>" * 100_000, source(wikipedia={})),
            (
                "long line",
                "a.jsonl",
                b'{"text": "' + b"x" * (32 << 20) + b'"}\n' + b'{"text": "y", "more": 1}\n',
                records,
            ),
            ("long tag", "dump.xml", b'<mediawiki a="' + b"x" * (8 << 20), source(wikipedia={})),
            ("no newline", "a.tsv", b"x" * (32 << 20), source(_lines, parallel={})),
            ("long cell", "a.csv", b'text\n"' + b'x""\n' * (8 << 20) + b'"\ny\n', source(lambda path: 2)),
            ("open quote", "a.csv", b'text\ny\n"' + b"x\n" * (16 << 20), source()),
            ("many columns", "a.csv", b"text," * 200_000 + b"\n" + b"," * 200_000, source()),
            ("long element", "a.json", b'[{"text": "' + b"x" * (32 << 20) + b'"},7]', source(lambda path: 2)),
            ("deep array", "a.json", b"[" * (8 << 20), source()),
            ("xz", "a.jsonl.xz", lzma.compress(zeros * 64, preset=0) * 8, source()),
            ("lz4", "a.jsonl.lz4", _lz4(zeros * 64) * 8, source()),
            ("pdf forms", "a.pdf", nested_forms(), source(lambda path: 1, pdf={"max_seconds": 1})),
            ("pdf stream", "a.pdf", giant_stream(), source(lambda path: 1, pdf={"max_seconds": 10})),
            ("deep mail", "a.mbox", _nested_mail(1000), source(lambda path: 1, mbox={})),
            ("long mail", "a.mbox", _mail() + b"x" * (32 << 20), source(_mails, mbox={})),
            ("long field", "a.mbox", b"From x\nSubject: " + b"=?a?q?" * 9000, source(_mails, mbox={})),
            ("bzip2 text", "a.txt.bz2", bz2.compress(zeros * 8) * 64, source(lambda path: 1)),
        ]
    }


def prepare(scratch: Path) -> None:
    """What it takes tokenizers to make. Their threads do not live through a fork,
    so this is for another process."""
    mill.run(whole_recipe(scratch / "corpus", builds=_BUILDS), scratch / "out", workers=1)
    columns = {key: [row[key] for row in documents()] for key in ("id", "text", "license")}
    (scratch / "saved").mkdir()
    for number in range(2):
        name = f"data-0000{number}-of-00002.arrow"
        (scratch / "saved" / name).write_bytes(_arrow(columns, is_stream=True))
    state = {"_data_files": [{"filename": f"data-0000{number}-of-00002.arrow"} for number in range(2)]}
    (scratch / "saved/state.json").write_text(json.dumps(state))
    (scratch / "saved/dataset_info.json").write_text("{}")
    directory = scratch / "tokenizers"
    directory.mkdir()
    texts = [
        "the cat sat on the mat, and the other cat sat there too\n" * 3,
        "les chats étaient là, déjà",
    ] * 20
    trained = train_byte_bpe(texts, vocab_size=320, special_tokens=["<|endoftext|>", "<|pad|>"])
    (directory / "tokenizer.json").write_bytes(trained.data)
    tokens = [bytes([byte]) for byte in range(256)] + [b"th", b"the", b" the", b"at", b" cat"]
    lines = [base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)]
    (directory / "ranks.tiktoken").write_bytes(b"".join(lines))
    vocabulary = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate(tokens)
    ]
    config = {"pattern": r"\s+|\S+", "default_vocab_size": len(tokens) + 24, "default_num_special_tokens": 24}
    tekken = {"config": {**config, "version": "v3"}, "vocab": vocabulary}
    (directory / "tekken.json").write_text(json.dumps(tekken))
    for kind in ("bpe", "unigram"):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            vocab_size=300,
            model_type=kind,
            byte_fallback=True,
            hard_vocab_limit=False,
            minloglevel=2,
        )
        (directory / f"{kind}.model").write_bytes(model.getvalue())


# Every format that the loader opens; of some, documents as well as rows.
_DOCUMENTS = {"pack": {"layout": "indexed"}}
_BUILDS = [
    *BUILDS,
    {"name": "arrow", "format": "arrow", "rows_per_shard": 8},
    {"name": "arrow-documents", "format": "arrow", "rows_per_shard": 8, **_DOCUMENTS},
    {"name": "levanter", "format": "levanter"},
    {"name": "levanter-documents", "format": "levanter", **_DOCUMENTS},
    {"name": "litdata", "format": "litdata"},
    {"name": "llmc", "format": "llmc", "dtype": "uint16"},
    {"name": "mds", "format": "mds"},
    {"name": "nanogpt", "format": "nanogpt"},
    {"name": "nanotron", "format": "nanotron"},
    {"name": "olmo", "format": "olmo"},
]


def _of_a_run(out: Path) -> dict[str, Target]:
    found = {
        "manifest": Target({"manifest.json": (out / "split/manifest.json").read_bytes()}, manifest),
        "working shard": Target({"a.parquet": next(out.glob("clean/*/marks-*.parquet")).read_bytes()}, table),
    }
    task = json.loads((out / "split/manifest.json").read_bytes())["tasks"][0]
    found["receipt"] = Target({"receipt.json": json.dumps({**task, "files": []}).encode()}, receipt)
    for name in (str(build["name"]) for build in _BUILDS):
        alone = out.parent / f"alone-{name}"  # without the manifest, which would know better
        shutil.copytree(out / "build" / name / "train", alone, ignore=shutil.ignore_patterns("places.npy"))
        found[f"build {name}"] = Target({}, build, directory=alone)
    return found
