"""How fast each kind of source is ingested into working shards: MB per CPU second, one core.

    python bench/sources.py [--rounds 3] [--json FILE]

Text sources count MB of text, StackExchange MB of XML. JSONL is read twice over, because memory that a
process touches for the first time costs a tenth of a second, and a corpus is larger than 138 MB; Parquet,
Arrow, CSV, JSON, a directory of files and tar archives are made from the same texts; the StackExchange input
is the sample dump repeated to about 40 MB. Mail and PDFs are made of some of the texts. A figure is the
median of the rounds.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import mailbox
import shutil
import statistics
import sys
import tarfile
import tempfile
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from stages import SHARED, run_alone
from tokmill.kernels.warm import load_kernels
from tokmill.storage import codecs
from tokmill.storage.records import Kind, Wanted

COPIES = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    options = parser.parse_args()
    if not (SHARED / "bench").is_dir():
        print(f"needs the texts in {SHARED}/bench", file=sys.stderr)
        return 2
    load_kernels()
    with tempfile.TemporaryDirectory(prefix="tokmill-bench-") as directory:
        figures = [
            measure(name, source, Path(directory), options.rounds) for name, source in cases(Path(directory))
        ]
    render(figures)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


def cases(directory: Path) -> list[tuple[str, dict[str, Any]]]:
    texts = sorted((SHARED / "bench").glob("*.jsonl.zst"))
    wanted = [Wanted(key, key, Kind.SCALAR, False) for key in ("id", "text", "license")]
    rows_of_texts: list[str] = []
    for path in texts:
        batches = codecs.read_batches(path, wanted, unit="document", max_record_bytes=1 << 27)
        tables = [batch.table for batch in batches]
        whole, name = pa.concat_tables(tables), path.name.split(".")[0]
        with pq.ParquetWriter(directory / f"{name}.parquet", tables[0].schema) as writer:
            for table in tables:
                writer.write_table(table)
        with pa.ipc.new_stream(directory / f"{name}.arrow", whole.schema) as stream:
            stream.write_table(whole, max_chunksize=1000)
        rows = whole.to_pylist()
        rows_of_texts += [row["text"] for row in rows[:2000]]
        for suffix, delimiter in ((".csv", ","), (".tsv", "\t")):
            with (directory / f"{name}{suffix}").open("w", newline="", encoding="utf-8") as file:
                writer_of_rows = csv.DictWriter(file, whole.column_names, delimiter=delimiter)
                writer_of_rows.writeheader()
                writer_of_rows.writerows(rows)
        (directory / f"{name}.json").write_text(json.dumps(rows, ensure_ascii=False, indent=1), "utf-8")
        write_members(rows, directory, name)
        for number in range(COPIES):
            shutil.copy(path, directory / f"{number}-{path.name}")
    posts = (SHARED / "data/stackexchange/coffee.stackexchange.com/Posts.xml").read_bytes()
    head, _, rows = posts.partition(b"<posts>")
    rows = rows.rpartition(b"</posts>")[0]
    xml = directory / "Posts.xml"
    xml.write_bytes(head + b"<posts>" + rows * (40_000_000 // len(rows)) + b"</posts>")
    write_mail(directory / "a.mbox", rows_of_texts)
    write_pdfs(directory, rows_of_texts)
    return [
        ("jsonl.zst", {"files": str(directory / "*.jsonl.zst")}),
        ("parquet", {"files": str(directory / "*.parquet")}),
        ("arrow", {"files": str(directory / "*.arrow")}),
        ("csv", {"files": str(directory / "*.csv")}),
        ("tsv", {"files": str(directory / "*.tsv")}),
        ("json array", {"files": str(directory / "*.json")}),
        ("directory", {"directory": {"path": str(directory / "tree")}}),
        ("webdataset", {"files": str(directory / "*.tar"), "webdataset": {}}),
        ("stackexchange xml", {"files": str(xml), "stackexchange": {}}),
        ("mbox", {"files": str(directory / "a.mbox"), "mbox": {}}),
        ("pdf", {"files": str(directory / "*.pdf"), "pdf": {}}),
        ("wikiextractor", {"files": str(SHARED / "data/wikiextractor/*/AA/*"), "wikipedia": {}}),
    ]


def write_mail(path: Path, texts: list[str]) -> None:
    """Each a message of its own, as the standard library encodes it."""
    box = mailbox.mbox(path)
    for number, text in enumerate(texts):
        message = EmailMessage()
        message["Subject"], message["Message-ID"] = f"number {number}", f"<{number}@example.org>"
        message["Date"] = "Tue, 02 Jan 2024 03:04:05 +0200"
        message.set_content(text)
        box.add(message)
    box.flush()
    box.close()


def write_pdfs(directory: Path, texts: list[str]) -> None:
    """Files of 20 pages of 50 lines; pages are plain objects, as small a PDF as can be read."""
    words = " ".join(texts).encode("latin-1", "ignore").translate(None, b"()\\\0").split()
    lines = [b" ".join(words[at : at + 12]) for at in range(0, len(words), 12)]
    pages = [lines[at : at + 50] for at in range(0, len(lines), 50)]
    for number in range(min(len(pages) // 20, 50)):
        (directory / f"{number:03d}.pdf").write_bytes(pdf_of(pages[20 * number : 20 * number + 20]))


def pdf_of(pages: list[list[bytes]]) -> bytes:
    kids = b" ".join(b"%d 0 R" % (4 + 2 * n) for n in range(len(pages)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%b] /Count %d >>" % (kids, len(pages)),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
    ]
    for number, lines in enumerate(pages):
        shown = b"BT /L 10 Tf 36 760 Td 14 TL %b ET" % b" ".join(b"(%b) Tj T*" % line for line in lines)
        objects.append(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents %d 0 R "
            b"/Resources << /Font << /L 3 0 R >> >> >>" % (5 + 2 * number)
        )
        objects.append(b"<< /Length %d >>\nstream\n%b\nendstream" % (len(shown), shown))
    whole, places = bytearray(b"%PDF-1.7\n"), []
    for number, body in enumerate(objects, 1):
        places.append(len(whole))
        whole += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    start = len(whole)
    whole += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    whole += b"".join(b"%010d 00000 n \n" % place for place in places)
    whole += b"trailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start)
    return bytes(whole)


def write_members(rows: list[dict[str, Any]], directory: Path, name: str) -> None:
    """Every text as a file of a directory, a hundred in each, and as a sample of a tar archive."""
    with tarfile.open(directory / f"{name}.tar", "w") as tar:
        for number, row in enumerate(rows):
            folder = directory / "tree" / name / f"{number // 100:04d}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number}.txt").write_text(row["text"], "utf-8", newline="")
            about = json.dumps({"license": row["license"]})
            for end, text in (("txt", row["text"]), ("json", about)):
                member = tarfile.TarInfo(f"{name}/{number:06d}.{end}")
                member.size = len(text.encode())
                tar.addfile(member, io.BytesIO(text.encode()))


def measure(name: str, source: dict[str, Any], directory: Path, rounds: int) -> dict[str, Any]:
    recipe = directory / "recipe.yaml"
    recipe.write_text(json.dumps({"name": "bench", "sources": [{"name": "s", **source}]}))
    samples = []
    for _ in range(rounds):
        shutil.rmtree(directory / "out", ignore_errors=True)
        samples.append(run_alone(recipe, ["ingest"], False))
    size = samples[0]["text_bytes"]
    if "stackexchange" in source:
        size = float(Path(source["files"]).stat().st_size)
    cpu = statistics.median(sample["cpu"] for sample in samples)
    return {
        "source": name,
        "mb": round(size / 1e6, 1),
        "cpu_s": round(cpu, 3),
        "mb_per_cpu_s": round(size / 1e6 / cpu, 1),
        "peak_rss_mb": round(max(sample["peak_rss"] for sample in samples) / 1e6),
    }


def render(figures: list[dict[str, Any]]) -> None:
    table = Table(title="ingest, one core, median of the rounds")
    for column in ("source", "MB", "CPU s", "MB / CPU s", "peak RSS MB"):
        table.add_column(column, justify="left" if column == "source" else "right")
    for f in figures:
        table.add_row(f["source"], *(f"{f[key]:,}" for key in ("mb", "cpu_s", "mb_per_cpu_s", "peak_rss_mb")))
    Console(soft_wrap=True).print(table)


if __name__ == "__main__":
    raise SystemExit(main())
